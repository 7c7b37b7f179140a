"""Start-up: the import, the first steps, and what tracing, lowering and compiling cost, each in a process of its own."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks import dynamic
from benchmarks.fresh import measure_fresh
from benchmarks.peers import systems
from benchmarks.report import Report, Score
from benchmarks.timing import Effort

__all__ = ["WORKLOADS", "startup"]

FIXED = ("tanh MLP 5x16x16", "Adam step", "CNN", "transformer block")
VARYING = tuple(w.name for w in dynamic.WORKLOADS)
WORKLOADS = frozenset({"import"})
MEASURED = ("jax.jit", "tape", "tape.jit", "jax.grad", "PyTorch")


def _first_steps(name: str, repeats: int, report: Report) -> dict[str, float]:
    """Enter a table of one workload's first steps; return the milliseconds of the very first, by system."""
    rows, firsts = [], {}
    found: dict[str, list[dict[str, Any]]] = {s: [] for s in MEASURED if s in systems() and (name in FIXED or systems()[s].varies)}
    for system in [*found] * repeats:  # in turns
        try:
            found[system].append(measure_fresh("steps", name, system))
        except RuntimeError as e:
            report.failed(f"startup: {name}: {system}: {e}")
    for system, runs in found.items():
        if not runs:
            continue
        middle = [statistics.median(step) for step in zip(*(run["steps"] for run in runs), strict=True)]
        spent = {key: statistics.median(run["spent"][key] for run in runs) for key in ("trace", "lower", "compile")}
        row: dict[str, Any] = {"ms": system, "first": middle[0], "second": middle[1], "third": middle[2], "tenth": middle[-1]}
        row |= {"all ten": sum(middle), **spent, "compilations": runs[0]["compiles"]}
        rows.append(row)
        firsts[system] = middle[0]
    report.tabled("startup", f"first steps of {name}", rows)
    return firsts


def startup(report: Report, effort: Effort, chosen: frozenset[str]) -> None:
    """Measure what happens before the steady state."""
    repeats = 1 if effort.quick else 3
    measure_fresh("imports")  # which leaves bytecode behind
    found = [measure_fresh("imports")["seconds"] * 1e3 for _ in range(3 if effort.quick else 9)]
    report.tabled("startup", "import tape, after import jax", [{"ms": "", "median": statistics.median(found), "least": min(found)}])
    if chosen:
        return
    fixed = {name: _first_steps(name, repeats, report) for name in (FIXED[:1] if effort.quick else FIXED)}
    varying = {name: _first_steps(name, repeats, report) for name in (VARYING[:1] if effort.quick else VARYING)}

    def beside(them: dict[str, dict[str, float]]) -> dict[str, float]:
        return {name: f["tape"] / f["jax.grad"] for name, f in them.items() if "tape" in f and "jax.grad" in f}

    report.scored(
        "startup",
        Score("first step, tape / jax.grad, structures that repeat", beside(fixed), 1.0, 1.0),
        Score("first step, tape / jax.grad, structures that never repeat", beside(varying), 1.0, 1.0),
    )
