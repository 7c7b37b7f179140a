"""Orders: those into which a step brings the items of dicts.

``cache.move_to_end(k)`` is Python that runs only while the step is traced.  Every call does the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from tape.callables.objects import in_order, reorder
from tape.callables.reach import Edge, Stored


class Order(NamedTuple):
    """The keys of a dict in another order, before and after."""

    holder: Stored
    before: tuple[Any, ...]
    after: tuple[Any, ...]


class Orders(tuple[Order, ...]):
    """All that a step changes."""

    __slots__ = ()

    @classmethod
    def made(cls, holders: Sequence[Stored]) -> Self:
        """Find what has been reordered since the holders were found."""
        now = [h.place.contents() for h in holders]
        return cls(Order(h, (*h.before,), (*x,)) for h, x in zip(holders, now, strict=True) if _reordered(h, x))

    def told(self) -> tuple[Hashable, ...]:
        """Return what tells it from others."""
        return tuple((o.holder.key, *map(id, o.before), None, *map(id, o.after)) for o in self)

    def of(self, holders: Mapping[Any, Stored]) -> Self | None:
        """Return the same among other holders, which are found by their keys; None where they have nothing of the kind."""
        if not {o.holder.key for o in self} <= holders.keys():
            return None
        orders = [o._replace(holder=holders[o.holder.key]) for o in self]
        return type(self)(orders) if all(in_order(o.holder.before, o.before) for o in orders) else None

    def edges(self) -> list[Edge]:
        """Return by what it is seen that the same is to be reordered."""
        return [Edge(in_order, o.holder.place.at, o.before, (), -1, True) for o in self]

    def make(self) -> None:
        """Bring everything into its order."""
        for o in self:
            reorder(o.holder.place.at, o.after)


def _reordered(holder: Stored, now: Iterable[Any]) -> bool:
    """Tell whether a dict has its keys in another order."""
    if not holder.place.has_order():
        return False
    there = {*map(id, holder.before)}
    kept = [k for k in now if id(k) in there]
    those = {*map(id, kept)}
    return not in_order(kept, [k for k in holder.before if id(k) in those])
