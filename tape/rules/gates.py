"""Derivatives of gates: tanh, the logistic function, and what is composed of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tape.rules.slopes import bounded, difference, exp2, parted

if TYPE_CHECKING:
    from collections.abc import Callable

_SATURATED = 1e3  # beyond it, the logistic function is 0 or 1 in every dtype, and its derivatives are 0


@jax.custom_jvp
def tanh(out: Any, x: Any) -> Any:
    """Differentiate the hyperbolic tangent, real, and keep the tails: ``(1 - |out|) / (1 + |out|)`` is ``exp(-2 |x|)``."""
    return lax.square(1 + lax.abs(out)) * lax.exp(-2 * lax.abs(x))


tanh.defjvps(lambda t, slope, out, x: -2 * out * t, None)


@jax.custom_jvp
def logistic(out: Any, x: Any) -> Any:
    """Differentiate ``out = s(x)``, real, and keep the tails: of ``out`` and ``1 - out``, the lesser is the other times ``exp(-|x|)``."""
    return lax.square(jnp.where(x < 0, 1 - out, out)) * lax.exp(-lax.abs(x))


logistic.defjvps(None, lambda t, slope, out, x: t * (-lax.tanh(0.5 * x) * slope))


@jax.custom_jvp
def sigma(x: Any) -> Any:
    """The logistic function of real numbers, whose derivative keeps its tails: for slopes, which are differentiated again at second order."""
    return lax.logistic(x)


sigma.defjvps(lambda t, out, x: t * logistic(out, x))


def of_difference(x: Any, y: Any) -> Any:
    """``s(x - y)``, with what the difference was rounded by."""
    d, rest = difference(x, y)
    return sigma(d) * (1 + lax.stop_gradient(rest * sigma(-d)))


def of_binary_difference(x: Any, y: Any) -> Any:
    """``2^x / (2^x + 2^y)``."""
    d, rest = difference(x, y)
    t = exp2(-lax.abs(d)) * (1 - lax.stop_gradient(rest * lax.sign(d) * np.log(2.0)))
    return jnp.where(d < 0, t, 1) / (1 + t)


def _gated(parts: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], Any]:
    """Return the derivative of ``x s(w)``, given ``s(w)`` and ``s(-w)``, and the first two derivatives of w."""

    @jax.custom_jvp
    def slope(x: Any) -> Any:
        x = bounded(x, _SATURATED)
        s, other, first, _ = parts(x)
        return s * (1 + x * first * other)

    def curvature(t: Any, _: Any, x: Any) -> Any:
        x = bounded(x, _SATURATED)
        s, other, first, second = parts(x)
        return t * (s * other * (2 * first + x * second + x * first * first * (other - s)))

    slope.defjvps(curvature)
    return slope


def _identity(x: Any) -> tuple[Any, ...]:
    t = lax.exp(-lax.abs(x))
    upper = 1 / (1 + t)
    lower = t * upper
    return jnp.where(x < 0, lower, upper), jnp.where(x < 0, upper, lower), 1, 0


def _cubic(x: Any) -> tuple[Any, ...]:
    """``w = 2 c (x + 0.044715 x^3)``, and ``s(w)`` by the tanh that the function itself takes: XLA computes it once."""
    c = np.sqrt(2 / np.pi).astype(x.dtype)
    u = c * (x + 0.044715 * (x**3))
    upper = 0.5 + 0.5 * lax.abs(jnp.tanh(u))
    lower = upper * lax.exp(-2 * lax.abs(u))
    return jnp.where(u < 0, lower, upper), jnp.where(u < 0, upper, lower), 2 * c * (1 + 0.134145 * lax.square(x)), 12 * 0.044715 * c * x


silu, gelu = _gated(_identity), _gated(_cubic)


def mish(x: Any) -> Any:
    """Derivative of ``x tanh(log(1 + exp(x)))``, a quotient of polynomials in ``exp(x)``, or in ``exp(-x)`` right of zero."""

    def left(x: Any) -> Any:
        e = lax.exp(x)
        return e * (x + 1 + e * (x + 1.5 + e * (1 + 0.25 * e))) / lax.square(1 + e * (1 + 0.5 * e))

    def right(x: Any) -> Any:
        r = lax.exp(-x)
        return 1 + lax.square(r) * (4 * x - 2 + r * (4 * (x - 1) - 4 * r)) / lax.square(1 + 2 * r * (1 + r))

    x = bounded(x, _SATURATED)
    return parted(x, x < 0, left, right, zero=-1.0)
