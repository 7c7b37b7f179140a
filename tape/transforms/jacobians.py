"""Jacobians and Hessians: one batched sweep, the same as any with a basis of seeds, its VJPs under ``jax.vmap``."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from tape.bounded import Bounded
from tape.errors import TapeTypeError
from tape.ops.kernel import Op
from tape.recording import record
from tape.transforms.forward import Linear, jvp, swept, zeros
from tape.transforms.inputs import Call, check_callable, positions
from tape.transforms.reverse import grad

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["hessian", "hvp", "jacfwd", "jacobian", "jacrev"]


def _basis(variables: Sequence[Any]) -> list[Any]:
    """One standard basis over several Variables: for each, an array of shape (total size, *its shape)."""
    total = sum(v.size for v in variables)
    seeds = []
    start = 0
    for v in variables:
        eye = jnp.eye(total, v.size, -start, dtype=v.dtype)
        seeds.append(record.leaf(eye.reshape(total, *v.shape)))
        start += v.size
    return seeds


_PIECES: Bounded[Any, Op] = Bounded("pieces", 1024)


def _piece(rows: Any, start: int, size: int, shape: tuple[int, ...], *, last: bool) -> Any:
    """Cut the rows that belong to one Variable out of a batched result and give them its shape (at the end, if ``last``)."""
    key = (start, size, shape, last)
    op = _PIECES.get(key)
    if op is None:

        def cut(x: Any) -> Any:
            x = x[start : start + size]
            return jnp.moveaxis(x, 0, -1).reshape(x.shape[1:] + shape) if last else x.reshape(shape + x.shape[1:])

        op = _PIECES[key] = Op("piece", cut)
    return record.record(op, (rows,))


def jacrev(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False, allow_int: bool = False
) -> Callable[..., Any]:
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
    check_callable("jacrev", fun)

    @functools.wraps(fun)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        chosen = positions("jacrev", argnums, len(args))
        call = Call("jacrev", fun, args, kwargs, chosen, has_aux=has_aux, allow_int=allow_int)
        _check_kinds("jacrev", call, holomorphic=holomorphic, allow_int=allow_int)
        outputs = call.outputs
        total = sum(v.size for v in outputs)
        roots = [(r, s) for r, s in zip(outputs, _basis(outputs), strict=True) if r._place.kind.requires_grad]
        rows = swept(roots, call.inputs, total, create_graph=call.nested) if roots else [zeros(v, total) for v in call.inputs]
        pieces = []
        start = 0
        for out in outputs:
            tree = jax.tree.unflatten(call.tree, [_piece(r, start, out.size, out.shape, last=False) for r in rows])
            pieces.append(tree[0] if isinstance(argnums, int) else tree)
            start += out.size
        result = call.gradient(jax.tree.unflatten(call.output_tree, pieces))
        return (result, call.result(call.aux)) if has_aux else result

    return wrapped


def jacfwd(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """Return a function that computes the Jacobian of ``fun`` column by column (batched forward products); results as :func:`jacrev`.

    Example:
        >>> import jax.numpy as jnp, tape
        >>> tape.jacfwd(lambda x: x.sum())(jnp.array([1.0, 2.0]))
        Array([1., 1.], dtype=float32)

    """
    check_callable("jacfwd", fun)

    @functools.wraps(fun)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        chosen = positions("jacfwd", argnums, len(args))
        call = Call("jacfwd", fun, args, kwargs, chosen, has_aux=has_aux)
        _check_kinds("jacfwd", call, holomorphic=holomorphic, allow_int=False)
        total = sum(v.size for v in call.inputs)
        columns = Linear(call).push(_basis(call.inputs), total)
        pieces = []
        for column in columns:
            found = []
            start = 0
            for v in call.inputs:
                found.append(_piece(column, start, v.size, v.shape, last=True))
                start += v.size
            tree = jax.tree.unflatten(call.tree, found)
            pieces.append(tree[0] if isinstance(argnums, int) else tree)
        result = call.gradient(jax.tree.unflatten(call.output_tree, pieces))
        return (result, call.result(call.aux)) if has_aux else result

    return wrapped


def _check_kinds(name: str, call: Call, *, holomorphic: bool, allow_int: bool) -> None:
    for v in call.outputs:
        if jnp.issubdtype(v.dtype, jnp.complexfloating) and not holomorphic:
            msg = f"{name}: the function returned a complex array ({v.dtype}, shape {v.shape}); pass holomorphic=True, or return real parts"
            raise TapeTypeError(msg)
        if not jnp.issubdtype(v.dtype, jnp.inexact) and not allow_int:
            msg = f"{name}: the function returned dtype {v.dtype} (shape {v.shape}); Jacobians need floating outputs"
            raise TapeTypeError(msg)


jacobian = jacrev


def hessian(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """Return a function that computes the Hessian of ``fun``: the forward Jacobian of the reverse one.

    Example:
        >>> import jax.numpy as jnp, tape
        >>> tape.hessian(lambda x: (x * x * x).sum())(jnp.array([1.0, 2.0]))
        Array([[ 6.,  0.],
               [ 0., 12.]], dtype=float32)

    """
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
    return jvp(grad(fun), primals, tangents)[1]
