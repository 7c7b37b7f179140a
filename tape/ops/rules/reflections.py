"""Rules of what LAPACK makes of Householder's reflections: products of them, and reductions to triangular, Hessenberg, tridiagonal form.

Each primitive is equal to a loop over columns, which is swept.  A reflection I - tau v v^H has v = (0, ..., 0, 1, tail).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tape import jaxapi
from tape.ops.jaxprs import equations_in
from tape.ops.rules.composites import equal_to
from tape.rules.families.matrices import adjoint, dot, identity
from tape.rules.registry import Cost, Example

_LAPACK = "LAPACK Users' Guide, 5.4: elementary reflectors"


def _batched(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Map a function over all axes but those of the matrices (the first operand is one)."""

    def mapped(a: Any, *others: Any, **params: Any) -> Any:
        whole = partial(fun, **params)
        for _ in range(a.ndim - 2):
            whole = jax.vmap(whole)
        return whole(a, *others)

    return mapped


def _outer(v: Any, w: Any) -> Any:
    return v[:, None] * jnp.conj(w)[None, :]


def _reflection(x: Any, pivot: Any) -> tuple[Any, Any, Any]:
    """Return beta, tau and v so that the adjoint reflection takes ``x``, from its place ``pivot`` on, to beta times a unit vector."""
    places = jnp.arange(x.shape[0])
    alpha = x[pivot]
    tail = jnp.where(places > pivot, x, jnp.zeros_like(x))
    rest = jnp.sum(jnp.real(tail * jnp.conj(tail)))
    nothing = (rest == 0) & (jnp.imag(alpha) == 0)
    square = jnp.where(nothing, jnp.ones_like(rest), jnp.real(alpha * jnp.conj(alpha)) + rest)
    beta = jnp.where(jnp.real(alpha) >= 0, -1, 1).astype(rest.dtype) * lax.sqrt(square)
    tau = jnp.where(nothing, jnp.zeros_like(alpha), (beta.astype(x.dtype) - alpha) / beta.astype(x.dtype))
    scaled = tail / jnp.where(nothing, jnp.ones_like(alpha), alpha - beta.astype(x.dtype))
    v = jnp.where(places == pivot, jnp.ones_like(x), scaled)
    return jnp.where(nothing, alpha, beta.astype(x.dtype)), tau, v


def _stored(x: Any, pivot: Any, beta: Any, v: Any) -> Any:
    """Return a column as LAPACK leaves it: what was above the pivot, beta, the tail of v."""
    places = jnp.arange(x.shape[0])
    return jnp.where(places < pivot, x, jnp.where(places == pivot, beta, v))


def _vector(a: Any, k: Any) -> Any:
    """Return the vector of the k-th reflection that is stored below the diagonal."""
    places = jnp.arange(a.shape[0])
    return jnp.where(places > k, a[:, k], jnp.where(places == k, 1, 0).astype(a.dtype))


def _product(a: Any, taus: Any) -> Any:
    """First columns of H_1 H_2 ... H_k."""
    return _applied(a, taus, identity(a))


def _applied(a: Any, taus: Any, c: Any, *, left: bool = True, transpose: bool = False) -> Any:
    """Multiply C with Q = H_1 ... H_k, or with its adjoint, from the left or the right."""
    if not left:  # C op(Q) is the adjoint of op(Q)^H C^H
        return adjoint(_applied(a, taus, adjoint(c), left=True, transpose=not transpose))

    def apply(c: Any, k: Any) -> tuple[Any, None]:
        return _reflected(c, taus[k] if transpose else jnp.conj(taus[k]), _vector(a, k)), None

    return lax.scan(apply, c, jnp.arange(taus.shape[0]), reverse=not transpose)[0]


def _reduced(a: Any, *, below: int) -> tuple[Any, Any]:
    """Take every column to zeros below its diagonal, or with ``below`` 1, from both sides, below the one under it: Q^H A, or Q^H A Q.

    The reflections stand where the zeros would.
    """
    columns = jnp.arange(a.shape[1])

    def step(a: Any, k: Any) -> tuple[Any, Any]:
        beta, tau, v = _reflection(a[:, k], k + below)
        right = a - tau * _outer(a @ v, v) if below else a
        column = _stored(a[:, k], k + below, beta, v)
        return jnp.where(columns > k, _reflected(right, tau, v), jnp.where(columns == k, column[:, None], a)), tau

    return lax.scan(step, a, jnp.arange(max(a.shape[0] - 1, 0) if below else min(a.shape)))


def _reflected(a: Any, tau: Any, v: Any) -> Any:
    return a - jnp.conj(tau) * v[:, None] * (jnp.conj(v) @ a)[None, :]


def _tridiagonal(a: Any, *, lower: bool = True) -> tuple[Any, ...]:
    """Return T = Q^H A Q of the Hermitian matrix in one triangle: its diagonal, the one beside, and the reflections in that triangle."""
    if not lower:  # the same from the other end
        packed, *others = _tridiagonal(a[::-1, ::-1])
        return (packed[::-1, ::-1], *(x[::-1] for x in others))
    n = a.shape[0]
    whole = jnp.tril(a) + adjoint(jnp.tril(a, -1))

    def step(whole: Any, k: Any) -> tuple[Any, Any]:
        beta, tau, v = _reflection(whole[:, k], k + 1)
        right = whole - tau * _outer(whole @ v, v)
        return _reflected(right, tau, v), (jnp.real(beta), tau, _stored(whole[:, k], k + 1, beta, v))

    whole, (e, taus, packed) = lax.scan(step, whole, jnp.arange(max(n - 1, 0)))
    d = jnp.real(jnp.diagonal(whole))
    columns = jnp.concatenate([packed, jnp.zeros((1, n), a.dtype)])[:n].T if n > 1 else jnp.zeros_like(a)
    stored = jnp.tril(columns, -1) + jnp.diag(d.astype(a.dtype)) + jnp.triu(a, 1)
    return stored, d, e, taus


def _used(name: str, fun: Callable[[], Callable[..., Any]], *shapes: tuple[int, ...]) -> Callable[[], jaxapi.Primitive | None]:
    """Find the primitive called ``name`` in a public function that uses it."""

    def find() -> jaxapi.Primitive | None:
        try:
            closed, _ = jaxapi.trace(fun(), *[jax.ShapeDtypeStruct(shape, "float32") for shape in shapes])
        except AttributeError:  # a release without that function
            return None
        return next((eqn.primitive for eqn in equations_in(closed.jaxpr) if eqn.primitive.name == name), None)

    return find


def _well(a: Any) -> Any:
    return a + 2 * identity(a)


def _hermitian(a: Any) -> Any:
    return a + adjoint(a) + 2 * identity(a)


equal_to(
    "householder_product",
    _batched(_product),
    source=_LAPACK + ": the first columns of their product",
    domain=((-1.0, 1.0), (0.3, 1.2)),
    cost=Cost.HIGH,
    examples=[
        Example(lax.linalg.householder_product, ((4, 3), (3,))),
        Example(lax.linalg.householder_product, ((2, 3, 3), (2, 2)), "batched, fewer reflections"),
    ],
)
equal_to(
    "ormqr",
    _batched(_applied),
    finder=_used("ormqr", lambda: lax.linalg.ormqr, (2, 2), (2,), (2, 2)),
    source=_LAPACK + ": a matrix times their product",
    domain=((-1.0, 1.0), (0.3, 1.2), (-1.0, 1.0)),
    cost=Cost.HIGH,
    examples=[
        Example(lambda a, t, c, o=options: lax.linalg.ormqr(a, t, c, **o), ((3, 2), (2,), (3, 4) if options["left"] else (4, 3)), str(i))
        for i, options in enumerate([{"left": True, "transpose": True}, {"left": False, "transpose": False}])
    ],
)
_decomposed = _used("geqrf", lambda: jax.scipy.linalg.qr_multiply, (2, 2), (2, 2))


def _geqrf(a: Any) -> Any:
    primitive = _decomposed()
    assert primitive is not None
    return jaxapi.bind(primitive, {}, [_well(a)])


equal_to(
    "geqrf",
    _batched(partial(_reduced, below=0)),
    finder=_decomposed,
    source=_LAPACK + ": one for each column, applied to those after it",
    domain=((-1.0, 1.0),),
    cost=Cost.HIGH,
    examples=[
        Example(_geqrf, ((3, 2),), "tall"),
        Example(_geqrf, ((2, 2, 3),), "batched wide"),
    ],
)
equal_to(
    "hessenberg",
    _batched(partial(_reduced, below=1)),
    source=_LAPACK + ": one for each column, applied from both sides",
    domain=((-1.0, 1.0),),
    cost=Cost.HIGH,
    examples=[
        Example(lax.linalg.hessenberg, ((2, 4, 4),), "batched"),
        Example(lax.linalg.hessenberg, ((1, 1),), "one element"),
    ],
)
equal_to(
    "tridiagonal",
    _batched(_tridiagonal),
    source=_LAPACK + ": one for each column of a Hermitian matrix, applied from both sides",
    domain=((-1.0, 1.0),),
    cost=Cost.HIGH,
    examples=[
        Example(lambda a: lax.linalg.tridiagonal(_hermitian(a)), ((2, 3, 3),), "batched lower"),
        Example(lambda a: lax.linalg.tridiagonal(_hermitian(a), lower=False), ((4, 4),), "upper"),
    ],
)


def _symmetric_product(a: Any, c: Any, *, alpha: float, beta: float, **_: Any) -> Any:
    return alpha * dot(a, jnp.swapaxes(a, -1, -2)) + beta * c


def _updated(r: Any, w: Any) -> Any:
    """R' with R'^T R' = R^T R + w w^T, for an upper triangle with a positive diagonal."""
    whole = dot(jnp.swapaxes(r, -1, -2), r) + w[..., :, None] * w[..., None, :]
    return jnp.swapaxes(jnp.linalg.cholesky(whole), -1, -2)


equal_to(
    "symmetric_product",
    _symmetric_product,
    finder=_used("symmetric_product", lambda: lax.linalg.symmetric_product, (2, 2), (2, 2)),
    source="alpha A A^T + beta C",
    domain=((-1.0, 1.0), (-1.0, 1.0)),
    complex=False,
    cost=Cost.HIGH,
    examples=[
        Example(lambda a, c: lax.linalg.symmetric_product(a, c + c.T, alpha=0.5, beta=2.0), ((3, 2), (3, 3))),
        Example(lambda a, c: lax.linalg.symmetric_product(a, c + c.T, beta=1.0, symmetrize_output=True), ((3, 2), (3, 3)), "symmetrized"),
    ],
)
equal_to(
    "cholesky_update",
    _updated,
    finder=_used("cholesky_update", lambda: lax.linalg.cholesky_update, (2, 2), (2,)),
    source="the factor of R^T R + w w^T",
    domain=((-0.5, 0.5), (-1.0, 1.0)),
    complex=False,
    cost=Cost.HIGH,
    examples=[Example(lambda r, w: lax.linalg.cholesky_update(jnp.triu(_well(r)), w), ((3, 3), (3,)))],
)
