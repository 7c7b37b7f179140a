"""Turns: where what a sweep writes is parted into programs, when a loop with looks made the segments that it comes to.

Each turn of such a loop is a segment, and their number is not known before.  Swept as one program each, all turns of all such loops share
that one; as one program for several, a turn costs less.  So a long loop is swept some turns at a time, counted from its beginning, to which
the sweep comes last, and the turns that are left over at its end one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tape.sweeps.plan import Plan

SHORT = 8  # segments: so many are swept as one program, as is what follows one another without a loop
SIZE = 128  # entries of a program for several turns, which compiles in a quarter of a second


def together(size: int) -> int:
    """Return how many turns of so many entries are one program: a power of two."""
    return 1 << max(SIZE // max(size, SIZE // SHORT), 1).bit_length() - 1


class Turns:
    """What one sweep has come to so far."""

    __slots__ = ("_firsts", "_parts", "_written")

    def __init__(self) -> None:
        self._firsts: dict[Plan, int] = {}  # how many segments were ahead when it came to such a turn first
        self._parts: dict[Plan, int] = {}  # of which part of the loop the last such turn was
        self._written: set[Plan] = set()  # since what is pending ran

    def ends(self, plan: Plan, ahead: int) -> bool:
        """Tell whether what is written is to run before a segment is swept by ``plan``; at least so many further ones are ``ahead``."""
        first = self._firsts.setdefault(plan, ahead)
        again = plan in self._written
        self._written.add(plan)
        if first < SHORT:
            return False
        turns = together(len(plan.instructions))
        part = ahead // turns
        before = self._parts.get(plan)
        self._parts[plan] = part
        left_over = part == first // turns and (first + 1) % turns
        if not again or (part == before and not left_over):
            return False
        self._written = {plan}
        return True
