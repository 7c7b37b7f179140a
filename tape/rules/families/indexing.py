"""Indexing: slices at computed places, gather, and scatter in all its forms.

A gather and a scatter with the same indices read and write the same places, so each is the other's transpose.  Indices outside the
array follow the forward mode in both directions: clipped ones read and write at the edge, dropped ones have no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tape.errors import TapeTypeError
from tape.rules.cotangents import zeros
from tape.rules.registry import Cost, Example, register


@register(
    "dynamic_slice",
    source="the transpose of reading a part is writing it into zeros",
    examples=[
        Example(lambda x: lax.dynamic_slice(x, (jnp.array(1), jnp.array(0)), (2, 2)), ((4, 3),), "inside"),
        Example(lambda x: lax.dynamic_slice(x, (jnp.array(7), jnp.array(1)), (2, 2)), ((4, 3),), "clamped"),
        Example(lambda x: lax.dynamic_slice(x, (jnp.array(-7),), (2,)), ((5,),), "far before"),
    ],
)
def _dynamic_slice(ct: Any, out: Any, x: Any, *starts: Any, **_: Any) -> tuple[Any, ...]:
    """Write the cotangent into zeros where the slice was read; both clamp their start in the same way."""
    return lax.dynamic_update_slice(zeros(x), ct, starts, allow_negative_indices=False), *(None for _ in starts)


@register(
    "dynamic_update_slice",
    source="each place of the result reads the operand or the update",
    examples=[
        Example(lambda x, u: lax.dynamic_update_slice(x, u, (jnp.array(1), jnp.array(0))), ((4, 3), (2, 2)), "inside"),
        Example(lambda x, u: lax.dynamic_update_slice(x, u, (jnp.array(7), jnp.array(-9))), ((4, 3), (2, 2)), "clamped"),
    ],
)
def _dynamic_update_slice(ct: Any, out: Any, x: Any, update: Any, *starts: Any, **_: Any) -> tuple[Any, ...]:
    """Give the operand nothing where the update took its place."""
    return (
        lambda: lax.dynamic_update_slice(ct, zeros(update), starts, allow_negative_indices=False),
        lambda: lax.dynamic_slice(ct, starts, update.shape, allow_negative_indices=False),
        *(None for _ in starts),
    )


def _options(params: dict[str, Any]) -> dict[str, Any]:
    """Return what of a gather's parameters is a scatter's as well."""
    return {key: params[key] for key in ("mode", "unique_indices", "indices_are_sorted")}


# What the parts of a gather's numbers are called in those of the scatter to the same places.
_SCATTERED = {
    "offset_dims": "update_window_dims",
    "collapsed_slice_dims": "inserted_window_dims",
    "start_index_map": "scatter_dims_to_operand_dims",
    "operand_batching_dims": "operand_batching_dims",
    "start_indices_batching_dims": "scatter_indices_batching_dims",
}


@register(
    "gather",
    source="the transpose of reading places is adding to them",
    cost=Cost.LOOPED,
    examples=[
        Example(lambda x: x[jnp.array([2, 0, 2])], ((4, 3),), "repeated rows"),
        Example(lambda x: x[jnp.array([0, 1, 0]), :, jnp.array([2, -1, 2])], ((2, 2, 3),), "pairs"),
        Example(lambda x: x.at[jnp.array([0, 9, 0])].get(mode="fill", fill_value=0.5), ((4, 3),), "filled"),
        Example(lambda x: x.at[jnp.array([0, 9, 3])].get(mode="clip"), ((4, 3),), "clipped"),
        Example(lambda x: jnp.take_along_axis(x, jnp.array([[1, 1], [0, 2], [2, 0]]), axis=1), ((3, 3),), "along an axis"),
        Example(lambda x: x.at[jnp.array([2, 0])].get(unique_indices=True, mode="promise_in_bounds"), ((4, 3),), "unique"),
        Example(lambda x: jax.vmap(lambda i: lax.dynamic_slice(x, (i, 0), (2, 2)))(jnp.arange(4)), ((4, 3),), "windows"),
        Example(lambda x: jax.vmap(lambda row, i: lax.dynamic_slice(row, (i,), (2,)))(x, jnp.arange(3)), ((3, 4),), "batched"),
    ],
)
def _gather(ct: Any, out: Any, x: Any, indices: Any, *, dimension_numbers: Any, **params: Any) -> tuple[Any, ...]:
    """Add each cotangent to the place that was read."""
    numbers = lax.ScatterDimensionNumbers(**{theirs: getattr(dimension_numbers, ours) for ours, theirs in _SCATTERED.items()})
    return lambda: lax.scatter_add(zeros(x), indices, ct, numbers, **_options(params)), None


class _Places:
    """The places that a scatter writes: reads them from, and writes them to, any array of the operand's shape."""

    __slots__ = ("indices", "numbers", "options", "shape", "unique", "update_shape")

    def __init__(self, x: Any, indices: Any, update: Any, params: dict[str, Any]) -> None:
        self.shape: tuple[int, ...] = x.shape
        self.update_shape: tuple[int, ...] = update.shape
        self.indices = indices
        self.numbers = params["dimension_numbers"]
        self.options = _options(params)
        windows = prod(n for d, n in enumerate(update.shape) if d not in self.numbers.update_window_dims)
        self.unique: bool = params["unique_indices"] or windows <= 1

    def read(self, array: Any, outside: Any = 0) -> Any:
        """Gather ``array`` where the updates go; ``outside`` stands for places that a scatter drops."""
        numbers = self.numbers
        one = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
        windows = iter(numbers.update_window_dims)
        return lax.gather(
            array,
            self.indices,
            lax.GatherDimensionNumbers(**{ours: getattr(numbers, theirs) for ours, theirs in _SCATTERED.items()}),
            slice_sizes=tuple(1 if d in one else self.update_shape[next(windows)] for d in range(len(self.shape))),
            fill_value=outside,
            **self.options,
        )

    def write(self, array: Any, update: Any, how: Callable[..., Any] = lax.scatter) -> Any:
        """Scatter ``update`` into ``array``."""
        return how(array, self.indices, update, self.numbers, **self.options)

    def targets(self) -> Any:
        """For each element of the update the flat position that it writes to, or the array's size where it is dropped."""
        size = prod(self.shape)
        return self.read(lax.reshape(lax.iota(_counter(size + 1), size), self.shape), outside=size)


def _counter(size: int) -> Any:
    return jnp.int32 if size < 2**31 else jnp.int64


def _update(how: str, *index: Any, equal: tuple[Any, ...] = (), **options: Any) -> Callable[..., Any]:
    """``x.at[index].<how>(update)``; lists are index arrays, made only when the example runs."""

    def fun(x: Any, update: Any) -> Any:
        places, same = (tuple(jnp.array(i) if isinstance(i, list) else i for i in part) for part in (index, equal))
        return getattr(x.at[places], how)(update[same] if equal and how == "set" else update, **options)

    return fun


def _updates(how: str) -> tuple[Example, ...]:
    """List uses of ``x.at[...].<how>``: unique and repeated places, each mode, batching dimensions.

    What sets one place repeatedly is equal: GPUs have any of several updates stay, and of two such scatters in a program each another one.
    """

    def batched(x: Any, update: Any) -> Any:
        return jax.vmap(_update(how, [2, 0, 2], equal=([0, 1, 0],)))(x, update)

    return (
        Example(_update(how, slice(1, 3), slice(0, 2)), ((4, 3), (2, 2)), "window"),
        Example(_update(how, [2, 0], unique_indices=True), ((4, 3), (2, 3)), "unique"),
        Example(
            _update(how, slice(None), [2, 0, 2, 2], slice(None), equal=(slice(None), [0, 1, 0, 0])), ((2, 3, 2), (2, 4, 2)), "repeated"
        ),
        Example(_update(how, [0, 1, 0], [2, 2, 2], equal=([0, 1, 0],)), ((2, 3), (3,)), "pairs"),
        Example(_update(how, [0, 9, 1, 0, 9], mode="drop", equal=([0, 1, 2, 0, 4],)), ((3, 2), (5, 2)), "dropped"),
        Example(_update(how, [0, 9, 2, 1], mode="clip", equal=([0, 1, 1, 3],)), ((3, 2), (4, 2)), "clipped"),
        Example(_update(how, [0, 2, 0], mode="promise_in_bounds", equal=([0, 1, 0],)), ((3, 2), (3, 2)), "promised"),
        Example(batched, ((2, 3), (2, 3)), "batched"),
    )


@register("scatter", source="each place of the result reads the operand or the last of its updates", examples=_updates("set"))
def _scatter(ct: Any, out: Any, x: Any, indices: Any, update: Any, *, update_jaxpr: Any = None, **params: Any) -> tuple[Any, ...]:
    """Give the operand nothing where it was written to; of several updates of one place, the one that stayed gets the cotangent."""
    if update_jaxpr is not None:
        msg = (
            f"VJP rule of scatter: `x.at[i].apply(f)` on shape {x.shape} has no derivative here, nor in JAX; "
            "write x.at[i].set(f(x[i])), which has one"
        )
        raise TapeTypeError(msg)
    places = _Places(x, indices, update, params)

    def grad() -> Any:
        if places.unique:
            return places.read(ct)
        count = prod(update.shape)
        mine = lax.reshape(lax.iota(_counter(count + 1), count), update.shape)
        last = places.read(places.write(lax.full(x.shape, -1, mine.dtype), mine), outside=-1)
        return lax.select(lax.eq(mine, last), places.read(ct), zeros(update))

    return lambda: places.write(ct, zeros(update)), None, grad


register(
    "scatter_add",
    lambda ct, out, x, indices, update, **params: (ct, None, lambda: _Places(x, indices, update, params).read(ct)),
    source="linear: the transpose of adding to places is reading them",
    examples=_updates("add"),
)
register(
    "scatter_sub",
    lambda ct, out, x, indices, update, **params: (ct, None, lambda: lax.neg(_Places(x, indices, update, params).read(ct))),
    source="linear: the transpose of subtracting from places is reading them, negated",
    examples=[e for e in _updates("subtract") if e.name in {"unique", "repeated", "dropped"}],
)


@register(
    "scatter_mul",
    source="product rule; repeated places (which JAX refuses) by running products that leave one factor out",
    examples=[
        *_updates("multiply"),
        Example(lambda x, u: x.at[jnp.array([1, 1, 0, 1])].multiply(u * jnp.array([0, 1, 1, 1], u.dtype)), ((2,), (4,)), "zeros"),
    ],
)
def _scatter_mul(ct: Any, out: Any, x: Any, indices: Any, update: Any, **params: Any) -> tuple[Any, ...]:
    """Give each factor of a place the product of all others, exact also where a factor is zero."""
    places = _Places(x, indices, update, params)

    def grad() -> Any:
        before = places.read(lax.mul(ct, x))
        return before if places.unique else lax.mul(before, _others(places.targets(), update, prod(x.shape)))

    return lambda: places.write(ct, update, lax.scatter_mul), None, grad


def _others(targets: Any, factors: Any, dropped: int) -> Any:
    """For each factor the product of all other factors with the same target, without a division.

    Sorted by target, the factors of one place are neighbours: two running products, one from each side, leave the factor out.
    """
    count = prod(factors.shape)
    if count == 0:
        return factors
    flat = lax.reshape(targets, (count,))
    order = jnp.argsort(flat)
    target, factor = flat[order], lax.reshape(factors, (count,))[order]
    same = lax.eq(target[1:], target[:-1]) & (target[1:] < dropped)
    after = _running(same, factor[:-1])
    before = lax.rev(_running(lax.rev(same, (0,)), lax.rev(factor[1:], (0,))), (0,))
    edge = lax.full((1,), 1, factor.dtype)
    product = lax.mul(lax.concatenate([edge, after], 0), lax.concatenate([before, edge], 0))
    return lax.reshape(lax.full((count,), 0, factor.dtype).at[order].set(product, unique_indices=True), factors.shape)


def _running(joined: Any, factor: Any) -> Any:
    """Compute running products that start anew wherever ``joined`` is False."""

    def combine(left: Any, right: Any) -> Any:
        return left[0] & right[0], jnp.where(right[0], left[1] * right[1], right[1])

    kept = lax.select(joined, factor, lax.full(factor.shape, 1, factor.dtype))
    return lax.associative_scan(combine, (joined, kept))[1]


def _scatter_extremum(ct: Any, out: Any, x: Any, indices: Any, update: Any, **params: Any) -> tuple[Any, ...]:
    """Share the cotangent of each place evenly among the operand and the updates that equal the result."""
    places = _Places(x, indices, update, params)
    untouched = lax.eq(places.write(lax.full(x.shape, 1, ct.dtype), zeros(update)), lax.full(x.shape, 1, ct.dtype))
    operand_stays = lax.eq(x, out) | untouched  # also where it is NaN, which equals nothing
    update_stays = lax.eq(update, places.read(out))
    winners = places.write(operand_stays.astype(ct.dtype), update_stays.astype(ct.dtype), lax.scatter_add)
    share = lax.div(ct, lax.max(winners, lax.full(x.shape, 1, ct.dtype)))
    return (
        lambda: lax.select(operand_stays, share, zeros(x)),
        None,
        lambda: lax.select(update_stays, places.read(share), zeros(update)),
    )


for _how in ("max", "min"):
    register(
        f"scatter_{_how}",
        _scatter_extremum,
        source="the cotangent goes to what equals the result, evenly among ties",
        complex=False,
        examples=[
            *[e for e in _updates(_how) if _how == "max" or e.name in {"repeated", "clipped"}],
            Example(lambda x, how=_how: getattr(x.at[jnp.array([1, 1, 0, 2])], how)(x[jnp.array([0, 0, 0, 1])]), ((3, 2),), "tied"),
        ],
    )
