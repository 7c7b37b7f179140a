"""First steps: a fresh process per workload and system, each step waited for; cold, and where another process has filled JAX's cache."""

from __future__ import annotations

import statistics
import tempfile
from typing import Any

from benchmarks import compute, dispatch
from benchmarks.fresh import measure_fresh
from benchmarks.peers import systems
from benchmarks.report import Report, Score
from benchmarks.timing import Effort
from tape.terminal.progress import working_on

__all__ = ["WORKLOADS", "first_steps"]

STEPS = 40
FIRST = 10
MEASURED = ("jax.jit", "tape", "tape.jit")
PEERS = ("PyTorch",)
WORKLOADS = frozenset(f"first steps of {w.name}" for w in (*dispatch.WORKLOADS, *compute.WORKLOADS))


def _cache(folder: str) -> dict[str, str]:
    """Return what has JAX keep every program in a folder: by default it keeps what took a second to compile."""
    return {
        "JAX_COMPILATION_CACHE_DIR": folder,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def _measure(name: str, chosen: list[str], repeats: int, report: Report, *, cached: bool) -> dict[str, list[float]]:
    """Enter a table of one workload's first steps; return the milliseconds of its steps, by system."""
    runs: dict[str, list[list[float]]] = {system: [] for system in chosen}
    for system in chosen * repeats:  # in turns
        try:
            with tempfile.TemporaryDirectory() as folder:
                environment = _cache(folder) if cached else {}
                for _ in range(1 + cached):
                    found = measure_fresh("steps", name, system, str(STEPS), **environment)["steps"]
                runs[system].append(found)
        except RuntimeError as e:
            report.failed(f"first_steps: {name}: {system}: {e}")
    steps = {system: [statistics.median(step) for step in zip(*found, strict=True)] for system, found in runs.items() if found}
    rows: list[dict[str, Any]] = []
    for system, times in steps.items():
        row: dict[str, Any] = {"ms": system} | {str(i + 1): times[i] for i in range(FIRST)}
        rows.append(row | {f"first {FIRST}": sum(times[:FIRST]), f"longest of 3 to {STEPS}": max(times[2:])})
    report.tabled("first_steps", name + (", JAX's cache filled" if cached else ""), rows)
    return steps


def first_steps(report: Report, effort: Effort, chosen: frozenset[str]) -> None:
    """Measure the first steps of processes."""
    repeats = 1 if effort.quick else 3
    known = [w.name for w in (*dispatch.WORKLOADS, *compute.WORKLOADS) if not chosen or f"first steps of {w.name}" in chosen]
    cold, cached, longest = {}, {}, {}
    for name in known[:2] if effort.quick and not chosen else known:
        working_on(name)
        steps = _measure(name, [s for s in (*MEASURED, *PEERS) if s in systems()], repeats, report, cached=False)
        again = _measure(name, [s for s in MEASURED if s in systems()], repeats, report, cached=True)
        if "tape" in steps and "jax.jit" in steps:
            cold[name] = sum(steps["tape"][:FIRST]) / sum(steps["jax.jit"][:FIRST])
            longest[name] = max(steps["tape"][2:])
        if "tape" in again and "jax.jit" in again:
            cached[name] = sum(again["tape"][:FIRST]) / sum(again["jax.jit"][:FIRST])
    report.scored(
        "first_steps",
        Score(f"first {FIRST} steps, tape / jax.jit", cold, 1.2, 1.2),
        Score(f"first {FIRST} steps, JAX's cache filled, tape / jax.jit", cached, 2.0, 2.0),
        Score(f"longest of steps 3 to {STEPS}, tape, ms", longest, 250.0, 250.0),
    )
