"""Steps whose structure never repeats: the distribution of their times, each step waited for."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import dynamic
from benchmarks.comparison import SEED, Comparison, agree
from benchmarks.peers import systems
from benchmarks.report import Report, Score
from benchmarks.steady import one_thread
from benchmarks.systems import System, Unjitted
from benchmarks.timing import Effort, Times, quantile
from benchmarks.workloads import Dynamic
from tape.terminal.progress import working_on

__all__ = ["disagreements", "dynamic_steps", "suited"]

WARM = 10  # steps after which a system is to be steady
BLOCK = 10


def suited() -> dict[str, System]:
    """Return the systems that are of use for steps whose structure never repeats."""
    return {name: s for name, s in systems().items() if s.varies and name != "tape, look first"}


def _start(workload: Dynamic, system: System) -> Callable[..., Any]:
    return system.step(workload.program, system.parameters(workload.make(np.random.default_rng(SEED))))


def disagreements(workload: Dynamic, count: int = 3) -> dict[str, str]:
    """Return for each system whose gradients are wrong on the first samples what is wrong."""
    samples = workload.samples(np.random.default_rng(SEED + 1))
    data = [next(samples) for _ in range(count)]
    reference = systems()[Unjitted.name]
    run = _start(workload, reference)
    expected = [reference.numpy(run(*reference.data(sample))) for sample in data]
    failures = {}
    for name, system in suited().items():
        try:
            run = _start(workload, system)
            for sample, right in zip(data, expected, strict=True):
                agree(system.numpy(run(*system.data(sample))), right, name)
        except Exception as e:  # noqa: BLE001 - whatever a system raises is its result
            failures[name] = f"{type(e).__name__}: {e}"
    return failures


def _measure(workload: Dynamic, count: int, failures: dict[str, str]) -> dict[str, list[float]]:
    """Milliseconds of each step; the systems take turns on blocks of the same samples.

    Before each block the garbage of the others is collected, so that a step pays for its own only.
    """
    chosen = {name: system for name, system in suited().items() if name not in failures}
    runs = {name: _start(workload, system) for name, system in chosen.items()}
    samples = workload.samples(np.random.default_rng(SEED + 2))
    times: dict[str, list[float]] = {name: [] for name in chosen}
    gc.collect()
    gc.freeze()
    try:
        for _ in range(count // BLOCK):
            block = [next(samples) for _ in range(BLOCK)]
            for name, system in chosen.items():
                data = [system.data(sample) for sample in block]
                gc.collect()
                for sample in data:
                    started = time.perf_counter()
                    system.wait(runs[name](*sample))
                    times[name].append((time.perf_counter() - started) * 1e3)
    finally:
        gc.unfreeze()
    return times


def dynamic_steps(report: Report, effort: Effort, chosen: frozenset[str]) -> None:
    """Compare steps whose structure never repeats."""
    faster, steadiness = {}, {}
    with one_thread():
        for workload in dynamic.WORKLOADS:
            if chosen and workload.name not in chosen:
                continue
            working_on(workload.name)
            failures = disagreements(workload)
            for name, reason in failures.items():
                report.failed(f"dynamic: {workload.name}: {name}: {reason}")
            times = _measure(workload, WARM + (30 if effort.quick else 200), failures)
            steady = {name: found[WARM:] for name, found in times.items()}
            rows = [
                {
                    "": name,
                    "p50 ms": quantile(found, 0.5),
                    "p90 ms": quantile(found, 0.9),
                    "p99 ms": quantile(found, 0.99),
                    "p99 / p50": quantile(found, 0.99) / quantile(found, 0.5),
                    f"worst of first {WARM}": max(times[name][:WARM]),
                }
                for name, found in steady.items()
            ]
            report.comparisons.setdefault("dynamic", []).append(
                Comparison(workload.name, {name: Times(tuple(ms * 1e3 for ms in found)) for name, found in steady.items()}, failures)
            )
            report.tabled("dynamic", f"{workload.name}, structures that never repeat", rows)
            if "tape" in steady:
                faster[workload.name] = quantile(
                    [b / a for a, b in zip(steady["tape"], steady[Unjitted.name], strict=True)],
                    0.5,
                )
                steadiness[workload.name] = quantile(steady["tape"], 0.99) / quantile(steady["tape"], 0.5)
    report.scored(
        "dynamic",
        Score("jax.grad / tape, per step", faster, 8.0, at_least=True),
        Score("tape, p99 / p50", steadiness, 3.0, 3.0),
    )
