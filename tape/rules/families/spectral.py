"""Spectral decompositions: eigenvalues and eigenvectors, singular values and vectors."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from tape.errors import TapeValueError
from tape.rules import parameters
from tape.rules.families.matrices import adjoint, conjugate, diagonal, dot, identity, on_diagonal, total
from tape.rules.registry import Cost, Example, register


def _inverse_gaps(values: Any) -> Any:
    """1 / (w_i - w_j) at (j, i), zero on the diagonal."""
    gaps = values[..., None, :] - values[..., :, None]
    eye = identity(gaps)
    return 1 / (gaps + eye) - eye


def _whole(name: str, count: int, size: int) -> None:
    """Refuse the gradient of the vectors of a part of the spectrum, which depends on all the others."""
    if count != size:
        msg = (
            f"gradient of {name}: the vectors of {count} out of {size} values were computed, whose gradient needs all; "
            "leave subset_by_index out and slice"
        )
        raise TapeValueError(msg)


def _mixed(v: Any) -> Any:
    """V diag(1, 2, ...) V^H: a function of eigenvectors that does not depend on their phases."""
    weights = jnp.broadcast_to(jnp.arange(1, v.shape[-1] + 1), (*v.shape[:-2], v.shape[-1]))
    return dot(v, on_diagonal(weights, v.dtype), adjoint(v))


def _eigenpairs(a: Any, **options: Any) -> tuple[Any, Any]:
    v, w = lax.linalg.eigh(a + on_diagonal(jnp.broadcast_to(3 * jnp.arange(a.shape[-1]), a.shape[:-1]), a.dtype), **options)
    return w, _mixed(v)


@register(
    "eigh",
    source="dW = diag(V^H dA V), dV = V (F * V^H dA V), F the inverse gaps (Giles 2008), transposed",
    domain=((-1.0, 1.0),),
    cost=Cost.HIGH,
    examples=[
        Example(_eigenpairs, ((3, 3),)),
        Example(lambda a: _eigenpairs(a, lower=False), ((2, 3, 3),), "batched upper"),
        Example(lambda a: _eigenpairs(a)[0], ((3, 3),), "values"),
        Example(lambda a: _eigenpairs(a, sort_eigenvalues=False), ((3, 3),), "unsorted"),
        Example(_eigenpairs, ((0, 0),), "empty"),
    ],
)
def _eigh(ct: tuple[Any, ...], out: tuple[Any, ...], a: Any, *, lower: bool = True, **params: Any) -> Any:
    """Differentiate A = V W V^H: the gradient is V (diag(GW) + F * (V^H GV)) V^H with F the inverse gaps; values alone need no gaps.

    One triangle is read, which gets the gradients of both, and of the diagonal only the real part.
    """
    v, w = out
    grad_v, grad_w = conjugate(ct[0]), ct[1]
    terms = []
    if grad_w is not None:
        terms.append(dot(v * grad_w.astype(a.dtype)[..., None, :], adjoint(v)))
    if grad_v is not None:
        _whole("eigh", w.shape[-1], a.shape[-1])
        terms.append(dot(v, _inverse_gaps(w).astype(a.dtype) * dot(adjoint(v), grad_v), adjoint(v)))
    whole = total(*terms)
    halves = 0.5 * (whole + adjoint(whole))
    return conjugate((jnp.tril if lower else jnp.triu)(halves * (2 - identity(halves))))


def _singular(a: Any, **options: Any) -> tuple[Any, Any, Any]:
    u, s, vh = lax.linalg.svd(a + _scaled(a), **options)
    k = s.shape[-1]
    return s, dot(_mixed(u[..., :k]), u[..., :k], vh[..., :k, :]), dot(u[..., :k], vh[..., :k, :], _mixed(adjoint(vh)[..., :k]))


def _scaled(a: Any) -> Any:
    """Rectangular diagonal of well separated values."""
    column = jnp.broadcast_to(3 * jnp.arange(1, a.shape[-2] + 1).astype(a.dtype)[:, None], a.shape[-2:])
    return jnp.broadcast_to(column, a.shape) * identity(a)


@register(
    "svd",
    source="dS = diag(U^H dA V) and rotations by the inverse gaps of squared singular values (Giles 2008; Wan and Zhang 2019), transposed",
    domain=((-1.0, 1.0),),
    cost=Cost.HIGH,
    examples=[
        Example(lambda a: _singular(a, full_matrices=False), ((4, 3),), "tall"),
        Example(lambda a: _singular(a, full_matrices=False), ((3, 4),), "wide"),
        Example(lambda a: _singular(a, full_matrices=False), ((2, 3, 3),), "batched"),
        Example(lambda a: lax.linalg.svd(a + _scaled(a), compute_uv=False), ((4, 3),), "values"),
        Example(lambda a: lax.linalg.svd(a, full_matrices=False), ((3, 0),), "empty"),
    ],
)
def _svd(ct: tuple[Any, ...], out: tuple[Any, ...], a: Any, *, compute_uv: bool = True, **params: Any) -> Any:
    """Differentiate A = U S V^H with gradients GS, GU, GV; singular values alone need neither gaps nor inverses."""
    k = min(a.shape[-2:])
    grad_s, grad_u, grad_vh = (*ct, None, None)[:3]
    if compute_uv:
        s, u, vh = out[0], out[1][..., :k], out[2][..., :k, :]
    else:
        s, u, vh = parameters.apply("svd", {**params, "compute_uv": True, "full_matrices": False}, a)
    for name, grad, size in (("U", grad_u, -1), ("V", grad_vh, -2)):
        if grad is not None and grad.shape[size] != k:
            msg = (
                f"gradient of svd: the extra columns of {name} of a matrix of shape {a.shape} are no differentiable function of it; "
                "pass full_matrices=False"
            )
            raise TapeValueError(msg)
    v = adjoint(vh)
    terms = []
    if grad_s is not None:
        terms.append(dot(u * grad_s.astype(a.dtype)[..., None, :], vh))
    if grad_u is not None or grad_vh is not None:
        _whole("svd", s.shape[-1], k)
        terms.append(_svd_vectors(conjugate(grad_u), None if grad_vh is None else jnp.swapaxes(grad_vh, -1, -2), s, u, v))
    return conjugate(total(*terms))


def _svd_vectors(grad_u: Any, grad_v: Any, s: Any, u: Any, v: Any) -> Any:
    """Gradient through the singular vectors: the rotation inside their span, its phases, and what leaves the span."""
    row, column = s.astype(u.dtype)[..., None, :], s.astype(u.dtype)[..., :, None]
    gaps = (s[..., None, :] + s[..., :, None]) * (s[..., None, :] - s[..., :, None])
    eye = identity(gaps)
    factors = (1 / (gaps + eye) - eye).astype(u.dtype)
    inner = jnp.zeros_like(factors)
    if grad_u is not None:
        turn = dot(adjoint(u), grad_u)
        rotation = factors * turn
        inner = inner + (rotation + adjoint(rotation)) * row
        if jnp.iscomplexobj(u):
            safe = jnp.where(s == 0, jnp.ones_like(s), s)
            phase = jnp.where(s == 0, jnp.zeros_like(s), diagonal(turn).imag / safe)
            inner = inner + on_diagonal(lax.complex(jnp.zeros_like(phase), phase), u.dtype)
    if grad_v is not None:
        rotation = factors * dot(adjoint(v), grad_v)
        inner = inner + column * (rotation + adjoint(rotation))
    result = dot(u, inner, adjoint(v))
    if grad_u is not None and u.shape[-2] > u.shape[-1]:
        leaving = grad_u - dot(u, adjoint(u), grad_u)
        result = result + dot(leaving / row, adjoint(v))
    if grad_v is not None and v.shape[-2] > v.shape[-1]:
        leaving = grad_v - dot(v, adjoint(v), grad_v)
        result = result + dot(u / row, adjoint(leaving))
    return result


def _eigenvalues(a: Any) -> Any:
    return lax.linalg.eig(a + _scaled(a), compute_left_eigenvectors=False, compute_right_eigenvectors=False)[0]


def _moments(a: Any, *, left: bool) -> Any:
    """V W V^T for both kinds of eigenvectors: neither their order nor their signs matter, which LAPACK leaves open, but phases do."""
    w, *vectors = lax.linalg.eig(a + _scaled(a), compute_left_eigenvectors=left, enable_eigvec_derivs=True)
    return tuple(dot(v * w[..., None, :], jnp.swapaxes(v, -1, -2)) for v in vectors)


@register(
    "eig",
    source="dW = diag(V^-1 dA V), dV = V (F * V^-1 dA V) minus the part that LAPACK's normalization removes, transposed",
    domain=((-1.0, 1.0),),
    cost=Cost.HIGH,
    examples=[
        Example(_eigenvalues, ((3, 3),), "values"),
        Example(lambda a: _moments(a, left=False), ((3, 3),), "right vectors"),
        Example(lambda a: _moments(a, left=True), ((2, 3, 3),), "all vectors"),
    ],
)
def _eig(ct: tuple[Any, ...], out: tuple[Any, ...], a: Any, **params: Any) -> tuple[Any]:
    """Differentiate A = V W V^-1 and A^H = L W^H L^-1: one formula serves the right and, for A^H, the left eigenvectors."""
    computed = [side for side in ("left", "right") if params[f"compute_{side}_eigenvectors"]]
    vectors = dict(zip(computed, zip(ct[1:], out[1:], strict=True), strict=True))
    grad_left, left = vectors.get("left", (None, None))
    grad_right, right = vectors.get("right", (None, None))
    grad_w = conjugate(ct[0])
    enabled = params.get("enable_eigvec_derivs", False)
    if not enabled and (grad_left is not None or grad_right is not None):
        msg = (
            f"gradient of eig: eigenvectors of a general matrix (shape {a.shape}, dtype {a.dtype}) have a gradient only where eigenvalues "
            "are distinct and each eigenvector has one largest component; pass enable_eigvec_derivs=True to jax.lax.linalg.eig to say so"
        )
        raise TapeValueError(msg)
    w, terms = out[0], []
    if grad_w is not None or grad_right is not None:
        if right is None or not enabled:  # vectors that can be differentiated again
            asked = {"compute_left_eigenvectors": False, "compute_right_eigenvectors": True, "enable_eigvec_derivs": True}
            w, right = parameters.apply("eig", {**params, **{name: asked[name] for name in params if name in asked}}, a)
        terms.append(_eigenvectors(grad_w, conjugate(grad_right), w, right))
    if grad_left is not None:
        terms.append(adjoint(_eigenvectors(None, conjugate(grad_left), jnp.conj(w), left)))
    result = conjugate(total(*terms))
    return ((result if jnp.iscomplexobj(a) else result.real).astype(a.dtype),)


def _eigenvectors(grad_w: Any, grad_v: Any, w: Any, v: Any) -> Any:
    """V^-H (diag(GW) + conj(F) * (V^H G')) V^H, where G' is GV without what the normalization (LAPACK's) takes away.

    Each column has norm one, and its largest component is real.
    """
    if v.size == 0:
        return v
    inner = 0 if grad_w is None else on_diagonal(grad_w, v.dtype)
    if grad_v is not None:
        overlap = jnp.sum(jnp.conj(v) * grad_v, axis=-2, keepdims=True)
        largest = jnp.argmax(jnp.abs(v), axis=-2, keepdims=True)
        pivot = jnp.take_along_axis(v, largest, axis=-2)
        turn = lax.complex(jnp.zeros_like(overlap.imag), overlap.imag) / jnp.conj(pivot)
        rows = lax.broadcasted_iota(largest.dtype, v.shape, v.ndim - 2)
        grad_v = grad_v - overlap.real.astype(v.dtype) * v - jnp.where(rows == largest, turn, jnp.zeros_like(turn))
        inner = inner + jnp.conj(_inverse_gaps(w)) * dot(adjoint(v), grad_v)
    return jnp.linalg.solve(adjoint(v), dot(inner, adjoint(v)))
