"""Parts: what is noted of segments, of entries that ran alone, and of values that no entry gave."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tape.accounts.records import Line
from tape.graph import kinds
from tape.graph.kinds import Kind, is_scalar
from tape.graph.segment import Segment
from tape.graph.trie import State


def nobody() -> None:
    """Stand for a weak reference to what is not known."""


@dataclass(slots=True, eq=False)
class Leaf:
    """A value that no entry on the tape gave: what it is called, and its kind."""

    kind: Kind
    name: str | None = None
    number: object = None  # of Python or NumPy, which stands in place of a name
    variable: Callable[[], Any] = nobody
    value: Callable[[], Any] = nobody  # weakly: another value of the same Variable is another leaf
    cell: Any = None  # of a tape that keeps the values of leaves
    behind: Source | None = None  # what it is the value of, if it was detached from that
    outside: tuple[str, list[Source]] | None = None  # the function that computed it of these, with no gradient and not by ops


class Mark(NamedTuple):
    """Which sweep wrote an entry, and for which one: the part it stands in, and its depth there."""

    sweep: int
    part: Part | None
    depth: int | None


@dataclass(slots=True, eq=False)
class Part:
    """What is noted of one segment; its entries go by their numbers in it, from 0."""

    ref: Callable[[], Segment | None]
    state: State
    n_leaves: int
    only: frozenset[int] | None = None  # if not all of the others do, the numbers of those that do
    lines: dict[int, Line | None] = field(default_factory=dict)
    inside: dict[int, str] = field(default_factory=dict)  # numbers of entries of a Function's forward -> its name
    sources: dict[int, Source] = field(default_factory=dict)  # slots of leaves
    marks: dict[int, Mark] = field(default_factory=dict)  # first slots of entries
    functions: dict[int, Any] = field(default_factory=dict)  # first slots of a Function's entries -> its context, where leaves are kept

    @classmethod
    def of(cls, segment: Segment) -> Part:
        """Return what is noted of a segment that is met."""
        return cls(weakref.ref(segment), segment.state, len(segment.leaves))

    @classmethod
    def alone(cls, op: Any, inputs: Sequence[Source], results: Sequence[Any], mode: int) -> Part:
        """Return what is noted of an entry that ran at once and left no segment behind."""
        state, n = State(State(None, mode), mode), len(inputs)
        state.known, state.depth, state.kernel = False, 1, _AtOnce(op.name, op.params, len(results))
        state.inputs, state.slots = tuple(range(n)), tuple(range(n, n + len(results)))
        state.table = [kinds.Place(slot, v._place.kind) for slot, v in enumerate([*[results[0]] * n, *results])]  # nobody asks for inputs'
        return cls(nobody, state, n, sources=dict(enumerate(inputs)))

    @property
    def steps(self) -> list[Any]:
        """The entries of the segment, in order."""
        return entries_of(self.state)


class _AtOnce(NamedTuple):
    """What stands for the kernel of an entry that ran at once; nobody looks inside of it."""

    name: str
    params: Any
    visible: int
    transient: bool = True


Source = Leaf | tuple[Part, int]  # a result of another entry goes by its slot
Place = tuple[int, int]  # id of a part, slot; id of a leaf, -1


def origin_of(source: Source) -> Source:
    """Return where a value comes from, by way of leaves that are results of other parts."""
    while not isinstance(source, Leaf) and (before := source[0].sources.get(source[1])) is not None:
        source = before
    return source


def place_of(source: Source) -> Place:
    """Return by what the origin of a value is known."""
    source = origin_of(source)
    return (id(source), -1) if isinstance(source, Leaf) else (id(source[0]), source[1])


def unnamed(kind: Kind, cell: Any) -> Leaf:
    """Return the leaf of a cell of which nobody knows whose it is."""
    value = cell[0] if cell.__class__ is list else None
    return Leaf(kind, number=value if is_scalar(value) else None)


class Span(NamedTuple):
    """Entries of a part that were recorded one after another: their numbers are ``begin`` to ``end - 1``."""

    part: Part
    begin: int
    end: int


def entries_of(state: State) -> list[Any]:
    """Return the entries of a structure, in order."""
    return [step for step in state.path() if step.kernel is not None]
