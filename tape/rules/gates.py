"""Derivatives of gates: tanh, the logistic function, and what is composed of them."""

from __future__ import annotations

from math import pi, sqrt
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tape.rules import plane
from tape.rules.cotangents import wide
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


def accurate_tanh(ct: Any, out: Any, x: Any, **_: Any) -> Any:
    """VJP rule of tanh that keeps its tails, for :func:`tape.rules.defvjp`: ``(1 + |tanh|)^2 exp(-2 |x|)``.

    It reads the argument, which is kept for the sweep beside the result then: a recurrent network keeps twice as much.  The rule that there
    is gives ``1 - tanh^2``, which has lost two digits of float32 at 3, and all of them at 9, as JAX's has.

    Example:
        >>> import tape
        >>> from jax.extend.core.primitives import tanh_p
        >>> usual = tape.rules.lookup(tanh_p)
        >>> tape.rules.defvjp(tanh_p, tape.rules.accurate_tanh)
        >>> x = tape.Variable(20.0)
        >>> print(f"{float(tape.gradients(tape.numpy.tanh(x), x).value):.1e}")
        1.7e-17
        >>> tape.rules.defvjp(tanh_p, usual.vjp)

    """
    if jnp.iscomplexobj(x):
        return ct * plane.tanh(x)
    return _of_single(tanh, lax.tanh, ct, out, x)


def accurate_logistic(ct: Any, out: Any, x: Any, **_: Any) -> Any:
    """VJP rule of the logistic function that keeps its tails, for :func:`tape.rules.defvjp`: ``max(s, 1 - s)^2 exp(-|x|)``.

    It reads the argument as :func:`accurate_tanh` does.  The rule that there is gives ``s (1 - s)``, as JAX's does, which is 17 % off at
    15.

    Example:
        >>> import tape
        >>> from jax.extend.core.primitives import logistic_p
        >>> usual = tape.rules.lookup(logistic_p)
        >>> tape.rules.defvjp(logistic_p, tape.rules.accurate_logistic)
        >>> x = tape.Variable(30.0)
        >>> print(f"{float(tape.gradients(tape.nn.sigmoid(x), x).value):.1e}")
        9.4e-14
        >>> tape.rules.defvjp(logistic_p, usual.vjp)

    """
    if jnp.iscomplexobj(x):
        return ct * plane.logistic(x)
    return _of_single(logistic, lax.logistic, ct, out, x)


def _of_single(slope: Callable[[Any, Any], Any], function: Callable[[Any], Any], ct: Any, out: Any, x: Any) -> Any:
    """Multiply by a slope; for half precisions in single, of the function computed again: it multiplies what ``out`` was rounded by."""
    if x.dtype.itemsize > 2:
        return ct * slope(out, x)
    single = wide(x)
    return lax.convert_element_type(wide(ct) * slope(function(single), single), x.dtype)


@jax.custom_jvp
def sigma(x: Any) -> Any:
    """The logistic function of real numbers, whose derivative keeps its tails: for slopes, which second orders differentiate again."""
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


def _both(x: Any) -> tuple[Any, Any]:
    """``s(x)`` and ``s(-x)``."""
    t = lax.exp(-lax.abs(x))
    upper = 1 / (1 + t)
    lower = t * upper
    return jnp.where(x < 0, lower, upper), jnp.where(x < 0, upper, lower)


@jax.custom_jvp
def silu(x: Any) -> Any:
    """Derivative of ``x s(x)``."""
    x = bounded(x, _SATURATED)
    s, other = _both(x)
    return s * (1 + x * other)


def _silu_curvature(t: Any, _: Any, x: Any) -> Any:
    x = bounded(x, _SATURATED)
    s, other = _both(x)
    return t * (s * other * (2 + x * (other - s)))


silu.defjvps(_silu_curvature)

_LINEAR = 2 * sqrt(2 / pi)
_CUBIC = 0.044715 * _LINEAR


@jax.custom_jvp
def gelu(x: Any) -> Any:
    """Derivative of ``x s(w)``, ``w = 2 c (x + 0.044715 x^3)``; that is gelu by tanh, for ``(1 + tanh(w / 2)) / 2`` is ``s(w)``.

    In as few operations as the derivative of the tanh: both values of the logistic function are finite, and keep their tails.
    """
    x = lax.clamp(jnp.asarray(-_SATURATED, x.dtype), x, jnp.asarray(_SATURATED, x.dtype))
    square = lax.square(x)
    w = x * (_LINEAR + _CUBIC * square)
    return lax.logistic(w) * (1 + x * (_LINEAR + 3 * _CUBIC * square) * lax.logistic(-w))


def _gelu_curvature(t: Any, _: Any, x: Any) -> Any:
    x = bounded(x, _SATURATED)
    square = lax.square(x)
    first = _LINEAR + 3 * _CUBIC * square
    s, other = _both(x * (_LINEAR + _CUBIC * square))
    return t * (s * other * (2 * first + 6 * _CUBIC * square + x * first * first * (other - s)))


gelu.defjvps(_gelu_curvature)


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
