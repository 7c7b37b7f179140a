"""What the Python of a ``tape.Function`` returns: outputs, gradients and tangents, checked before anything changes.

A message names the function and the position, and for an argument its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from tape.errors import GradientDtypeError, GradientShapeError, RuleError, TapeTypeError
from tape.functions.tracking import is_variable, names
from tape.graph.kinds import differentiable
from tape.graph.segment import Handle
from tape.recording import record

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["checked_gradients", "checked_tangents", "outputs_of"]

_NUMBERS = (int, float, complex)
_VALUES = (Handle, jax.Array, np.ndarray, np.generic, *_NUMBERS)


def outputs_of(function: Any, result: Any, method: str = "forward") -> tuple[list[Any], Any]:
    """Return the outputs of a forward (or ``vmap``) as Variables, and their tree (None for one Variable)."""
    if isinstance(result, Handle):
        return [result], None
    leaves, tree = jax.tree.flatten(result, is_leaf=is_variable)
    for i, x in enumerate(leaves):
        if not isinstance(x, _VALUES):
            where = "" if len(leaves) == 1 else f" as output {i}"
            repair = "keep anything else in ctx" if method == "forward" else "return the outputs of forward as batches"
            msg = f"{function.__name__}.{method} must return Variables or arrays, got {type(x).__name__}{where}; {repair}"
            raise TapeTypeError(msg)
    if not leaves:
        msg = f"{function.__name__}.{method} must return Variables or arrays, got {type(result).__name__} without any; return at least one"
        raise TapeTypeError(msg)
    return [x if isinstance(x, Handle) else record.constant(x) for x in leaves], tree


def checked_gradients(function: Any, given: Any, avals: tuple[Any, ...], parts: Any) -> list[Any]:
    """Return what a backward gave as one Variable or None per array argument.

    Args:
        function: the ``tape.Function``.
        given: what its backward returned.
        avals: shapes and dtypes of the array arguments.
        parts: how they lie in the arguments.

    Raises:
        RuleError: their number differs.
        GradientShapeError, GradientDtypeError: a gradient has another shape, dtype or type than its argument.

    """
    listed = given if isinstance(given, (tuple, list)) else (given,)
    if len(listed) != len(avals):
        msg = (
            f"{function.__name__}.backward returned {len(listed)} gradients for {len(avals)} array arguments "
            f"({', '.join(names(parts, len(avals), function.forward))}); return one per argument, None where no gradient flows"
        )
        raise RuleError(msg)

    def owner(i: int) -> str:
        return f"argument {i}, which has {{}} and is {names(parts, len(avals), function.forward)[i]!r} of forward"

    return [_checked(function, "backward", "gradient", i, x, aval, owner) for i, (x, aval) in enumerate(zip(listed, avals, strict=True))]


def checked_tangents(function: Any, given: Any, avals: tuple[Any, ...]) -> list[Any]:
    """Return what a ``jvp`` gave as one Variable or None per output; as :func:`checked_gradients`."""
    listed = given if isinstance(given, (tuple, list)) else (given,)
    if len(listed) != len(avals):
        msg = (
            f"{function.__name__}.jvp returned {len(listed)} tangents for {len(avals)} outputs; return one per output, None where the output "
            "does not change"
        )
        raise RuleError(msg)

    def owner(i: int) -> str:
        return f"output {i}, which has {{}}"

    return [_checked(function, "jvp", "tangent", i, x, aval, owner) for i, (x, aval) in enumerate(zip(listed, avals, strict=True))]


def _checked(function: Any, method: str, what: str, i: int, value: Any, aval: Any, owner: Callable[[int], str]) -> Any:
    """Return one gradient or tangent as a Variable of its owner's shape and dtype."""
    if value is None or not differentiable(aval):
        return None
    name = f"{function.__name__}.{method}"
    if not isinstance(value, Handle):
        if not isinstance(value, _VALUES):
            msg = f"{name} returned {type(value).__name__} as the {what} of {owner(i).format('shape ' + str(aval.shape))}; return a Variable, an array or None"
            raise GradientDtypeError(msg)
        scalar = isinstance(value, _NUMBERS) and not isinstance(value, np.generic)
        if scalar and isinstance(value, complex) and not jnp.issubdtype(aval.dtype, jnp.complexfloating):
            msg = f"{name} returned the complex number {value} as the {what} of {owner(i).format('dtype ' + str(aval.dtype))}; return its real part"
            raise GradientDtypeError(msg)
        value = record.constant(jnp.asarray(value, aval.dtype) if scalar else value)
    found = value._place.kind.aval
    if found.shape != aval.shape:
        msg = (
            f"{name} returned a {what} of shape {found.shape} for {owner(i).format('shape ' + str(aval.shape))}; return the shape of what it "
            "belongs to (sum over what was broadcast)"
        )
        raise GradientShapeError(msg)
    if found.dtype != aval.dtype:
        msg = f"{name} returned a {what} of dtype {found.dtype} for {owner(i).format('dtype ' + str(aval.dtype))}; cast it with .astype"
        raise GradientDtypeError(msg)
    return value
