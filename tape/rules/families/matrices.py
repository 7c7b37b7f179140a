"""Matrix products and parts that the linear algebra rules share (batched over leading axes).

The rules work with gradients in the inner product ``Re tr(G^H X)``, which are the conjugates of JAX's cotangents: they conjugate
what comes in and what goes out.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import jax.numpy as jnp
from jax import lax


def conjugate(x: Any) -> Any:
    """Complex conjugate; None stays None."""
    return None if x is None else jnp.conj(x)


def total(*terms: Any) -> Any:
    """Sum of one term or more, of which some may be None."""
    return functools.reduce(operator.add, [term for term in terms if term is not None])


def adjoint(x: Any) -> Any:
    """Conjugate transpose."""
    return jnp.conj(jnp.swapaxes(x, -1, -2))


def dot(*factors: Any) -> Any:
    """Matrix product from left to right, at the highest precision of the device."""
    product = factors[0]
    for factor in factors[1:]:
        product = jnp.matmul(product, factor, precision=lax.Precision.HIGHEST)
    return product


def identity(x: Any) -> Any:
    """Ones on the diagonal, in the shape and dtype of ``x``."""
    return jnp.broadcast_to(jnp.eye(x.shape[-2], x.shape[-1], dtype=x.dtype), x.shape)


def diagonal(x: Any) -> Any:
    """Diagonals of the matrices in ``x``."""
    return jnp.diagonal(x, axis1=-2, axis2=-1)


def on_diagonal(values: Any, dtype: Any) -> Any:
    """Diagonal matrices with ``values`` on their diagonals."""
    n = values.shape[-1]
    wide = jnp.broadcast_to(values.astype(dtype)[..., None, :], (*values.shape, n))
    return jnp.where(identity(wide) != 0, wide, jnp.zeros_like(wide))


def half_lower(x: Any) -> Any:
    """Lower triangle with the diagonal halved: the derivative of taking the triangular factor of a Hermitian sum."""
    row, column = [lax.broadcasted_iota(jnp.int32, x.shape[-2:], i) for i in (0, 1)]
    return jnp.where(row > column, x, jnp.where(row == column, x / 2, 0))


def solve_triangular(a: Any, b: Any, *, left: bool, lower: bool, adjoint: bool = False, unit: bool = False) -> Any:
    """Solve ``op(a) x = b`` (left) or ``x op(a) = b`` for triangular ``a``, with ``op`` the identity or the adjoint."""
    return lax.linalg.triangular_solve(a, b, left_side=left, lower=lower, transpose_a=adjoint, conjugate_a=adjoint, unit_diagonal=unit)
