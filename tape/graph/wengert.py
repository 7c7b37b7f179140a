"""The Wengert list: entries in order, each of which reads values by their numbers and gives new ones; its walks, and its reverse sweep.

A jaxpr is one (:mod:`tape.ops.linear`), and so are the entries of a tape (:meth:`tape.graph.trie.State.path`) and what a sweep writes
(:class:`tape.sweeps.plan.Instruction`).  Whatever has :class:`Entry`'s two attributes can be walked and swept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from tape import layout

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet


class Constant:
    """An input of an entry that is known when the list is made: a literal, or a constant of the jaxpr."""

    __slots__ = ("aval", "value")

    def __init__(self, value: Any, aval: Any) -> None:
        self.value = value
        self.aval = aval


Source = int | Constant


class Entry(Protocol):
    """One line of a list: ``inputs`` are slots (or constants), which entries before it give; ``slots`` are those of its results."""

    @property
    def inputs(self) -> Sequence[Source]:
        """What it reads."""

    @property
    def slots(self) -> Sequence[int]:
        """What it gives."""


E = TypeVar("E", bound=Entry)
E_contra = TypeVar("E_contra", bound=Entry, contravariant=True)
V = TypeVar("V")


class WengertList(Generic[E]):
    """Entries as a function: slots ``0 .. n_inputs - 1`` are the inputs; ``avals[slot]`` is a slot's shape and dtype."""

    __slots__ = ("avals", "entries", "n_inputs", "outputs")

    def __init__(self, avals: list[Any]) -> None:
        self.n_inputs = len(avals)
        self.avals = avals
        self.entries: list[E] = []
        self.outputs: tuple[Source, ...] = ()

    def aval(self, source: Source) -> Any:
        """Return the shape and dtype of a slot or constant."""
        return source.aval if isinstance(source, Constant) else self.avals[source]


def backwards(entries: Sequence[E], reached: AbstractSet[Any]) -> Iterator[E]:
    """Yield the entries that give something in ``reached``, last to first; whoever walks adds to it where an entry leads."""
    for entry in reversed(entries):
        if not reached.isdisjoint(entry.slots):
            yield entry


def needed(entries: Sequence[E], reached: set[Any]) -> list[E]:
    """Return the entries that the slots in ``reached`` depend on, in order; all slots that they read are added to it."""
    if layout.NATIVE is not None:
        walked: list[E] | None = layout.NATIVE.needed(entries, reached)
        if walked is not None:
            return walked
    before = []
    for entry in backwards(entries, reached):
        reached.update(entry.inputs)
        before.append(entry)
    return before[::-1]


def active(entries: Iterable[E], start: Iterable[int], gives: Callable[[E], Iterable[int]]) -> set[int]:
    """Return the slots that depend on those of ``start``, where an entry that reads one of them ``gives`` such slots."""
    slots = set(start)
    for entry in entries:
        if not slots.isdisjoint(entry.inputs):
            slots.update(gives(entry))
    return slots


def producers(entries: Iterable[E]) -> dict[int, E]:
    """Return for each slot the entry that gives it."""
    return {slot: entry for entry in entries for slot in entry.slots}


def leading(wanted: Iterable[Any], makers: Mapping[int, E], known: Collection[int]) -> tuple[list[E], set[int]]:
    """Walk from slots to ``known`` ones (or such as no entry gives); return the entries in between, in order, and the known slots read."""
    between: dict[int, E] = {}  # by their first slots
    read: set[int] = set()
    stack = list(wanted)
    while stack:
        slot = stack.pop()
        if slot in known:
            read.add(slot)
        elif slot in makers:
            entry = makers[slot]
            first = entry.slots[0]
            if first not in between:
                between[first] = entry
                stack.extend(entry.inputs)
    return [between[first] for first in sorted(between)], read


def last_uses(entries: Sequence[Entry]) -> dict[Any, int]:
    """Return for each slot that is read the number of the last entry that reads it."""
    return {slot: i for i, entry in enumerate(entries) for slot in entry.inputs}


def closure(flags: Sequence[bool], grow: Callable[[list[bool]], Iterable[bool]]) -> list[bool]:
    """Add to ``flags`` what ``grow`` finds to follow from them (for as many as it tells of), until nothing is new."""
    known = list(flags)
    while True:
        following = list(grow(known))
        grown = [a or b for a, b in zip(known, following, strict=False)] + known[len(following) :]
        if grown == known:
            return known
        known = grown


class Emitter(Protocol[E_contra, V]):
    """Evaluates or writes what a sweep comes to: a cotangent is an array, a variable of a jaxpr, or the number of a value in a plan."""

    def arrive(self, entry: E_contra, cotangents: list[V | None]) -> list[V | None] | None:
        """Take note of the total cotangents of an entry's results; return those that go on to its inputs, None where the sweep ends."""

    def pull(self, entry: E_contra, cotangents: list[V | None], wanted: tuple[bool, ...], totals: dict[Any, V]) -> Iterable[tuple[Any, V]]:
        """Return the slots among the wanted inputs that get a cotangent, with it; a total that it adds to is taken out of ``totals``."""

    def add(self, entry: E_contra | None, total: V, term: V) -> V:
        """Add what ``entry`` gives (None: a seed) to what there is."""


def sweep(entries: Sequence[E], totals: dict[Any, V], active: Collection[Any], emitter: Emitter[E, V]) -> None:
    """Sweep a list: the entries last to first, each at most once, and a sum of cotangents for every slot.

    ``totals`` has the seeds, and afterwards the cotangents of the slots that no entry gives; from the slots in ``active`` a gradient
    flows to where one is wanted.
    """
    for entry in reversed(entries):
        slots = entry.slots
        for slot in slots:
            if slot in totals:
                break
        else:  # nothing flows to it
            continue
        cotangents = emitter.arrive(entry, [totals.pop(slot, None) for slot in slots])
        if cotangents is None:
            continue
        wanted = tuple([source in active for source in entry.inputs])
        if True in wanted:
            accumulate(totals, emitter.pull(entry, cotangents, wanted, totals), emitter, entry)


def accumulate(totals: dict[Any, V], terms: Iterable[tuple[Any, V]], emitter: Emitter[E, V], entry: E | None = None) -> None:
    """Add cotangents to the totals of their slots."""
    for slot, term in terms:
        totals[slot] = emitter.add(entry, totals[slot], term) if slot in totals else term
