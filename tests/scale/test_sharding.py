"""Arrays that are sharded over several devices: gradients, optimizers and transformations, on eight CPU devices in another process."""

import ast
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("sharded.py")
HELPERS = {"put", "function", "loss", "taken", "same", "lies", "trained"}
CHECKS = [node.name for node in ast.parse(SCRIPT.read_text()).body if isinstance(node, ast.FunctionDef) and node.name not in HELPERS]


@functools.cache
def findings():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, SCRIPT, *CHECKS]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600, env=environment)  # noqa: S603
    found = dict(json.loads(line) for line in done.stdout.splitlines())
    return found, done.stderr


@pytest.mark.parametrize("check", CHECKS)
def test_on_eight_devices(check):
    pytest.importorskip("optax")
    found, said = findings()
    assert found.get(check, said) == "passed"
