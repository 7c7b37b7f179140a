"""What the derived suite cannot ask of calls: whose derivative is used, and what the sweep computes again."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import contains, jax_vjp, own_vjp

from interop import lift
from tape import Variable
from tape.errors import LostGradientError, TapeValueError
from tape.jaxapi import jaxpr_as_fun
from tape.rules import lookup

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


@pytest.mark.parametrize("w", [X, X[0]], ids=["array", "number"])
def test_a_value_closed_over_has_no_gradient_and_is_not_taken_for_a_constant(w):
    def scaled(w, x):
        @jax.custom_vjp
        def fun(x):
            return w * x

        fun.defvjp(lambda x: (fun(x), None), lambda _, g: (g,))
        return jax.lax.scan(lambda c, _: (fun(c), None), x, None, length=1)[0]

    w, x = Variable(w), Variable(X)
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


def test_a_checkpoint_of_some_inputs_has_those_behind_a_barrier():
    """As JAX writes one that a map or another checkpoint has moved values into: a flag for each input."""

    def fun(x, y):
        return (jnp.sin(x * jnp.sin(y)),)

    (eqn,) = jax.make_jaxpr(jax.checkpoint(fun))(X, X).jaxpr.eqns
    rule = lookup(eqn.primitive).vjp
    counts = []
    for flags in ((False, False), (True, False), [False, True], (True, True)):
        options = {**eqn.params, "prevent_cse": flags}
        swept = jax.make_jaxpr(lambda x, y, ct, options=options: rule((ct,), fun(x, y), x, y, **options))(X, X, SEED)
        for mine, other in zip(jax.jit(jaxpr_as_fun(swept))(X, X, SEED), jax_vjp(fun, (X, X), (SEED,)), strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-6)
        counts.append(sum(len(e.invars) for e in swept.jaxpr.eqns if e.primitive.name == "optimization_barrier"))
    assert counts == [0, 2, 2, 3]  # the cotangent, and the inputs


def test_a_backward_that_asks_is_told_which_results_have_no_cotangent():
    told = []

    @jax.custom_vjp
    def both(x):
        return 2 * x, 3 * x

    def backward(_, cts):
        told.append([isinstance(ct, jax.custom_derivatives.SymbolicZero) for ct in cts])
        return (sum(7 * ct for ct in cts if not isinstance(ct, jax.custom_derivatives.SymbolicZero)),)

    both.defvjp(lambda x: (both(x.value), None), backward, symbolic_zeros=True)
    for cts in ((SEED, None), (None, SEED), (SEED, SEED)):
        (own,) = own_vjp(both, (X,), cts)
        np.testing.assert_array_equal(own, 7 * SEED * sum(ct is not None for ct in cts))
    assert told == [[False, True], [True, False], [False, False]]


def test_a_jvp_that_fails_leaves_others_their_derivatives():
    @jax.custom_jvp
    def failing(x):
        return x * 1

    failing.defjvp(lambda p, t: (p[0], jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2), (0, t[0]))[1]))
    with pytest.raises(TapeValueError, match="carry"):
        own_vjp(lambda x: (failing(x),), (X,), (SEED,))
    (own,) = own_vjp(lambda x: tangent_of_its_own(x, jnp.arange(3)), (X,), (SEED, None))
    np.testing.assert_allclose(own, SEED * 7 * X * np.arange(3), rtol=1e-6)


def test_a_system_of_several_parts_has_gradients_of_one_of_its_solutions():
    def solved(a, b, c):
        return tuple(
            jax.lax.custom_linear_solve(
                lambda x: [(3 + a * a) * x[0], x[1] - x[0]],
                [b, c],
                lambda _, y: [y[0] / (3 + a * a), y[1] + y[0] / (3 + a * a)],
                lambda _, y: [(y[0] + y[1]) / (3 + a * a), y[1]],
            )
        )

    def direct(a, b, c):
        return b / (3 + a * a), c + b / (3 + a * a)

    for cts in ((SEED, None), (None, SEED), (SEED, X)):
        args = (X, X + 1, X - 2)
        for mine, other in zip(own_vjp(solved, args, cts), jax_vjp(direct, args, cts), strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-7)


def test_a_checkpoint_with_a_cotangent_that_is_no_number_keeps_its_other_values():
    cts = (np.zeros((0,), "float32"), np.array([np.nan, 1.0, -1.0], "float32"))  # the first of no elements, as one that is nothing

    def fun(x):
        return x[:0], jnp.sin(jnp.sin(x))

    own, expected = (own_vjp(f, (X,), cts)[0] for f in (jax.checkpoint(fun), fun))
    np.testing.assert_allclose(own, expected, rtol=1e-6)
    assert np.isfinite(own[1:]).all()


def test_a_checkpoint_that_is_given_a_key_draws_the_same_again():
    def fun(key, x):
        return (jnp.sin(x * jax.random.normal(key, (3,))),)

    key = jax.random.key(5)
    own = own_vjp(lambda x: jax.checkpoint(fun)(key, x), (X,), (SEED,))
    np.testing.assert_allclose(own[0], jax_vjp(lambda x: fun(key, x), (X,), (SEED,))[0], rtol=1e-6)
