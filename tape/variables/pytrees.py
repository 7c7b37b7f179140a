"""Variables as pytrees: how they pass into JAX transformations, and out of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tape.ops.kinds import Place, kind_of
from tape.ops.pullback import differentiable
from tape.programs.program import look
from tape.recording import boundary
from tape.recording.record import handle

if TYPE_CHECKING:
    from tape.recording.segment import Handle

__all__ = ["register"]


def register(variable_type: type[Handle]) -> None:
    """Tell JAX how Variables are taken apart and put together."""
    jax.tree_util.register_pytree_node(variable_type, _flatten, _unflatten)


_OPAQUE = jax.core.ShapedArray((), np.dtype(bool))


def _flatten(variable: Any) -> tuple[tuple[Any, ...], Any]:
    boundary.taking(variable)
    return (look(variable),), (variable.requires_grad, variable.name)


def _unflatten(static: tuple[bool, str | None], children: Any) -> Any:
    """Rebuild a Variable in or behind a JAX transformation.

    Inside, where the value is a tracer, the flag is kept, so that raw JAX functions refuse it; what comes back out is a constant.
    """
    (value,) = children
    requires_grad, name = static
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        made = handle(None, Place(-1, kind_of(_OPAQUE)), [value])  # a placeholder of some tree function
    else:
        aval = jax.typeof(value) if isinstance(value, jax.Array) else jax.core.ShapedArray(value.shape, value.dtype)
        keeps = requires_grad and isinstance(value, jax.core.Tracer) and differentiable(aval)
        made = handle(None, Place(-1, kind_of(aval, requires_grad=keeps, unrecorded=not keeps and boundary.brought(aval))), [value])
    if name is not None:
        made.name = name
    return made
