"""Functions of a complex number whose derivatives are held to mpmath's: where each is asked, and the same function there.

Grids are polar and lie off the axes, where branch cuts are; errors are distances in the plane, in units in the last place of the true
value's modulus.
"""

from __future__ import annotations

import cmath
from collections.abc import Callable, Sequence
from typing import Any

import mpmath as mp

from benchmarks.accuracy_cases import Case

__all__ = ["CASES"]

_ANGLES = (0.02, 0.4, 0.9, 1.55, 2.0, 2.8, -0.02, -0.7, -1.5, -2.2, -3.1)
_NEAR = (1e-20, 1e-9, 1e-3, 0.03, 0.2, 0.6, 0.9)
_FAR = (1.3, 2.5, 6.0)


def _polar(*sizes: float, around: complex = 0.0) -> tuple[complex, ...]:
    return tuple(around + cmath.rect(r, angle) for r in sizes for angle in _ANGLES)


_MIDDLE = _polar(*_NEAR, *_FAR)
_STRIP = (*_polar(*_NEAR, 1.3, 2.5), *(complex(x, y) for x in (-40.0, -15.0, -7.0, 7.0, 15.0, 40.0) for y in (-2.0, 0.3, 1.0)))
_UPRIGHT = tuple(complex(-z.imag, z.real) for z in _STRIP)
_PLANE = _polar(*_NEAR, *_FAR, 40.0, 1e4, 1e12, 1e25)
_POWERED = _polar(*_NEAR[1:], *_FAR, 40.0)


def _ends(*points: complex) -> tuple[complex, ...]:
    """Numbers near to points where a derivative is singular, or zero."""
    return tuple(z for point in points for z in _polar(1e-3, 0.1, around=point))


def _case(name: str, true: Callable[[Any], Any], grid: Sequence[complex], *known: Any, **fields: Any) -> Case:
    """Make a case; ``known`` are its limits in both orders, and the reason."""
    return Case(name, true, tuple(grid), known=((known[0], known[1]), known[2]) if known else None, **fields)


_NEAR_A_POLE = (16.0, 16.0, "near a pole or a zero off the axes, what the exponential is rounded by")

CASES: tuple[Case, ...] = (
    _case("numpy.exp", mp.exp, _MIDDLE),
    _case("numpy.exp2", lambda z: mp.mpf(2) ** z, _MIDDLE),
    _case("numpy.expm1", mp.expm1, _STRIP),
    _case("numpy.log", mp.log, _PLANE),
    _case("numpy.log2", lambda z: mp.log(z, 2), _PLANE),
    _case("numpy.log10", mp.log10, _PLANE),
    _case("numpy.log1p", mp.log1p, (*_PLANE, *_ends(-1.0))),
    _case("numpy.sqrt", mp.sqrt, _PLANE),
    _case("lax.rsqrt", lambda z: 1 / mp.sqrt(z), _PLANE),
    _case("numpy.reciprocal", lambda z: 1 / z, _PLANE),
    _case("numpy.square", lambda z: z * z, _PLANE),
    _case("lax.integer_pow", lambda z: z**7, _POWERED, options={"y": 7}),
    _case("lax.integer_pow", lambda z: z**-3, _POWERED, options={"y": -3}),
    _case("numpy.power", lambda z: z ** mp.mpf("2.5"), _POWERED, held=(None, 2.5)),
    _case("numpy.power", lambda z: mp.mpf(1.25) ** z, _MIDDLE, held=(1.25, None)),
    _case("numpy.sin", mp.sin, _UPRIGHT),
    _case("numpy.cos", mp.cos, _UPRIGHT),
    _case("numpy.tan", mp.tan, _UPRIGHT),
    _case("numpy.arcsin", mp.asin, (*_PLANE, *_ends(1.0, -1.0))),
    _case("numpy.arccos", mp.acos, (*_PLANE, *_ends(1.0, -1.0))),
    _case("numpy.arctan", mp.atan, (*_PLANE, *_ends(1j, -1j))),
    _case("numpy.sinc", lambda z: mp.sin(mp.pi * z) / (mp.pi * z), _polar(*_NEAR[2:], *_FAR)),
    _case("numpy.sinh", mp.sinh, _STRIP),
    _case("numpy.cosh", mp.cosh, _STRIP),
    _case("numpy.tanh", mp.tanh, _STRIP, *_NEAR_A_POLE),
    _case("numpy.arcsinh", mp.asinh, (*_PLANE, *_ends(1j, -1j))),
    _case("numpy.arccosh", mp.acosh, (*_PLANE, *_ends(1.0, -1.0))),
    _case("numpy.arctanh", mp.atanh, (*_PLANE, *_ends(1.0, -1.0))),
    _case("nn.sigmoid", lambda z: 1 / (1 + mp.exp(-z)), _STRIP, *_NEAR_A_POLE),
    _case("nn.silu", lambda z: z / (1 + mp.exp(-z)), _STRIP, *_NEAR_A_POLE),
    _case("nn.softplus", lambda z: mp.log1p(mp.exp(z)), _polar(*_NEAR, 1.3, 2.5)),
    _case(
        "numpy.logaddexp",
        lambda z: mp.log(mp.exp(z) + mp.exp(mp.mpf(0.5))),
        _polar(*_NEAR, 1.3, 2.5),
        *_NEAR_A_POLE,
        held=(None, 0.5),
    ),
)
