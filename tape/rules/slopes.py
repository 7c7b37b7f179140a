"""Derivatives in forms that lose no digits: in the tails, near their zeros, and where a square overflows or underflows.

So do their own derivatives, for a rule is differentiated by the rules of what it is written in: a difference of nearly equal terms, or a
zero times an infinity, must not come out of that either.  Where two forms are needed, each is given arguments at which it is finite.
"""

from __future__ import annotations

from math import pi, sqrt
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tape.rules.cotangents import wide

if TYPE_CHECKING:
    from collections.abc import Callable

_CENTRE = 0.6  # of tanh: there 1 - tanh(x)^2 keeps its digits, and so does its derivative near zero


def parted(x: Any, near: Any, inside: Callable[[Any], Any], outside: Callable[[Any], Any], *, zero: float = 0.0, one: float = 1.0) -> Any:
    """``inside(x)`` where ``near``, ``outside(x)`` elsewhere; what is not chosen is computed at ``zero`` or ``one``, so that it is finite."""
    chosen, other = inside(jnp.where(near, x, zero)), outside(jnp.where(near, one, x))
    return jnp.where(near, chosen, other)


def scale(*xs: Any, least: float = 0.0) -> Any:
    """Largest size of some numbers, as a constant to divide by before squaring; 1 where that is no number to divide by."""
    size = lax.full_like(xs[0], least)
    for x in xs:
        size = lax.max(size, lax.abs(x))
    return lax.stop_gradient(jnp.where((size > 0) & (size < jnp.inf), size, 1))


def sech_squared(x: Any) -> Any:
    """``1 / cosh(x)^2`` of real numbers, the derivative of tanh."""
    y = lax.tanh(x)
    t = lax.exp(-lax.abs(x))
    tail = 2 * t / (1 + t * t)
    return jnp.where(lax.abs(x) < _CENTRE, 1 - y * y, tail * tail)


def accurate_tanh(ct: Any, out: Any, x: Any, **_: Any) -> Any:
    """VJP rule of tanh that keeps its tails, for :func:`tape.rules.defvjp`.

    It reads the argument, which is kept for the sweep then, and takes an exponential: a recurrent network's step needs up to 1.7 times as
    long.  The rule that there is gives ``1 - tanh^2``, which has lost two digits of float32 at 3, and all of them at 9, as JAX's has.

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
        return ct * ((1 - out) * (1 + out))
    return lax.convert_element_type(wide(ct) * sech_squared(wide(x)), x.dtype)


def accurate_logistic(ct: Any, out: Any, x: Any, **_: Any) -> Any:
    """VJP rule of the logistic function that keeps its tails, for :func:`tape.rules.defvjp`, as :func:`accurate_tanh` does.

    It is that of ``(1 + tanh(x / 2)) / 2``.  A step of an LSTM needs 1.8 times as long; the rule that there is gives ``s (1 - s)``, as JAX's
    does, which is 17 % off at 15.

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
        return ct * (out * (1 - out))
    return lax.convert_element_type(wide(ct) * (0.25 * sech_squared(0.5 * wide(x))), x.dtype)


@jax.custom_jvp
def sigma(x: Any) -> Any:
    """The logistic function of real numbers, whose derivative keeps its tails: for slopes, which are differentiated again at second order."""
    return lax.logistic(x)


sigma.defjvps(lambda t, out, x: t * (0.25 * sech_squared(0.5 * x)))


def one_minus_square(x: Any) -> Any:
    """``1 - x^2``; as a product near 1, as a difference near 0, where the derivative of the product would be one of equals."""
    return jnp.where(lax.abs(x) < 0.5, 1 - x * x, (1 - x) * (1 + x))


def atan(x: Any) -> Any:
    """``1 / (1 + x^2)``, whose derivative has ``x^4`` in it."""
    if jnp.iscomplexobj(x):
        return 1 / (1 + lax.square(x))
    x = bounded(x)
    m = scale(x, least=1.0)
    return lax.square(1 / m) / (lax.square(1 / m) + lax.square(x / m))


def angle(x: Any, y: Any) -> Any:
    """``x / (x^2 + y^2)``."""
    if jnp.iscomplexobj(x):
        return x / (lax.square(x) + lax.square(y))
    m = scale(x, y)
    return x / m / (lax.square(x / m) + lax.square(y / m)) / m


def asinh(x: Any) -> Any:
    """``(1 + x^2)^(-1/2)``."""
    if jnp.iscomplexobj(x):
        return lax.rsqrt(1 + lax.square(x))
    x = bounded(x)
    m = scale(x, least=1.0)
    return lax.rsqrt(lax.square(1 / m) + lax.square(x / m)) / m


def bounded(x: Any, bound: float | None = None) -> Any:
    """Numbers in place of infinities, or of what is beyond a bound; there, no gradient flows."""
    largest = float(np.finfo(x.dtype).max) if bound is None else bound
    return jnp.where(lax.abs(x) >= largest, lax.sign(x) * largest, x)


def cosh(x: Any) -> Any:
    """``cosh(x)``, of which XLA's has as many wrong units in the last place as x has tens."""
    return lax.cosh(x) if jnp.iscomplexobj(x) else parted(x, lax.abs(x) < 1, lax.cosh, lambda x: _powers(x, 1.0))


def sinh(x: Any) -> Any:
    """``sinh(x)``, as :func:`cosh`."""
    return lax.sinh(x) if jnp.iscomplexobj(x) else parted(x, lax.abs(x) < 1, lax.sinh, lambda x: lax.sign(x) * _powers(x, -1.0))


def _powers(x: Any, sign: float) -> Any:
    """``(exp(|x|) + sign exp(-|x|)) / 2``, by the powers of half of x: they do not overflow before the result does."""
    half = 0.5 * lax.abs(x)
    grown, shrunk = lax.exp(half), lax.exp(-half)
    return (0.5 * grown) * grown + (0.5 * sign * shrunk) * shrunk


def gauss(x: Any, sign: float = -1.0) -> Any:
    """``exp(-x^2)`` (or ``exp(x^2)``), the square being parted into an exact one and a small rest: its rounding would be multiplied."""
    info = np.finfo(x.dtype)
    x = bounded(x, sqrt(2 * info.maxexp))  # beyond, it is zero (infinite)
    head = lax.stop_gradient(lax.reduce_precision(x, info.nexp, info.nmant // 2))
    rest = 1 + lax.expm1(sign * ((x - head) * (x + head)))  # not exp: XLA would add the exponents
    return lax.exp(sign * (head * head)) * rest


def erf_inv(out: Any, x: Any) -> Any:
    """``sqrt(pi) / 2 exp(out^2)``, times ``erfc(|out|) / (1 - |x|)``, which is 1 but for the rounding of ``out``."""
    edge = lax.abs(x) == 1
    ratio = lax.erfc(lax.abs(out)) / jnp.where(edge, 1, 1 - lax.abs(x))
    return sqrt(pi) / 2 * gauss(out, 1.0) * lax.stop_gradient(jnp.where(edge, 1, ratio))


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


def bessel_i0e(out: Any, x: Any) -> Any:
    """``i1e(x) - sign(x) i0e(x)``; where the two are nearly equal, by the series of their difference."""

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


def bessel_i1(x: Any) -> Any:
    """``I0(x) - I1(x) / x``, by its series near zero."""

    def between(x: Any) -> Any:
        return (lax.bessel_i0e(x) - lax.bessel_i1e(x) / x) * lax.exp(lax.abs(x))

    return parted(x, lax.abs(x) < 1, _rising, between)


def bessel_i1e(out: Any, x: Any) -> Any:
    """``i0e(x) - i1e(x) / x - sign(x) i1e(x)``: near zero by the series of the first two, far from it by that of their difference."""

    def near(x: Any) -> Any:
        return lax.exp(-lax.abs(x)) * _rising(x) - jnp.where(x < 0, -1, jnp.where(x > 0, 1, 0)) * lax.bessel_i1e(x)

    def far(x: Any) -> Any:
        zero, one = (_hankel(order, _terms(x)) for order in (0, 1))
        return _asymptotic([a - b - c for a, b, c in zip(zero, one, [0.0, *one], strict=False)], x)

    def between(x: Any) -> Any:
        scaled = lax.bessel_i1e(x)
        return lax.bessel_i0e(x) - scaled / x - lax.sign(x) * scaled

    return parted(x, _far(x), far, lambda x: parted(x, lax.abs(x) < 1, near, between), zero=100.0)
