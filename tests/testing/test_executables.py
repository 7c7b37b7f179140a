"""A check finds the programs of an earlier check again where they compute the same, and only there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.compiles import watching
from tape.testing import GradientMismatch, check_gradients
from tape.testing.executables import signature

X = np.float32([0.3, -1.2, 0.7])


def of(fun, *args):
    return signature(jax.make_jaxpr(fun)(*(args or (X,))).jaxpr)


def test_a_second_check_compiles_nothing():
    scale = jnp.linspace(0.5, 1.5, 3)
    check_gradients(lambda x: jnp.tanh(x) * scale, X)
    other = scale + 1
    with watching() as seen:
        assert check_gradients(lambda x: jnp.tanh(x) * other, X + 1).verdict == "pass"  # other constants are arguments of the program
    assert not seen.compiled


def test_a_function_that_changes_its_mind_is_noticed():
    factor = [1.0]

    @jax.custom_vjp
    def sine(x):
        return jnp.sin(x)

    sine.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (factor[0] * ct * jnp.cos(x),))
    assert check_gradients(sine, X).verdict == "pass"
    factor[0] = 1.001
    with pytest.raises(GradientMismatch):
        check_gradients(sine, X)
    factor[0] = 1.0
    assert check_gradients(sine, X).verdict == "pass"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (jnp.sin, jnp.cos),
        (lambda x: x * 2, lambda x: x * 3),
        (lambda x: x * 0.0, lambda x: x * -0.0),
        (lambda x: x - x[::-1], lambda x: x[::-1] - x),
        (lambda x: x.sum(), lambda x: x.max()),
        (lambda x: jax.lax.cumsum(x), lambda x: jax.lax.cumsum(x, reverse=True)),
        (lambda x: jax.jit(jnp.sin)(x), lambda x: jax.jit(jnp.cos)(x)),
        (lambda x: jax.lax.fori_loop(0, 3, lambda i, c: c * 2, x), lambda x: jax.lax.fori_loop(0, 3, lambda i, c: c * 3, x)),
        (lambda x: jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x), lambda x: jax.lax.cond(x[0] > 0, jnp.cos, jnp.sin, x)),
        (lambda x: (x, jnp.sin(x)), lambda x: (jnp.sin(x), x)),
    ],
)
def test_what_computes_something_else_has_another_signature(one, other):
    assert of(one) != of(other)
    assert of(lambda x: one(x)) == of(one)
    assert of(lambda x: other(x)) == of(other)
    assert hash(of(one)) == hash(of(lambda x: one(x)))


def test_shapes_and_dtypes_belong_to_a_signature():
    assert of(jnp.sin, X) != of(jnp.sin, X[:2])
    assert of(jnp.sin, X) != of(jnp.sin, X.astype(np.float16))
