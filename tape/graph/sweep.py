"""The reverse sweep: the entries of a Wengert list last to first, each at most once, and a sum of cotangents for every slot.

What a cotangent is (an array, a variable of a jaxpr that is being built, the number of a value in a plan), and what is done with the VJP
of an entry, is the business of an :class:`Emitter`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tape.graph.wengert import Entry

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

__all__ = ["Emitter", "accumulate", "sweep"]

E = TypeVar("E", bound=Entry)
E_contra = TypeVar("E_contra", bound=Entry, contravariant=True)
V = TypeVar("V")


class Emitter(Protocol[E_contra, V]):
    """Evaluates or writes what a sweep comes to."""

    def arrive(self, entry: E_contra, cotangents: list[V | None]) -> list[V | None] | None:
        """Take note of the total cotangents of an entry's results; return those that go on to its inputs, None where the sweep ends."""

    def pull(self, entry: E_contra, cotangents: list[V | None], wanted: tuple[bool, ...], totals: dict[Any, V]) -> Iterable[tuple[Any, V]]:
        """Return the slots among the wanted inputs that get a cotangent, with it; a total that it adds to is taken out of ``totals``."""

    def add(self, entry: E_contra | None, total: V, term: V) -> V:
        """Add what ``entry`` gives (None: a seed) to what there is."""


def sweep(entries: Sequence[E], totals: dict[Any, V], active: Collection[Any], emitter: Emitter[E, V]) -> None:
    """Sweep ``entries`` backwards.

    Args:
        entries: the list.
        totals: the seeds, by slots; afterwards the cotangents of the slots that no entry gives.
        active: slots from which a gradient flows to where one is wanted.
        emitter: what is done with each entry.

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
