"""Primitives under JAX's transformations: JAX, too, has their derivatives from the rules, and not from their bodies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from interop.autograd import trees
from interop.lower import lower
from tape import jaxapi
from tape.variables.variable import Variable


def holds_tracers(args: tuple[Any, ...]) -> bool:
    """Tell whether there are JAX's tracers among arguments, or in containers among them."""
    flat = trees.flatten(args)[0] if any(isinstance(x, (tuple, list, dict)) for x in args) else args
    return any(isinstance(x, jaxapi.Tracer) for x in flat)


def with_variables(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments with Variables in the places of tracers, beside those that there are."""
    traced = trees.map_leaves(lambda x: Variable(x) if isinstance(x, jaxapi.Tracer) else x, args)
    return tuple(traced)


def lowered(primitive: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a primitive of tracers with Variables in their places; what comes back are arrays whose derivative is that of the rules."""
    leaves, tree = trees.flatten(args)
    places = [i for i, x in enumerate(leaves) if isinstance(x, jaxapi.Tracer)]

    def call(*traced: Any) -> Any:
        given = dict(zip(places, traced, strict=True))
        return primitive(*trees.unflatten(tree, [given.get(i, x) for i, x in enumerate(leaves)]), **kwargs)

    run: Callable[..., Any] = lower(call)
    return run(*[leaves[i] for i in places])
