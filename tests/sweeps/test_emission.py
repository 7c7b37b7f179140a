"""Writing a planned sweep where part of it is traced by JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape.sweeps import emission
from tests.platforms import AT_HOME


def test_a_replayed_sweep_is_swept_with_a_traced_seed():
    """The values inside a replayed sweep have no Variables; a traced cotangent makes the tape look at them all the same."""
    w = tape.Variable(jnp.arange(1.0, 4.0))

    def twice(s):
        y = (tnp.sin(w) * w * w).sum()
        g = tape.gradients(y, w, create_graph=True)
        return tape.gradients((g * g).sum(), w, s).value

    expected = 2.0 * jax.grad(lambda v: (jax.grad(lambda u: (jnp.sin(u) * u * u).sum())(v) ** 2).sum())(w.value)
    for _ in range(3):
        np.testing.assert_allclose(jax.jit(lambda s: twice(s))(2.0), expected, rtol=1e-5)
        np.testing.assert_allclose(twice(2.0), expected, rtol=1e-5)


class Rounded(tape.Function):
    """Rounds to quarters; gradients pass where the argument is small."""

    leaves_out = False

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return tnp.round(x * 4) / 4

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved
        return None if Rounded.leaves_out else g * (abs(x) < 1)


def hooked(h, seen):
    h.register_hook(lambda g: (seen.append(g.shape), 0.5 * g)[1])
    return h


def looking(h, seen):
    h.register_hook(lambda g: (seen.append(float(g.sum())), 0.5 * g)[1])
    return h


def rounded(h, seen):
    seen.append(h.shape)
    return Rounded.apply(h)


@pytest.mark.parametrize("between", [hooked, looking, rounded])
def test_between_calls_of_python_a_sweep_is_written_as_before(between, monkeypatch):
    w, seen = [tape.Variable(np.linspace(-0.9, 1.3, 9, dtype=np.float32).reshape(3, 3)), tape.Variable(np.ones(3, np.float32))], []

    def swept():
        h = between(tnp.tanh(w[0] @ w[0]) * w[1], seen)
        (tnp.sin(h) * h).sum().backward()
        gradients = [v.grad.numpy() for v in w]
        for v in w:
            v.grad = None
        return gradients

    first = swept()
    swept()
    monkeypatch.setattr(emission, "_write", lambda *_: pytest.fail("instruction by instruction"))
    for _ in range(3):
        for a, b in zip(swept(), first, strict=True):
            # Elsewhere than on CPUs the two round sums of products apart, some of which nearly cancel.
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=0 if AT_HOME else 1e-6 * np.abs(b).max())
    assert len(seen) == 5


@jax.custom_vjp
def passing(x):
    return jnp.round(x * 4) / 4


passing.defvjp(lambda x: (passing(x), x), lambda x, g: (g * (abs(x) < 1),))


def test_gradients_around_calls_of_python_are_those_of_jax():
    a = np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3)

    def loss(xp, a, between):
        return (xp.sin(between(xp.tanh(a @ a) * 2)) * a).sum()

    for between, of_jax in [(rounded, passing), (hooked, None)]:
        for _ in range(4):
            w = tape.Variable(a)
            loss(tnp, w, lambda h, between=between: between(h, [])).backward()
            if of_jax is not None:
                np.testing.assert_allclose(w.grad.value, jax.grad(lambda a, f=of_jax: loss(jnp, a, f))(a), rtol=1e-5, atol=1e-6)
            else:  # half of what comes by way of h
                direct = np.sin(np.tanh(a @ a) * 2)
                np.testing.assert_allclose(
                    2 * (w.grad.value - direct), jax.grad(lambda a: loss(jnp, a, lambda h: h))(a) - direct, rtol=1e-4, atol=1e-5
                )


def test_a_function_that_leaves_its_gradient_out_between_two_others(monkeypatch):
    w = tape.Variable(np.ones(3, np.float32))
    for nothing in (False, True, False, True):
        monkeypatch.setattr(Rounded, "leaves_out", nothing)
        h = rounded(w * 0.3, [])
        y = hooked(h * 2, [])
        (y.sum() + w.sum()).backward()
        np.testing.assert_allclose(w.grad.value, np.ones(3) if nothing else np.full(3, 1.3), rtol=1e-6)
        w.grad = None
