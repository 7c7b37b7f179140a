"""Lines: where the entries that a profile sees were recorded this time.

A structure that is found again has the lines of whoever recorded it first.  So the first runs of each structure from each place are
recorded in the slow way, as while a tape is open, and their lines noted; after that the thread records as quickly as ever.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from tape.graph.lines import user_line
from tape.graph.scope import LOCAL, set_scope
from tape.graph.segment import Handle
from tape.insight.notes import Notes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tape.graph.segment import Segment
    from tape.graph.trie import State
    from tape.sweeps.plan import Instruction

_QUIET = 3  # runs in a row whose lines are known, and no more are noted
_STRUCTURES = 2048  # known at most
_ATTEMPTS = 4  # to see a structure recorded


class Seen(NamedTuple):
    """The line of an entry, and whether a sweep wrote it."""

    where: tuple[str, int] | None
    swept: bool


Known = dict[int, Seen]  # by the first slots of entries


class LineNotes(Notes):
    """Notes lines beside what the tapes that are open around it note."""

    __slots__ = ("before", "seen")

    def __init__(self, before: Notes | None) -> None:
        super().__init__(() if before is None else before.records)
        self.before = before
        self.seen: weakref.WeakKeyDictionary[Segment, Known] = weakref.WeakKeyDictionary()

    def record(self, op: Any, inputs: Sequence[Any]) -> Any:
        """Record one entry and note its line."""
        line = user_line()
        result = super().record(op, inputs)
        made = [v for v in jax.tree.leaves(result, is_leaf=lambda x: isinstance(x, Handle)) if isinstance(v, Handle)]
        segment = next((v._segment for v in made if v._segment is not None), None) or LOCAL.segment()
        if segment is not None:
            entry = segment.state
            while entry.kernel is None and entry.parent is not None and entry.lines is None:
                entry = entry.parent
            self._note(segment, entry.slots, line, swept=False)
        return result

    def updated(self, segment: Segment, slot: int) -> None:
        """Note the line at which a pending result became the value of a Variable."""
        super().updated(segment, slot)
        self._note(segment, (slot,), user_line(), swept=False)

    def replayed(self, instructions: Sequence[Instruction], forward: Segment, target: Segment, start: State) -> None:
        """Note the lines of a sweep that was written as before."""
        super().replayed(instructions, forward, target, start)
        path, at = target.state.path(), start.depth
        steps = [step for step in path if step.kernel is not None and step.depth > at]
        for step, instruction in zip(steps[-len(instructions) :], instructions, strict=False):
            self._note(target, step.slots, self._line(forward, instruction), swept=True)

    def wrote(self, instruction: Instruction, forward: Segment, results: Sequence[Any]) -> None:
        """Note the line of what one instruction of a sweep came to."""
        super().wrote(instruction, forward, results)
        target = next((v._segment for v in results if v is not None and v._segment is not None), None)
        if target is not None:
            slots = tuple([v._place.slot for v in results if v is not None and v._segment is target])
            self._note(target, slots, self._line(forward, instruction), swept=True)

    def _note(self, segment: Segment, slots: Sequence[int], line: tuple[str, int] | None, *, swept: bool) -> None:
        if slots:
            known = self.seen.setdefault(segment, {})
            for slot in slots:
                known.setdefault(slot, Seen(line, swept))

    def _line(self, forward: Segment, instruction: Instruction) -> tuple[str, int] | None:
        """Return the line of the entry that an instruction belongs to."""
        depth = instruction.depth if instruction.entry is None else instruction.entry.depth
        known = self.seen.get(forward)
        if known and depth is not None:
            entry = next((step for step in forward.state.path() if step.kernel is not None and step.depth == depth), None)
            if entry is not None and entry.slots and entry.slots[0] in known:
                return known[entry.slots[0]].where
        return instruction.where


class Lines:
    """What a thread knows of the lines of the structures that it ran while profiles were open."""

    def __init__(self) -> None:
        self._known: dict[Any, Known] = {}  # by structure and place
        self._attempts: dict[Any, int] = {}
        self._quiet = 0
        self._structures: dict[int, Any] = {}  # so that no other one gets the id of a known one
        self._notes: LineNotes | None = None

    def begin(self) -> None:
        """Begin to note lines."""
        scope = LOCAL.scope
        if not isinstance(scope.notes, LineNotes):
            self._quiet = 0
            self._notes = LineNotes(scope.notes)
            set_scope(scope.but(notes=self._notes))

    def end(self) -> None:
        """Note no more lines."""
        scope = LOCAL.scope
        if isinstance(scope.notes, LineNotes):
            set_scope(scope.but(notes=scope.notes.before))

    def at_once(self, line: tuple[str, int] | None) -> Seen | None:
        """Return what is to be said of an entry that runs where it is recorded, at a line."""
        return Seen(line, LOCAL.scope.writing) if line is not None else None

    def known(self, segment: Segment, keep: tuple[int, ...], where: Any) -> Known | None:
        """Return the lines of a segment that is about to run; None where nobody has seen it, or one like it, recorded."""
        key = (id(segment.state), keep, where)
        known = self._known.get(key)
        if known is not None:
            self._quiet += 1
            if self._quiet > _QUIET and isinstance(LOCAL.scope.notes, LineNotes):
                self.end()
            return known
        self._quiet = 0
        notes = self._notes
        seen = None if notes is None else notes.seen.get(segment)
        if len(self._known) >= _STRUCTURES:  # ever new ones
            self._known, self._attempts, self._structures = {}, {}, {}
        if seen:
            self._structures[id(segment.state)] = segment.state
            self._known[key] = seen
            return seen
        attempts = self._attempts[key] = self._attempts.get(key, 0) + 1
        if attempts < _ATTEMPTS:
            self.begin()
        else:
            self._known[key] = {}
        return None
