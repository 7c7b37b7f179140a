"""Derivatives of the logarithm of the gamma function, and the densities of the gamma and beta distributions."""

from __future__ import annotations

from math import pi
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

_STEPS = 8  # of the recurrence, to arguments at which the asymptotic series serves
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)


def _reflected(x: Any) -> tuple[Any, Any, Any]:
    """Where x is negative, ``1 - x``, and the sine and cosine of pi x but for their sign."""
    negative = x < 0
    angle = pi * jnp.where(negative, x - lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), 0.5)
    return negative, jnp.where(negative, 1 - x, x), angle


def trigamma(x: Any) -> Any:
    """Differentiate digamma: by recurrence and asymptotic series; left of zero, it is ``pi^2 / sin(pi x)^2`` less that of ``1 - x``."""
    negative, y, angle = _reflected(x)
    shifted = y + _STEPS
    inverse = 1 / shifted
    square = lax.square(inverse)
    tail = lax.full_like(x, 0)
    for b in reversed(_BERNOULLI):
        tail = (tail + b) * square
    total = inverse * (1 + 0.5 * inverse + tail)
    for k in reversed(range(1, _STEPS)):
        total = total + lax.square(1 / (y + k))
    total = total + lax.square(1 / y)
    return jnp.where(negative, lax.square(pi / lax.sin(angle)) - total, total)


def digamma(x: Any) -> Any:
    """Digamma, which left of zero is ``digamma(1 - x) - pi / tan(pi x)``."""
    negative, y, angle = _reflected(x)
    total = lax.digamma(y)
    return jnp.where(negative, total - pi * (lax.cos(angle) / lax.sin(angle)), total)


def polygamma(m: Any, x: Any) -> Any:
    """``(-1)^(m + 1) m! zeta(m + 1, x)``, the factorial as a whole number."""
    factorial = lax.exp(lax.lgamma(m + 1))
    factorial = jnp.where(factorial < 1e5, lax.round(factorial), factorial)
    sign = 2 * lax.rem(m, lax.full_like(m, 2)) - 1
    return sign * lax.stop_gradient(factorial) * lax.zeta(m + 1, x)


@jax.custom_jvp
def gamma_density(a: Any, x: Any) -> Any:
    """Density of the gamma distribution of shape a; for small ones without logarithms, whose rounding the exponential would multiply."""
    usual = lax.exp((a - 1) * lax.log(x) - x - lax.lgamma(a))
    small = (a < 10) & (x < 1e3)
    root = lax.exp(-0.5 * x)
    return jnp.where(small, (lax.pow(x, a - 1) * root) * root / (1 + lax.expm1(lax.lgamma(jnp.where(small, a, 1)))), usual)


gamma_density.defjvps(
    lambda t, out, a, x: t * (out * (lax.log(x) - lax.digamma(a))),
    lambda t, out, a, x: t * (out * ((a - 1 - x) / x)),
)


def beta_density(a: Any, b: Any, x: Any) -> Any:
    """Density of the beta distribution."""
    return lax.exp(_beta_exponent(a, b, x))


@jax.custom_jvp
def _beta_exponent(a: Any, b: Any, x: Any) -> Any:
    return (a - 1) * lax.log(x) + (b - 1) * lax.log1p(-x) - (lax.lgamma(a) + lax.lgamma(b) - lax.lgamma(a + b))


_beta_exponent.defjvps(
    lambda t, _, a, b, x: t * (lax.log(x) - lax.digamma(a) + lax.digamma(a + b)),
    lambda t, _, a, b, x: t * (lax.log1p(-x) - lax.digamma(b) + lax.digamma(a + b)),
    lambda t, _, a, b, x: t * (((a - 1) * (1 - x) - (b - 1) * x) / (x * (1 - x))),
)
