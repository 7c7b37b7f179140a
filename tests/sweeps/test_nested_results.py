"""Ops whose results are nested are swept alike, whether or not a value was looked at before.

What was looked at has run, and a sweep computes again what was not kept of it: with all results of the op in a row, however the op
nests them.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp
from tape.scipy.interpolate import RegularGridInterpolator
from tests.daily import pairs

X = jnp.array([0.1, 0.2, 0.3])
GRID = jnp.linspace(0.0, 4.0, 5)


class Doubled(tape.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2, x + 1

    @staticmethod
    def backward(ctx, ct, other):
        return (0 if ct is None else ct * 2) + (0 if other is None else other)


LIFTED = interop.lift(lambda x: {"a": [x * 2], "b": (x + 1, [])})
JITTED = tape.jit(lambda x: {"a": [x * 2], "b": (x + 1,)})
CHECKPOINT = tape.checkpoint(lambda x: ([x * 2], [x + 1]))


def of_lift(x):
    y = LIFTED(x)
    return y["a"][0], y["b"][0]


def of_jit(x):
    y = JITTED(x)
    return y["a"][0], y["b"][0]


def of_checkpoint(x):
    (a,), (b,) = CHECKPOINT(x)
    return a, b


def of_scan(x):
    (a,), y = tape.lax.scan(lambda c, _: ((c[0] * 2,), {"y": [c[0] + 1]}), (x,), None, length=1)
    return a, y["y"][0][0]


def of_cond(x):
    y = tape.lax.cond(x[0] > 0, lambda x: {"a": [x * 2], "b": x + 1}, lambda x: {"a": [x], "b": x}, x)
    return y["a"][0], y["b"]


def of_interpolator(x):
    return RegularGridInterpolator((GRID,), 2 * GRID)(x), x + 1


OPS = {
    "lift": of_lift,
    "jit": of_jit,
    "Function": Doubled.apply,
    "checkpoint": of_checkpoint,
    "scan": of_scan,
    "cond": of_cond,
    "interpolator": of_interpolator,
}


class Seen(tape.OpHook):
    """Sees everything, and changes nothing."""

    def backward_preprocess(self, op, output_grads):
        pass


def in_eager_mode(s, x):
    with tape.eager():
        return tape.gradients(s, x)


def seen(s, x):
    with tape.hooks(Seen()):
        return tape.gradients(s, x)


def recorded(s, x):
    return tape.gradients(s, x, create_graph=True)


def streamed(s, x):
    return dict(tape.stream_gradients(s, inputs=[x]))[x]


SWEEPS = [tape.gradients, recorded, in_eager_mode, seen, streamed]


def reference(x):
    return jnp.sum(jnp.sin(2 * x) * jnp.cos(x + 1))


@pytest.mark.parametrize("looked", ["not looked at", "looked at", "parts looked at"])
@pytest.mark.parametrize(("op", "sweep"), pairs(OPS, SWEEPS, 2))
def test_nested_results(op, sweep, looked):
    x = tape.Variable(X)
    a, b = OPS[op](x)
    if looked == "parts looked at":
        a.block_until_ready()
    s = (tnp.sin(a) * tnp.cos(b)).sum()
    del a, b  # nobody holds them, so they are computed again
    if looked != "not looked at":
        s.block_until_ready()
    g = sweep(s, x)
    np.testing.assert_allclose(g.value, jax.grad(reference)(X), rtol=1e-5, atol=1e-6)
    if sweep is recorded:
        second = tape.gradients((g * g).sum(), x)
        np.testing.assert_allclose(second.value, jax.grad(lambda x: jnp.sum(jax.grad(reference)(x) ** 2))(X), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", OPS)
def test_nested_results_with_a_hook(op):
    x = tape.Variable(X)
    a, b = OPS[op](x)
    a.register_hook(lambda g: g * 2)
    s = (tnp.sin(a) * tnp.cos(b)).sum()
    del a, b
    s.block_until_ready()
    expected = 2 * 2 * jnp.cos(2 * X) * jnp.cos(X + 1) - jnp.sin(2 * X) * jnp.sin(X + 1)
    np.testing.assert_allclose(tape.gradients(s, x).value, expected, rtol=1e-5)


@pytest.mark.parametrize("op", OPS)
def test_nested_results_under_jacobians(op):
    def fun(x):
        a, b = OPS[op](x)
        y = tnp.sin(a) * tnp.cos(b)
        del a, b
        y.block_until_ready()
        return y

    expected = jax.jacrev(lambda x: jnp.sin(2 * x) * jnp.cos(x + 1))(X)
    np.testing.assert_allclose(tape.jacrev(fun)(tape.Variable(X)).value, expected, rtol=1e-5, atol=1e-6)


class Steep(tape.Function):
    """Its backward is not the derivative of its forward, so that one cannot be taken for the other."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, ct):
        return ct * 5


def hooked(v):
    a = v * 2
    a.register_hook(lambda g: g * 5)
    return a


def once_more(make, x, looked):
    v = tape.Variable(x)
    s = (tnp.sin(make(v)) * v).sum()  # what was made is not held
    if looked:
        assert s.value is not None
    g = tape.gradients(s, v, create_graph=True)
    if looked:
        assert g.value is not None
    return tape.gradients((g * g).sum(), v).value


@pytest.mark.parametrize("transformation", [lambda f: f, jax.jit], ids=["plain", "jit"])
@pytest.mark.parametrize("looked", [False, True])
def test_a_second_derivative_goes_through_the_users_own(looked, transformation):
    a, b = np.sin(2 * X), np.cos(2 * X)
    g = 5 * b * X + a
    second = 2 * g * (-25 * a * X + 10 * b)
    np.testing.assert_allclose(transformation(lambda x: once_more(Steep.apply, x, looked))(X), second, rtol=1e-5)


@pytest.mark.parametrize("transformation", [lambda f: f, jax.jit], ids=["plain", "jit"])
@pytest.mark.parametrize("looked", [False, True])
def test_a_second_derivative_goes_through_hooks(looked, transformation):
    a, b = np.sin(2 * X), np.cos(2 * X)
    g = 10 * b * X + a
    second = 2 * g * (10 * b + 10 * (-10 * a * X + b))
    np.testing.assert_allclose(transformation(lambda x: once_more(hooked, x, looked))(X), second, rtol=1e-5)
