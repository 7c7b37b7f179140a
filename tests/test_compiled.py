"""The programs that the suite keeps from run to run: they are found again, and one that was cut off is compiled anew."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import jax, warnings
found = []
jax.monitoring.register_event_listener(lambda event, **_: found.append(event))
print(float(jax.jit(lambda x: jax.numpy.sin(x) * 3)(0.5)), any("cache_hits" in event for event in found))
"""
FILTERS = ["-W", "error", "-W", "ignore:Error reading persistent compilation cache"]


def run(folder):
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(folder)}
    done = subprocess.run([sys.executable, *FILTERS, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)  # noqa: S603 - our own text
    assert done.returncode == 0, done.stderr
    value, hit = done.stdout.split()
    assert float(value) == pytest.approx(1.4382766)
    return hit == "True"


def test_what_was_compiled_is_found_by_the_next_process_and_cut_off_it_is_compiled_anew(tmp_path):
    assert not run(tmp_path)
    assert run(tmp_path)
    for size in (100, 0):
        for entry in tmp_path.glob("*-cache"):
            entry.write_bytes(entry.read_bytes()[:size])
        assert not run(tmp_path)
