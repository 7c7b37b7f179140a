"""Gradients of the tape inside ``jax.jit``: tracing and lowering, run time and XLA's memory beside ``jax.grad``."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tape
from benchmarks.comparison import SEED, agree
from benchmarks.compute import block, transform
from benchmarks.report import Report, Score
from benchmarks.systems import Namespace, Tape, Unjitted
from benchmarks.timing import Effort, Times, interleave, ratio
from benchmarks.workloads import normal
from interop import lift

__all__ = ["MODELS", "under_jit"]


@dataclass(frozen=True)
class Model:
    """A deep model: its parameters and data, and its loss over a namespace."""

    make: Callable[[np.random.Generator, int], tuple[list[Any], tuple[Any, ...]]]
    loss: Callable[..., Any]
    depth: int


def _make_layers(rng: np.random.Generator, depth: int) -> tuple[list[Any], tuple[Any, ...]]:
    return [a for _ in range(depth) for a in (normal(rng, 64, 64), normal(rng, 64, scale=0.1))], (normal(rng, 32, 64, scale=1.0),)


def _layers(xp: Any, p: list[Any], x: Any) -> Any:
    for i in range(0, len(p), 2):
        x = xp.tanh(x @ p[i] + p[i + 1])
    return xp.mean(x * x)


def _make_blocks(rng: np.random.Generator, depth: int) -> tuple[list[Any], tuple[Any, ...]]:
    mask = np.triu(np.full((32, 32), -1e9, np.float32), 1)
    return [a for _ in range(depth) for a in block(rng, 64)], (normal(rng, 4, 32, 64, scale=1.0), mask)


def _blocks(xp: Any, p: list[Any], x: Any, mask: Any) -> Any:
    for i in range(0, len(p), 8):
        x = transform(xp, p[i : i + 8], x, mask)
    return xp.mean(x * x)


MODELS = {"60-layer MLP": Model(_make_layers, _layers, 60), "12-block transformer": Model(_make_blocks, _blocks, 12)}
WAYS = ("jax.grad", "tape.grad", "tape.grad of lift")


def _gradient(way: str, loss: Callable[..., Any]) -> Callable[..., Any]:
    """Return a fresh function, so that no outer trace is found again."""

    def over(xp: Namespace) -> Callable[..., Any]:
        return lambda p, *data: loss(xp, p, *data)

    if way == "jax.grad":
        return jax.grad(over(Unjitted.xp))
    gradient: Callable[..., Any] = tape.grad(over(Tape.xp) if way == "tape.grad" else lift(over(Unjitted.xp)))
    return gradient


def _measure(name: str, model: Model, effort: Effort, report: Report) -> dict[str, dict[str, float]]:
    """Enter the figures of one model; return the ratios of the ways to ``jax.grad``."""
    arrays, data = model.make(np.random.default_rng(SEED), max(2, model.depth // 6) if effort.quick else model.depth)
    inputs = ([jnp.asarray(a) for a in arrays], *(jnp.asarray(a) for a in data))
    traced: dict[str, list[float]] = {way: [] for way in WAYS}
    lowered: dict[str, list[float]] = {way: [] for way in WAYS}
    last: dict[str, Any] = {}
    for _ in range(3 if effort.quick else 8):
        for way in WAYS:
            function = jax.jit(_gradient(way, model.loss))
            started = time.perf_counter()
            trace = function.trace(*inputs)
            between = time.perf_counter()
            last[way] = trace.lower()
            traced[way].append((between - started) * 1e3)
            lowered[way].append((time.perf_counter() - between) * 1e3)
    compiled, compile_ms = {}, {}
    for way in WAYS:
        started = time.perf_counter()
        compiled[way] = last[way].compile()
        compile_ms[way] = (time.perf_counter() - started) * 1e3
    expected = [np.asarray(g) for g in compiled["jax.grad"](*inputs)]
    for way in WAYS[1:]:
        agree([np.asarray(g) for g in compiled[way](*inputs)], expected, way)
    runs = interleave({way: (functools.partial(compiled[way], *inputs), jax.block_until_ready) for way in WAYS}, effort)
    memory = {way: float(compiled[way].memory_analysis().temp_size_in_bytes) for way in WAYS}
    both = {way: Times(tuple(a + b for a, b in zip(traced[way], lowered[way], strict=True))[1:]) for way in WAYS}  # the first fills caches
    report.tabled(
        "under_jit",
        name,
        [
            {
                "": way,
                "trace ms": Times(tuple(traced[way][1:])).spread.median,
                "lower ms": Times(tuple(lowered[way][1:])).spread.median,
                "first trace + lower ms": traced[way][0] + lowered[way][0],
                "compile ms": compile_ms[way],
                "run us": runs[way].spread.median,
                "temp KiB": memory[way] / 1024,
                "trace + lower / jax.grad": ratio(both[way], both["jax.grad"]).median,
                "run / jax.grad": ratio(runs[way], runs["jax.grad"]).median,
                "temp / jax.grad": memory[way] / memory["jax.grad"],
            }
            for way in WAYS
        ],
    )
    return {
        way: {
            "trace": ratio(both[way], both["jax.grad"]).median,
            "run": ratio(runs[way], runs["jax.grad"]).median,
            "memory": memory[way] / memory["jax.grad"],
        }
        for way in WAYS[1:]
    }


def under_jit(report: Report, effort: Effort, chosen: frozenset[str]) -> None:
    """Compare ``jax.jit(tape.grad(f))`` with ``jax.jit(jax.grad(f))``."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for name, model in MODELS.items():
        if chosen and name not in chosen:
            continue
        try:
            found.update({(name, way): r for way, r in _measure(name, model, effort, report).items()})
        except Exception as e:  # noqa: BLE001 - a failure is a result, and the other model is still of interest
            report.failed(f"under_jit: {name}: {type(e).__name__}: {e}")
    for way in WAYS[1:]:
        rs = {name: r for (name, of), r in found.items() if of == way}
        report.scored(
            "under_jit",
            Score(f"{way}, trace + lower / jax.grad", {name: r["trace"] for name, r in rs.items()}, 0.6),
            Score(f"{way}, run time / jax.grad", {name: r["run"] for name, r in rs.items()}, 1.02, 1.1),
            Score(f"{way}, XLA's temporary memory / jax.grad", {name: r["memory"] for name, r in rs.items()}, 1.0, 1.1),
        )
