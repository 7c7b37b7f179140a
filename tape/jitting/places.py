"""Places: attributes, items and cells that hold arrays and Variables, in trees of any kind, which a step reads or fills."""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import jax

from tape.callables.objects import MISSING, Writable
from tape.callables.reach import Reach, Stored
from tape.graph.segment import Handle
from tape.jitting.records import flatten, taken_apart


class KeptArray(NamedTuple):
    """An array in a place that gets another one: the number of a leaf in the tree that is there, and what form that has."""

    holder: Stored
    key: Any
    leaf: int
    form: Hashable

    @property
    def place(self) -> tuple[int, Any, int]:
        """What tells it from others."""
        return id(self.holder.place.at), self.key, self.leaf


def without_contents(x: Any, holder: Stored | None = None) -> Any:
    """Return a KeptArray, Slot or Order, be it at another holder, which does not keep alive what that held when it was found."""
    return x._replace(holder=(holder or x.holder)._replace(before={}))


class Filled(NamedTuple):
    """The arrays that are in one place, in a tree of this form, by the numbers of their leaves."""

    place: Writable
    key: Any
    tree: object
    form: Hashable
    arrays: dict[int, jax.Array]

    def holds(self, _: object = None) -> bool:
        """Tell whether they are all in the same tree there still."""
        tree = self.place.at_key(self.key)
        if tree is not self.tree:
            return False
        leaves, form = taken_apart_if_any(tree)
        return form == self.form and all(leaves[n] is x for n, x in self.arrays.items())


def arrays_in(kept: Iterable[KeptArray]) -> list[jax.Array | None]:
    """Return what each of them is now, None where there is no array any more; what is in one place is taken apart once."""
    leaves: dict[tuple[int, Any, int], Sequence[Any]] = {}
    found = []
    for holder, key, n, form in kept:
        place = holder.place
        if (id(place.at), key, id(form)) not in leaves:
            there, its_form = taken_apart_if_any(place.at_key(key))
            leaves[id(place.at), key, id(form)] = there if its_form == form else ()
        known = leaves[id(place.at), key, id(form)]
        found.append(known[n] if n < len(known) and isinstance(known[n], jax.Array) else None)
    return found


def edges_to(kept: Iterable[KeptArray], arrays: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return by what it is seen whether places still hold these arrays: what reads each place, that, its key, and what it is to be."""
    found: dict[tuple[int, Any], Filled] = {}
    for k, x in zip(kept, arrays, strict=True):
        place = k.holder.place
        if (id(place.at), k.key) not in found:
            found[id(place.at), k.key] = Filled(place, k.key, place.at_key(k.key), k.form, {})
        found[id(place.at), k.key].arrays[k.leaf] = x
    return [
        (f.place.get, f.place.at, f.key, f.tree) if isinstance(f.tree, jax.Array) else (Filled.holds, f, None, True) for f in found.values()
    ]


def read_in(holders: Iterable[Stored], arrays: Iterable[object]) -> list[tuple[KeptArray, jax.Array]]:
    """Return the places in which some arrays are, each with the array."""
    ids = {id(x) for x in arrays}
    found = []
    for holder in holders if ids else ():
        for key, content in holder.before.items():
            if isinstance(content, (jax.Array, tuple)):  # lists and dicts are places themselves
                leaves, form = taken_apart_if_any(content)
                found += [(KeptArray(holder, key, i, form), x) for i, x in enumerate(leaves) if id(x) in ids and isinstance(x, jax.Array)]
    return found


def arrays_at(holder: Stored, key: object) -> list[tuple[KeptArray, jax.Array]]:
    """Return the arrays that are in one place, be it in a tuple."""
    content = holder.place.at_key(key)
    leaves, form = taken_apart_if_any(content) if is_fixed(content) else ((), None)
    return [(KeptArray(holder, key, i, form), x) for i, x in enumerate(leaves) if isinstance(x, jax.Array)]


def names_of(places: Iterable[KeptArray], reached: Reach) -> set[tuple[object, object]]:
    """Return by what places are found again, where there are several ways to one, by each: the keys of holders, and theirs."""
    keys: dict[int, list[object]] = {}
    for k in places:
        keys.setdefault(id(k.holder.place.at), []).append(k.key)
    return {(h.key, key) for h in reached.holders for key in keys.get(id(h.place.at), ())}


def is_fixed(content: object) -> bool:
    """Tell whether something is an array, or a tuple of such, in which nothing is that is a place itself, and so must stay the same."""
    return all(map(is_fixed, content)) if isinstance(content, tuple) else not isinstance(content, (list, dict))


def has_arrays(content: object) -> bool:
    """Tell whether something is an array, or a tuple with one in it."""
    return any(map(has_arrays, content)) if isinstance(content, tuple) else isinstance(content, jax.Array)


def shared_in(holders: Iterable[Stored], known: Collection[object]) -> list[KeptArray]:
    """Return the places of arrays that are in several: what a step puts from one of them into another is not seen by what they hold."""
    places: dict[int, list[KeptArray]] = {}
    for holder in holders:
        for key, content in holder.before.items():
            if isinstance(content, jax.Array):
                places.setdefault(id(content), []).append(KeptArray(holder, key, 0, ()))
    shared = [k for listed in places.values() if 1 < len(listed) <= _FEW for k in listed]
    return [k for k in shared if k.place not in known]


_FEW = 32  # more of them are data, rather than state


def stand_in(kept: Iterable[KeptArray], traced: Iterable[Any]) -> dict[tuple[int, Any], object]:
    """Have places hold traced arrays, and return what each (a container and a key) holds now; when the trace ends, it is as it was."""
    there: dict[tuple[int, Any], tuple[Writable, list[Any], Any]] = {}
    for (holder, key, n, _), x in zip(kept, traced, strict=True):
        if (id(holder.place.at), key) not in there:
            there[id(holder.place.at), key] = holder.place, *flatten(holder.place.at_key(key))
        there[id(holder.place.at), key][1][n] = x
    for (_, key), (place, leaves, structure) in there.items():
        place.put(key, structure.unflatten(leaves))
    return {(at, key): place.at_key(key) for (at, key), (place, *_) in there.items()}


def leaves_in(content: object) -> list[Any]:
    """Return the leaves of what is one of the kinds that hold Variables and arrays; none of anything else."""
    return taken_apart(content)[0] if isinstance(content, (Handle, jax.Array, list, tuple, dict)) else []


def taken_apart_if_any(content: object) -> tuple[Sequence[Any], Hashable]:
    """Return the leaves of what the step has not made, and their form; none where JAX finds none, as in a dict whose keys have no order."""
    try:
        return taken_apart(content) if isinstance(content, (Handle, jax.Array, list, tuple, dict)) else ((), None)
    except Exception:  # noqa: BLE001 - classes of the user's may do anything
        return (), None


def held(content: object) -> str:
    """Say whether something holds Variables and arrays, or is nothing itself; equal answers are one object."""
    if content is None or content is MISSING:
        return "None" if content is None else "missing"
    found = _held(content) if isinstance(content, (Handle, jax.Array, list, tuple, dict)) else 0
    return ("neither", "arrays", "Variables", "both")[found]


def _held(content: Any) -> int:
    """Return 1 if there is an array in something, and 2 more if there is a Variable."""
    kind = content.__class__
    if isinstance(content, Handle):
        return 2
    if kind is dict:
        return functools.reduce(operator.or_, map(_held, content.values()), 0)
    if kind is list or kind is tuple or (isinstance(content, tuple) and hasattr(kind, "_fields")):
        return functools.reduce(operator.or_, map(_held, content), 0)
    if isinstance(content, jax.Array):
        return 1
    leaves, _ = taken_apart(content)
    return 0 if len(leaves) == 1 and leaves[0] is content else functools.reduce(operator.or_, map(_held, leaves), 0)
