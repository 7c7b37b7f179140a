"""Jacobians and Hessians: one batched sweep, the same as any with a basis of seeds, its VJPs under ``jax.vmap``."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

import jax
import jax.numpy as jnp

from tape.errors import TapeTypeError
from tape.mirrored.mirror import mirrored
from tape.recording import record
from tape.transforms.forward import Linear, check_tuples, jvp, swept, zeros
from tape.transforms.inputs import Call, check_callable, check_transformed, positions
from tape.transforms.reverse import grad
from tape.variables.variable import Variable

P = ParamSpec("P")


def _parts(variables: Sequence[Variable]) -> list[tuple[int, Variable]]:
    """Return several Variables, each with where it begins among the elements of all."""
    return list(zip(itertools.accumulate([v.size for v in variables], initial=0), variables, strict=False))


def _basis(variables: Sequence[Variable]) -> list[Variable]:
    """One standard basis over several Variables: for each, an array of shape (total size, *its shape)."""
    total = sum(v.size for v in variables)
    return [record.leaf(jnp.eye(total, v.size, -start, dtype=v.dtype).reshape(total, *v.shape)) for start, v in _parts(variables)]


def _cut(x: jax.Array, start: int, size: int, shape: tuple[int, ...], last: bool) -> jax.Array:
    """Cut the rows that belong to one Variable out of a batched result and give them its shape (at the end, if ``last``)."""
    x = x[start : start + size]
    return jnp.moveaxis(x, 0, -1).reshape(x.shape[1:] + shape) if last else x.reshape(shape + x.shape[1:])


_piece = mirrored(_cut, "piece")


def _reverse(call: Call) -> list[list[Variable]]:
    total = sum(v.size for v in call.outputs)
    roots = [(r, s) for r, s in zip(call.outputs, _basis(call.outputs), strict=True) if r._place.kind.requires_grad]
    batched = swept(roots, call.inputs, total, create_graph=call.nested) if roots else [zeros(v, total) for v in call.inputs]
    return [[_piece(b, start, out.size, out.shape, last=False) for b in batched] for start, out in _parts(call.outputs)]


def _forward(call: Call) -> list[list[Variable]]:
    columns = Linear(call).push(_basis(call.inputs), sum(v.size for v in call.inputs))
    return [[_piece(column, start, v.size, v.shape, last=True) for start, v in _parts(call.inputs)] for column in columns]


# For each output, the derivatives by each input.  Jacobians find them by name: in a closure they would hide what that is from who looks
# whether a callable is one that was traced before (tape.callables.snapshot).
_ROWS = {"jacrev": _reverse, "jacfwd": _forward}


def jacrev(
    fun: Callable[P, Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False, allow_int: bool = False
) -> Callable[P, Any]:
    """Return a function that computes the Jacobian of ``fun`` by a batched reverse sweep; arguments as for :func:`value_and_grad`.

    Returns:
        A function whose result has the output's tree, each leaf replaced by the tree of the chosen arguments, with arrays of shape
        (output shape, input shape).

    Example:
        >>> import jax.numpy as jnp, tape
        >>> tape.jacrev(lambda x: x * x)(jnp.array([1.0, 2.0]))
        Array([[2., 0.],
               [0., 4.]], dtype=float32)

    """
    return _jacobian("jacrev", fun, argnums, has_aux, holomorphic, allow_int)


def jacfwd(fun: Callable[P, Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False) -> Callable[P, Any]:
    """Return a function that computes the Jacobian of ``fun`` column by column (batched forward products); results as :func:`jacrev`.

    Example:
        >>> import jax.numpy as jnp, tape
        >>> tape.jacfwd(lambda x: x.sum())(jnp.array([1.0, 2.0]))
        Array([1., 1.], dtype=float32)

    """
    return _jacobian("jacfwd", fun, argnums, has_aux, holomorphic)


def _jacobian(
    name: str,
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    has_aux: bool,
    holomorphic: bool,
    allow_int: bool = False,
) -> Callable[..., Any]:
    """Return the function that puts a Jacobian together of its rows."""
    check_transformed(name, fun, argnums)

    @functools.wraps(fun)
    def wrapped(*args: object, **kwargs: object) -> object:
        call = Call(name, fun, args, kwargs, positions(name, argnums, len(args)), has_aux=has_aux, allow_int=allow_int)
        _check_kinds(name, call, holomorphic=holomorphic, allow_int=allow_int)
        pieces = [call.chosen(row, argnums) for row in _ROWS[name](call)]
        return call.with_aux(call.gradient(jax.tree.unflatten(call.output_tree, pieces)))

    return wrapped


def _check_kinds(name: str, call: Call, *, holomorphic: bool, allow_int: bool) -> None:
    if holomorphic and any(not jnp.issubdtype(v.dtype, jnp.complexfloating) for v in (*call.inputs, *call.outputs)):
        msg = f"{name}: holomorphic=True needs complex inputs and complex outputs"
        raise TapeTypeError(msg)
    for v in call.inputs:
        if name == "jacfwd" and not holomorphic and jnp.issubdtype(v.dtype, jnp.complexfloating):
            msg = (
                f"jacfwd: an argument is complex ({v.dtype}, shape {v.shape}), and columns say how it matters along the real axis only; "
                "use tape.jacrev for a real output, or pass holomorphic=True"
            )
            raise TapeTypeError(msg)
    for v in call.outputs:
        if jnp.issubdtype(v.dtype, jnp.complexfloating) and not holomorphic:
            msg = f"{name}: the function returned a complex array ({v.dtype}, shape {v.shape}); pass holomorphic=True, or return real parts"
            raise TapeTypeError(msg)
        if not jnp.issubdtype(v.dtype, jnp.inexact) and not allow_int:
            msg = f"{name}: the function returned dtype {v.dtype} (shape {v.shape}); Jacobians need floating outputs"
            raise TapeTypeError(msg)


jacobian = jacrev


def hessian(fun: Callable[P, Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False) -> Callable[P, Any]:
    """Return a function that computes the Hessian of ``fun``: the forward Jacobian of the reverse one.

    Example:
        >>> import jax.numpy as jnp, tape
        >>> tape.hessian(lambda x: (x * x * x).sum())(jnp.array([1.0, 2.0]))
        Array([[ 6.,  0.],
               [ 0., 12.]], dtype=float32)

    """
    check_transformed("hessian", fun, argnums)
    return jacfwd(jacrev(fun, argnums, has_aux, holomorphic), argnums, has_aux, holomorphic)


def hvp(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """Return the Hessian of ``fun`` at ``primals`` times ``tangents`` (tuples, as in ``jax.jvp``), in the shape of ``jax.grad(fun)``.

    Args:
        fun: a function of the tape that returns one real number; its first argument is differentiated.
        primals: its arguments.
        tangents: one per primal, of its shape and dtype.

    Example:
        >>> import tape
        >>> float(tape.hvp(lambda x: x**3, (2.0,), (1.0,)))
        12.0

    """
    check_callable("hvp", fun)
    check_tuples("hvp", primals, tangents)
    return jvp(grad(fun), primals, tangents)[1]
