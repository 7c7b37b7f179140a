"""``tape.reproducible``: a plain define-by-run session that is resumed in another process equals an uninterrupted one bit for bit."""

import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp

pytest.importorskip("safetensors")

MODE = "reproducible"  # with "enable_grad" last bits differ: the program of a step is there after some 400 of them
SCRIPT = """
import sys
import jax, jax.numpy as jnp, numpy as np, optax
import interop, tape, tape.numpy as tnp

begin, end, at = map(int, sys.argv[1:4])
folder = sys.argv[4]
mode = getattr(tape, sys.argv[5])
rng = np.random.default_rng(0)
layers = [[tape.Variable(rng.normal(size=(12, 12)).astype("f") / 6), tape.Variable(np.zeros(12, "f"))] for _ in range(2)]
optimizer = interop.optax.Optimizer(layers, optax.adam(1e-2))
mean = tape.constant(jnp.zeros(12))
state = {"layers": layers, "optimizer": optimizer, "mean": mean, "rng": rng}
if begin:
    interop.load(folder + "/middle.safetensors", state)
def turn():
    x = rng.normal(size=(16, 12)).astype("f")
    h = x
    for w, b in layers:
        h = tnp.tanh(h @ w + b) * 1.1 + 0.1
    optimizer.zero_grad()
    ((h - x) ** 2).mean().backward()
    optimizer.step()
    return h
def train():
    for k in range(begin, end):
        if k == at:
            interop.save(folder + "/middle.safetensors", state)
        h = turn()
        if k % 7 == 0:  # a look, of another structure
            float((h.detach() * 0.9).sum())
with mode():
    train()
interop.save(folder + f"/end{begin}.safetensors", state)
"""


def _run(*arguments):
    path = os.pathsep.join([str(Path(tape.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    subprocess.run(  # noqa: S603
        [sys.executable, "-c", SCRIPT, *map(str, arguments)], check=True, env={**os.environ, "PYTHONPATH": path}, timeout=300
    )


def test_a_run_resumed_in_another_process_is_the_uninterrupted_one(tmp_path):
    _run(0, 900, 700, tmp_path, MODE)
    _run(700, 900, -1, tmp_path, MODE)
    whole, resumed = (interop.load(tmp_path / f"end{begin}.safetensors") for begin in (0, 700))
    assert whole.keys() == resumed.keys()
    for name, value in whole.items():
        if name == "rng":
            assert value.bit_generator.state == resumed[name].bit_generator.state
        else:
            np.testing.assert_array_equal(value, resumed[name], err_msg=name)


def test_nothing_is_interpreted_and_no_program_changes(stats):
    x = tape.Variable(jnp.linspace(0.1, 1.0, 37))
    seen = set()
    with tape.reproducible():
        for _ in range(120):  # beyond that, numbers that stay the same become part of a program
            x.zero_grad()
            (tnp.sin(x * 1.7) / 3.0).sum().backward()
            seen.add(np.asarray(x.grad).tobytes())
    assert len(seen) == 1
    assert stats.interpreted == 0
    assert stats.reasons.total() == 1
    assert stats.reasons["numbers that stay the same"] == 0


def test_what_was_met_before_in_the_usual_way_does_not_matter(stats):
    x = tape.Variable(jnp.linspace(0.1, 1.0, 41))
    for _ in range(60):
        y = tnp.exp(tnp.sin(x * 1.3)).sum()
        float(y)
    before = stats.interpreted
    with tape.reproducible():
        y = tnp.exp(tnp.sin(x * 1.3)).sum()
        y.backward()
    assert stats.interpreted == before
    np.testing.assert_allclose(x.grad.numpy(), (jnp.exp(jnp.sin(x.value * 1.3)) * jnp.cos(x.value * 1.3) * 1.3), rtol=1e-5)


def test_modes_nest_and_what_is_pending_is_no_part_of_it(stats):
    x = tape.Variable(jnp.arange(1.0, 24.0))
    y = x * 2.5
    with tape.reproducible():
        assert tape.graph.scope.LOCAL.scope.reproducible
        with tape.eager():
            z = y * y
        w = (z * x).sum()
        w.backward()
    assert not tape.graph.scope.LOCAL.scope.reproducible
    np.testing.assert_allclose(x.grad.numpy(), 3 * 6.25 * np.arange(1.0, 24.0) ** 2, rtol=1e-5)
