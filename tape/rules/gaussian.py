"""Derivatives of the error function and its relatives."""

from __future__ import annotations

import functools
from math import pi, sqrt
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tape.rules.slopes import bounded, parted, polynomial

_ERFCX = (  # Chebyshev's coefficients
    *(0.5770337386164697, 0.3554369212704985, 0.06509515882878653, 0.003671142395836639),
    *(-0.0011128447433526325, -0.0001607582991537808, 3.278031574173137e-05, 5.442441645505016e-06),
    *(-1.5154665553171482e-06, -1.4297608181169865e-07, 8.234608827419493e-08, -1.2962846852306563e-09),
    *(-4.154721631015199e-09, 6.347058278362811e-10, 1.4320822712256225e-10, -6.160390105204585e-11),
    *(2.0612138554721698e-12, 3.5714931488477042e-12, -8.586422843251796e-13, -6.14560021379063e-14),
    *(7.418725748596617e-14, -1.2895042755032325e-14, -2.358726385710632e-15, 1.5729349381685912e-15),
    *(-2.2782966239546465e-16, -6.31233045075643e-17, 3.5916763531814925e-17, -5.049809149847729e-18),
    *(-1.5324541113154899e-18, 8.90334528899061e-19, -1.4031007385132944e-19, -3.4463924237339475e-20),
)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def gauss(x: Any, sign: float = -1.0) -> Any:
    """``exp(sign x^2)``, the square being parted into an exact one and a small rest: its rounding would be multiplied."""
    info = np.finfo(x.dtype)
    x = bounded(x, sqrt(2 * info.maxexp / abs(sign)))  # beyond, it is zero (infinite)
    head = lax.stop_gradient(lax.reduce_precision(x, info.nexp, (info.nmant - 1) // 2))
    power = lax.exp(sign * (head * head))
    factor = jnp.minimum(power, float(info.max))  # of a zero, an infinity would make no number
    return power + factor * lax.expm1(sign * ((x - head) * (x + head)))  # not exp: XLA would add the exponents


@gauss.defjvp
def _(sign: float, primals: Any, tangents: Any) -> Any:
    root = gauss(primals[0], sign / 2)  # of the result, which underflows before its product with x does
    return gauss(primals[0], sign), tangents[0] * ((2 * sign * bounded(primals[0], 1e3) * root) * root)


@jax.custom_jvp
def erf(x: Any) -> Any:
    """``2 / sqrt(pi) exp(-x^2)``."""
    root = gauss(x, -0.5)
    return (2 / sqrt(pi) * root) * root


@erf.defjvp
def _(primals: Any, tangents: Any) -> Any:
    root = gauss(primals[0], -0.5)  # of the result, which underflows before its product with x does
    return erf(primals[0]), tangents[0] * ((-4 / sqrt(pi) * bounded(primals[0], 1e3) * root) * root)


def erfcx(x: Any) -> Any:
    """``exp(x^2) erfc(x)`` for ``x >= 0``: ``1 / (1 + x / 2)`` times a polynomial of ``(2 - x) / (2 + x)``."""
    x = bounded(x)
    coefficients = np.polynomial.chebyshev.cheb2poly(_ERFCX[: 16 if x.dtype.itemsize < 8 else None])
    return 2 * polynomial((2 - x) / (2 + x), coefficients.tolist()) / (2 + x)


@jax.custom_jvp
def erf_inv(out: Any, x: Any) -> Any:
    """``sqrt(pi) / 2 exp(out^2)``."""
    return sqrt(pi) / 2 * _inverse(out, 1 - lax.abs(x))[1]


@erf_inv.defjvp
def _(primals: Any, tangents: Any) -> Any:
    out, x = primals
    mended, grown = _inverse(out, 1 - lax.abs(x))
    return erf_inv(out, x), tangents[1] * (0.5 * pi * mended * grown * grown)


def _inverse(out: Any, rest: Any) -> tuple[Any, Any]:
    """``out`` where ``erfc(|out|) = rest``, mended by a step of Newton's, and ``exp(out^2)``: it is ``erfcx(|out|) / rest``."""
    far = (rest > 0) & (rest < 0.5)
    size, rest = lax.abs(out), jnp.where(far, rest, 1)
    scaled, grown = erfcx(size), gauss(out, 1.0)
    missing = 0.5 * sqrt(pi) * (scaled - rest * grown)
    scaled = scaled + missing * (2 * size * scaled - 2 / sqrt(pi))  # erfcx there
    return out + jnp.where(far, lax.sign(out) * missing, 0), jnp.where(far, scaled / rest, grown)


@jax.custom_jvp
def ndtri(p: Any) -> Any:
    """Derivative of the normal distribution's quantile: one over the density there."""
    return sqrt(2 * pi) * _quantile(p)[1]


def _quantile(p: Any) -> tuple[Any, Any]:
    return _inverse(sqrt(0.5) * jax.scipy.special.ndtri(p), 2 * lax.min(p, 1 - p))


@ndtri.defjvp
def _(primals: Any, tangents: Any) -> Any:
    out, grown = _quantile(primals[0])
    return ndtri(primals[0]), tangents[0] * (2 * sqrt(2) * pi * out * grown * grown)


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
    near = lax.abs(d) < (0.4 if x.dtype.itemsize < 8 else 0.2)
    series = polynomial(d, _GELU_SERIES[: 13 if x.dtype.itemsize < 8 else None])
    left = jnp.clip(x, -100.0, -1.0)
    root = gauss(left, -0.25)  # of the density, which underflows before its product with x does
    tail = (root * (sqrt(0.5 / pi) * left + 0.5 * erfcx(-sqrt(0.5) * left))) * root
    between = 0.5 * lax.erfc(-sqrt(0.5) * x) + bounded(x) * density(x)
    return jnp.where(near, d * series - rest * _GELU_SERIES[0], jnp.where(x < -1, tail, between))


def _gelu_curvature(t: Any, _: Any, x: Any) -> Any:
    size = lax.abs(bounded(x, 100.0))
    head, rest = _ROOT[x.dtype.itemsize]
    factor = (head - size) * (sqrt(2) + size) + 2 * sqrt(2) * rest  # 2 - x^2; XLA would add the parts of the root
    root = gauss(x, -0.25)
    return t * ((sqrt(0.5 / pi) * factor * root) * root)


gelu.defjvps(_gelu_curvature)
