"""Derivatives of the modified Bessel functions: series where they are differences of what is nearly equal."""

from __future__ import annotations

from math import pi
from typing import Any

import jax.numpy as jnp
from jax import lax

from tape.rules.slopes import parted


def _terms(x: Any) -> int:
    return 12 if x.dtype.itemsize < 8 else 26


def _far(x: Any) -> Any:
    """Tell where the series in 1 / x is as good as the dtype."""
    return lax.abs(x) > (10 if x.dtype.itemsize < 8 else 25)


def _series(coefficients: list[float], x: Any) -> Any:
    total = lax.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * x + c
    return total


def _hankel(order: int, count: int) -> list[float]:
    """Return the coefficients of 1 / x in ``exp(-x) sqrt(2 pi x) I(x)``."""
    found = [1.0]
    for k in range(1, count):
        found.append(-found[-1] * (4 * order * order - (2 * k - 1) ** 2) / (8 * k))
    return found


def _asymptotic(coefficients: list[float], x: Any) -> Any:
    """Return ``sum(c / x^k) / sqrt(2 pi x)``, the first c being zero."""
    size = lax.abs(x)
    return lax.rsqrt(2 * pi * size) * (_series(coefficients[1:], 1 / size) / size)


def i0e(out: Any, x: Any) -> Any:
    """Subtract: ``I1 - sign I0``, scaled; where the two are nearly equal, by the series of their difference."""

    def far(x: Any) -> Any:
        zero, one = (_hankel(order, _terms(x)) for order in (0, 1))
        return lax.sign(x) * _asymptotic([b - a for a, b in zip(zero, one, strict=True)], x)

    return parted(x, _far(x), far, lambda x: lax.bessel_i1e(x) - lax.sign(x) * lax.bessel_i0e(x), zero=100.0)


def _rising(x: Any) -> Any:
    """Return ``I1'(x)`` by its series, for ``|x| < 1``."""
    coefficients = [0.5]
    for k in range(1, _terms(x) // 2 + 3):
        coefficients.append(coefficients[-1] * (2 * k + 1) / (2 * k - 1) / (4 * k * (k + 1)))
    return _series(coefficients, x * x)


def i1(x: Any) -> Any:
    """``I0(x) - I1(x) / x``, by its series near zero."""

    def between(x: Any) -> Any:
        return (lax.bessel_i0e(x) - lax.bessel_i1e(x) / x) * lax.exp(lax.abs(x))

    return parted(x, lax.abs(x) < 1, _rising, between)


def i1e(out: Any, x: Any) -> Any:
    """Subtract: ``I0 - I1 / x - sign I1``, scaled; near zero by the series of the first two, far from it by that of their difference."""

    def near(x: Any) -> Any:
        return lax.exp(-lax.abs(x)) * _rising(x) - jnp.where(x < 0, -1, jnp.where(x > 0, 1, 0)) * lax.bessel_i1e(x)

    def far(x: Any) -> Any:
        zero, one = (_hankel(order, _terms(x)) for order in (0, 1))
        return _asymptotic([a - b - c for a, b, c in zip(zero, one, [0.0, *one], strict=False)], x)

    def between(x: Any) -> Any:
        scaled = lax.bessel_i1e(x)
        return lax.bessel_i0e(x) - scaled / x - lax.sign(x) * scaled

    return parted(x, _far(x), far, lambda x: parted(x, lax.abs(x) < 1, near, between), zero=100.0)
