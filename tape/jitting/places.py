"""Places: attributes, items and cells that hold arrays and Variables, in trees of any kind, which a step reads or fills."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from tape.callables.objects import MISSING, Writable
from tape.callables.reach import Edge, Reach, Stored
from tape.graph.segment import Handle
from tape.jitting.records import flatten, leaves_of


class KeptArray(NamedTuple):
    """An array in a place that gets another one: the number of a leaf in the tree that is there."""

    holder: Stored
    key: Any
    leaf: int

    @property
    def place(self) -> tuple[int, Any, int]:
        """What tells it from others."""
        return id(self.holder.place.at), self.key, self.leaf


class Filled(NamedTuple):
    """The arrays that are in one place, by the numbers of their leaves."""

    place: Writable
    key: Any
    arrays: Mapping[int, jax.Array]

    def holds(self, _: object = None) -> bool:
        """Tell whether they are all there still."""
        leaves = _arrays_at(self.place, self.key)
        return all(n < len(leaves) and leaves[n] is x for n, x in self.arrays.items())


def arrays_in(kept: Iterable[KeptArray]) -> list[jax.Array | None]:
    """Return what each of them is now, None where there is no array any more; what is in one place is taken apart once."""
    leaves: dict[tuple[int, Any], Sequence[Any]] = {}
    found = []
    for holder, key, n in kept:
        place = holder.place
        there = leaves.get((id(place.at), key))
        if there is None:
            there = leaves[id(place.at), key] = _arrays_at(place, key)
        found.append(there[n] if n < len(there) and isinstance(there[n], jax.Array) else None)
    return found


def _arrays_at(place: Writable, key: object) -> Sequence[Any]:
    content = place.at_key(key)
    return (content,) if isinstance(content, jax.Array) else leaves_if_any(content)


def edges_to(kept: Iterable[KeptArray], arrays: Iterable[jax.Array]) -> list[Edge]:
    """Return by what it is seen whether places still hold these arrays: one edge for each place."""
    found: dict[tuple[int, Any], tuple[Writable, dict[int, jax.Array]]] = {}
    for k, x in zip(kept, arrays, strict=True):
        found.setdefault((id(k.holder.place.at), k.key), (k.holder.place, {}))[1][k.leaf] = x
    edges = []
    for (_, key), (place, there) in found.items():
        if place.at_key(key) is there.get(0):
            edges.append(Edge(place.get, place.at, key, (), -1, there[0]))
        else:
            edges.append(Edge(Filled.holds, Filled(place, key, there), None, (), -1, True))
    return edges


def read_in(holders: Iterable[Stored], arrays: Iterable[object]) -> list[tuple[KeptArray, jax.Array]]:
    """Return the places in which some arrays are, each with the array."""
    ids = {id(x) for x in arrays}
    return [
        (KeptArray(holder, key, i), x)
        for holder in (holders if ids else ())
        for key, content in holder.before.items()
        if isinstance(content, (jax.Array, tuple))  # lists and dicts are places themselves
        for i, x in enumerate(leaves_if_any(content))
        if id(x) in ids and isinstance(x, jax.Array)
    ]


def arrays_at(holder: Stored, key: object) -> list[tuple[KeptArray, jax.Array]]:
    """Return the arrays that are in one place, be it in a tuple."""
    content = holder.place.at_key(key)
    leaves = leaves_if_any(content) if is_fixed(content) else []
    return [(KeptArray(holder, key, i), x) for i, x in enumerate(leaves) if isinstance(x, jax.Array)]


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
                places.setdefault(id(content), []).append(KeptArray(holder, key, 0))
    shared = [k for listed in places.values() if 1 < len(listed) <= _FEW for k in listed]
    return [k for k in shared if k.place not in known]


_FEW = 32  # more of them are data, rather than state


def stand_in(kept: Iterable[KeptArray], traced: Iterable[Any]) -> dict[tuple[int, Any], object]:
    """Have places hold traced arrays, and return what each (a container and a key) holds now; when the trace ends, it is as it was."""
    there: dict[tuple[int, Any], tuple[Writable, list[Any], Any]] = {}
    for (holder, key, n), x in zip(kept, traced, strict=True):
        if (id(holder.place.at), key) not in there:
            there[id(holder.place.at), key] = holder.place, *flatten(holder.place.at_key(key))
        there[id(holder.place.at), key][1][n] = x
    for (_, key), (place, leaves, structure) in there.items():
        place.put(key, structure.unflatten(leaves))
    return {(at, key): place.at_key(key) for (at, key), (place, *_) in there.items()}


def leaves_in(content: object) -> list[Any]:
    """Return the leaves of what is one of the kinds that hold Variables and arrays; none of anything else."""
    if not isinstance(content, (Handle, jax.Array, list, tuple, dict)):
        return []
    return leaves_of(content)


def leaves_if_any(content: object) -> list[Any]:
    """Return the leaves of what the step has not made; none where JAX finds none, as in a dict whose keys have no order."""
    try:
        return leaves_in(content)
    except Exception:  # noqa: BLE001 - classes of the user's may do anything
        return []


def held(content: object) -> str:
    """Say whether something holds Variables and arrays, or is nothing itself; equal answers are one object."""
    if content is None or content is MISSING:
        return "None" if content is None else "missing"
    kinds = {Handle if isinstance(x, Handle) else jax.Array for x in leaves_in(content) if isinstance(x, (Handle, jax.Array))}
    return ("neither", "arrays", "Variables", "both")[2 * (Handle in kinds) + (jax.Array in kinds)]
