"""Walks over the entries of a Wengert list, backwards to what something depends on or forwards to what depends on something.

Sets of slots that are passed as ``reached`` grow as a walk goes on; what else an entry means to a walk, its caller says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from tape.graph.wengert import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

__all__ = ["active", "backwards", "closure", "last_uses", "leading", "needed", "producers"]

E = TypeVar("E", bound=Entry)


def backwards(entries: Sequence[E], reached: AbstractSet[Any]) -> Iterator[E]:
    """Yield the entries that give something in ``reached``, last to first; whoever walks adds to it where an entry leads."""
    for entry in reversed(entries):
        if not reached.isdisjoint(entry.slots):
            yield entry


def needed(entries: Sequence[E], reached: set[Any]) -> list[E]:
    """Return the entries that the slots in ``reached`` depend on, in order; all slots that they read are added to it."""
    found = []
    for entry in backwards(entries, reached):
        reached.update(entry.inputs)
        found.append(entry)
    return found[::-1]


def active(entries: Iterable[E], start: Iterable[int], gives: Callable[[E], Iterable[int]]) -> set[int]:
    """Return the slots that depend on those of ``start``, where an entry that reads one of them ``gives`` such slots."""
    found = set(start)
    for entry in entries:
        if not found.isdisjoint(entry.inputs):
            found.update(gives(entry))
    return found


def producers(entries: Iterable[E]) -> dict[int, E]:
    """Return for each slot the entry that gives it."""
    return {slot: entry for entry in entries for slot in entry.slots}


def leading(wanted: Iterable[Any], makers: Mapping[int, E], known: Collection[int]) -> tuple[list[E], set[int]]:
    """Walk from some slots to ``known`` ones (or to such as no entry gives), looking at the entries in between only.

    Returns:
        These entries, in order, and the known slots that they read.

    """
    found: dict[int, E] = {}  # by their first slots
    read: set[int] = set()
    stack = list(wanted)
    while stack:
        slot = stack.pop()
        if slot in known:
            read.add(slot)
        elif slot in makers:
            entry = makers[slot]
            first = entry.slots[0]
            if first not in found:
                found[first] = entry
                stack.extend(entry.inputs)
    return [found[first] for first in sorted(found)], read


def last_uses(entries: Sequence[Entry]) -> dict[Any, int]:
    """Return for each slot that is read the number of the last entry that reads it."""
    return {slot: i for i, entry in enumerate(entries) for slot in entry.inputs}


def closure(flags: Sequence[bool], grow: Callable[[list[bool]], Iterable[bool]]) -> list[bool]:
    """Add to ``flags`` what ``grow`` finds to follow from them (for as many as it tells of), until nothing is new."""
    found = list(flags)
    while True:
        following = list(grow(found))
        grown = [a or b for a, b in zip(found, following, strict=False)] + found[len(following) :]
        if grown == found:
            return found
        found = grown
