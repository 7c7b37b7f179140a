"""Jacobians, Hessians and forward-mode products.

A Jacobian is one batched sweep: the same reverse sweep with a basis of seeds, its VJPs under ``jax.vmap``.  Forward mode is the
transpose of the transpose: the sweep is linear in its seed u, so sweeping <sweep(u), t> back to u gives J t (Townsend, "A new trick for
calculating Jacobian vector products", 2017); XLA drops what is computed twice.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from tape.errors import TapeTypeError, TapeValueError
from tape.ops.kernel import Op
from tape.recording import record
from tape.recording.scope import within
from tape.recording.segment import Handle
from tape.sweeps.sweep import Sweep, target_of
from tape.transforms.first_order import _check_callable, pull
from tape.transforms.inputs import Call, _array, check_recorded, flatten, positions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Linear", "hessian", "hvp", "jacfwd", "jacobian", "jacrev", "jvp"]


class Linear:
    """The linearization of a call: ``push(tangents)`` is its Jacobian times tangents."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.seeds = [record.leaf(jnp.zeros(v.shape, v.dtype), requires_grad=v._place.kind.requires_grad) for v in call.outputs]
        with within(linear=not call.nested):
            self.pulled = pull(call, call.outputs, self.seeds, create_graph=True)
        for gradient in self.pulled:
            if isinstance(gradient, Handle):
                check_recorded(call.name, gradient)

    def push(self, tangents: Sequence[Any], batch: int | None = None) -> list[Any]:
        """Push tangents (one per input leaf; with ``batch``, stacked along a first axis) forward to the outputs."""
        roots = [
            (g, _like(t, v, batch)) for g, t, v in zip(self.pulled, tangents, self.call.inputs, strict=True) if g._place.kind.requires_grad
        ]
        able = [s for s in self.seeds if s._place.kind.requires_grad]
        nested = self.call.nested or any(isinstance(t, Handle) and t._place.kind.requires_grad for t in tangents)
        found = dict(zip(map(id, able), swept(roots, able, batch, create_graph=nested), strict=True)) if roots and able else {}
        return [found[id(s)] if id(s) in found else zeros(v, batch) for s, v in zip(self.seeds, self.call.outputs, strict=True)]


def swept(roots: Sequence[tuple[Any, Any]], inputs: Sequence[Any], batch: int | None, *, create_graph: bool) -> list[Any]:
    """Gradients for (root, seed) pairs; with ``batch``, the seeds and gradients are stacked along a first axis."""
    sweep = Sweep(map(target_of, inputs), (), create_graph, batch)
    sweep.run([r for r, _ in roots], [s for _, s in roots])
    found = [sweep.gradients.get(target_of(v)) for v in inputs]
    return [zeros(v, batch) if g is None else g for g, v in zip(found, inputs, strict=True)]


def zeros(like: Any, batch: int | None) -> Any:
    """Return zeros of a Variable's shape and dtype, stacked along a first axis where there is a batch."""
    return record.leaf(jnp.zeros((() if batch is None else (batch,)) + like.shape, like.dtype))


def _like(tangent: Any, variable: Any, batch: int | None) -> Any:
    """Return a tangent as a Variable of the primal's shape and dtype."""
    made = tangent if isinstance(tangent, Handle) else record.constant(_array("jvp", tangent))
    shape = variable.shape if batch is None else (batch, *variable.shape)
    aval = made._place.kind.aval
    if aval.shape != shape:
        msg = f"jvp: a tangent has shape {aval.shape}, but its primal has shape {shape}"
        raise TapeValueError(msg)
    if aval.dtype != variable.dtype:
        if not aval.weak_type and not isinstance(tangent, (int, float, complex)):
            msg = f"jvp: a tangent has dtype {aval.dtype}, but its primal has dtype {variable.dtype}; cast it"
            raise TapeTypeError(msg)
        made = record.record(Op("cast", lambda x: x.astype(variable.dtype)), (made,))
    return made


def jvp(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False) -> Any:
    """Return ``fun(*primals)`` and its derivative along ``tangents`` (tuples, as in ``jax.jvp``).

    Raises:
        TapeTypeError, TapeValueError: tangents differ from the primals in structure, shape or dtype.

    Example:
        >>> import tape
        >>> y, dy = tape.jvp(lambda x: x * x, (3.0,), (1.0,))
        >>> float(y), float(dy)
        (9.0, 6.0)

    """
    _check_callable("jvp", fun)
    _check_pairs("jvp", primals, tangents)
    call = Call("jvp", fun, primals, {}, range(len(primals)), has_aux=has_aux)
    pushed = jax.tree.unflatten(call.output_tree, Linear(call).push(flatten(tuple(tangents))[0]))
    result = call.output(), call.result(pushed)
    return (*result, call.result(call.aux)) if has_aux else result


def _check_pairs(name: str, primals: Any, tangents: Any) -> None:
    if not isinstance(primals, (tuple, list)) or not isinstance(tangents, (tuple, list)):
        msg = f"{name}: primals and tangents must be tuples or lists, got {type(primals).__name__} and {type(tangents).__name__}"
        raise TapeTypeError(msg)
    one, other = flatten(tuple(primals))[1], flatten(tuple(tangents))[1]
    if one != other:
        msg = f"{name}: primals and tangents must have one structure, got {one} and {other}"
        raise TapeTypeError(msg)


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


_PIECES: dict[Any, Op] = {}


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
    _check_callable("jacrev", fun)

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
    _check_callable("jacfwd", fun)

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
    from tape.transforms.first_order import grad  # noqa: PLC0415

    return jvp(grad(fun), primals, tangents)[1]
