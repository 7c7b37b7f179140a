"""Derivatives of gates: tanh, the logistic function, and what is composed of them."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, pi, sqrt
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tape.rules import plane
from tape.rules.cotangents import wide
from tape.rules.slopes import beyond, bounded, difference, exp2, parted

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


def _decay(size: Any) -> tuple[Any, Any, Any]:
    """``exp(-size)``, as 0 where it is small; and in two factors, for it underflows before its product with a larger number does."""
    far = lax.real(size) > 64 if jnp.iscomplexobj(size) else size > 64
    power = lax.exp(jnp.where(far, 64 - size, -size))
    return jnp.where(far, 0, power), power, jnp.where(far, exp(-64.0), 1)


def _change(change: Any, e: Any, power: float) -> Any:
    """``e - power`` where that is ``power (exp(change) - 1)``: a series of little, for an expm1 would take most of the time."""
    series = lax.full_like(change, 0)
    for k in range(7 if np.finfo(change.dtype).bits < 64 else 13, 0, -1):
        series = (series + 1) * (change * (1 / k))
    return jnp.where(lax.abs(change) < 0.35, power * series, e - power)


# Where the first and the second derivative of silu are zero, in two parts.
_SILU_ZEROS = ((-1.2784645427610737, -1.0946994183093437e-16), (2.3993572805154675, 1.8464872855353363e-16))


@jax.custom_jvp
def silu(x: Any) -> Any:
    """Derivative of ``x s(x)``: ``s(x) s(-x) (1 + x + exp(x))``, the last factor by what x and the power are beyond its zero."""
    x = bounded(x, _SATURATED)
    left = lax.real(x) < 0 if jnp.iscomplexobj(x) else x < 0
    t, power, last = _decay(jnp.where(left, -x, x))
    d = beyond(x, *_SILU_ZEROS[0])
    return lax.square(1 / (1 + t)) * jnp.where(left, (power * (d + _change(d, t, exp(_SILU_ZEROS[0][0])))) * last, 1 + t * (1 + x))


def _silu_curvature(t: Any, _: Any, x: Any) -> Any:
    """``s(x) s(-x) (2 - x tanh(x / 2))``, with the last factor as in the first derivative."""
    x = bounded(x, _SATURATED)
    size = jnp.where(lax.real(x) < 0, -x, x) if jnp.iscomplexobj(x) else lax.abs(x)
    e, power, last = _decay(size)
    d, level = beyond(size, *_SILU_ZEROS[1]), exp(-_SILU_ZEROS[1][0])
    factor = _change(-d, e, level) * (2 + size) - (1 - level) * d
    return t * ((power * factor / lax.integer_pow(1 + e, 3)) * last)


silu.defjvps(_silu_curvature)

_LINEAR = 2 * sqrt(2 / pi)
_CUBIC = 0.044715 * _LINEAR
_LINEAR_HEAD, _CUBIC_HEAD = round(_LINEAR * 2**11) / 2**11, round(_CUBIC * 2**15) / 2**15  # twelve digits of each


def _gelu_bounded(x: Any) -> Any:
    """Keep to where the derivative is neither 0 nor 1."""
    bound = jnp.asarray(16 if x.dtype.itemsize < 8 else 32, x.dtype)
    return lax.clamp(-bound, x, bound)


def _gelu_parts(x: Any) -> tuple[tuple[Any, Any, Any], Any]:
    """The decay ``exp(-|w|)`` and ``w'`` of ``w = 2 c (x + 0.044715 x^3)``: the exponential multiplies what w was rounded by.

    So w is an exact product, of numbers of as many digits as it allows, and a small rest.
    """

    def rounded(x: Any, digits: tuple[int, int]) -> Any:
        places = 2.0 ** digits[x.dtype.itemsize > 4]
        return lax.round(x * places, lax.RoundingMethod.TO_NEAREST_EVEN) * (1 / places)

    head = rounded(x, (8, 21))
    exact = lax.square(head)
    upper = rounded(exact, (4, 31))
    v = _LINEAR_HEAD + _CUBIC_HEAD * upper  # exact as well
    missing = _CUBIC * ((exact - upper) + (x - head) * (x + head)) + (_CUBIC - _CUBIC_HEAD) * upper + (_LINEAR - _LINEAR_HEAD)
    top = rounded(v, (7, 19))
    large, small = head * top, head * (v - top) + (x - head) * v + x * missing
    w = large + small
    lost = lax.sign(w) * ((large - w) + small)
    e, power, last = _decay(lax.abs(w))
    return (e - e * lost, power - power * lost, last), _LINEAR + 3 * _CUBIC * lax.square(x)


# Where the derivatives of gelu by tanh are zero (the second at both signs), in two parts.
_GELU_ZEROS = ((-0.7524614220710162, -3.473691681308185e-17), (1.4185040087908283, 8.729298689888722e-18))


@jax.custom_jvp
def gelu(x: Any) -> Any:
    """Derivative of ``x s(w)``, ``w = 2 c (x + 0.044715 x^3)``; that is gelu by tanh, for ``(1 + tanh(w / 2)) / 2`` is ``s(w)``.

    It is ``s(w) s(-w) (1 + x w' + exp(w))``; from the last factor its value at a zero is taken, term by term, in differences of one sign.
    """
    x = _gelu_bounded(x)
    (e, power, last), first = _gelu_parts(x)
    upper = 1 / (1 + e)
    zero, rest = _GELU_ZEROS[0]
    d, squares = beyond(x, zero, rest), lax.square(x) + zero * (x + zero)
    factor = d * (_LINEAR + 3 * _CUBIC * squares) + _change(d * (_LINEAR + _CUBIC * squares), e, _gelu_power(zero))
    return jnp.where(x < 0, (lax.square(upper) * power * factor) * last, upper * (1 + (x * first) * (e * upper)))


def _gelu_power(x: float) -> float:
    return exp(x * (_LINEAR + _CUBIC * x * x))


def _gelu_curvature(t: Any, _: Any, x: Any) -> Any:
    """``s(w) s(-w) (2 w' + x w'' - x w'^2 tanh(w / 2))``, with the last factor as in the first derivative."""
    x = lax.abs(_gelu_bounded(x))
    (e, decay, last), first = _gelu_parts(x)
    zero, rest = _GELU_ZEROS[1]
    d, squares, power = beyond(x, zero, rest), lax.square(x) + zero * (x + zero), _gelu_power(-zero)
    fourth = lax.square(x) * squares + zero**3 * (x + zero)
    convex = 12 * _CUBIC * (x + zero)
    steep = _LINEAR**2 + _CUBIC * (6 * _LINEAR * squares + 9 * _CUBIC * fourth)
    level = 2 * _LINEAR + 12 * _CUBIC * zero**2 + zero * (_LINEAR + 3 * _CUBIC * zero**2) ** 2
    change = power * lax.expm1(-d * (_LINEAR + _CUBIC * squares))
    beside = d * (convex * (1 + e) - steep * (1 - e)) + level * change
    factor = jnp.where(x < 0.5, (1 + e) * (2 * first + 6 * _CUBIC * lax.square(x)) - x * lax.square(first) * (1 - e), beside)
    return t * ((decay * factor / lax.integer_pow(1 + e, 3)) * last)


gelu.defjvps(_gelu_curvature)

# Where the first derivative of mish is zero, and the second left and right, in two parts.
_MISH_ZERO, *_MISH_ZEROS = (
    (-1.1924312145154952, -4.8484829848031044e-17),
    (-2.256376396360793, -1.0703174875019247e-16),
    (1.4905711794854284, 7.126036715834263e-17),
)


@jax.custom_jvp
def mish(x: Any) -> Any:
    """Derivative of ``x tanh(log(1 + exp(x)))``, a quotient of polynomials in ``exp(x)``, or in ``exp(-x)`` right of zero."""

    def left(x: Any) -> Any:
        e, power, last = _decay(-x)
        d, level = beyond(x, *_MISH_ZERO), exp(_MISH_ZERO[0])
        slope = (x + 1.5) + (e + level) + 0.25 * (e * e + level * (e + level))
        factor = (1 + level) * d + _change(d, e, level) * slope  # x + 1 + e (x + 1.5) + e^2 + e^3 / 4
        return (power * factor / lax.square(1 + e * (1 + 0.5 * e))) * last

    def right(x: Any) -> Any:
        r = lax.exp(-x)
        return 1 + lax.square(r) * (4 * x - 2 + r * (4 * (x - 1) - 4 * r)) / lax.square(1 + 2 * r * (1 + r))

    x = bounded(x, _SATURATED)
    return parted(x, x < 0, left, right, zero=-1.0)


def _mish_curvature(t: Any, _: Any, x: Any) -> Any:
    """``4 e (a + b x) / (e^2 + 2 e + 2)^3``, e = exp(x), with polynomials a and b of e.

    At a zero z, ``a + b z`` has the factor ``e - exp(z)``: so it is ``b (x - z)`` and a product with ``exp(x - z) - 1``, of one sign.
    """

    def left(x: Any) -> Any:
        zero, rest = _MISH_ZEROS[0]
        e, power, last = _decay(-x)
        high = 2 - 2 * zero  # of the other factor, from the end where nothing cancels
        middle = 6 - 3 * zero + high * exp(zero)
        low = 8 + 2 * zero + middle * exp(zero)
        d = beyond(x, zero, rest)
        b = 2 + e * (2 - e * (3 + 2 * e))
        top = (exp(zero) * lax.expm1(d)) * (low + e * (middle + e * high)) + d * b
        return (4 * power * top / lax.integer_pow(2 + e * (2 + e), 3)) * last

    def right(x: Any) -> Any:
        (zero, rest), r = _MISH_ZEROS[1], lax.exp(-x)
        low = -(4 + 2 * zero) / exp(zero)
        middle = (low - 8 - 2 * zero) / exp(zero)
        high = 2 - 2 * zero
        d = beyond(x, zero, rest)
        b = -(2 * (1 - r) * (1 + r) + r * (3 - 2 * lax.square(r)))
        lost = jnp.where(lax.abs(d) < 0.35, lax.expm1(-d), exp(zero) * r - 1)
        top = -lost * (high + r * (middle + r * low)) + d * b
        base = 1 + 2 * r * (1 + r)
        return ((r / base) * (4 * top / base)) * (r / base)

    x = bounded(x, _SATURATED)
    return t * parted(x, x < 0, left, right, zero=-1.0)


mish.defjvps(_mish_curvature)
