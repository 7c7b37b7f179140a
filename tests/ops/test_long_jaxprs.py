"""The VJP of a long jaxpr is the sweep over its lines."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import interop
import tape
from tape.ops.kernel import Op
from tests.daily import pairs

X = jnp.asarray(np.linspace(-0.9, 1.1, 12), jnp.float32).reshape(3, 4)
MASK = jnp.asarray(np.arange(12).reshape(3, 4) % 2, jnp.float32)


def numbers_and_arrays(x):
    return 2.0 * jnp.sin(x * MASK + 0.5) + x * np.float32(3) + MASK * x + 7.0 * jnp.sin(x)


def one_value_many_times(x):
    y = x * x + x
    z = y * y
    return z * y + jnp.where(z > 0.5, y, z) + y


def several_results(x):
    a, b = jnp.split(x * x, 2, axis=1)
    return jnp.sort(a * b, axis=0) + a + lax.top_k(b, 2)[0]


def own_derivatives(x):
    return jax.nn.relu(jax.nn.gelu(x) + jax.nn.softplus(x)) * jax.nn.softmax(x) + jax.nn.silu(x)


def loops(x):
    def step(carry, row):
        carry = jnp.tanh(carry + row)
        return carry, carry * row

    return lax.scan(step, x[0], x)[1] + lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x) + x * 2


def checkpointed(x):
    return jax.checkpoint(lambda y: jnp.sin(jnp.cos(y) * y))(x) * jnp.tanh(x + 1) + jnp.exp(x) * x


def integers(x):
    index = jnp.argsort(x, axis=1)
    return jnp.take_along_axis(x * x, index, axis=1) + jnp.floor(x) * x + x**3


def complex_numbers(x):
    z = lax.complex(x, x * x)
    w = jnp.exp(1j * z) * z
    return w.real + jnp.abs(w + 2)


FUNCTIONS = [
    numbers_and_arrays,
    one_value_many_times,
    several_results,
    own_derivatives,
    loops,
    checkpointed,
    integers,
    complex_numbers,
]


@pytest.mark.parametrize(("fun", "outside"), pairs(FUNCTIONS, [lambda f: f, jax.jit], 2))
def test_two_derivatives(fun, outside):
    def total(x):
        return (fun(x) ** 2).sum()

    def second(gradient):
        return lambda x: (gradient(x) ** 2).sum()

    lifted = interop.lift(total)
    np.testing.assert_allclose(outside(tape.grad(lifted))(X), jax.jit(jax.grad(total))(X), rtol=1e-4, atol=1e-5)
    ours = outside(tape.grad(second(tape.grad(lifted))))(X)
    np.testing.assert_allclose(ours, jax.jit(jax.grad(second(jax.grad(total))))(X), rtol=1e-3, atol=1e-4)


def test_an_output_that_is_an_input_or_a_number():
    def fun(x, y):
        for _ in range(8):
            y = jnp.sin(y)
        return x, y, 1.0, x

    def seeded(f):
        out, pull = f
        return out, pull((X, 2 * X, 3.0, X))

    ours, theirs = seeded(tape.vjp(interop.lift(fun), X, X)), seeded(jax.vjp(fun, X, X))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def network(x, layers=12):
    for i in range(layers):
        x = jnp.tanh(x @ jnp.eye(4) + 0.5) * x + (i == layers)
    return x.sum()


def test_no_more_operations_than_jax():
    ours, theirs = [jax.jit(g).lower(X).compile() for g in (tape.grad(interop.lift(network)), jax.grad(network))]
    assert ours.cost_analysis()["flops"] <= theirs.cost_analysis()["flops"]


def test_a_traced_constant_does_not_outlive_its_trace():
    @jax.jit
    def outer(c):
        op = Op("closing", lambda x: network(x * c) * c.sum())
        v = tape.Variable(X)
        return tape.gradients(tape.recording.record.record(op, (v,)), v)

    with jax.checking_leaks():
        found = outer(MASK)
    np.testing.assert_allclose(found.value, jax.grad(lambda x: network(x * MASK) * MASK.sum())(X), rtol=1e-4, atol=1e-5)
