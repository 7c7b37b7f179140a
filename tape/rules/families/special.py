"""Special functions: error functions, gamma and its relatives, Bessel functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from jax import lax

from tape.errors import RuleError
from tape.rules import bessel, gammas, gaussian
from tape.rules.cotangents import wide
from tape.rules.families.elementary import function
from tape.rules.registry import LINE, Cost, Example, elementwise

_MATRIX = (2, 3)
_function, _elementwise = partial(function, complex=False), partial(elementwise, complex=False)
_DLMF = "NIST Digital Library of Mathematical Functions "


def _held(fun: Callable[..., Any], *first: float, name: str = "") -> Example:
    """Use of a function with its first arguments held fixed."""
    return Example(lambda x: fun(*[lax.full_like(x, value) for value in first], x), (_MATRIX,), name)


def _single(fun: Callable[..., Any], *args: Any) -> Any:
    """Compute in single precision what has half precision."""
    return lax.convert_element_type(fun(*map(wide, args)), args[-1].dtype)


def _missing(primitive: str, argument: str) -> Callable[[], NoReturn]:
    """Refuse the derivative in an argument for which there is no closed form, neither here nor in JAX."""

    def refuse() -> NoReturn:
        msg = (
            f"VJP rule of {primitive}: its derivative in {argument} has no closed form and is not implemented; "
            f"hold {argument} fixed with lax.stop_gradient"
        )
        raise RuleError(msg)

    return refuse


# Error functions
_function("erf", lambda out, x: gaussian.erf(x), LINE, "erf'(x) = 2 / sqrt(pi) exp(-x^2)")
_function("erfc", lambda out, x: -gaussian.erf(x), LINE, "erfc'(x) = -2 / sqrt(pi) exp(-x^2)")
_function(
    "erf_inv",
    gaussian.erf_inv,
    (-0.8, 0.8),
    "inverse of erf: sqrt(pi) / 2 exp(out^2)",
    kinks=(0.0, 1.0, -1.0),
)

# Gamma and polygamma functions
_function("lgamma", lambda out, x: gammas.digamma(x), (0.5, 4.0), "log|Gamma|' = digamma", kinks=(-2.0, -1.5, 1.0))
_function("digamma", lambda out, x: gammas.trigamma(x), (0.5, 4.0), "digamma' = trigamma")
_elementwise(
    "polygamma",
    lambda ct, out, m, x, **_: (_missing("polygamma", "the order m"), lambda: ct * _single(lambda m, x: gammas.polygamma(m + 1, x), m, x)),
    source="d/dx polygamma(m, x) = polygamma(m + 1, x)",
    domain=((0.5, 4.0),),
    examples=[_held(lax.polygamma, 1, name="order 1"), _held(lax.polygamma, 2, name="order 2")],
)
_elementwise(
    "zeta",
    lambda ct, out, s, q, **_: (_missing("zeta", "the exponent s"), lambda: ct * (-s * lax.zeta(s + 1, q))),
    source=_DLMF + "25.11.17: d/dq zeta(s, q) = -s zeta(s + 1, q)",
    domain=((0.5, 4.0),),
    examples=[_held(lax.zeta, 2.5)],
)


_elementwise(
    "igamma",
    lambda ct, out, a, x, **_: (lambda: ct * lax.igamma_grad_a(a, x), lambda: ct * _single(gammas.gamma_density, a, x)),
    source=_DLMF + "8.8.13: dP/dx = x^(a - 1) exp(-x) / Gamma(a); in a the series of lax.igamma_grad_a",
    domain=((0.7, 3.0), (0.5, 3.0)),
    cost=Cost.LOOPED,
    examples=[Example(lax.igamma, (_MATRIX, _MATRIX)), _held(lax.igamma, 1.5, name="shape held")],
)
_elementwise(
    "igammac",
    lambda ct, out, a, x, **_: (lambda: -ct * lax.igamma_grad_a(a, x), lambda: -ct * _single(gammas.gamma_density, a, x)),
    source="Q = 1 - P",
    domain=((0.7, 3.0), (0.5, 3.0)),
    cost=Cost.LOOPED,
    examples=[Example(lax.igammac, (_MATRIX, _MATRIX)), _held(lax.igammac, 1.5, name="shape held")],
)
_elementwise(
    "igamma_grad_a",
    lambda ct, out, a, x, **_: (
        _missing("igamma_grad_a", "the shape a"),
        lambda: ct * (_single(gammas.gamma_density, a, x) * (lax.log(x) - lax.digamma(a))),
    ),
    source="the order of the derivatives is free: d/da of the gamma density",
    domain=((0.5, 3.0),),
    examples=[_held(lax.igamma_grad_a, 1.5)],
)


_elementwise(
    "regularized_incomplete_beta",
    lambda ct, out, a, b, x, **_: (
        _missing("regularized_incomplete_beta", "a"),
        _missing("regularized_incomplete_beta", "b"),
        lambda: ct * _single(gammas.beta_density, a, b, x),
    ),
    source=_DLMF + "8.17.1: dI/dx = x^(a - 1) (1 - x)^(b - 1) / B(a, b)",
    domain=((0.2, 0.8),),
    examples=[_held(lax.betainc, 1.5, 2.5)],
)


# Bessel functions, exponentially scaled
for _name, _slope, _source in (
    ("bessel_i0e", bessel.i0e, "10.29.3: I0' = I1; times exp(-|x|)"),
    ("bessel_i1e", bessel.i1e, "10.29.2: I1' = I0 - I1 / x; times exp(-|x|)"),
):
    _bessel = getattr(lax, _name)
    _negative = Example(lambda x, fun=_bessel: fun(-x), (_MATRIX,), "negative")
    _function(_name, _slope, (0.3, 3.0), _DLMF + _source, kinks=(0.0,), cost=Cost.SMALL, examples=[Example(_bessel, (_MATRIX,)), _negative])
