"""Loops that stop when they are near enough: the derivative sought is that of what they approach."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tape.testing.executables import Program
from tape.testing.precise import Precise, equations, stops_when_near

if TYPE_CHECKING:
    from tape.testing.examination import Examination

__all__ = ["follow"]

FURTHER = 100  # turns
NEAR = 1e-2  # relative to the value: what further turns may change, or the loop was not converging


def follow(exam: Examination) -> None:
    """Let loops that stop when they are near enough for the function's dtypes go on where they converge, in reference and rule alike.

    An implicit rule is right of what the loop approaches; by how much the loop misses that is no fault of the rule.
    """
    exam.iterates = any(map(stops_when_near, equations(exam.value_jaxpr.jaxpr)))
    if not exam.iterates:
        return
    further = Precise(exam.value_jaxpr)
    further.further = FURTHER
    here, there = (Program("value", part, [part]) for part in (exam.value, further))
    for i, x in enumerate(exam.probes.points):
        found = [(np.asarray(y), np.asarray(limit)) for y, limit in zip(here(*x), there(*x), strict=True)]
        if not all(np.all(np.abs(y - limit) <= NEAR * np.sqrt(np.mean(np.abs(y) ** 2))) for y, limit in found):
            if i < 2:
                exam.adrift.clear()
                return  # it was going somewhere else
            exam.adrift.add(i)
    exam.value.further = FURTHER
