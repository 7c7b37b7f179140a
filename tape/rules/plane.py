"""Derivatives of functions of a complex number in forms that lose no digits, as ``slopes.py`` has them of real ones.

Near the ends of branch cuts, ``1 - z^2`` is a difference of nearly equal numbers where its factors are not, and far away it overflows
before its root does.  XLA's hyperbolic functions lose all digits of small numbers, and ``1 - tanh^2`` those of its tails.
"""

from __future__ import annotations

from math import log
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tape.rules import slopes


def turned(z: Any) -> Any:
    """``i z``."""
    return lax.complex(-lax.imag(z), lax.real(z))


def _finite(z: Any) -> Any:
    """Numbers in place of infinite parts, whose products would be NaN; there, no gradient flows."""
    return lax.complex(slopes.bounded(lax.real(z)), slopes.bounded(lax.imag(z)))


@jax.custom_jvp
def quotient(x: Any, z: Any) -> Any:
    """``x / z``, whose derivative by z would be a quotient of a quotient: complex ones are rounded several times."""
    return x / z


quotient.defjvps(lambda t, out, x, z: t / z, lambda t, out, x, z: -(t * x) * power(z, -2))


@jax.custom_jvp
def atanh(ct: Any, z: Any) -> Any:
    """``ct / (1 - z^2)``, a quotient: of a pole, a product would make NaN."""
    r, _, rest = _one_minus_square(z)
    return _times(_times(ct, r) / rest, r)


atanh.defjvps(lambda t, out, ct, z: atanh(t, z), lambda t, out, ct, z: 2 * t * atanh(_finite(z) * out, z))


def _cube(z: Any) -> Any:
    """``z^(3/2)``."""
    z = _finite(z)
    return lax.sqrt(z) * z


@jax.custom_jvp
def sqrt(z: Any) -> Any:
    """Derivative of the square root."""
    return 0.5 / lax.sqrt(z)


sqrt.defjvps(lambda t, slope, z: t * (-0.25 / _cube(z)))


@jax.custom_jvp
def rsqrt(z: Any) -> Any:
    """Derivative of ``z^(-1/2)``; by the root, for XLA's of one over it is off by several units."""
    return -0.5 / _cube(z)


rsqrt.defjvps(lambda t, slope, z: t * ((0.75 * power(z, -2)) / lax.sqrt(z)))


@jax.custom_jvp
def asin(z: Any) -> Any:
    """``(1 - z^2)^(-1/2)``."""
    r, _, rest = _one_minus_square(z)
    root, side = lax.rsqrt(rest), lax.sign(lax.real(z)) * lax.sign(lax.imag(z))
    across = jnp.where(side == 0, lax.imag(root), side * lax.abs(lax.imag(root)))  # of the cut, also where the square underflows
    return _times(lax.complex(lax.real(root), across), r)


@asin.defjvp
def _(primals: Any, tangents: Any) -> Any:
    r, scaled, rest = _one_minus_square(primals[0])
    slope = asin(*primals)
    return slope, tangents[0] * _times((scaled / rest) * slope, r)


def _one_minus_square(z: Any) -> tuple[Any, Any, Any]:
    """A power of two, z and ``1 - z^2`` (by its factors) times it and its square: in range, where the root is."""
    z = _finite(z)
    r = slopes.scale(lax.real(z), lax.imag(z), lax.full_like(lax.real(z), 1))
    one, scaled = lax.complex(r, lax.full_like(r, 0)), _times(z, r)
    return r, scaled, (one - scaled) * (one + scaled)


def _times(z: Any, r: Any) -> Any:
    """``z r`` by a real number."""
    return lax.complex(lax.real(z) * r, lax.imag(z) * r)


@jax.custom_jvp
def acosh(z: Any) -> Any:
    """``(z - 1)^(-1/2) (z + 1)^(-1/2)``: two roots, for the principal branch left of the imaginary axis."""
    return lax.rsqrt(z - 1) * lax.rsqrt(z + 1)


acosh.defjvps(lambda t, out, z: t * atanh(z * out, z))


def _imaginary(y: Any, factor: Any) -> Any:
    """``factor sin(y)``, zero where y is, also where the factor is infinite."""
    return jnp.where(y == 0, y, factor * lax.sin(y))


@jax.custom_jvp
def cosh(z: Any) -> Any:
    """``cosh(z)``, by parts."""
    x, y = lax.real(z), lax.imag(z)
    return lax.complex(slopes.cosh(x) * lax.cos(y), _imaginary(y, slopes.sinh(x)))


@jax.custom_jvp
def sinh(z: Any) -> Any:
    """``sinh(z)``, by parts."""
    x, y = lax.real(z), lax.imag(z)
    return lax.complex(slopes.sinh(x) * lax.cos(y), _imaginary(y, slopes.cosh(x)))


cosh.defjvps(lambda t, out, z: t * sinh(z))
sinh.defjvps(lambda t, out, z: t * cosh(z))


@jax.custom_jvp
def sech(z: Any) -> Any:
    """``1 / cosh(z)``; where that overflows, the square of this is no normal number."""
    x, bound = lax.real(z), 0.95 * log(np.finfo(z.dtype).max)
    return 1 / cosh(lax.complex(jnp.clip(x, -bound, bound), jnp.where(jnp.isinf(x), 0, lax.imag(z))))


sech.defjvps(lambda t, out, z: -t * (out * lax.tanh(z)))


def tanh(z: Any) -> Any:
    """``sech(z)^2``."""
    return lax.square(sech(z))


def tan(z: Any) -> Any:
    """``1 / cos(z)^2``."""
    return tanh(turned(z))


@jax.custom_jvp
def logistic(z: Any) -> Any:
    """``(sech(z / 2) / 2)^2``."""
    return 0.25 * lax.square(sech(_half(z)))


logistic.defjvps(lambda t, out, z: -t * (out * lax.tanh(_half(z))))


def _half(z: Any) -> Any:
    return lax.complex(0.5 * lax.real(z), 0.5 * lax.imag(z))  # a product would have NaN beside infinities


@jax.custom_jvp
def sigma(z: Any) -> Any:
    """The logistic function, whose derivative is not a difference of shares."""
    left = lax.real(z) < 0
    t = lax.exp(jnp.where(left, z, -z))
    return jnp.where(left, t, 1) / (1 + t)


sigma.defjvps(lambda t, out, z: t * logistic(z))


def power(z: Any, y: int) -> Any:
    """``z^y`` of a negative whole number; scaled, for the square of the power of z is out of range before the result is."""
    z = _finite(z)
    scale = slopes.scale(lax.real(z), lax.imag(z))
    return lax.integer_pow(_times(z, scale), y) * lax.integer_pow(scale, -y)
