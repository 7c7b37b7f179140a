"""Reductions over axes: sum, maximum, minimum, product."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax

from tape.rules.cotangents import wide
from tape.rules.registry import Cost, Example, register


def _repeat(reduced: Any, shape: Sequence[int], axes: Sequence[int]) -> Any:
    """Repeat a reduced value along the axes that are missing."""
    return lax.broadcast_in_dim(reduced, shape, [d for d in range(len(shape)) if d not in axes])


def _extreme(ct: Any, out: Any, x: Any, *, axes: Sequence[int], **_: Any) -> Any:
    """Split the cotangent evenly among the elements that attain the extreme; where that is NaN none does, and all get NaN.

    They are chosen, not multiplied with zeros and ones: XLA makes a choice of such a product, though not everywhere, and loses the NaN.
    """
    reached = lax.eq(x, _repeat(out, x.shape, axes))
    count = lax.reduce_sum(lax.convert_element_type(reached, jnp.int32), tuple(axes))
    total = wide(ct)
    share = lax.convert_element_type(total / lax.convert_element_type(count, total.dtype), x.dtype)
    other = lax.select(lax.eq(count, lax.full_like(count, 0)), lax.full_like(share, jnp.nan), lax.full_like(share, 0))
    return lax.select(reached, _repeat(share, x.shape, axes), _repeat(other, x.shape, axes))


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


def _over(reduce: Callable[..., Any]) -> list[Example]:
    """List uses of a reduction over every kind of axes."""
    uses: Any = {
        "all axes": ((2, 3, 2), (0, 1, 2)),
        "first axis": ((3, 2), (0,)),
        "last axis": ((2, 3), (1,)),
        "middle axis": ((2, 5, 2), (1,)),
        "outer axes": ((2, 3, 2), (0, 2)),
        "one element": ((1, 2), (0,)),
        "no axis": ((2,), ()),
    }
    return [Example(partial(reduce, axes=axes), (shape,), name) for name, (shape, axes) in uses.items()]


@register(
    "reduce_prod",
    source="d prod(x) = sum of dx_i times the product of the others",
    domain=((0.5, 1.5),),
    cost=Cost.LOOPED,
    examples=[
        *_over(lax.reduce_prod),
        *(
            Example(lambda x, zeros=zeros: lax.reduce_prod(x.at[jnp.array(zeros)].multiply(0), (0,)), ((5,),), name)
            for name, zeros in (("one zero", [1]), ("two zeros", [1, 3]))
        ),
    ],
)
def _reduce_prod(ct: Any, out: Any, x: Any, *, axes: Sequence[int], **_: Any) -> Any:
    """Multiply the cotangent with the product of the other elements."""
    front = range(len(axes))
    moved = jnp.moveaxis(wide(x), axes, front)
    others = lax.reshape(_others(lax.reshape(moved, (math.prod(moved.shape[: len(axes)]), *out.shape))), moved.shape)
    return lax.convert_element_type(_repeat(wide(ct), x.shape, axes) * jnp.moveaxis(others, front, axes), x.dtype)


register(
    "reduce_sum",
    lambda ct, out, x, *, axes, **_: _repeat(ct, x.shape, axes),
    source="d sum(x) = sum(dx)",
    cost=Cost.LOOPED,
    examples=_over(lax.reduce_sum),
)
for _name, _which in (("reduce_max", "maximum"), ("reduce_min", "minimum")):
    register(
        _name,
        _extreme,
        source=f"d {_name[-3:]}(x) = mean of dx over the elements equal to the {_which}",
        complex=False,
        cost=Cost.LOOPED,
        examples=_over(getattr(lax, _name)),
    )
