"""Elementary functions of one variable, and the angle of two: exponentials, logarithms, roots, circular and hyperbolic functions."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import Any

import jax.numpy as jnp
from jax import lax

from tape.rules import parameters, plane, slopes
from tape.rules.cotangents import wide
from tape.rules.registry import LINE, Cost, Domain, Example, elementwise

_POSITIVE: Domain = (0.3, 3.0)
_UNIT: Domain = (-0.8, 0.8)
_MATRIX = (2, 3)


def function(
    name: str,
    slope: Callable[[Any, Any], Any],
    domain: Domain,
    source: str,
    *,
    cost: Cost = Cost.LOOPED,
    plane: Callable[[Any], Any] | None = None,
    poles: Callable[[Any, Any], Any] | None = None,
    again: Callable[[Any], Any] | None = None,
    **fields: Any,
) -> None:
    """Enter a function of one variable by its derivative, ``slope(out, x)``; half precisions are computed in single.

    ``plane(x)`` is its form for complex numbers, where that is another, or ``poles(ct, x)`` the cotangent, where it has poles; ``again`` is
    the function, for the slope multiplies what a half precision's result was rounded by.
    """

    def vjp(ct: Any, out: Any, x: Any, **_: Any) -> Any:
        if poles is not None and jnp.iscomplexobj(x):
            return poles(ct, x)
        if plane is not None and jnp.iscomplexobj(x):
            return ct * plane(x)
        if x.dtype.itemsize > 2:
            return ct * slope(out, x)
        return lax.convert_element_type(wide(ct) * slope(again(wide(x)) if again else wide(out), wide(x)), x.dtype)

    elementwise(name, vjp, domain=(domain,), source=source, cost=cost, **fields)


def _turned(ct: Any, x: Any, y: Any) -> Any:
    return lax.convert_element_type(wide(ct) * slopes.angle(wide(x), wide(y)), x.dtype)


def _over(ct: Any, x: Any) -> Any:
    return plane.quotient(ct, x) if jnp.iscomplexobj(x) else ct / x


# Exponentials and logarithms
function("exp", lambda out, x: out, LINE, "exp' = exp")
function("exp2", lambda out, x: log(2.0) * (out if jnp.iscomplexobj(x) else slopes.exp2(x)), LINE, "(2^x)' = log(2) 2^x")
function("expm1", lambda out, x: lax.exp(x), LINE, "expm1'(x) = exp(x); out + 1 would round to 0 far to the left", kinks=(0.0,))
elementwise("log", lambda ct, out, x, **_: _over(ct, x), domain=(_POSITIVE,), source="log'(x) = 1 / x", cost=Cost.LOOPED, kinks=(0.0,))
function(
    "log1p", lambda out, x: 1 / (1 + x), (-0.7, 2.0), "log1p'(x) = 1 / (1 + x)", poles=lambda ct, x: _over(ct, 1 + x), kinks=(0.0, -1.0)
)
# A real argument is not kept; gates.accurate_logistic reads it.
function("logistic", lambda out, x: out * (1 - out), LINE, "s' = s (1 - s)", plane=plane.logistic)

# Roots
function("sqrt", lambda out, x: slopes.sqrt(out), _POSITIVE, "sqrt'(x) = 1 / (2 sqrt(x))", plane=plane.sqrt, again=lax.sqrt, kinks=(0.0,))
function("rsqrt", slopes.rsqrt, _POSITIVE, "(x^(-1/2))' = -x^(-1/2) / (2 x)", plane=plane.rsqrt, kinks=(0.0,))
function(
    "cbrt",
    slopes.cbrt,
    _POSITIVE,
    "cbrt'(x) = 1 / (3 cbrt(x)^2)",
    complex=False,
    kinks=(0.0, -1.0),
)

# Circular functions
function("sin", lambda out, x: lax.cos(x), LINE, "sin' = cos")
function("cos", lambda out, x: -lax.sin(x), LINE, "cos' = -sin")
function("tan", lambda out, x: 1 + lax.square(out), (-1.0, 1.0), "tan' = 1 + tan^2", plane=plane.tan, kinks=(0.0,))
function(
    "asin",
    lambda out, x: slopes.asin(x),
    _UNIT,
    "asin'(x) = (1 - x^2)^(-1/2)",
    plane=plane.asin,
    kinks=(0.0, 1.0, -1.0),
)
function(
    "acos",
    lambda out, x: -slopes.asin(x),
    _UNIT,
    "acos'(x) = -(1 - x^2)^(-1/2)",
    plane=lambda x: -plane.asin(x),
    kinks=(0.0, 1.0, -1.0),
)
function("atan", lambda out, x: slopes.atan(x), LINE, "atan'(x) = 1 / (1 + x^2)", poles=lambda ct, x: plane.atanh(ct, plane.turned(x)))
elementwise(
    "atan2",
    lambda ct, out, x, y, **_: (lambda: _turned(ct, y, x), lambda: -_turned(ct, x, y)),
    source="the angle of (y, x) turns by (y dx - x dy) / (x^2 + y^2)",
    domain=((0.3, 2.0), (0.3, 2.0)),
    kinks=(0.0, 1.0, -2.0),
    cost=Cost.LOOPED,
)

# Hyperbolic functions
function("sinh", lambda out, x: slopes.cosh(x), LINE, "sinh' = cosh", plane=plane.cosh)
function("cosh", lambda out, x: slopes.sinh(x), LINE, "cosh' = sinh", plane=plane.sinh, kinks=(0.0,))
# As of the logistic function, a real argument is not kept; gates.accurate_tanh reads it.
function("tanh", lambda out, x: (1 - out) * (1 + out), LINE, "tanh' = 1 - tanh^2", plane=plane.tanh, kinks=(0.0,))
function(
    "asinh",
    lambda out, x: slopes.asinh(x),
    _UNIT,
    "asinh'(x) = (1 + x^2)^(-1/2)",
    plane=lambda x: plane.asin(plane.turned(x)),
    kinks=(0.0,),
)
function(
    "acosh",
    lambda out, x: slopes.acosh(x),
    (1.5, 3.0),
    "acosh'(x) = (x^2 - 1)^(-1/2): where there is no value, left of -1, a number as JAX's, for a mask to multiply with 0",
    plane=plane.acosh,
    kinks=(1.0,),
)
function(
    "atanh",
    lambda out, x: 1 / slopes.one_minus_square(x),
    _UNIT,
    "atanh'(x) = 1 / (1 - x^2)",
    poles=plane.atanh,
    kinks=(0.0, 1.0, -1.0),
)

# What newer JAX releases have as primitives; in older ones it is made of others
elementwise(
    "log2",
    lambda ct, out, x, **_: plane.quotient(ct * (1 / log(2.0)), x) if jnp.iscomplexobj(x) else ct * (1 / (x * log(2.0))),
    domain=((0.3, 3.0),),
    source="log2'(x) = 1 / (x log(2))",
    kinks=(0.0,),
    cost=Cost.LOOPED,
)
elementwise("one_minus_square", lambda ct, out, x, **_: ct * (-2 * x), source="(1 - x^2)' = -2 x", kinks=(1.0, 0.0))


@elementwise(
    "polynomial",
    source="p(x) = sum of c_k x^k: p'(x) = sum of k c_k x^(k - 1), and dp / dc_k = x^k",
    domain=((0.3, 1.5),),
    examples=[
        Example(lambda x, c: parameters.apply("polynomial", {}, x, x * c, c, 2 * c, c * c)[0], (_MATRIX, _MATRIX)),
        Example(lambda x: parameters.apply("polynomial", {}, x, x)[0], (_MATRIX,), "constant"),
    ],
)
def _polynomial(ct: Any, out: Any, x: Any, *coefficients: Any, **params: Any) -> tuple[Any, ...]:
    """Differentiate by Horner's rule as well."""

    def slope() -> Any:
        terms = [k * c for k, c in enumerate(coefficients)][1:]
        return ct * parameters.apply("polynomial", params, x, *terms)[0] if terms else None

    return slope, *((lambda k=k: ct * lax.integer_pow(x, k)) if k else ct for k in range(len(coefficients)))
