"""The examples run from end to end, on few steps."""

import importlib
import os
import re
import subprocess
import sys
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


def test_streaming(tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    output = tmp_path / "streaming.png"
    monkeypatch.syspath_prepend(EXAMPLES)
    importlib.import_module("streaming").main(["--quick", "--steps", "4", "--output", str(output)])
    assert output.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    came = re.findall(r"^(bias|layer) (\d) ", printed, re.MULTILINE)
    assert came == [(kind, str(i)) for i in (4, 3, 2, 1) for kind in ("bias", "layer")]
    (distance,) = re.findall(r"parameters of both: (\S+)", printed)
    assert float(distance) < 1e-6


def test_data_parallel():
    """In a process of its own: JAX makes devices once."""
    command = [sys.executable, EXAMPLES / "data_parallel.py", "--quick", "--steps", "4"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "JAX_PLATFORMS": "cpu"}
    printed = subprocess.run(  # noqa: S603 - the repository's own file
        command, check=True, capture_output=True, text=True, timeout=300, env=environment
    ).stdout
    assert printed.startswith("2 devices")
    rows = re.findall(
        r"^(overlapped|after the sweep) .* (\d+) of 6 all-reduces .* within (\S+) of one device alone$", printed, re.MULTILINE
    )
    assert [name for name, _, _ in rows] == ["overlapped", "after the sweep"]
    assert all(float(distance) < 1e-6 for _, _, distance in rows)
