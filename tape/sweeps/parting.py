"""Parting: where what a sweep writes is parted into programs, when a loop with looks made the segments that it comes to.

Each turn of such a loop is a segment, and neither their number nor, where they branch, their order is known before.  Swept as one program
each, the turns of all such loops share few programs; several equal ones behind each other as one program cost less.  So a long loop is
swept turn by turn, and equal turns some at a time, counted from its beginning, to which the sweep comes last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tape.sweeps.plan import Plan

SHORT = 8  # segments: fewer are swept as one program, as are those that follow one another without a loop
SIZE = 128  # entries of a program for several turns, which compiles in a quarter of a second


def together(size: int) -> int:
    """Return how many turns of so many entries are one program: a power of two."""
    return 1 << max(SIZE // max(size, SIZE // SHORT), 1).bit_length() - 1


class Parting:
    """What one sweep has come to so far."""

    __slots__ = ("_last", "_long", "_loops", "_met", "_whole")

    def __init__(self) -> None:
        self._long: bool | None = None
        self._loops = False  # it came to one of them twice
        self._met: set[Plan] = set()
        self._last: Plan | None = None
        self._whole = False  # what is written are equal turns, the last ones of those that are swept together

    def ends(self, plan: Plan, ahead: int) -> bool:
        """Tell whether what is written is to run before a segment is swept by ``plan``; about so many further ones are ``ahead``."""
        if self._long is None:
            self._long = ahead >= SHORT
        if not self._long:
            return False
        last, self._last = self._last, plan
        self._loops = self._loops or plan in self._met
        self._met.add(plan)
        if not self._loops:
            return False
        begins = (ahead + 1) % together(len(plan.instructions)) == 0
        if plan is last and self._whole and not begins:
            return False
        self._whole = begins
        return True
