"""Notes: what a tape that is open keeps of what its thread records.

While one is open, every op is recorded in the slow way, as with op hooks: the entries, and the programs that they come to, are the same.
What is noted is where it was recorded this time, what each input is, and which entries a sweep wrote for which others.  Structures of the
trie are kept, and weak references; no value, and nothing that holds one (unless the tape is to keep the values of leaves).
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any

from tape import jaxapi
from tape.accounts.records import Line
from tape.graph.kinds import is_scalar
from tape.graph.lines import user_frame, user_line
from tape.graph.scope import LOCAL, within
from tape.graph.segment import LeafNode, Segment
from tape.graph.trees import variables_in
from tape.graph.trie import State
from tape.insight.names import name_of
from tape.insight.parts import Leaf, Mark, Part, Source, Span, entries_of, nobody, unnamed
from tape.programs.retention import leaf_slots
from tape.recording import record
from tape.sweeps.plan import Instruction


class Record:
    """What one tape notes."""

    def __init__(self, *, keep: bool, frame: FrameType | None) -> None:
        self.keep = keep
        self.frame = frame  # where the tape is open: Variables are called there as the user calls them
        self.trace: Any = jaxapi.current_trace()  # what is recorded in other JAX transformations is not on this tape
        self.parts: dict[int, Part] = {}  # by the ids of segments
        self.order: list[Span] = []
        self.sweeps: list[Line | None] = []  # where each was asked for
        self.began: list[int] = []  # how many entries there were on the tape when each began
        self._leaves: dict[int, Leaf] = {}  # by the ids of Variables
        self._results: dict[int, tuple[Callable[[], Any], Source]] = {}  # by the ids of Variables that came of entries that ran at once
        for ref in (LOCAL.segment, *LOCAL.scope.staged):
            segment = ref()
            if segment is not None:
                self._part(segment)

    def close(self) -> None:
        """Take note of what was recorded last, and let go of where that was."""
        self.synchronise()
        self.frame = self.trace = None
        self._leaves, self._results = {}, {}

    def known(self, segment: Segment) -> Part | None:
        """Return what is noted of a segment, if anything is."""
        part = self.parts.get(id(segment))
        return part if part is not None and part.ref() is segment else None

    def _part(self, segment: Segment) -> Part:
        part = self.known(segment)
        if part is None:
            part = self.parts[id(segment)] = Part.of(segment)
            for slot in list(segment.origins) if segment.leaves else ():
                if slot not in segment.state.cut:
                    part.sources[slot] = self._source(segment, slot, None)
        return part

    def _grown_part(self, segment: Segment) -> Part:
        """Return what is noted of a segment from which something is read, with all that it has: that comes before what reads it."""
        part = self._part(segment)
        self.grown(part, segment)
        return part

    def new_part(self, segment: Segment) -> Part:
        """Return what is noted of a segment; one that is met now began with the entries that follow."""
        part = self.known(segment)
        if part is None:
            part = self._part(segment)
            part.n_leaves = 0
            while part.state.parent is not None:
                part.state = part.state.parent
        return part

    def synchronise(self) -> None:
        """Take note of what the segments came to."""
        for part in list(self.parts.values()):
            segment = part.ref()
            if segment is not None:
                self.grown(part, segment)

    def grown(self, part: Part, segment: Segment) -> None:
        """Take note of the entries that a segment got since the last time, and of what its new leaves are."""
        if self.keep and segment.functions:
            part.functions.update(segment.functions)
        state, before = segment.state, part.state
        if state is before:
            return
        slots: list[int] = []
        step: State | None = state
        while step is not None and step is not before:
            slots += step.slots[:1] if step.kernel is None else ()
            step = step.parent
        leaves = segment.leaves[part.n_leaves :]
        part.state, part.n_leaves = state, part.n_leaves + len(slots)
        for slot, cell in zip(reversed(slots), leaves, strict=False):
            source = part.sources.get(slot)
            if source is None:
                source = part.sources[slot] = self._source(segment, slot, cell)
            if self.keep and isinstance(source, Leaf) and source.cell is None:
                source.cell = cell
        if state.depth > before.depth:
            last = self.order[-1] if self.order else None
            if isinstance(last, Span) and last.part is part and last.end == before.depth:
                self.order[-1] = last._replace(end=state.depth)
            else:
                self.order.append(Span(part, before.depth, state.depth))

    def _source(self, segment: Segment, slot: int, cell: object) -> Source:
        """Find out what a leaf is that a sweep read, or that entered unseen."""
        kind = segment.state.table[slot].kind
        origin = segment.origins.get(slot)
        if isinstance(origin, LeafNode):
            variable: Any = origin.ref()
            if variable is not None:
                return self.leaf(variable)
        elif origin is not None:
            return self._grown_part(origin[0]), origin[1]
        for known in list(self._leaves.values()):
            variable = known.variable()
            if variable is not None and variable._cell is cell:
                return self.leaf(variable)
        for part in self.parts.values():
            other = part.ref()
            if other is None or other is segment:
                continue
            for at, there in list(other.results.items()):
                if there is cell:
                    return part, at
            for at, there in zip(leaf_slots(other.state), other.leaves, strict=False):
                if there is cell:
                    return part.sources.setdefault(at, unnamed(kind, cell))  # it may have entered before the tape was open
        return unnamed(kind, cell)

    def leaf(self, variable: Any) -> Leaf:
        """Return the leaf that a Variable is now."""
        known = self._leaves.get(id(variable))
        if known is not None and known.variable() is not variable:  # that one is gone, and this one has its place in memory
            known = None
        value = variable._cell[0] if variable._cell.__class__ is list else None
        if known is not None and (known.value() is value or known.value is nobody):
            return known
        kind, ref, name = variable._place.kind, weakref.ref(variable), variable.name
        if is_scalar(value) and known is None and not name:
            return Leaf(kind, number=value, variable=ref)
        name = name or name_of(variable, (self.frame, user_frame(sys._getframe())[0]))
        leaf = self._leaves[id(variable)] = Leaf(kind, name, variable=ref)
        with contextlib.suppress(TypeError):  # a number
            leaf.value = weakref.ref(value)
        return leaf

    def leaf_of(self, variable: Any) -> tuple[Leaf | None, Leaf]:
        """Return the leaf that was known last of a Variable, and the one that it is now, which stays known even if it is a number."""
        before, leaf = self._leaves.get(id(variable)), self.leaf(variable)
        self._leaves[id(variable)] = leaf
        return before, leaf

    def source(self, variable: Any) -> Source:
        """Return what an input is."""
        segment = variable._segment
        if segment is not None:
            return self._grown_part(segment), variable._place.slot  # of one that is met now, it was recorded before
        noted = self._results.get(id(variable))
        if noted is not None and noted[0]() is variable:
            return noted[1]
        return self.leaf(variable)

    def noted(self, op: object, inputs: Sequence[Any], outputs: Sequence[Any], line: Line | None, *, mark: Mark | None = None) -> None:
        """Take note of one entry."""
        segment = segment_of(outputs)
        if segment is None and outputs:
            alone = Part.alone(op, [self.source(v) for v in inputs], outputs, LOCAL.scope.mode)
            alone.lines[0] = line
            if mark is not None:
                alone.marks[alone.state.slots[0]] = mark
            self.order.append(Span(alone, 0, 1))
            self._results.update({id(v): (weakref.ref(v), (alone, slot)) for slot, v in zip(alone.state.slots, outputs, strict=True)})
            return
        segment = segment or LOCAL.segment()
        if segment is None:
            return
        part = self.new_part(segment)
        entry = entry_of(segment, outputs)
        if len(entry.inputs) == len(inputs):
            for slot, v in zip(entry.inputs, inputs, strict=True):
                if slot not in part.sources and v._segment is not segment and v._place.segment is not segment:
                    part.sources[slot] = self.source(v)
        self.grown(part, segment)
        number = entry.depth - 1
        part.lines[number] = line
        if line is not None and entry.slots:
            segment.lines[entry.slots[0]] = line  # as where op hooks see it
        if name := getattr(LOCAL.scope.caller, "_who", ""):
            part.inside[number] = name


class Notes:
    """What the open tapes of a thread note: the recorder and the sweeps tell."""

    __slots__ = ("records",)

    def __init__(self, records: tuple[Record, ...]) -> None:
        self.records = records

    def _concerned(self) -> list[Record]:
        """Return the tapes to which what is recorded now belongs."""
        return [one for one in self.records if one.trace is not None and jaxapi.current_trace() is one.trace]

    def record(self, op: object, inputs: Sequence[Any]) -> Any:
        """Record one entry, as :func:`tape.recording.record.record` does, and note it."""
        line = user_line()
        observer = LOCAL.scope.observer
        before = list(inputs)  # their places now: what is pending may be run by recording
        if observer is not None:
            result = observer.record(op, inputs)
        else:
            with within(unseen=True):
                result = record.record(op, inputs)
        self._recorded(op, before, variables_in(result), line)
        return result

    def _recorded(self, op: object, inputs: Sequence[Any], outputs: Sequence[Any], line: Line | None) -> None:
        for one in self._concerned():
            one.noted(op, inputs, outputs, line)

    def grew(self) -> None:
        """Take note of what a sweep has recorded besides, before it runs and may be gone."""
        segment = LOCAL.segment()
        if segment is not None:
            for one in self._concerned():
                one.grown(one.new_part(segment), segment)

    def updated(self, segment: Segment, slot: int) -> None:
        """Note that a pending result became the value of a Variable."""
        line = user_line()
        for one in self._concerned():
            part = one.new_part(segment)
            one.grown(part, segment)
            part.lines[segment.state.depth - 1] = line
        if line is not None and self.records:
            segment.lines[slot] = line

    def sources(self, variable: object) -> list[Source]:
        """Return what a Variable is now, for :meth:`took`."""
        return [one.source(variable) for one in self._concerned()]

    def took(self, result: object, sources: Sequence[Source]) -> None:
        """Note that a value was taken off the tape, or handed from one Variable to another, which is no entry."""
        for one, source in zip(self._concerned(), sources, strict=True):
            before, leaf = one.leaf_of(result)
            if leaf is not before:  # otherwise it had that value already
                leaf.behind = source

    def detached(self, variable: object, result: object) -> None:
        """Note that the value of one Variable became that of another."""
        self.took(result, self.sources(variable))

    def computed(self, name: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Note what a function computed of Variables that may have looked at their values, where it is not recorded."""
        given = {id(v._cell) for v in inputs}
        for v in outputs:
            if v._segment is None and id(v._cell) not in given:
                for one in self._concerned():
                    before, leaf = one.leaf_of(v)
                    if leaf is not before and leaf.behind is None:
                        leaf.outside = name, [one.source(x) for x in inputs]

    def begin_sweep(self) -> None:
        """Note that a sweep begins."""
        line = user_line()
        for one in self._concerned():
            one.synchronise()
            one.sweeps.append(line)
            one.began.append(sum(x.end - x.begin for x in one.order))

    def replayed(self, instructions: Sequence[Instruction], forward: Segment, target: Segment, start: State) -> None:
        """Note that a sweep of ``forward`` was written on ``target``, which stood at ``start``, as it was written before."""
        for step, instruction in zip(entries_of(target.state)[start.depth :], instructions, strict=False):
            self._swept(target, step.slots, forward, instruction)
        for one in self._concerned():
            one.grown(one.new_part(target), target)

    def wrote(self, instruction: Instruction, forward: Segment, results: Sequence[Any]) -> None:
        """Note what one instruction of the sweep of ``forward`` came to."""
        given = [v for v in results if v is not None]
        target = segment_of(given)
        if target is not None:
            self._swept(target, [v._place.slot for v in given if v._segment is target], forward, instruction)
        for one in self._concerned():
            if target is not None:
                one.grown(one.new_part(target), target)
            elif given and instruction.op is not None:
                mark = Mark(len(one.sweeps), one.known(forward), depth_of(instruction))
                one.noted(instruction.op, (), given, instruction.where, mark=mark)

    def _swept(self, target: Segment, slots: Sequence[int], forward: Segment, instruction: Instruction) -> None:
        """Note which instruction of the sweep of ``forward`` wrote the entry with these slots."""
        for one in self._concerned():
            mark, part = Mark(len(one.sweeps), one.known(forward), depth_of(instruction)), one.new_part(target)
            for slot in slots:
                part.marks.setdefault(slot, mark)


def entry_of(segment: Segment, results: Sequence[Any]) -> State:
    """Return the entry that gave some results; of none, the last one. Op hooks may have recorded others after it."""
    state, slots = segment.state, {v._place.slot for v in results if v._segment is segment}
    while slots and slots.isdisjoint(state.slots) and state.parent is not None:
        state = state.parent
    return state


def segment_of(variables: Iterable[Any]) -> Segment | None:
    """Return the segment of the first of some Variables that is on one."""
    return next((v._segment for v in variables if v._segment is not None), None)


def depth_of(instruction: Instruction) -> int | None:
    """Return the depth of the entry that an instruction of its sweep belongs to."""
    return instruction.depth if instruction.entry is None else instruction.entry.depth
