"""Derivatives of the modified Bessel functions: series where they are differences of what is nearly equal."""

from __future__ import annotations

import functools
from math import factorial, fsum, pi
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tape.rules.slopes import beyond, parted, polynomial

# Where the first and the second derivative of ``exp(-x) I1(x)`` are zero, in two parts.
_ZEROS = {1: (1.5451272579925426, 1.0630756383046672e-16), 2: (2.781492935347947, -9.215242391717268e-17)}


def _terms(x: Any) -> int:
    return 12 if x.dtype.itemsize < 8 else 26


def _far(x: Any) -> Any:
    """Tell where the series in 1 / x is as good as the dtype."""
    return lax.abs(x) > (16 if x.dtype.itemsize < 8 else 25)


def _hankel(order: int, count: int) -> list[float]:
    """Return the coefficients of 1 / x in ``exp(-x) sqrt(2 pi x) I(x)``."""
    terms = [1.0]
    for k in range(1, count):
        terms.append(-terms[-1] * (4 * order * order - (2 * k - 1) ** 2) / (8 * k))
    return terms


def _asymptotic(coefficients: list[float], x: Any) -> Any:
    """Return ``sum(c / x^k) / sqrt(2 pi x)``, the first c being zero."""
    size = lax.abs(x)
    return lax.rsqrt(2 * pi * size) * (polynomial(1 / size, coefficients[1:]) / size)


def _weights(power: int, count: int, *, by_cosine: bool) -> tuple[Any, Any]:
    """``w = 1 - cos t`` in equal steps of t, and the weights of a mean of w to a power, times cos t or not."""
    angles = pi * np.arange(count) / (count - 1)
    w = 2 * np.sin(angles / 2) ** 2
    weights = w**power * (np.cos(angles) if by_cosine else 1.0) / (count - 1)
    weights[[0, -1]] /= 2
    return w, weights


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _integral(x: Any, by_cosine: bool, power: int = 1) -> Any:
    """Mean of ``w^power exp(-w |x|)``, times cos t or not: a scaled function's derivative but for the sign.

    In as many steps as make the error a digit beyond the last where the series takes over; near its zero, by what it is more than there.
    """
    w, weights = _weights(power, 17 if x.dtype.itemsize < 8 else 27, by_cosine=by_cosine)
    total = jnp.sum(jnp.asarray(weights, x.dtype) * lax.exp(-lax.abs(x)[..., None] * jnp.asarray(w, x.dtype)), -1)
    if not by_cosine or power not in _ZEROS:
        return total
    d = beyond(lax.abs(x), *_ZEROS[power])
    return jnp.where(lax.abs(d) < 0.5, d * polynomial(d, _risen(power, 12 if x.dtype.itemsize < 8 else 22)), total)


@functools.cache
def _risen(power: int, count: int) -> list[float]:
    """Return the coefficients of an integral's series about its zero, from the first power on."""
    w, weights = _weights(power, 40, by_cosine=True)
    weights = weights * np.exp(-w * _ZEROS[power][0])
    return [(-1) ** n * fsum(weights * w**n) / factorial(n) for n in range(1, count)]


@_integral.defjvp
def _(by_cosine: bool, power: int, primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return _integral(x, by_cosine, power), -t * (lax.sign(x) * _integral(x, by_cosine, power + 1))


def i0e(out: Any, x: Any) -> Any:
    """``I1 - sign I0``, scaled: an integral, far from zero a series, for the two are nearly equal."""

    def near(x: Any) -> Any:
        return jnp.where(x == 0, 0.5 * x, -lax.sign(x) * _integral(x, False))  # the slope's own at zero is JAX's

    def far(x: Any) -> Any:
        zero, one = (_hankel(order, _terms(x)) for order in (0, 1))
        return lax.sign(x) * _asymptotic([b - a for a, b in zip(zero, one, strict=True)], x)

    return parted(x, _far(x), far, near, zero=100.0)


def _rising(x: Any) -> Any:
    """Return ``I1'(x)`` by its series, for ``|x| < 1``."""
    coefficients = [0.5]
    for k in range(1, _terms(x) // 2 + 3):
        coefficients.append(coefficients[-1] * (2 * k + 1) / (2 * k - 1) / (4 * k * (k + 1)))
    return polynomial(x * x, coefficients)


def i1(x: Any) -> Any:
    """``I0(x) - I1(x) / x``, by its series near zero."""

    def between(x: Any) -> Any:
        return (lax.bessel_i0e(x) - lax.bessel_i1e(x) / x) * lax.exp(lax.abs(x))

    return parted(x, lax.abs(x) < 1, _rising, between)


def i1e(out: Any, x: Any) -> Any:
    """``I0 - I1 / x - sign I1``, scaled: an integral, far from zero a series."""

    def near(x: Any) -> Any:
        return jnp.where(x == 0, 0.5, -_integral(x, True))

    def far(x: Any) -> Any:
        zero, one = (_hankel(order, _terms(x)) for order in (0, 1))
        return _asymptotic([a - b - c for a, b, c in zip(zero, one, [0.0, *one], strict=False)], x)

    return parted(x, _far(x), far, near, zero=100.0)
