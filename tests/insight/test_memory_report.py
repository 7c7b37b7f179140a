"""``tape.memory``: the bytes are those of ``tape.stats()``, each with its line, and who keeps them is found."""

import functools
import gc
import inspect
import sys
import threading
import weakref
from collections import deque

import jax
import numpy as np
import pytest

import tape
import tape.numpy as tnp

A = np.linspace(0.1, 0.9, 121, dtype=np.float32).reshape(11, 11)  # lines are those of the first to record a structure: so no other test's
SIZE = A.nbytes
HERE = __file__


def line():
    return inspect.currentframe().f_back.f_lineno


@pytest.fixture(autouse=True)
def _alone():
    """Have what other tests left out of the count."""
    with tape.eager():  # a pending segment is not gone on with
        pass
    segments = tape.stats().segments
    others = dict(segments)
    segments.clear()
    yield
    segments.update({key: ref for key, ref in others.items() if ref() is not None})


def agrees(m):
    assert m.nbytes == tape.stats().live_bytes == sum(row.nbytes for row in m.rows)
    assert m.entries == tape.stats().live_entries == sum(row.count for row in m.rows if row.kind == "entry")
    assert sum(row.nbytes for row in m.by_line) == m.nbytes


def test_nothing():
    m = tape.memory()
    assert (m.nbytes, m.entries, m.rows, m.holders) == (0, 0, (), ())
    assert str(m) == "Memory of the tape: 0 B in 0 arrays, 0 entries"


def test_pending_entries_keep_their_inputs():
    x = tape.Variable(A[:10, :10], name="weights")  # a shape of this test alone
    y = tnp.sinh(x @ x)
    at = line() - 1
    m = tape.memory()
    agrees(m)
    assert {(r.kind, r.name, r.where, r.count, r.nbytes) for r in m.rows} == {
        ("leaf", "weights", (HERE, at), 1, 400),
        ("entry", "matmul", (HERE, at), 1, 0),
        ("entry", "sinh", (HERE, at), 1, 0),
    }
    assert repr(m) == "<Memory of the tape: 400 B, 2 entries, 1 holder>"
    (holder,) = m.holders
    assert (holder.path, holder.op, holder.where, holder.count, holder.entries, holder.nbytes) == ("y", "sinh", (HERE, at), 1, 2, 400)
    del y
    agrees(tape.memory())


def test_residuals_stand_at_the_line_that_made_them():
    x = tape.Variable(A[:9, :9], name="x")  # as above
    h = tnp.cosh(x @ x)
    first = line() - 1
    loss = (h @ h).mean()
    second = line() - 1
    del h
    float(loss)
    m = tape.memory()
    agrees(m)
    residuals = {(r.name, r.where): r.nbytes for r in m.rows if r.kind == "residual"}
    assert residuals["matmul", (HERE, first)] == 324, residuals
    assert residuals["mean", (HERE, second)] == 4
    assert {h.path for h in m.holders} == {"loss"}


def test_a_sweep_releases_all_of_it():
    x = tape.Variable(A)
    losses = []
    for _ in range(3):
        loss = tnp.tanh(x @ x).sum()
        loss.backward()
        losses.append(loss)
    m = tape.memory()
    agrees(m)
    assert (m.nbytes, m.entries, m.holders) == (0, 0, ())


def test_a_list_of_losses_is_one_holder_with_its_path():
    x = tape.Variable(A)

    class Trainer:
        def __init__(self):
            self.history = {"loss": []}

        def run(self):
            for _ in range(5):
                loss = tnp.arctanh(x @ x / 99).sum()
                float(loss)
                self.history["loss"].append(loss)
            return tape.memory()  # ``loss`` is the last one, too

    trainer = Trainer()
    m = trainer.run()
    at = Trainer.run.__code__.co_firstlineno + 2
    agrees(m)
    (holder,) = m.holders
    assert (holder.count, holder.op, holder.where) == (5, "sum", (HERE, at))
    assert holder.path in ("self.history['loss'][...]", "trainer.history['loss'][...]")
    assert holder.nbytes == m.nbytes
    assert holder.entries == m.entries == 20


@pytest.mark.parametrize(
    "kind", [tuple, deque, dict, "closure", "attribute", "slots", "gradient", "set", "explanation", "tape", "partial", "generator"]
)
def test_ways_to_hold(kind):
    x = tape.Variable(A)

    class Slotted:
        __slots__ = ("kept",)

    def made():
        y = tnp.tanh(x @ x).sum()
        float(y)
        if kind == "closure":
            return lambda: y
        if kind in ("attribute", "slots"):
            box = Slotted() if kind == "slots" else type("Box", (), {})()
            box.kept = y
            return box
        if kind == "gradient":
            y.backward(create_graph=True)
            return None
        if kind is dict:
            return {("a", 1): y}
        if kind == "explanation":
            return [tape.explain(y, x)]
        if kind == "tape":
            return tape.Tape.of(y)
        if kind == "partial":
            return functools.partial(print, end=y)
        return {y} if kind == "set" else kind([y])

    def generate():
        h = tnp.tanh(x @ x).sum()
        float(h)
        yield
        float(h)

    held = generate() if kind == "generator" else made()
    if kind == "generator":
        next(held)
    m = tape.memory()
    agrees(m)
    wanted = {
        tuple: "held[0]",
        deque: "held[0]",
        dict: "held[('a', 1)]",
        "closure": "held.y",
        "attribute": "held.kept",
        "slots": "held.kept",
        "gradient": "x.grad",
        "set": "held{...}",
        "explanation": "held[0]",
        "tape": "held",
        "partial": "held.keywords['end']",
        "generator": "held.h",
    }[kind]
    assert wanted in {h.path for h in m.holders}
    del held
    x.grad = None


def test_who_is_not_found_is_said_to_be_so():
    x = tape.Variable(A)

    def made():
        y = tnp.tanh(x @ x).sum()
        float(y)
        return iter([y])

    iterator = made()
    m = tape.memory()
    agrees(m)
    (holder,) = m.holders
    assert (holder.path, holder.nbytes) == ("?", m.nbytes)
    del iterator


def test_a_traceback_that_was_shown_last_holds_what_its_functions_did(monkeypatch):
    x = tape.Variable(A)

    def failing():
        hidden = tnp.tanh(x @ x).sum()
        float(hidden)
        raise LookupError

    try:
        failing()
    except LookupError as error:
        monkeypatch.setattr(sys, "last_value", error, raising=False)
    m = tape.memory()
    agrees(m)
    assert [h.path for h in m.holders] == ["sys.last_value.__traceback__: hidden"]


def test_a_local_of_another_thread():
    x = tape.Variable(A)
    ready, done = threading.Event(), threading.Event()

    def work():
        elsewhere = tnp.tanh(x @ x).sum()
        float(elsewhere)
        ready.set()
        done.wait()
        float(elsewhere)

    t = threading.Thread(target=work)
    t.start()
    ready.wait()
    m = tape.memory()
    done.set()
    t.join()
    assert [h.path for h in m.holders] == ["elsewhere"]


def test_what_leads_back_to_older_segments_counts_for_whoever_holds_the_newest():
    x = tape.Variable(A)
    total = tape.Variable(0.0)
    for _ in range(4):
        total = total + tnp.tanh(x @ x).sum()
        float(total)
    m = tape.memory()
    agrees(m)
    (holder,) = m.holders
    assert (holder.path, holder.nbytes, holder.entries) == ("total", m.nbytes, m.entries)


def test_packed_values_count_as_in_the_statistics():
    x = tape.Variable(A)
    with tape.save_on_host():
        y = tnp.tanh(x @ x).sum()
        float(y)
    agrees(tape.memory())


def test_looking_keeps_nothing_alive():
    def inner():
        x = tape.Variable(A)
        y = tnp.tanh(x @ x)
        float(y.sum())
        m = tape.memory()
        leaf, made = weakref.ref(x.value), weakref.ref(y.value)
        segment = weakref.ref(y._segment)
        del x, y
        return m, (leaf, made, segment)  # while this frame is still there, what its names were is gone

    m, refs = inner()
    gc.collect()
    assert [ref() for ref in refs] == [None, None, None]
    assert "tanh" in str(m)
    assert tape.stats().live_bytes == 0


def test_what_locals_has_handed_out_stays_as_it_was():
    v = tape.Variable(A)
    mine = locals()
    before = dict(mine)
    tape.memory()
    assert mine.items() >= before.items()
    assert mine["v"] is v


def test_a_deleted_name_is_gone_though_the_frame_goes_on():
    y = tnp.tanh(tape.Variable(A) @ A)
    float(y.sum())
    tape.memory()
    ref = weakref.ref(y.value)
    del y
    gc.collect()
    assert ref() is None


def test_nothing_runs_and_nothing_changes():
    x = tape.Variable(A)
    y = tnp.tanh(x @ x).sum()
    before = tape.stats().executed, tape.stats().flushes.total()
    for _ in range(3):
        agrees(tape.memory())
    assert (tape.stats().executed, tape.stats().flushes.total()) == before
    y.backward()
    assert x.grad is not None


@pytest.mark.parametrize("width", [80, 140])
def test_tables_fit_the_line(width):
    x = tape.Variable(A, name="a_weight_with_a_long_name_that_is_to_be_cut_somewhere_in_the_table_of_eighty")
    a_variable_with_a_rather_long_name_that_goes_on = [tnp.tanh(x @ x).sum() for _ in range(3)]
    text = tape.memory().text(width=width, color=False)
    assert max(map(len, text.splitlines())) <= width
    assert "held by" in text
    assert "<pre" in tape.memory()._repr_mimebundle_()["text/html"]
    assert len(a_variable_with_a_rather_long_name_that_goes_on) == 3


def test_options_are_checked():
    with pytest.raises(tape.errors.TapeTypeError):
        tape.memory().text(width=0)
    with pytest.raises(tape.errors.TapeTypeError):
        tape.memory().text(color="yes")


def test_symbolic_lengths_have_no_bytes():
    seen = []

    def exported(x):
        v = tape.Variable(x)
        y = (v * v).sum()
        seen.append((isinstance(tape.memory().nbytes, int), isinstance(tape.stats().live_bytes, int)))
        return y.value

    rows = jax.ShapeDtypeStruct(jax.export.symbolic_shape("batch, 3"), np.float32)
    jax.export.export(jax.jit(exported))(rows)
    assert seen == [(True, True)]
