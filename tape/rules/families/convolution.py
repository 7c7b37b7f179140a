"""Convolution: with strides, padding of either sign, dilations, groups and any order of axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from tape.rules.cotangents import cast, zeros
from tape.rules.registry import Cost, Example, register


class _Geometry:
    """Sizes along the spatial axes: of the dilated operands, and of the result with the window's steps filled in."""

    __slots__ = ("kernel", "lhs", "low", "result")

    def __init__(self, out: Any, lhs: Any, rhs: Any, params: dict[str, Any]) -> None:
        numbers = params["dimension_numbers"]
        self.lhs = _dilated(lhs, numbers.lhs_spec, params["lhs_dilation"])
        self.kernel = _dilated(rhs, numbers.rhs_spec, params["rhs_dilation"])
        self.result = _dilated(out, numbers.out_spec, params["window_strides"])
        self.low = [low for low, _ in params["padding"]]


def _dilated(x: Any, spec: Sequence[int], dilation: Sequence[int]) -> list[int]:
    return [max(0, (x.shape[axis] - 1) * step + 1) for axis, step in zip(spec[2:], dilation, strict=True)]


def _conv(strides: Sequence[int], padding: Any, **options: Any) -> Callable[..., Any]:
    return lambda x, k: lax.conv_general_dilated(x, k, strides, padding, **options)


def _widened(x: Any, k: Any) -> Any:
    wide = jnp.promote_types(x.dtype, jnp.float32)
    return lax.conv_general_dilated(x, k, (1,), "SAME", precision=lax.Precision.HIGHEST, preferred_element_type=wide)


@register(
    "conv_general_dilated",
    source="bilinear; strides of the one become dilations of the other (Dumoulin and Visin 2016, A guide to convolution arithmetic)",
    cost=Cost.HIGH,
    examples=[
        Example(_conv((1, 1), "SAME"), ((2, 3, 4, 5), (2, 3, 3, 2)), "same"),
        Example(_conv((2, 3), "VALID"), ((1, 2, 6, 8), (3, 2, 2, 3)), "strides"),
        Example(_conv((2,), [(2, 3)], lhs_dilation=(3,), rhs_dilation=(2,)), ((2, 2, 5), (3, 2, 3)), "both dilations"),
        Example(_conv((2,), [(-1, -2)], lhs_dilation=(2,)), ((1, 2, 7), (2, 2, 2)), "negative padding"),
        Example(_conv((3,), [(5, -2)], rhs_dilation=(2,)), ((1, 1, 8), (1, 1, 2)), "padding of both signs"),
        Example(_conv((2,), [(1, 2)], feature_group_count=2), ((2, 4, 6), (6, 2, 3)), "feature groups"),
        Example(_conv((1,), [(0, 1)], feature_group_count=3), ((1, 3, 4), (6, 1, 2)), "depthwise"),
        Example(_conv((2,), [(1, 0)], batch_group_count=2, rhs_dilation=(2,)), ((4, 3, 6), (4, 3, 2)), "batch groups"),
        Example(_conv((1, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")), ((2, 4, 5, 2), (3, 2, 2, 3)), "channels last"),
        Example(
            _conv((2, 1), "SAME", dimension_numbers=("HNCW", "WOHI", "CWNH"), feature_group_count=2),
            ((4, 1, 4, 3), (2, 2, 3, 2)),
            "odd order",
        ),
        Example(
            _conv((1,), "SAME", dimension_numbers=("CWN", "IWO", "WNC"), batch_group_count=2),
            ((2, 3, 4), (2, 2, 4)),
            "odd order, batch groups",
        ),
        Example(_conv((), ()), ((2, 3), (4, 3)), "no spatial axis"),
        Example(lambda x, k: lax.conv_transpose(x, k, (2,), "SAME", rhs_dilation=(2,)), ((1, 4, 2), (3, 2, 2)), "conv_transpose"),
        Example(lambda x, k: jnp.convolve(x, k, "full"), ((5,), (3,)), "convolve"),
        Example(_widened, ((1, 2, 4), (2, 2, 3)), "precision and preferred type"),
    ],
)
def _conv_general_dilated(ct: Any, out: Any, lhs: Any, rhs: Any, **params: Any) -> tuple[Any, ...]:
    """Convolve the cotangent with the other operand: each of the three strides becomes a dilation of another array."""
    return lambda: _lhs_cotangent(ct, out, lhs, rhs, params), lambda: _rhs_cotangent(ct, out, lhs, rhs, params)


def _lhs_cotangent(ct: Any, out: Any, lhs: Any, rhs: Any, params: dict[str, Any]) -> Any:
    """Sum ``ct[i] * rhs[j]`` where ``i * stride + j * rhs_dilation - low`` is the place in the dilated lhs."""
    if 0 in (ct.size, lhs.size, rhs.size):
        return zeros(lhs)
    numbers, groups, batches = params["dimension_numbers"], params["feature_group_count"], params["batch_group_count"]
    at = _Geometry(out, lhs, rhs, params)
    padding = []
    for size, kernel, result, low in zip(at.lhs, at.kernel, at.result, at.low, strict=True):
        before = kernel - 1 - low
        padding.append((before, kernel + size - 1 - result - before))
    turned = lax.rev(rhs, numbers.rhs_spec[2:])
    turned = _regrouped(turned, numbers.rhs_spec[0], numbers.rhs_spec[1], groups * batches)
    grad = _convolved(
        ct,
        turned,
        params,
        window_strides=params["lhs_dilation"],
        padding=padding,
        lhs_dilation=params["window_strides"],
        rhs_dilation=params["rhs_dilation"],
        dimension_numbers=lax.ConvDimensionNumbers(numbers.out_spec, _swapped(numbers.rhs_spec), numbers.lhs_spec),
        feature_group_count=groups * batches,
    )
    return cast(_regrouped(grad, numbers.lhs_spec[1], numbers.lhs_spec[0], batches), lhs.dtype)


def _rhs_cotangent(ct: Any, out: Any, lhs: Any, rhs: Any, params: dict[str, Any]) -> Any:
    """Correlate lhs with the cotangent: batch and features change places, and so do the two kinds of groups."""
    if 0 in (ct.size, lhs.size, rhs.size):
        return zeros(rhs)
    numbers = params["dimension_numbers"]
    at = _Geometry(out, lhs, rhs, params)
    padding = [
        (low, kernel + result - 1 - size - low) for size, kernel, result, low in zip(at.lhs, at.kernel, at.result, at.low, strict=True)
    ]
    grad = _convolved(
        lhs,
        ct,
        params,
        window_strides=params["rhs_dilation"],
        padding=padding,
        lhs_dilation=params["lhs_dilation"],
        rhs_dilation=params["window_strides"],
        dimension_numbers=lax.ConvDimensionNumbers(_swapped(numbers.lhs_spec), _swapped(numbers.out_spec), _swapped(numbers.rhs_spec)),
        feature_group_count=params["batch_group_count"],
        batch_group_count=params["feature_group_count"],
    )
    return cast(grad, rhs.dtype)


def _convolved(lhs: Any, rhs: Any, params: dict[str, Any], **options: Any) -> Any:
    """Convolve in the wider of the two dtypes, with the precision that was asked for."""
    dtype = jnp.result_type(lhs, rhs)
    return lax.conv_general_dilated(cast(lhs, dtype), cast(rhs, dtype), precision=params.get("precision"), **options)


def _swapped(spec: Sequence[int]) -> tuple[int, ...]:
    """Exchange batch and features (or output and input features) of an operand's axes."""
    return (spec[1], spec[0], *spec[2:])


def _regrouped(x: Any, source: int, target: int, groups: int) -> Any:
    """Move the groups, the slow part of axis ``source``, to be the slow part of axis ``target``."""
    if groups == 1:
        return x
    shape = list(x.shape)
    shape[source : source + 1] = [groups, x.shape[source] // groups]
    apart = jnp.moveaxis(lax.reshape(x, shape), source, target)
    final = list(x.shape)
    final[source] //= groups
    final[target] *= groups
    return lax.reshape(apart, final)
