"""Objects: what kind of value something is for :mod:`tape.callables.snapshot`, and what objects and classes hold, found without running their code."""

from __future__ import annotations

import functools
import types
from abc import ABCMeta
from enum import Enum, EnumMeta
from typing import Any

import jax
import numpy as np

from tape.jaxapi import Tracer
from tape.recording.segment import Handle

__all__ = ["MISSING", "category", "contents", "fields_of", "held_by_class", "in_slot", "is_enumeration", "is_plain_tuple", "words"]

MISSING = object()
_POLICY: type = type(jax.checkpoint_policies.dots_saveable)


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


_LIMIT = 1024
_CATEGORIES: dict[type, str] = {
    **dict.fromkeys((int, bool, str, bytes, type(None), type(Ellipsis)), "atom"),
    **dict.fromkeys((list, tuple, set, frozenset), "items"),
    **dict.fromkeys((range, slice), "range"),
    float: "float",
    complex: "complex",
    dict: "dict",
    functools.partial: "partial",
    types.FunctionType: "function",
    types.MethodType: "method",
    types.ModuleType: "module",
    types.SimpleNamespace: "object",
    np.ndarray: "numpy",
}
# What classes written in Python do not hold, unless they list it in __slots__.
_COMPILED = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MemberDescriptorType)
_TUPLE = words(
    "__doc__ __slots__ _fields _field_defaults __new__ _make _replace __replace__ __repr__ _asdict __getnewargs__ __match_args__ __module__ "
    "__annotations__ __orig_bases__ __static_attributes__ __firstlineno__ __annotate__ __annotate_func__ __annotations_cache__"
)


def category(value: Any) -> str:
    """Return how a value becomes part of a key; "unknown" where it cannot.

    "object" is one of a class written in Python outside the libraries, "own" one of the tape's, "library" anything of another library.
    """
    kind = type(value)
    found = _CATEGORIES.get(kind)
    if found is None:
        if len(_CATEGORIES) > _LIMIT:
            for known in list(_CATEGORIES)[_LIMIT // 2 :]:
                _CATEGORIES.pop(known, None)
        found = _CATEGORIES[kind] = _category(kind, value)
    return found


def _category(kind: type, value: Any) -> str:
    if issubclass(kind, Handle):
        return "variable"
    if isinstance(value, Tracer):
        return "unknown"
    if isinstance(value, jax.Array):
        return "array"
    for base, name in ((np.generic, "numpy"), (np.dtype, "atom"), (Enum, "member"), (types.ModuleType, "module")):
        if issubclass(kind, base):
            return name
    if issubclass(kind, type):
        return "type"
    if is_plain_tuple(kind):
        return "named tuple"
    home = kind.__module__.split(".")[0]
    if home in {"tape", "interop"}:
        return "own" if kind.__module__ in {"tape.callables.higher_order", "tape.modes"} else "library"
    if kind.__module__ == _POLICY.__module__ != "builtins":  # what checkpoint_policies makes
        return "own"
    if home in {"jax", "jaxlib", "numpy", "builtins", "functools", "itertools", "operator"}:
        return "library"
    return "object" if type(kind) in (type, ABCMeta) and all(_in_python(cls) for cls in kind.__mro__[:-1]) else "unknown"


def _in_python(cls: type) -> bool:
    slots = vars(cls).get("__slots__", ())
    names = {slots} if isinstance(slots, str) else set(slots)
    return all(name in names for name, held in vars(cls).items() if isinstance(held, _COMPILED)) and cls.__module__ != "builtins"


def is_plain_tuple(kind: Any) -> bool:
    """Tell whether a class is a named tuple without methods of its own."""
    return kind.__bases__ == (tuple,) and "_fields" in vars(kind) and _TUPLE.union(kind._fields).issuperset(vars(kind))


def held_by_class(kind: type, name: str) -> Any:
    """Return what a class or one of its bases holds under a name, as it is there."""
    for cls in kind.__mro__[:-1]:
        if name in vars(cls):
            return vars(cls)[name]
    return MISSING


def contents(value: Any) -> dict[str, Any]:
    """Return the attributes that an object holds itself."""
    found = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__[:-1]:
        for name, slot in list(vars(cls).items()):
            if isinstance(slot, types.MemberDescriptorType):
                held = in_slot(slot, value)
                if held is not MISSING:
                    found[name] = held
    return found


def in_slot(slot: types.MemberDescriptorType, value: Any) -> Any:
    """Return what an object holds in a slot."""
    try:
        return slot.__get__(value)
    except AttributeError:
        return MISSING


def fields_of(tree: Any) -> frozenset[str] | None:
    """Return the names of the fields in a tree of arguments; None where it has nodes of other classes than Python's containers."""
    found: set[str] = set()
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
            found.update(kind._fields)
        stack += node.children()
    return frozenset(found)


def is_enumeration(value: Any) -> bool:
    """Tell whether a value is a class of named constants."""
    return isinstance(value, EnumMeta)
