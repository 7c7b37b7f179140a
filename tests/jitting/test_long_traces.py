"""Long Python loops in steps of ``tape.jit``: what tracing them costs, and leaves."""

import contextlib
import gc
import threading

import jax
import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape import layout
from tape.graph import trie
from tape.graph.trie import State
from tape.jitting.garbage import only_young
from tape.recording import staging

OFTEN = (50, 2, 2)


@contextlib.contextmanager
def collections(threshold):
    """The generations that Python looks through meanwhile."""
    met, before = [], gc.get_threshold()

    def note(phase, info):
        if phase == "start":
            met.append(info["generation"])

    gc.set_threshold(*threshold)
    gc.callbacks.append(note)
    try:
        yield met
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*before)


def looped(turns):
    w = tape.Variable(np.ones(3, np.float32))

    @tape.jit
    def step():
        y = w
        for _ in range(turns):
            y = tnp.sin(y)
        return y.sum()

    return step


def test_python_looks_for_garbage_among_young_objects_only_while_a_step_is_traced():
    kept = []

    @tape.jit
    def step(x):
        with collections(gc.get_threshold()) as met:
            kept.append([[n] for n in range(100_000)])
        return x + 0 * len(kept), [0] * met.count(2)

    with collections(OFTEN) as met:
        kept.append([[n] for n in range(100_000)])
        assert 2 in met, "otherwise this shows nothing"
        _, full = step(tape.Variable(1.0))
        assert full == []
        assert gc.get_threshold() == OFTEN


def test_the_collector_is_as_before_where_a_step_cannot_be_traced():
    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError):
        tape.jit(lambda v: v * (1 // 0))(tape.Variable(1.0))
    assert gc.get_threshold() == before


def test_what_a_step_does_with_the_collector_stays():
    def step(v):
        gc.set_threshold(*OFTEN)
        return v * 2

    with collections(gc.get_threshold()):
        tape.jit(step)(tape.Variable(1.0))
        assert gc.get_threshold() == OFTEN


@pytest.mark.parametrize("first", [True, False], ids=["the first one leaves first", "the last one leaves first"])
def test_the_collector_is_as_before_once_all_threads_have_traced(first):
    entered, may_leave = threading.Event(), threading.Event()
    before = gc.get_threshold()

    def other():
        with only_young():
            entered.set()
            may_leave.wait(10)

    thread = threading.Thread(target=other)
    if first:
        thread.start()
        entered.wait(10)
        with only_young():
            may_leave.set()
            thread.join()
    else:
        with only_young():
            thread.start()
            entered.wait(10)
        may_leave.set()
        thread.join()
    assert gc.get_threshold() == before


def test_nothing_of_the_tape_of_a_traced_step_is_left():
    step = looped(700)
    assert np.isfinite(float(step()))
    gc.collect()
    left = [x for x in gc.get_objects() if isinstance(x, State) and x.depth > 600]
    assert left == []


def test_no_note_is_kept_of_structures_that_are_not_met_again():
    step = looped(50)
    step()  # with the run around it
    met = len(trie._SEEN)
    looped(300)()
    assert len(trie._SEEN) - met < 100


@pytest.mark.skipif(layout.NATIVE is None, reason="the recorder in Python records all of it")
def test_entries_on_results_of_a_step_that_is_traced_are_recorded_in_c(monkeypatch):
    recorded = []
    slow = staging.record_staged
    monkeypatch.setattr("tape.recording.plain.record_staged", lambda op, inputs: recorded.append(op.name) or slow(op, inputs))
    w = tape.Variable(np.ones(3, np.float32))

    @tape.jit
    def step():
        y = tnp.sin(w)
        for _ in range(50):
            y = y * y + 0.5 * y
            y, _ = tnp.split(tnp.concatenate([y, y]), 2)
        return y.sum()

    step()
    assert len(recorded) < 10, recorded


def test_a_result_from_outside_that_a_step_rebinds_under_no_grad_is_a_constant_of_it():
    def run(jit):
        w = tape.Variable(np.array([1.0, 2.0, 3.0]))
        made = w * 2

        def step():
            with tape.no_grad():
                made[0] = (made * 3)[1]
            y = made
            for _ in range(3):
                y = y * w + made
            return y.sum()

        y = jit(step)()
        (g,) = tape.gradients(y, (w,), create_graph=True)
        (h,) = tape.gradients((g * g).sum(), (w,))
        return float(y), g.numpy(), h.numpy()

    for a, b in zip(run(tape.jit), run(lambda f: f), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_numbers_of_a_long_loop_are_told_apart_by_their_signs_and_types():
    def step(x, turns=60):
        y = x
        for i in range(turns):
            y = y * 1.0 + (x * 0.0 + x * -0.0) * True + (x * 0 if i % 2 else x * -0.0) + 1
        return y, 1 / (x * 0.0), 1 / (x * -0.0), 1 / (x * 0), x * float("nan")

    x = tape.Variable(np.array([0.5, 2.0], np.float32))
    for a, b in zip(tape.jit(step)(x), step(x), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_a_step_of_several_parts_with_loops_in_each():
    def step(w, x):
        y = x
        for _ in range(40):
            y = tnp.sin(y * w) + 0.5 * y
        with tape.no_grad():
            scale = tnp.abs(y).max()
        y = tape.lax.cond(scale > 1.0, lambda v: v * 2.0, lambda v: v, y)
        for _ in range(50):
            y = tnp.cos(y) * w + 0.25 * y
        y.sum().backward()
        g = w.grad
        w.zero_grad()
        for _ in range(40):
            y = tnp.sin(y * g) + 0.5 * y
        return y, g

    with jax.enable_x64(True):
        w, x = (tape.Variable(np.array(v)) for v in ([0.7, -0.2, 1.1], [0.1, 2.0, -0.4]))
        found, expected = tape.jit(step)(w, x), step(w, x)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9)


def test_a_variable_from_outside_that_a_long_loop_assigns_to_is_read_as_it_is_then():
    def step(w):
        y = w * 1.0
        for i in range(30):
            y = y + w * 0.5
            if i % 3 == 0:
                with tape.no_grad():
                    w.value = w.value * 0.5
        return y.sum()

    totals = []
    for jit in (tape.jit, lambda f: f):
        w = tape.Variable(np.array([1.0, 2.0]))
        totals.append((float(jit(step)(w)), w.numpy()))
    assert totals[0][0] == pytest.approx(totals[1][0], rel=1e-12)
    np.testing.assert_allclose(totals[0][1], totals[1][1])
