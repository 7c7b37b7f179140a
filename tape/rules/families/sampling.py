"""Random numbers whose distribution has parameters: derivatives of a sample with its randomness held (reparameterisation)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tape.rules.registry import Cost, Example, register

_NEAR = 1e-8  # below, the first term is exact to rounding


@register(
    "random_gamma",
    source="implicit: dx / da = -(dP / da) / (dP / dx) of the distribution function P (Figurnov et al. 2018); near 0, x^a / Gamma(a + 1)",
    domain=((0.6, 3.0),),
    complex=False,
    cost=Cost.HIGH,
    examples=[
        Example(lambda a: jax.random.gamma(jax.random.key(3), a), ((2, 3),)),
        Example(lambda a: jax.random.loggamma(jax.random.key(3), a), ((2, 3),), "logarithm"),
    ],
)
def _random_gamma(ct: Any, out: Any, key: Any, a: Any, *, log_space: bool, **_: Any) -> tuple[Any, ...]:
    """Move a sample with the shape so that its probability stays; small ones, which underflow, by the distribution's first term."""
    if not log_space:
        return None, lambda: ct * lax.random_gamma_grad(a, out)

    def grad() -> Any:
        x = lax.exp(out)
        small = x < _NEAR
        safe = lax.select(small, lax.full_like(x, 1), x)
        near = (lax.digamma(a + 1) - out) / a
        return ct * lax.select(small, near, lax.random_gamma_grad(a, safe) / safe)

    return None, grad


@register(
    "rng_uniform",
    source="y = a + (b - a) u with u held: dy = (1 - u) da + u db",
    domain=((-1.0, 0.0), (0.5, 1.0)),
    complex=False,
    cost=Cost.HIGH,
    examples=[Example(lambda a, b: lax.rng_uniform(a, b, (3,)), ((), ()))],
)
def _rng_uniform(ct: Any, out: Any, a: Any, b: Any, **_: Any) -> tuple[Any, ...]:
    """Share the cotangents between both ends as the numbers lie between them."""
    width = lax.select(b == a, lax.full_like(b, 1), b - a)
    share = (out - a) / width
    return lambda: jnp.sum(ct * (1 - share)), lambda: jnp.sum(ct * share)
