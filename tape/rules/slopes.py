"""Derivatives in forms that lose no digits: in the tails, near their zeros, and where a square overflows or underflows.

So do their own derivatives, for a rule is differentiated by the rules of what it is written in: a difference of nearly equal terms, or a
zero times an infinity, must not come out of that either.  Where two forms are needed, each is given arguments at which it is finite.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import e, log
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

LOG2_HEAD = 0.6875  # of log(2): times a whole number, it is exact
LOG2_REST = 0.00564718055994530942


def parted(x: Any, near: Any, inside: Callable[[Any], Any], outside: Callable[[Any], Any], *, zero: float = 0.0, one: float = 1.0) -> Any:
    """``inside(x)`` where ``near``, else ``outside(x)``; what is not chosen is computed at ``zero`` or ``one``, so that it is finite."""
    chosen, other = inside(jnp.where(near, x, zero)), outside(jnp.where(near, one, x))
    return jnp.where(near, chosen, other)


def scale(*xs: Any, axis: Sequence[int] | None = None) -> Any:
    """Power of two that some numbers (those along axes) are near to when multiplied with it, as a constant: their squares stay in range.

    It is exact to multiply with.  Not to divide by: XLA would make one division of two, and one square of two numbers.
    """
    size = functools.reduce(lax.max, map(lax.abs, xs))
    if axis is not None:
        size = jnp.max(size, tuple(axis), keepdims=True, initial=0)
    info = np.finfo(size.dtype)
    power = lax.reduce_precision(size, info.nexp, 0)
    return lax.stop_gradient(
        1 / lax.clamp(jnp.asarray(2.0**info.minexp, size.dtype), power, jnp.asarray(2.0 ** (info.maxexp - 2), size.dtype))
    )


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def squares(x: Any, y: Any, sign: float = 1.0) -> Any:
    """``x^2 + sign y^2``, rounded once: products of halves are exact (Dekker), and what their sums are rounded by is known (Knuth)."""
    u, v = half(x), half(y)
    d, e = x - u, y - v
    total, rest = difference(u * u, -sign * (v * v))
    total, more = difference(total, -2 * (d * u + sign * (e * v)))
    return total + (rest + more + (d * d + sign * (e * e)))


@squares.defjvp
def _(sign: float, primals: Any, tangents: Any) -> Any:
    (x, y), (t, s) = primals, tangents
    return squares(x, y, sign), 2 * (x * t + sign * (y * s))


def one_minus_square(x: Any) -> Any:
    """``1 - x^2``, where it has a root and near to it."""
    return squares(lax.full_like(x, 1), bounded(x, 1e18), -1.0)


@jax.custom_jvp
def sqrt(out: Any) -> Any:
    """Derivative of the square root, whose own would be a quotient of a quotient."""
    return 0.5 / out


sqrt.defjvps(lambda t, slope, out: (-0.5 * t) / lax.square(out))


@jax.custom_jvp
def logit(x: Any) -> Any:
    """``1 / (x (1 - x))``, whose derivative would be a difference of equals about 1/2."""
    return 1 / (x * (1 - x))


@logit.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    product = x * (1 - x)
    return logit(x), t * (((2 * x - 1) / product) / product)


@jax.custom_jvp
def rsqrt(out: Any, x: Any) -> Any:
    """Derivative of ``x^(-1/2)``, whose own would be a sum of products that underflow before it does."""
    return (-0.5 * out) / x


@rsqrt.defjvp
def _(primals: Any, tangents: Any) -> Any:
    """``3/4 x^(-5/2)``, by the root, of which one over it has one rounding more; scaled, for its powers to stay in range."""
    large = primals[1] > 1
    x = primals[1] * jnp.where(large, 1 / 16, 16)
    curvature = jnp.where(large, 0.75 / 1024, 0.75 * 1024) / (lax.square(x) * lax.sqrt(x))
    return rsqrt(*primals), tangents[1] * curvature


@jax.custom_jvp
def cbrt(out: Any, x: Any) -> Any:
    """Derivative of the cube root, of the root after a step of Newton's: XLA's is off by several units."""
    plain = (out != 0) & (lax.abs(out) < jnp.inf)
    y = jnp.where(plain, out, 1)
    return 1 / (3 * lax.square(out - jnp.where(plain, (y - (x / y) / y) / 3, 0)))


cbrt.defjvps(None, lambda t, slope, out, x: t * ((-2 / 3 * slope) / x))


def atan(x: Any) -> Any:
    """``1 / (1 + x^2)``, whose derivative has ``x^4`` in it."""
    u, one, r = _scaled(x, lax.full_like(x, 1))
    return lax.square(r) / squares(one, u)


def angle(x: Any, y: Any) -> Any:
    """``x / (x^2 + y^2)``."""
    return x / (lax.square(x) + lax.square(y)) if jnp.iscomplexobj(x) else _angle(x, y)


@jax.custom_jvp
def _angle(x: Any, y: Any) -> Any:
    u, v, r = _scaled(x, y)
    return (u / squares(u, v)) * r


@_angle.defjvp
def _(primals: Any, tangents: Any) -> Any:
    """By factors: a difference of quotients would be rounded oftener."""
    u, v, r = _scaled(*primals)
    fourth = lax.square(squares(u, v))
    along, across = ((v - u) * (v + u)) / fourth, (2 * (u * v)) / fourth
    return _angle(*primals), tangents[0] * ((along * r) * r) - tangents[1] * ((across * r) * r)


@jax.custom_jvp
def direction(x: Any, y: Any) -> Any:
    """``x / sqrt(x^2 + y^2)``, whose derivative would be a difference of equals where y is small."""
    u, v, _ = _scaled(x, y)
    return u * lax.rsqrt(squares(u, v))


def _scaled(x: Any, y: Any) -> tuple[Any, Any, Any]:
    """Numbers times a power of two, and that; of infinities signs, and 0: one over the largest number is denormal, which GPUs keep."""
    far, beyond = jnp.isinf(x), jnp.isinf(y)
    r = jnp.where(far | beyond, 0, scale(x, y))
    return jnp.where(far, lax.sign(x), x * r), jnp.where(beyond, lax.sign(y), y * r), r


@direction.defjvp
def _(primals: Any, tangents: Any) -> Any:
    u, v, r = _scaled(*primals)
    square = squares(u, v)
    return direction(*primals), (tangents[0] * v - tangents[1] * u) * ((v * r) / (square * lax.sqrt(square)))


def asinh(x: Any) -> Any:
    """``(1 + x^2)^(-1/2)``."""
    u, one, r = _scaled(x, lax.full_like(x, 1))
    return lax.rsqrt(squares(one, u)) * r


@jax.custom_jvp
def asin(x: Any) -> Any:
    """``(1 - x^2)^(-1/2)``."""
    return lax.rsqrt(one_minus_square(x))


@asin.defjvp
def _(primals: Any, tangents: Any) -> Any:
    rest = one_minus_square(primals[0])
    return asin(primals[0]), tangents[0] * (primals[0] / (rest * lax.sqrt(rest)))


def acosh(x: Any) -> Any:
    """``(x^2 - 1)^(-1/2)``."""
    u, one, r = _scaled(x, lax.full_like(x, 1))
    return lax.rsqrt(squares(u, one, -1.0)) * r


def bounded(x: Any, bound: float | None = None) -> Any:
    """Numbers in place of infinities, or of what is beyond a bound (real parts of complex numbers); there, no gradient flows."""
    if jnp.iscomplexobj(x):
        return lax.complex(bounded(lax.real(x), bound), lax.imag(x))
    largest = float(np.finfo(x.dtype).max) if bound is None else bound
    return jnp.where(lax.abs(x) >= largest, lax.sign(x) * largest, x)


@jax.custom_jvp
def cosh(x: Any) -> Any:
    """``cosh(x)``, of which XLA's has as many wrong units in the last place as x has tens."""
    return parted(x, lax.abs(x) < 1, lax.cosh, lambda x: _powers(x, 1.0))


@jax.custom_jvp
def sinh(x: Any) -> Any:
    """``sinh(x)``, as :func:`cosh`."""
    return parted(x, lax.abs(x) < 1, lax.sinh, lambda x: lax.sign(x) * _powers(x, -1.0))


cosh.defjvps(lambda t, out, x: t * sinh(x))
sinh.defjvps(lambda t, out, x: t * cosh(x))


def _powers(x: Any, sign: float) -> Any:
    """``(exp(|x|) + sign exp(-|x|)) / 2``, by the powers of half of x: they do not overflow before the result does."""
    half = 0.5 * lax.abs(x)
    grown, shrunk = lax.exp(half), lax.exp(-half)
    return (0.5 * grown) * grown + (0.5 * sign * shrunk) * shrunk


def difference(x: Any, y: Any) -> tuple[Any, Any]:
    """``x - y`` and what it was rounded by (Knuth); no difference of infinities."""
    equal = jnp.isinf(x) & (x == y)
    d, rest = finite_difference(jnp.where(equal, 0, x), jnp.where(equal, 0, y))
    return d, jnp.where(jnp.isfinite(rest), rest, 0)


def finite_difference(x: Any, y: Any) -> tuple[Any, Any]:
    """:func:`difference` of numbers that are finite, as their difference is."""
    d = x - y
    part = d - x
    return d, lax.stop_gradient((x - (d - part)) - (y + part))


def half(x: Any) -> Any:
    """Round to half of the digits: the product of two such numbers is exact."""
    info = np.finfo(x.dtype)
    return lax.reduce_precision(x, info.nexp, (info.nmant - 1) // 2)


def beyond(x: Any, zero: float, rest: float) -> Any:
    """``x - z`` for a number z in two parts of double precision; behind a barrier, for XLA would add constants."""
    head = float(np.asarray(zero, np.finfo(x.dtype).dtype))
    return (x - head) - lax.optimization_barrier(jnp.asarray((zero - head) + rest, x.dtype))


def beyond_one_of(x: Any, zeros: Any, place: Any) -> tuple[Any, Any]:
    """One of several numbers in two parts of double precision, rounded, and what x is beyond it."""
    heads = zeros[:, 0].astype(x.dtype)
    rests = ((zeros[:, 0] - heads) + zeros[:, 1]).astype(x.dtype)
    zero, rest = jnp.asarray(heads)[place], jnp.asarray(rests)[place]
    return zero, (x - zero) - rest


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def log_quotient(x: Any, y: Any, more: int) -> Any:
    """``log(x / y) + more`` of positive numbers, for 0 or 1; near its zero, by what ``x exp(more)`` is beyond y."""
    short = round((e if more else 1) * 2**9) / 2**9
    rest = (e - short) + 1.4456468917292502e-16 if more else 0.0  # what e has beyond double precision
    head = half(x)
    d = ((short * head - y) + short * (x - head)) + rest * x
    near = lax.abs(d) < 0.5 * y
    s = jnp.where(near, d, 0) / (2 * y + jnp.where(near, d, 0))
    series = polynomial(lax.square(s), [2 / (2 * k + 1) for k in range(8 if x.dtype.itemsize < 8 else 17)])  # of the inverse of tanh
    quotient, tiny = x / y, np.finfo(x.dtype).tiny
    in_range = (quotient >= tiny) & (quotient < jnp.inf)
    return jnp.where(near, s * series, jnp.where(in_range, lax.log(quotient), lax.log(x) - lax.log(y)) + more)


@log_quotient.defjvp
def _(more: int, primals: Any, tangents: Any) -> Any:
    x, y = primals
    return log_quotient(x, y, more), tangents[0] / x - tangents[1] / y


@jax.custom_jvp
def exp2(x: Any) -> Any:
    """``2^x``, of which XLA's has as many wrong units in the last place as x has quarters."""
    info = np.finfo(x.dtype)
    x = jnp.clip(x, 2.0 * info.minexp, 2.0 * info.maxexp)
    whole = lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)
    return lax.exp(LOG2_HEAD * whole) * (1 + lax.expm1(LOG2_REST * whole + log(2.0) * (x - whole)))


exp2.defjvps(lambda t, out, x: t * (log(2.0) * out))


@jax.custom_jvp
def power(out: Any, x: Any, y: Any) -> Any:
    """``x^y`` of a single base, which is out but where that is a power of two: of a constant ``2^n``, LLVM rounds ``n y``.

    The choice is a branch: of a constant base it is made while the program is compiled, and of another one nothing is computed twice.
    """
    if x.ndim or jnp.iscomplexobj(x) or x.dtype.itemsize < 4:
        return out
    n = lax.round(lax.log(x) / log(2.0), lax.RoundingMethod.TO_NEAREST_EVEN)
    two = (lax.reduce_precision(x, np.finfo(x.dtype).nexp, 0) == x) & (lax.abs(n) > 2) & (lax.abs(n) < 65)

    def exactly(out: Any, n: Any, y: Any) -> Any:
        exponent, head = n * y, half(y)
        rest = (n * head - exponent) + n * (y - head)
        rounded = lax.pow(lax.full_like(n, 2), exponent)
        return jnp.where(jnp.isfinite(rest) & (rounded < jnp.inf), rounded + rounded * (log(2.0) * rest), out)

    return lax.cond(two, exactly, lambda out, *_: out, out, n, y)


power.defjvps(lambda t, power, out, x, y: t, None, None)


def polynomial(x: Any, coefficients: Sequence[Any]) -> Any:
    """Sum of coefficients times powers of x, from the zeroth on, by Horner's rule."""
    total = lax.full_like(x, 0)
    for c in reversed(coefficients):
        total = total * x + c
    return total


def spence(x: Any) -> Any:
    """``log(x) / (1 - x)``, the derivative of the dilogarithm of ``1 - x``; by the series of the logarithm about 1."""

    def near(x: Any) -> Any:
        total = lax.full_like(x, 0)
        for k in range(20 if x.dtype.itemsize < 8 else 42, 0, -1):
            total = total * (1 - x) + 1 / k
        return -total

    slope = parted(bounded(x), lax.abs(x - 1) < 0.4, near, lambda x: lax.log(x) / (1 - x), zero=1.0, one=3.0)
    return jnp.where(x == jnp.inf, 0, slope)
