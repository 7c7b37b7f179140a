"""Two processes that share their devices: what they launch does not depend on time, and what is elsewhere is not looked at."""

import functools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np

SCRIPT = Path(__file__).with_name("in_process.py")


@functools.cache
def findings():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "JAX_PLATFORMS": "cpu"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    running = [subprocess.Popen([sys.executable, SCRIPT, address, str(i)], **pipes) for i in range(2)]  # noqa: S603
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
