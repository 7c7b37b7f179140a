"""Layout: reshaping, transposing, broadcasting, joining, splitting, padding, and primitives that only move or label a value."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from tape.rules import parameters
from tape.rules.cotangents import filled, zeros
from tape.rules.registry import LINE, Cost, Example, register

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def _inverse(permutation: Sequence[int]) -> list[int]:
    return sorted(range(len(permutation)), key=permutation.__getitem__)


def _reshape(ct: Any, out: Any, x: Any, *_: Any, dimensions: Sequence[int] | None = None, **__: Any) -> tuple[Any, ...]:
    """Give the elements their old order: ``dimensions`` permutes the axes before the reshape."""
    if dimensions is None:
        return (lambda: lax.reshape(ct, x.shape),)
    return (lambda: lax.transpose(lax.reshape(ct, [x.shape[d] for d in dimensions]), _inverse(dimensions)),)


def _broadcast_in_dim(ct: Any, out: Any, x: Any, *_: Any, broadcast_dimensions: Sequence[int], **__: Any) -> tuple[Any, ...]:
    """Sum over every axis of the result along which the input was repeated."""

    def grad() -> Any:
        kept = {d for d, size in zip(broadcast_dimensions, x.shape, strict=True) if size == out.shape[d]}
        repeated = [d for d in range(out.ndim) if d not in kept and out.shape[d] != 1]
        summed = lax.reduce_sum(ct, repeated) if repeated else ct
        return summed if summed.shape == x.shape else lax.reshape(summed, x.shape)

    return (grad,)


def _concatenate(ct: Any, out: Any, *ins: Any, dimension: int, **_: Any) -> tuple[Any, ...]:
    """Cut the cotangent where the inputs were joined."""
    ends = list(accumulate(x.shape[dimension] for x in ins))

    def piece(start: int, end: int) -> Callable[[], Any]:
        return lambda: lax.slice_in_dim(ct, start, end, axis=dimension)

    return tuple(piece(end - x.shape[dimension], end) for x, end in zip(ins, ends, strict=True))


def _stack(ct: Any, out: Any, *ins: Any, axis: int, **_: Any) -> tuple[Any, ...]:
    """Take each input's slice along the new axis."""

    def piece(i: int) -> Callable[[], Any]:
        return lambda: lax.index_in_dim(ct, i, axis, keepdims=False)

    return tuple(map(piece, range(len(ins))))


def _split(ct: Any, out: Any, x: Any, *, axis: int, **_: Any) -> tuple[Any, ...]:
    """Join the cotangents of the pieces."""
    return (lambda: lax.concatenate(filled(ct, out), axis),)


def _unstack(ct: Any, out: Any, x: Any, *, axis: int, **_: Any) -> tuple[Any, ...]:
    """Join the cotangents of the pieces along the axis that was taken apart."""
    return (lambda: jnp.stack(filled(ct, out), axis),)


def _tile(ct: Any, out: Any, x: Any, *, reps: Sequence[int], **_: Any) -> tuple[Any, ...]:
    """Sum over the copies, each of which is an axis of its own before the axis that it repeats."""

    def grad() -> Any:
        copies = (*reps,)
        sizes = (1,) * (len(copies) - x.ndim) + x.shape
        apart = lax.reshape(ct, [n for pair in zip(copies, sizes, strict=True) for n in pair])
        return lax.reshape(lax.reduce_sum(apart, range(0, 2 * len(copies), 2)), x.shape)

    return (grad,)


def _pad(ct: Any, out: Any, x: Any, value: Any, *, padding_config: Sequence[tuple[int, int, int]], **_: Any) -> tuple[Any, ...]:
    """Cut off what was padded (and pad what was cut off); the padding value gets the sum of the places that it filled."""

    def operand() -> Any:
        edges = lax.pad(ct, _scalar(ct), [(-low, -high, 0) for low, high, _ in padding_config])
        return lax.slice(edges, [0] * ct.ndim, edges.shape, [inner + 1 for _, _, inner in padding_config])

    def padding() -> Any:
        filled = lax.pad(lax.full(x.shape, False), jnp.asarray(True), padding_config)
        return lax.reduce_sum(lax.select(filled, ct, zeros(ct)), range(ct.ndim))

    return operand, padding


def _scalar(like: Any) -> Any:
    return lax.full((), 0, like.dtype)


def _slice(ct: Any, out: Any, x: Any, *, start_indices: Sequence[int], strides: Sequence[int] | None, **_: Any) -> tuple[Any, ...]:
    """Put the cotangent back where the slice was taken, zeros around and between."""

    def grad() -> Any:
        config = []
        for size, taken, start, stride in zip(x.shape, ct.shape, start_indices, strides or (1,) * x.ndim, strict=True):
            end = start + (taken - 1) * stride + 1 if taken else start
            config.append((start, size - end, stride - 1))
        return lax.pad(ct, _scalar(ct), config)

    return (grad,)


def _device_put(ct: Any, out: Any, *ins: Any, devices: Sequence[Any], srcs: Sequence[Any], **_: Any) -> tuple[Any, ...]:
    """Carry each cotangent back to where its value came from."""

    def back(c: Any, device: Any, source: Any) -> Any:
        return c if c is None or source is None else lambda: jax.device_put(c, source, src=device)

    return tuple(back(*each) for each in zip(ct, devices, srcs, strict=True))


def _barrier(ct: Any, out: Any, *ins: Any, **params: Any) -> tuple[Any, ...]:
    """Hold the cotangents together as the values were."""
    present = [c for c in ct if c is not None]
    held = iter(parameters.apply("optimization_barrier", params, *present))
    return tuple(None if c is None else next(held) for c in ct)


def _held(*values: Any) -> Any:
    return lax.optimization_barrier(values)


def _placed(x: Any) -> Any:
    return lax.with_sharding_constraint(x, jax.sharding.SingleDeviceSharding(jax.devices()[0]))


register(
    "reshape",
    _reshape,
    domain=(LINE,),
    source="a permutation of elements: its transpose is the inverse permutation",
    complex=True,
    examples=(
        Example(lambda x: lax.reshape(x, (6,)), ((2, 3),), "flatten"),
        Example(lambda x: lax.reshape(x, (1, 2, 1, 3)), ((2, 3),), "unit axes"),
        Example(lambda x: lax.reshape(x, (4, 6), dimensions=(2, 0, 1)), ((2, 3, 4),), "dimensions"),
        Example(lambda x: lax.reshape(x, ()), ((1, 1),), "scalar"),
        Example(lambda x: lax.reshape(x, (3, 0)), ((0, 2),), "empty"),
    ),
    cost=Cost.FREE,
)
register(
    "squeeze",
    lambda ct, out, x, **_: (lambda: lax.reshape(ct, x.shape),),
    domain=(LINE,),
    source="the same elements in another shape",
    complex=True,
    examples=(
        Example(lambda x: lax.squeeze(x, (1,)), ((2, 1, 3),), "one"),
        Example(lambda x: lax.squeeze(x, (0, 2)), ((1, 3, 1),), "all"),
    ),
    cost=Cost.FREE,
)
register(
    "transpose",
    lambda ct, out, x, *, permutation, **_: (lambda: lax.transpose(ct, _inverse(permutation)),),
    domain=(LINE,),
    source="the inverse permutation of the axes",
    complex=True,
    examples=(
        Example(jnp.transpose, ((2, 3),), "matrix"),
        Example(lambda x: lax.transpose(x, (2, 0, 1)), ((2, 3, 4),), "cycle"),
    ),
    cost=Cost.FREE,
)
register(
    "broadcast_in_dim",
    _broadcast_in_dim,
    domain=(LINE,),
    source="the transpose of a repetition is a sum",
    complex=True,
    examples=(
        Example(lambda x: jnp.broadcast_to(x, (4, 2, 3)), ((2, 3),), "leading"),
        Example(lambda x: lax.broadcast_in_dim(x, (2, 4, 3), (0, 2)), ((2, 3),), "inner"),
        Example(lambda x: lax.broadcast_in_dim(x, (2, 4, 3), (0, 2)), ((1, 3),), "stretched"),
        Example(lambda x: lax.broadcast_in_dim(x, (1, 1, 3), (1, 2)), ((1, 3),), "unit axis"),
        Example(lambda x: jnp.broadcast_to(x, (2, 3)), ((),), "scalar"),
        Example(lambda x: jnp.broadcast_to(x, (0, 3)), ((3,),), "empty"),
    ),
    cost=Cost.FREE,
)
register(
    "concatenate",
    _concatenate,
    domain=(LINE, LINE, LINE),
    source="the transpose of joining is cutting",
    complex=True,
    examples=(
        Example(lambda x, y: lax.concatenate([x, y], 0), ((2, 3), (1, 3)), "rows"),
        Example(lambda x, y, z: lax.concatenate([x, y, z, x], 1), ((2, 1), (2, 0), (2, 3)), "columns"),
    ),
    cost=Cost.FREE,
)
register(
    "stack",
    _stack,
    domain=(LINE, LINE),
    source="the transpose of joining is cutting",
    complex=True,
    examples=(
        Example(lambda x, y: jnp.stack([x, y]), ((2, 3), (2, 3)), "first"),
        Example(lambda x, y: jnp.stack([x, y, x], -1), ((2, 3), (2, 3)), "last"),
    ),
)
register(
    "split",
    _split,
    domain=(LINE,),
    source="the transpose of cutting is joining",
    complex=True,
    examples=(
        Example(lambda x: lax.split(x, (1, 3, 0), axis=1), ((2, 4),), "all"),
        Example(lambda x: jnp.split(x, [1, 3])[1], ((4, 2),), "one"),
    ),
    cost=Cost.FREE,
)
register(
    "unstack",
    _unstack,
    domain=(LINE,),
    source="the transpose of cutting is joining",
    complex=True,
    examples=(
        Example(jnp.unstack, ((3, 2),), "all"),
        Example(lambda x: jnp.unstack(x, axis=1)[1], ((2, 3),), "one"),
    ),
)
register(
    "tile",
    _tile,
    domain=(LINE,),
    source="the transpose of a repetition is a sum",
    complex=True,
    examples=(
        Example(lambda x: jnp.tile(x, (2, 3)), ((3, 2),), "both"),
        Example(lambda x: jnp.tile(x, 2), ((3, 2),), "one"),
        Example(lambda x: jnp.tile(x, (0, 1)), ((3, 2),), "none"),
    ),
)
register(
    "pad",
    _pad,
    domain=(LINE, LINE),
    source="each place of the result reads one element of the operand or the padding value",
    complex=True,
    examples=(
        Example(lambda x, v: lax.pad(x, v, ((1, 2, 0), (0, 3, 0))), ((2, 3), ()), "edges"),
        Example(lambda x, v: lax.pad(x, v, ((1, 0, 2), (0, 0, 1))), ((2, 3), ()), "interior"),
        Example(lambda x, v: lax.pad(x, v, ((-1, 2, 0), (1, -2, 0))), ((3, 4), ()), "negative"),
        Example(lambda x, v: lax.pad(x, v, ((-2, -1, 2), (2, -3, 1))), ((3, 4), ()), "negative interior"),
        Example(lambda x, v: lax.pad(x, v, ((-2, -1, 0),)), ((3,), ()), "all cut"),
        Example(lambda x, v: lax.pad(x, v, ((1, 2, 1),)), ((0,), ()), "empty"),
    ),
    cost=Cost.FREE,
)
register(
    "rev",
    lambda ct, out, x, *, dimensions, **_: (lambda: lax.rev(ct, dimensions),),
    domain=(LINE,),
    source="a reversal is its own transpose",
    complex=True,
    examples=(
        Example(lambda x: lax.rev(x, (1,)), ((2, 3),), "one"),
        Example(jnp.flip, ((2, 3),), "both"),
    ),
    cost=Cost.FREE,
)
register(
    "slice",
    _slice,
    domain=(LINE,),
    source="the transpose of reading a part is writing it into zeros",
    complex=True,
    examples=(
        Example(lambda x: x[1:3, :2], ((4, 3),), "plain"),
        Example(lambda x: lax.slice(x, (1, 0), (7, 5), (3, 2)), ((8, 5),), "strides"),
        Example(lambda x: lax.slice(x, (1,), (7,), (4,)), ((8,),), "uneven end"),
        Example(lambda x: lax.slice(x, (2, 0), (2, 3), (2, 1)), ((4, 3),), "empty"),
    ),
    cost=Cost.FREE,
)
register(
    "copy",
    lambda ct, out, x, **_: (ct,),
    domain=(LINE,),
    source="identity",
    complex=True,
    examples=(Example(jnp.copy, ((2, 3),), "copy"),),
    cost=Cost.FREE,
)
register(
    "name",
    lambda ct, out, x, **_: (ct,),
    domain=(LINE,),
    source="identity; the name speaks to checkpoint policies only",
    complex=True,
    examples=(Example(lambda x: parameters.apply("name", {"name": "x"}, x)[0], ((2, 3),), "named"),),
)
register(
    "device_put",
    _device_put,
    domain=(LINE,),
    source="identity, to another place; the cotangent goes back",
    complex=True,
    examples=(
        Example(jax.device_put, ((2, 3),), "anywhere"),
        Example(lambda x: jax.device_put(x, jax.devices()[0]), ((2, 3),), "device"),
        Example(lambda x: jax.device_put(x, jax.devices()[0], src=jax.devices()[0]), ((2, 3),), "there and back"),
    ),
)
register(
    "sharding_constraint",
    lambda ct, out, x, **params: (lambda: parameters.apply("sharding_constraint", params, ct)[0],),
    domain=(LINE,),
    source="identity; the cotangent is laid out as its value",
    complex=True,
    examples=(Example(_placed, ((2, 3),), "one device"),),
)
register(
    "optimization_barrier",
    _barrier,
    domain=(LINE, LINE),
    source="identity of several values at once",
    complex=True,
    examples=(
        Example(_held, ((2, 3), (2,)), "both"),
        Example(lambda x, y: _held(x, y)[1], ((2, 3), (2,)), "one"),
    ),
)
