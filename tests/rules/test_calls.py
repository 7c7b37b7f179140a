"""What the derived suite cannot ask of calls: whose derivative is used, and what the sweep computes again."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import contains, jax_vjp, own_vjp

from interop import lift
from tape import Variable
from tape.errors import LostGradientError

X = np.array([0.5, -0.25, 2.0], "float32")
SEED = np.array([1.0, 2.0, -1.0], "float32")


@jax.custom_vjp
def backward_of_its_own(x, n):
    return x * 2, n + 1


backward_of_its_own.defvjp(lambda x, n: (backward_of_its_own(x, n), x), lambda x, cts: (cts[0] * 3 * x, None))


@jax.custom_jvp
def tangent_of_its_own(x, n):
    return x * n, n + 1


@tangent_of_its_own.defjvp
def _(primals, tangents):
    x, n = primals
    return tangent_of_its_own(x, n), (7 * tangents[0] * x * n, np.zeros(n.shape, jax.dtypes.float0))


def test_backward_function_of_the_user_is_used_beside_integers():
    (own,) = own_vjp(lambda x: backward_of_its_own(x, jnp.arange(3)), (X,), (SEED, None))
    np.testing.assert_allclose(own, SEED * 3 * X, rtol=1e-6)


def test_jvp_of_the_user_is_used_beside_integers():
    (own,) = own_vjp(lambda x: tangent_of_its_own(x, jnp.arange(3)), (X,), (SEED, None))
    np.testing.assert_allclose(own, SEED * 7 * X * np.arange(3), rtol=1e-6)


def test_a_value_closed_over_has_no_gradient_and_is_not_taken_for_a_constant():
    def scaled(w, x):
        @jax.custom_vjp
        def fun(x):
            return w * x

        fun.defvjp(lambda x: (fun(x), None), lambda _, g: (g,))
        return jax.lax.scan(lambda c, _: (fun(c), None), x, None, length=1)[0]

    w, x = Variable(X), Variable(X)
    with pytest.raises(LostGradientError, match=r"closes over a value .* pass the value"):
        lift(scaled)(w, x).sum().backward()
    assert w.grad is None
    assert x.grad is None


def test_second_order_differentiates_the_users_rules():
    for fun in (lambda x: backward_of_its_own(x, 2), lambda x: tangent_of_its_own(x, jnp.arange(3))):
        own = own_vjp(lambda x, fun=fun: own_vjp(fun, (x,), (SEED, None)), (X,), (SEED,))
        expected = jax_vjp(lambda x, fun=fun: jax_vjp(fun, (x,), (SEED, None)), (X,), (SEED,))
        np.testing.assert_allclose(own[0], expected[0], rtol=1e-6)


@jax.custom_jvp
def linear_with_its_own_jvp(x):
    return 2.0 * x


linear_with_its_own_jvp.defjvp(lambda p, t: (linear_with_its_own_jvp(p[0]), linear_with_its_own_jvp(t[0])))


@jax.custom_jvp
def nested(x):
    return jnp.sin(linear_with_its_own_jvp(x))


@nested.defjvp
def _(primals, tangents):
    (x,), (dx,) = primals, tangents
    return nested(x), tangent_of_its_own(jnp.cos(x), jnp.arange(3))[0] * jax.jit(linear_with_its_own_jvp)(dx)


@pytest.mark.parametrize("fun", [linear_with_its_own_jvp, nested])
def test_a_jvp_may_apply_its_own_function_to_the_tangent(fun):
    """As Lineax's does: what is linear has an end, and what a JVP computes of the primals keeps its own derivative."""
    own = own_vjp(lambda x: (fun(x),), (X,), (SEED,))
    np.testing.assert_allclose(own[0], jax_vjp(lambda x: (fun(x),), (X,), (SEED,))[0], rtol=1e-6)
    own = own_vjp(lambda x: own_vjp(lambda x: (fun(x),), (x,), (SEED,)), (X,), (SEED,))
    expected = jax_vjp(lambda x: jax_vjp(lambda x: (fun(x),), (x,), (SEED,)), (X,), (SEED,))
    np.testing.assert_allclose(own[0], expected[0], rtol=1e-6)


def test_relu_has_no_slope_at_zero():
    (own,) = own_vjp(lambda x: (jax.nn.relu(x),), (np.zeros(3, "float32"),), (SEED,))
    np.testing.assert_array_equal(own, np.zeros(3))


def test_checkpoint_computes_again_behind_a_barrier():
    def barriers(**options):
        fun = jax.checkpoint(lambda x: (jnp.sin(jnp.sin(x)),), **options)
        closed = jax.make_jaxpr(lambda x, ct: own_vjp(fun, (x,), (ct,)))(X, SEED)
        barrier = jax.make_jaxpr(jax.lax.optimization_barrier)(X).jaxpr.eqns[0].primitive
        return contains(closed, barrier)

    assert barriers()
    assert not barriers(prevent_cse=False)
