"""Templates: the arguments of a call without its arrays, hashable, so that the same call finds the same op."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import jax
import numpy as np

from tape.graph.segment import Handle

_TREE = type(jax.tree.structure(0))


class _Mark:
    """Stands for an input in a template, or in what a call is known by."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


ARRAY = _Mark("array")
NUMBER = _Mark("number")
SEQUENCE = 2  # the role of a parameter that takes a sequence of arrays as well


class _Keyed:
    """Equal and hashed by ``key``."""

    __slots__ = ("_hash", "key")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self._hash = hash(key)

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is type(self) and self.key == other.key)

    def __hash__(self) -> int:
        return self._hash


class Static(_Keyed):
    """A number, told apart by type as well as by value (1, 1.0 and True are equal, and 0.0 is -0.0)."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        super().__init__((type(value), repr(value) if isinstance(value, (float, complex, np.inexact)) else value))
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)


class Baked(_Keyed):
    """An array held by value, because the function needs to see it."""

    __slots__ = ("value",)

    def __init__(self, value: np.ndarray[Any, Any]) -> None:
        super().__init__((value.shape, value.dtype, value.tobytes()))  # not its str, which int4 and a float8 share
        self.value = value


class Structured:
    """An object whose ``inner`` is a pytree with Variables as leaves."""

    __slots__ = ("inner",)

    inner: Any


class Node(_Keyed):
    """A container: its type (or pytree structure), its keys (for dicts) and its items; not hashable where an item is not."""

    __slots__ = ("items", "names", "type")

    def __init__(self, type_: Any, names: tuple[Any, ...] | None, items: tuple[Any, ...]) -> None:
        self.type = type_
        self.names = names
        self.items = items
        self.key = (type_, names, items)

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        if self.type in (list, tuple):
            return repr(self.type(self.items))
        items = self.items if self.names is None else dict(zip(self.names, self.items, strict=True))
        return f"{getattr(self.type, '__name__', self.type)}{items}"


def fill(template: object, arrays: Iterator[object]) -> Any:
    """Put arrays back in place of the marks of a template."""
    if template is ARRAY:
        return next(arrays)
    if isinstance(template, (Static, Baked)):
        return template.value
    if isinstance(template, Node):
        items = [fill(t, arrays) for t in template.items]
        if template.type is dict:
            return dict(zip(template.names or (), items, strict=True))
        if template.type is slice:
            return slice(*items)
        if isinstance(template.type, _TREE):
            return jax.tree.unflatten(template.type, items)
        if hasattr(template.type, "_fields"):
            return template.type(*items)
        return template.type(items)
    return template


class Fixed:
    """A result that is no array (a bool, a shape, a string): it belongs to the tree of results, not to the tape."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


jax.tree_util.register_pytree_node(Fixed, lambda x: ((), x), lambda x, _: x)


def fix(results: object) -> object:
    """Mark every result that is no array."""
    return jax.tree.map(lambda x: x if isinstance(x, (jax.Array, np.ndarray)) else Fixed(x), results)


def unfix(results: object) -> Any:
    """Take the marks off."""
    return jax.tree.map(lambda x: x.value if isinstance(x, Fixed) else x, results, is_leaf=lambda x: isinstance(x, (Fixed, Handle)))
