"""Derivatives of the error function and its relatives."""

from __future__ import annotations

import functools
from math import pi, sqrt
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tape.rules.slopes import bounded, parted

if TYPE_CHECKING:
    from collections.abc import Sequence

_ERFCX = (
    *(-0.6513268598908547, 0.6419697923564902, 0.019476473204185836, -0.009561514786808632),
    *(-0.0009465953444820369, 0.00036683949785276145, 4.252332480690777e-05, -2.0278578112534242e-05),
    *(-1.6242900046470256e-06, 1.3036558355805232e-06, 1.5626441722066142e-08, -8.523809591492654e-08),
    *(6.5290544390988515e-09, 5.059343495551469e-09, -9.91364156493033e-10, -2.2736512229318357e-10),
    *(9.646791102015528e-11, 2.394038083038881e-12, -6.886027526496772e-12, 8.94487927308485e-13),
    *(3.130921399286456e-13, -1.1270822358703124e-13, 3.8109048679522714e-16, 7.10609747757342e-15),
    *(-1.5230273230386746e-15, -9.457658425771247e-17, 1.2102032928879454e-16, -2.813870756413238e-17),
)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def gauss(x: Any, sign: float = -1.0) -> Any:
    """``exp(sign x^2)``, the square being parted into an exact one and a small rest: its rounding would be multiplied."""
    info = np.finfo(x.dtype)
    x = bounded(x, sqrt(2 * info.maxexp / abs(sign)))  # beyond, it is zero (infinite)
    head = lax.stop_gradient(lax.reduce_precision(x, info.nexp, (info.nmant - 1) // 2))
    rest = 1 + lax.expm1(sign * ((x - head) * (x + head)))  # not exp: XLA would add the exponents
    return lax.exp(sign * (head * head)) * rest


@gauss.defjvp
def _(sign: float, primals: Any, tangents: Any) -> Any:
    root = gauss(primals[0], sign / 2)  # of the result, which underflows before its product with x does
    return gauss(primals[0], sign), tangents[0] * ((2 * sign * bounded(primals[0], 1e3) * root) * root)


def erfcx(x: Any) -> Any:
    """``exp(x^2) erfc(x)`` for ``x >= 0``, by Chebyshev's series of the logarithm of it times ``1 + x / 2``."""
    t = 2 / (2 + x)
    coefficients = _ERFCX[: 13 if x.dtype.itemsize < 8 else None]
    return t * lax.exp(_chebyshev(coefficients, 2 * t - 1))


def _chebyshev(coefficients: Sequence[float], x: Any) -> Any:
    """Sum Chebyshev's series by Clenshaw's recurrence."""
    one = two = lax.full_like(x, 0)
    for c in reversed(coefficients[1:]):
        one, two = 2 * x * one - two + c, one
    return x * one - two + coefficients[0]


def erf_inv(out: Any, x: Any) -> Any:
    """``sqrt(pi) / 2 exp(out^2)``."""
    return sqrt(pi) / 2 * _inverse(out, 1 - lax.abs(x))


def _inverse(out: Any, rest: Any) -> Any:
    """``exp(out^2)`` where ``erfc(|out|) = rest``: it is ``erfcx(|out|) / rest``; ``out`` is mended by a step of Newton's."""
    far = (rest > 0) & (rest < 0.5)
    rest = jnp.where(far, rest, 1)
    missing = 0.5 * sqrt(pi) * (erfcx(lax.abs(out)) - rest * gauss(out, 1.0))
    out = out + lax.stop_gradient(jnp.where(far, lax.sign(out) * missing, 0))
    grown = gauss(out, 1.0)
    return grown * lax.stop_gradient(jnp.where(far, erfcx(lax.abs(out)) / (rest * grown), 1))


def ndtri(p: Any) -> Any:
    """Derivative of the normal distribution's quantile: one over the density there."""
    return sqrt(2 * pi) * _inverse(sqrt(0.5) * jax.scipy.special.ndtri(p), 2 * lax.min(p, 1 - p))


def density(x: Any) -> Any:
    """Density of the normal distribution."""
    return sqrt(0.5 / pi) * gauss(x, -0.5)


def log_ndtr(x: Any) -> Any:
    """Ratio of the normal distribution's density to its integral, which left of zero is one over Mills's."""
    x = jnp.where(x == -jnp.inf, float(np.finfo(x.dtype).min) / 4, x)
    left = lambda x: sqrt(2 / pi) / erfcx(-sqrt(0.5) * x)  # noqa: E731
    return parted(x, x < 0, left, lambda x: 2 * density(x) / lax.erfc(-sqrt(0.5) * x), zero=-1.0)


_ROOT = {4: (float(np.float32(sqrt(2))), 2.420323420895794e-08), 8: (sqrt(2), -9.6672933134529135e-17)}  # of 2, in two parts


# Where the derivative is zero, in two parts for each precision, and Taylor's series about it.
_GELU_ZERO = {4: (-0.7517915368080139, 1.211444945855772e-8), 8: (-0.7517915246935645, 1.4956759177009883e-17)}
_GELU_SERIES = (
    *(0.4314939923140469, 0.388284982990552, -0.018199676398671087, -0.1140082332972217, -0.014771522148244337, 0.019421679838189067),
    *(0.004539228379125415, -0.002239538068073497, -0.0007448268386746817, 0.00018633974623233514, 8.615947861116571e-05),
    *(-1.121438018842664e-05, -7.74846130700372e-06, 4.3284506257392273e-07, 5.702764979242107e-07),
)


@jax.custom_jvp
def gelu(x: Any) -> Any:
    """Derivative of ``x Phi(x)`` with the normal distribution's integral Phi."""
    zero, rest = _GELU_ZERO[x.dtype.itemsize]
    d = x - zero
    near = lax.abs(d) < 0.2
    series = lax.full_like(x, 0)
    for c in reversed(_GELU_SERIES[: 8 if x.dtype.itemsize < 8 else None]):
        series = series * d + c
    return jnp.where(near, d * series - rest * _GELU_SERIES[0], 0.5 * lax.erfc(-sqrt(0.5) * x) + bounded(x) * density(x))


def _gelu_curvature(t: Any, _: Any, x: Any) -> Any:
    size = lax.abs(bounded(x, 100.0))
    head, rest = _ROOT[x.dtype.itemsize]
    factor = (head - size) * (sqrt(2) + size) + 2 * sqrt(2) * rest  # 2 - x^2; XLA would add the parts of the root
    root = gauss(x, -0.25)
    return t * ((sqrt(0.5 / pi) * factor * root) * root)


gelu.defjvps(_gelu_curvature)
