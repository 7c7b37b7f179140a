"""Arguments: the arrays among those of a call of a ``tape.Function``, found in pytrees, numbered and named."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from tape.graph.boundary import made_of_looked_at
from tape.graph.segment import Handle
from tape.graph.trees import flatten
from tape.recording import record

ARRAYS = (jax.Array, np.ndarray)
ONE = jax.tree.structure(0)  # the tree of what is not a pytree
Definition = type[Any]  # a subclass of tape.Function


class Layout:
    """How arrays lie in the arguments of a call, without the arrays: what JAX keeps of us may hold no tracer."""

    __slots__ = ("_keys", "_parts")

    def __init__(self, keys: Sequence[int | str], parts: list[tuple[Any, list[Any]]]) -> None:
        self._keys = keys  # the number or name of each argument
        self._parts = parts  # the tree of each, and its leaves with a mark in place of arrays; what holds no array is one leaf

    def filled(self, values: Sequence[object], *, others: bool = True) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return the arguments, positional and by name, with ``values`` in the places of arrays (``others=False``: None in other ones)."""
        if self._keys.__class__ is range:
            return values, {}
        it = iter(values)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for key, (tree, leaves) in zip(self._keys, self._parts, strict=True):
            filled = [next(it) if x is _ARRAY else x if others else jax.tree.map(lambda _: None, x) for x in leaves]
            value = filled[0] if tree is ONE else jax.tree.unflatten(tree, filled)
            if isinstance(key, int):
                args.append(value)
            else:
                kwargs[key] = value
        return args, kwargs

    def names(self, forward: Callable[..., object]) -> list[str]:
        """Return what the user calls each array: ``x``, ``params['w']``."""
        try:
            parameters = inspect.signature(forward).parameters.values()
        except (TypeError, ValueError):
            parameters = ()  # type: ignore[assignment]
        positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][1:]  # after ctx
        names: list[str] = []
        for key, (tree, leaves) in zip(self._keys, self._parts, strict=True):
            name = key if isinstance(key, str) else positional[key] if key < len(positional) else f"*args[{key}]"
            names.extend(name + path for path, x in zip(paths(tree, len(leaves)), leaves, strict=True) if x is _ARRAY)
        return names


_ARRAY = object()
_PLAIN: tuple[Any, list[Any]] = (ONE, [_ARRAY])


def paths(tree: jax.tree_util.PyTreeDef, count: int) -> list[str]:
    """Return where each of the ``count`` leaves of a tree is, as the user would write it."""
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(tree, range(count)))[0]]


@functools.lru_cache(maxsize=64)
def plain(count: int) -> Layout:
    """Return the layout of so many positional Variables."""
    return Layout(range(count), [_PLAIN] * count)


def laid_out(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Layout, list[Handle]]:
    """Return the layout of arguments, and the arrays in it as Variables, in the order of the call."""
    inputs: list[Handle] = []
    parts: list[tuple[Any, list[Any]]] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, Handle):
            inputs.append(value)
            parts.append(_PLAIN)
            continue
        leaves, tree = flatten(value)
        before = len(inputs)
        for i, x in enumerate(leaves):
            if isinstance(x, Handle) or isinstance(x, ARRAYS) or (isinstance(x, np.generic) and made_of_looked_at(x)):  # noqa: SIM101 - quicker
                inputs.append(x if isinstance(x, Handle) else record.constant(x))
                leaves[i] = _ARRAY
        parts.append((tree, leaves) if len(inputs) > before else (ONE, [value]))
    return Layout([*range(len(args)), *kwargs], parts), inputs
