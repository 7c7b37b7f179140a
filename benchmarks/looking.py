"""Loops with looks: what a turn costs beside the same loop around a jitted step, what of it is interpreted, and whether it grows."""

from __future__ import annotations

import gc
import random
import time
from typing import Any

import jax
import numpy as np

import tape
from benchmarks import looks
from benchmarks.comparison import agree
from benchmarks.report import Report, Score
from benchmarks.timing import Effort, Times, ratio
from benchmarks.workloads import Loop, Run
from tape.terminal.progress import working_on

__all__ = ["disagreement", "looping"]

WARM = 24  # runs in a row in which nothing was learnt, before the first one that is timed: a compiler may be at work that long
PATIENCE = 30.0  # seconds until they are no longer waited for

Figures = dict[str, dict[str, Any]]


def _timed(run: Run) -> tuple[float, float]:
    """Return the microseconds of a turn, and those that the sweep takes per turn."""
    forward, sweep = run
    started = time.perf_counter()
    turns, state = forward()
    turned = time.perf_counter()
    jax.block_until_ready(sweep(state))
    return (turned - started) / turns * 1e6, (time.perf_counter() - turned) / turns * 1e6


def _warm(run: Run) -> int:
    """Run a loop until the tape learns nothing any more; return after how many runs it was so."""
    stats, started = tape.stats(), time.perf_counter()
    runs = since = 0
    known: object = None
    while runs - since < WARM and time.perf_counter() - started < PATIENCE:
        before = stats.interpreted
        _timed(run)
        if (knows := (stats.interpreted - before, stats.compiles)) != known:
            known, since = knows, runs
        runs += 1
    return since


def disagreement(loop: Loop, runs: int = 3) -> str | None:
    """Return in what the gradients of a loop differ from the reference's, if they do, in one of the first runs."""
    results = []
    for make, times in ((loop.jitted, 1), (loop.taped, runs)):
        forward, sweep = make()
        for _ in range(times):
            _, state = forward()
            results.append([np.asarray(g) for g in sweep(state)])
    try:
        for found in results[1:]:
            agree(found, results[0], "tape")
    except AssertionError as e:
        return str(e)
    return None


def _counted(run: Run) -> dict[str, float]:
    """Return what one run costs the tape, per turn."""
    stats = tape.stats()
    stats.reset()
    forward, sweep = run
    turns, state = forward()
    kept = stats.live_bytes
    sweep(state)
    programs = sum(stats.flushes.values())
    return {"programs": programs / turns, "interpreted": stats.interpreted / turns, "kept bytes": kept / turns}


def _measure(loop: Loop, effort: Effort) -> tuple[dict[str, Times], dict[str, Times], dict[str, float]]:
    """Return the times of turns and of sweeps, and what is counted; how many runs the tape learnt in is among it."""
    runs = {"jax.jit": loop.jitted(), "tape": loop.taped()}
    learnt = {name: _warm(run) for name, run in runs.items()}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    shuffled = random.Random(0)  # noqa: S311 - an order, no secret
    gc.collect()
    for _ in range(effort.rounds):
        for name, run in shuffled.sample(list(runs.items()), len(runs)):
            found[name].append(_timed(run))
    turns, sweeps = ({name: Times(tuple(t[i] for t in times)) for name, times in found.items()} for i in (0, 1))
    return turns, sweeps, {"learnt in": learnt["tape"], **_counted(runs["tape"])}


def looping(report: Report, effort: Effort, chosen: frozenset[str]) -> None:
    """Compare loops that look at a value in every turn."""
    scores: dict[str, float] = {}
    rows, lengths = [], [] if effort.quick else [looks.ball(turns) for turns in looks.LENGTHS]
    for loop in (*looks.WORKLOADS, *lengths):
        if chosen and loop.name not in chosen:
            continue
        working_on(loop.name)
        wrong = disagreement(loop)
        if wrong is not None:
            report.failed(f"looks: {loop.name}: {wrong}")
            continue
        turns, sweeps, counted = _measure(loop, effort)
        scores[loop.name] = ratio(turns["tape"], turns["jax.jit"]).median
        rows.append(
            {
                "us a turn": loop.name,
                "jit": turns["jax.jit"].spread.median,
                "tape": turns["tape"].spread.median,
                "ratio": scores[loop.name],
                "jit, sweep": sweeps["jax.jit"].spread.median,
                "tape, sweep": sweeps["tape"].spread.median,
                **counted,
            }
        )
    report.tabled("looks", "turns, and sweeps per turn", rows)
    report.scored("looks", Score("a turn, tape / jax.jit", scores, 1.5))
