"""Special functions: error functions, gamma and its relatives, Bessel functions."""

from __future__ import annotations

from math import pi, sqrt
from typing import TYPE_CHECKING, Any, NoReturn

from jax import lax

from tape.errors import RuleError
from tape.rules.families.elementary import function
from tape.rules.registry import LINE, Cost, Example, elementwise

if TYPE_CHECKING:
    from collections.abc import Callable

_MATRIX = (2, 3)
_DLMF = "NIST Digital Library of Mathematical Functions "


def _missing(primitive: str, argument: str) -> Callable[[], NoReturn]:
    """Refuse the derivative in an argument for which there is no closed form, neither here nor in JAX."""

    def refuse() -> NoReturn:
        msg = f"VJP rule of {primitive}: its derivative in {argument} has no closed form and is not implemented; hold {argument} fixed with lax.stop_gradient"
        raise RuleError(msg)

    return refuse


# Error functions
function("erf", lambda out, x: 2 / sqrt(pi) * lax.exp(-lax.square(x)), LINE, "erf'(x) = 2 / sqrt(pi) exp(-x^2)", complex=False)
function("erfc", lambda out, x: -2 / sqrt(pi) * lax.exp(-lax.square(x)), LINE, "erfc'(x) = -2 / sqrt(pi) exp(-x^2)", complex=False)
function(
    "erf_inv",
    lambda out, x: sqrt(pi) / 2 * lax.exp(lax.square(out)),
    (-0.8, 0.8),
    "inverse of erf: sqrt(pi) / 2 exp(out^2)",
    complex=False,
    kinks=(0.0, 1.0, -1.0),
)

# Gamma and polygamma functions
function("lgamma", lambda out, x: lax.digamma(x), (0.5, 4.0), "log|Gamma|' = digamma", complex=False, kinks=(-1.5, 1.0))
function("digamma", lambda out, x: lax.polygamma(lax.full_like(x, 1), x), (0.5, 4.0), "digamma' = polygamma(1, .)", complex=False)
elementwise(
    "polygamma",
    lambda ct, out, m, x, **_: (_missing("polygamma", "the order m"), lambda: ct * lax.polygamma(m + 1, x)),
    domain=((0.5, 4.0),),
    source="d/dx polygamma(m, x) = polygamma(m + 1, x)",
    examples=[
        Example(lambda x: lax.polygamma(lax.full_like(x, 1), x), (_MATRIX,), "order 1"),
        Example(lambda x: lax.polygamma(lax.full_like(x, 2), x), (_MATRIX,), "order 2"),
    ],
)
elementwise(
    "zeta",
    lambda ct, out, s, q, **_: (_missing("zeta", "the exponent s"), lambda: ct * (-s * lax.zeta(s + 1, q))),
    domain=((0.5, 4.0),),
    source=_DLMF + "25.11.17: d/dq zeta(s, q) = -s zeta(s + 1, q)",
    examples=[Example(lambda q: lax.zeta(lax.full_like(q, 2.5), q), (_MATRIX,))],
)


def _gamma_density(a: Any, x: Any) -> Any:
    """Density of the gamma distribution of shape a, the derivative of its lower incomplete integral."""
    return lax.exp((a - 1) * lax.log(x) - x - lax.lgamma(a))


elementwise(
    "igamma",
    lambda ct, out, a, x, **_: (lambda: ct * lax.igamma_grad_a(a, x), lambda: ct * _gamma_density(a, x)),
    domain=((0.7, 3.0), (0.5, 3.0)),
    source=_DLMF + "8.8.13: dP/dx = x^(a - 1) exp(-x) / Gamma(a); in a the series of lax.igamma_grad_a",
    examples=[Example(lax.igamma, (_MATRIX, _MATRIX)), Example(lambda x: lax.igamma(lax.full_like(x, 1.5), x), (_MATRIX,), "shape held")],
    cost=Cost.LOOPED,
)
elementwise(
    "igammac",
    lambda ct, out, a, x, **_: (lambda: -ct * lax.igamma_grad_a(a, x), lambda: -ct * _gamma_density(a, x)),
    domain=((0.7, 3.0), (0.5, 3.0)),
    source="Q = 1 - P",
    examples=[Example(lax.igammac, (_MATRIX, _MATRIX)), Example(lambda x: lax.igammac(lax.full_like(x, 1.5), x), (_MATRIX,), "shape held")],
    cost=Cost.LOOPED,
)
elementwise(
    "igamma_grad_a",
    lambda ct, out, a, x, **_: (
        _missing("igamma_grad_a", "the shape a"),
        lambda: ct * (_gamma_density(a, x) * (lax.log(x) - lax.digamma(a))),
    ),
    domain=((0.5, 3.0),),
    source="the order of the derivatives is free: d/da of the gamma density",
    examples=[Example(lambda x: lax.igamma_grad_a(lax.full_like(x, 1.5), x), (_MATRIX,))],
)


def _beta_density(a: Any, b: Any, x: Any) -> Any:
    """Density of the beta distribution, the derivative of the regularized incomplete integral."""
    log_beta = lax.lgamma(a) + lax.lgamma(b) - lax.lgamma(a + b)
    return lax.exp((a - 1) * lax.log(x) + (b - 1) * lax.log1p(-x) - log_beta)


elementwise(
    "regularized_incomplete_beta",
    lambda ct, out, a, b, x, **_: (
        _missing("regularized_incomplete_beta", "a"),
        _missing("regularized_incomplete_beta", "b"),
        lambda: ct * _beta_density(a, b, x),
    ),
    domain=((0.2, 0.8),),
    source=_DLMF + "8.17.1: dI/dx = x^(a - 1) (1 - x)^(b - 1) / B(a, b)",
    examples=[Example(lambda x: lax.betainc(lax.full_like(x, 1.5), lax.full_like(x, 2.5), x), (_MATRIX,))],
)

# Bessel functions, exponentially scaled
function(
    "bessel_i0e",
    lambda out, x: lax.bessel_i1e(x) - lax.sign(x) * out,
    (0.3, 3.0),
    _DLMF + "10.29.3: I0' = I1; times exp(-|x|)",
    complex=False,
    kinks=(0.0,),
    examples=[Example(lax.bessel_i0e, (_MATRIX,)), Example(lambda x: lax.bessel_i0e(-x), (_MATRIX,), "negative")],
    cost=Cost.SMALL,
)


def _bessel_i1e(out: Any, x: Any) -> Any:
    """Derivative of the scaled Bessel function of order one; I1(x) / x tends to 1/2 at zero."""
    origin = x == 0
    quotient = out / lax.select(origin, lax.full_like(x, 1), x)
    return lax.bessel_i0e(x) - lax.sign(x) * out - lax.select(origin, lax.full_like(x, 0.5), quotient)


function(
    "bessel_i1e",
    _bessel_i1e,
    (0.3, 3.0),
    _DLMF + "10.29.2: I1' = I0 - I1 / x; times exp(-|x|)",
    complex=False,
    kinks=(0.0,),
    examples=[Example(lax.bessel_i1e, (_MATRIX,)), Example(lambda x: lax.bessel_i1e(-x), (_MATRIX,), "negative")],
    cost=Cost.SMALL,
)
