"""Loops of many turns, written in Python: what they take to compile and to run, beside ``lax.scan`` written by hand and ``jax.jit`` of the loop.

``jax.jit`` of a Runge-Kutta method's 50 steps compiles for minutes, so it runs only where it does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import tape
import tape.nn
import tape.numpy as tnp
from benchmarks.comparison import agree
from benchmarks.report import Report, Score
from benchmarks.timing import Effort, interleave, ratio
from benchmarks.workloads import normal
from tape.terminal.progress import working_on

__all__ = ["WORKLOADS", "long_loops"]

STEPS = 8  # after which most of the tape's programs are there,
SETTLED = 3.0  # and seconds after which the others are
Body = Callable[[Any, Any, Any, Any, Any], Any]


@dataclass(frozen=True)
class Loop:
    """A loop: ``body(numpy, nn, carried, shared, own)`` gives what the next turn gets.

    Attributes:
        body: one turn.
        make: returns what the first turn gets, the parameters that all turns share, and a list of what each has of its own.
        trains: whether gradients are those of the turns' own arrays, not of the shared ones.
        unrolled: whether ``jax.jit`` of the Python loop is measured too.
        second: whether the gradient of the gradient's norm is taken.
        long: whether a quick run leaves it out.

    """

    body: Body
    make: Callable[[np.random.Generator], tuple[Any, list[Any], list[Any]]]
    trains: bool = False
    unrolled: bool = False
    second: bool = False
    long: bool = False


def _runge_kutta(numpy: Any, _: Any, x: Any, shared: Any, __: Any) -> Any:
    a, b = shared
    h = 0.01

    def slope(x: Any) -> Any:
        return a * numpy.sin(x) - b * x

    k1 = slope(x)
    k2 = slope(x + 0.5 * h * k1)
    k3 = slope(x + 0.5 * h * k2)
    k4 = slope(x + h * k3)
    return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def _solving(steps: int) -> Callable[[np.random.Generator], tuple[Any, list[Any], list[Any]]]:
    return lambda rng: (normal(rng, 1000, scale=1.0), [np.float32(1.3), np.abs(normal(rng, 1000, scale=1.0))], [()] * steps)


def _lstm(numpy: Any, nn: Any, carried: Any, shared: Any, x: Any) -> Any:
    h, c = carried
    weights, bias = shared
    n = h.shape[1]
    z = numpy.concatenate([x, h], axis=1) @ weights + bias
    i, f, g, o = z[:, :n], z[:, n : 2 * n], z[:, 2 * n : 3 * n], z[:, 3 * n :]
    c = nn.sigmoid(f) * c + nn.sigmoid(i) * numpy.tanh(g)
    return nn.sigmoid(o) * numpy.tanh(c), c


def _sequence(rng: np.random.Generator) -> tuple[Any, list[Any], list[Any]]:
    zeros = np.zeros((8, 32), np.float32)
    return (zeros, zeros), [normal(rng, 64, 128), normal(rng, 128, scale=0.1)], [normal(rng, 8, 32, scale=1.0) for _ in range(100)]


def _recurrent(numpy: Any, _: Any, h: Any, shared: Any, x: Any) -> Any:
    inner, outer, bias = shared
    return numpy.tanh(h @ inner + x @ outer + bias)


def _normed(numpy: Any, _: Any, h: Any, shared: Any, x: Any) -> Any:
    h = numpy.tanh(h * shared[0] + x)
    return h / numpy.sqrt((h * h).sum(-1, keepdims=True) + 1)


def _short_turns(steps: int, width: int, *shapes: tuple[int, ...]) -> Callable[[np.random.Generator], tuple[Any, list[Any], list[Any]]]:
    def make(rng: np.random.Generator) -> tuple[Any, list[Any], list[Any]]:
        shared = [normal(rng, *shape, scale=0.1) for shape in shapes]
        return np.zeros((4, 32), np.float32), shared, [normal(rng, 4, width, scale=1.0) for _ in range(steps)]

    return make


def _block(numpy: Any, nn: Any, x: Any, _: Any, own: Any) -> Any:
    qkv, out, wide, narrow, first, second = own
    batch, length, width = x.shape

    def normalized(x: Any, scale: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred / numpy.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * scale

    def heads(x: Any) -> Any:
        return x.reshape(batch, length, 4, width // 4).transpose(0, 2, 1, 3)

    query, key, value = map(heads, numpy.split(normalized(x, first) @ qkv, 3, axis=-1))
    mixed = nn.softmax(query @ key.transpose(0, 1, 3, 2) / 4.0, axis=-1) @ value
    x = x + mixed.transpose(0, 2, 1, 3).reshape(x.shape) @ out
    return x + nn.gelu(normalized(x, second) @ wide) @ narrow


def _blocks(rng: np.random.Generator) -> tuple[Any, list[Any], list[Any]]:
    n, ones = 64, np.ones(64, np.float32)
    shapes = ((n, 3 * n), (n, n), (n, 4 * n), (4 * n, n))
    return normal(rng, 4, 32, n, scale=1.0), [], [(*(normal(rng, *s) * np.float32(0.3) for s in shapes), ones, ones) for _ in range(48)]


RECURRENT = (32, 32), (8, 32), (32,)
LOOPS = {
    "Runge-Kutta, 50 steps": Loop(_runge_kutta, _solving(50)),
    "Runge-Kutta, 30 steps, twice": Loop(_runge_kutta, _solving(30), second=True),
    "Runge-Kutta, 5000 steps": Loop(_runge_kutta, _solving(5000), long=True),
    "LSTM, 100 steps": Loop(_lstm, _sequence, unrolled=True),
    "recurrent network, 200 steps": Loop(_recurrent, _short_turns(200, 8, *RECURRENT), unrolled=True, long=True),
    "recurrent network, 60 steps, twice": Loop(_recurrent, _short_turns(60, 8, *RECURRENT), second=True),
    "a norm in each of 50 steps": Loop(_normed, _short_turns(50, 32, (32,))),
    "48 transformer blocks": Loop(_block, _blocks, trains=True, unrolled=True, long=True),
}
WORKLOADS = frozenset(LOOPS)


def _tape_step(loop: Loop, start: Any, shared: list[Any], own: list[Any]) -> Callable[[], list[Any]]:
    begin = jax.tree.map(lambda a: tape.constant(jnp.asarray(a)), start)
    each = jax.tree.map(tape.Variable if loop.trains else lambda a: tape.constant(jnp.asarray(a)), own)
    common = [tape.Variable(a) for a in shared]
    parameters = jax.tree.leaves(each, is_leaf=lambda v: isinstance(v, tape.Variable)) if loop.trains else common

    def step() -> list[Any]:
        for p in parameters:
            p.grad = None
        x = begin
        for turn in each:
            x = loop.body(tnp, tape.nn, x, common, turn)
        last = x[0] if isinstance(x, tuple) else x
        loss = (last * last).mean()
        if loop.second:
            loss = sum(((g * g).sum() for g in tape.gradients(loss, parameters, create_graph=True)), tnp.zeros(()))
        loss.backward()
        return [p.grad.value for p in parameters if p.grad is not None]

    return step


def _jax_loss(loop: Loop, start: Any, *, scanned: bool) -> Callable[[Any, Any], Any]:
    def loss(shared: Any, own: Any) -> Any:
        x = start
        if scanned:
            rows = jax.tree.map(lambda *a: jnp.stack(a), *own)
            x = lax.scan(lambda x, turn: (loop.body(jnp, jax.nn, x, shared, turn), None), x, rows, length=len(own))[0]
        else:
            for turn in own:
                x = loop.body(jnp, jax.nn, x, shared, turn)
        last = x[0] if isinstance(x, tuple) else x
        return (last * last).mean()

    return loss


def _jax_step(loop: Loop, start: Any, shared: list[Any], own: list[Any], *, scanned: bool) -> Callable[[], list[Any]]:
    loss, argument = _jax_loss(loop, jax.tree.map(jnp.asarray, start), scanned=scanned), 1 if loop.trains else 0

    def twice(shared: Any, own: Any) -> Any:
        return sum((g * g).sum() for g in jax.tree.leaves(jax.grad(loss, argument)(shared, own)))

    gradient = jax.jit(jax.grad(twice if loop.second else loss, argument))
    arguments = jax.tree.map(jnp.asarray, (shared, own))
    return lambda: jax.tree.leaves(gradient(*arguments))


def _measure(name: str, loop: Loop, effort: Effort) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the times of steps by system, and the seconds of processor time until they are compiled."""
    data = loop.make(np.random.default_rng(0))
    steps: dict[str, Callable[[], Any]] = {
        "tape": _tape_step(loop, *data),
        "tape.jit": tape.jit(_tape_step(loop, *data)),
        "lax.scan": _jax_step(loop, *data, scanned=True),
    }
    if loop.unrolled and not effort.quick:
        steps["jax.jit"] = _jax_step(loop, *data, scanned=False)
    spent, found = {}, {}
    for system, step in steps.items():
        until = time.perf_counter() + SETTLED
        started = time.process_time()
        for _ in range(STEPS):
            results = jax.block_until_ready(step())
        several = time.process_time()
        jax.block_until_ready(step())
        spent[system] = max(several - started - STEPS * (time.process_time() - several), 1e-9)
        found[system] = [np.asarray(r) for r in results]
        while time.perf_counter() < until:
            jax.block_until_ready(step())
    for system, results in found.items():
        agree(results, found["lax.scan"], f"{name}: {system}")
    return interleave({system: (step, jax.block_until_ready) for system, step in steps.items()}, effort), spent


def long_loops(report: Report, effort: Effort, chosen: frozenset[str]) -> None:
    """Compare loops in Python with loops of XLA's."""
    rows = []
    beside: dict[str, float] = {}
    scanned: dict[str, float] = {}
    jitted: dict[str, float] = {}
    compiled: dict[str, float] = {}
    for name, loop in LOOPS.items():
        if (chosen and name not in chosen) or (effort.quick and loop.long and not chosen):
            continue
        working_on(name)
        times, spent = _measure(name, loop, effort)
        for system, found in times.items():
            rows.append({"loop": name, "system": system, "compiling, s": spent[system], "ms a step": found.spread.median / 1e3})
        best = min((s for s in times if not s.startswith("tape")), key=lambda s: times[s].spread.median)
        scanned[name] = ratio(times["tape"], times[best]).median
        jitted[name] = ratio(times["tape.jit"], times[best]).median
        if "jax.jit" in times:
            beside[name] = spent["tape"] / spent["jax.jit"]
        compiled[name] = spent["tape"]
    report.tabled("loops", "compiling (processor time) and running", rows)
    report.scored(
        "loops",
        Score("step of the tape / of the better of JAX's", scanned, 1.2),
        Score("step of tape.jit / of the better of JAX's", jitted, 1.2),
        Score("compiling, tape / jax.jit", beside, 0.25, 0.25),
        Score("compiling on the tape, s", compiled, 2.0, 2.0),
    )
