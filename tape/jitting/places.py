"""Places: attributes, items and cells that hold arrays and Variables, in trees of any kind, which a step reads or fills."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import jax

from tape.callables.reach import Stored
from tape.graph.segment import Handle
from tape.jitting.records import flatten


class KeptArray(NamedTuple):
    """An array in a place that gets another one: the number of a leaf in the tree that is there."""

    holder: Stored
    key: Any
    leaf: int

    @property
    def place(self) -> tuple[int, Any, int]:
        """What tells it from others."""
        return id(self.holder.place.at), self.key, self.leaf

    def array(self, _: object = None) -> jax.Array | None:
        """Return what it is now; None where there is no array any more."""
        content = self.holder.place.at_key(self.key)
        if isinstance(content, jax.Array):
            return None if self.leaf else content
        leaves = leaves_if_any(content)
        leaf = leaves[self.leaf] if self.leaf < len(leaves) else None
        return leaf if isinstance(leaf, jax.Array) else None


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


def stand_in(kept: KeptArray, traced: Any) -> object:
    """Have a place hold a traced array; when the trace ends, it holds again what it did.  Return what it holds now."""
    structure: Any
    place = kept.holder.place
    leaves, structure = flatten(place.at_key(kept.key))
    place.put(kept.key, structure.unflatten([traced if i == kept.leaf else x for i, x in enumerate(leaves)]))
    return place.at_key(kept.key)


def leaves_in(content: object) -> list[Any]:
    """Return the leaves of what is one of the kinds that hold Variables and arrays; none of anything else."""
    if not isinstance(content, (Handle, jax.Array, list, tuple, dict)):
        return []
    return flatten(content)[0]


def leaves_if_any(content: object) -> list[Any]:
    """Return the leaves of what the step has not made; none where JAX finds none, as in a dict whose keys have no order."""
    try:
        return leaves_in(content)
    except Exception:  # noqa: BLE001 - classes of the user's may do anything
        return []


def held(content: object) -> str:
    """Say whether something holds Variables and arrays; equal answers are one object."""
    kinds = {Handle if isinstance(x, Handle) else jax.Array for x in leaves_in(content) if isinstance(x, (Handle, jax.Array))}
    return ("neither", "arrays", "Variables", "both")[2 * (Handle in kinds) + (jax.Array in kinds)]
