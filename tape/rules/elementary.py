"""Elementary functions of one variable, and the angle of two: exponentials, logarithms, roots, circular and hyperbolic functions."""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING, Any

from jax import lax

from tape.rules.registry import Cost, Domain, register

if TYPE_CHECKING:
    from collections.abc import Callable

_ANY: Domain = (-2.0, 2.0)
_POSITIVE: Domain = (0.3, 3.0)
_UNIT: Domain = (-0.8, 0.8)


def _function(
    name: str,
    slope: Callable[[Any, Any], Any],
    domain: Domain,
    source: str,
    *,
    complex: bool = True,  # noqa: A002 - the record's field
    kinks: tuple[float, ...] = (),
) -> None:
    """Enter a function of one variable by its derivative, ``slope(out, x)``."""

    def vjp(ct: Any, out: Any, x: Any, **_: Any) -> tuple[Any, ...]:
        return (ct * slope(out, x),)

    register(name, vjp, domain=(domain,), source=source, complex=complex, kinks=kinks, elementwise=True, cost=Cost.LOOPED)


# Exponentials and logarithms
_function("exp", lambda out, x: out, _ANY, "exp' = exp")
_function("exp2", lambda out, x: out * log(2.0), _ANY, "(2^x)' = log(2) 2^x")
_function("expm1", lambda out, x: lax.exp(x), _ANY, "expm1'(x) = exp(x); out + 1 would round to 0 far to the left", kinks=(0.0,))
_function("log", lambda out, x: 1 / x, _POSITIVE, "log'(x) = 1 / x", kinks=(0.0,))
_function("log1p", lambda out, x: 1 / (1 + x), (-0.7, 2.0), "log1p'(x) = 1 / (1 + x)", kinks=(0.0, -1.0))
_function("logistic", lambda out, x: out * (1 - out), _ANY, "s' = s (1 - s)")

# Roots
_function("sqrt", lambda out, x: 0.5 / out, _POSITIVE, "sqrt'(x) = 1 / (2 sqrt(x))", kinks=(0.0,))
_function("rsqrt", lambda out, x: -0.5 * (out / x), _POSITIVE, "(x^(-1/2))' = -x^(-1/2) / (2 x)", kinks=(0.0,))
_function("cbrt", lambda out, x: 1 / (3 * lax.square(out)), _POSITIVE, "cbrt'(x) = 1 / (3 cbrt(x)^2)", complex=False, kinks=(0.0, -1.0))

# Circular functions
_function("sin", lambda out, x: lax.cos(x), _ANY, "sin' = cos")
_function("cos", lambda out, x: -lax.sin(x), _ANY, "cos' = -sin")
_function("tan", lambda out, x: 1 + lax.square(out), (-1.0, 1.0), "tan' = 1 + tan^2", kinks=(0.0,))
_function("asin", lambda out, x: lax.rsqrt((1 - x) * (1 + x)), _UNIT, "asin'(x) = ((1 - x) (1 + x))^(-1/2)", kinks=(0.0, 1.0, -1.0))
_function("acos", lambda out, x: -lax.rsqrt((1 - x) * (1 + x)), _UNIT, "acos'(x) = -((1 - x) (1 + x))^(-1/2)", kinks=(0.0, 1.0, -1.0))
_function("atan", lambda out, x: 1 / (1 + lax.square(x)), _ANY, "atan'(x) = 1 / (1 + x^2)")
register(
    "atan2",
    lambda ct, out, x, y, **_: (
        lambda: ct * (y / (lax.square(x) + lax.square(y))),
        lambda: ct * (-x / (lax.square(x) + lax.square(y))),
    ),
    domain=((0.3, 2.0), (0.3, 2.0)),
    source="the angle of (y, x) turns by (y dx - x dy) / (x^2 + y^2)",
    kinks=(0.0, 1.0, -2.0),
    elementwise=True,
    cost=Cost.LOOPED,
)

# Hyperbolic functions
_function("sinh", lambda out, x: lax.cosh(x), _ANY, "sinh' = cosh")
_function("cosh", lambda out, x: lax.sinh(x), _ANY, "cosh' = sinh", kinks=(0.0,))
_function("tanh", lambda out, x: (1 - out) * (1 + out), _ANY, "tanh' = 1 - tanh^2", kinks=(0.0,))
_function("asinh", lambda out, x: lax.rsqrt(1 + lax.square(x)), _UNIT, "asinh'(x) = (1 + x^2)^(-1/2)", kinks=(0.0,))
_function(
    "acosh",
    lambda out, x: lax.rsqrt(x - 1) * lax.rsqrt(x + 1),
    (1.5, 3.0),
    "acosh'(x) = (x - 1)^(-1/2) (x + 1)^(-1/2): two roots, for the principal branch left of the imaginary axis",
    kinks=(1.0,),
)
_function("atanh", lambda out, x: 1 / ((1 - x) * (1 + x)), _UNIT, "atanh'(x) = 1 / ((1 - x) (1 + x))", kinks=(0.0, 1.0, -1.0))
