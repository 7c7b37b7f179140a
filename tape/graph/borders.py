"""Borders: where the update of a step ends, what is pending is parted if ever other structures follow.

An update under ``no_grad`` waits for what comes next, and is one program with it.  Where steps differ by chance (layers that are dropped,
experts without gradients), that would be one for each step together with each that may follow: hundreds, which are interpreted and
compiled one after the other, where an update and a forward pass have few.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tape.bounded import Bounded
from tape.graph.trie import CONSTANT, RECORD

if TYPE_CHECKING:
    from tape.graph.trie import State

MANY = 32  # structures that follow one update
FEWEST = 6  # entries of an update: fewer are soon interpreted

_FOLLOWED: Bounded[int, int] = Bounded("structures after updates", 1 << 12)  # by the numbers of states


def follows(state: State) -> None:
    """Note a structure that was never met before, which may begin with an update."""
    border = _border(state)
    if border is None or border.depth < FEWEST or not border.hash:
        return
    _FOLLOWED[border.hash] = times = _FOLLOWED.get(border.hash, 0) + 1
    if times >= MANY:
        border.next.pop(RECORD, None)  # by which the recorder in C would go on


def parts(state: State, mode: int) -> bool:
    """Tell whether what is recorded in another mode from now on is to be a segment of its own."""
    return mode == RECORD and state.mode == CONSTANT and _FOLLOWED.get(state.hash, 0) >= MANY


def _border(state: State) -> State | None:
    """Return where a structure goes on that begins with what has no derivative; None where it does not, or nothing follows."""
    border = None
    for line in state.path():
        if line.mode != CONSTANT and (line.kernel is not None or line.slots):
            return border
        if line.mode == CONSTANT:
            border = line
    return None
