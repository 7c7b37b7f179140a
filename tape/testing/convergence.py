"""Loops that approach something: the derivative sought is that of what they approach."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tape.testing.executables import Program
from tape.testing.precise import Precise, equations, repeats, stops_when_near

FURTHER = 100  # turns
MOST = 20_000  # turns: what does not stop by then does not converge
NEAR = 1e-2  # relative to the value: what further turns may change, or the loop was not converging
SOLVED = 1e-6  # what twice the turns may change, or a loop of a fixed number of them is no solver
EXACT = 1e-12  # what they may change elsewhere: the derivative lags behind the value


def follow(value: Precise, points: Sequence[list[np.ndarray]], *, explore: bool) -> tuple[bool, set[int] | None]:
    """Tell whether loops stop when they are near something, and find the points at which they do not converge: None if nowhere they do.

    Nobody means those, and a rule that is right of a solution need not be right there.  Loops that stop when they are near enough for the
    function's dtypes go on where they converge, in reference and rule alike: an implicit rule is right of what the loop approaches, and by
    how much the loop misses that is no fault of the rule.
    """
    iterates = any(map(stops_when_near, equations(value.closed.jaxpr)))
    adrift: set[int] | None = None
    if iterates:
        value.most = MOST
        further = Precise(value.closed)
        further.further, further.most = FURTHER, MOST
        adrift = _adrift(value, further, points, NEAR, NEAR)
        if adrift is not None:
            value.further = FURTHER
    elif explore and any(map(repeats, equations(value.closed.jaxpr))):
        twice = Precise(value.closed)
        twice.twice = True
        adrift = _adrift(value, twice, points, SOLVED, EXACT)
    return iterates, adrift


def _adrift(value: Precise, longer: Precise, points: Sequence[list[np.ndarray]], near: float, elsewhere: float) -> set[int] | None:
    """Return the points at which more turns change something; None where they do so at the given point or nearby."""
    here, there = (Program("value", part, [part]) for part in (value, longer))
    adrift = set()
    for i, x in enumerate(points):
        limits = [(np.asarray(y), np.asarray(limit)) for y, limit in zip(here(*x), there(*x), strict=True)]
        with np.errstate(invalid="ignore"):
            share = near if i < 2 else elsewhere
            same = all(np.all(np.abs(y - limit) <= share * np.sqrt(np.mean(np.abs(y) ** 2))) for y, limit in limits)
        if not same and i < 2:
            return None  # it was going somewhere else
        if not same:
            adrift.add(i)
    return adrift
