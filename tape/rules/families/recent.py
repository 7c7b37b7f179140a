"""Functions that are primitives in newer JAX releases only; in older ones they are made of others."""

from __future__ import annotations

from math import log
from typing import Any

import jax.numpy as jnp
from jax import lax

from tape.rules import parameters, plane
from tape.rules.registry import Cost, Example, elementwise

_MATRIX = (2, 3)

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
