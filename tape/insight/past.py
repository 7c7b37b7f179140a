"""The past of Variables: the part of the tape that leads to them, recorded before anybody looked."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Sequence
from typing import Any

from tape.graph.kinds import Kind, is_scalar
from tape.graph.lines import user_frame
from tape.graph.segment import Handle, LeafNode, Segment, WayBack
from tape.graph.trie import SWEEP, State
from tape.graph.wengert import needed
from tape.insight.names import walk
from tape.insight.parts import Leaf, Mark, Part, Span
from tape.ops.kernel import Kernel, Op
from tape.programs.retention import leaf_slots
from tape.statistics import STATS
from tape.sweeps import emission
from tape.sweeps.plan import ADD, FunctionOp, Plan


class Past:
    """The parts of the tape that lead to some Variables.

    Derivatives lead from one segment to an older one; values through which no gradient flows do as long as somebody holds the older one.
    """

    def __init__(self, outputs: Sequence[Handle]) -> None:
        self.parts: dict[int, Part] = {}  # by the ids of segments
        self._way = WayBack([(v._segment, v._place.slot) for v in outputs if v._segment is not None])
        self._leaves: dict[int, Leaf] = {}
        self._frame = user_frame(sys._getframe())[0]
        self._cells: dict[int, tuple[Segment, int]] | None = None
        met: dict[int, Segment] = {}  # by their serials
        for segment, wanted in self._way:
            met[segment.serial] = segment
            self._go_back(segment, wanted)
        self.order = [Span(part, 0, part.state.depth) for serial in sorted(met) for part in (self.parts[id(met[serial])],)]
        for span in self.order:
            _forwards(span.part)
            _matched(span.part, [one.part for one in self.order])

    def _go_back(self, segment: Segment, wanted: frozenset[int]) -> None:
        """Find what leads to the slots of a segment that are wanted."""
        part = self._part(segment)
        reached = set(wanted)
        steps = needed(part.state.path(), reached)
        numbers = {id(step): number for number, step in enumerate(part.steps)}
        part.only = (part.only or frozenset()) | {numbers[id(step)] for step in steps if step.kernel is not None}
        slots, leaves = leaf_slots(part.state), segment.leaves
        for i, slot in enumerate(slots):
            if slot in reached and slot not in part.sources:
                self._enter(part, segment, slot, leaves[i] if i < len(leaves) else None)

    def _enter(self, part: Part, segment: Segment, slot: int, cell: object) -> None:
        """Say what a leaf of a segment is."""
        kind = part.state.table[slot].kind
        origin = segment.origins.get(slot)
        if origin is None and cell.__class__ is list:
            origin = self._made_by(cell, segment)
        if isinstance(origin, tuple):
            part.sources[slot] = self._part(origin[0]), origin[1]
            self._way.arrive(origin)
            return
        if isinstance(origin, LeafNode):
            part.sources[slot] = self._leaf(origin.ref(), kind, cell)
            return
        if cell.__class__ is list and is_scalar(cell[0]):
            part.sources[slot] = Leaf(kind, number=cell[0])
            return
        part.sources[slot] = self._leaf(None, kind, cell)

    def _part(self, segment: Segment) -> Part:
        part = self.parts.get(id(segment))
        if part is None:
            part = self.parts[id(segment)] = Part.of(segment)
        return part

    def _leaf(self, variable: Any, kind: Kind, cell: object) -> Leaf:
        key = id(variable if cell is None else cell)
        known = self._leaves.get(key)
        if known is not None and (cell is not None or variable is not None):
            return known
        called = self._called.get(id(variable if variable is not None else cell), (None, variable))
        variable = called[1] if variable is None else variable
        name = None if variable is None else variable.name or called[1].name or called[0]
        leaf = self._leaves[key] = Leaf(kind, name, cell=cell if cell.__class__ is list else None)
        if variable is not None:
            leaf.variable = weakref.ref(variable)
        return leaf

    @functools.cached_property
    def _called(self) -> dict[int, tuple[str, Any]]:
        """The Variables that the user's frame leads to, with their names there, by their ids and those of their cells."""
        reached = list(walk(self._frame))[::-1] if self._frame is not None else []
        self._frame = None
        return {**{id(v._cell): (name, v) for name, v in reached}, **{id(v): (name, v) for name, v in reached}}

    def _made_by(self, cell: object, reader: Segment) -> tuple[Segment, int] | None:
        """Return the segment that made a value through which no gradient flows, if it is still there."""
        if self._cells is None:
            results = [(segment, slot, there) for segment in STATS._alive() for slot, there in list(segment.results.items())]
            self._cells = {id(there): (segment, slot) for segment, slot, there in results if there.__class__ is list}
        maker = self._cells.get(id(cell))
        called = self._called.get(id(cell)) if maker is None else None  # which tells of a result that no sweep reads
        if called is not None and called[1]._segment is not None:
            maker = called[1]._segment, called[1]._place.slot
        return None if maker is None or maker[0] is reader or maker[0].serial > reader.serial else maker


def _forwards(part: Part) -> None:
    """Note which entries the forward of a ``tape.Function`` recorded: what its entry reads besides its arguments."""
    path = part.steps
    for at, step in enumerate(path):
        if step.op.__class__ is FunctionOp:
            reached = set(step.inputs[step.op.arguments :])
            for number, before in reversed(list(enumerate(path[:at]))):
                if before.mode == SWEEP and before.__class__ is State and not reached.isdisjoint(before.slots):
                    reached.update(before.inputs)
                    part.inside.setdefault(number, step.op.name)
                    part.lines.setdefault(number, None)


def _matched(part: Part, parts: Sequence[Part]) -> None:
    """Find out which entries of a part a sweep wrote, and for which ones, by the plans that are known of the structures.

    The sweep of a sweep has the number after that.
    """
    named = [step.kernel if step.op is None else step.op for step in part.steps]
    first = [step.slots[0] if step.slots else -1 for step in part.steps]
    longest: dict[int, tuple[Part, Plan]] = {}
    for origin in parts:
        for plan, begin in _plans(origin, part):
            steps = plan.instructions
            for start in range(begin, len(named) - len(steps) + 1):
                if all(_same(step.op, named[start + i]) for i, step in enumerate(steps)):
                    if start not in longest or len(longest[start][1].instructions) < len(steps):
                        longest[start] = origin, plan
                    break
    for start in sorted(longest):
        origin, plan = longest[start]
        forward = origin.steps
        swept = [forward[depth - 1].slots for depth in plan.entries if depth <= len(forward)]
        order = 1 + max((origin.marks[s[0]].sweep for s in swept if s and s[0] in origin.marks), default=0)
        before = start - 1
        while before >= 0 and emission.is_seed(named[before]):
            part.marks.setdefault(first[before], Mark(order, origin, None))
            before -= 1
        for i, step in enumerate(plan.instructions):
            if first[start + i] >= 0:
                part.marks.setdefault(first[start + i], Mark(order, origin, step.depth))


def _same(op: object, recorded: Kernel | Op) -> bool:
    return op is recorded or (op is ADD and recorded.name == ADD.name)


def _plans(origin: Part, part: Part) -> list[tuple[Plan, int]]:
    """Return the plans of sweeps of one part that may have been written on the same or another one, and from which entry on."""
    plans: list[tuple[Plan, int]] = []
    own = origin is part
    state: State | None = origin.state
    while state is not None:
        known = [plan for key, plan in list(state._cache.items()) if key.__class__ is tuple and key[0] == "plan"]
        begin = state.depth if own else 0
        plans += [(plan, begin) for plan in known if plan.straight and plan.instructions and plan.pending == own]
        state = state.parent if own else None
    return plans
