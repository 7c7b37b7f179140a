"""Sharded: a define-by-run step on eight devices beside the ``jax.jit`` step written by hand, sharded alike.

An update that is written out (``p -= rate * p.grad``) is a program of its own, after that of the loss and the gradients, and hands these over;
with an Optimizer, and in ``tape.jit``, all is one.  Collectives are counted by kind in what XLA compiled: the tape's program is to have none that the other has not.  It runs in a process of its
own, since devices are made once.
"""

from __future__ import annotations

import collections
import importlib
import json
import os
import re
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import interop
import tape
import tape.numpy as tnp
from benchmarks.report import Report, Score
from benchmarks.timing import Effort, Times, interleave, ratio

__all__ = ["LAYOUTS", "sharded"]

DEVICES = 8
RATE = 1e-2
WIDTHS = (64, 256, 256, 64)
P = PartitionSpec
BOTH = P(("data", "model"))
# The batch, then weights and biases.
LAYOUTS: dict[str, tuple[PartitionSpec, list[PartitionSpec], list[PartitionSpec]]] = {
    "data-parallel": (P("data"), [P()] * 3, [P()] * 3),
    "tensor-parallel": (P("data"), [P(None, "model"), P("model"), P()], [P("model"), P(), P()]),
    "fully sharded": (BOTH, [BOTH] * 3, [BOTH] * 3),
}
_COLLECTIVE = re.compile(r" = .*? (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")


def collectives(hlo: str) -> dict[str, int]:
    """Count the collectives of a compiled program by kind."""
    return dict(sorted(collections.Counter(_COLLECTIVE.findall(hlo)).items()))


def _network(xp: Any, parameters: Any, x: Any) -> Any:
    for weights, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        x = xp.tanh(x @ weights + bias)
    return x @ parameters[-2] + parameters[-1]


def _loss(xp: Any, parameters: Any, x: Any, y: Any) -> Any:
    return ((_network(xp, parameters, x) - y) ** 2).mean()


def measured(name: str, effort: Effort) -> dict[str, Any]:
    """Return the collectives of both, and the times of a step."""
    batch, weights, biases = LAYOUTS[name]
    mesh = jax.make_mesh((DEVICES // 2, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))
    rng = np.random.default_rng(0)

    def put(value: Any, spec: PartitionSpec) -> Any:
        return jax.device_put(np.asarray(value, np.float32), NamedSharding(mesh, spec))

    arrays = []
    for a, b, w, v in zip(WIDTHS[:-1], WIDTHS[1:], weights, biases, strict=True):
        arrays += [put(rng.normal(size=(a, b)) / a**0.5, w), put(np.zeros(b), v)]
    x, y = put(rng.normal(size=(256, WIDTHS[0])), batch), put(rng.normal(size=(256, WIDTHS[-1])), batch)
    places = [a.sharding for a in arrays]

    def by_hand(parameters: list[Any], x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(lambda p: _loss(jnp, p, x, y))(parameters)
        gradients = [jax.lax.with_sharding_constraint(g, s) for g, s in zip(gradients, places, strict=True)]
        return value, [p - RATE * g for p, g in zip(parameters, gradients, strict=True)]

    compiled = jax.jit(by_hand, out_shardings=(None, places))
    held = [arrays]

    def native() -> Any:
        value, held[0] = compiled(held[0], x, y)
        return value

    parameters = [tape.Variable(a) for a in arrays]
    data = tape.constant(x), tape.constant(y)

    def step() -> Any:
        for p in parameters:
            p.zero_grad()
        value = _loss(tnp, parameters, *data)
        value.backward()
        with tape.no_grad():
            for p in parameters:
                assert p.grad is not None
                p -= RATE * p.grad  # noqa: PLW2901 - a Variable changes in place
        return value

    trained = [tape.Variable(a) for a in arrays]
    optimizer = interop.optax.Optimizer(trained, importlib.import_module("optax").sgd(RATE))

    def optimized() -> Any:
        optimizer.zero_grad()
        value = _loss(tnp, trained, *data)
        value.backward()
        optimizer.step()
        return value

    @tape.jit
    def whole(x: Any, y: Any) -> Any:
        value = _loss(tnp, parameters, x, y)
        gradients = tape.gradients(value, parameters)
        with tape.no_grad():
            for p, g in zip(parameters, gradients, strict=True):
                p -= RATE * g  # noqa: PLW2901
        return value

    ours = collectives(whole.lower(*data).compile().as_text())
    theirs = collectives(compiled.lower(arrays, x, y).compile().as_text() or "")
    losses = [(float(step()), float(optimized()), float(native())) for _ in range(6)]
    *mine, by_hands = np.array(losses).T
    if not np.allclose(mine, by_hands, rtol=1e-4):
        msg = f"losses differ: {losses}"
        raise AssertionError(msg)

    def ready(value: Any) -> None:
        jax.block_until_ready([value.value, *[p.value for p in (*parameters, *trained)]])

    systems = {"tape": (step, ready), "optimizer": (optimized, ready), "jax.jit": (native, lambda _: jax.block_until_ready(held))}
    times = interleave(systems, effort)
    return {"ours": ours, "theirs": theirs, "times": {way: list(t.rounds) for way, t in times.items()}}


def sharded(report: Report, effort: Effort, chosen: frozenset[str]) -> None:
    """Compare steps on eight CPU devices."""
    rows, ratios, more = [], {}, {}
    for name in LAYOUTS:
        if chosen and name not in chosen:
            continue
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "JAX_PLATFORMS": "cpu"}
        command = [
            sys.executable,
            "-m",
            "benchmarks.sharded",
            name,
            str(effort.rounds),
            str(effort.batch_seconds),
            str(effort.warm_seconds),
        ]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)  # noqa: S603 - this module
        if done.returncode:
            report.failed(f"sharded: {name}: {done.stderr[-500:]}")
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        times = {way: Times(tuple(rounds)) for way, rounds in found["times"].items()}
        ratios[name] = ratio(times["tape"], times["jax.jit"]).median
        more[name] = float(sum(max(0, count - found["theirs"].get(kind, 0)) for kind, count in found["ours"].items()))
        rows.append(
            {
                "": name,
                "tape us": times["tape"].spread.median,
                "jax.jit us": times["jax.jit"].spread.median,
                "tape / jax.jit": ratios[name],
                "with an Optimizer / jax.jit": ratio(times["optimizer"], times["jax.jit"]).median,
                "collectives of the tape": ", ".join(f"{n} {kind}" for kind, n in found["ours"].items()),
                "of jax.jit": ", ".join(f"{n} {kind}" for kind, n in found["theirs"].items()),
            }
        )
    report.tabled("sharded", "a training step on eight CPU devices", rows)
    if ratios:
        report.scored("sharded", Score("tape / jax.jit, a sharded step", ratios, 1.2, 1.5))
        worst = max(more.values())
        if worst:
            report.failed(f"sharded: collectives that the step by hand has not: {more}")


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", DEVICES)
    print(json.dumps(measured(sys.argv[1], Effort(int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])))))
