"""Derivatives of the logarithm of the gamma function, and the densities of the gamma and beta distributions."""

from __future__ import annotations

import functools
from decimal import Decimal, localcontext
from math import comb, log, pi
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tape.rules.slopes import LOG2_HEAD, LOG2_REST, beyond, beyond_one_of, difference, half, polynomial

_STEPS = 8  # of the recurrence, to arguments at which the asymptotic series serves
_RATIOS = ((1, 6), (-1, 30), (1, 42), (-1, 30), (5, 66), (-691, 2730), (7, 6), (-3617, 510), (43867, 798), (-174611, 330), (854513, 138))
_BERNOULLI = [over / under for over, under in _RATIOS]


def _reflected(x: Any) -> tuple[Any, Any, Any]:
    """Where x is negative, ``1 - x``, and what x is beyond the nearest whole number; else x, and 1/2."""
    negative = x < 0
    return negative, jnp.where(negative, 1 - x, x), jnp.where(negative, x - lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), 0.5)


def trigamma(x: Any) -> Any:
    """Differentiate digamma: by recurrence and asymptotic series; left of zero, it is ``pi^2 / sin(pi x)^2`` less that of ``1 - x``."""
    negative, y, turn = _reflected(x)
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
    near, about = _about_zero(x, 1)
    return jnp.where(near, about, jnp.where(negative, _poles(turn) - total, total))


@jax.custom_jvp
def _poles(turn: Any) -> Any:
    """``pi^2 / sin(pi x)^2`` of a number up to 1/2."""
    return lax.square(pi / lax.sin(pi * turn))


@_poles.defjvp
def _(primals: Any, tangents: Any) -> Any:
    """By the sine of what is missing to 1/2: the cosine of pi x would have the digits of pi / 2 there."""
    (turn,), (t,) = primals, tangents
    size = lax.abs(turn)
    return _poles(turn), t * (jnp.where(turn < 0, 2, -2) * lax.sin(pi * (0.5 - size)) * lax.integer_pow(pi / lax.sin(pi * size), 3))


def _inverse(w: Any, rest: Any) -> tuple[Any, Any]:
    """``1 / (w + rest)`` in two parts, the first of half of the digits: its products with such numbers are exact."""
    inverse = 1 / w
    q, head = half(inverse), half(w)
    return q, (((1 - q * head) - q * (w - head)) - q * rest) * inverse


def _shifted(y: Any, rest: Any) -> list[tuple[Any, Any]]:
    """Digamma of a positive number in two parts, as a sum of such: by recurrence and asymptotic series."""
    y = lax.optimization_barrier(y)
    places = [difference(y, lax.full_like(y, -k)) for k in range(_STEPS + 1)]
    *inverses, (q, r) = [_inverse(w, lost + rest) for w, lost in places]
    z, lost = places[-1]
    large, missing = _log_times(lax.full_like(z, 1), z)
    inverse, tail = 1 / z, lax.full_like(z, 0)
    for k, b in reversed(list(enumerate(_BERNOULLI, 1))):
        tail = (tail + b / (2 * k)) * lax.square(inverse)
    return [(large, missing + ((lost + rest) * inverse - tail)), (-0.5 * q, -0.5 * r), *[(-q, -r) for q, r in inverses]]


_SQUARES = (0.6449340668482264, 3.040672350398476e-17)  # the sum of the squares of 1/2, 1/3, ..., in two parts
_POWERS = (  # the same of their 2nd, 3rd, ... powers
    *(0.08232323371113819, 0.01734306198444914, 0.00407735619794434, 0.0009945751278180853, 0.0002460865533080483, 6.124813505870483e-05),
    *(1.528225940865187e-05, 3.81729326499984e-06, 9.539620338727962e-07, 2.38450502727733e-07, 5.960818905125948e-08),
    *(1.4901554828365043e-08, 3.725334024788457e-09, 9.313274324196682e-10),
)


def _cotangent(x: Any) -> list[tuple[Any, Any]]:
    """``pi / tan(pi x)`` of a number up to 1/2, as a sum of numbers in two parts: its poles at -1, 0 and 1, and a series."""
    one = lax.optimization_barrier(lax.full_like(x, 1))
    (q, r), short = _inverse(*difference(one, x)), round(_SQUARES[0] * 2**10) / 2**10
    head, series = half(x), lax.full_like(x, 0)
    for c in reversed(_POWERS):
        series = (series + c) * lax.square(x)
    rest = (_SQUARES[0] - short) + _SQUARES[1]
    return [
        _inverse(x, 0 * one),
        _inverse(*difference(one, -x)),
        (-q, -r),
        (-2 * short * head, -2 * (short * (x - head) + (rest + series) * x)),
    ]


_ZERO = (1.4616321449683622, 9.549995429965697e-17)  # of digamma, in two parts, and Taylor's coefficients about it
_SERIES = (
    *(0.9676722454476212, -0.4427631689835921, 0.258499760955651, -0.16394270544240652, 0.10782405069126237),
    *(-0.07219956125645471, 0.04880428816414311, -0.03316112647484736, 0.022597648232218104, -0.01542476590494896),
    *(0.010538791616612175, -0.007204534386356869, 0.004926781395729853, -0.003369801655439328, 0.002305126326734928),
    *(-0.0015769367714301972, 0.0010788252019162967, -0.0007380709389960052, 0.000504953265834602),
)


_FEW = 64  # zeros left of 0 that are known to further digits


def _taylor(x: Any, count: int) -> list[Any]:
    """Taylor's coefficients of digamma at a Decimal, or an array of doubles: by recurrence and asymptotic series."""
    inverses = [1 / (x + k) for k in range(_FEW + 40)]
    z, powers, coefficients = x + len(inverses), inverses, []
    for j in range(count):
        total = z ** -(j + 1) / 2 + (z**-j / j if j else -(z.ln() if isinstance(z, Decimal) else np.log(z)))
        for k, (over, under) in enumerate(_RATIOS, 1):
            total += z ** -(2 * k + j) * (over * comb(2 * k + j - 1, j)) / (2 * k * under)
        total += sum(powers)
        coefficients.append(total if j % 2 else -total)
        powers = [power * inverse for power, inverse in zip(powers, inverses, strict=True)]
    return coefficients


@functools.cache
def _zeros(order: int) -> tuple[Any, Any]:
    """Zeros left of 0 of digamma (1: of its second derivative), in two parts, and series about them of digamma (1: of its first)."""

    def nearer(x: Any) -> Any:
        *_, value, slope = _taylor(x, 2 * order + 2)
        return x - value / ((2 * order + 1) * slope)

    places = -0.5 - np.arange(_FEW)
    for _ in range(10):
        places = nearer(places)
    with localcontext(prec=40):
        zeros = [nearer(nearer(Decimal(place))) for place in places.tolist()]
        parts = [(float(z), float(z - Decimal(float(z)))) for z in zeros]
        series = [[float(j**order * c) for j, c in enumerate(_taylor(z, order + 9))][order:] for z in zeros]
    return np.array(parts), np.transpose(series)


def _about_zero(x: Any, order: int) -> tuple[Any, Any]:
    """Where x is near to one of these zeros, and digamma, or its first derivative, there."""
    zeros, series = _zeros(order)
    place = lax.convert_element_type(jnp.clip(-x, 0, _FEW - 1), np.int32)
    _, d = beyond_one_of(x, zeros, place)
    near = lax.abs(d) < 2**-9
    coefficients: list[Any] = [jnp.asarray(c, x.dtype)[place] for c in series[: 5 if x.dtype.itemsize < 8 else None]]
    coefficients[order] = 0
    return near, polynomial(jnp.where(near, d, 0), coefficients)


@jax.custom_jvp
def digamma(x: Any) -> Any:
    """Digamma, which left of zero is ``digamma(1 - x) - pi / tan(pi x)``, and NaN at its poles, of either sign.

    Its terms are added in two parts: near a zero, of which there is one between any two poles, few digits would be left of a sum.  Of the
    one right of zero, it is a series.
    """
    d = beyond(x, *_ZERO)
    near = lax.abs(d) < 0.15
    about = d * polynomial(jnp.where(near, d, 0), _SERIES[: 9 if x.dtype.itemsize < 8 else None])
    negative, y, turn = _reflected(x)
    plain = (y > 1e-30) & (y < 1e18)
    rest = difference(lax.optimization_barrier(lax.full_like(x, 1)), x)[1]  # XLA would add constants
    inside, rest = jnp.where(plain, y, 1), jnp.where(negative & plain, rest, 0)
    pole = (y == 0) | ~(lax.abs(turn) > 0)
    (total, missing), *parts = _shifted(inside, rest)
    parts += [(jnp.where(negative, -large, 0), jnp.where(negative, -small, 0)) for large, small in _cotangent(jnp.where(pole, 0.5, turn))]
    for large, small in parts:
        total, rounded = difference(total, -large)
        missing = missing + (rounded + small)
    apart = jnp.where(plain, total + missing, jnp.where(y > 1, lax.log(y), -1 / y))
    close, left = _about_zero(x, 0)
    return jnp.where(pole, jnp.nan, jnp.where(near, about, jnp.where(close, left, apart)))


digamma.defjvps(lambda t, out, x: t * trigamma(x))


def polygamma(m: Any, x: Any) -> Any:
    """``(-1)^(m + 1) m! zeta(m + 1, x)``, the factorial as a whole number."""
    factorial = lax.exp(lax.lgamma(m + 1))
    factorial = jnp.where(factorial < 1e5, lax.round(factorial), factorial)
    sign = 2 * lax.rem(m, lax.full_like(m, 2)) - 1
    return sign * lax.stop_gradient(factorial) * lax.zeta(m + 1, x)


_OVER_GAMMA = (  # Taylor's coefficients of ``1 / Gamma(1 + s)``
    *(1.0, 0.5772156649015329, -0.6558780715202539, -0.04200263503409524),
    *(0.16653861138229148, -0.04219773455554433, -0.009621971527876973, 0.0072189432466631),
    *(-0.0011651675918590652, -0.00021524167411495098, 0.0001280502823881162, -2.013485478078824e-05),
    *(-1.2504934821426706e-06, 1.133027231981696e-06, -2.056338416977607e-07, 6.116095104481416e-09),
    *(5.002007644469223e-09, -1.18127457048702e-09, 1.0434267116911005e-10, 7.782263439905071e-12),
    *(-3.696805618642206e-12, 5.100370287454476e-13, -2.0583260535665066e-14, -5.348122539423018e-15),
)


def _gamma(a: Any) -> Any:
    """Gamma function from 0 to 10, by recurrence from within 1/2 of 1: XLA's logarithm of it is off by several units."""
    whole = lax.round(a, lax.RoundingMethod.TO_NEAREST_EVEN)
    product = jnp.where(whole == 0, 1 / a, 1)
    for k in range(1, 10):
        product = product * jnp.where(whole > k, a - k, 1)
    return product / polynomial(a - whole, _OVER_GAMMA[: 15 if a.dtype.itemsize < 8 else None])


def _log_times(y: Any, x: Any) -> tuple[Any, Any]:
    """``y log x`` of positive normal x, as a number and what is missing to it."""
    info = np.finfo(x.dtype)

    power = lax.reduce_precision(x, info.nexp, 0)
    m = x / power  # from 3/4 to 3/2; log m = 2 artanh((m - 1) / (m + 1))
    k = lax.round(lax.log(power) * (1 / log(2.0)))
    small = half((m - 1) / (m + 1))
    missing = ((((m - 1) - small) - small * half(m)) - small * (m - half(m))) / (m + 1)
    s, tail = small + missing, lax.full_like(m, 0)
    for n in range(15 if x.dtype.itemsize < 8 else 29, 1, -2):
        tail = tail * lax.square(s) + 2 / n
    head = half(y)
    total, rounded = difference(head * (LOG2_HEAD * k), -head * (2 * small))
    last = LOG2_REST * k + (2 * missing + s * (lax.square(s) * tail))
    return total, rounded + (y * last + (y - head) * (LOG2_HEAD * k + 2 * small))


def _large_exponent(a: Any, x: Any) -> tuple[Any, Any]:
    """Logarithm of the density of a gamma distribution whose shape is 10 or more, in two parts: a small sum of large numbers."""
    info = np.finfo(x.dtype)
    x = jnp.clip(x, float(info.tiny), 1e9)
    a = lax.optimization_barrier(a)  # XLA would take a sum with a constant apart
    tail = sum(b / (2 * k * (2 * k - 1)) * lax.integer_pow(1 / a, 2 * k - 1) for k, b in enumerate(_BERNOULLI, 1))
    (of_x, rest), (of_a, other) = _log_times(a - 1, x), _log_times(a - 0.5, a)
    total, first = difference(of_x, of_a)
    distance, second = difference(a, x)
    total, third = difference(total, -distance)
    return total, (rest - other) + (first + second + third) - (0.5 * log(2 * pi) + tail)


def _gamma_root(a: Any, x: Any, power: float) -> Any:
    """A power of the gamma distribution's density of shape a; of small ones without logarithms, whose rounding would be multiplied."""
    decay, small, large = lax.exp(-0.5 * power * x), (a < 10) & (x < 1e3), (a >= 10) & (a < 1e6) & (x >= 0)
    gamma = _gamma(jnp.where(small, a, 1))
    few = (lax.pow(x, power * (a - 1)) * decay) * decay / (gamma if power == 1 else lax.sqrt(gamma))
    total, missing = _large_exponent(jnp.where(large, a, 10), x)
    many = lax.exp(power * total) * (1 + lax.expm1(power * missing))  # of two exponentials' product XLA makes one, of the sum
    return jnp.where(small, few, jnp.where(large, many, lax.exp(power * ((a - 1) * lax.log(x) - x - lax.lgamma(a)))))


@jax.custom_jvp
def gamma_density(a: Any, x: Any) -> Any:
    """Density of the gamma distribution of shape a."""
    return _gamma_root(a, x, 1.0)


@jax.custom_jvp
def _root_of_density(a: Any, x: Any) -> Any:
    """Its root, which is a normal number where the density's derivative is, also where the density is not."""
    return _gamma_root(a, x, 0.5)


def _along(t: Any, out: Any, a: Any, x: Any) -> Any:
    slope, root = (a - 1 - x) / x, _root_of_density(a, x)
    return t * jnp.where(out > 1e8 * float(np.finfo(x.dtype).tiny), out * slope, (root * slope) * root)


gamma_density.defjvps(lambda t, out, a, x: t * (out * (lax.log(x) - lax.digamma(a))), _along)
_root_of_density.defjvps(
    lambda t, out, a, x: t * (0.5 * out * (lax.log(x) - lax.digamma(a))),
    lambda t, out, a, x: t * (0.5 * out * ((a - 1 - x) / x)),
)


@jax.custom_jvp
def beta_density(a: Any, b: Any, x: Any) -> Any:
    """Density of the beta distribution; for small parameters without logarithms."""
    small = (a < 5) & (b < 5) & (x > 0) & (x < 1)
    u, v, y = jnp.where(small, a, 1), jnp.where(small, b, 1), jnp.where(small, x, 0.5)
    other = 1 - y
    rounded = 1 + (v - 1) * (((1 - other) - y) / other)
    few = lax.pow(y, u - 1) * (lax.pow(other, v - 1) * rounded) * (_gamma(u + v) / (_gamma(u) * _gamma(v)))
    exponent = (a - 1) * lax.log(x) + (b - 1) * lax.log1p(-x) - (lax.lgamma(a) + lax.lgamma(b) - lax.lgamma(a + b))
    return jnp.where(small, few, lax.exp(exponent))


beta_density.defjvps(
    lambda t, out, a, b, x: t * (out * (lax.log(x) - lax.digamma(a) + lax.digamma(a + b))),
    lambda t, out, a, b, x: t * (out * (lax.log1p(-x) - lax.digamma(b) + lax.digamma(a + b))),
    lambda t, out, a, b, x: t * (out * (((a - 1) * (1 - x) - (b - 1) * x) / (x * (1 - x)))),
)
