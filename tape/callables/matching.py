"""Patterns of arguments: by them a call like the latest one is recognised, without flattening trees.

A pattern is what a value is to be (an array of some shape and dtype, a Variable of some kind, a number, a static value, or a container of
such), its class, and what else is compared.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from tape.graph.segment import Handle

_Pattern = tuple[int, Any, Any]

_ARRAY, _VARIABLE, _NUMBER, _NUMPY, _STATIC, _SEQUENCE, _MAPPING, _TOLD = range(8)


def told_apart(x: Any) -> Hashable:
    """Return a static value as a key that no other one equals: 2 is not 2.0, nor True 1, also inside of tuples, and zero has a sign."""
    kind = type(x)
    if isinstance(x, tuple):
        return (kind, x, tuple([told_apart(item) for item in x]))
    return (kind, x, repr(x)) if isinstance(x, (float, complex)) else (kind, x)


class Latest:
    """The arguments of the latest call of a function, as patterns; those whose names or positions are ``static`` are compared by value."""

    __slots__ = ("_length", "_names", "_ordered", "_patterns")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], static: Collection[int | str] = ()) -> None:
        self._names = tuple(kwargs)
        self._ordered = sorted(kwargs)  # as JAX flattens dictionaries
        given = (*enumerate(args), *[(k, kwargs[k]) for k in self._ordered])
        patterns = _all([(_TOLD, type(x), told_apart(x)) if k in static else _pattern(x) for k, x in given])
        self._patterns = patterns or []
        self._length = -1 if patterns is None else len(args)  # of the positional arguments; no call is like one that JAX alone takes apart

    def recognises(self, args: tuple[Any, ...], kwargs: dict[str, Any], arrays: list[Any], variables: list[Any]) -> bool:
        """Tell whether a call is like it, but for values; if so, put arrays (and numbers) and Variables into lists, in JAX's order."""
        if len(args) != self._length or tuple(kwargs) != self._names:
            return False
        given = (*args, *[kwargs[k] for k in self._ordered]) if kwargs else args
        return _match(given, self._patterns, arrays, variables)


def _pattern(x: Any) -> _Pattern | None:
    kind = type(x)
    if isinstance(x, Handle):
        return (_VARIABLE, kind, x._place.kind) if x._original is None else None
    if isinstance(x, jax.Array):
        return (_ARRAY, kind, x.aval)
    if isinstance(x, np.ndarray):
        return (_NUMPY, kind, (x.shape, x.dtype))
    if isinstance(x, (bool, int, float, complex, np.generic)):
        return (_NUMBER, kind, None)
    if x is None or isinstance(x, (str, jax.tree_util.PyTreeDef)):
        return (_STATIC, kind, x)
    if kind is list or kind is tuple or (isinstance(x, tuple) and hasattr(kind, "_fields")):
        items = _all([_pattern(item) for item in x])
        return None if items is None else (_SEQUENCE, kind, items)
    if kind is dict:
        keys = sorted(x)  # as JAX flattens it, which took it before
        items = _all([_pattern(x[k]) for k in keys])
        return None if items is None else (_MAPPING, kind, ([*x], keys, items))
    return None


def _all(patterns: list[_Pattern | None]) -> list[_Pattern] | None:
    return None if None in patterns else patterns  # type: ignore[return-value]


def _match(given: Iterable[Any], patterns: Sequence[_Pattern], arrays: list[Any], variables: list[Any]) -> bool:
    for x, (check, kind, what) in zip(given, patterns):  # noqa: B905 - as many, and quicker not to ask
        if x.__class__ is not kind:
            return False
        if check == _ARRAY:
            if x.aval is not what and x.aval != what:
                return False
            arrays.append(x)
        elif check == _VARIABLE:
            if x._place.kind is not what:
                return False
            variables.append(x)
        elif check == _NUMBER:
            arrays.append(x)
        elif check == _NUMPY:
            if x.shape != what[0] or x.dtype != what[1]:
                return False
            arrays.append(x)
        elif check == _SEQUENCE:
            if len(x) != len(what) or not _match(x, what, arrays, variables):
                return False
        elif check == _MAPPING:
            order, keys, inner = what
            if [*x] != order:
                return False
            if not _match([x[k] for k in keys], inner, arrays, variables):
                return False
        elif check == _TOLD:
            if told_apart(x) != what:
                return False
        elif x is not what and x != what:
            return False
    return True
