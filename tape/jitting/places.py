"""Places: attributes, items and cells that hold arrays and Variables, in trees of any kind, which a step reads or fills."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import jax

from tape.callables.objects import attributes
from tape.callables.reach import Stored
from tape.graph.segment import Handle, is_variable


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


def stand_in(kept: KeptArray, traced: Any) -> object:
    """Have a place hold a traced array; when the trace ends, it holds again what it did.  Return what it holds now."""
    structure: Any
    place = kept.holder.place
    leaves, structure = flatten(place.at_key(kept.key))
    place.put(kept.key, structure.unflatten([traced if i == kept.leaf else x for i, x in enumerate(leaves)]))
    return place.at_key(kept.key)


def flatten(tree: object) -> tuple[list[Any], Any]:
    """Return the leaves of what may stand in a place, and the structure that they stand in."""
    return jax.tree.flatten(tree, is_leaf=_is_leaf)


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


class Record(NamedTuple):
    """An object of a dataclass, as a tree of what it holds."""

    kind: Any
    held: dict[str, Any]

    def taken_apart(self) -> tuple[list[Any], tuple[Any, ...]]:
        """Return what it holds, and what else it is."""
        return list(self.held.values()), (self.kind, *self.held)

    @classmethod
    def made(cls, what: tuple[Any, ...], held: Iterable[object]) -> Any:
        """Return an object that holds this."""
        kind, *names = what
        new = object.__new__(kind)
        for name, content in zip(names, held, strict=True):
            object.__setattr__(new, name, content)
        return new


jax.tree_util.register_pytree_node(Record, Record.taken_apart, Record.made)


def opened(tree: object, known: Collection[int], within: tuple[int, ...] = ()) -> object:
    """Return a tree in which objects of dataclasses are trees as well, but for those with ``known`` ids, which are themselves."""
    leaves: list[Any]
    leaves, structure = flatten(tree)
    made = [dataclasses.is_dataclass(x) and not isinstance(x, type) and not (id(x) in known or id(x) in within) for x in leaves]
    for i in [i for i, flag in enumerate(made) if flag]:
        x = leaves[i]
        leaves[i] = Record(type(x), {name: opened(held, known, (*within, id(x))) for name, held in attributes(x).items()})
    return structure.unflatten(leaves) if any(made) else tree


def leaves_in_new(content: object, known: Collection[int]) -> list[Any]:
    """Return the leaves of what may be of any kind, if it is not one of the objects with ``known`` ids."""
    if id(content) in known or isinstance(content, (Handle, jax.Array)):
        return leaves_in(content)
    try:
        return flatten(opened(content, known))[0]
    except Exception:  # noqa: BLE001 - classes of the user's may do anything
        return leaves_in(content)


_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))  # JAX warns of them, which nobody has passed to it


def _is_leaf(value: object) -> bool:
    return is_variable(value) or isinstance(value, _VIEWS)


def held(content: object) -> str:
    """Say whether something holds Variables and arrays; equal answers are one object."""
    kinds = {Handle if isinstance(x, Handle) else jax.Array for x in leaves_in(content) if isinstance(x, (Handle, jax.Array))}
    return ("neither", "arrays", "Variables", "both")[2 * (Handle in kinds) + (jax.Array in kinds)]
