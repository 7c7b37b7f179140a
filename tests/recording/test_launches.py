"""Runs of compiled programs, and numbers that are looked at, by the recorder in C: what they give is what they give by the one in Python."""

import gc
import itertools
import math
import sys
import threading
import time
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp
from tape import layout
from tape.errors import ConcretizationError, ExecutionError, LostGradientError, TapeError
from tape.programs import execution, program, retention
from tape.variables import conversion
from tests.platforms import at_home

A = np.linspace(0.1, 2.3, 23, dtype=np.float32)
native = pytest.mark.skipif(layout.NATIVE is None, reason="the recorder in Python runs")


@pytest.fixture
def left(monkeypatch):
    """The runs that are left to Python."""
    found = []
    held = program.held
    monkeypatch.setattr(program, "held", lambda cells: found.append(len(cells)) or held(cells))
    return found


def looking(x, turns=1):
    """Look in each turn, and sweep at the end."""
    seen = []
    y = x
    for _ in range(turns):
        y = tnp.sin(y) * 1.1 + y
        seen.append(float(y.sum()))
    y.sum().backward()
    seen.append(x.grad.value)
    x.grad = None
    return seen


def settled(step):
    """Call a step until it has run compiled for some times; return what it gives."""
    quiet = 0
    for _ in range(2000):
        before = tape.stats().interpreted, tape.stats().compiles
        found = step()
        quiet = quiet + 1 if before == (tape.stats().interpreted, tape.stats().compiles) else 0
        if quiet == 40:
            return found
        time.sleep(0 if quiet else 0.005)
    raise AssertionError


@native
def test_the_runs_of_a_loop_that_is_compiled_run_no_python(left):
    x = tape.Variable(A)
    settled(lambda: looking(x, 5))
    del left[:]
    looking(x, 5)
    assert not left


@native
def test_a_run_by_c_is_one_by_python(monkeypatch):
    x = tape.Variable(A)

    def counted():
        tape.stats().reset()
        seen = looking(x, 3)
        stats = tape.stats()
        return seen, (stats.hits, stats.executed, stats.interpreted, stats.recorded, stats.flushes_by_line, stats.live_entries)

    settled(lambda: looking(x, 3))
    counted()
    by_c, counts = counted()
    with monkeypatch.context() as patched:
        patched.setattr(program, "launched", lambda *_: False)
        slow = conversion._convert
        patched.setattr(tape.Variable, "__float__", lambda v: slow(float, v))
        by_python, right = counted()
    np.testing.assert_array_equal(by_c[-1], by_python[-1])
    assert by_c[:-1] == by_python[:-1]
    assert {(r, n) for (r, _), n in counts[4].items()} == {(r, n) for (r, _), n in right[4].items()}
    assert (*counts[:4], counts[5]) == (*right[:4], right[5])


@native
def test_what_is_not_common_is_left_to_python(left):
    x = tape.Variable(A + 1)

    def step():
        return float((tnp.cos(x) * 3.0).sum())

    right = settled(step)
    del left[:]
    assert step() == right
    assert not left
    with tape.profile() as measured:
        assert step() == right
    assert "cos" in str(measured)
    assert len(left) == 1
    found = float((tnp.cos(x) * 3.0).sum())  # another line
    assert found == right
    assert len(left) == 2
    y = (tnp.cos(x) * 3.0).sum()
    thread = threading.Thread(target=lambda: left.append(float(y)))
    thread.start()
    thread.join()
    assert left[-1] == right
    y = (tnp.cos(x) * 3.0).sum()
    y.register_hook(lambda g: g)
    before = len(left)
    found = float(y)
    assert found == right
    assert len(left) == before + 1
    del left[:]
    traced = []

    @jax.jit
    def inside(a):
        traced.append(step())  # what is concrete runs concretely
        return a

    inside(jnp.ones(3))
    assert traced == pytest.approx([right], rel=1e-6)
    assert len(left) == 1


@native
def test_a_program_that_fails_in_c_is_salvaged():
    x = tape.Variable(A + 2)

    def step():
        return float((tnp.tanh(x) * 5.0).sum())

    right = settled(step)
    pending = (tnp.tanh(x) * 5.0).sum()
    state = pending._segment.state
    del pending
    known = [p for p in state._cache.values() if isinstance(p, execution.Program)]
    before = [p.executable for p in known]
    raised = [RuntimeError("INTERNAL: compiler"), KeyboardInterrupt()]

    def failing(*_):
        raise raised.pop()

    for p in known:
        p.executable = failing
    try:
        with pytest.raises(KeyboardInterrupt):
            step()
        assert step() == pytest.approx(right, rel=1e-6)
    finally:
        for p, executable in zip(known, before, strict=True):
            p.executable = executable
    assert not raised
    assert step() == right


def test_an_entry_that_fails_in_a_compiled_program_says_so():
    fails = []

    def check(a):
        if fails:
            msg = "boom"
            raise ValueError(msg)
        return a

    x = tape.constant(A)
    checked = interop.lift(lambda a: jax.pure_callback(check, jax.ShapeDtypeStruct(a.shape, a.dtype), a))

    def step():
        return checked(x * 2.0).sum().value

    settled(step)
    fails.append(1)
    with pytest.raises(ExecutionError, match="boom"):
        step()


@native
def test_two_lines_of_a_function_are_two_sites(left):
    x = tape.Variable(A)

    def step(first=True):
        y = (tnp.arctan(x) * 3.0).sum()
        if first:
            return float(y)
        return float(y)

    right = settled(step)
    tape.stats().reset()
    step()
    del left[:]
    assert step() == right
    assert not left
    assert step(first=False) == right
    assert len(left) == 1
    start = step.__code__.co_firstlineno
    runs = {line[1] - start: n for (reason, line), n in tape.stats().flushes_by_line.items() if reason == "look" and line[0] == __file__}
    assert runs == {3: 2, 4: 1}


def test_what_goes_before_a_run_may_look_at_what_is_pending():
    for noted in retention.noted().values():
        noted.clear()  # of other tests: a run trims one segment
    pending, told = [], []

    class Last:
        def __del__(self):
            told.extend(map(float, pending))

    class Twice(tape.Function):
        @staticmethod
        def forward(ctx, a):
            ctx.last = Last()
            return a * 2.0

        @staticmethod
        def backward(ctx, g):
            return g * 2.0

    x = tape.Variable(A)

    def step(looks=False):
        twice, other = Twice.apply(x), x * 3.0  # a run that keeps them for two sweeps
        twice.block_until_ready()
        del twice
        y = (tnp.sinh(x) * 3.0).sum()
        pending[:] = [y] if looks else []
        found = float(y)
        del pending[:], other
        return found

    right = settled(step)
    assert step(looks=True) == right
    assert told == [right]
    assert step() == right


@pytest.mark.parametrize("when", ["before it runs", "while it runs"])
@pytest.mark.parametrize("made", [tape.constant, tape.Variable], ids=["nothing kept", "kept for sweeps"])
def test_a_finalizer_may_run_what_is_running(when, made, monkeypatch):
    x = made(A)
    pending, told = [], []

    def step():
        y = (tnp.arcsinh(x) * 3.0).sum()
        pending[:] = [y]
        return float(y)

    def looking_first(call):
        def looks(*args):
            if not told:  # as a finalizer does when garbage is collected now
                told.append(None)
                told.append(float(pending[0]))
            return call(*args)

        return looks

    right = settled(step)
    pending[:] = [(tnp.arcsinh(x) * 3.0).sum()]
    (known,) = [p for p in pending[0]._segment.state._cache.values() if isinstance(p, execution.Program) and p.executable]
    del pending[:]
    if when == "while it runs":
        monkeypatch.setattr(known, "executable", looking_first(known.executable))
    else:
        monkeypatch.setattr(program, "launched", lambda *_: False)
        monkeypatch.setattr(known, "site", None)
        monkeypatch.setattr(program, "flushed", looking_first(program.flushed))
    assert step() == right
    assert told == [None, right]
    assert step() == right


NUMBERS = [
    *(np.asarray(n, dtype) for dtype in ("float32", "float16", "int32", "int8", "uint8", "uint32") for n in (0, 1, 7)),
    *(np.asarray(n, "float32") for n in (-0.0, 2.75, -2.75, np.nan, np.inf, -np.inf, 1e-45)),
    np.asarray(True),
    np.asarray(False),
    *(np.asarray(n, "int32") for n in (2**31 - 1, -3, -(2**31))),
    np.asarray(2 + 1j, "complex64"),
    np.asarray([3.5], "float32"),
    np.asarray([3.5, 1.0], "float32"),
]


def answer(convert, x):
    try:
        found = convert(x)
    except (TypeError, ValueError, OverflowError) as e:
        return next(t for t in (TypeError, ValueError, OverflowError) if isinstance(e, t))
    return type(found), repr(found)


@pytest.mark.parametrize("convert", [float, int, bool, lambda x: x.item()], ids=["float", "int", "bool", "item"])
@pytest.mark.parametrize("x", NUMBERS, ids=lambda x: f"{x.dtype}-{x.tolist()}")
@pytest.mark.parametrize("made", [tape.constant, tape.Variable], ids=["constant", "variable"])
def test_numbers_are_those_of_jax(convert, x, made):
    right = answer(convert, jnp.asarray(x))
    assert (tape.constant(2.5) * 2).value == 5  # something has been recorded in this thread
    v = made(jnp.asarray(x))
    assert answer(convert, v) == right
    assert answer(convert, v) == right  # the caller is known by now


def test_numbers_of_double_precision_keep_their_digits():
    with jax.enable_x64(True):
        assert float(tape.constant(jnp.asarray(1 / 3, "float64"))) == 1 / 3
        assert int(tape.constant(jnp.asarray(2**53 + 1, "int64"))) == 2**53 + 1


@at_home
@native
def test_a_number_is_read_without_python(monkeypatch):
    v, w = tape.Variable(2.5), tape.constant(3)

    def read():
        return float(v), int(v), bool(v), v.item(), float(w), int(w), bool(w), w.item()

    (v * 2).value  # something has been recorded in this thread
    right = read()
    monkeypatch.setattr(conversion, "concrete", None)
    assert read() == right == (2.5, 2, True, 2.5, 3.0, 3, True, 3)


def test_a_gradient_is_not_lost_to_a_function_of_numbers():
    v = tape.Variable(0.5)

    def lost():
        return math.exp(v)

    def said():
        return math.exp(float(v))

    def assigned(array):
        array[0] = v

    for _ in range(60):
        assert said() == math.exp(0.5)
        with pytest.raises(LostGradientError, match="math"):
            lost()
        with pytest.raises(ValueError, match="sequence") as said_by_numpy:
            assigned(np.zeros(2))
        assert isinstance(said_by_numpy.value.__cause__, LostGradientError)


def test_a_traced_number_is_not_known():
    v = tape.Variable(0.5)
    for _ in range(3):
        assert float(v) == 0.5

    @jax.jit
    def inside(a):
        with pytest.raises(ConcretizationError):
            float(tape.constant(a))
        with pytest.raises(TapeError):
            bool(v * a)
        return a

    inside(jnp.float32(1.0))


@native
def test_runs_keep_no_reference():
    x = tape.Variable(A)
    settled(lambda: looking(x, 3))

    def counted():
        gc.collect()
        own = [x, x._cell, x._place, x._extra, program.NOTHING, program.no_segment, execution.STATS]
        return [*(sys.getrefcount(o) for o in (*own, None, True, False)), len(tape.stats().segments)]

    rounds = [counted()]
    for _ in range(6):
        for _ in range(200):
            looking(x, 3)
        rounds.append(counted())
    # a leak shows in each of the 200 runs of every round; what is compiled, or forgotten of other tests, meanwhile, in one or two of them
    assert all(min(b - a for a, b in itertools.pairwise(counts)) < 100 for counts in zip(*rounds, strict=True))


@native
@at_home
def test_the_collector_of_garbage_need_not_know_most_of_a_history():
    x = tape.Variable(A)
    settled(lambda: looking(x, 10))
    gc.collect()
    gc.disable()
    try:
        y = x
        known = {id(o) for o in gc.get_objects()}
        for _ in range(100):
            y = tnp.sin(y) * 1.1 + y
            float(y.sum())
        more = [o for o in gc.get_objects() if id(o) not in known and not isinstance(o, jax.Array)]
    finally:
        gc.enable()
    # A turn has its segment, origins and where these lead, and half of them what was let go of since; not locks, cells and what holds these.
    assert len(more) < 700, len(more) / 100
    y.sum().backward()
    assert np.isfinite(x.grad.value).all()


@native
@at_home
def test_a_cycle_through_a_hook_of_a_history_is_still_found():
    x = tape.Variable(A)

    def loop(hooked):
        y, path = x, []
        for _ in range(10):
            y = tnp.sin(y) * 1.1 + y
            float(y.sum())
            path.append(y)
        if hooked:
            path[4].register_hook(lambda g, y=y: None)  # the last one, behind which the hooked one lies
        return weakref.ref(path[4]._segment)

    settled(lambda: loop(hooked=False))
    gc.collect()
    gc.disable()
    try:
        ref = loop(hooked=True)
        assert ref() is not None
        gc.collect()
        assert ref() is None
    finally:
        gc.enable()
