"""Vector-Jacobian and Jacobian-vector products of functions of one pytree; the operators are made of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from interop.autograd import trees
from interop.autograd.primitives import (
    def_linear,
    defjvp,
    defjvp_argnum,
    defjvp_argnums,
    defvjp,
    defvjp_argnum,
    defvjp_argnums,
    primitive_vjps,
)
from interop.autograd.primitives import with_deprecated_methods as primitive
from interop.autograd.tracing import Call, flatten, plain, scope, unflatten
from interop.autograd.trees import is_variable
from interop.autograd.vspaces import VSpace, vspace
from tape.errors import TapeTypeError
from tape.graph import constants
from tape.transforms.forward import Linear, zeros

__all__ = [
    "VSpace",
    "def_linear",
    "defjvp",
    "defjvp_argnum",
    "defjvp_argnums",
    "defvjp",
    "defvjp_argnum",
    "defvjp_argnums",
    "make_jvp",
    "make_vjp",
    "primitive",
    "primitive_vjps",
    "vspace",
]


def make_vjp(fun: Callable[[Any], Any], x: Any) -> tuple[Callable[[Any], Any], Any]:
    """Return the function that pulls cotangents of ``fun(x)`` back to ``x``, and ``fun(x)``.

    Args:
        fun: a function of one pytree of floats and arrays.
        x: where to differentiate.

    Example:
        >>> from interop.autograd.core import make_vjp
        >>> vjp, y = make_vjp(lambda x: x * x, 3.0)
        >>> float(y), float(vjp(1.0))
        (9.0, 6.0)

    """
    with scope():
        call = Call(fun, x)
        if not call.connected:
            call.warn()

        def vjp(g: Any) -> Any:
            with scope():
                return call.pull(like(g, call.outputs, call.output_tree), retain=True)

        return vjp, call.answer()


def make_jvp(fun: Callable[[Any], Any], x: Any) -> Callable[[Any], tuple[Any, Any]]:
    """Return the function that pushes a tangent of ``x`` forward: it returns ``fun(x)`` and the tangent of that.

    Args:
        fun: a function of one pytree of floats and arrays.
        x: where to differentiate.

    Example:
        >>> from interop.autograd.core import make_jvp
        >>> y, dy = make_jvp(lambda x: x * x, 3.0)(1.0)
        >>> float(y), float(dy)
        (9.0, 6.0)

    """

    def jvp(g: Any) -> tuple[Any, Any]:
        with scope():
            call = Call(fun, x)
            tangents = like(g, call.inputs, call.tree)
            if call.connected:
                pushed = Linear(call).push(tangents)  # type: ignore[arg-type]
            else:
                call.warn()
                pushed = [zeros(v, None) for v in call.outputs]
            return call.answer(), unflatten(call.output_tree, pushed if call.differentiated(tangents) else [plain(v) for v in pushed])

    return jvp


def like(given: Any, variables: list[Any], tree: Any) -> list[Any]:
    """Return (co)tangents as a list: one of the shape and dtype of each of these Variables."""
    try:
        leaves = flatten(given)[0] if tree is None else trees.leaves_like(tree, given)
    except ValueError:
        leaves = []
    if len(leaves) != len(variables):
        msg = f"a (co)tangent must have the structure of what it belongs to ({len(variables)} arrays), got {given!r}"
        raise TapeTypeError(msg)
    return [_fitting(g, v) for g, v in zip(leaves, variables, strict=True)]


def _fitting(g: Any, v: Any) -> Any:
    if is_variable(g):
        g = g if g.dtype == v.dtype or (v.dtype.kind != "c" and g.dtype.kind == "c") else g.astype(v.dtype)
        return g if g.shape == v.shape or g.size != 1 or v.size != 1 else g.reshape(v.shape)
    array = np.asarray(g)
    if array.dtype.kind == "c" and v.dtype.kind != "c":
        array = array.real
    array = array.astype(v.dtype)
    if array.shape != v.shape:
        if array.size != 1:
            msg = f"a (co)tangent has shape {array.shape}, but what it belongs to has shape {v.shape}"
            raise TapeTypeError(msg)
        array = np.broadcast_to(array.reshape(()), v.shape)
    return constants.known_operand(array)
