"""Programs: what was met before runs as one, and only what is held is kept."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape.graph import length
from tape.programs import policy

A = np.array([1.0, -2.0, 0.5], np.float32)


@pytest.fixture
def interpreted(monkeypatch):
    """No structure is compiled whole at its first meeting."""
    monkeypatch.setattr(policy, "LEAST", 1 << 30)


def step(x, w):
    h = tnp.tanh(x * w)
    loss = (h * h).mean()
    x.zero_grad()
    loss.backward()
    return loss


@pytest.mark.usefixtures("interpreted")
def test_a_structure_met_again_runs_as_one_program():
    x, w = tape.Variable(A), tape.constant(A + 1)
    stats = tape.stats()
    stats.reset()
    step(x, w)
    step(x, w)  # while it is compiled in the background
    assert stats.hits == stats.compiles == 0
    executed = stats.interpreted
    step(x, w)
    assert stats.interpreted == executed
    assert stats.compiles == stats.hits == 1
    stats.reset()
    for k in range(5):
        x.value = x.value * 0.9 + k
        step(x, w)
    assert (stats.interpreted, stats.compiles, stats.programs) == (0, 0, 0)
    assert stats.hits == 5
    assert stats.flushes == {"backward": 5}


@pytest.mark.usefixtures("interpreted")
def test_what_comes_back_by_chance_leaves_the_compiler_some_time():
    x, y = tape.Variable(A), tape.constant(A)

    def met(others):
        """Meet the structure after some runs of another one, and tell whether it ran as one program."""
        for _ in range(others):
            (y + 1).block_until_ready()
        hits = tape.stats().hits
        loss = (tnp.sin(x * 5.5 - 0.25) ** 3).sum()  # not tanh: rounding takes digits of 1 - y**2
        x.zero_grad()
        loss.backward()
        np.testing.assert_allclose(x.grad, expected, rtol=1e-5)
        return tape.stats().hits - hits == 1

    expected = jax.grad(lambda x: (jnp.sin(x * 5.5 - 0.25) ** 3).sum())(A)
    met(0)
    for _ in range(3):
        (y + 1).block_until_ready()  # compiled
    assert not met(0)  # it is compiled from here on
    assert not met(policy.LOOP)
    assert not met(policy.LOOP)
    assert met(policy.PATIENCE)
    assert met(policy.LOOP)


def test_a_structure_met_once_is_not_compiled():
    x = tape.Variable(A)
    tape.stats().reset()
    float((tnp.cos(x) * 3.25 + 17).sum())
    stats = tape.stats()
    assert stats.compiles == 0
    assert stats.interpreted == stats.executed == 4
    assert "interpreted" in repr(stats)


@pytest.mark.parametrize("kept", [(), (0,), (1,), (0, 2), (0, 1, 2)])
def test_results_that_are_held_are_kept(kept):
    for _ in range(3):
        x = tape.Variable(A)
        made = [x * 2, tnp.sin(x), x + 3]
        last = sum(made[1:], made[0]).sum()
        held = {i: made[i] for i in kept}
        del made
        last.backward()
        tape.stats().reset()
        for i, v in held.items():
            np.testing.assert_allclose(v.value, [2 * A, np.sin(A), A + 3][i], rtol=1e-6)
        assert tape.stats().executed == 0
        np.testing.assert_allclose(x.grad.value, 3 + np.cos(A), rtol=1e-6)


def test_a_value_is_looked_at_without_running_again():
    x = tape.Variable(A)
    y = (x * 2).sum()
    float(y)
    tape.stats().reset()
    float(y)
    repr(y)
    assert tape.stats().executed == 0


def test_segments_are_bounded_and_compile_once():
    x = tape.Variable(A)
    order = np.random.default_rng(0).integers(3, size=3000).tolist()  # no loop: that would be one program

    def loop():
        y = x
        for i in order:
            y = y * 1.0 if i == 0 else y / 1.0 if i == 1 else y - 0.0
        return y

    for _ in range(8):  # where a segment ends at its numbers, the last one of a loop comes back after eight runs
        loop().value
    tape.stats().reset()
    np.testing.assert_array_equal(loop().value, A)
    stats = tape.stats()
    assert stats.compiles == stats.interpreted == 0
    assert stats.flushes["length"] >= 3000 // (length.SEGMENT_LIMIT + 1)


def test_loops_of_different_lengths_share_their_segments():
    def run(n):
        x = y = tape.Variable(A)
        for _ in range(n):
            y = tnp.sin(y)
        y.sum().backward()
        return x.grad.value

    for _ in range(3):
        run(2000)
    tape.stats().reset()
    run(3000)
    assert tape.stats().compiles <= 4


def test_eager_and_lazy_agree():
    def run():
        x = tape.Variable(A)
        h = tnp.exp(tnp.sin(x) * 0.5) @ x
        g = tape.gradients(h, x, create_graph=True)
        return [h.value, g.value, tape.gradients((g * g).sum(), x).value]

    lazy = [run() for _ in range(3)]
    with tape.eager():
        eager = run()
    for other in lazy:
        for a, b in zip(eager, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_changed_rules_are_seen_by_structures_met_before():
    from jax.extend.core.primitives import sin_p

    def slope():
        x = tape.Variable(0.5)
        y = tnp.sin(x)
        y.backward()
        return float(x.grad)

    before = [slope() for _ in range(3)]
    old = tape.rules.lookup(sin_p)
    tape.rules.defvjp(sin_p, lambda ct, out, x, **_: (ct * 7,))
    try:
        assert [slope() for _ in range(3)] == [7.0] * 3
    finally:
        tape.rules.defvjp(sin_p, old.vjp)
    assert slope() == pytest.approx(before[0])


def test_rows_of_a_parameter_that_a_loop_reads_in_each_turn_are_not_kept():
    w = tape.Variable(np.linspace(0.5, 1.5, 4 * 256, dtype=np.float32).reshape(4, 256))
    h = tape.constant(np.linspace(-1, 1, 256, dtype=np.float32))
    data = tape.constant(np.ones((8, 256), np.float32))
    for i in range(8):
        h = tnp.tanh(h * w[i % 2] + w.reshape(4, 256)[2]) * data[i]
    loss = h.sum()
    del h
    loss.block_until_ready()
    segment = loss._segment
    assert not [slot for slot in segment.run.kept if segment.state.table[slot].kind.aval.shape == (256,)]
    (gradient,) = tape.gradients(loss, [w])

    def plain(w):
        h = jnp.linspace(-1, 1, 256, dtype=np.float32)
        for i in range(8):
            h = jnp.tanh(h * w[i % 2] + w[2])
        return h.sum()

    np.testing.assert_allclose(gradient.numpy(), jax.grad(plain)(w.value), rtol=2e-5, atol=1e-6)


def test_a_row_of_what_is_big_and_no_parameter_is_kept_without_the_rest():
    big = tape.constant(np.ones((1 << 10, 64), np.float32))
    w = tape.Variable(np.ones(64, np.float32))
    loss = (w * big[3]).sum()
    del big
    loss.block_until_ready()
    segment = loss._segment
    assert [segment.state.table[slot].kind.aval.shape for slot in segment.run.kept] == [(), (64,)]
