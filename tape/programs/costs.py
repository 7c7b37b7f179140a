"""Costs of programs: what it takes to compile them, to interpret what they consist of, and to run their loops in one way or another.

These are seconds on one core, of what is predicted of each kernel (:mod:`tape.ops.costs`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tape.graph.length import bytes_of
from tape.ops.costs import PROGRAM
from tape.ops.kernel import Kernel
from tape.programs.loops import Carried, Flow, Loop, PerTurn, Same, Shared
from tape.programs.rows import puts_together, takes_apart

MOVED = 5e-10  # a byte that goes into a stack and out of it again
TURN = 3e-6  # a turn of a loop of XLA's
CALL, OPERAND = 15e-6, 5e-7  # a call of a program, and each of its arguments and results


def to_compile(kernels: Iterable[Kernel]) -> float:
    """Return the seconds that it takes to compile a program of some kernels, as often as they are in it: once in a loop."""
    return float(PROGRAM + sum([kernel.cost.part for kernel in kernels]))


def to_interpret(kernels: Counter[Kernel]) -> float:
    """Return the seconds that it takes to interpret kernels, as often as they run."""
    return float(sum([kernel.rent * times for kernel, times in kernels.items()]))


def branches(loop: Loop, fused: Callable[[Kernel], bool] = lambda kernel: kernel.cheap) -> bool:
    """Tell whether more than one way leads from a turn to the next through operations that XLA fuses.

    It fuses them across turns where these are written out, and computes what two ways share for each of them: so twice as much with each
    turn (a Runge-Kutta method of 20 steps takes it 17 seconds to compile).
    """
    ways: list[int] = []
    for entry, sources in zip(loop.turn, loop.reads, strict=True):
        met = [ways[s.result[0]] if isinstance(s, Same) else int(isinstance(s, Carried)) for s in sources]
        ways.append(sum(met) if fused(entry.kernel) else 0)
    carried = {s.result[0] for s in loop.sources if isinstance(s, Carried)}
    return any(ways[place] > 1 for place in carried)


def over_layers(flow: Flow, loops: Sequence[Loop]) -> list[Loop]:
    """Return the loops that go over layers: most of what their convolutions read beside what is carried is each turn's own, and is trained.

    The leaves that the turns of a loop convolve with, one by one, weigh more than what all turns share; and this loop, or another one that
    reads them, gives rows that are kept: gradients, or what comes in their place.  XLA runs convolutions in its loops two to five times
    slower.  Written out, layers have equal kernels, which it compiles once; but where turns share parameters, it fuses sums of gradients
    into ever larger kernels, and likewise much of what lies between products of matrices.
    """
    keep = np.zeros(flow.size, np.bool_)
    keep[list(flow.keep)] = True
    own: list[set[int]] = []
    convolved: set[int] = set()
    given: set[int] = set()
    for loop in loops:
        filters: dict[tuple[int, ...], int] = {}
        own.append(set())
        shared: dict[int, int] = {}
        for entry, sources in zip(loop.turn, loop.reads, strict=True):
            for source, aval in zip(sources, entry.kernel.in_avals, strict=True):
                if isinstance(source, Shared):
                    shared[source.slot] = bytes_of(aval)
                elif isinstance(source, PerTurn) and (flow.maker[list(source.slots)] < 0).all():
                    own[-1].update(source.slots)
                    if entry.kernel.convolves:
                        filters[source.slots] = bytes_of(aval)
        if sum(filters.values()) > sum(shared.values()):
            convolved.update(slot for slots in filters for slot in slots)
        if any(keep[slots].any() for slots in loop.each.values()):
            given |= own[-1]
    layers = convolved & given
    return [loop for loop, slots in zip(loops, own, strict=True) if not layers.isdisjoint(slots)]


class Costs:
    """What the loops of a list of entries cost."""

    def __init__(self, flow: Flow, loops: Sequence[Loop], numbers: Sequence[int]) -> None:
        self._flow = flow
        self._alone = np.zeros(flow.size, np.bool_)  # slots read one by one, not row after row by a loop
        self._alone[list(flow.keep)] = True
        for start, end, _ in flow.around(loops):
            one_by_one = [entry for entry in flow.entries[start:end] if not puts_together(entry)]
            self._alone[[s for entry in one_by_one for s in entry.inputs]] = True
        for loop in loops:
            for source in loop.sources:
                if isinstance(source, Shared):
                    self._alone[source.slot] = True
                elif isinstance(source, Carried) and source.turns < loop.count:
                    self._alone[list(source.initial)] = True
        self._rows = np.zeros(flow.size, np.bool_)  # slots that are rows of a stack in any case
        self._rows[[s for s in numbers if s < flow.size]] = True
        several = [flow.entries[n] for n in np.flatnonzero(flow.counts > 1).tolist()]
        self._rows[[s for e in several if takes_apart(e) for s in e.slots]] = True

    def stacked(self, loop: Loop) -> None:
        """Take it that a loop becomes one of XLA's."""
        for slots in loop.each.values():
            self._rows[slots] = True

    def taken_out(self, loop: Loop) -> int:
        """Return how many of the values that a loop gives in its turns are read one by one."""
        return int(sum([self._alone[slots].sum() for slots in loop.each.values()]))

    def moved(self, loop: Loop) -> float:
        """Return the bytes per turn that go into stacks, or out of them again, for the loop to be one of XLA's."""
        columns = {source.slots: aval for source, aval in loop.operands if isinstance(source, PerTurn)}
        into = sum(bytes_of(aval) for slots, aval in columns.items() if not self._rows[list(slots)].all())
        out = sum(
            bytes_of(loop.turn[place].kernel.out_avals[number]) * float(self._alone[slots].mean())
            for (place, number), slots in loop.each.items()
        )
        return into + out

    def of_turns(self, loop: Loop) -> tuple[float, float, float]:
        """Return the seconds that a turn takes, and what is added where it is one of a loop of XLA's, and where it is a call."""
        operands = len({s for s in loop.sources if not isinstance(s, Same)}) + len(loop.each) + len(loop.last)
        return sum(e.kernel.cost.work for e in loop.turn), TURN + MOVED * self.moved(loop), CALL + OPERAND * operands
