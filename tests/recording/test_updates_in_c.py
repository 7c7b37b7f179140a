"""Augmented assignments under ``no_grad``: the recorder in C stores what they give as the one in Python does, and leaves it the rest."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape import layout
from tape.graph.kinds import LeafPlace
from tape.graph.scope import LOCAL
from tape.variables import updates

pytestmark = pytest.mark.skipif(layout.NATIVE is None, reason="the recorder in Python runs")

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


@pytest.fixture
def stored(monkeypatch):
    """What the recorder in C has said of each assignment."""
    said = []
    original = updates.overwritten

    def overwritten(*args):
        said.append(original(*args))
        return said[-1]

    monkeypatch.setattr(updates, "overwritten", overwritten)
    return said


def made():
    return tape.Variable(np.full((3, 2), 0.3, np.float32)), tape.Variable(np.zeros((3, 2), np.float32), requires_grad=False)


def step(w, mean):
    (g,) = tape.gradients((tnp.tanh(X @ w) ** 2).sum(), [w])
    with tape.no_grad():
        mean *= 0.9
        mean += 0.1 * g
        w -= 0.1 * mean


def written(turns):
    """Return what the pending segment holds after some steps, and the values then."""
    w, mean = made()
    for _ in range(turns):
        step(w, mean)
    segment = LOCAL.segment()
    places = [(v._segment is segment, type(v._place), v._place.slot, v._place.kind, segment.entered.get(id(v._cell))) for v in (w, mean)]
    held = segment.state, sorted(segment.entered.values()), sorted(segment.origins), set(segment.origins.values()) == {w._extra.node}
    alive = [p.slot for ref in segment.leaf_places if (p := ref()) is not None]
    return places, held, alive, [v.numpy() for v in (w, mean)]


def test_the_segment_is_what_python_makes_it(stored, monkeypatch):
    for _ in range(4):
        written(3)
    del stored[:]
    *native, values = written(3)
    assert stored == [True] * 9, "not the common case"
    monkeypatch.setattr(updates, "overwritten", layout.not_here)
    *python, expected = written(3)
    assert native == python
    assert native[0][0][1] is LeafPlace
    for a, b in zip(values, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_gradients_flow_to_what_was_stored():
    w, mean = made()
    for _ in range(5):
        step(w, mean)
    q, m = np.full((3, 2), 0.3, np.float32), np.zeros((3, 2), np.float32)
    loss = lambda w: (jnp.tanh(X @ w) ** 2).sum()  # noqa: E731
    for _ in range(5):
        m = 0.9 * m + 0.1 * jax.grad(loss)(q)
        q = q - 0.1 * m
    (tnp.tanh(X @ w) ** 2).sum().backward()
    np.testing.assert_allclose(w.grad.value, jax.grad(loss)(q), rtol=1e-5)
    assert not mean.requires_grad


def test_what_is_not_common_is_left_to_python(stored):
    w, mean = made()
    for _ in range(3):
        step(w, mean)
    with pytest.raises(ValueError, match="keeps its own"), tape.no_grad():
        mean += tnp.ones((5, 3, 2))
    with tape.no_grad():
        number = tape.constant(np.arange(3))
        number += tape.constant(np.arange(3)) * 2
    with tape.Tape() as t, tape.no_grad():
        w -= 0.1 * w
    assert len(t) >= 2, "the update is not on the tape that is looked at"
    assert stored[-1] is None
    mean = mean.detach()
    total = mean
    total += mean * w.detach()  # recording is on: a new Variable
    assert total is not mean
    np.testing.assert_array_equal(number.numpy(), np.arange(3) * 3)


def test_a_leaf_inside_of_a_transformation_keeps_no_tracer(stored):
    w, _ = made()
    with tape.no_grad():
        for _ in range(3):
            w -= 0.1 * w

    def traced(x):
        with tape.no_grad():
            w.__isub__(0.1 * tape.constant(x))

    with pytest.raises(RuntimeError, match="transformation"):
        jax.jit(traced)(np.ones((3, 2), np.float32))
    assert isinstance(w.value, jax.Array)
    assert not isinstance(w.value, jax.core.Tracer)
