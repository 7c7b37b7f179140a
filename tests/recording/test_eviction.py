"""Caches are bounded: structures that never repeat leave nothing behind, and of those that do, the ones that ran last stay."""

import itertools

import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape.graph import trie
from tape.ops import kernel

A = np.array([0.5, -0.25, 0.75], np.float32)
OPS = [tnp.sin, tnp.cos, tnp.tanh, tnp.negative]


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(trie, "STATE_LIMIT", 60)
    monkeypatch.setattr(trie, "_limit", 60)
    monkeypatch.setattr(trie, "RECENT", 6)
    monkeypatch.setattr(trie, "_ROOTS", {})
    monkeypatch.setattr(trie, "_count", 0)


def step(ops, x):
    h = x
    for op in ops:
        h = op(h)
    x.zero_grad()
    h.sum().backward()
    return x.grad.value


def expected(ops):
    derivatives = {
        "sin": np.cos,
        "cos": lambda v: -np.sin(v),
        "tanh": lambda v: 1 - np.tanh(v) ** 2,
        "negative": lambda v: -np.ones_like(v),
    }
    values = {"sin": np.sin, "cos": np.cos, "tanh": np.tanh, "negative": np.negative}
    h, d = A.astype(np.float64), np.ones(3)
    for op in ops:
        d = d * derivatives[op.__name__](h)
        h = values[op.__name__](h)
    return d


def states():
    found, stack = 0, list(trie._ROOTS.values())
    while stack:
        state = stack.pop()
        found += 1
        stack.extend(v if isinstance(v, trie.State) else v.state for v in state.next.values())
    return found


@pytest.mark.usefixtures("small")
def test_structures_met_once_are_not_kept():
    x = tape.Variable(A)
    before = states()
    for ops in itertools.product(OPS, repeat=3):
        step(ops, x)
    assert states() - before < 40  # beginnings that several have in common


@pytest.mark.usefixtures("small")
def test_what_ran_last_stays_and_what_went_is_found_again():
    x = tape.Variable(A)
    steady = (tnp.sin, tnp.tanh)
    for _ in range(4):
        step(steady, x)
    for ops in itertools.product(OPS, repeat=3):
        for _ in range(4):
            np.testing.assert_allclose(step(ops, x), expected(ops), rtol=1e-4, atol=1e-6)
        compiles = tape.stats().compiles
        np.testing.assert_allclose(step(steady, x), expected(steady), rtol=1e-5)
        assert tape.stats().compiles == compiles, "a structure that ran all the time was dropped"
        assert states() < 200
    first = (tnp.sin, tnp.sin, tnp.sin)  # long gone
    np.testing.assert_allclose(step(first, x), expected(first), rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("small")
def test_a_segment_that_is_pending_outlives_its_states():
    x = tape.Variable(A)
    y = tnp.sin(x) * 3
    trie._ROOTS.clear()
    (tnp.cos(y)).sum().backward()
    np.testing.assert_allclose(x.grad.value, -np.sin(3 * np.sin(A)) * 3 * np.cos(A), rtol=1e-5)


def test_programs_that_need_more_states_than_the_limit_keep_them(monkeypatch):
    monkeypatch.setattr(trie, "STATE_LIMIT", 50)
    monkeypatch.setattr(trie, "_limit", 50)
    monkeypatch.setattr(trie, "_ROOTS", {})
    monkeypatch.setattr(trie, "_count", 0)
    x = tape.Variable(A)
    long = [OPS[i % 3] for i in range(120)]
    for _ in range(5):
        step(long, x)
    tape.stats().reset()
    step(long, x)
    assert tape.stats().interpreted == tape.stats().compiles == 0


def test_kernels_of_ever_new_shapes_are_dropped(monkeypatch):
    monkeypatch.setattr(kernel, "KERNEL_LIMIT", 8)
    op = kernel.Op("twice", lambda v: v + v)
    for n in range(1, 40):
        assert tape.recording.record.record(op, (tape.Variable(np.ones(n)),)).shape == (n,)
    assert len(op._kernels) <= 8
    assert len(op._by_kinds) <= 8


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("mode", [tape.eager, tape.enable_grad])
def test_a_step_that_repeats_adds_no_states(mode):
    x = tape.Variable(A)

    def run():
        with mode():
            y = tnp.sin(x) * tnp.tanh(x)
            (tape.gradients(y.sum(), x, create_graph=True) ** 2).sum().backward()

    for _ in range(5):  # two more than where NumPy runs what is small
        run()
    count = trie._count
    for _ in range(10):
        run()
    assert trie._count == count


def test_ops_that_are_not_met_again_are_not_kept(monkeypatch):
    monkeypatch.setattr(kernel._BY_KEY, "limit", 40)
    x = tape.Variable(np.arange(200, dtype=np.float32))
    for i in range(150):
        v = tnp.roll(x, i)
        assert float(v[0]) == -i % 200
        assert tape.gradients(v[0], x).value[-i] == 1
    assert len(kernel._BY_KEY) <= 40
