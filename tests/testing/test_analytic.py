"""The complex step decides where differences drown in rounding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tape.testing import GradientMismatch, check_gradients
from tape.testing.analytic import Complexified, is_analytic
from tape.testing.executables import Program
from tape.testing.measurement import Measurement
from tape.testing.precise import Precise

X = np.array([0.3, -1.2, 0.7])
W = np.array([[1.0, 2.0, -1.0], [0.5, 0.25, 3.0]])


def closed(fun):
    return jax.make_jaxpr(fun)(X.astype("float32"))


def along(fun, v):
    part = Complexified(closed(fun))
    return float(Program("slope", part.slope, [part])([X], [v], [np.ones(part.closed.out_avals[0].shape)], 1e-30)[0])


@pytest.mark.parametrize(
    "fun",
    [
        jnp.tanh,
        lambda x: jnp.exp(-x * x) / (2 + jnp.cos(x)),
        lambda x: jnp.sum(jnp.asarray(W, x.dtype) @ x) ** 3,
        lambda x: jax.jit(jnp.sin)(x)[::-1] * x**2,
        lambda x: jnp.log1p(jnp.sqrt(x + 2)) * jnp.exp2(x),
        lambda x: jnp.concatenate([x, jnp.cumsum(x)]) ** 2.0,
    ],
)
def test_it_is_the_derivative_to_rounding(fun):
    assert is_analytic(closed(fun).jaxpr)
    v = np.array([0.5, 1.0, -0.25])
    with jax.enable_x64(True):
        _, exact = jax.jvp(lambda x: jnp.sum(fun(x)), (jnp.asarray(X),), (jnp.asarray(v),))
        assert along(fun, v) == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("fun", [jnp.abs, jax.nn.relu, jnp.max, jnp.sort, lambda x: jnp.where(x > 0, x, 0), lambda x: x**x, jnp.round])
def test_what_is_not_analytic_is_left_to_differences(fun):
    assert not is_analytic(closed(fun).jaxpr)


def drowned(x):
    return (1e8 + jnp.sin(x)) ** 2 - 2e8 * jnp.sin(x)  # 1e16 + sin(x)**2


def test_differences_give_way_where_rounding_is_larger_than_what_changes():
    jaxpr = closed(drowned)
    value = Precise(jaxpr)
    measured = Measurement(value, 1, kind="first", parts=[value])
    task = ([X], [np.array([1.0, 0.0, 0.0])], [np.ones(3)])
    assert measured.slopes([task])[0][0].error > 1e-2
    measured.exact = Complexified(jaxpr)
    both, high, low, _ = measured.slopes([task])[0]
    assert abs(both.value - 2 * np.sin(X[0]) * np.cos(X[0])) <= both.error < 1e-5
    assert high == low == both


def test_a_wrong_gradient_of_values_that_rounding_hides_is_found():
    def halved(x):  # JAX is told to stop half of the derivative
        return drowned(0.5 * x + 0.5 * jax.lax.stop_gradient(x))

    assert check_gradients(drowned, X.astype("float32"), order=1).verdict == "pass"
    with pytest.raises(GradientMismatch):
        check_gradients(halved, X.astype("float32"), order=1)
