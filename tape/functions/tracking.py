"""Tracking: the array arguments of a call of a ``tape.Function``, found in pytrees, numbered and named."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tape.graph.segment import Handle
from tape.recording import record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ARRAYS", "Arguments", "dimensions", "is_variable", "names", "refilled"]

ARRAYS = (jax.Array, np.ndarray)


def is_variable(x: Any) -> bool:
    """Tell whether ``x`` is a Variable: a leaf of the pytrees of users."""
    return isinstance(x, Handle)


class Arguments:
    """The arguments of one call, arrays among them as Variables.

    Attributes:
        args, kwargs: what the forward is called with.
        inputs: the Variables, positional ones in order, then those of keywords in the order of the call.

    """

    __slots__ = ("args", "inputs", "kwargs", "parts")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args: Sequence[Any] = args
        self.kwargs = kwargs
        self.inputs: list[Any] = []
        self.parts: list[tuple[int | str, Any, list[bool]]] | None = None  # for each argument: its name or number, tree, and arrays in it
        if kwargs or not all(isinstance(x, Handle) for x in args):
            self.parts = []
            self.args = [self._walk(i, x) for i, x in enumerate(args)]
            self.kwargs = {k: self._walk(k, x) for k, x in kwargs.items()}
        else:
            self.inputs.extend(args)

    def _walk(self, key: int | str, value: Any) -> Any:
        if isinstance(value, Handle):
            self.inputs.append(value)
            self.parts.append((key, None, [True]))  # type: ignore[union-attr]
            return value
        leaves, tree = jax.tree.flatten(value, is_leaf=is_variable)
        found = []
        for i, x in enumerate(leaves):
            made = record.constant(x) if isinstance(x, ARRAYS) else x
            found.append(isinstance(made, Handle))
            if found[-1]:
                leaves[i] = made
                self.inputs.append(made)
        self.parts.append((key, tree, found))  # type: ignore[union-attr]
        return jax.tree.unflatten(tree, leaves) if True in found else value

    def stripped(self) -> list[tuple[int | str, Any, list[Any]]]:
        """Return the arguments without their arrays: what JAX keeps of us may hold no tracer."""
        if self.parts is None:
            return [(i, None, [_ARRAY]) for i in range(len(self.args))]
        found = []
        for key, tree, flags in self.parts:
            value = self.args[key] if isinstance(key, int) else self.kwargs[key]
            leaves = [value] if tree is None else jax.tree.leaves(value, is_leaf=is_variable)
            found.append((key, tree, [_ARRAY if flag else x for x, flag in zip(leaves, flags, strict=True)]))
        return found


_ARRAY = object()


def refilled(stripped: Sequence[tuple[int | str, Any, list[Any]]], values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return stripped arguments with ``values`` in the places of their arrays."""
    it = iter(values)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for key, tree, leaves in stripped:
        filled = [next(it) if x is _ARRAY else x for x in leaves]
        value = filled[0] if tree is None else jax.tree.unflatten(tree, filled)
        if isinstance(key, int):
            args.append(value)
        else:
            kwargs[key] = value
    return args, kwargs


def dimensions(stripped: Sequence[tuple[int | str, Any, list[Any]]], axes: Sequence[int | None]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the axes of arrays in the places that these have in the arguments, positional and by name; None for what is no array."""
    it = iter(axes)
    found: dict[int | str, Any] = {}
    for key, tree, leaves in stripped:
        filled = [next(it) if x is _ARRAY else None for x in leaves]
        found[key] = filled[0] if tree is None else jax.tree.unflatten(tree, filled)
    return tuple([x for key, x in found.items() if isinstance(key, int)]), {key: x for key, x in found.items() if isinstance(key, str)}


def names(parts: Any, count: int, forward: Callable[..., Any]) -> list[str]:
    """Return what the user calls each of ``count`` array arguments: ``x``, ``params['w']``."""
    positional = _parameters(forward)
    if parts is None:
        return [_name(i, positional) for i in range(count)]
    found = []
    for key, tree, flags in parts:
        name = _name(key, positional)
        if tree is None:
            found.append(name)
            continue
        paths = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(tree, range(len(flags))))[0]
        found.extend(name + jax.tree_util.keystr(path) for (path, _), flag in zip(paths, flags, strict=True) if flag)
    return found


def _name(key: int | str, positional: list[str]) -> str:
    if isinstance(key, str):
        return key
    return positional[key] if key < len(positional) else f"*args[{key}]"


def _parameters(forward: Callable[..., Any]) -> list[str]:
    """Names of the positional parameters after ``ctx``."""
    try:
        parameters = inspect.signature(forward).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][1:]
