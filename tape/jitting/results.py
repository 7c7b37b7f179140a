"""Results: what a traced step leaves behind, as data: trees whose leaves are results of its program, or are there before each call."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import jax

from tape.callables.fingerprints import fingerprint
from tape.callables.objects import MISSING
from tape.callables.reach import Stored
from tape.graph.kinds import Place
from tape.graph.segment import Segment
from tape.jitting.places import KeptArray, held, taken_apart_if_any

# What a leaf of a tree is: an array, a new Variable, one from outside, the gradient of one from outside, an object that is found by
# its path, a new container that stands elsewhere as well, or any other object.
ARRAY, MADE, SAME, GRADIENT, FOUND, SHARED, PLAIN = range(7)
ONE = jax.tree.structure(0)  # of a tree that is one leaf
ALL, NEW = "all of it", "by its new keys"


class Made(NamedTuple):
    """A Variable that every call makes anew: which result is its value, and what it is.

    ``live`` is its position among the results through which gradients flow, or -1; ``assigned`` says that its gradient is its seed, and
    ``retains`` that sweeps leave it one.  ``of`` is what it is another handle of, as a leaf of a tree: one that was made before, one from
    outside, or the gradient of one from outside.
    """

    result: int
    place: Place
    segment: Segment | None
    live: int
    name: str | None
    grad: int
    assigned: bool
    retains: bool
    of: tuple[int, int] | None


class Tree(NamedTuple):
    """A tree of results: its structure, and what each leaf is (one of the kinds above, and a number, a path or the object)."""

    structure: Any
    leaves: tuple[tuple[int, Any], ...]

    def told(self) -> tuple[Any, ...]:
        """Return what tells it from others."""
        paths = [(i, x) for i, (kind, x) in enumerate(self.leaves) if kind == FOUND]
        return self.structure, paths, fingerprint([(kind, None if kind == FOUND else x) for kind, x in self.leaves])


class VariableChange(NamedTuple):
    """What becomes of a Variable from outside: a new value (a Made), another gradient (a Made, or -1 for none).

    ``anew`` says that it became another Variable (``v[i] = y``), so that its gradient and hooks stay behind.
    """

    source: int
    value: int | None
    grad: int | None
    assigned: bool
    anew: bool


class Slot(NamedTuple):
    """A place (an attribute, an item) that holds something else afterwards, or nothing; what it ``held`` is a part of the program.

    Of a list, deque or set that has got another length all of it is one place, which goes by the key ALL.  What a dict has by keys that
    the step makes, such as the state of a parameter that it makes, goes by the key NEW, as pairs.
    """

    holder: Stored
    key: Any
    content: Tree
    held: str

    def holds(self, _: object = None) -> str:
        """Say what it holds now."""
        place = self.holder.place
        return sys.intern(str(len(place.at))) if self.key is ALL else held(place.at_key(self.key))

    def put(self, content: Any) -> None:
        """Have it hold this now."""
        place = self.holder.place
        if self.key is ALL:
            place.fill(dict(enumerate(content)))
        elif self.key is NEW:
            for key, x in content:
                place.put(key, x)
        elif content is not MISSING:
            place.put(self.key, content)
        elif place.at_key(self.key) is not MISSING:
            place.drop(self.key)


def kept_in(slot: Slot) -> list[KeptArray]:
    """Return the arrays that a place held which gets others: they are inputs of the program, as the values of Variables are."""
    if all(kind not in (ARRAY, SHARED) for kind, _ in slot.content.leaves):
        return []
    found = []
    for key in slot.holder.before if slot.key is ALL else [slot.key]:
        leaves, form = taken_apart_if_any(slot.holder.before.get(key))
        found += [KeptArray(slot.holder, key, i, form) for i, x in enumerate(leaves) if isinstance(x, jax.Array)]
    return found
