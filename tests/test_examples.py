"""The examples run from end to end, on few steps."""

import gc
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tape
from tests.daily import NIGHTLY, share

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
    for name in ("plain loss", "gradient penalty"):
        (relative,) = re.findall(rf"^{name}: .* within (\S+) of jax.grad, relative$", printed, re.MULTILINE)
        assert float(relative) < 1e-5


def test_streaming(tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    output = tmp_path / "streaming.png"
    monkeypatch.syspath_prepend(EXAMPLES)
    importlib.import_module("streaming").main(["--quick", "--steps", "4", "--output", str(output)])
    assert output.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    came = re.findall(r"^(bias|layer) (\d) +sent at", printed, re.MULTILINE)
    assert came == [(kind, str(i)) for i in (4, 3, 2, 1) for kind in ("bias", "layer")]
    (distance,) = re.findall(r"parameters of both: (\S+)", printed)
    assert float(distance) < 1e-6


def test_data_parallel(tmp_path):
    """In a process of its own: JAX makes devices once."""
    pytest.importorskip("matplotlib")
    output = tmp_path / "data_parallel.png"
    command = [sys.executable, EXAMPLES / "data_parallel.py", "--quick", "--steps", "4", "--output", output]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "JAX_PLATFORMS": "cpu"}
    printed = subprocess.run(  # noqa: S603 - the repository's own file
        command, check=True, capture_output=True, text=True, timeout=300, env=environment
    ).stdout
    assert printed.startswith("2 devices")
    rows = re.findall(
        r"^(overlapped|after the sweep) .* (\d+) of 6 all-reduces .*;\n +all devices within (\S+) of one device alone$",
        printed,
        re.MULTILINE,
    )
    assert output.read_bytes().startswith(b"\x89PNG")
    assert [name for name, _, _ in rows] == ["overlapped", "after the sweep"]
    assert all(float(distance) < 1e-6 for _, _, distance in rows)


def test_distributed(tmp_path):
    """In one process of eight devices, and by night in two that share eight, as tests/scale does by day."""
    for needed in ("matplotlib", "optax"):
        pytest.importorskip(needed)
    output = tmp_path / "distributed.png"
    command = [sys.executable, EXAMPLES / "distributed.py", "--quick", "--output", output, *([] if NIGHTLY else ["--processes", "1"])]
    places = ["8 devices", "2 processes of 4 devices"][: 2 if NIGHTLY else 1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "JAX_PLATFORMS": "cpu"}
    printed = subprocess.run(  # noqa: S603 - the repository's own file
        command, check=True, capture_output=True, text=True, timeout=300, env=environment
    ).stdout
    rows = re.findall(
        r"^(\S+(?: sharded)?) +(8 devices|2 processes of 4 devices): loss (\S+), within (\S+) of one device$", printed, re.MULTILINE
    )
    ways = ["data-parallel", "tensor-parallel", "fully sharded"]
    assert [(name, where) for name, where, _, _ in rows] == [(w, d) for d in places for w in ways]
    assert all(float(distance) < 1e-13 for *_, distance in rows)
    first, last = map(float, re.search(r"^one device: loss (\S+), after 8 steps (\S+)$", printed, re.MULTILINE).groups())
    assert last < first / 2
    assert {float(loss) for _, _, loss, _ in rows} == {last}
    assert output.read_bytes().startswith(b"\x89PNG")


def test_truncated_bptt(tmp_path, capsys, monkeypatch):
    for needed in ("matplotlib", "optax"):
        pytest.importorskip(needed)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    output = tmp_path / "truncated_bptt.png"
    monkeypatch.syspath_prepend(EXAMPLES)
    gc.collect()
    before = tape.stats().live_bytes  # what is kept is counted for the whole process
    importlib.import_module("truncated_bptt").main(["--quick", "--output", str(output)])
    assert output.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    rows = re.findall(r"^ +\d+ +\d+ +(\d+\.\d+) +(\d+)$", printed, re.MULTILINE)
    assert len(rows) == 10
    assert float(rows[-1][0]) < float(rows[0][0])  # the loss falls
    assert len({kept for _, kept in rows}) == 1  # and what is kept stays the same
    (distance,) = re.findall(r"jax.grad of one window, relative: (\S+)", printed)
    assert float(distance) < 1e-5
    counted = re.search(r"sweep: (\d+) bytes .* cut (\d+) in window 1, (\d+) in window 4", printed).groups()
    kept, first, grown = [int(number) - before for number in counted]
    assert kept < 1.1 * first
    assert grown > 1.4 * first


def test_loss_scaling(tmp_path, monkeypatch):
    for needed in ("matplotlib", "optax", "sklearn"):
        pytest.importorskip(needed)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    output = tmp_path / "loss_scaling.png"
    monkeypatch.syspath_prepend(EXAMPLES)
    results = importlib.import_module("loss_scaling").main(["--quick", "--output", str(output)])
    assert output.read_bytes().startswith(b"\x89PNG")
    learned = [run.loss[-1] < run.loss[0] / 2 for run in results]  # the example asserts which
    assert len(set(learned)) == 2
    skipped = {run.scaling: run.skipped for run in results if run.dtype == "float16"}
    assert skipped["2**40"] == 40
    assert 0 < skipped["dynamic from 2**40"] < 10


def test_offload(tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.syspath_prepend(EXAMPLES)
    output = tmp_path / "offload.png"
    importlib.import_module("offload").main(["--quick", "--output", str(output)])
    assert output.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert printed.startswith("4 values of 8192 bytes")
    rows = {name: (int(share), float(error)) for name, share, error in re.findall(r"^(\S.*?) +\d+ +(\d+)% +(\S+)$", printed, re.MULTILINE)}
    assert rows["as they are"] == (100, 0)
    assert rows["on the host"][1] < 1e-6
    assert rows["bfloat16"][0] < 70
    assert rows["int8"][0] < 50
    assert 1e-4 < rows["bfloat16"][1] < 0.02
    assert 1e-4 < rows["int8"][1] < 0.1


EXPERIMENTS = [
    "burgers",
    "gaussian_process",
    "implicit",
    "influence",
    "kfac",
    "lanczos",
    "maml",
    "mechanics",
    "ode",
    "policy_gradient",
    "trees",
    "verify",
    "wgan_gp",
]  # each asserts what it shows; with --quick as much of it as a few steps can show


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.stem)
def test_an_example_says_what_is_hard_elsewhere_asserts_draws_and_is_short(path):
    source = path.read_text(encoding="utf-8")
    if path.stem == "experiment":  # what they share
        return
    doc = source.split('"""')[1]
    title, underline, *_ = doc.splitlines()
    assert underline == "=" * len(title)  # of its page
    assert re.search(r"\bJAX\b|jax", doc)
    assert "PyTorch" in doc
    assert re.search(r"^ +assert ", source, re.MULTILINE)
    assert f'"{path.stem}.png"' in source
    assert len(source.splitlines()) <= 128  # two screens


def test_every_example_is_run():
    run = {*EXPERIMENTS, "digits", "distributed", "streaming", "data_parallel", "truncated_bptt", "loss_scaling", "offload"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} - {"experiment"} == run


@pytest.mark.parametrize("name", share(EXPERIMENTS, 3))
def test_experiment(name, tmp_path, capsys, monkeypatch):
    for needed in ("matplotlib", "optax", "rich", "scipy", "sklearn"):
        pytest.importorskip(needed)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.syspath_prepend(EXAMPLES)
    output = tmp_path / f"{name}.png"
    assert importlib.import_module(name).main(["--quick", "--output", str(output)])
    assert output.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr()
    assert printed.out.rstrip().endswith(f"picture in {output}")
    assert not printed.err  # no bar where there is no terminal
