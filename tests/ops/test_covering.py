"""Updates of a whole array are no scatters, of which XLA would make maps, and abort where something reverses one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
from tape.ops.kernel import Op
from tests.agreement import close

X = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]], np.float32)
Y = np.array([[1.0, 0.5, -2.0], [0.25, 3.0, 0.5]], np.float32)
METHODS = ["set", "add", "subtract", "multiply", "divide", "power", "min", "max"]


def primitives(fun, *arrays):
    return {eqn.primitive.name for eqn in Op("fun", fun).kernel(tuple(map(jax.typeof, map(jnp.asarray, arrays)))).jaxpr.jaxpr.eqns}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("index", [slice(None), ..., None, (..., None), slice(0, 2)])
def test_an_update_of_everything_is_no_scatter(method, index):
    def updated(x, y):
        return getattr(x.at[index], method)(y)

    x, y = abs(X), Y.reshape(np.empty_like(Y)[index].shape)
    assert not any("scatter" in name for name in primitives(updated, x, y))

    def loss(flip, x, y):
        return (flip(updated(flip(x, 0), y), 0) * x).sum()

    for _ in range(3):  # interpreted, again, compiled
        v, w = tape.Variable(x), tape.Variable(y)
        value = loss(tape.numpy.flip, v, w)
        value.backward()
    parts = jax.value_and_grad(loss, argnums=(1, 2))(jnp.flip, x, y)  # un-jitted: XLA sees each primitive alone
    close(value, parts[0])
    close(v.grad, parts[1][0])
    close(w.grad, parts[1][1])


@pytest.mark.parametrize("method", METHODS)
def test_a_number_for_everything_is_no_scatter(method):
    def updated(x):
        return getattr(x.at[...], method)(2.0)

    assert not any("scatter" in name for name in primitives(updated, X))
    flipped = tape.jit(lambda v: updated(v)[::-1])(tape.Variable(abs(X)))
    close(flipped, updated(jnp.asarray(abs(X)))[::-1])


def test_what_was_overwritten_stays_connected():
    x, y, z = tape.Variable(X), tape.Variable(Y), tape.Variable(np.float32(2.0))
    result = x.at[:].set(y)
    close(tape.gradients(result.sum(), [x, y], retain_graph=True), [np.zeros_like(X), np.ones_like(Y)])
    assert "zero mask" in str(tape.explain(result.sum(), x))
    close(tape.gradients(z.at[...].set(3.0), z), 0.0)


@pytest.mark.parametrize(
    "updated",
    [
        lambda x: x.at[0].set(1.0),
        lambda x: x.at[jnp.array([0, 1])].set(1.0),
        lambda x: x.at[:, 1:].add(1.0),
        lambda x: x.at[jnp.array(0)].multiply(2.0),
        lambda x: x.at[:].apply(jnp.sin),
    ],
)
def test_an_update_of_a_part_or_by_a_function_stays_a_scatter(updated):
    assert any("scatter" in name for name in primitives(updated, X))


def test_dtypes_are_those_of_jax():
    with pytest.warns(FutureWarning, match="incompatible"):
        half = tape.Variable(X.astype(np.float16)).at[:].set(tape.Variable(Y))
    assert half.dtype == np.float16
    close(half, Y.astype(np.float16))
    close(tape.constant(np.arange(3)).at[:].add(1), np.arange(1, 4))
