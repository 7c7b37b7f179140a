"""Loops in jaxprs: what repeats in a step of ``tape.jit`` is a loop of its program."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tape
import tape.numpy as tnp
from tape import jaxapi
from tape.programs.equations import written
from tests.agreement import close

X = np.linspace(-1.0, 1.0, 4, dtype=np.float32)
W = np.linspace(-0.4, 0.5, 16, dtype=np.float32).reshape(4, 4)


def products(turns, h, w):
    for _ in range(turns):
        h = jnp.tanh(h @ w)
    return h


def rows(turns, h, w):
    x = jnp.sin(jnp.arange(4.0 * turns).reshape(turns, 4))
    for i in range(turns):
        h = jnp.tanh(h @ w + x[i]) + x[turns - 1 - i]
    return h


def numbers(turns, h, w):
    for i in range(turns):
        h = jnp.sin(h @ w) * (0.5 + 0.01 * i) + (0.25 if i % 2 else -0.0)
    return h


def some_turns_differ(turns, h, w):
    before = h
    for i in range(turns):
        h, before = jnp.cos(h @ w - before) * (2 if i == turns // 2 else 1), h
    return h + before


def all_values_are_kept(turns, h, w):
    kept = []
    for _ in range(turns):
        h = jnp.sin(h @ w)
        kept.append(h)
    return jnp.stack(kept), [k.sum() for k in kept[:3]], h


def derivatives_of_their_own(turns, h, w):
    for _ in range(turns):
        h = jax.nn.silu(h @ w) + jax.nn.relu(h) * 0.1 + jax.nn.softmax(h)
    return h


@jax.custom_vjp
def scaled(h, w):
    return jnp.tanh(h @ w)


scaled.defvjp(lambda h, w: (scaled(h, w), (h, w)), lambda kept, ct: (7 * (ct @ kept[1].T), 5 * jnp.outer(kept[0], ct)))


def a_vjp_of_its_own(turns, h, w):
    for i in range(turns):
        h = scaled(h, w) + 0.01 * i
    return h


def gradients(turns, h, w):
    return jax.value_and_grad(lambda w: (rows(turns, h, w) ** 2).sum())(w)


def seconds(turns, h, w):
    return jax.grad(lambda w: (jax.grad(lambda w: (rows(turns, h, w) ** 2).sum())(w) ** 2).sum())(w)


def keys(turns, h, w):
    key = jax.random.key(3)
    for _ in range(turns):
        key, each = jax.random.split(key)
        h = jnp.tanh(h @ w) * jax.random.bernoulli(each, 0.7, (4,))
    return h, jax.random.key_data(key)


def updates(turns, h, w):
    out = jnp.zeros((turns, 4))
    for i in range(turns):
        h = jnp.tanh(h @ w)
        out = out.at[i].set(h).at[i, 0].add(1)
    return out


def weak(turns, h, w):
    n, x = 2, 0.5
    total = jnp.float32(0)
    for i in range(turns):
        x = lax.sin(jnp.asarray(x)) * 1.5
        total = total + (h @ w).sum() * x + i
        n = n * 3 % 7
    return total, x, n, h.astype(jnp.int32)


def equal_but_for_dtypes(turns, h, w):
    """The same equations in turn on real numbers, weak ones and integers."""
    n, x = jnp.arange(4), lax.broadcast(jnp.asarray(-1.0), (4,))
    for _ in range(turns):
        h, x, n = lax.mul(h, h), lax.mul(x, x), lax.mul(n, n)
    for i in range(turns):
        h, n = jnp.sin(h @ w) * (0.5 + 0.01 * i), n * 3 + i
    return h, x, n


def strides(turns, h, w):
    x = jnp.sin(jnp.arange(16.0))
    return products(turns, h, w) + x[0:8:2] + x[8:16:2]


@pytest.mark.parametrize(
    "loop",
    [
        products,
        rows,
        numbers,
        some_turns_differ,
        all_values_are_kept,
        derivatives_of_their_own,
        a_vjp_of_its_own,
        gradients,
        seconds,
        keys,
        updates,
        weak,
        equal_but_for_dtypes,
        strides,
    ],
    ids=lambda f: f.__name__,
)
def test_a_jaxpr_with_loops_computes_the_same_and_does_not_grow_with_turns(loop):
    sizes = []
    long = {products, all_values_are_kept, equal_but_for_dtypes, strides}
    for turns in (400, 420) if loop in long else (100, 120) if loop in {keys, a_vjp_of_its_own} else (40, 60):
        flat = jaxapi.trace(lambda h, w: jax.tree.leaves(loop(turns, h, w)), X, W)[0]  # noqa: B023
        rolled = written(flat, final=True)
        sizes.append(len(rolled.eqns))
        assert sizes[-1] < len(flat.eqns) / 2 or loop is all_values_are_kept  # each is taken out, and put together with others
        assert [v.aval for v in rolled.jaxpr.outvars] == [v.aval for v in flat.jaxpr.outvars]
        for got, expected in zip(jax.jit(jaxapi.jaxpr_as_fun(rolled))(X, W), jaxapi.jaxpr_as_fun(flat)(X, W), strict=True):
            np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)
    assert sizes[1] <= sizes[0] + (3 if loop in {all_values_are_kept, seconds} else 0.2) * 20  # rows that are taken out, or put together


def test_few_equations_and_effects_stay_as_they_are():
    def told(h, w):
        for _ in range(200):
            h = jnp.tanh(h @ w)
            jax.debug.callback(lambda: None)
        return h

    for fun in (told, lambda h, w: rows(5, h, w)):
        flat = jaxapi.trace(fun, X, W)[0]
        assert written(flat, final=True) is flat


@pytest.mark.parametrize("own", ["jvp", "vjp"])
def test_derivatives_of_their_own_are_kept_where_they_may_be_asked_for(own):
    @jax.custom_jvp
    def sine(x):
        return jnp.sin(x)

    sine.defjvp(lambda primals, tangents: (sine(*primals), 7 * tangents[0]))

    def fun(h, w):
        h = rows(60, h, w)
        return scaled(h, w) if own == "vjp" else sine(h)

    flat = jaxapi.trace(fun, X, W)[0]
    kept, final = (written(flat, final=final) for final in (False, True))
    assert max(len(kept.eqns), len(final.eqns)) < len(flat.eqns) / 3
    pulled = [jax.vjp(jaxapi.jaxpr_as_fun(c), X, W)[1]([X])[1] for c in (flat, kept, final)]
    np.testing.assert_allclose(pulled[1], pulled[0], rtol=1e-5, atol=1e-6)
    assert not np.allclose(pulled[2], pulled[0], rtol=0.1)


def test_a_step_of_many_turns_is_a_loop_and_its_lines_keep_their_names():
    x = np.sin(np.arange(800.0, dtype=np.float32)).reshape(200, 4)
    w = tape.Variable(W)

    @tape.jit
    def step(x):
        w.zero_grad()
        h = x[0]
        for row in x:
            h = tnp.tanh(h @ w + row)
        loss = (h * h).sum()
        loss.backward()
        w.value = w.value - 0.1 * w.grad.value
        return loss

    def loss(w):
        h, _ = lax.scan(lambda h, row: (jnp.tanh(h @ w + row), None), x[0], x)
        return (h * h).sum()

    expected = jnp.asarray(W)
    for _ in range(3):
        value, gradient = jax.value_and_grad(loss)(expected)
        expected = expected - 0.1 * gradient
        close(step(x), value)
        close(w, expected)
    assert tape.stats().compilations[-1].ops.count("tanh") == len(x)  # what was recorded, not what became of it
    text = step.lower(x).as_text(debug_info=True)
    assert text.count("stablehlo.while") in {2, 3}  # of the rows, too
    assert text.count("stablehlo.tanh") <= 4
    assert "tanh (test_equations.py:" in text


def test_a_step_is_recorded_as_a_whole(monkeypatch):
    """Evaluated one by one, each op would pass through JAX's tracing: 5 000 steps of a Runge-Kutta method took 60 s to trace."""

    def at_once(*_):
        raise AssertionError

    x, w = tape.Variable(W[0]), tape.Variable(W)
    monkeypatch.setattr("tape.recording.plain.record_at_once", at_once)
    monkeypatch.setattr("tape.recording.staging.record_at_once", at_once)

    @tape.jit
    def step():
        h = x
        for i in range(20):
            h = tnp.tanh(h @ w) * (1 + 0.1 * i)
        (h * h).sum().backward()
        with tape.no_grad():
            w[0] = w.grad[0] * 2
        return h.detach()

    result = step()
    grad, again = tape.constant(w.grad.value), tape.constant(w.value)
    w.value, w.grad = jnp.asarray(W), None
    monkeypatch.undo()
    close(step.__wrapped__(), result)
    close(w.grad, grad)
    close(w, again)


def test_what_is_looked_at_between_is_not_computed_again():
    """Eagerly, the forward and the sweep are two programs, of which the second one would compute a long loop again."""
    w, x = tape.Variable(W), tape.constant(W[0])

    def step(looks):
        h = x
        for _ in range(300):
            h = tnp.tanh(h @ w)
        loss = (h * h).sum()
        value = jnp.sqrt(loss.value) if looks else 1.0
        loss.backward()
        return value

    texts = [tape.jit(functools.partial(step, looks)).lower().as_text() for looks in (False, True)]
    for word, count in {"while": 2, "stablehlo.tanh": 1, "dot_general": 6}.items():
        assert [text.count(word) for text in texts] == [count, count]


@pytest.mark.parametrize("turns", [1, 200])
def test_the_users_names_stand_in_the_program_of_a_step(turns):
    @tape.jit
    def step(x):
        with jax.named_scope("before"):
            x = x * 2
        for _ in range(turns):
            with jax.named_scope("layer"), jax.named_scope("gate"):
                x = tnp.sin(x) * x
        return tnp.cos(x)

    text = step.lower(tape.constant(X)).as_text(debug_info=True)
    assert re.search(r'"jit\(step\)/before/multiply \(test_equations.py:\d+\)/mul"', text)
    assert re.search(r'layer/gate/sin \(test_equations.py:\d+\)/sin"', text)
    assert re.search(r'"jit\(step\)/cos \(test_equations.py:\d+\)/cos"', text)
