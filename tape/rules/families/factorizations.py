"""Triangular factorizations: Cholesky, LU, QR."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from tape import jaxapi
from tape.rules.families.matrices import adjoint, conjugate, dot, half_lower, identity, solve_triangular, total
from tape.rules.registry import Cost, Example, leave_to_jax, register


def _unpermute(x: Any, permutation: Any, axis: int) -> Any:
    """Put the rows (axis -2) or columns (axis -1) of ``x``, which are in the order ``permutation``, back in their own order."""
    inverse = jnp.argsort(permutation, axis=-1)
    index = inverse[..., None, :] if axis == -1 else inverse[..., :, None]
    return jnp.take_along_axis(x, index, axis=axis)


def _definite(a: Any) -> Any:
    return dot(a, adjoint(a)) + 2 * identity(a)


@register(
    "cholesky",
    source="dL = L Phi(L^-1 dA L^-H), transposed (Murray 2016, arXiv:1602.07527)",
    domain=((-1.0, 1.0),),
    cost=Cost.HIGH,
    examples=[
        Example(lambda a: lax.linalg.cholesky(_definite(a)), ((3, 3),)),
        Example(lambda a: lax.linalg.cholesky(_definite(a), symmetrize_input=False), ((2, 3, 3),), "batched"),
        Example(lambda a: lax.linalg.cholesky(_definite(a)), ((0, 0),), "empty"),
    ],
)
def _cholesky(ct: Any, out: Any, a: Any, **_: Any) -> Any:
    """Differentiate A = L L^H: the gradient is L^-H Phi(L^H G) L^-1, Phi the lower triangle with the diagonal halved."""
    factor = jnp.tril(out)
    inner = half_lower(dot(adjoint(factor), conjugate(ct)))
    left = solve_triangular(factor, inner, left=True, lower=True, adjoint=True)
    whole = conjugate(solve_triangular(factor, left, left=False, lower=True))
    if not jaxapi.CHOLESKY_BY_TRIANGLE:
        return whole
    # The lower triangle is what is read, and the upper one its adjoint.
    if jnp.iscomplexobj(whole):
        return half_lower(whole + adjoint(whole))
    return jnp.tril(whole) + adjoint(jnp.triu(whole, 1))


@register(
    "lu",
    source="dL = L tril(F, -1), dU = triu(F) U with F = L^-1 P dA U^-1, transposed",
    cost=Cost.HIGH,
    examples=[
        Example(lambda a: lax.linalg.lu(a + 2 * identity(a))[0], ((3, 3),)),
        Example(lambda a: lax.linalg.lu(a + 2 * identity(a))[0], ((5, 3),), "tall"),
        Example(lambda a: lax.linalg.lu(a + 2 * identity(a))[0], ((3, 5),), "wide"),
        Example(lambda a: lax.linalg.lu(a + 2 * identity(a))[0], ((2, 3, 3),), "batched"),
        Example(lambda a: lax.linalg.lu(a)[0], ((0, 3),), "empty"),
    ],
)
def _lu(ct: tuple[Any, ...], out: tuple[Any, ...], a: Any, **_: Any) -> Any:
    """Differentiate P A = L U, with the unit lower L (L2 below the square L1) and the upper U (U2 beside the square U1) in one array."""
    packed, _pivots, permutation = out
    grad = conjugate(ct[0])
    k = min(a.shape[-2:])
    square, below, beside = (slice(k), slice(k)), (slice(k, None), slice(k)), (slice(k), slice(k, None))
    factor, grad1 = packed[..., *square], grad[..., *square]
    from_lower = dot(adjoint(jnp.tril(factor, -1)), grad1) + grad1  # L1^H G1
    from_upper = dot(grad1, adjoint(jnp.triu(factor)))  # G1 U1^H
    inner = jnp.tril(from_lower, -1) + jnp.triu(from_upper)
    tall, wide = packed.shape[-2] > k, packed.shape[-1] > k
    if tall:
        inner = inner - jnp.triu(dot(adjoint(packed[..., *below]), grad[..., *below]))
    if wide:
        inner = inner - jnp.tril(dot(grad[..., *beside], adjoint(packed[..., *beside])), -1)
    result = solve_triangular(factor, inner, left=False, lower=False, adjoint=True)
    result = solve_triangular(factor, result, left=True, lower=True, adjoint=True, unit=True)
    if tall:
        rest = solve_triangular(factor, grad[..., *below], left=False, lower=False, adjoint=True)
        result = jnp.concatenate([result, rest], axis=-2)
    if wide:
        rest = solve_triangular(factor, grad[..., *beside], left=True, lower=True, adjoint=True, unit=True)
        result = jnp.concatenate([result, rest], axis=-1)
    return conjugate(_unpermute(result, permutation, -2))


def _thin(grad: Any, q: Any) -> Any:
    """Gradient of the leading columns Q1 of a square Q from that of all: Householder's product gives the others as a function of them.

    With B = Q1 - [I; 0] = [B1; B2] they are Q2 = [0; I] + B D^H, where D = B2 B1^-1.
    """
    n = q.shape[-1]
    b = q - identity(q)
    top, bottom = b[..., :n, :], b[..., n:, :]
    d = adjoint(jnp.linalg.solve(adjoint(top), adjoint(bottom)))
    grad1, grad2 = grad[..., :n], grad[..., n:]
    grad_bottom = adjoint(jnp.linalg.solve(top, dot(adjoint(b), grad2)))
    grad_top = -dot(adjoint(d), grad_bottom)
    return grad1 + dot(grad2, d) + jnp.concatenate([grad_top, grad_bottom], axis=-2)


@register(
    "qr",
    source="Townsend 2016 (Differentiating the QR decomposition), transposed; wide and full matrices by block elimination",
    domain=((-1.0, 1.0),),
    cost=Cost.HIGH,
    examples=[
        Example(lambda a: lax.linalg.qr(a + 2 * identity(a), full_matrices=False), ((3, 3),)),
        Example(lambda a: lax.linalg.qr(a + 2 * identity(a), full_matrices=False), ((4, 3),), "tall"),
        Example(lambda a: lax.linalg.qr(a + 2 * identity(a), full_matrices=False), ((3, 5),), "wide"),
        Example(lambda a: lax.linalg.qr(a + 2 * identity(a), full_matrices=True), ((5, 3),), "full"),
        Example(lambda a: lax.linalg.qr(a + 2 * identity(a), full_matrices=False)[0], ((2, 4, 3),), "batched orthogonal factor"),
        Example(lambda a: lax.linalg.qr(a + 2 * identity(a), full_matrices=False)[1], ((2, 4, 3),), "batched triangular factor"),
        Example(lambda a: lax.linalg.qr(a + 2 * identity(a), full_matrices=False, pivoting=True)[:2], ((4, 3),), "pivoted"),
        Example(lambda a: lax.linalg.qr(a, full_matrices=False), ((3, 0),), "empty"),
    ],
)
def _qr(ct: tuple[Any, ...], out: tuple[Any, ...], a: Any, *, pivoting: bool = False, **_: Any) -> Any:
    """Differentiate A P = Q R = [A1 A2].

    With N = Q^H GQ - GR R^H the gradient of A1 is (GQ + Q (half_lower(N - N^H) - N)) R^-H.
    """
    k = min(a.shape[-2:])
    q, r = out[0][..., :k], out[1][..., :k, :k]
    grad_q, grad_r = map(conjugate, ct[:2])
    if grad_q is not None and grad_q.shape[-1] > k:
        grad_q = _thin(grad_q, q)
    rest = None
    if a.shape[-1] > k:  # R2 = Q^H A2
        rest = jnp.zeros_like(a[..., k:])
        if grad_r is not None:
            rest = dot(q, grad_r[..., :k, k:])
            grad_q = total(dot(q, out[1][..., :k, k:], adjoint(grad_r[..., :k, k:])), grad_q)
    inner = jnp.zeros_like(r) if grad_q is None else dot(adjoint(q), grad_q)
    if grad_r is not None:
        inner = inner - dot(grad_r[..., :k, :k], adjoint(r))
    result = total(dot(q, half_lower(inner - adjoint(inner)) - inner), grad_q)
    result = solve_triangular(r, result, left=False, lower=False, adjoint=True)
    if rest is not None:
        result = jnp.concatenate([result, rest], axis=-1)
    return conjugate(_unpermute(result, out[2], -1) if pivoting else result)


leave_to_jax("schur", cost=Cost.HIGH)
