"""The examples run from end to end, on few steps."""

import importlib
import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_digits(tmp_path, capsys, monkeypatch):
    for needed in ("matplotlib", "optax", "sklearn"):
        pytest.importorskip(needed)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    output = tmp_path / "digits.png"
    monkeypatch.syspath_prepend(EXAMPLES)
    importlib.import_module("digits").main(["--quick", "--output", str(output)])
    assert output.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    epochs = re.findall(r"^ +(\d+) +(\d+\.\d+) +(\d+\.\d+)% +\d+\.\d+$", printed, re.MULTILINE)
    assert [int(number) for number, _, _ in epochs] == [1, 2, 1, 2]
    assert float(epochs[1][1]) < float(epochs[0][1])  # the loss falls
    assert float(epochs[3][1]) < float(epochs[2][1])
    for name in ("plain loss", "with the penalty"):
        (relative,) = re.findall(rf"^{name} +\S+ +(\S+)$", printed, re.MULTILINE)
        assert float(relative) < 1e-5
