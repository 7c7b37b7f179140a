"""Following: what a step was bound to, and what is in its place now, where that is of the same form.

A step whose state is replaced at each call (``t.w = {name: tape.Variable(...)}``) would be bound anew at each call: to find everything
again, and to lay it out, costs several times what the rest of the call does.
"""

from __future__ import annotations

import operator
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax

from tape.callables.objects import attributes, in_order, is_composed
from tape.callables.reach import Path
from tape.graph.segment import Handle
from tape.jitting.orders import Order, Orders
from tape.jitting.places import KeptArray
from tape.jitting.results import Slot

P = TypeVar("P", KeptArray, Slot, Order)

# What reads something (None: it cannot be rebound), from what, by which key, and what that was.
Way = tuple[Callable[[Any, Any], object] | None, Any, Any, Any]


class Setting(NamedTuple):
    """What is around the Variables that a step concerns, as it was found.

    ``edges`` lead to them, each behind those to its holder, and ``conditions`` are on what else is there.  The step fills ``slots``, reads
    ``kept`` arrays, by source, and refers to objects that are ``found``, by path; ``strangers`` are the ids of what no argument may be.
    """

    edges: Sequence[Way]
    conditions: Sequence[Way]
    slots: Sequence[Slot]
    kept: Mapping[int, KeptArray]
    orders: Orders
    found: Mapping[Path, object]
    strangers: Collection[int]

    def followed(self) -> tuple[Replacements, Setting] | None:
        """Return what has been replaced, and what is around that now; None where it is of another form."""
        there = Replacements()
        try:
            edges = there.follow(self.edges)
        except (LookupError, AttributeError, ValueError, RecursionError):
            return None
        if edges is None:
            return None
        slots, orders = there.of_each(self.slots), Orders(there.of_each(self.orders))
        kept = dict(zip(self.kept, there.of_each(self.kept.values()), strict=True))
        found = {path: there.of(x) for path, x in self.found.items()}
        return there, Setting(edges, there.conditions(self.conditions), slots, kept, orders, found, there.ids(self.strangers))


class Replacements:
    """What stands for Variables and containers now that others have been put into their places."""

    def __init__(self) -> None:
        self._new: dict[int, Any] = {}  # by id of what was there
        self._kept: set[int] = set()  # the ids of what is there still
        self._containers = False  # whether they are among them

    def __bool__(self) -> bool:
        """Tell whether there are any."""
        return bool(self._new)

    def follow(self, edges: Sequence[Way]) -> list[Way] | None:
        """Return what edges, each behind those to its holder, lead to now; None where that is of another form, or stands elsewhere too."""
        new, kept = self._new, self._kept
        found: list[Way] = []
        for edge in edges:
            get, holder, key, content = edge
            at = new.get(id(holder), holder)
            # What does not change holds the same, or has been paired with all that it holds.
            there = get(at, key) if get is not None else content if at is holder else new.get(id(content), content)
            if there is content:
                kept.add(id(content))
            elif get is not None and not self._pair(content, there):
                return None
            found.append((get, at, key, there) if new else edge)
        ids = {*map(id, new.values())}
        return found if kept.isdisjoint(new) and kept.isdisjoint(ids) and len(ids) == len(new) else None

    def of(self, x: Any) -> Any:
        """Return what stands for something, be it in tuples."""
        new = self._new
        if id(x) in new or not isinstance(x, tuple):
            return new.get(id(x), x)
        parts = [self.of(part) if isinstance(part, tuple) else new.get(id(part), part) for part in x]
        if all(map(operator.is_, x, parts)):
            return x
        return x._make(parts) if hasattr(x, "_make") else tuple(parts)

    def of_each(self, placed: Iterable[P]) -> list[P]:
        """Return each of some with the place that it has now."""
        return [self.of(x) if self._containers and id(x.holder.place.at) in self._new else x for x in placed]

    def conditions(self, conditions: Sequence[Way]) -> Sequence[Way]:
        """Return conditions with what they are on now; where they name Variables, which is by a set of ids, with those there are now."""
        if not (self._containers or (self._new and any(isinstance(key, set) for _, _, key, _ in conditions))):
            return conditions
        return [(get, self.of(at), self.ids(key) if isinstance(key, set) else key, content) for get, at, key, content in conditions]

    def ids(self, ids: Iterable[int]) -> set[int]:
        """Return the ids of what stands for what has some."""
        return {id(self._new[i]) if i in self._new else i for i in ids}

    def _pair(self, old: Any, new: Any) -> bool:
        """Tell whether something is as what was in its place, but for Variables and the values of arrays; note what stands for what."""
        kind = old.__class__
        if kind is not new.__class__:
            return False
        if kind in _PLAIN:
            return old is new or repr(old) == repr(new)
        if old is new:
            self._kept.add(id(old))
            return True
        if isinstance(old, jax.Array):
            return bool(old.aval == new.aval)
        if id(old) in self._new:
            return self._new[id(old)] is new
        self._new[id(old)] = new
        if isinstance(old, Handle):
            return old._place.kind is new._place.kind and old._original is new._original is None
        self._containers = True
        if kind in _DICTS:
            alike = in_order(old, new) and getattr(old, "default_factory", None) is getattr(new, "default_factory", None)
            return alike and all(map(self._pair, old.values(), new.values()))
        if kind in _SEQUENCES or (isinstance(old, tuple) and hasattr(kind, "_fields")):
            alike = len(old) == len(new) and getattr(old, "maxlen", None) == getattr(new, "maxlen", None)
            return alike and all(map(self._pair, old, new))
        if not is_composed(old):
            return False
        if hasattr(old, "__dict__"):
            self._new[id(vars(old))] = vars(new)
        held, holds = attributes(old), attributes(new)
        return [*held] == [*holds] and all(map(self._pair, held.values(), holds.values()))


_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})
_DICTS = frozenset({dict, OrderedDict, defaultdict})
_SEQUENCES = frozenset({list, tuple, deque})
