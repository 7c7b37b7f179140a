"""Loops of sweeps of which nobody looks at one: their steps are cut where they end, and nothing of what was swept is kept."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape.errors import ReleasedTapeError
from tape.graph.length import SEGMENT_LIMIT
from tape.graph.scope import LOCAL
from tape.statistics import STATS

RATE = np.float32(0.01)


def weights():
    draw = np.random.default_rng(0).standard_normal
    return [draw((8, 8)).astype(np.float32) * 0.3, draw(8).astype(np.float32) * 0.1, draw((8, 2)).astype(np.float32)]


X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)


def loss(xp, p, turns):
    h = X
    for _ in range(turns):
        h = xp.tanh(h @ p[0] + p[1])
    return ((h @ p[2]) ** 2).mean()


def segments():
    gc.collect()
    return sum(ref() is not None for ref in list(STATS.segments.values()))


def stepping(p, turns):
    def step():
        gradients = tape.gradients(loss(tnp, p, turns), p)
        with tape.no_grad():
            for i, g in enumerate(gradients):
                p[i] -= RATE * g

    return step


@pytest.mark.parametrize("turns", [1, 5, 90])
def test_updates_by_gradients(turns, stats):
    p, steps = [tape.Variable(w) for w in weights()], 60 if turns > 10 else 240
    step = stepping(p, turns)
    for _ in range(steps // 2):
        step()
    there = segments()
    for _ in range(steps // 2):
        step()
    if turns < 10:  # longer steps are cut within, and then each segment leads to the one before
        assert segments() <= there + 2, "what was swept is kept"
    update = jax.jit(lambda q: [w - RATE * g for w, g in zip(q, jax.grad(lambda q: loss(jnp, q, turns))(q), strict=True)])
    q = list(map(jnp.asarray, weights()))
    for _ in range(steps):
        q = update(q)
    for v, w in zip(p, q, strict=True):
        np.testing.assert_allclose(v.value, w, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("turns", [1, 2, 3, 5])
def test_segments_come_back(turns, stats):
    step = stepping([tape.Variable(w) for w in weights()], turns)
    for _ in range(200):
        step()
    stats.reset()
    for _ in range(200):
        step()
    assert stats.flushes["length"] > 5
    assert stats.programs == 0, "each segment has another structure"


def test_what_was_swept_in_an_older_segment_is_known_to_be():
    p = [tape.Variable(w) for w in weights()]
    step = stepping(p, 90)
    y = loss(tnp, p, 90)
    middle = tnp.sum(y * 2.0)
    tape.gradients(middle, p)
    for _ in range(4):
        step()
    for root in (y, middle):
        with pytest.raises(ReleasedTapeError):
            tape.gradients(root, p)


@pytest.mark.parametrize("turns", [1, 3])
def test_a_loop_of_updates_is_cut_where_gradients_come_from_a_transformation(turns, stats):
    p = [tape.Variable(w) for w in weights()]

    def step():
        _, gradients = tape.value_and_grad(lambda p: loss(tnp, p, turns))(p)
        with tape.no_grad():
            for i, g in enumerate(gradients):
                p[i] -= RATE * g

    for _ in range(200):
        step()
        assert LOCAL.segment() is None or LOCAL.segment().state.depth < SEGMENT_LIMIT
    stats.reset()
    for _ in range(200):
        step()
    assert stats.programs == 0, "each segment has another structure"
    update = jax.jit(lambda q: [w - RATE * g for w, g in zip(q, jax.grad(lambda q: loss(jnp, q, turns))(q), strict=True)])
    q = list(map(jnp.asarray, weights()))
    for _ in range(400):
        q = update(q)
    for v, w in zip(p, q, strict=True):
        np.testing.assert_allclose(v.value, w, rtol=1e-4, atol=1e-6)


def test_two_updates_of_a_parameter_in_a_step_do_not_cut_it(stats):
    p = [tape.Variable(np.full(3, 0.1 * i, np.float32)) for i in range(40)]
    for _ in range(12):
        sum((v * v).sum() for v in p).backward()
        with tape.no_grad():
            for i, v in enumerate(p):
                p[i] *= 0.99
                p[i] -= RATE * v.grad * v.grad * 2.0
                p[i] -= RATE * v.grad
                v.grad = None
    assert stats.flushes == {"backward": 12}
