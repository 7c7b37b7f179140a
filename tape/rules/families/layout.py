"""Layout: reshaping, transposing, broadcasting, joining, splitting, padding, and primitives that only move or label a value."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tape.rules import parameters
from tape.rules.cotangents import filled, zeros
from tape.rules.registry import Cost, Example, register


def _inverse(permutation: Sequence[int]) -> list[int]:
    return sorted(range(len(permutation)), key=permutation.__getitem__)


@register(
    "reshape",
    source="a permutation of elements: its transpose is the inverse permutation",
    cost=Cost.FREE,
    examples=[
        Example(lambda x: lax.reshape(x, (6,)), ((2, 3),), "flatten"),
        Example(lambda x: lax.reshape(x, (1, 2, 1, 3)), ((2, 3),), "unit axes"),
        Example(lambda x: lax.reshape(x, (4, 6), dimensions=(2, 0, 1)), ((2, 3, 4),), "dimensions"),
        Example(lambda x: lax.reshape(x, ()), ((1, 1),), "scalar"),
        Example(lambda x: lax.reshape(x, (3, 0)), ((0, 2),), "empty"),
    ],
)
def _reshape(ct: Any, out: Any, x: Any, *_: Any, dimensions: Sequence[int] | None = None, **__: Any) -> Any:
    """Give the elements their old order: ``dimensions`` permutes the axes before the reshape."""
    if dimensions is None:
        return lax.reshape(ct, x.shape)
    return lax.transpose(lax.reshape(ct, [x.shape[d] for d in dimensions]), _inverse(dimensions))


@register(
    "broadcast_in_dim",
    source="the transpose of a repetition is a sum",
    cost=Cost.FREE,
    examples=[
        Example(lambda x: jnp.broadcast_to(x, (4, 2, 3)), ((2, 3),), "leading"),
        Example(lambda x: lax.broadcast_in_dim(x, (2, 4, 3), (0, 2)), ((2, 3),), "inner"),
        Example(lambda x: lax.broadcast_in_dim(x, (2, 4, 3), (0, 2)), ((1, 3),), "stretched"),
        Example(lambda x: lax.broadcast_in_dim(x, (1, 1, 3), (1, 2)), ((1, 3),), "unit axis"),
        Example(lambda x: jnp.broadcast_to(x, (2, 3)), ((),), "scalar"),
        Example(lambda x: jnp.broadcast_to(x, (0, 3)), ((3,),), "empty"),
    ],
)
def _broadcast_in_dim(ct: Any, out: Any, x: Any, *_: Any, broadcast_dimensions: Sequence[int], **__: Any) -> Any:
    """Sum over every axis of the result along which the input was repeated."""
    kept = {d for d, size in zip(broadcast_dimensions, x.shape, strict=True) if size == out.shape[d]}
    repeated = [d for d in range(out.ndim) if d not in kept and out.shape[d] != 1]
    return lax.reshape(lax.reduce_sum(ct, repeated) if repeated else ct, x.shape)


@register(
    "concatenate",
    source="the transpose of joining is cutting",
    cost=Cost.FREE,
    examples=[
        Example(lambda x, y: lax.concatenate([x, y], 0), ((2, 3), (1, 3)), "rows"),
        Example(lambda x, y, z: lax.concatenate([x, y, z, x], 1), ((2, 1), (2, 0), (2, 3)), "columns"),
    ],
)
def _concatenate(ct: Any, out: Any, *ins: Any, dimension: int, **_: Any) -> tuple[Any, ...]:
    sizes = [x.shape[dimension] for x in ins]
    return tuple(partial(lax.slice_in_dim, ct, end - n, end, axis=dimension) for n, end in zip(sizes, accumulate(sizes), strict=True))


@register(
    "stack",
    source="the transpose of joining is cutting",
    examples=[
        Example(lambda x, y: jnp.stack([x, y]), ((2, 3), (2, 3)), "first"),
        Example(lambda x, y: jnp.stack([x, y, x], -1), ((2, 3), (2, 3)), "last"),
    ],
)
def _stack(ct: Any, out: Any, *ins: Any, axis: int, **_: Any) -> tuple[Any, ...]:
    rows = cache(lambda: lax.unstack(ct, axis))  # one equation, not two for each row
    return tuple([lambda i=i: rows()[i] for i in range(len(ins))])


register(
    "split",
    lambda ct, out, x, *, axis, **_: lax.concatenate(filled(ct, out), axis),
    source="the transpose of cutting is joining",
    cost=Cost.FREE,
    examples=[
        Example(lambda x: lax.split(x, (1, 3, 0), axis=1), ((2, 4),), "all"),
        Example(lambda x: jnp.split(x, [1, 3])[1], ((4, 2),), "one"),
    ],
)
register(
    "unstack",
    lambda ct, out, x, *, axis, **_: jnp.stack(filled(ct, out), axis),
    source="the transpose of cutting is joining",
    examples=[Example(jnp.unstack, ((3, 2),), "all"), Example(lambda x: jnp.unstack(x, axis=1)[1], ((2, 3),), "one")],
)


@register(
    "tile",
    source="the transpose of a repetition is a sum",
    examples=[
        Example(lambda x: jnp.tile(x, (2, 3)), ((3, 2),), "both"),
        Example(lambda x: jnp.tile(x, 2), ((3, 2),), "one"),
        Example(lambda x: jnp.tile(x, (0, 1)), ((3, 2),), "none"),
    ],
)
def _tile(ct: Any, out: Any, x: Any, *, reps: Sequence[int], **_: Any) -> Any:
    """Sum over the copies, each of which is an axis of its own before the axis that it repeats."""
    sizes = (1,) * (len(reps) - x.ndim) + x.shape
    apart = lax.reshape(ct, [n for pair in zip(reps, sizes, strict=True) for n in pair])
    return lax.reshape(lax.reduce_sum(apart, range(0, 2 * len(reps), 2)), x.shape)


@register(
    "pad",
    source="each place of the result reads one element of the operand or the padding value",
    cost=Cost.FREE,
    examples=[
        Example(lambda x, v: lax.pad(x, v, ((1, 2, 0), (0, 3, 0))), ((2, 3), ()), "edges"),
        Example(lambda x, v: lax.pad(x, v, ((1, 0, 2), (0, 0, 1))), ((2, 3), ()), "interior"),
        Example(lambda x, v: lax.pad(x, v, ((-1, 2, 0), (1, -2, 0))), ((3, 4), ()), "negative"),
        Example(lambda x, v: lax.pad(x, v, ((-2, -1, 2), (2, -3, 1))), ((3, 4), ()), "negative interior"),
        Example(lambda x, v: lax.pad(x, v, ((-2, -1, 0),)), ((3,), ()), "all cut"),
        Example(lambda x, v: lax.pad(x, v, ((1, 2, 1),)), ((0,), ()), "empty"),
    ],
)
def _pad(ct: Any, out: Any, x: Any, value: Any, *, padding_config: Sequence[tuple[int, int, int]], **_: Any) -> tuple[Any, ...]:
    """Cut off what was padded (and pad what was cut off); the padding value gets the sum of the places that it filled."""

    def operand() -> Any:
        edges = lax.pad(ct, jnp.zeros((), ct.dtype), [(-low, -high, 0) for low, high, _ in padding_config])
        return lax.slice(edges, [0] * ct.ndim, edges.shape, [inner + 1 for _, _, inner in padding_config])

    def padding() -> Any:
        filled = lax.pad(lax.full(x.shape, False), jnp.asarray(True), padding_config)
        return lax.reduce_sum(lax.select(filled, ct, zeros(ct)), range(ct.ndim))

    return operand, padding


@register(
    "slice",
    source="the transpose of reading a part is writing it into zeros",
    cost=Cost.FREE,
    examples=[
        Example(lambda x: x[1:3, :2], ((4, 3),), "plain"),
        Example(lambda x: lax.slice(x, (1, 0), (7, 5), (3, 2)), ((8, 5),), "strides"),
        Example(lambda x: lax.slice(x, (1,), (7,), (4,)), ((8,),), "uneven end"),
        Example(lambda x: lax.slice(x, (2, 0), (2, 3), (2, 1)), ((4, 3),), "empty"),
    ],
)
def _slice(ct: Any, out: Any, x: Any, *, start_indices: Sequence[int], strides: Sequence[int] | None, **_: Any) -> Any:
    """Put the cotangent back where the slice was taken, zeros around and between."""
    config = []
    for size, taken, start, stride in zip(x.shape, ct.shape, start_indices, strides or (1,) * x.ndim, strict=True):
        end = start + (taken - 1) * stride + 1 if taken else start
        config.append((start, size - end, stride - 1))
    return lax.pad(ct, jnp.zeros((), ct.dtype), config)


@register(
    "device_put",
    source="identity, to another place; the cotangent goes back",
    examples=[
        Example(jax.device_put, ((2, 3),), "anywhere"),
        Example(lambda x: jax.device_put(x, jax.devices()[0]), ((2, 3),), "device"),
        Example(lambda x: jax.device_put(x, jax.devices()[0], src=jax.devices()[0]), ((2, 3),), "there and back"),
    ],
)
def _device_put(ct: Any, out: Any, *ins: Any, devices: Sequence[Any], srcs: Sequence[Any], **_: Any) -> tuple[Any, ...]:
    ways = zip(ct, devices, srcs, strict=True)
    return tuple(c if c is None or source is None else jax.device_put(c, source, src=device) for c, device, source in ways)


@register(
    "optimization_barrier",
    source="identity of several values at once",
    examples=[
        Example(lambda x, y: lax.optimization_barrier((x, y)), ((2, 3), (2,)), "both"),
        Example(lambda x, y: lax.optimization_barrier((x, y))[1], ((2, 3), (2,)), "one"),
    ],
)
def _barrier(ct: Any, out: Any, *ins: Any, **params: Any) -> tuple[Any, ...]:
    """Hold the cotangents together as the values were."""
    present = [c for c in ct if c is not None]
    held = iter(parameters.apply("optimization_barrier", params, *present))
    return tuple(None if c is None else next(held) for c in ct)


register(
    "squeeze",
    lambda ct, out, x, **_: lax.reshape(ct, x.shape),
    source="the same elements in another shape",
    cost=Cost.FREE,
    examples=[Example(lambda x: lax.squeeze(x, (1,)), ((2, 1, 3),), "one"), Example(lambda x: lax.squeeze(x, (0, 2)), ((1, 3, 1),), "all")],
)
register(
    "transpose",
    lambda ct, out, x, *, permutation, **_: lax.transpose(ct, _inverse(permutation)),
    source="the inverse permutation of the axes",
    cost=Cost.FREE,
    examples=[Example(jnp.transpose, ((2, 3),), "matrix"), Example(lambda x: lax.transpose(x, (2, 0, 1)), ((2, 3, 4),), "cycle")],
)
register(
    "rev",
    lambda ct, out, x, *, dimensions, **_: lax.rev(ct, dimensions),
    source="a reversal is its own transpose",
    cost=Cost.FREE,
    examples=[Example(lambda x: lax.rev(x, (1,)), ((2, 3),), "one"), Example(jnp.flip, ((2, 3),), "both")],
)
register(
    "copy",
    lambda ct, out, x, **_: ct,
    source="identity",
    cost=Cost.FREE,
    examples=[
        Example(jnp.copy, ((2, 3),), "copy"),
    ],
)
register(
    "name",
    lambda ct, out, x, **_: ct,
    source="identity; the name speaks to checkpoint policies only",
    examples=[
        Example(lambda x: parameters.apply("name", {"name": "x"}, x)[0], ((2, 3),), "named"),
    ],
)
register(
    "sharding_constraint",
    lambda ct, out, x, **params: parameters.apply("sharding_constraint", params, ct)[0],
    source="identity; the cotangent is laid out as its value",
    examples=[
        Example(lambda x: lax.with_sharding_constraint(x, jax.sharding.SingleDeviceSharding(jax.devices()[0])), ((2, 3),), "one device")
    ],
)
