"""Tape functions under the transformations of JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp
from tape.errors import LostGradientError, TapeTypeError

A = np.array([1.0, -2.0, 0.5], np.float32)


def function(x, w):
    return (tnp.sin(x) * w).sum() + (x * x * w).mean()


def reference(x, w):
    return (jnp.sin(x) * w).sum() + (x * x * w).mean()


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: f,
        jax.jit,
        lambda f: jax.grad(f, argnums=(0, 1)),
        lambda f: jax.jit(jax.value_and_grad(f, argnums=1)),
        lambda f: jax.vmap(f, in_axes=(None, 0)),
        lambda f: jax.vmap(jax.grad(f), in_axes=(None, 0)),
        lambda f: jax.jacrev(jax.grad(f)),
        lambda f: jax.grad(lambda x, w: (jax.grad(f)(x, w) ** 2).sum(), argnums=1),
        lambda f: jax.checkpoint(jax.grad(f)),
    ],
)
def test_lower_under_transformations(transform):
    w = jnp.stack([A, A + 1, A * 2])
    args = (A, w if "vmap" in transform.__code__.co_names else w[0])
    ours, theirs = transform(interop.lower(function))(*args), transform(reference)(*args)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert not isinstance(a, tape.Variable)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_lower_pytrees_kwargs_and_static_objects():
    @interop.lower
    def f(tree, *, scale, mode):
        y = tree["a"] * scale + tree["b"][0]
        return {"y": y, "n": y.sum()} if mode == "dict" else y

    tree = {"a": A, "b": [A * 2]}
    out = jax.jit(lambda t, s: f(t, scale=s, mode="dict"))(tree, 3.0)
    np.testing.assert_allclose(out["y"], 5 * A)
    g = jax.grad(lambda t: f(t, scale=3.0, mode="dict")["n"])(tree)
    np.testing.assert_allclose(g["a"], np.full(3, 3.0))
    np.testing.assert_allclose(g["b"][0], np.ones(3))


def test_lower_integer_arguments_and_outputs():
    @interop.lower
    def f(x, i):
        return x[i] * 2, tnp.argmax(x), i

    (y, k, i), pull = jax.vjp(f, jnp.asarray(A), jnp.int32(2))
    assert (float(y), int(k), int(i)) == (1.0, 0, 2)
    gx, gi = pull((jnp.float32(1.0), np.zeros((), jax.dtypes.float0), np.zeros((), jax.dtypes.float0)))
    np.testing.assert_allclose(gx, [0, 0, 2])
    assert gi.dtype == jax.dtypes.float0


def test_lower_runs_the_tapes_own_sweep():
    seen = []

    @interop.lower
    def f(x):
        h = x * x
        h.register_hook(lambda g: seen.append(g.shape) or g * 10)
        return h.sum()

    np.testing.assert_allclose(jax.grad(f)(A), 20 * A)
    np.testing.assert_allclose(jax.jit(jax.grad(f))(A), 20 * A)
    assert seen


def test_lower_functions_that_sweep_inside():
    @interop.lower
    def force(x):
        y = (x**3).sum()
        y.backward()
        return x.grad

    np.testing.assert_allclose(force(A), 3 * A**2, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(force)(A), 3 * A**2, rtol=1e-6)

    @interop.lower
    def differentiable(x):
        return tape.gradients((x**3).sum(), x, create_graph=True)

    np.testing.assert_allclose(jax.grad(lambda x: differentiable(x).sum())(A), 6 * A, rtol=1e-6)


def test_lower_takes_captured_variables_for_constants():
    w = tape.Variable(2.0)
    f = interop.lower(lambda x: x * w)
    assert float(jax.grad(f)(3.0)) == 2.0
    assert w.grad is None
    with jax.checking_leaks():
        assert float(jax.jit(f)(3.0)) == 6.0
    (w * w).backward()
    assert float(w.grad) == 4.0


def test_a_variable_whose_gradient_would_be_lost_is_refused():
    x, f = tape.Variable(A), interop.lower(function)
    for called in (f, jax.jit(f), lambda x, w: f(A, x)):
        with pytest.raises(LostGradientError, match=r"interop\.lift"):
            called(x, A + 1)
    interop.lift(f)(x, A + 1).backward()  # what the message says
    np.testing.assert_allclose(x.grad.value, jax.grad(reference)(A, A + 1), rtol=1e-5)
    for constant in (x.detach(), x.value):
        np.testing.assert_allclose(f(constant, A + 1), reference(A, A + 1), rtol=1e-6)


def test_lift_undoes_lower():
    f = interop.lift(interop.lower(function))
    x = tape.Variable(A)
    f(x, A + 1).backward()
    np.testing.assert_allclose(x.grad.value, jax.grad(reference)(A, A + 1), rtol=1e-5)
    g = jax.grad(interop.lower(interop.lift(reference)))(A, A + 1)
    np.testing.assert_allclose(g, jax.grad(reference)(A, A + 1), rtol=1e-5)


def test_lower_errors():
    with pytest.raises(TapeTypeError, match="lower: expected a function, got str"):
        interop.lower("sin")
    with pytest.raises(TapeTypeError, match="must return Variables or arrays, got str"):
        interop.lower(lambda x: "text")(1.0)
