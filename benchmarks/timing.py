"""Timing: batches of steps of several systems in turn, so that a machine whose speed drifts changes no ratio.

A figure is the median over the rounds; a ratio is the median of the ratios of batches that ran side by side.  The order changes from
round to round, and a batch begins after a rest: idle threads of OpenMP spin for a while, and made the system that came after PyTorch's
look slower by a quarter.
"""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Effort", "Spread", "Times", "geometric_mean", "interleave", "quantile", "ratio"]

REST = 0.02  # seconds
PATIENCE = 30.0  # seconds until the steady state is no longer waited for

# A step, what waits for its result, and, of a system that learns, what is another value after a step that was not of the steady state.
Stepping = tuple[Callable[[], Any], Callable[[Any], None]] | tuple[Callable[[], Any], Callable[[Any], None], Callable[[], object]]


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        rounds: batches per system.
        batch_seconds: what a batch is to last, in seconds; it holds at least one step.
        warm_seconds: how long every system runs before the first batch, in seconds.
        settle_steps: after so many steps in which a system learnt nothing it is in its steady state, and no batch begins before that, or
            before :data:`PATIENCE` has passed.
        quick: whether long cases are left out.

    """

    rounds: int = 15
    batch_seconds: float = 0.01
    warm_seconds: float = 0.5
    settle_steps: int = 0
    quick: bool = False


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Times:
    """Microseconds per step of one system, one number per round."""

    rounds: tuple[float, ...]

    @property
    def spread(self) -> Spread:
        """The median and the quartiles over the rounds."""
        return spread(self.rounds)


def quantile(values: Iterable[float], share: float) -> float:
    """Return the value below which ``share`` of the values lie, interpolated."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def spread(values: Sequence[float]) -> Spread:
    """Return the median of some values and their quartiles."""
    return Spread(statistics.median(values), quantile(values, 0.25), quantile(values, 0.75))


def ratio(of: Times, to: Times) -> Spread:
    """Return how many times as long the steps of the first system last, round by round."""
    return spread([a / b for a, b in zip(of.rounds, to.rounds, strict=True)])


def geometric_mean(values: Sequence[float]) -> float:
    """Return the n-th root of the product of n positive values."""
    return math.exp(sum(map(math.log, values)) / len(values))


def _batch(step: Callable[[], Any], wait: Callable[[Any], None], count: int) -> float:
    """Seconds for ``count`` steps, what they computed waited for at the end."""
    started = time.perf_counter()
    result = None
    for _ in range(count):
        result = None  # a loop drops what a step returned before the next step, not after it
        result = step()
    wait(result)
    return time.perf_counter() - started


def _nothing() -> None:
    """Stand for what a system has learnt that learns nothing."""


def _warm(step: Callable[[], Any], wait: Callable[[Any], None], learnt: Callable[[], object] = _nothing, *, effort: Effort) -> float:
    """Run a step at least five times, for some time, and until the system has settled; return the seconds of the fastest one."""
    fastest, ran, started = math.inf, 0, time.perf_counter()
    known, since = learnt(), 0  # and the number of steps before it was learnt
    settles = 0 if learnt is _nothing else effort.settle_steps
    while True:
        spent = time.perf_counter() - started
        if ran >= 5 and spent >= effort.warm_seconds and (ran - since >= settles or spent >= PATIENCE):
            return fastest
        fastest = min(fastest, _batch(step, wait, 1))
        ran += 1
        if settles and (knows := learnt()) != known:
            known, since = knows, ran


def interleave(steps: Mapping[str, Stepping], effort: Effort) -> dict[str, Times]:
    """Time several systems in turn.

    Args:
        steps: for each system a step, what waits for the step's result, and, if it learns, what it has learnt.
        effort: how long to measure.

    Returns:
        The times of each system.

    """
    gc.collect()
    counts = {name: max(1, round(effort.batch_seconds / _warm(*stepping, effort=effort))) for name, stepping in steps.items()}
    found: dict[str, list[float]] = {name: [] for name in steps}
    shuffled = random.Random(0)  # noqa: S311 - an order, no secret
    for _ in range(effort.rounds):
        for name, (step, wait, *_rest) in shuffled.sample(list(steps.items()), len(steps)):
            time.sleep(REST)
            _batch(step, wait, 1)  # fetches its arrays and its code back into the caches
            found[name].append(_batch(step, wait, counts[name]) / counts[name] * 1e6)
    return {name: Times(tuple(times)) for name, times in found.items()}
