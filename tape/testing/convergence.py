"""Loops that approach something: the derivative sought is that of what they approach."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tape.testing.executables import Program
from tape.testing.precise import Precise, equations, repeats, stops_when_near

if TYPE_CHECKING:
    from tape.testing.examination import Examination

__all__ = ["follow"]

FURTHER = 100  # turns
MOST = 20_000  # turns: what does not stop by then does not converge
NEAR = 1e-2  # relative to the value: what further turns may change, or the loop was not converging
SOLVED = 1e-6  # what twice the turns may change, or a loop of a fixed number of them is no solver
EXACT = 1e-12  # what they may change elsewhere: the derivative lags behind the value


def follow(exam: Examination) -> None:
    """Find the points at which loops do not converge: nobody means them, and a rule that is right of a solution need not be right there.

    Loops that stop when they are near enough for the function's dtypes go on where they converge, in reference and rule alike: an implicit
    rule is right of what the loop approaches, and by how much the loop misses that is no fault of the rule.
    """
    exam.iterates = any(map(stops_when_near, equations(exam.value_jaxpr.jaxpr)))
    if exam.iterates:
        exam.value.most = MOST
        further = Precise(exam.value_jaxpr)
        further.further, further.most = FURTHER, MOST
        if _solves(exam, further, NEAR, NEAR):
            exam.value.further = FURTHER
    elif exam.explore and any(map(repeats, equations(exam.value_jaxpr.jaxpr))):
        twice = Precise(exam.value_jaxpr)
        twice.twice = True
        _solves(exam, twice, SOLVED, EXACT)


def _solves(exam: Examination, longer: Precise, near: float, elsewhere: float) -> bool:
    """Tell whether more turns change nothing at the given point and nearby, and note the other points at which they do."""
    here, there = (Program("value", part, [part]) for part in (exam.value, longer))
    adrift = set()
    for i, x in enumerate(exam.probes.points):
        found = [(np.asarray(y), np.asarray(limit)) for y, limit in zip(here(*x), there(*x), strict=True)]
        with np.errstate(invalid="ignore"):
            share = near if i < 2 else elsewhere
            same = all(np.all(np.abs(y - limit) <= share * np.sqrt(np.mean(np.abs(y) ** 2))) for y, limit in found)
        if not same and i < 2:
            return False  # it was going somewhere else
        if not same:
            adrift.add(i)
    exam.adrift |= adrift
    return True
