"""Objects: what kind of value something is for :mod:`tape.callables.snapshot`, and what it holds, found without running its code."""

from __future__ import annotations

import enum
import functools
import types
from abc import ABCMeta
from typing import Any

import jax
import numpy as np

from tape.callables.purity import words
from tape.graph.segment import Handle
from tape.jaxapi import Tracer

__all__ = ["category", "contents", "fields_of", "is_followed", "is_plain_tuple", "slots"]

_LIMIT = 1024
_COMPILED = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MemberDescriptorType)
_TUPLE = words(
    "__doc__ __slots__ _fields _field_defaults __new__ _make _replace __replace__ __repr__ _asdict __getnewargs__ __match_args__ __module__ "
    "__annotations__ __orig_bases__ __static_attributes__ __firstlineno__ __annotate__ __annotate_func__ __annotations_cache__"
)


def contents(value: Any) -> dict[str, Any]:
    """Return the attributes that an object holds itself."""
    kind: Any = type(value)
    held = dict(getattr(value, "__dict__", {}))
    for name, slot in slots(kind).items():
        try:
            held[name] = slot.__get__(value)
        except AttributeError:  # empty
            continue
    return held


@functools.lru_cache(maxsize=4096)
def slots(kind: type) -> dict[str, Any]:
    """Return what reads the slots of a class, by their names."""
    return {name: held for cls in kind.__mro__[-2::-1] for name, held in vars(cls).items() if isinstance(held, types.MemberDescriptorType)}


_CATEGORIES: dict[type, str] = {
    **dict.fromkeys((int, bool, str, bytes, type(None), type(...), type(NotImplemented)), "atom"),
    **dict.fromkeys((list, tuple, set, frozenset), "items"),
    **dict.fromkeys((range, slice), "range"),
    float: "float",
    complex: "complex",
    dict: "dict",
    functools.partial: "partial",
    types.FunctionType: "function",
    types.MethodType: "method",
    types.ModuleType: "unknown",
    types.SimpleNamespace: "object",
    np.ndarray: "numpy",
}
_POLICY: type = type(jax.checkpoint_policies.dots_saveable)


def category(value: Any) -> str:
    """Return how a value becomes part of a key; "unknown" where it cannot.

    "object" is one of a class written in Python outside the libraries, "own" one of the tape's, "library" anything of another library.
    """
    kind = type(value)
    category = _CATEGORIES.get(kind)
    if category is None:
        if len(_CATEGORIES) > _LIMIT:
            for known in list(_CATEGORIES)[_LIMIT // 2 :]:
                _CATEGORIES.pop(known, None)
        category = _CATEGORIES[kind] = _categorized(kind, value)
    return category


def _categorized(kind: type, value: Any) -> str:
    if issubclass(kind, Handle):
        return "variable"
    if isinstance(value, Tracer):
        return "unknown"
    if isinstance(value, jax.Array):
        return "array"
    for base, name in ((np.generic, "numpy"), (np.dtype, "atom"), (enum.Enum, "member"), (types.ModuleType, "unknown"), (type, "type")):
        if issubclass(kind, base):
            return name
    if is_plain_tuple(kind):
        return "named tuple"
    home = kind.__module__.split(".")[0]
    if home in {"tape", "interop"}:
        return "own" if kind.__module__ in {"tape.callables.higher_order", "tape.modes"} else "library"
    if kind.__module__ == _POLICY.__module__ != "builtins":  # what checkpoint_policies makes
        return "own"
    if home in {"jax", "jaxlib", "numpy", "builtins", "functools", "itertools", "operator"}:
        return "library"
    return "object" if is_followed(kind) else "unknown"


def is_followed(kind: type) -> bool:
    """Tell whether a class is written in Python, without a metaclass of its own."""
    return type(kind) in (type, ABCMeta) and all(_in_python(cls) for cls in kind.__mro__[:-1])


def _in_python(cls: type) -> bool:
    slots = vars(cls).get("__slots__", ())
    names = {slots} if isinstance(slots, str) else set(slots)
    return all(name in names for name, held in vars(cls).items() if isinstance(held, _COMPILED)) and cls.__module__ != "builtins"


def is_plain_tuple(kind: Any) -> bool:
    """Tell whether a class is a named tuple without methods of its own."""
    return kind.__bases__ == (tuple,) and "_fields" in vars(kind) and _TUPLE.union(kind._fields).issuperset(vars(kind))


@functools.lru_cache(maxsize=1024)
def fields_of(tree: Any) -> frozenset[str] | None:
    """Return the names of the fields in a tree of arguments; None where it has nodes of other classes than Python's containers."""
    fields: set[str] = set()
    stack = [tree]
    while stack:
        node = stack.pop()
        data = node.node_data()
        if data is None:
            continue
        kind = data[0]
        if kind not in (tuple, list, dict, type(None)):
            if not is_plain_tuple(kind):
                return None
            fields.update(kind._fields)
        stack += node.children()
    return frozenset(fields)
