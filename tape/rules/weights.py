"""Weights of a softmax in several parts: second derivatives have ``1 - 2 p``, a difference of nearly equal sums where p is near 1/2."""

from __future__ import annotations

import functools
from decimal import Decimal, localcontext
from math import factorial, log, prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tape.rules.slopes import difference, finite_difference, half, polynomial

_STEPS = 1024  # of the numbers whose logarithms are tabled


@functools.cache
def _logs(dtype: Any) -> Any:
    """Logarithms of 2, and of numbers from the first on that has a place, in three parts; multiples of the first two parts are exact."""
    least, most = (round(_STEPS * 2.0**power) for power in (-0.51, 0.51))
    places = np.finfo(dtype).nmant - 8
    with localcontext(prec=150):
        rest = [Decimal(2).ln(), *((Decimal(k) / _STEPS).ln() for k in range(least, most + 1))]
        parts = []
        for unit in (2.0**-places, 4.0**-places):
            parts.append([round(x / Decimal(unit)) * unit for x in rest])
            rest = [x - Decimal(part) for x, part in zip(rest, parts[-1], strict=True)]
    table = np.array([*parts, list(map(float, rest))], dtype)
    return least, table[:, 0], table[:, 1:].T


def _exp(x: Any, rest: Any) -> list[Any]:
    """``exp(x + rest)`` of numbers up to 0, in parts of falling sizes, all but the last of them exact.

    It is a power of two, times a number of few digits whose logarithm is tabled, times the exponential of what is left, under 1/1400.
    """
    info = np.finfo(x.dtype)
    first_place, log2, logs = _logs(x.dtype)
    x = jnp.maximum(x, -100 * log(2.0))
    whole = lax.round(x * (1 / log(2.0)), lax.RoundingMethod.TO_NEAREST_EVEN)
    short = lax.round(_STEPS * lax.exp(x - log(2.0) * whole), lax.RoundingMethod.TO_NEAREST_EVEN)
    place = lax.convert_element_type(short, np.uint32) - np.uint32(first_place)  # unsigned, as it counts from nowhere else
    large, small, smallest = (whole * of_2 + log for of_2, log in zip(log2, jnp.moveaxis(jnp.asarray(logs)[place], -1, 0), strict=True))
    r, first = finite_difference(x, large)
    r, second = finite_difference(r, small)
    r, third = finite_difference(r, -rest)
    head = half(r)
    change, fourth = finite_difference(r, -0.5 * head * head)
    series = polynomial(r, [1 / factorial(n) for n in range(3, 6 if x.dtype.itemsize < 8 else 9)])
    missing = fourth + 0.5 * (r - head) * (r + head) + series * (r * r * r) + (first + second + third - smallest) * (1 + (r + 0.5 * r * r))
    head = lax.reduce_precision(change, info.nexp, info.nmant - 12)
    number = short * (lax.reduce_precision(lax.exp(log(2.0) * whole), info.nexp, 0) / _STEPS)
    return [*finite_difference(number, -number * head), number * (change - head), number * missing]


def softmax(x: Any, axes: tuple[int, ...]) -> Any:
    """Softmax along axes, with what the differences from the largest were rounded by: the exponential multiplies it.

    Infinities have all the weight.
    """
    top = jnp.max(x, axes, keepdims=True)
    weight = lax.exp(jnp.where(x == jnp.inf, 0, x - top)) * (1 + difference(x, top)[1])
    return weight / jnp.sum(weight, axes, keepdims=True)


def _balance(x: Any, axes: tuple[int, ...]) -> Any:
    """``1 - 2 p`` of the softmax p along axes: of the weights, whole numbers of two units are added, not rounded, and then what is left."""
    whole = np.dtype(f"i{x.dtype.itemsize}")
    bits = max(min(np.finfo(x.dtype).nmant - 1, 8 * whole.itemsize - 4 - (prod(x.shape[a] for a in axes) - 1).bit_length()), 0)
    unit = 2.0**bits

    def rounded(x: Any) -> tuple[Any, Any]:
        number = lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)
        return lax.convert_element_type(number, whole), x - number

    def joined(first: Any, second: Any, rest: Any) -> Any:
        carried = lax.shift_right_arithmetic(second, lax.full_like(second, bits))
        second = second - carried * 2**bits  # few enough digits for floating point
        return ((first + carried).astype(x.dtype) * unit + second.astype(x.dtype)) + rest

    largest, *parts, least = _exp(*difference(x, jnp.max(x, axes, keepdims=True)))
    first, left = rounded(largest * unit)
    seconds, rests = zip(*(rounded(y * unit) for y in (left, *(part * unit for part in parts))), strict=True)
    levels = lax.optimization_barrier((first, sum(seconds), sum(rests) + least * unit * unit))  # or it would be computed again for the sums
    sums = [jnp.sum(level, axes, keepdims=True, dtype=level.dtype) for level in levels]
    return joined(*(total - 2 * level for total, level in zip(sums, levels, strict=True))) / joined(*sums)


def _remaining(p: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """``1 - 2 p`` with its digits; where that is differentiated again, as the plain difference."""
    return _balance(lax.stop_gradient(x), axes) - 2 * (p - lax.stop_gradient(p))


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def products(p: Any, x: Any, axes: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """``p (1 - p)`` of the softmax p of x, and two factors, over the square of the sum S and unscaled, both given as p.

    A product of two different weights is exp(x_i) / S^2 times exp(x_j): the factors are given as p, and have the derivatives of these.
    So what is lost in 1 - 2 p is nowhere a difference of products.
    """
    return p * (1 - p), p, p


@products.defjvp
def _(axes: tuple[int, ...], primals: Any, tangents: Any) -> Any:
    (p, x), (change, t) = primals, tangents
    own, over_square, unscaled = products(p, x, axes)
    remaining, along = _remaining(p, x, axes), p * t
    of_square = remaining * t - 2 * (jnp.sum(along, axes, keepdims=True) - along)
    return (own, over_square, unscaled), (remaining * change, over_square * of_square, unscaled * t)
