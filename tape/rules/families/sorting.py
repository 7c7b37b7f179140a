"""Sorting and selecting the largest: gradients follow the permutation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax

from tape.rules import parameters
from tape.rules.registry import Cost, Example, register


def _put(ct: Any, places: Any, like: Any, axis: int) -> Any:
    """Put every element of ``ct`` where ``places`` says along ``axis``, into zeros of the shape of ``like``."""
    index = [lax.broadcasted_iota(places.dtype, places.shape, d) for d in range(places.ndim)]
    index[axis] = places
    return jnp.zeros(like.shape, like.dtype).at[tuple(index)].add(ct, unique_indices=True, mode="promise_in_bounds")


@register(
    "sort",
    source="y = P x with the permutation constant between ties, so that the transpose is the inverse permutation",
    complex=False,
    cost=Cost.HIGH,
    examples=[
        Example(lax.sort, ((5,),), "vector"),
        Example(lambda x: lax.sort(x, dimension=0), ((4, 2),), "first axis"),
        Example(lambda x: lax.sort(x, dimension=1, is_stable=False), ((2, 3, 2),), "middle axis, not stable"),
        Example(lambda x, y: lax.sort((x, y), dimension=1), ((2, 4), (2, 4)), "key and value"),
        Example(lambda x, y, z: lax.sort((lax.round(x), y, z), dimension=0, num_keys=2), ((6,), (6,), (6,)), "two keys"),
        Example(lambda x: lax.sort((x, jnp.arange(4)), num_keys=1)[0], ((4,),), "integers along"),
    ],
)
def _sort(ct: Sequence[Any], out: Sequence[Any], *ins: Any, dimension: int, **params: Any) -> tuple[Any, ...]:
    """Bring cotangents back into the order before the sort; the permutation comes from sorting positions along."""
    positions = lax.broadcasted_iota(jnp.int32, ins[0].shape, dimension)
    permutation = parameters.apply("sort", {"dimension": dimension, **params}, *ins, positions)[-1]
    return tuple(None if c is None else partial(_put, c, permutation, x, dimension) for c, x in zip(ct, ins, strict=True))


register(
    "top_k",
    lambda ct, out, x, *, axis=-1, **_: _put(ct[0], out[1], x, axis % x.ndim),  # a release without axis takes the last
    source="y = x[indices] with the indices constant between ties",
    complex=False,
    cost=Cost.HIGH,
    examples=[
        Example(lambda x: lax.top_k(x, 2)[0], ((5,),), "vector"),
        Example(lambda x: lax.top_k(x, 3)[0], ((2, 3),), "all of the last axis"),
        Example(lambda x: lax.top_k(x, 2, axis=0)[0], ((4, 2),), "first axis"),
        Example(lambda x: lax.top_k(x, 2, axis=1)[0], ((2, 3, 2),), "middle axis"),
    ],
)
register(
    "approx_top_k",
    lambda ct, out, x, *, reduction_dimension, **_: _put(ct[0], out[1], x, reduction_dimension % x.ndim),
    source="y = x[indices] with the indices constant between ties",
    complex=False,
    examples=[
        Example(lambda x: lax.approx_max_k(x, 2)[0], ((5,),), "largest"),
        Example(lambda x: lax.approx_min_k(x, 2, reduction_dimension=0)[0], ((4, 2),), "smallest, first axis"),
    ],
)
