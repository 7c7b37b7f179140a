"""Gradients and vector-Jacobian products of functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, ParamSpec, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.errors import TapeTypeError
from tape.graph.kinds import differentiable
from tape.graph.segment import Handle
from tape.graph.trees import flatten
from tape.recording import record
from tape.sweeps.differentiation import gradients
from tape.sweeps.seeds import seed_of
from tape.transforms.inputs import Call, check_callable, check_transformed, positions
from tape.variables.variable import Variable

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@overload
def value_and_grad(
    fun: Callable[P, R],
    argnums: int | Sequence[int] = ...,
    has_aux: Literal[False] = ...,
    holomorphic: bool = ...,
    allow_int: bool = ...,
) -> Callable[P, tuple[R, Any]]: ...
@overload
def value_and_grad(
    fun: Callable[P, tuple[R, T]],
    argnums: int | Sequence[int] = ...,
    *,
    has_aux: Literal[True],
    holomorphic: bool = ...,
    allow_int: bool = ...,
) -> Callable[P, tuple[tuple[R, T], Any]]: ...
@overload
def value_and_grad(
    fun: Callable[P, Any], argnums: int | Sequence[int] = ..., has_aux: bool = ..., holomorphic: bool = ..., allow_int: bool = ...
) -> Callable[P, tuple[Any, Any]]: ...
def value_and_grad(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False, allow_int: bool = False
) -> Callable[..., Any]:
    """Return a function that computes ``fun`` and its gradient.

    Args:
        fun: a function of the tape (over ``tape.numpy``, or operators alone) that returns one number.
        argnums: which positional arguments (pytrees) to differentiate.
        has_aux: ``fun`` returns ``(output, aux)``.
        holomorphic: inputs and output are complex and ``fun`` is holomorphic.
        allow_int: integer and boolean inputs are accepted; their gradients are zeros of dtype ``float0``.

    Returns:
        A function with ``fun``'s arguments that returns ``(value, gradient)`` or ``((value, aux), gradient)``.

    Raises:
        TapeTypeError: the output is not one real (or, with ``holomorphic``, complex) number, or an input has no floating dtype.

    Example:
        >>> import tape
        >>> value, gradient = tape.value_and_grad(lambda x: x * x)(3.0)
        >>> float(value), float(gradient)
        (9.0, 6.0)

    """
    return _differentiating("value_and_grad", fun, argnums, has_aux, holomorphic, allow_int)


def _differentiating(
    name: str, fun: Callable[..., Any], argnums: int | Sequence[int], has_aux: bool, holomorphic: bool, allow_int: bool
) -> Callable[..., Any]:
    """Return the function that computes the gradient of one that returns one number, and its value where that is asked for by ``name``."""
    check_transformed(name, fun, argnums)

    @functools.wraps(fun)
    def wrapped(*args: object, **kwargs: object) -> object:
        call = Call("grad", fun, args, kwargs, positions("grad", argnums, len(args)), has_aux=has_aux, allow_int=allow_int)
        _check_scalar(call, holomorphic=holomorphic)
        gradients = pull(call, call.outputs, [None], create_graph=call.nested)
        call.settle()
        if name == "value_and_grad":
            return call.with_aux(call.output()), call.gradient(call.chosen(gradients, argnums))
        return call.with_aux(call.gradient(call.chosen(gradients, argnums)))  # nobody reads the output: it is no result of what runs

    return wrapped


@overload
def grad(
    fun: Callable[P, tuple[Any, T]],
    argnums: int | Sequence[int] = ...,
    *,
    has_aux: Literal[True],
    holomorphic: bool = ...,
    allow_int: bool = ...,
) -> Callable[P, tuple[Any, T]]: ...
@overload
def grad(
    fun: Callable[P, Any], argnums: int | Sequence[int] = ..., has_aux: bool = ..., holomorphic: bool = ..., allow_int: bool = ...
) -> Callable[P, Any]: ...
def grad(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False, allow_int: bool = False
) -> Callable[..., Any]:
    """Return a function that computes the gradient of ``fun``; arguments as for :func:`value_and_grad`.

    Example:
        >>> import tape
        >>> float(tape.grad(tape.grad(lambda x: x**3))(2.0))
        12.0

    """
    return _differentiating("grad", fun, argnums, has_aux, holomorphic, allow_int)


@overload
def vjp(fun: Callable[..., Any], *primals: object, has_aux: Literal[False] = ...) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]: ...
@overload
def vjp(fun: Callable[..., Any], *primals: object, has_aux: Literal[True]) -> tuple[Any, Callable[[Any], tuple[Any, ...]], Any]: ...
def vjp(fun: Callable[..., Any], *primals: object, has_aux: bool = False) -> Any:
    """Return ``fun(*primals)`` and the function that pulls a cotangent of it back to the primals.

    Args:
        fun: a function of the tape over pytrees.
        primals: where to differentiate.
        has_aux: ``fun`` returns ``(output, aux)``.

    Returns:
        ``(output, vjp_fun)`` or ``(output, vjp_fun, aux)``; ``vjp_fun(cotangent)`` returns a tuple with one gradient per primal, and
        can be called any number of times.

    Example:
        >>> import tape
        >>> y, pull = tape.vjp(lambda x: x * x, 3.0)
        >>> float(pull(1.0)[0])
        6.0

    """
    check_callable("vjp", fun)
    call = Call("vjp", fun, primals, {}, range(len(primals)), has_aux=has_aux, allow_int=True)

    def vjp_fun(cotangent: object) -> object:
        seeds, tree = flatten(cotangent)
        if tree != call.output_tree:
            msg = f"vjp: the cotangent has the structure {tree}, but the output has {call.output_tree}"
            raise TapeTypeError(msg)
        nested = call.nested or any(isinstance(s, Handle) and s._place.kind.requires_grad for s in seeds)
        gradients = jax.tree.unflatten(call.tree, pull(call, call.outputs, seeds, create_graph=nested))
        return call.product(gradients, seeds)

    result = call.output(), vjp_fun
    return (*result, call.result(call.aux)) if has_aux else result


def pull(call: Call, roots: Sequence[Variable], seeds: Sequence[object], *, create_graph: bool) -> list[Any]:
    """Gradients of ``roots`` with respect to a call's inputs; zeros where they are not connected."""
    chosen = [(r, s) for r, s in zip(roots, seeds, strict=True) if r._place.kind.requires_grad]
    for i, (root, seed) in enumerate(zip(roots, seeds, strict=True)):  # what reaches no input is checked as well
        if seed is not None and not root._place.kind.requires_grad and differentiable(root._place.kind.aval):
            seed_of(call.name, i, root, seed)
    able = [v for v in call.inputs if v._place.kind.requires_grad]
    if chosen and able:
        roots, seeds = [r for r, _ in chosen], [s for _, s in chosen]
        each = iter(gradients(roots, able, seeds, unconnected="zero", retain_graph=True, create_graph=create_graph))
    else:
        each = iter([record.leaf(jnp.zeros(v.shape, v.dtype)) for v in able])
    return [next(each) if v._place.kind.requires_grad else np.zeros(v.shape, jaxapi.float0) for v in call.inputs]


def _check_scalar(call: Call, *, holomorphic: bool) -> None:
    """Check that the call's output is one number of the right kind."""
    root = call.outputs[0] if len(call.outputs) == 1 else None
    if root is None or root.shape != ():
        shapes = ", ".join(str(v.shape) for v in call.outputs) or "nothing"
        msg = f"grad: the function must return one number (shape ()), got {shapes}; reduce it, or use tape.jacrev or tape.vjp"
        raise TapeTypeError(msg)
    is_complex = jnp.issubdtype(root.dtype, jnp.complexfloating)
    if is_complex and not holomorphic:
        msg = f"grad: the function returned a complex number ({root.dtype}); return its real part, or pass holomorphic=True"
        raise TapeTypeError(msg)
    if holomorphic and not (is_complex and all(jnp.issubdtype(v.dtype, jnp.complexfloating) for v in call.inputs)):
        msg = "grad: holomorphic=True needs complex inputs and a complex output"
        raise TapeTypeError(msg)
    if not jnp.issubdtype(root.dtype, jnp.inexact):
        msg = f"grad: the function returned dtype {root.dtype}; gradients need a floating output"
        raise TapeTypeError(msg)
