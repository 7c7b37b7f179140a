"""Patterns of arguments: by them the next call like the latest one is recognised, without flattening trees.

A pattern is what a value is to be (an array of some shape and dtype, a Variable of some kind, a number, a static value, or a container of
such), its class, and what else is compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tape.recording.segment import Handle

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Pattern", "match", "pattern", "static_pattern"]

Pattern = tuple[int, Any, Any]

_ARRAY, _VARIABLE, _NUMBER, _NUMPY, _STATIC, _SEQUENCE, _MAPPING = range(7)


def static_pattern(x: Any) -> Pattern:
    """Return the pattern of an argument that is part of the program."""
    return (_STATIC, type(x), x)


def pattern(x: Any) -> Pattern | None:
    """Return the pattern of an argument; None for what only JAX takes apart."""
    kind = type(x)
    if isinstance(x, Handle):
        return (_VARIABLE, kind, x._place.kind)
    if isinstance(x, jax.Array):
        return (_ARRAY, kind, x.aval)
    if isinstance(x, np.ndarray):
        return (_NUMPY, kind, (x.shape, x.dtype))
    if isinstance(x, (bool, int, float, complex, np.generic)):
        return (_NUMBER, kind, None)
    if x is None:
        return static_pattern(x)
    if kind is list or kind is tuple or (isinstance(x, tuple) and hasattr(kind, "_fields")):
        found = _patterns(x)
        return None if found is None else (_SEQUENCE, kind, found)
    if kind is dict:
        keys = sorted(x)  # as JAX flattens it, which took it before
        found = _patterns([x[k] for k in keys])
        return None if found is None else (_MAPPING, kind, (keys, found))
    return None


def _patterns(items: Iterable[Any]) -> list[Pattern] | None:
    found = [pattern(x) for x in items]
    return None if None in found else found  # type: ignore[return-value]


def match(given: Iterable[Any], patterns: Sequence[Pattern], arrays: list[Any], variables: list[Any]) -> bool:
    """Tell whether values fit patterns, as many; put their leaves into ``arrays`` and ``variables``, in the order in which JAX flattens them."""
    for x, (check, kind, what) in zip(given, patterns, strict=True):
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
            if len(x) != len(what) or not match(x, what, arrays, variables):
                return False
        elif check == _MAPPING:
            keys, inner = what
            if len(x) != len(keys) or any(k not in x for k in keys) or not match([x[k] for k in keys], inner, arrays, variables):
                return False
        elif x is not what and x != what:
            return False
    return True
