"""Methods: the functions of a user's that a class holds, and which of them may be called without being named."""

from __future__ import annotations

import inspect
import operator
import types
from collections.abc import Sequence
from typing import Any

from tape.bounded import Bounded
from tape.callables.objects import of_a_library
from tape.graph.lines import is_foreign, is_installed


def methods(kind: type) -> Sequence[tuple[str, bool, types.FunctionType]]:
    """Return the functions of the user's in a class: their names, whether they are called without being named, and themselves.

    Those are special methods, and any in a class that is derived from a library's, which knows their names.
    """
    contents = [x for base in kind.__mro__ for x in vars(base).values()]
    known = _METHODS.get(kind)
    if known is None or len(known[0]) != len(contents) or not all(map(operator.is_, known[0], contents)):  # a method was put there
        known = _METHODS[kind] = contents, _methods(kind)
    return known[1]


_METHODS: Bounded[type, tuple[list[Any], Sequence[tuple[str, bool, types.FunctionType]]]] = Bounded("methods of classes", 4096)


def _methods(kind: type) -> Sequence[tuple[str, bool, types.FunctionType]]:
    foreign = any(of_a_library(base.__module__) or is_installed(base) for base in kind.__mro__ if base.__module__ not in _BARE)
    functions = []
    for base in () if of_a_library(kind.__module__) else kind.__mro__:
        for name, held in vars(base).items():
            for x in (held, *[getattr(held, part, None) for part in ("fget", "fset", "func")]):
                function = getattr(x, "__func__", x)
                inner = inspect.unwrap(function) if isinstance(function, types.FunctionType) else getattr(function, "__wrapped__", None)
                if not isinstance(inner, types.FunctionType) or is_installed(inner) or not is_foreign(inner.__code__.co_filename):
                    continue
                special = name.startswith("__")
                if not (special and inner.__code__.co_filename == "<string>"):  # which a dataclass has written
                    functions.append((name, foreign or special, function))
    return functions


_BARE = frozenset({"builtins", "abc", "typing", "enum", "collections"})  # classes of which call special methods at most
