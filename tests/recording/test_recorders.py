"""The recorder in C does what the one in Python does: the same states, the same cells, and nothing where it is not the common case."""

import copy
import functools
import gc
import inspect
import itertools
import os
import pickle
import subprocess
import sys
import threading
import tracemalloc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.extend
import tape.numpy as tnp
from tape import layout
from tape.extend import update
from tape.graph import trie
from tape.graph.scope import LOCAL, close
from tape.graph.segment import NOTHING, Segment, made_at
from tape.programs import retention
from tape.programs.program import look
from tape.recording import plain, record
from tape.rules import table
from tape.sweeps import accumulation, differentiation, emission, sweep
from tape.sweeps.written import Written, asked

A = np.arange(1.0, 13.0, dtype=np.float32).reshape(3, 4) / 7
native = pytest.mark.skipif(layout.NATIVE is None, reason="the recorder in Python runs")

# Statements on g and h (recorded), x and y (leaves that require grad), c (a constant), a (an array of JAX), half (a number), and what they record at
# most.
FAST = {
    "unary": "tnp.sin(g)",
    "negative": "-g",
    "binary": "g * h",
    "binary, one a leaf": "g * y",
    "binary, the other a leaf": "x * g",
    "two leaves": "x * y",
    "one leaf twice": "x * x",
    "ufunc": "tnp.multiply(g, h)",
    "matmul": "g @ h.T",
    "float": "g * 2.5",
    "float on the left": "2.5 - g",
    "int": "g + 3",
    "bool": "g + True",
    "complex": "g * 1j",
    "NumPy number": "g * np.float32(0.5)",
    "NumPy number on the left": "np.float32(0.5) * g",
    "number and leaf": "2.0 * y",
    "static number": "g ** 2",
    "comparison": "g > 1.0",
    "array of JAX": "g * a",
    "array of JAX, tnp": "tnp.arctan2(g, a)",
    "method": "g.sum()",
    "method with keyword": "g.sum(axis=0)",
    "keywords": "tnp.mean(g, axis=(0, 1), keepdims=True)",
    "name": "tnp.einsum('ij,ij->i', g, h)",
    "shape": "g.reshape((4, 3))",
    "where": "tnp.where(g > 1.0, g, h)",
    "where, with numbers": "tnp.where(g > 1.0, 0.5, g)",
    "where, with the same number": "tnp.where(g > half, half, g)",
    "shape as arguments": "g.reshape(4, 3)",
    "dtype": "g.astype(np.float32)",
    "property": "g.T",
    "none": "tnp.clip(g, None, 1.0)",
    "list": "tnp.concatenate([g, h])",
    "tuple and axis": "tnp.stack((g, y), axis=1)",
    "nested list": "tnp.array([[g, 1.0 * g], [h, h]])",
    "several results": "tnp.split(g, 2, axis=1)",
    "tuple of results": "divmod(g, h)",
    "named results": "tnp.linalg.qr(g)",
    "index": "g[1]",
    "negative index": "g[-1]",
    "slice": "g[:, :2]",
    "window": "g[0:2]",
    "indices": "g[1, 2]",
    "new axis": "g[None, ..., 0]",
}


@pytest.fixture
def names():
    a = jnp.asarray(A)
    names = {"tnp": tnp, "np": np, "a": a, "x": tape.Variable(A), "y": tape.Variable(A + 1), "c": tape.constant(A), "half": 0.5}
    record.node_of(names["x"])
    record.node_of(names["y"])
    return names


def begin(names):
    """A new segment with two entries."""
    segment = LOCAL.segment()
    if segment is not None:
        close(segment)
    names["g"] = names["x"] * 0.5
    names["h"] = tnp.cos(names["g"])


def recorded(names, statement):
    """What a statement's results and segment are."""
    begin(names)
    result = eval(statement, names)  # noqa: S307
    segment = LOCAL.segment()
    made = jax.tree.leaves(result, is_leaf=lambda v: isinstance(v, tape.Variable))
    cells = {slot: sys.getrefcount(cell) for slot, cell in segment.cells.items()}
    leaves = [sys.getrefcount(cell) for cell in segment.leaves]
    entered = [segment.entered.get(id(names[leaf]._cell)) for leaf in "xyc"]
    origins = {slot: end.ref() for slot, end in segment.origins.items()}
    assert all(v._segment is segment and v._cell is segment.cells[v._place.slot] and v._extra is None for v in made)
    return type(result), [type(v) for v in made], [v._place for v in made], segment.state, cells, leaves, entered, origins


@pytest.fixture
def in_python(monkeypatch):
    """Have the recorder in Python do everything from now on."""

    def switch():
        monkeypatch.setattr(record, "CHANGES", None)  # without them, nothing is done in C
        record.connect(tape.Variable)

    yield switch
    monkeypatch.undo()
    record.connect(tape.Variable)


def met(names, statement):
    """Have a statement's structure on the trie: interpreted, compiled, found again."""
    for _ in range(4):  # a call spelled in another way joins its structure one meeting later
        begin(names)
        made = eval(statement, names)  # noqa: S307
        np.asarray(jax.tree.leaves(made, is_leaf=lambda v: isinstance(v, tape.Variable))[0].detach())
        del made


@pytest.mark.parametrize("what", FAST)
@native
def test_both_recorders_do_the_same(names, what, in_python):
    met(names, FAST[what])
    in_c = recorded(names, FAST[what])
    in_python()
    assert recorded(names, FAST[what]) == in_c


def python_calls(statement, names):
    """The functions of Python that run while a statement does."""
    code = compile(statement, "<statement>", "eval")
    called = []

    def note(frame, event, _):
        if event == "call" and frame.f_code is not code:
            called.append(frame.f_code.co_qualname if hasattr(frame.f_code, "co_qualname") else frame.f_code.co_name)

    sys.setprofile(note)
    try:
        made = eval(code, names)  # noqa: S307
    finally:
        sys.setprofile(None)
    del made
    return called


IN_PYTHON = {
    "nested list",
    "named results",
    "tuple of results",
    "NumPy number on the left",
    "ufunc",
}  # by name of what the fast path leaves to Python, at least in part


@pytest.mark.parametrize("what", [what for what in FAST if what not in IN_PYTHON])
@native
def test_the_common_case_runs_no_python(names, what):
    met(names, FAST[what])
    begin(names)
    assert python_calls(FAST[what], names) == []


@native
def test_the_count_of_calls_sees_the_recorder_in_python(names, in_python):
    met(names, "g * h")
    in_python()
    begin(names)
    assert python_calls("g * h", names) != []


def test_calls_that_differ_in_what_is_no_variable_are_told_apart(names):
    begin(names)
    g, values = names["g"], names["x"].value * 0.5
    cube, order, half = tape.constant(np.ones((2, 3, 4))), [0, 1, 2], 0.5
    for axes in [(2, 0, 1), (2, 0, 1), (0, 2, 1), (1, 2, 0)]:
        order[:] = axes  # the same list
        assert tnp.transpose(cube, order).shape == tuple([(2, 3, 4)[i] for i in axes])
    for number in (half, half, 0.25, half):  # an input, and not a part of the call
        np.testing.assert_array_equal(tnp.maximum(g, number).value, jnp.maximum(values, number))
    for keywords in [{"axis": 0}, {"axis": 1}, {"axis": (0, 1)}, {"axis": 0, "keepdims": True}, {"keepdims": True}, {"axis": None}] * 3:
        np.testing.assert_allclose(tnp.sum(g, **keywords).value, np.sum(values, **keywords), rtol=1e-6)


# What is not the common case: the recorder in C does nothing, and the one in Python everything.


def test_a_variable_that_stands_for_another_is_recorded_as_that_one(names):
    w = names["x"]
    (handed,) = jax.tree.leaves(w)
    assert handed is not w
    tnp.sum(handed * handed + handed).backward()
    np.testing.assert_allclose(w.grad.value, 2 * A + 1, rtol=1e-6)


def test_a_subclass_of_variable_records(names):
    class Weight(tape.Variable):
        pass

    w = Weight(A)
    for _ in range(3):
        y = tnp.sin(w) * w
        assert type(y) is tape.Variable
        np.testing.assert_allclose(tape.gradients(y.sum(), w).value, np.cos(A) * A + np.sin(A), rtol=1e-5)


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 2**70])
def test_an_integer_that_does_not_fit_is_refused_each_time(names, number):
    for _ in range(3):
        assert names["x"] * 2 is not None  # one that fits, of the same type
        with pytest.raises(OverflowError):
            names["x"] * number


def test_numbers_of_several_types_are_different_structures(names):
    for _ in range(3):
        begin(names)
        g = names["g"]
        assert [(g * n).dtype for n in (2, 2.0, True, 1j, np.float16(2))] == [np.float32] * 3 + [np.complex64, np.float32]


def test_a_setting_changed_between_entries_counts(names):
    for _ in range(3):
        begin(names)
        before = names["g"] * 2.0
        with jax.enable_x64(True):
            inside = names["g"] * np.float64(2.0)
        after = names["g"] * 2.0
        assert (before.dtype, inside.dtype, after.dtype) == (np.float32, np.float64, np.float32)


def test_a_segment_that_another_thread_ran_is_left(names):
    for _ in range(4):
        begin(names)
        g, segment = names["g"], LOCAL.segment()
        thread = threading.Thread(target=look, args=(g,))
        thread.start()
        thread.join()
        y = g * names["h"]
        assert y._segment is not segment
        np.testing.assert_allclose(y.detach().value, A / 2 * np.cos(A / 2), rtol=1e-6)


def test_each_thread_has_its_own_segment(names):
    begin(names)
    mine, others = LOCAL.segment(), []

    def work():
        others.append(LOCAL.segment())
        _ = tape.Variable(A) * 2.0
        others.append(LOCAL.segment())
        others.append(LOCAL.scope is not None and LOCAL.scope.mode)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert others[0] is None
    assert others[1] is not mine
    assert others[2] == 1
    assert LOCAL.segment() is mine


def test_what_a_thread_had_is_freed_with_it():
    held = []

    def work():
        y = tape.Variable(A) * 2.0
        held.append(weakref.ref(y._segment))
        LOCAL.scope = LOCAL.scope.but(gathered={})

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    gc.collect()
    assert held[0]() is None


def test_garbage_collection_at_any_moment_runs_what_is_pending(names):
    """Allocations may collect garbage, and finalizers are Python: they may record, look, and run the very segment."""

    def meddle(phase, _):
        if phase == "stop" and busy and next(turns) % 7 == 0:  # who is interrupted each time gets nowhere
            _ = x * 3.0  # which is known: JAX's own functions cannot be called at any moment
            segment = LOCAL.segment()
            if next(ends) % 3 == 0 and segment is not None:
                close(segment)

    busy, turns, ends = [], itertools.count(), itertools.count()
    x, y = names["x"], names["y"]
    gc.callbacks.append(meddle)
    thresholds = gc.get_threshold()
    try:
        for turn in range(6):
            _ = x * 3.0
            if turn > 2:
                busy.append(1)
                gc.set_threshold(1, 1, 1)
            z = (tnp.sin(x) * y + 2.0) @ names["a"].T
            z = z.sum(axis=0)[1:3] * 2 + tnp.split(z, 3)[0][0, :2]
            gc.set_threshold(*thresholds)
            busy.clear()
            expected = (np.sin(A) * (A + 1) + 2) @ A.T
            np.testing.assert_allclose(z.detach().value, expected.sum(axis=0)[1:3] * 2 + expected[0, :2], rtol=1e-5)
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(meddle)


def test_garbage_of_recorded_variables_is_collected(names):
    x = names["x"]
    held = weakref.ref(x * 2.0)
    assert held() is None
    y = x * 2.0
    y.name = "y"
    y._extra.post_hooks[0] = functools.partial(print, y)  # a cycle through the Variable
    held = weakref.ref(y)
    del y
    gc.collect()
    assert held() is None


# What users hold are functions, whichever recorder runs.


@pytest.mark.parametrize("function", [tnp.sin, tnp.sum, tape.Variable.sum], ids=["sin", "sum", "method"])
def test_functions_are_functions(function):
    assert inspect.isroutine(function)
    assert function.__name__ in {"sin", "sum"}
    assert function.__doc__
    assert "axis" in inspect.signature(function).parameters or function is tnp.sin
    assert pickle.loads(pickle.dumps(function)) is function  # noqa: S301
    assert copy.copy(function) is copy.deepcopy(function) is function
    assert weakref.ref(function)() is function
    assert function.__name__ in repr(function)
    assert len({function, function}) == 1


def test_functions_are_methods_of_classes_that_hold_them(names):
    class Layer(tape.Variable):
        activation = tnp.tanh

    np.testing.assert_allclose(Layer(A).activation().detach().value, np.tanh(A), rtol=1e-6)
    np.testing.assert_allclose(names["x"].sum.__func__(names["x"]).detach().value, A.sum(), rtol=1e-6)


# Which recorder runs.

SCRIPT = "import tape.layout as l; print(l.RUNS)"


def run(code, **environment):
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, "JAX_PLATFORMS": "cpu", **environment}
    )
    return done.stdout.strip() or "\n".join(done.stderr.strip().splitlines()[-2:])  # the last one names the page of the error


def test_the_environment_chooses_the_recorder():
    assert run(SCRIPT, TAPE_RECORDER="python") == "python (TAPE_RECORDER=python)"
    assert "there is no recorder 'rust'" in run(SCRIPT, TAPE_RECORDER="rust")
    chosen = run(SCRIPT, TAPE_RECORDER="native")
    assert chosen == ("native" if layout.NATIVE is not None else chosen)
    assert chosen == "native" or "have a C compiler" in chosen


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        ("sys.modules['tape._recorder'] = None", "was not built"),
        ("sys.modules['tape._recorder'] = types.SimpleNamespace(CONTRACT=-1)", "built for another version"),
        ("sysconfig.get_config_var = lambda name, ask=sysconfig.get_config_var: name == 'Py_GIL_DISABLED' or ask(name)", "free-threaded"),
    ],
)
def test_without_the_extension_python_records(prepare, why):
    code = f"import sys, types, sysconfig\n{prepare}\nimport tape.layout as l\nprint(l.RUNS)"
    said = run(code, TAPE_RECORDER="")
    assert said.startswith("python (")
    assert why in said
    assert why in run(code, TAPE_RECORDER="native")


# What the extension refers to.


def references(names, what, count):
    """References to what an entry is made of, and bytes in use, after recording it ``count`` times and dropping it."""
    for _ in range(count):
        begin(names)
        eval(FAST[what], names)  # noqa: S307
    state = LOCAL.segment().state
    names["g"] = names["h"] = None
    close(LOCAL.segment())
    parts = [
        state,
        state.op,
        state.kernel,
        state.next,
        state.inputs,
        *state.places,
        *[p.kind for p in state.places],
        names["x"],
        names["a"],
    ]
    return [sys.getrefcount(part) for part in parts], tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize("what", FAST)
def test_nothing_is_kept_of_what_was_recorded_and_dropped(names, what):
    met(names, FAST[what])
    references(names, what, 5)
    tracemalloc.start()
    try:
        found = [references(names, what, 30) for _ in range(5)]
    finally:
        tracemalloc.stop()
    assert found[-1][0] == found[0][0]
    grown = [after[1] - before[1] for before, after in itertools.pairwise(found)]
    assert min(grown) < 30 * 16  # an object each time would be more; now and then a dict grows


@native
def test_what_is_held_is_told_by_reference_counts():
    cells = {slot: [None] for slot in range(7)}
    holding = [cells[2], cells[5]]
    assert retention.held(cells) == retention._held(cells) == (2, 5)
    del holding[0]
    assert retention.held(cells) == retention._held(cells) == (5,)
    assert retention.held({}) == ()


# -- the loops over all leaves or results of a step ----------------------------------------------------------------------------------------


def _swept_twice(x, y):
    """Return the pending segment of a step that was met before, and what its sweep ends with."""
    for _ in range(3):
        loss = (x * y + y).sum()
        before = LOCAL.segment(), loss._place.slot
        segment = before[0]
        edges = dict(segment.state.next)
        if any(isinstance(edge, Written) for edge in edges.values()):
            return loss, segment, next(edge for edge in edges.values() if isinstance(edge, Written)).results
        loss.backward()
        x.grad = y.grad = None
    pytest.fail("the sweep was not written again")


def _told(arrival):
    if arrival is None:
        return None
    fresh, cells, sums, hooked = arrival
    return [(id(v), g is t, before, g._place.slot, g._segment) for v, g, before, t in fresh], list(cells), sums, hooked


@native
@pytest.mark.parametrize("prepare", ["nothing", "a gradient", "a hook", "a hook that waits", "one that nobody holds", "a cut"])
def test_what_arrives_at_leaves_is_what_python_finds(prepare):
    x, y = tape.Variable(A), tape.Variable(A + 1)
    loss, segment, results = _swept_twice(x, y)
    handles = []
    if prepare == "a gradient":
        x.grad = tape.constant(A)
    if prepare == "a hook":
        handles = [x.register_hook(lambda g: g)]
    if prepare == "a hook that waits":
        handles = [x.register_post_accumulate_grad_hook(lambda _: None)]
    if prepare == "one that nobody holds":
        del x
    if prepare == "a cut":
        segment.origins.pop(results[0][0])
    told = _told(layout.NATIVE.arrived(segment, results))
    assert told == _told(accumulation._arrived(segment, results))
    assert (told is None) == (prepare in {"a hook", "a cut"})
    if told is not None:
        assert len(told[0]) == 2 - (prepare == "one that nobody holds")
        assert told[2:] == (prepare == "a gradient", prepare == "a hook that waits")
    del handles, loss


@native
@pytest.mark.parametrize(
    "prepare",
    ["nothing", "a gradient", "a hook", "a hook that waits", "an owner", "a seed", "a retained one", "a hook on a result", "met once"],
)
def test_a_sweep_is_replayed_where_the_tape_alone_decides(prepare):
    x, y = tape.Variable(A), tape.Variable(A + 1)
    loss, segment, _ = _swept_twice(x, y)
    handles = []
    if prepare == "a gradient":
        x.grad = tape.constant(A)
    if prepare == "a hook":
        handles = [x.register_hook(lambda g: g)]
    if prepare == "a hook that waits":
        handles = [x.register_post_accumulate_grad_hook(lambda _: None)]
    if prepare == "an owner":
        tape.extend.awaiting([x, y], owner=x)
    if prepare == "a seed":
        loss.grad = 2.0
    if prepare == "a retained one":
        loss.retain_grad()
    if prepare == "a hook on a result":
        handles = [loss.register_hook(lambda g: g)]
    if prepare == "met once":
        loss = loss * 3.0
        loss = loss - 1.0
    start, released, cells = segment.state, segment.released, dict(segment.cells)
    known = None if prepare in {"a hook", "met once"} else asked(loss, None, None)
    written = None if known is None else start.next.get(known[1])
    python = None if written is None else _told(accumulation._arrived(segment, written.results))
    found = differentiation.replayed(loss, table.revision())
    assert (found is None) == (python is None) == (prepare in {"a hook", "a seed", "a retained one", "a hook on a result", "met once"})
    if found is None:
        assert (segment.state, segment.released, segment.cells) == (start, released, cells)
        return
    one, before, fresh, sums, hooked, waits = found
    added = {slot: cell for slot, cell in segment.cells.items() if slot not in cells}
    assert (one, before, waits) == (segment, released, prepare == "an owner")
    assert _told((fresh, added, sums, hooked)) == python
    assert waits == (not sums and accumulation.awaited(fresh))
    assert (segment.state, segment.released) == (written.state, written.released)
    assert all(segment.cells[g._place.slot] is g._cell for _, g, *_ in fresh)
    close(segment)
    del handles


@native
@pytest.mark.parametrize("what", [None, 3, A, tape.constant(1.0)])
def test_what_is_no_pending_root_is_not_replayed(what):
    assert differentiation.replayed(what, table.revision()) is None
    loss = (tape.Variable(A) * 2.0).sum()
    look(loss)
    assert differentiation.replayed(loss, table.revision()) is None


@native
def test_a_segment_that_keeps_nothing_is_handed_its_results_as_by_python():
    def attributes(segment):
        return {name: getattr(segment, name) for name in dir(layout.Segment) if not name.startswith("_")}

    def ran(hand):
        x = tape.Variable(A)
        y = tnp.sin(x) * 2.0
        segment = y._segment
        results = ["a value"]
        if hand:
            assert layout.NATIVE.handed(segment, (y._place.slot,), results, False, NOTHING)
        else:
            retention._stored(segment.cells, (y._place.slot,), results)
            segment.ran(NOTHING)
            retention.forget(segment)
        close(segment)
        told = attributes(segment)
        return y._cell, {name: told[name] for name in told.keys() - {"lock", "serial", "state", "epoch", "configuration"}}

    assert ran(hand=True) == ran(hand=False)
    y = tnp.sin(tape.Variable(A))
    origins = y._segment.origins
    assert layout.NATIVE.handed(y._segment, (), [], True, NOTHING)
    assert y._segment.origins is origins
    assert y._segment.run is NOTHING
    with pytest.raises(KeyError):
        layout.NATIVE.handed(y._segment, (99,), ["none"], True, NOTHING)
    assert not layout.NATIVE.handed(None, (), [], True, NOTHING)
    close(y._segment)


@native
def test_an_entry_that_is_new_begins_one_segment():
    """The recorder in C begins it, and the one in Python records in the same one."""
    for op in (lambda v: tnp.sinc(v), lambda v: v * np.float16(2), lambda v: v.reshape(2, 6)):
        x = tape.Variable(A)
        before = next(Segment.serials)
        kept = op(x)
        assert next(Segment.serials) == before + 2
        assert kept._segment is LOCAL.segment()
        close(kept._segment)
    gone = weakref.ref(tnp.cosh(tape.Variable(A))._segment)
    assert gone() is None  # nobody holds it any more


@native
def test_what_went_from_the_trie_is_not_found(monkeypatch):
    x = tape.Variable(A)

    def state():
        y = tnp.sin(tnp.cos(x))
        found = y._segment.state
        close(y._segment)
        return found

    state()
    known = state()
    assert state() is known
    monkeypatch.setattr(trie, "_limit", 0)
    monkeypatch.setattr(trie, "RECENT", -1)
    trie._evict()
    assert known.parent.latest is None
    assert state() is not known


def test_the_properties_are_properties():
    for name in ("grad", "value"):
        found = inspect.getattr_static(tape.Variable, name)
        assert isinstance(found, property)
        assert found.__doc__ == found.fget.__doc__
        assert found.fset is not None
        assert inspect.isdatadescriptor(found)
        assert getattr(tape.Variable, name) is found


@native
def test_the_properties_keep_no_reference():
    x = tape.Variable(A)
    x.grad = A
    objects = [x, x.grad, x.value, x._extra, x._cell, None.__class__]
    before = [sys.getrefcount(o) for o in objects]
    for _ in range(50):
        assert x.grad is objects[1]
        assert x.value is objects[2]
    assert [sys.getrefcount(o) for o in objects] == before
    x.grad = None
    assert x.grad is None
    assert sys.getrefcount(objects[1]) == before[1] - 1
    for wrong in (None, 3, A):
        for name in ("grad", "value"):
            descriptor = inspect.getattr_static(tape.Variable, name)
            if wrong is not None:  # of None, a property is asked for itself
                with pytest.raises((AttributeError, TypeError)):
                    descriptor.__get__(wrong, int)
            with pytest.raises((AttributeError, TypeError)):
                descriptor.__set__(wrong, None)


@native
def test_gradients_are_assigned_to_all_or_left_to_python():
    x, y = tape.Variable(1.0), tape.Variable(2.0)
    g, h = tape.constant(3.0), tape.constant(4.0)
    for v in (x, y):
        v.grad = None
        record.node_of(v)  # which makes an Extra
    added = [(x, g, None, g), (y, h, None, h)]
    assert layout.NATIVE.assigned(added)
    assert x.grad is g
    assert y.grad is h
    x.grad = None
    assert not layout.NATIVE.assigned(added)  # y has another one by now
    assert x.grad is None
    y.grad = tape.constant(5.0)
    given = y.grad
    assert not layout.NATIVE.assigned([(y, h, given, h)])  # the user's own
    assert y.grad is given


@native
def test_results_are_stored_in_the_cells_of_their_slots():
    cells = {3: [None], 5: [None], 7: [None]}
    saved = layout.NATIVE.stored(cells, (5, 3), ["five", "three", "more"])
    assert saved == {5: ["five"], 3: ["three"]}
    assert list(saved) == [5, 3]
    assert saved[5] is cells[5]
    assert cells[7] == [None]
    assert saved == retention._stored({3: [None], 5: [None]}, (5, 3), ["five", "three", "more"])
    with pytest.raises(KeyError):
        layout.NATIVE.stored(cells, (4,), ["four"])
    for wrong in ([(1,)], [[]], [None]):
        with pytest.raises(TypeError):
            layout.NATIVE.gathered(wrong)
    assert layout.NATIVE.gathered([[1], [2]]) == [1, 2]


@native
def test_replayed_sweeps_keep_no_reference():
    x, y = tape.Variable(A), tape.Variable(A + 1)

    def step():
        (x * y + y).sum().backward()
        x.grad = y.grad = None

    for _ in range(20):
        step()
    gc.collect()
    before = [sys.getrefcount(o) for o in (x, y, record.node_of(x), None.__class__, x._extra)]
    for _ in range(50):
        step()
    gc.collect()
    assert [sys.getrefcount(o) for o in (x, y, record.node_of(x), None.__class__, x._extra)] == before


@native
@pytest.mark.parametrize("what", ["as it was", "one has entered", "one pending elsewhere", "one of a sweep", "unrecorded"])
def test_what_enters_with_an_update_is_what_python_finds(what):
    x, y, m = tape.Variable(A), tape.Variable(A + 1), tape.constant(A)
    for v in (x, y):
        record.node_of(v)
    g = x * y
    read, slots = [g, x, m], [g._place.slot, LOCAL.segment().entered[id(x._cell)], None]
    segment = LOCAL.segment()
    if what == "one has entered":
        g + m
    if what == "one pending elsewhere":
        close(segment)
        read[2] = y * y
        close(LOCAL.segment())
    if what == "one of a sweep":
        z = x * 2.0
        look(z)
        read[2] = z
        segment = z._segment
        read[:2] = slots[:2] = []
    if what == "unrecorded":
        (y * y).sum().backward()
        read, slots = [y.grad], [None]
        h = x * 1.0
        segment = h._segment
    args = segment, read, slots[-len(read) :]
    found, python = layout.NATIVE.lacking(*args), update._lacking(*args)
    assert (None if found is None else [*map(id, found)]) == (None if python is None else [*map(id, python)])
    assert (found is None) == (what not in {"as it was", "unrecorded"})
    if found is None:
        return
    assert layout.NATIVE.entered(segment, [*found, x], 90)
    (enters,) = found
    assert segment.leaves[-2:] == [enters._cell, x._cell]
    assert segment.entered[id(enters._cell)] == 90
    assert segment.origins[91] is x._extra.node
    assert 90 not in segment.origins
    assert (90 in segment.leaf_lines) == (what == "unrecorded")
    assert what != "unrecorded" or segment.leaf_lines[90] == made_at(enters._place, enters._segment)
    close(segment)


def falling(turns, leaves):
    """A loop that looks: a gradient of a gradient in each turn, and a sweep through all of them."""
    force, p, v = leaves
    for _ in range(turns):
        assert np.isfinite(float(p[0, 1]))
        v = v - 0.1 * tape.gradients((force * p * p).sum(), p, create_graph=True)
        p = p + 0.1 * v
    (p * p).sum().backward()
    found = [x.grad.value for x in leaves]
    for x in leaves:
        x.grad = None
    return found


SWEEPS = (sweep, "swept_on"), (retention, "forgot")  # what goes from segment to segment in C


def _falling_leaves():
    return tape.Variable(A), tape.Variable(A + 1), tape.Variable(A * 0.5)


@native
def test_a_loop_that_looks_runs_by_the_recorder_in_c(monkeypatch, sweeps_through_python):
    leaves = _falling_leaves()
    for _ in range(12):
        falling(30, leaves)
    found = {"regained": [], "swept": [], "all": [], "record": []}
    regained, swept_on = differentiation.regained, sweep.swept_on

    def counted(*args):
        before = len(args[3])
        swept_on(*args)
        found["swept"] += args[3][before:]
        found["all"] = args[3]

    def noted(*args):  # what it returns is not held: that would be another structure
        found["regained"].append((result := regained(*args)) is not None)
        return result

    monkeypatch.setattr(differentiation, "regained", noted)
    monkeypatch.setattr(sweep, "swept_on", counted)
    monkeypatch.setattr(plain, "_record", lambda *args, known=plain._record: found["record"].append(args) or known(*args))
    falling(30, leaves)
    assert len(found["regained"]) == 30
    assert all(found["regained"])
    assert found["swept"] == found["all"][1:]  # but for the first one, which runs the last turn as it is pending
    assert len(found["swept"]) >= 27
    assert not found["record"]


@native
def test_a_loop_that_looks_gives_what_it_gives_by_the_recorder_in_python(monkeypatch, sweeps_through_python):
    leaves = _falling_leaves()
    for _ in range(4):
        right = falling(80, leaves)  # beyond the number of turns at which somebody looks whether the tape grows
    for module, name in ((differentiation, "regained"), (emission, "emitted"), (differentiation, "replayed"), *SWEEPS):
        monkeypatch.setattr(module, name, lambda *_: None)
    for found, value in zip(falling(80, leaves), right, strict=True):
        np.testing.assert_array_equal(found, value)


def turned(what, x, w):
    """A sweep through segments that have run, with something else in the way: what it gives, and what is left of the segments."""
    x.grad = w.grad = None
    h, held, called = x, [], []
    for k in range(12):
        h = tnp.tanh(h * w) if k != 6 else h * h if what == "a square" else h + 0.5
        if what == "two kinds" and k % 3 == 0:
            h = h - 0.25 * x
        look(h)
        held.append(h)
    there, segments = held[7], [v._segment for v in held]
    if what == "a hook":
        there.register_hook(lambda g: called.append(g) or 2 * g)
    elif what == "retained":
        there.retain_grad()
    elif what == "unchained":
        there.unchain()
    elif what == "released":
        there.sum().backward()
    roots = [h, there] if what == "two roots" else [h]
    flushes, rest = dict(tape.stats().flushes), tape.errors.ReleasedTapeError if what == "released" else ()
    try:
        tape.backward([r.sum() for r in roots], ignore=[there] if what == "ignored" else (), retain_graph=what == "kept")
    except rest:
        called.append("released")
    ran = {reason: n - flushes.get(reason, 0) for reason, n in tape.stats().flushes.items()}
    left = [(len(s.leaves), s.run.kept, sorted(s.released)) for s in segments]
    gradients = [None if v.grad is None else v.grad.numpy() for v in (x, w, *([there] if what == "retained" else []))]
    return gradients, [c if c == "released" else c.numpy() for c in called], ran, left


@native
@pytest.mark.parametrize(
    "what", ["nothing", "a square", "two kinds", "a hook", "retained", "unchained", "released", "two roots", "ignored", "kept"]
)
def test_sweeps_go_from_segment_to_segment_as_in_python(what, monkeypatch):
    x, w = tape.Variable(A), tape.Variable(A + 1)
    for _ in range(8):
        turned(what, x, w)
    found = turned(what, x, w)
    for module, name in SWEEPS:
        monkeypatch.setattr(module, name, lambda *_: None)
    jax.tree.map(np.testing.assert_array_equal, found, turned(what, x, w))


@native
def test_a_sweep_that_is_interrupted_between_segments_adds_nothing(monkeypatch):
    x, w = tape.Variable(A), tape.Variable(A + 1)
    for _ in range(8):
        right, *_ = turned("nothing", x, w)
    run_pending = sweep.run_pending

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "run_pending", interrupted)
    with pytest.raises(KeyboardInterrupt):
        turned("nothing", x, w)
    assert x.grad is None
    assert w.grad is None
    monkeypatch.setattr(sweep, "run_pending", run_pending)
    found, *_ = turned("nothing", x, w)
    jax.tree.map(np.testing.assert_array_equal, found, right)


@native
def test_a_loop_that_looks_keeps_no_reference():
    leaves = _falling_leaves()

    def counted():
        gc.collect()
        return [sys.getrefcount(o) for x in leaves for o in (x, x._cell, x._place, x._extra, record.node_of(x))]

    for _ in range(6):
        falling(12, leaves)
    before, segments = counted(), len(tape.stats().segments)
    for _ in range(6):
        falling(12, leaves)
    assert counted() == before
    assert len(tape.stats().segments) == segments


@native
@pytest.mark.parametrize("prepare", ["nothing", "a hook there", "unchained", "released", "two ways to it", "met once"])
def test_gradients_are_regained_where_the_tape_alone_decides(prepare):
    x, y = tape.Variable(A), tape.Variable(A + 1)
    for k in range(5):
        q = y * 3.0
        look(q)
        p = x * 2.0
        look(p)
        handles = [p.register_hook(lambda g: g)] if prepare == "a hook there" and k == 4 else []
        if prepare == "unchained" and k == 4:
            p.unchain()
        if prepare == "released" and k == 4:
            tape.gradients(p.sum(), x)
        root = (p * p + p * (p if prepare == "two ways to it" else q)).sum()
        if prepare == "met once":
            root = root * float(k)
            root = tnp.sin(root) if k == 4 else root
        segment = root._segment
        start, leaves, cells = segment.state, list(segment.leaves), dict(segment.cells)
        found = differentiation.regained(root, p, None, True, True, table.revision())
        if k < 4:
            tape.gradients(root, p, create_graph=True)
            continue
        if prepare in {"a hook there", "unchained", "met once"}:
            assert found is None
            assert (segment.state, segment.leaves, segment.cells) == (start, leaves, cells)
        else:
            right = 4 * p.value if prepare == "two ways to it" else 2 * p.value + q.value
            np.testing.assert_allclose(found.value, right, rtol=1e-6)
        del handles


@native
def test_what_the_recorder_in_c_cannot_read_is_left_to_python():
    loss = (tape.Variable(A) * 2.0).sum()
    for wrong in (None, 3, A, [A], (loss, None)):
        assert differentiation.regained(loss, wrong, None, True, True, table.revision()) is None
        assert differentiation.regained(wrong, loss, None, True, True, table.revision()) is None
    look(loss)
    assert layout.NATIVE.emitted(None, None, None, None, None) is None
    assert layout.NATIVE.swept_on(*[None] * 11) is None
    assert not layout.NATIVE.forgot(None)
