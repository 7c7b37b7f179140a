"""Length: how long a pending tape may become before it runs.

What counts is the program that it will be.  Its loops are loops there (:mod:`tape.programs.rolling`), however many turns they have, so
that a tape whose end repeats goes on, and is cut between two turns where memory asks for that: then what follows is cut likewise, and the
next segments have one structure.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tape.graph.kinds import differentiable
from tape.graph.repeats import Repeat, repeats, written_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tape.graph.kinds import Kind

SEGMENT_LIMIT = 600  # entries; XLA compiles 600 ops with their sweep in 2 s, 1 000 in 5 s
LOOP_LIMIT = 16  # times as many where they are turns of loops: a structure costs a kilobyte per entry
NUMBER_LIMIT = 400  # leaves that are single numbers; XLA's compiler for the CPU may use up the memory where one short loop reads over 500
_TWICE = 2  # a third turn may come
BYTES_LIMIT = 1 << 29  # of leaves and results together, where loops go on: their programs may keep each of them for the sweep


class _Turns(NamedTuple):
    """What the end of a tape repeats: the kernels of one turn, and how many entries stand before the first one."""

    kernels: tuple[Any, ...]
    before: int

    def at(self, depth: int) -> Any:
        """Return the kernel of the entry of some depth, if that is as before."""
        return self.kernels[(depth - 1 - self.before) % len(self.kernels)]


class Length:
    """How long a tape is: its entries, and what they come to where turns of loops count once."""

    __slots__ = ("_known", "_looked", "_turns", "bytes", "full", "numbers", "size")

    onward: Any = None  # that of what follows, where it is known whatever that is

    def __init__(self) -> None:
        self.size = 0  # entries of the program
        self.numbers = 0  # leaves of it that are numbers
        self.bytes = 0  # of all results and leaves
        self.full = False
        self._known = 0  # how many entries are looked through for repeats, and found in the size
        self._looked = 0  # how many there were when somebody looked last
        self._turns: _Turns | None = None  # what its end repeats

    def _copy(self) -> Length:
        copy = object.__new__(Length)
        copy.size, copy.numbers, copy.bytes, copy.full = self.size, self.numbers, self.bytes, self.full
        copy._known, copy._looked, copy._turns = self._known, self._looked, self._turns
        return copy

    def leaf(self, kind: Kind) -> Length:
        """Return the length with one more leaf."""
        length = self._copy()
        if not kind.aval.shape and not kind.requires_grad and differentiable(kind.aval):
            length.numbers += 1
        length.bytes += bytes_of(kind.aval)
        return length

    def entry(self, state: Any) -> Length:
        """Return the length with one more entry, that of ``state``."""
        length, depth, kernel = self._copy(), state.depth, state.kernel
        length.bytes += kernel.bytes
        turns = self._turns
        if turns is not None and turns.at(depth) is kernel:
            length.numbers = 0
        else:
            if turns is not None:
                length._turns, length._known, length._looked = None, depth - 1, depth - 1
            length.size += 1
            if (length.size > SEGMENT_LIMIT or length.numbers > NUMBER_LIMIT) and depth >= 2 * length._looked - length._known:
                length._look(state)
        length.full = length._is_full(depth)
        return length

    def written(self, state: Any) -> int:  # noqa: ARG002
        """Return how many entries the program of ``state``, whose length this is, has."""
        return self.size

    def _is_full(self, depth: int) -> bool:
        if self.size > SEGMENT_LIMIT or self.numbers > NUMBER_LIMIT:
            return True
        if depth <= SEGMENT_LIMIT or (depth <= LOOP_LIMIT * SEGMENT_LIMIT and self.bytes <= BYTES_LIMIT):
            return False
        turns = self._turns
        return turns is None or (depth - turns.before) % len(turns.kernels) == 0

    def swept(self, lines: Sequence[Any], depth: int) -> Length:
        """Return the length with a sweep that was written as a whole, to ``depth``."""
        length = self._copy()
        length.bytes += sum([line.kernel.bytes for line in lines])
        length.size += len(lines)
        if length.size > SEGMENT_LIMIT:
            length.size -= sum(repeat.saved for repeat in _loops([line.kernel for line in lines]))
        length._turns, length._known, length._looked = None, depth, depth
        length.full = length._is_full(depth)
        return length

    def _look(self, state: Any) -> None:
        """Look for repeats since somebody found some last; where there are, the tape is the shorter for it."""
        line: list[Any] = []
        depth = step = state.depth
        while state is not None and step > self._known:
            if state.kernel is not None:
                line.append(state.kernel if not state.kernel.jaxpr.effects else state)
                step -= 1
            state = state.parent
        line.reverse()
        self._looked = depth
        repeated = _loops(line)
        if not repeated:
            return
        self.size -= sum(repeat.saved for repeat in repeated)
        self.numbers = 0
        last = repeated[-1]
        turn, rest = tuple(line[last.start : last.start + last.period]), line[last.end :]
        if len(rest) < last.period and tuple(rest) == turn[: len(rest)]:
            self._turns = _Turns(turn, self._known + last.start)
        self._known = depth


class Endless(Length):
    """The length of a tape that is not cut: nobody asks at each entry whether it is full."""

    __slots__ = ()

    @property
    def onward(self) -> Length:
        """The length of what follows."""
        return self

    def written(self, state: Any) -> int:
        """Return how many entries a program of ``state`` has, which is looked through as one that has a limit is."""
        kernels = [step.kernel for step in state.path() if step.kernel is not None]
        return len(kernels) - (sum(repeat.saved for repeat in _loops(kernels)) if len(kernels) > SEGMENT_LIMIT else 0)


def ends_long(state: Any) -> bool:
    """Tell whether a segment that ends so has no room for as much again."""
    depth: int = state.depth
    return depth > SEGMENT_LIMIT // 2


def _loops(kernels: list[Any]) -> list[Repeat]:
    """Return the repeats of some entries' kernels that become loops of programs."""
    return [
        repeat for repeat in repeats(kernels, _TWICE) if not written_out(kernels[repeat.start : repeat.start + repeat.period], repeat.turns)
    ]


def bytes_of(aval: Any) -> int:
    """Return what a value of some shape and dtype takes; 0 for what is none of NumPy's."""
    size = math.prod(aval.shape)  # not an int where jax.export has symbolic lengths
    return size * aval.dtype.itemsize if size.__class__ is int and isinstance(aval.dtype, np.dtype) else 0
