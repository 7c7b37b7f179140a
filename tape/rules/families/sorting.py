"""Sorting and selecting the largest: gradients follow the permutation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import lax

from tape.rules import parameters
from tape.rules.registry import LINE, Cost, Example, register

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def _put(ct: Any, places: Any, like: Any, axis: int) -> Any:
    """Put every element of ``ct`` where ``places`` says along ``axis``, into zeros of the shape of ``like``."""
    index = [lax.broadcasted_iota(places.dtype, places.shape, d) for d in range(places.ndim)]
    index[axis] = places
    return jnp.zeros(like.shape, like.dtype).at[tuple(index)].add(ct, unique_indices=True, mode="promise_in_bounds")


def _sort(ct: Sequence[Any], out: Sequence[Any], *ins: Any, dimension: int, **params: Any) -> tuple[Any, ...]:
    """Bring cotangents back into the order before the sort; the permutation comes from sorting positions along."""
    found: list[Any] = []

    def permutation() -> Any:
        if not found:
            positions = lax.broadcasted_iota(jnp.int32, ins[0].shape, dimension)
            found.append(parameters.apply("sort", {"dimension": dimension, **params}, *ins, positions)[-1])
        return found[0]

    def back(c: Any, x: Any) -> Callable[[], Any] | None:
        return None if c is None else lambda: _put(c, permutation(), x, dimension)

    return tuple(map(back, ct, ins))


def _largest(ct: Sequence[Any], out: Sequence[Any], x: Any, *, axis: int, **_: Any) -> tuple[Any, ...]:
    """Put the cotangent of the values where the indices say; a release without ``axis`` takes the last."""
    return (None if ct[0] is None else lambda: _put(ct[0], out[1], x, axis % x.ndim),)


register(
    "sort",
    _sort,
    domain=(LINE, LINE, LINE),
    source="y = P x with the permutation constant between ties, so that the transpose is the inverse permutation",
    examples=[
        Example(lax.sort, ((5,),), "vector"),
        Example(lambda x: lax.sort(x, dimension=0), ((4, 2),), "first axis"),
        Example(lambda x: lax.sort(x, dimension=1, is_stable=False), ((2, 3, 2),), "middle axis, not stable"),
        Example(lambda x, y: lax.sort((x, y), dimension=1), ((2, 4), (2, 4)), "key and value"),
        Example(lambda x, y, z: lax.sort((lax.round(x), y, z), dimension=0, num_keys=2), ((6,), (6,), (6,)), "two keys"),
        Example(lambda x: lax.sort((x, jnp.arange(4)), num_keys=1)[0], ((4,),), "integers along"),
    ],
    cost=Cost.HIGH,
)
register(
    "top_k",
    lambda ct, out, x, *, axis=-1, **_: _largest(ct, out, x, axis=axis),
    domain=(LINE,),
    source="y = x[indices] with the indices constant between ties",
    examples=[
        Example(lambda x: lax.top_k(x, 2)[0], ((5,),), "vector"),
        Example(lambda x: lax.top_k(x, 3)[0], ((2, 3),), "all of the last axis"),
        Example(lambda x: lax.top_k(x, 2, axis=0)[0], ((4, 2),), "first axis"),
        Example(lambda x: lax.top_k(x, 2, axis=1)[0], ((2, 3, 2),), "middle axis"),
    ],
    cost=Cost.HIGH,
)
register(
    "approx_top_k",
    lambda ct, out, x, *, reduction_dimension, **_: _largest(ct, out, x, axis=reduction_dimension),
    domain=(LINE,),
    source="y = x[indices] with the indices constant between ties",
    examples=[
        Example(lambda x: lax.approx_max_k(x, 2)[0], ((5,),), "largest"),
        Example(lambda x: lax.approx_min_k(x, 2, reduction_dimension=0)[0], ((4, 2),), "smallest, first axis"),
    ],
)
