"""Moves: objects that a step puts from one place into another, and orders into which it brings dicts.

``self.a, self.b = self.b, self.a`` of two networks, or ``cache.move_to_end(k)``, is Python that runs only while the step is traced.  Every
call does the same; what is put where depends on what is there then: it is looked up anew, as Variables are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import jax

from tape.callables.objects import MISSING, in_order, reorder
from tape.callables.reach import Edge, Reach, Stored
from tape.graph.segment import Handle
from tape.jitting.places import leaves_in


class Move(NamedTuple):
    """What gets into a place (a holder and a key) from another one, which gets something else."""

    holder: Stored
    key: Any
    source: Stored
    at: Any

    def content(self) -> object:
        """Return what it is at the call for which the holders were found."""
        return self.source.before.get(self.at, MISSING)


class Order(NamedTuple):
    """The keys of a dict in another order, before and after."""

    holder: Stored
    before: tuple[Any, ...]
    after: tuple[Any, ...]


class Moves(NamedTuple):
    """All that a step moves."""

    moves: Sequence[Move]
    orders: Sequence[Order]

    @classmethod
    def made(cls, holders: Sequence[Stored]) -> Self:
        """Find what has been moved since the holders were found."""
        now = [h.place.contents() for h in holders]
        changed: dict[int, list[tuple[Stored, Any]]] = {}  # places that hold something else, by the id of what they held
        for h, contents in zip(holders, now, strict=True):
            if len(contents) == len(h.before) or not isinstance(h.place.at, (list, deque)):
                for key, x in h.before.items():
                    if contents.get(key, MISSING) is not x:
                        changed.setdefault(id(x), []).append((h, key))
        moves = []
        for h, contents in zip(holders, now, strict=True):
            for key, x in contents.items() if changed else ():
                if id(x) in changed and h.before.get(key, MISSING) is not x and _leads_to_variables(x):
                    source, at = min(changed[id(x)], key=lambda place: place[0] is not h)
                    moves.append(Move(h, key, source, at))
        return cls(moves, [Order(h, (*h.before,), (*x,)) for h, x in zip(holders, now, strict=True) if _reordered(h, x)])

    def told(self) -> tuple[Hashable, ...]:
        """Return what tells it from other moves."""
        moves = [(m.holder.key, m.key, m.source.key, m.at) for m in self.moves]
        return (*moves, *[(o.holder.key, *map(id, o.before), None, *map(id, o.after)) for o in self.orders])

    def of(self, holders: Mapping[Any, Stored]) -> Self | None:
        """Return the same among other holders, which are found by their keys; None where they have nothing of the kind."""
        keys = {h.key for m in self.moves for h in (m.holder, m.source)}.union(o.holder.key for o in self.orders)
        if not keys <= holders.keys():
            return None
        moves = [m._replace(holder=holders[m.holder.key], source=holders[m.source.key]) for m in self.moves]
        orders = [o._replace(holder=holders[o.holder.key]) for o in self.orders]
        if any(m.content() is MISSING for m in moves) or not all(in_order(o.holder.before, o.before) for o in orders):
            return None
        return type(self)(moves, orders)

    def edges(self) -> list[Edge]:
        """Return by what it is seen that the same is to be moved."""
        edges = [Edge(m.source.place.get, m.source.place.at, m.at, (), -1, m.content()) for m in self.moves]
        return [*edges, *[Edge(in_order, o.holder.place.at, o.before, (), -1, True) for o in self.orders]]

    def make(self) -> None:
        """Put everything where it belongs."""
        for m in self.moves:
            m.holder.place.put(m.key, m.content())
        for o in self.orders:
            reorder(o.holder.place.at, o.after)


def _leads_to_variables(x: object) -> bool:
    """Tell whether something has Variables that :class:`~tape.jitting.outcome.Outcome` does not put into places itself."""
    return not any(isinstance(leaf, (Handle, jax.Array)) for leaf in leaves_in(x)) and bool(Reach([x]).variables)


def _reordered(holder: Stored, now: Iterable[Any]) -> bool:
    """Tell whether a dict has its keys in another order."""
    if not holder.place.has_order():
        return False
    there = {*map(id, holder.before)}
    kept = [k for k in now if id(k) in there]
    those = {*map(id, kept)}
    return not in_order(kept, [k for k in holder.before if id(k) in those])
