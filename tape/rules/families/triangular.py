"""Solving triangular and tridiagonal linear systems."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from tape.rules import parameters
from tape.rules.families.matrices import dot, identity
from tape.rules.registry import Cost, Example, register


def _well(a: Any) -> Any:
    return a + 3 * identity(a)


def _solve(**options: Any) -> Any:
    return lambda a, b: lax.linalg.triangular_solve(_well(a), b, **options)


@register(
    "triangular_solve",
    source="dX = op(A)^-1 (dB - d op(A) X), transposed",
    domain=((-1.0, 1.0), (-1.0, 1.0)),
    cost=Cost.HIGH,
    examples=[
        Example(_solve(left_side=True, lower=True), ((3, 3), (3, 2)), "left lower"),
        Example(_solve(left_side=True, lower=False), ((2, 3, 3), (2, 3, 2)), "batched left upper"),
        Example(_solve(left_side=False, lower=True), ((3, 3), (2, 3)), "right lower"),
        Example(_solve(left_side=False, lower=False, transpose_a=True), ((3, 3), (2, 3)), "right upper transposed"),
        Example(_solve(left_side=True, lower=True, transpose_a=True), ((3, 3), (3, 2)), "left lower transposed"),
        Example(_solve(left_side=True, lower=True, transpose_a=True, conjugate_a=True), ((3, 3), (3, 2)), "left lower adjoint"),
        Example(_solve(left_side=False, lower=False, conjugate_a=True), ((3, 3), (2, 3)), "right upper conjugated"),
        Example(_solve(left_side=True, lower=True, unit_diagonal=True), ((3, 3), (3, 2)), "left lower unit"),
        Example(_solve(left_side=False, lower=False, unit_diagonal=True, transpose_a=True), ((3, 3), (2, 3)), "right upper unit"),
        Example(_solve(left_side=True, lower=True), ((3, 3), (3,)), "vector"),
        Example(_solve(left_side=True), ((3, 3), (3, 0)), "empty"),
    ],
)
def _triangular_solve(ct: Any, out: Any, a: Any, b: Any, **params: Any) -> tuple[Any, Any]:
    """Differentiate op(A) X = B or X op(A) = B: the cotangent of B solves the transposed system, that of op(A) is -CB X^T or -X^T CB."""
    (ct_b,) = parameters.apply("triangular_solve", {**params, "transpose_a": not params["transpose_a"]}, a, ct)

    def ct_a() -> Any:
        # the cotangent of op(A): -CB X^T on the left, -X^T CB on the right
        turned = jnp.swapaxes(out, -1, -2)
        product = -dot(ct_b, turned) if params["left_side"] else -dot(turned, ct_b)
        if params["transpose_a"]:
            product = jnp.swapaxes(product, -1, -2)
        if params["conjugate_a"]:
            product = jnp.conj(product)
        inside = -int(params["unit_diagonal"])
        return jnp.tril(product, inside) if params["lower"] else jnp.triu(product, -inside)

    return ct_a, lambda: ct_b


def _without(end: slice, diagonal: Any) -> Any:
    """An outer diagonal whose element at one end, which no equation reads, is 0 whatever the solution is."""
    return diagonal.at[..., end].set(0)


def _shifted(x: Any, by: int) -> Any:
    """Entries moved by one place along the last axis, zero where nothing comes in."""
    empty = jnp.zeros_like(x[..., :1])
    return jnp.concatenate([empty, x[..., :-1]] if by > 0 else [x[..., 1:], empty], axis=-1)


def _tridiagonal(lower: Any, diagonal: Any, upper: Any, b: Any) -> Any:
    return lax.linalg.tridiagonal_solve(lower, diagonal + 4, upper, b)


@register(
    "tridiagonal_solve",
    source="dX = T^-1 (dB - dT X), transposed; T^T has its outer diagonals exchanged and moved by one place",
    domain=((-1.0, 1.0),) * 4,
    complex=False,
    cost=Cost.HIGH,
    examples=[
        Example(_tridiagonal, ((4,), (4,), (4,), (4, 2))),
        Example(_tridiagonal, ((2, 4), (2, 4), (2, 4), (2, 4, 3)), "batched"),
        Example(_tridiagonal, ((1,), (1,), (1,), (1, 2)), "of size one"),
    ],
)
def _tridiagonal_solve(ct: Any, out: Any, *ins: Any, **params: Any) -> tuple[Any, ...]:
    """Differentiate T X = B: the cotangent of B solves the transposed system, that of T is the three diagonals of -CB X^T."""
    lower, diagonal, upper, _b = ins
    (ct_b,) = parameters.apply("tridiagonal_solve", params, _shifted(upper, 1), diagonal, _shifted(lower, -1), ct)
    rows = jnp.swapaxes(ct_b, -1, -2)
    values = jnp.swapaxes(out, -1, -2)
    return (
        lambda: _without(slice(1), -jnp.sum(rows * _shifted(values, 1), axis=-2)),
        lambda: -jnp.sum(rows * values, axis=-2),
        lambda: _without(slice(-1, None), -jnp.sum(rows * _shifted(values, -1), axis=-2)),
        lambda: ct_b,
    )
