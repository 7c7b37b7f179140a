"""Weights of a softmax in two parts: second derivatives have ``1 - 2 p``, a difference of nearly equal sums where p is near 1/2."""

from __future__ import annotations

import functools
from math import factorial, log, prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tape.rules.slopes import LOG2_HEAD, LOG2_REST, difference, half


def _exp(x: Any, rest: Any) -> tuple[Any, Any]:
    """``exp(x + rest)`` in two parts, of numbers up to 0: a power of two, and the first terms of the series without rounding."""
    info, one = np.finfo(x.dtype), lax.optimization_barrier(lax.full_like(x, 1))  # XLA would add constants
    places = 2.0 ** (info.nmant - info.nexp + 7)
    short = round(LOG2_REST * places) / places  # times a whole number, it is exact as well
    x = jnp.maximum(x, info.minexp * log(2.0))
    whole = lax.round(x * (1 / log(2.0)), lax.RoundingMethod.TO_NEAREST_EVEN)
    r, lost = difference(x - LOG2_HEAD * whole, short * whole)
    rest = rest + lost - (LOG2_REST - short) * whole
    head, series = half(r), lax.full_like(x, 0)
    for n in range(9 if x.dtype.itemsize < 8 else 16, 2, -1):
        series = series * r + 1 / factorial(n)
    first, second = difference(one, -r)
    total, third = difference(first, -0.5 * head * head)
    last = series * (r * r * r)
    missing = second + third + 0.5 * (r - head) * (r + head) + last + rest * (total + last)
    power = lax.reduce_precision(lax.exp(log(2.0) * whole), info.nexp, 0)
    return total * power, missing * power


def softmax(x: Any, axes: tuple[int, ...]) -> Any:
    """Softmax along axes, with what the differences from the largest were rounded by: the exponential multiplies it."""
    top = jnp.max(x, axes, keepdims=True)
    weight = lax.exp(x - top) * (1 + difference(x, top)[1])
    return weight / jnp.sum(weight, axes, keepdims=True)


def _balance(x: Any, axes: tuple[int, ...]) -> Any:
    """``1 - 2 p`` of the softmax p along axes: the weights are added as multiples of one unit, not rounded, and then what is left."""
    weights, missing = _exp(*difference(x, jnp.max(x, axes, keepdims=True)))
    places = 2.0 ** (np.finfo(x.dtype).nmant - 1 - (prod(x.shape[a] for a in axes) - 1).bit_length())
    head = lax.round(weights * places, lax.RoundingMethod.TO_NEAREST_EVEN)
    rest = (weights * places - head) + missing * places
    most, least = jnp.sum(head, axes, keepdims=True), jnp.sum(rest, axes, keepdims=True)
    return ((most - 2 * head) + (least - 2 * rest)) / (most + least)


def _remaining(p: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """``1 - 2 p`` with its digits; where that is differentiated again, as the plain difference."""
    return _balance(lax.stop_gradient(x), axes) - 2 * (p - lax.stop_gradient(p))


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def spread(p: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """``p (1 - p)`` of the softmax p of x."""
    return p * (1 - p)


@spread.defjvp
def _(axes: tuple[int, ...], primals: Any, tangents: Any) -> Any:
    p, x = primals
    return spread(p, x, axes), _remaining(p, x, axes) * tangents[0]


# A product of two different weights is exp(x_i) / S^2 times exp(x_j), S being the sum: as factors, both are given as p, and have the
# derivatives of these.  So what is lost in 1 - 2 p is nowhere a difference of products.


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def over_square(p: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """Weights that :func:`unscaled` ones are multiplied with."""
    return p


@over_square.defjvp
def _(axes: tuple[int, ...], primals: Any, tangents: Any) -> Any:
    (p, x), t = primals, tangents[1]
    out, along = over_square(p, x, axes), p * t
    return out, out * (_remaining(p, x, axes) * t - 2 * (jnp.sum(along, axes, keepdims=True) - along))


@jax.custom_jvp
def unscaled(p: Any, x: Any) -> Any:
    """Weights whose sum is a constant."""
    return p


unscaled.defjvps(None, lambda t, out, p, x: out * t)
