"""Rules of primitives that another function of ``jax.numpy`` is equal to: their VJP is the sweep of that function.

These are calls that mean what their jaxpr says, and reductions by a function of the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tape import jaxapi
from tape.ops.pullback import pullback
from tape.rules import parameters
from tape.rules.cotangents import asked_for, for_jax, spread
from tape.rules.registry import Cost, Example, register


def equal_to(name: str, fun: Callable[..., Any], **fields: Any) -> None:
    """Enter the rule of a primitive that ``fun(*ins, **params)`` is equal to; ``fun`` returns an array, or a sequence of them."""

    def vjp(ct: Any, out: Any, *ins: Any, wanted: Any = None, **params: Any) -> tuple[Any, ...]:
        several = isinstance(out, (tuple, list))
        closed, _ = jaxapi.trace(partial(fun, **params), *ins)
        return pullback(closed, ins, ct if several else [ct], asked_for(ins, wanted), out if several else [out])

    register(name, vjp, selective=True, **fields)


def _called(*ins: Any, **params: Any) -> list[Any]:
    """Run the jaxpr that a call holds, under whichever name."""
    body = next(jaxapi.closed(params[key]) for key in ("call_jaxpr", "jaxpr", "call") if key in params)
    return jaxapi.eval_jaxpr(body.jaxpr, body.consts, *ins)


def _body(x: Any, y: Any) -> tuple[Any, Any]:
    return jnp.sin(x) * y, x


@jax.custom_batching.custom_vmap
def _mapped(x: Any, y: Any) -> Any:
    return jnp.sin(x) * y


@_mapped.def_vmap
def _(size: int, batched: Sequence[bool], x: Any, y: Any) -> tuple[Any, bool]:
    x, y = (a if flag else jnp.broadcast_to(a, (size, *a.shape)) for a, flag in zip((x, y), batched, strict=True))
    return jnp.sin(x) * y, True


equal_to(
    "composite",
    _called,
    source="chain rule over the body, which says what the composite means",
    domain=((-1.0, 1.0), (-1.0, 1.0)),
    cost=Cost.LOOPED,
    examples=[Example(lax.composite(_body, name="tape.body"), ((3,), (3,)))],
)
equal_to(
    "custom_vmap_call",
    _called,
    source="chain rule over the function; how it is mapped is the user's, and its derivative is mapped as any other",
    domain=((-1.0, 1.0), (-1.0, 1.0)),
    cost=Cost.LOOPED,
    complex=False,
    examples=[Example(_mapped, ((3,), (3,)))],
)


def _linear(a: Any, x: Any) -> Any:
    """Multiply by a residual, with the transpose said by the user."""
    return jax.custom_derivatives.linear_call(lambda a, x: a * x, lambda a, ct: a * ct, jnp.sin(a), x)


@register(
    "linear_call",
    source="of the argument the user's transpose, which JAX is asked for; of the residuals the chain rule over the function",
    domain=((-1.0, 1.0), (-1.0, 1.0)),
    selective=True,
    cost=Cost.LOOPED,
    examples=[Example(_linear, ((3,), (3,)))],
)
def _linear_call(ct: Any, out: Any, *ins: Any, callee: Any, wanted: Any = None, **params: Any) -> tuple[Any, ...]:
    """Apply the user's transposed function, and sweep the function itself back to what else it reads."""
    asked = asked_for(ins, wanted)
    first = params["num_callee_consts"] + params["num_res"]
    moved = [i for i, flag in enumerate(asked) if flag and i >= first]
    grads = [None] * len(ins)
    if any(asked[:first]):
        grads = list(pullback(jaxapi.closed(callee), ins, ct, [flag and i < first for i, flag in enumerate(asked)], out))
    if moved:
        call = jaxapi.primitive("linear_call")
        assert call is not None
        _, vjp = jax.vjp(parameters.partial(call, {"callee": callee, **params}, ins, moved), *[ins[i] for i in moved])
        for i, grad in enumerate(spread(vjp(for_jax(ct, out)), moved, len(ins))):
            grads[i] = grads[i] if grad is None else grad
    return tuple(grads)


def _combined(rows: Sequence[Any], inits: Sequence[Any], combine: Callable[..., Any], there: Any = None) -> list[Any]:
    """Reduce the first axis of all ``rows`` together, neighbours by neighbours in a tree, and the initial values with the result.

    Where ``there`` is given, it tells which elements there are: a window reaches into padding, whose elements are passed over.
    """
    results = [jnp.broadcast_to(init, x.shape[1:]) for x, init in zip(rows, inits, strict=True)]
    if not rows[0].shape[0] or not prod(results[0].shape):
        return results

    def each(first: Sequence[Any], second: Sequence[Any], valid: Any, other: Any) -> list[Any]:
        flat = [jnp.reshape(x, (x.size,)) for x in (*first, *second)]
        combined = [jnp.reshape(x, like.shape) for x, like in zip(jax.vmap(combine)(*flat), first, strict=True)]
        if valid is None:
            return combined
        return [jnp.where(other, jnp.where(valid, x, b), a) for x, a, b in zip(combined, first, second, strict=True)]

    while rows[0].shape[0] > 1:
        n = rows[0].shape[0] // 2
        left, right = slice(0, 2 * n, 2), slice(1, 2 * n, 2)
        flags = (None, None) if there is None else (there[left], there[right])
        pairs = each([x[left] for x in rows], [x[right] for x in rows], *flags)
        rows = [jnp.concatenate([pair, x[2 * n :]]) for pair, x in zip(pairs, rows, strict=True)]
        there = None if there is None else jnp.concatenate([there[left] | there[right], there[2 * n :]])
    flags = (None, None) if there is None else (jnp.ones_like(there[0]), there[0])
    return each(results, [x[0] for x in rows], *flags)


def _reduce(*ins: Any, jaxpr: Any, dimensions: Sequence[int], **_: Any) -> list[Any]:
    operands, inits = ins[: len(ins) // 2], ins[len(ins) // 2 :]
    moved = [jnp.moveaxis(x, dimensions, range(len(dimensions))) for x in operands]
    rows = [jnp.reshape(x, (prod(x.shape[: len(dimensions)]), *x.shape[len(dimensions) :])) for x in moved]
    return _combined(rows, inits, jaxapi.jaxpr_as_fun(jaxapi.closed(jaxpr)))


def _windows(x: Any, init: Any, params: dict[str, Any]) -> Any:
    """Return what lies in the windows: places in a window first, then windows."""
    ones = (1,) * x.ndim
    base, spread_by = params.get("base_dilation") or ones, params.get("window_dilation") or ones
    padded = lax.pad(x, init, [(low, high, step - 1) for (low, high), step in zip(params["padding"], base, strict=True)])
    for axis, (size, stride, step) in enumerate(zip(params["window_dimensions"], params["window_strides"], spread_by, strict=True)):
        length = padded.shape[2 * axis]
        windows = max(0, (length - (size - 1) * step - 1) // stride + 1)
        places = stride * jnp.arange(windows)[:, None] + step * jnp.arange(size)
        padded = padded[(slice(None),) * (2 * axis) + (places,)]  # of an array without elements, JAX's take has another shape
    inside = jnp.moveaxis(padded, range(1, padded.ndim, 2), range(x.ndim))
    return jnp.reshape(inside, (prod(inside.shape[: x.ndim]), *inside.shape[x.ndim :]))


def _reduce_window(*ins: Any, jaxpr: Any, consts: Sequence[Any] = (), **params: Any) -> list[Any]:
    operands, inits = ins[: len(ins) // 2], ins[len(ins) // 2 :]
    rows = [_windows(x, init, params) for x, init in zip(operands, inits, strict=True)]
    padded = any(side for pair in params["padding"] for side in pair) or any(n > 1 for n in params.get("base_dilation") or ())
    there = _windows(jnp.ones(operands[0].shape, bool), jnp.zeros((), bool), params) if padded else None
    body = jaxpr if isinstance(jaxpr, jaxapi.ClosedJaxpr) else jaxapi.ClosedJaxpr(jaxpr, consts)
    return _combined(rows, inits, jaxapi.jaxpr_as_fun(body), there)


def _turned(a: Any, b: Any) -> tuple[Any, Any]:
    """Multiply pairs as complex numbers are."""
    return a[0] * b[0] - a[1] * b[1], a[1] * b[0] + a[0] * b[1]


def _joint(x: Any, y: Any) -> Any:
    """Associative, without a name in ``lax``."""
    return x + y + x * y


def _number(value: float, like: Any) -> Any:
    return lax.full((), value, like.dtype)


equal_to(
    "reduce",
    _reduce,
    source="chain rule over the pairwise tree of the user's function, which has to be associative",
    domain=((-0.9, 0.9),),
    cost=Cost.LOOPED,
    examples=[
        Example(lambda x: lax.reduce(x, _number(0, x), _joint, (0,)), ((5, 2),), "own function"),
        Example(lambda x: lax.reduce(x, _number(0, x), _joint, (0, 2)), ((2, 3, 2),), "two axes"),
        Example(lambda x, y: lax.reduce((x, y), (_number(1, x), _number(0, y)), _turned, (0,)), ((4, 2), (4, 2)), "two results"),
    ],
)


def _over(x: Any, *options: Any) -> Any:
    return lax.reduce_window(x, _number(0, x), _joint, *options)


equal_to(
    "reduce_window",
    _reduce_window,
    source="chain rule over the pairwise tree of the user's function in each window",
    domain=((-0.9, 0.9),),
    cost=Cost.LOOPED,
    complex=False,
    examples=[
        Example(lambda x: _over(x, (3,), (2,), "SAME"), ((7,),), "same padding"),
        Example(lambda x: _over(x, (2, 3), (1, 2), ((1, 0), (-1, 2)), (1, 2), (2, 1)), ((4, 3),), "every option"),
        Example(lambda x: lax.reduce_window(x, _number(1, x), lax.mul, (2, 2), (1, 2), "VALID"), ((3, 4),), "product"),
        Example(
            lambda x, y: lax.reduce_window((x, y), (_number(1, x), _number(0, y)), _turned, (3,), (1,), "VALID"),
            ((5,), (5,)),
            "two results",
        ),
    ],
)
