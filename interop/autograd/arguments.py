"""Arguments of primitives: what holds Variables, and is given other values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interop.autograd import trees
from interop.autograd.lowering import holds_tracers
from interop.autograd.tracing import plain
from interop.autograd.trees import is_variable
from tape import jaxapi
from tape.variables.variable import Variable


def holds_variables(x: Any) -> bool:
    """Tell whether something is a Variable, or a container with one in it."""
    if is_variable(x):
        return True
    if isinstance(x, dict):
        return any(map(holds_variables, x.values()))
    return isinstance(x, (tuple, list)) and any(map(holds_variables, x))


_TRACED = object()


class Arguments:
    """The arguments of one call: a template, and the Variables in it; of those by name, JAX's tracers count as such, and come last."""

    __slots__ = ("args", "keywords", "kwargs", "places", "trees", "variables")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args = args
        self.kwargs = kwargs
        self.places: list[int] = []  # of the arguments that hold Variables
        self.trees: list[tuple[Any, list[Any]]] = []  # their structures and leaves; None where a Variable was
        self.variables: list[Any] = []
        for i, x in enumerate(args):
            if not holds_variables(x):
                continue
            leaves, tree = trees.flatten(x)
            self.places.append(i)
            self.trees.append((tree, [None if is_variable(leaf) else leaf for leaf in leaves]))
            self.variables += [leaf for leaf in leaves if is_variable(leaf)]
        self.args = tuple([None if i in self.places else x for i, x in enumerate(args)])
        self.keywords: list[str] = []  # the name of the argument that each of the last Variables stands in
        if holds_tracers(tuple(kwargs.values())):
            named = [(k, x) for k, given in kwargs.items() for x in trees.flatten(given)[0] if isinstance(x, jaxapi.Tracer)]
            self.keywords = [k for k, _ in named]
            self.variables += [Variable(x, requires_grad=False) for _, x in named]
            marked = [trees.map_leaves(lambda x: _TRACED if isinstance(x, jaxapi.Tracer) else x, given) for given in kwargs.values()]
            self.kwargs = dict(zip(kwargs, marked, strict=True))

    def filled(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with these values in the places of the Variables."""
        it = iter(values)
        filled = list(self.args)
        for i, (tree, leaves) in zip(self.places, self.trees, strict=True):
            filled[i] = trees.unflatten(tree, [next(it) if leaf is None else leaf for leaf in leaves])
        if not self.keywords:
            return tuple(filled), self.kwargs

        def value(x: Any) -> Any:
            return plain(next(it)) if x is _TRACED else x

        return tuple(filled), {k: trees.map_leaves(value, given) for k, given in self.kwargs.items()}

    def taken(self, gradients: Sequence[Any]) -> list[Any]:
        """Return what stands in the places of the Variables, of one tree per argument that holds some (None: nothing flows)."""
        taken: list[Any] = []
        for (tree, leaves), given in zip(self.trees, gradients, strict=True):
            if given is None:
                taken += [None for leaf in leaves if leaf is None]
                continue
            values = trees.leaves_like(tree, given)
            taken += [value for leaf, value in zip(leaves, values, strict=True) if leaf is None]
        return [*taken, *[None] * len(self.keywords)]
