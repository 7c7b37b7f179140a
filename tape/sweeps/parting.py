"""Parting: where what a sweep of a long loop with looks writes ends one program and begins the next."""

from __future__ import annotations

from tape.sweeps.plan import Plan

SHORT = 8  # segments: fewer are swept as one program, as are those that follow one another without a loop
COMPILING = 0.35  # seconds that the turns of one program may add to its compilation, as predicted


def together(seconds: float) -> int:
    """Return how many turns, of which each adds so many seconds to the compilation of a program, are one: a power of two."""
    return 1 << max(int(COMPILING / max(seconds, COMPILING / SHORT)), 1).bit_length() - 1


class Parting:
    """Where what one sweep writes is parted into programs, when a loop with looks made the segments that it comes to.

    Each turn of such a loop is a segment, and neither their number nor, where they branch, their order is known before.  Swept as one
    program each, the turns of all such loops share few programs; several equal ones behind each other as one program cost less.  So a long
    loop is swept turn by turn, and equal turns some at a time: as many as the number of turns left, which ends with that to which the
    sweep comes last, can be divided by, of the powers of two.
    """

    __slots__ = ("_last", "_left", "_long", "_loops", "_met")

    def __init__(self) -> None:
        self._long: bool | None = None
        self._loops = False  # it came to one of them twice
        self._met: set[Plan] = set()
        self._last: Plan | None = None
        self._left = 0  # equal turns that are still to be swept with what is written

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
        if plan is last and self._left:
            self._left -= 1
            return False
        turns = ahead + 1
        self._left = min(turns & -turns, together(plan.seconds)) - 1
        return True
