"""Patterns of arguments: by them a call like the latest one is recognised, without flattening trees.

A pattern is what a value is to be (an array of some shape and dtype, a Variable of some kind, a number, a static value, or a container of
such), its class, and what else is compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tape.graph.segment import Handle

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

__all__ = ["Latest", "latest"]

_Pattern = tuple[int, Any, Any]

_ARRAY, _VARIABLE, _NUMBER, _NUMPY, _STATIC, _SEQUENCE, _MAPPING = range(7)


class Latest:
    """The arguments of the latest call of a function, as patterns."""

    __slots__ = ("_length", "_names", "_ordered", "_patterns")

    def __init__(self, patterns: Sequence[_Pattern], length: int, names: tuple[str, ...]) -> None:
        self._patterns = patterns
        self._length = length  # of the positional arguments
        self._names = names
        self._ordered = sorted(names)  # as JAX flattens dictionaries

    def recognises(self, args: tuple[Any, ...], kwargs: dict[str, Any], arrays: list[Any], variables: list[Any]) -> bool:
        """Tell whether a call is like it, but for values; if so, put arrays (and numbers) and Variables into lists, in JAX's order."""
        if len(args) != self._length or tuple(kwargs) != self._names:
            return False
        given = (*args, *[kwargs[k] for k in self._ordered]) if kwargs else args
        return _match(given, self._patterns, arrays, variables)


def latest(args: tuple[Any, ...], kwargs: dict[str, Any], static: Collection[int | str] = ()) -> Latest | None:
    """Return what calls like this one are recognised by; None if one of its arguments is taken apart by JAX alone.

    Args:
        args: the positional arguments.
        kwargs: those by name.
        static: positions and names of arguments that are compared by value.

    """
    found: list[_Pattern] = []
    for k, x in (*enumerate(args), *sorted(kwargs.items())):
        made = (_STATIC, type(x), x) if k in static else _pattern(x)
        if made is None:
            return None
        found.append(made)
    return Latest(found, len(args), tuple(kwargs))


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
        found = _patterns(x)
        return None if found is None else (_SEQUENCE, kind, found)
    if kind is dict:
        keys = sorted(x)  # as JAX flattens it, which took it before
        found = _patterns([x[k] for k in keys])
        return None if found is None else (_MAPPING, kind, (keys, found))
    return None


def _patterns(items: Iterable[Any]) -> list[_Pattern] | None:
    found = [_pattern(x) for x in items]
    return None if None in found else found  # type: ignore[return-value]


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
            keys, inner = what
            if len(x) != len(keys) or any(k not in x for k in keys) or not _match([x[k] for k in keys], inner, arrays, variables):
                return False
        elif x is not what and x != what:
            return False
    return True
