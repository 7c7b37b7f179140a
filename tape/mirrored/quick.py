"""Quick keys: a call that looks like a former one is recognised by the types and static values of its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tape.graph.kinds import NUMBERS, SMALL
from tape.graph.segment import Handle
from tape.recording import record
from tape.recording.template import ARRAY, NUMBER, SEQUENCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tape.mirrored.roles import Roles

_PLAIN = frozenset({bool, int, float, str, type(None)})


def quick_key(roles: Roles, args: tuple[object, ...], kwargs: dict[str, object], variables: list[Any]) -> tuple[object, ...] | None:
    """Return a cheap key of a call and append its inputs to ``variables``; None where the call needs the full split."""
    key: list[object] = []
    for i, a in enumerate(args):
        if isinstance(a, Handle):
            variables.append(a)
            key.append(ARRAY)
        elif not _quick(key, a, variables, roles.scalars and roles.at(i)):
            return None
    for k, a in kwargs.items():
        key.append(k)
        if isinstance(a, Handle):
            variables.append(a)
            key.append(ARRAY)
        elif not _quick(key, a, variables, roles.scalars and roles.names.get(k, False)):
            return None
    return tuple(key)


def _quick(key: list[object], a: Any, variables: list[Any], takes_array: int) -> bool:
    """Append what is needed of one argument that is not a Variable."""
    kind = type(a)
    if kind in _PLAIN:
        if takes_array and kind in NUMBERS:
            variables.append(a)
            key.append(NUMBER)
        elif kind is float and a == 0.0:
            return False
        else:
            key.append(kind)
            key.append(a)
        return True
    if kind is tuple or kind is list:
        return _quick_items(key, a, variables, takes_array == SEQUENCE)
    if takes_array and isinstance(a, np.generic):
        variables.append(a)
        key.append(NUMBER)
        return True
    if isinstance(a, (type, np.dtype)):
        key.append(kind)
        key.append(a)
        return True
    if isinstance(a, (jax.Array, np.ndarray)):
        if isinstance(a, np.ndarray) and a.dtype == object:
            return False
        variables.append(record.operand(a))
        key.append(ARRAY)
        return True
    return False


def _quick_items(key: list[object], items: Sequence[Any], variables: list[Any], take_arrays: bool) -> bool:
    """Append a sequence of Variables, numbers, axes, names, or further sequences."""
    key.append(type(items))
    key.append(len(items))
    for item in items:
        kind = type(item)
        if take_arrays and (kind in NUMBERS or isinstance(item, np.generic)):
            if kind is int and not -SMALL <= item < SMALL:
                return False
            variables.append(item)
            key.append(NUMBER)
        elif kind is int or kind is str:
            key.append(item)
        elif isinstance(item, Handle):
            variables.append(item)
            key.append(ARRAY)
        elif not ((kind is tuple or kind is list) and _quick_items(key, item, variables, take_arrays)):
            return False
    return True
