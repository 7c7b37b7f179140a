"""Loops: runs of entries that do the same again and again, and how data flow through them.

Where the kernels of some entries repeat (:mod:`tape.graph.repeats`), what each of them reads decides whether they are a loop: a result of
the same turn, the one of so many turns before, a value from outside that all turns read, or another one for each turn.  Turns that differ
(the first ones, often) stay outside.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, Union

import numpy as np

from tape.graph.length import bytes_of
from tape.graph.repeats import LEAST, SAVED, Repeat, repeats
from tape.graph.trie import Step

FAR = 8  # turns back from which a value may be carried
_NEAR = 32  # entries
_ODD = 2  # turns at either end of a loop that may read something else,
_LARGE = 1 << 24  # bytes of rows, to which a copy of theirs with another row for such a turn would be added
_ATTEMPTS = 8  # to find turns of one repeat that agree

Ints = np.ndarray[Any, np.dtype[np.int64]]
Result = tuple[int, int]  # of a turn: the number of the entry in it, and that of its result


@dataclass(frozen=True, slots=True)
class Same:
    """A result of the same turn."""

    result: Result


@dataclass(frozen=True, slots=True)
class Carried:
    """A result of ``turns`` turns before; the first turns read ``initial`` slots."""

    result: Result
    turns: int
    initial: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shared:
    """A value from outside that all turns read."""

    slot: int


@dataclass(frozen=True, slots=True)
class PerTurn:
    """Values from outside, another one for each turn."""

    slots: tuple[int, ...]


Source: TypeAlias = Union[Same, Carried, Shared, PerTurn]  # noqa: UP007


@dataclass(slots=True)
class Loop:
    """``count`` turns of entries from the number ``start``, the first of which is ``turn``; what they read, and which results others need.

    ``reads`` has the sources of the inputs of each entry of a turn.  Results that are needed ``each`` time are given for every turn, by
    their slots; those needed ``last`` of the last one only.
    """

    start: int
    turn: Sequence[Step]
    count: int
    reads: list[list[Source]]
    each: dict[Result, list[int]] = field(default_factory=dict)
    last: dict[Result, int] = field(default_factory=dict)

    @property
    def period(self) -> int:
        """How many entries a turn has."""
        return len(self.turn)

    @property
    def end(self) -> int:
        """The number of the first entry behind it."""
        return self.start + self.period * self.count

    @property
    def sources(self) -> list[Source]:
        """What a turn reads, input by input."""
        return [source for sources in self.reads for source in sources]

    @property
    def operands(self) -> Iterator[tuple[Source, Any]]:
        """The same, each with its shape and dtype."""
        return zip(self.sources, [aval for entry in self.turn for aval in entry.kernel.in_avals], strict=True)


class Flow:
    """Who makes and who reads which slot in a list of entries."""

    def __init__(self, entries: Sequence[Step], keep: Sequence[int]) -> None:
        self.entries = entries
        inputs, results = [e.inputs for e in entries], [e.slots for e in entries]
        self.offsets: Ints = np.concatenate([[0], np.cumsum(list(map(len, inputs)), dtype=np.int64)])
        self.reads: Ints = np.fromiter(itertools.chain.from_iterable(inputs), np.int64, int(self.offsets[-1]))
        self.counts: Ints = np.fromiter(map(len, results), np.int64, len(entries))  # of an entry's results
        counts = self.counts
        first = np.cumsum(counts) - counts
        given: Ints = np.fromiter(itertools.chain.from_iterable(results), np.int64, int(counts.sum()))
        self.size = 1 + max(int(given.max(initial=0)), int(self.reads.max(initial=0)), *keep, 0)
        self.maker: Ints = np.full(self.size, -1, np.int64)  # the number of the entry; -1: a leaf
        self.number: Ints = np.zeros(self.size, np.int64)  # of the result
        self.maker[given] = np.repeat(np.arange(len(entries)), counts)
        self.number[given] = np.arange(len(given)) - np.repeat(first, counts)
        self.keep = keep

    def around(self, loops: Sequence[Loop]) -> Iterator[tuple[int, int, Loop | None]]:
        """Yield where entries begin and end between loops, each with the loop that follows, None at the end."""
        done = 0
        for loop in loops:
            yield done, loop.start, loop
            done = loop.end
        yield done, len(self.entries), None

    def needed_after(self, number: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return for each slot whether it is kept, or read by an entry from some number on."""
        needed = np.zeros(self.size, np.bool_)
        needed[self.reads[self.offsets[number] :]] = True
        needed[list(self.keep)] = True
        return needed


def symbols(entries: Sequence[Step]) -> list[object]:
    """Return what entries are told apart by: one with side effects, whose order counts, is like no other."""
    kernels = [e.kernel for e in entries]
    acting = {kernel for kernel in set(kernels) if kernel.jaxpr.effects}
    return [e if e.kernel in acting else e.kernel for e in entries] if acting else [*kernels]


def find(flow: Flow) -> list[Loop]:
    """Return the loops in a list of entries, in order."""
    chosen: list[Loop] = []
    column: Ints = np.zeros(flow.size, np.int64)  # of each slot, what a loop gives in all its turns is the same number
    columns = 0
    for repeat in repeats(symbols(flow.entries)):
        loops = _agreeing_turns(flow, repeat)
        if not loops:  # the same kernel over and over may be several turns of more than one
            finer = repeats(_wired(flow, repeat.start, repeat.end))
            loops = [loop for r in finer for loop in _agreeing_turns(flow, r._replace(start=repeat.start + r.start))]
        for loop in loops:
            trimmed = _trimmed(flow, loop, column)
            _look_around(flow, trimmed)
            for slots in trimmed.each.values():
                columns += 1
                column[slots] = columns
            chosen.append(trimmed)
    return chosen


def _wired(flow: Flow, start: int, end: int) -> list[object]:
    """Return symbols that also say how near before an entry its inputs were made."""
    line: list[object] = []
    for number in range(start, end):
        back = number - flow.maker[flow.reads[flow.offsets[number] : flow.offsets[number + 1]]]
        line.append((flow.entries[number].kernel, *np.where((back <= _NEAR) & (back <= number - start), back, 0).tolist()))
    return line


def _agreeing_turns(flow: Flow, repeat: Repeat) -> list[Loop]:
    """Return the loops in one repeat, in order."""
    loops, turns = [], repeat.turns
    for _ in range(_ATTEMPTS):  # from the last turns to the first ones
        if turns < LEAST:
            break
        loop = _agreeing(flow, repeat.start, repeat.period, turns)
        if loop.count >= LEAST and loop.period * (loop.count - 1) >= SAVED:
            loops.append(loop)
        turns -= max(loop.count, 1)
    return loops[::-1]


def _trimmed(flow: Flow, loop: Loop, column: Ints) -> Loop:
    """Return a loop without first and last turns that alone read something else than what a loop before gave in its turns.

    That is where the rows are large.  Small ones are put together with the other one: a turn outside of the loop is compiled beside it.
    """
    first = last = 0
    for source, aval in loop.operands:
        if isinstance(source, PerTurn) and bytes_of(aval) * loop.count > _LARGE:
            odd = np.flatnonzero((columns := column[list(source.slots)]) != columns[loop.count // 2])
            before, after = odd[odd < _ODD], odd[odd >= loop.count - _ODD]
            if len(before) + len(after) == len(odd):
                first, last = max(first, 1 + int(before.max(initial=-1))), max(last, loop.count - int(after.min(initial=loop.count)))
    count = loop.count - first - last
    if not first + last or count < LEAST or loop.period * (count - 1) < SAVED:
        return loop
    trimmed = _agreeing(flow, loop.start + first * loop.period, loop.period, count)
    return loop if trimmed.count < count else trimmed


def _agreeing(flow: Flow, start: int, period: int, turns: int) -> Loop:
    """Return the loop of the turns from the first one on from which all get their data alike."""
    first_read, end = int(flow.offsets[start]), int(flow.offsets[start + period * turns])
    slots = flow.reads[first_read:end].reshape(turns, -1)  # one row per turn, and a column per input of an entry
    if not slots.shape[1]:
        return Loop(start, flow.entries[start : start + period], turns, [[] for _ in range(period)])
    maker, number = flow.maker[slots], flow.number[slots]
    inside = maker >= start
    turn, place = np.divmod(maker - start, period)
    now = np.arange(turns)[:, None]
    back = now - turn
    # A column is told by its last two turns: a result of so many turns before, or a value from outside.
    a, b = turns - 1, turns - 2
    alike = inside[a] & inside[b] & (back[a] == back[b]) & (place[a] == place[b]) & (number[a] == number[b]) & (back[a] <= FAR)
    same = inside & (back == back[a]) & (place == place[a]) & (number == number[a])
    # The first turn that may belong to the loop, for what each one reads.
    made_before = np.where(inside, turn + 1, 0)
    initial = np.where(back[a] == 0, now + 1, np.maximum(now - back[a] + 1, made_before))
    bound = np.where(alike, np.where(same, 0, initial), made_before).max(axis=1)
    bound = np.maximum.accumulate(bound[::-1])[::-1]
    fits = bound <= np.arange(turns)
    first = int(np.argmax(fits)) if fits.any() else turns
    begin = start + first * period
    loop = Loop(begin, flow.entries[begin : begin + period], turns - first, [])

    def source(column: int) -> Source:
        if not alike[column]:
            given = tuple(slots[first:, column].tolist())
            return Shared(given[0]) if given.count(given[0]) == len(given) else PerTurn(given)
        result, distance = (int(place[a, column]), int(number[a, column])), int(back[a, column])
        return Carried(result, distance, tuple(slots[first : first + distance, column].tolist())) if distance else Same(result)

    if loop.count >= LEAST:
        columns = itertools.count()
        loop.reads += [[source(next(columns)) for _ in entry.inputs] for entry in loop.turn]
    return loop


def _look_around(flow: Flow, loop: Loop) -> None:
    """Note which results of a loop are needed outside."""
    needed = flow.needed_after(loop.end)
    for place in range(loop.period):
        turns = flow.entries[loop.start + place : loop.end : loop.period]
        for number in range(len(turns[0].slots)):
            slots = [e.slots[number] for e in turns]
            wanted = needed[slots]
            if wanted[:-1].any():
                loop.each[place, number] = slots
            elif wanted[-1]:
                loop.last[place, number] = slots[-1]
