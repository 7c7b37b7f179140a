"""Derivatives of sinc, which are right to the last digits near their zeros too."""

from __future__ import annotations

import functools
from collections.abc import Callable
from decimal import Decimal, localcontext
from math import factorial, fsum, pi
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tape.rules.slopes import beyond, beyond_one_of, bounded, half, parted, polynomial

# Of sin(z) / z in powers of z^2: the first derivative over z, and the second, which is zero at a root of z^2, over that factor.
_SINC_ZERO = (0.6625862125821924, -3.222619549623643e-17)  # times pi, in two parts
_SINC = [(-1) ** k * 2 * k / factorial(2 * k + 1) for k in range(1, 18)]
_SINC_CURVATURE = [
    fsum((2 * j + 1) * _SINC[j] * (pi * _SINC_ZERO[0]) ** (2 * (j - k)) for j in range(k, len(_SINC))) for k in range(1, len(_SINC))
]


def _circular(x: Any) -> tuple[Any, Any]:
    """``sin(pi x)`` and ``cos(pi x)``, by an angle that is an exact product, and what is missing to it."""
    whole = lax.round(lax.real(x) if jnp.iscomplexobj(x) else x, lax.RoundingMethod.TO_NEAREST_EVEN)
    sign, turn = 1 - 2 * lax.rem(lax.abs(whole), lax.full_like(whole, 2)), x - whole
    places = 2.0 ** ((np.finfo(x.dtype).nmant - 1) // 2 - 1)
    short = round(pi * places) / places
    head = lax.complex(half(lax.real(turn)), half(lax.imag(turn))) if jnp.iscomplexobj(x) else half(turn)
    angle, missing = short * head, short * (turn - head) + ((pi - short) + 1.2246467991473532e-16) * turn
    sine, cosine, bent = lax.sin(angle), lax.cos(angle), 0.5 * missing * missing
    return sign * (sine + (cosine * missing - sine * bent)), sign * (cosine - (sine * missing + cosine * bent))


_FEW = 64  # zeros of sinc's derivatives right of 1 that are known to further digits
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582")


@functools.cache
def _sinc_zeros(order: int) -> Any:
    """The zeros, as many double precision numbers, and what is missing to them.

    Over pi they are the y where ``tan(y)`` is y (of the second derivative: ``2 y / (2 - y^2)``), found by iterating an inverse tangent.
    """
    zeros = [Decimal(0) if order == 1 else Decimal(_SINC_ZERO[0]) + Decimal(_SINC_ZERO[1])]
    with localcontext(prec=40):
        for k in range(1, _FEW):
            y = top = _PI * (2 * k + 1) / 2 if order == 1 else _PI * (k + 1)
            for _ in range(30):
                u = 1 / y if order == 1 else 2 * y / (y * y - 2)
                series = Decimal(0)
                for n in range(75, 0, -2):
                    series = 1 / Decimal(n) - u * u * series
                y = top - u * series
            zeros.append(y / _PI)
        return np.array([[float(z), float(z - Decimal(float(z)))] for z in zeros])


def _from_zero(size: Any, number: Any, order: int) -> tuple[Any, Any]:
    """A zero, and what a number is beyond it."""
    return beyond_one_of(size, _sinc_zeros(order), lax.convert_element_type(jnp.clip(number, 0, _FEW - 1), np.int32))


def _alternating(whole: Any) -> Any:
    """1 for even numbers, -1 for odd ones."""
    return 1 - 2 * lax.rem(whole, lax.full_like(whole, 2))


def _of_few(x: Any, few: Callable[[Any], Any], far: Callable[[Any], Any]) -> Any:
    """Choose the form about zeros where they are known: with sine and cosine, near a zero, what these are rounded by is left."""
    return far(x) if jnp.iscomplexobj(x) else parted(x, lax.abs(x) < _FEW - 1, few, far, zero=1.0)


@jax.custom_jvp
def sinc(x: Any) -> Any:
    """Derivative of ``sin(pi x) / (pi x)``."""

    def few(x: Any) -> Any:
        """From a zero z on, where ``tan(pi z)`` is ``pi z``: no terms cancel."""
        size = lax.abs(x)
        number = lax.floor(size)
        zero, d = _from_zero(size, number, 1)
        cosine = _alternating(number) * lax.rsqrt(1 + lax.square(pi * zero))
        return cosine * (lax.cos(pi * d) * (d / size) - lax.sin(pi * d) * (pi * zero + 1 / (pi * size))) / x

    def far(x: Any) -> Any:
        sine, cosine = _circular(x)
        return (cosine - sine / (pi * x)) / x

    near = lambda x: (pi * pi * x) * polynomial(lax.square(pi * x), _SINC)  # noqa: E731
    slope = parted(bounded(x), lax.abs(x) < 0.5, near, lambda x: _of_few(x, few, far))
    return jnp.where(jnp.isinf(jnp.real(x)), 0, slope)


def _sinc_curvature(x: Any) -> Any:
    def few(x: Any) -> Any:
        """From a zero z on, where ``tan(pi z)`` is ``2 pi z / (2 - (pi z)^2)``."""
        size = lax.abs(x)
        number = lax.round(size, lax.RoundingMethod.TO_NEAREST_EVEN) - 1
        zero, d = _from_zero(size, number, 2)
        y, z, d = pi * size, pi * zero, pi * d
        sine = _alternating(number) * (2 * z * lax.rsqrt(4 + lax.square(lax.square(z))))
        bent = lax.sin(d) * ((2 - y * y) * (2 - z * z) / (2 * z) + 2 * y) - lax.cos(d) * (d * (2 / z + y))
        return pi * pi * sine * bent / (y * y * y)

    def far(x: Any) -> Any:
        sine, cosine = _circular(x)
        short = float(np.asarray(pi, np.finfo(x.dtype).dtype))
        small = sine * (2 / pi / (x * x) - (pi - short))  # beside the next, where XLA would add the constants
        return ((small - 2 * cosine / x) - short * sine) / x

    def near(x: Any) -> Any:
        zero, rest = _SINC_ZERO
        size = jnp.where(lax.real(x) < 0, -x, x) if jnp.iscomplexobj(x) else lax.abs(x)
        return pi**4 * beyond(size, zero, rest) * (size + zero) * polynomial(lax.square(pi * x), _SINC_CURVATURE)

    x = bounded(x)
    return parted(x, lax.abs(x) < 0.8, near, lambda x: _of_few(x, few, far))


sinc.defjvps(lambda t, slope, x: t * _sinc_curvature(x))
