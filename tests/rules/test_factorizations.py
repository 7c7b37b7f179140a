"""What the derived suite cannot ask of factorizations: degenerate spectra, refusals, and where JAX is wrong."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from oracles import assert_same, differences, jax_vjp, own_vjp

from tape.errors import TapeValueError

WIDE = np.array([[0.3, 1.2, -0.7, 0.4], [0.9, -0.2, 0.5, 1.5], [-1.1, 0.6, 0.8, 0.1]])


def test_equal_eigenvalues_have_finite_gradients_of_values():
    eye = np.eye(3, dtype="float32")
    for fun in (lambda a: (lax.linalg.eigh(a)[1],), lambda a: (jnp.linalg.svdvals(a),)):
        seed = np.array([1.0, 2.0, 3.0], "float32")
        own = own_vjp(fun, (eye,), (seed,))
        assert np.all(np.isfinite(own[0]))
        assert_same(own, jax_vjp(fun, (eye,), (seed,)), "degenerate values")


def test_what_no_equation_reads_of_a_tridiagonal_system_has_no_derivative_also_where_there_is_no_solution():
    zeros, right = jnp.zeros(3), jnp.ones((3, 1))
    lower, _, upper, _ = own_vjp(lambda *a: (lax.linalg.tridiagonal_solve(*a),), (zeros, zeros, zeros, right), (right,))
    assert (lower[0], upper[-1]) == (0, 0)
    assert np.isnan([lower[1], upper[0]]).all()


def test_vectors_of_complex_matrices_follow_jax():
    square = (WIDE[:, :3] + 1j * WIDE[:, 1:]).astype("complex64")
    hermitian = square @ square.conj().T
    for fun, a in (
        (lax.linalg.eigh, hermitian),
        (lambda a: tuple(lax.linalg.svd(a, full_matrices=False)), WIDE.astype("complex64") * (1 + 0.5j)),
    ):
        cts = [np.linspace(0.5, 1.5, x.size).reshape(x.shape).astype(x.dtype) for x in fun(a)]
        assert_same(own_vjp(fun, (a,), cts), jax_vjp(fun, (a,), cts), "vectors")


@pytest.mark.skipif("enable_eigvec_derivs" not in inspect.signature(lax.linalg.eig).parameters, reason="this JAX has no such derivatives")
@pytest.mark.parametrize("sides", [(True, False), (True, True), (False, True)])
def test_both_kinds_of_eigenvectors_of_a_complex_matrix_follow_jax(sides):
    with jax.enable_x64(True):
        left, right = sides
        a = WIDE[:, :3] + 1j * WIDE[:, 1:] + np.diag([3.0, 5.0j, -4.0])

        def fun(a):
            return tuple(lax.linalg.eig(a, compute_left_eigenvectors=left, compute_right_eigenvectors=right, enable_eigvec_derivs=True))

        cts = [np.linspace(0.5, 1.5, x.size).reshape(x.shape) * (1 - 0.5j) for x in fun(a)]
        assert_same(own_vjp(fun, (a,), cts), jax_vjp(fun, (a,), cts), "eigenvectors")


def test_pivoted_qr_of_a_wide_matrix_has_the_slope_that_jax_lacks():
    with jax.enable_x64(True):

        def triangular(a):
            return (lax.linalg.qr(a, full_matrices=False, pivoting=True)[1],)

        seed, direction = np.cos(WIDE[:3]), np.sin(3 * WIDE)
        (own,) = own_vjp(triangular, (WIDE,), (seed,))
        step = 1e-6
        numeric = np.sum(seed * (triangular(WIDE + step * direction)[0] - triangular(WIDE - step * direction)[0])) / (2 * step)
        np.testing.assert_allclose(np.sum(own * direction), numeric, rtol=1e-7)
        (other,) = jax_vjp(triangular, (WIDE,), (seed,))
        assert not np.allclose(np.sum(other * direction), numeric, rtol=1e-3), "JAX is right now: hold the derived suite to it"


@pytest.mark.parametrize(
    ("fun", "repair"),
    [
        (lambda a: (lax.linalg.svd(a, full_matrices=True)[2],), "full_matrices=False"),
        (lambda a: (lax.linalg.eig(a[:, :3])[2],), "enable_eigvec_derivs=True"),
    ],
)
def test_vectors_without_a_gradient_are_refused_with_a_repair(fun, repair):
    a = WIDE.astype("float32")
    with pytest.raises(TapeValueError, match=repair):
        own_vjp(fun, (a,), [jnp.ones_like(x) for x in fun(a)])


@pytest.mark.parametrize("lower", [True, False])
def test_the_triangle_of_a_hermitian_matrix_that_is_read_has_the_gradient(lower):
    with jax.enable_x64(True):
        a = WIDE[:, :3] + np.diag([3.0, 0.0, -4.0])
        args = (lambda a: (lax.linalg.eigh(a, lower=lower, symmetrize_input=False)[1],)), (a,), (np.array([1.0, 2.0, -1.0]),)
        (own,) = own_vjp(*args)
        unit = np.eye(9).reshape(9, 3, 3)
        numeric = [differences(*args, [direction])[0][0] for direction in unit]
    np.testing.assert_allclose(own.ravel(), numeric, atol=1e-9)


@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_complex_triangular_systems_of_every_side_have_jaxs_gradients(left, transpose, conjugate):
    a, b = (WIDE[:, :3] + 1j * WIDE[:, 1:] + np.diag([3.0, 5.0j, -4.0])).astype("complex64"), WIDE[:, :3].astype("complex64") * (1 - 0.5j)
    for lower in (False, True):

        def solve(a, b, lower=lower):
            return (lax.linalg.triangular_solve(a, b, left_side=left, lower=lower, transpose_a=transpose, conjugate_a=conjugate),)

        call = jax.jit(lambda a, b, vjp, solve=solve: vjp(solve, (a, b), (b * (1 + 2j),)), static_argnums=2)
        assert_same(call(a, b, own_vjp), call(a, b, jax_vjp), "triangular system")
