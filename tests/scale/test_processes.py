"""Two processes that share their devices: what they launch does not depend on time, and what is elsewhere is not looked at."""

import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("in_process.py")


@functools.cache
def findings():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "JAX_PLATFORMS": "cpu"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    with tempfile.TemporaryDirectory() as folder:
        running = [subprocess.Popen([sys.executable, SCRIPT, address, str(i), folder], **pipes) for i in range(2)]  # noqa: S603
        try:
            said = [process.communicate(timeout=300) for process in running]
        finally:
            for process in running:
                process.kill()
    assert not any(process.returncode for process in running), said
    return [json.loads(out.splitlines()[-1]) for out, _ in said]


def test_what_is_elsewhere_is_not_looked_at():
    for number, found in enumerate(findings()):
        assert all(found["refused"])
        assert found["repr"] == "Variable(shape=(8,), dtype=float32, requires_grad=True)"
        assert found["gathered"] == list(range(8))
        assert found["shards"] == [[4 * number + 2 * i, 4 * number + 2 * i + 1] for i in range(2)]


def test_what_all_have_is_looked_at():
    for found in findings():
        assert found["whole"] == list(range(8))
        assert found["number"] == float((np.arange(8) ** 2).sum())
        assert found["element"] == 5


def test_processes_launch_the_same_programs():
    first, second = findings()
    assert first["launched"] == second["launched"]
    assert first["losses"] == second["losses"]
    assert first["launched"][-1][0] > 0
    assert first["launched"][-1][1] == first["launched"][2][1]  # nothing is interpreted after its second meeting


def test_both_may_save_at_one_path_what_all_have():
    pytest.importorskip("safetensors")
    pytest.importorskip("orbax")
    for found in findings():
        between, values, step, left = found["saved"]
        assert between == [list(range(8))] * 5  # never a damaged file
        assert (values, step, left) == (list(range(8)), 5, ["run.safetensors"])


def test_what_one_process_cannot_save_is_said():
    pytest.importorskip("safetensors")
    pytest.importorskip("orbax")
    for found in findings():
        assert "w is in part on devices of other processes" in found["elsewhere"]
        assert "save to a path that ends in .safetensors" in found["together"]
