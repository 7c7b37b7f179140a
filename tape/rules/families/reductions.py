"""Reductions over axes: sum, maximum, minimum, product, and the bitwise ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import lax

from tape.rules.cotangents import wide
from tape.rules.registry import LINE, Cost, Example, register

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def _repeat(reduced: Any, shape: Sequence[int], axes: Sequence[int]) -> Any:
    """Repeat a reduced value along the axes that are missing."""
    return lax.broadcast_in_dim(reduced, shape, [d for d in range(len(shape)) if d not in axes])


def _extreme(ct: Any, out: Any, x: Any, *, axes: Sequence[int], **_: Any) -> tuple[Any, ...]:
    """Split the cotangent evenly among the elements that attain the extreme."""

    def grad() -> Any:
        reached = lax.eq(x, _repeat(out, x.shape, axes))
        count = lax.reduce_sum(lax.convert_element_type(reached, jnp.int32), tuple(axes))
        total = wide(ct)
        share = lax.convert_element_type(total / lax.convert_element_type(count, total.dtype), x.dtype)
        return lax.convert_element_type(reached, x.dtype) * _repeat(share, x.shape, axes)

    return (grad,)


def _others(x: Any) -> Any:
    """Product, for every row of ``x``, of all the other rows: without division, so that zeros are no special case.

    Rows of the two halves are multiplied in pairs; what all other pairs give, times the partner, is what all other rows give.
    """
    n = x.shape[0]
    if n <= 1:
        return lax.full_like(x, 1)
    half = (n + 1) // 2
    first, second = x[:half], x[half:]
    if n % 2:
        second = jnp.concatenate([second, lax.full_like(x[:1], 1)])
    rest = _others(first * second)
    return jnp.concatenate([rest * second, (rest * first)[: n - half]])


def _reduce_prod(ct: Any, out: Any, x: Any, *, axes: Sequence[int], **_: Any) -> tuple[Any, ...]:
    """Multiply the cotangent with the product of the other elements."""

    def grad() -> Any:
        kept = [d for d in range(x.ndim) if d not in axes]
        order = [*axes, *kept]
        moved = lax.transpose(wide(x), order)
        rows = math.prod(x.shape[d] for d in axes)
        others = lax.reshape(_others(lax.reshape(moved, (rows, *out.shape))), moved.shape)
        back = sorted(range(x.ndim), key=order.__getitem__)
        return lax.convert_element_type(_repeat(wide(ct), x.shape, axes) * lax.transpose(others, back), x.dtype)

    return (grad,)


def _over(reduce: Callable[..., Any]) -> list[Example]:
    """List uses of a reduction over every kind of axes."""
    return [
        Example(lambda x: reduce(x, (0, 1, 2)), ((2, 3, 2),), "all axes"),
        Example(lambda x: reduce(x, (0,)), ((3, 2),), "first axis"),
        Example(lambda x: reduce(x, (1,)), ((2, 3),), "last axis"),
        Example(lambda x: reduce(x, (1,)), ((2, 5, 2),), "middle axis"),
        Example(lambda x: reduce(x, (0, 2)), ((2, 3, 2),), "outer axes"),
        Example(lambda x: reduce(x, (0,)), ((1, 2),), "one element"),
        Example(lambda x: reduce(x, ()), ((2,),), "no axis"),
    ]


register(
    "reduce_sum",
    lambda ct, out, x, *, axes, **_: (lambda: _repeat(ct, x.shape, axes),),
    domain=(LINE,),
    source="d sum(x) = sum(dx)",
    examples=_over(lax.reduce_sum),
    complex=True,
    cost=Cost.LOOPED,
)
for _name, _which in (("reduce_max", "maximum"), ("reduce_min", "minimum")):
    register(
        _name,
        _extreme,
        domain=(LINE,),
        source=f"d {_name[-3:]}(x) = mean of dx over the elements equal to the {_which}",
        examples=_over(getattr(lax, _name)),
        cost=Cost.LOOPED,
    )
register(
    "reduce_prod",
    _reduce_prod,
    domain=((0.5, 1.5),),
    source="d prod(x) = sum of dx_i times the product of the others",
    examples=[
        *_over(lax.reduce_prod),
        Example(lambda x: lax.reduce_prod(x * jnp.array([1.0, 0.0, 1.0, 1.0, 1.0], x.dtype), (0,)), ((5,),), "one zero"),
        Example(lambda x: lax.reduce_prod(x * jnp.array([1.0, 0.0, 1.0, 0.0, 1.0], x.dtype), (0,)), ((5,),), "two zeros"),
    ],
    complex=True,
    cost=Cost.LOOPED,
)
