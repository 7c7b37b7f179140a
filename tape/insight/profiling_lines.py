"""Lines: where the entries that a profile sees were recorded this time.

A structure that is found again has the lines of whoever recorded it first.  So the first runs of each structure from each place, and on
other parameters, are recorded in the slow way, as while a tape is open, and their lines noted; after that the thread records as quickly as
ever.
"""

from __future__ import annotations

import random
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tape.accounts.records import Line
from tape.graph.lines import user_line
from tape.graph.scope import LOCAL, set_scope
from tape.graph.segment import LeafNode, Segment
from tape.graph.trie import State
from tape.insight.notes import Notes, depth_of, entry_of, segment_of
from tape.insight.parts import entries_of
from tape.sweeps.plan import Instruction

_QUIET = 3  # runs in a row whose lines are known, and no more are noted
_STRUCTURES = 2048  # known at most
_ATTEMPTS = 4  # to see a structure recorded
_WAITING = 64  # runs at most whose lines are still to be told
_GAP = 16, 256  # runs in the mean until some are noted again, at first and at most
_OFTEN = 16  # times that it had the same lines, whatever its parameters: in a program whose parameters are new ones at each step


class Seen(NamedTuple):
    """The line of an entry, and whether a sweep wrote it."""

    where: tuple[str, int] | None
    swept: bool


Known = dict[int, Seen]  # by the first slots of entries


class LineNotes(Notes):
    """Notes lines beside what the tapes that are open around it note."""

    __slots__ = ("before", "seen", "unsure")

    def __init__(self, before: Notes | None) -> None:
        super().__init__(() if before is None else before.records)
        self.before = before
        self.seen: weakref.WeakKeyDictionary[Segment, Known] = weakref.WeakKeyDictionary()
        self.unsure: weakref.WeakSet[Segment] = weakref.WeakSet()  # that hold sweeps of what nobody saw recorded

    def _recorded(self, op: object, inputs: Sequence[Any], outputs: Sequence[Any], line: Line | None) -> None:
        super()._recorded(op, inputs, outputs, line)
        segment = segment_of(outputs) or LOCAL.segment()
        if segment is not None:
            self._note(segment, entry_of(segment, outputs).slots, line, swept=False)

    def updated(self, segment: Segment, slot: int) -> None:
        """Note the line at which a pending result became the value of a Variable."""
        super().updated(segment, slot)
        self._note(segment, (slot,), user_line(), swept=False)

    def _swept(self, target: Segment, slots: Sequence[int], forward: Segment, instruction: Instruction) -> None:
        super()._swept(target, slots, forward, instruction)
        if forward not in self.seen:
            self.unsure.add(target)
        line, known, depth = instruction.where, self.seen.get(forward), depth_of(instruction)
        if known and depth is not None:
            entry = next((step for step in entries_of(forward.state) if step.depth == depth), None)
            if entry is not None and entry.slots and entry.slots[0] in known:
                line = known[entry.slots[0]].where
        self._note(target, slots, line, swept=True)

    def _note(self, segment: Segment, slots: Sequence[int], line: tuple[str, int] | None, *, swept: bool) -> None:
        if slots:
            known = self.seen.setdefault(segment, {})
            for slot in slots:
                known.setdefault(slot, Seen(line, swept))


@dataclass(slots=True, eq=False)
class _KnownLines:
    """What is known of the lines of one structure that ran from one place; functions of equal ops on other Variables have others."""

    state: State  # so that no other one gets its id
    seen: list[Known] = field(default_factory=list)
    # How often each of those was seen of who recorded it on a leaf, by the id of its weak reference, which is kept.
    of: dict[int, tuple[Any, Counter[int]]] = field(default_factory=dict)
    attempts: int = 0  # to see it recorded
    times: int = 0  # that it was seen

    def saw(self, seen: Known, leaves: Sequence[Any]) -> Known:
        """Take the lines of a run on some leaves; return the first that were the same."""
        number = next((n for n, known in enumerate(self.seen) if known == seen), len(self.seen))
        if number == len(self.seen):
            self.seen.append(seen)
        self.attempts = 0
        self.times += 1
        if len(self.of) + len(leaves) > _STRUCTURES:
            self.of.clear()
        for leaf in leaves:
            self.of.setdefault(id(leaf), (leaf, Counter()))[1][number] += 1
        return self.seen[number]

    def recall(self, leaves: Sequence[Any], chance: random.Random) -> tuple[Known | None, bool]:
        """Return the lines of a run on some leaves that nobody saw recorded, None where they are not known, and whether it is a guess."""
        if self.seen and (not leaves or (self.times > _OFTEN and len(self.seen) == 1)):
            return self.seen[-1], len(self.seen) > 1
        times = next((self.of[id(leaf)][1] for leaf in leaves if id(leaf) in self.of), None)
        if times is None:
            return None, False
        if len(times) == 1:
            return self.seen[next(iter(times))], False
        return self.seen[chance.choices(list(times), list(times.values()))[0]], True


class Lines:
    """What a thread knows of the lines of the structures that it ran while profiles were open."""

    def __init__(self) -> None:
        self._structures: dict[Any, _KnownLines] = {}  # with the slots that are kept, and the place
        self._quiet = 0
        self._chance = random.Random(0)  # noqa: S311 - which runs are looked at; the same ones each time
        self._mean = _GAP[0]  # of the runs until some are noted again
        self._left = 0  # of those
        self._alike = True  # whether nothing new was seen, and nothing guessed, since notes were taken last
        self._leaves: Sequence[Any] = ()  # of the last run that had any
        # Runs that nobody saw recorded: the next one on one of the same leaves that somebody sees tells, as far as both are alike.
        self._waiting: list[tuple[State, Sequence[Any], Known]] = []
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

    def known(self, segment: Segment, keep: tuple[int, ...], where: Any, *, always: bool) -> Known:
        """Return the lines of a segment that is about to run, which may become known later only; ``always``: go on to note them."""
        key = (id(segment.state), keep, where)
        one = self._structures.get(key)
        if one is None:
            if len(self._structures) >= _STRUCTURES:  # ever new ones
                self._structures = {}
            one = self._structures[key] = _KnownLines(segment.state)
        # The Variables by whose parameters two models of equal ops are told apart; a sweep that runs alone is of those before it.
        leaves = [origin.ref for origin in list(segment.origins.values()) if isinstance(origin, LeafNode)] or self._leaves
        self._leaves = leaves
        notes = self._notes
        seen = None if notes is None or segment in notes.unsure else notes.seen.get(segment)
        if seen:
            many = len(one.seen)
            known = one.saw(seen, leaves)
            self._tell(segment.state, leaves, known)
            self._alike &= len(one.seen) == many
            self._quiet = 0 if len(one.seen) > many else self._quiet + 1
        else:
            recalled, guessed = one.recall(leaves, self._chance)
            known = {} if recalled is None else recalled
            self._alike &= not guessed
            self._quiet += 1
            if recalled is None and one.attempts < _ATTEMPTS:
                one.attempts += 1
                self._waiting = [*self._waiting[-_WAITING:], (one.state, leaves, known)]
                self._quiet = 0
                self.begin()
        if not always:
            self._take_turns()
        return known

    def _take_turns(self) -> None:
        """Note no more lines after some runs that were known, and go on after some others: at random, so that no rhythm is missed."""
        if self._quiet == _QUIET + 1:
            self.end()
            self._mean = min(2 * self._mean, _GAP[1]) if self._alike else _GAP[0]
            self._alike = True
            self._left = self._chance.randint(1, 2 * self._mean)
        elif self._quiet > _QUIET:
            self._left -= 1
            if not self._left:
                self.begin()

    def _tell(self, state: State, leaves: Sequence[Any], seen: Known) -> None:
        """Tell the lines of a structure to the runs that wait for them."""
        waiting = []
        for one in self._waiting:
            slots = _alike(state, one[0]) if one[0] is state or not {*map(id, one[1])}.isdisjoint(map(id, leaves)) else ()
            one[2].update((slot, line) for slot, line in seen.items() if slot in slots)
            if not one[2]:
                waiting.append(one)
        self._waiting = waiting


def _alike(one: State, other: State) -> set[int]:
    """Return the slots that two structures have in common from their beginnings."""
    common: set[int] = set()
    for step, of_other in zip(entries_of(one), entries_of(other), strict=False):
        if (step.kernel, step.inputs, step.slots) != (of_other.kernel, of_other.inputs, of_other.slots):
            break
        common.update(step.slots)
    return common
