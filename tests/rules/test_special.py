"""Special functions: arguments without a closed derivative are refused, never passed over in silence."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from oracles import own_vjp

import tape
from tape.errors import RuleError

HALF, TWO, THREE = (jnp.full((2,), v) for v in (0.5, 2.0, 3.0))


@pytest.mark.parametrize(
    ("fun", "args"),
    [
        (lax.zeta, (TWO, THREE)),
        (lax.polygamma, (TWO, THREE)),
        (lax.igamma_grad_a, (TWO, THREE)),
        (lax.betainc, (TWO, THREE, HALF)),
    ],
    ids=["zeta", "polygamma", "igamma_grad_a", "regularized_incomplete_beta"],
)
def test_derivative_without_a_closed_form_is_refused(request, fun, args):
    with pytest.raises(RuleError, match=f"{request.node.callspec.id}: .*not implemented; hold .* fixed with lax.stop_gradient"):
        own_vjp(lambda *a: (fun(*a),), args, (jnp.ones(2),))


def test_the_argument_without_a_closed_form_is_named():
    with pytest.raises(RuleError, match=r"regularized_incomplete_beta: .* b "):
        own_vjp(lambda b: (lax.betainc(TWO, b, HALF),), (THREE,), (jnp.ones(2),))


def slope(fun):
    return lambda x: own_vjp(lambda v: (fun(v),), (x,), (jnp.ones_like(x),))[0]


def test_scaled_bessel_functions_keep_their_slopes_far_from_zero_and_near():
    x = np.asarray([15.0, 200.0, 1000.0], "float32")
    first, other = [-0.00352535640366, -7.0656554279e-5, -6.31019896263e-6], [-0.00316625526602, -7.01259626952e-5, -6.3007312943e-6]
    for sign in (1, -1):
        np.testing.assert_allclose(slope(lax.bessel_i0e)(sign * x), sign * np.array(first), rtol=1e-6)
        np.testing.assert_allclose(slope(lax.bessel_i1e)(sign * x), other, rtol=1e-6)
    small = jnp.asarray([1e-30, 1e-10, -1e-20, -1e-30], "float32")
    np.testing.assert_allclose(slope(slope(lax.bessel_i1e))(small), -np.sign(small), rtol=1e-6)


def test_the_inverse_error_function_keeps_its_slope_near_the_edge():
    x = jnp.asarray([0.99993324], "float32")
    np.testing.assert_allclose(slope(lax.erf_inv)(x), 2513.729286798386, rtol=3e-6)


def test_spence_between_one_and_two():
    """JAX's derivative is NaN there, and 0 at 1; the identity is spence'(x) = log(x) / (1 - x), whose limit at 1 is -1."""
    with jax.enable_x64(True):
        v = tape.Variable(np.array([0.01, 0.5, 0.61, 0.999, 1.0, 1.001, 1.39, 1.5, 2.0, 7.0]))
        x = v.numpy()
        slope = tape.gradients(tape.scipy.special.spence(v).sum(), v, create_graph=True)
        curvature = tape.gradients(slope.sum(), v)
        beside = np.where(x == 1, 2, x)
        logarithm = np.log1p(beside - 1)
        np.testing.assert_allclose(slope.value, np.where(x == 1, -1, logarithm / (1 - beside)), rtol=1e-14)
        expected = np.where(x == 1, 0.5, 1 / (beside * (1 - beside)) + logarithm / (1 - beside) ** 2)
        np.testing.assert_allclose(curvature.value, expected, rtol=1e-9)  # the expected loses digits next to 1
        edge = tape.Variable(0.0)
        assert tape.gradients(tape.scipy.special.spence(edge), edge).item() == -np.inf


def test_curvature_of_the_logarithm_of_the_gamma_function_at_its_poles():
    """It is infinite from both sides; the slope, of either sign, is no number there."""
    x = jnp.asarray([-1.0, -2.0])
    assert np.isnan(slope(lax.lgamma)(x)).all()
    assert (slope(slope(lax.lgamma))(x) == np.inf).all()


@pytest.mark.parametrize("parameters", [(1.5, 2.5), (7.0, 0.8)])
@pytest.mark.parametrize("number", [0, 1])
def test_the_density_of_the_beta_distribution_is_differentiated_by_its_parameters(number, parameters):
    with jax.enable_x64(True):
        density = tape.grad(tape.scipy.special.betainc, argnums=2)
        args = (*parameters, 0.3)
        moved = [float(density(*[x + step * (i == number) for i, x in enumerate(args)])) for step in (-2e-3, -1e-3, 1e-3, 2e-3)]
        slope = tape.grad(density, argnums=number)(*args)
    np.testing.assert_allclose(slope, (moved[0] - 8 * moved[1] + 8 * moved[2] - moved[3]) / 12e-3, rtol=1e-8)


@pytest.mark.parametrize("x", [5.0, 75.0])
def test_third_derivatives_of_the_gamma_distribution_where_its_density_is_small_and_where_not(x):
    a = 1.5
    second = tape.grad(tape.grad(tape.scipy.special.gammainc, argnums=1), argnums=1)
    by_a, by_x = tape.grad(second, argnums=(0, 1))(np.float32(a), np.float32(x))
    density, slope = x ** (a - 1) * np.exp(-x) / math.gamma(a), (a - 1) / x - 1
    digamma = 2 - np.euler_gamma - 2 * np.log(2)  # of 3/2
    np.testing.assert_allclose(by_x, density * (slope * slope - (a - 1) / x**2), rtol=2e-6)
    np.testing.assert_allclose(by_a, density * (slope * (np.log(x) - digamma) + 1 / x), rtol=2e-6)
