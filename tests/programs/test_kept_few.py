"""What is kept for a sweep of what was looked at: of many small values none, once the structure comes back."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp
from tape.programs.retention import FEW

TURNS = 2 * FEW


def chain(size, product):
    m = np.random.default_rng(1).normal(size=(size, size), scale=size**-0.5).astype(np.float32)
    w, x = tape.Variable(m), tape.constant(np.linspace(-1, 1, size, dtype=np.float32))

    def loss():
        y = x
        for _ in range(TURNS):
            y = tnp.tanh(product(w, y))
        return (y * y).sum()

    def right(w):
        y = x.value
        for _ in range(TURNS):
            y = jnp.tanh(w @ y)
        return jnp.sum(y * y)

    gradient = jax.grad(right)
    return w, loss, gradient(w.value), jax.grad(lambda w: jnp.sum(gradient(w) ** 2))(w.value)


def kept_at(step, turns=8):
    """Return how many values are kept in each turn, beside the one that is looked at."""
    found = []
    for _ in range(turns):
        y = step()
        y.item()
        found.append(len(y._segment.run.saved) - 1)
        y.backward()
    return found


def test_small_values_are_computed_again_where_the_structure_comes_back():
    w, loss, right, second = chain(8, tnp.matmul)

    def step():
        w.grad = None
        return loss()

    found = kept_at(step)
    assert found[0] == TURNS  # where it never comes back, it is interpreted, and they are there
    assert found[-1] == 0
    np.testing.assert_allclose(w.grad.numpy(), right, rtol=1e-4, atol=1e-5)
    y = step()
    y.item()
    for times in (1, 2):
        y.backward(retain_graph=times == 1)
        np.testing.assert_allclose(w.grad.numpy(), times * right, rtol=1e-4, atol=1e-5)
    y = step()
    y.item()
    g = tape.gradients(y, w, create_graph=True)
    h = tape.gradients((g * g).sum(), w)
    np.testing.assert_allclose(h.numpy(), second, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("what", ["large", "callback", "reproducible", "packed", "few"])
def test_other_values_are_kept(what):
    calls = []

    def counted(a, b):
        calls.append(1)
        return np.asarray(a) @ np.asarray(b)

    @jax.custom_vjp
    def outside(a, b):
        return jax.pure_callback(counted, jax.ShapeDtypeStruct(b.shape, b.dtype), a, b)

    outside.defvjp(lambda a, b: (outside(a, b), (a, b)), lambda kept, ct: (jnp.outer(ct, kept[1]), kept[0].T @ ct))
    product = interop.lift(outside) if what == "callback" else tnp.matmul
    w, loss, right, _ = chain(512 if what == "large" else 8, product)
    scope = (
        tape.reproducible() if what == "reproducible" else tape.saved_value_hooks(lambda v: v, lambda v: v) if what == "packed" else None
    )

    def step():
        w.grad = None
        if what == "few":
            y = tape.constant(np.linspace(-1, 1, 8, dtype=np.float32))
            for _ in range(FEW):
                y = tnp.tanh(w @ y)
            return y.sum()
        if what != "packed":
            return loss()
        with scope:
            return loss()

    before = len(calls)
    with scope if what == "reproducible" else contextlib.nullcontext():
        found = kept_at(step, 6)
    assert set(found) == {FEW if what == "few" else TURNS} or what == "packed"
    assert found[-1] > 0
    if what == "callback":
        assert len(calls) - before == 6 * TURNS
    if what != "few":
        np.testing.assert_allclose(w.grad.numpy(), right, rtol=1e-3, atol=1e-4)


def test_of_several_results_of_an_op_one_is_kept_and_the_sweep_reads_both():
    x = tape.Variable(np.arange(1.0, 7.0, dtype="float32"))
    u, v = tnp.split(x * 2, 2)
    loss = (tnp.sin(u) * v).sum()
    del v
    loss.numpy()
    loss.backward()
    first, second = np.split(2 * np.arange(1.0, 7.0), 2)
    np.testing.assert_allclose(x.grad.numpy(), 2 * np.concatenate([np.cos(first) * second, np.sin(first)]), rtol=1e-5)
