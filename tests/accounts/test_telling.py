"""``tape.stats()`` in words, ``tape.log_compiles()``, and the warning of a loop that compiles at every step."""

import gc
import logging
import os
import pathlib
import subprocess
import sys
import threading
import types
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp
from tape.accounts.records import STREAK
from tape.errors import TapeWarning
from tape.programs import background, reasons, telling
from tests import idle
from tests.platforms import at_home

ROOT = pathlib.Path(__file__).parents[2]
X = np.linspace(0.1, 1.0, 12, dtype=np.float32)


@pytest.fixture
def said():
    """The messages of the logger, as they come."""
    found = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append((record.levelno, record.getMessage()))
    telling.LOGGER.addHandler(handler)
    yield found
    telling.LOGGER.removeHandler(handler)


def line(text):
    """The line of this file with this comment."""
    number = next(i for i, row in enumerate(pathlib.Path(__file__).read_text().splitlines(), 1) if row.endswith(f"# {text}"))
    return __file__, number


# -- where runs come from -----------------------------------------------------------------------------------------------


def test_runs_are_counted_by_reason_and_line(stats):
    x = tape.Variable(X)
    for _ in range(7):
        float((x * x).sum())  # look here
        (x * x * x).sum().backward()  # sweep here
    assert stats.flushes == {"look": 7, "backward": 7}
    assert stats.flushes_by_line == {("look", line("look here")): 7, ("backward", line("sweep here")): 7}


def test_a_step_that_ends_a_context_of_the_library_has_the_line_of_its_caller(stats):
    optax = pytest.importorskip("optax")
    x = tape.Variable(X)
    optimizer = interop.optax.Optimizer([x], optax.adam(0.1))
    for _ in range(3):
        (x * x).sum().backward()
        optimizer.step()  # step here
    assert {where for reason, where in stats.flushes_by_line if reason == "step"} == {line("step here")}


def test_the_same_structure_at_two_lines_is_told_apart(stats):
    x = tape.constant(X)
    for _ in range(20):
        (x + 1).value  # first of two
        (x + 1).value  # second of two
    assert stats.hits > 0
    assert stats.flushes_by_line == {("look", line("first of two")): 20, ("look", line("second of two")): 20}


def test_the_line_is_found_from_any_depth_and_generation_of_frames(stats):
    x = tape.constant(X)

    def deep(n):
        return deep(n - 1) if n else (x - 2).value  # deep

    for n in (0, 3, 0, 7, 1, 0):
        deep(n)
    assert stats.flushes_by_line == {("look", line("deep")): 6}


def test_counts_are_exact_where_lines_are_more_than_are_kept(stats, monkeypatch):
    monkeypatch.setattr(stats.sites, "limit", 4)
    x = tape.constant(X)
    for i in range(20):
        exec(compile("\n" * i + "(x * 3).value", "many.py", "exec"), {"x": x})  # noqa: S102
    assert stats.flushes == {"look": 20}
    assert len(stats.sites) <= 4
    assert sum(stats.flushes_by_line.values()) <= 20


def test_a_reset_begins_anew_for_programs_that_know_their_line(stats):
    x = tape.constant(X)
    for _ in range(5):
        (x * 5).value
    stats.reset()
    assert stats.flushes == {}
    for _ in range(3):
        (x * 5).value
    assert stats.flushes == {"look": 3}


def test_each_thread_has_its_line(stats):
    x = tape.constant(X)

    def work():
        for _ in range(30):
            (x * 7).value  # in a thread

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert set(stats.flushes_by_line) == {("look", line("in a thread"))}


def test_a_run_that_is_known_asks_for_one_frame(monkeypatch):
    x = tape.constant(X)

    def step():
        (x * 11).value

    for _ in range(40):
        step()
    monkeypatch.setattr(telling, "user_frame", None)  # to look for it would fail
    for _ in range(3):
        step()


# -- what was compiled, and why -----------------------------------------------------------------------------------------


def changes(stats, kind):
    return [c for c in stats.compilations if c.change.kind == kind]


def program(x):
    return (tnp.cosh(x) * tnp.sinh(x) - tnp.cbrt(x * x)).sum()


def compiled(x, times=6):
    for _ in range(times):
        program(x).value  # compiled here
    idle.settle()


def test_a_shape_that_is_another_one(stats):
    compiled(tape.constant(X[:5]))
    stats.reset()
    compiled(tape.constant(X[:6]))
    (found,) = [c for c in stats.compilations if c.what == "program"]
    assert found.change.kind == "shape"
    assert found.change.told == "float32[5], then float32[6]"
    assert "pad arrays" in found.change.repair
    assert found.line == line("compiled here")
    assert found.seconds > 0
    assert stats.reasons == {"new shape or dtype: float32[5], then float32[6]": 1}


def test_a_dtype_that_is_another_one(stats):
    compiled(tape.constant(X[:7]))
    stats.reset()
    compiled(tape.constant(X[:7].astype(np.float16)))
    (found,) = [c for c in stats.compilations if c.what == "program"]
    assert (found.change.kind, found.change.told) == ("dtype", "float32[7], then float16[7]")


def test_a_parameter_that_is_another_one(stats):
    x = tape.constant(np.ones((6, 6), np.float32))
    for shift in range(1, 4):
        tnp.roll(x, shift, axis=0).value
    assert [c.change.told for c in changes(stats, "static")] == ["1, then 2", "2, then 3"]
    assert "the parameter shift of roll" in changes(stats, "static")[0].change.what


def test_a_parameter_of_several_numbers(stats):
    x = tape.constant(np.ones((6, 6), np.float32))
    for n in range(1, 4):
        tnp.pad(x, [(n, 0), (1, n)]).value
    assert [c.change.told for c in changes(stats, "static")] == [f"[({n}, 0), (1, {n})], then [({n + 1}, 0), (1, {n + 1})]" for n in (1, 2)]


def test_lists_of_more_arrays(stats):
    x = tape.constant(np.ones((6, 5), np.float32))
    for n in range(2, 5):
        tnp.stack([x] * n).value
    changed = changes(stats, "shape")
    assert [c.change.told for c in changed] == ["2, then 3", "3, then 4"]
    assert all(c.change.what.startswith("how many arrays stack") for c in changed)


def test_a_number_inside_of_a_function_made_anew(stats):
    x = tape.constant(X)
    for k in range(2, 5):
        interop.lift(lambda a, k=k: jnp.sin(a) * (k + 0.0137))(x).value  # a number that no other test has
    assert [c.change.told for c in changes(stats, "static")] == ["2.0137, then 3.0137", "3.0137, then 4.0137"]
    assert all("its mul" in c.change.what for c in changes(stats, "static"))


def test_the_turns_of_a_loop():
    forward = ["exp", *["matmul", "tanh"] * 5, "sum"]
    back = ["ones", *["vjp_tanh", "vjp_matmul"] * 5]
    longer = ["exp", *["matmul", "tanh"] * 8, "sum", "ones", *["vjp_tanh", "vjp_matmul"] * 8]
    assert reasons._loops([*forward, *back], longer) == [(5, 8, (1, 3)), (5, 8, (19, 21))]
    assert reasons._loops(longer, [*forward, *back]) == [(8, 5, (1, 3)), (8, 5, (13, 15))]
    assert reasons._loops(["a", "b"], ["a", "c"]) == []
    assert reasons._loops(["m", "a", "m", "a", "m", "s"], ["m", "a", "m", "a", "m", "a", "m", "s"])[0][:2] == (2, 3)


def test_a_loop_with_other_turns_is_named(stats):
    def turns(n):
        h = tape.constant(X)
        for _ in range(n):
            h = tnp.expm1(tnp.arctan(h))
        h.value  # a loop's end

    for n in (9, 13):
        for _ in range(6):
            turns(n)
        idle.settle()
    (found,) = changes(stats, "loop")
    assert found.change.told == "9, then 13"
    assert "expm1" in found.change.what


def test_what_is_held(stats):
    x = tape.constant(X)

    def step(keep):
        a = tnp.arctan(x * 19)
        b = tnp.expm1(a)
        if not keep:
            del a
        return b.value

    for keep in (False, True):
        for _ in range(6):
            step(keep)
        idle.settle()
    assert len(changes(stats, "results")) == 1


def test_steps_of_tape_jit_and_what_changes_them(stats):
    times = tape.jit(lambda a, n: (a * n).sum(), static_argnums=1)
    x = tape.constant(X)
    for n in (2.0, 3.0, 3.0):
        times(x, n)
    times(tape.constant(X[:3]), 3.0)
    found = [(c.what, c.change.kind, c.change.told) for c in stats.compilations if c.what == "step"]
    shape = "Variable of shape (12,), dtype float32 -> Variable of shape (3,), dtype float32"
    assert found == [("step", "new", ""), ("step", "static", "2.0 -> 3.0"), ("step", "arguments", shape)]


def ever_other(step, count=20):
    for number in range(count):
        step(number)
    return " ".join(str(tape.stats()).split())


@at_home  # elsewhere one turn is compiled
def test_loops_of_ever_other_lengths_are_told_though_nothing_is_compiled(stats):
    x = tape.Variable(np.linspace(0.1, 1.0, 7, dtype=np.float32))

    def step(number):
        h = x
        for _ in range(3 + number):
            h = tnp.arctan(h) * x
        h.sum().backward()  # ever other lengths

    told = ever_other(step)
    place, number = line("ever other lengths")
    assert f"{pathlib.Path(place).name}:{number} 20 of 20 runs" in told
    assert "of 20 structures they differ in the number of turns of a loop of arctan, multiply (first at test_telling.py:" in told
    assert ": 10, then 18 to avoid it: pad sequences to a few lengths, or write the loop as tape.lax.scan" in told


def test_ever_other_shapes_and_ops_are_told_as_well(stats):
    def shapes(number):
        float(tnp.arctan(tape.constant(np.ones((2, number + 1), np.float32))).sum())

    assert "they differ in the shape of what arctan" in ever_other(shapes)
    stats.reset()
    x = tape.constant(X)

    def ops(number):
        some = (tnp.arctan, tnp.sinh, tnp.cosh, tnp.tanh, tnp.exp2)
        float(some[number // 5](some[number % 5](x))[0])

    told = ever_other(ops)
    assert "they differ in op " in told
    assert "to avoid it: choose by tape.numpy.where or tape.lax.cond" in told


def test_what_comes_back_is_not_told_as_ever_other(stats):
    x = tape.constant(X)
    told = ever_other(lambda number: float((tnp.arctan(x) * [1.0, x][number % 2]).sum()), 100)
    assert "What ran one by one" not in told, told


def test_the_record_is_bounded_and_holds_no_functions_of_the_users(stats):
    class Captured:
        pass

    held = Captured()
    gone = weakref.ref(held)
    x = tape.constant(X)

    def made(k, held):
        return lambda a: jnp.sin(a) * float(k) if held else a

    for k in range(3):
        for _ in range(4):
            tnp.expm1(interop.lift(made(k, held))(x)).value
        idle.settle()
    assert changes(stats, "static")
    del held
    for _ in range(2):  # what is pending, and what the caches of JAX hold of it
        jax.clear_caches()
        gc.collect()
    assert gone() is None
    assert stats._compilations.maxlen == 256


def test_the_words(stats, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    compiled(tape.constant(X[:8]))
    compiled(tape.constant(X[:9]))
    for width in range(64, 81):
        monkeypatch.setenv("COLUMNS", str(width))
        said = str(stats)
        assert all(len(row) <= width for row in said.splitlines()), said
    said = " ".join(said.split())
    assert "12 look test_telling.py:" in said
    assert "program(x).value # compiled here" in said
    assert "a value was looked at" in said
    assert "then float32[9]" in said
    assert "to avoid it: pad arrays to one shape" in said
    monkeypatch.setenv("COLUMNS", "140")
    assert max(map(len, str(stats).splitlines())) > 80
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in str(stats)
    assert "<pre" in stats._repr_html_()
    assert "\x1b" not in stats._repr_html_()


# -- the log ------------------------------------------------------------------------------------------------------------


def test_a_block_logs_what_is_compiled_in_it(said):
    with tape.log_compiles():
        compiled(tape.constant(np.ones((3, 5), np.float32)))
    compiled(tape.constant(np.ones((3, 6), np.float32)))
    loud = [text for level, text in said if level == logging.WARNING]
    assert any("compiled a program of" in text and f"{line('compiled here')[1]}: " in text and " s" in text for text in loud)
    assert not any("[3,6]" in text for text in loud)


def test_the_log_says_where_it_was_compiled(said):
    @tape.log_compiles()
    def step():
        compiled(tape.constant(np.ones((3, 7), np.float32)))

    step()
    (text,) = [text for _, text in said if "a program of" in text]
    assert ("in the background" in text) is tape.stats().compilations[-1].background


def test_the_log_for_the_process_and_for_other_threads(said):
    log = tape.log_compiles()
    log.start()
    try:
        thread = threading.Thread(target=compiled, args=(tape.constant(np.ones((3, 8), np.float32)),))
        thread.start()
        thread.join()
    finally:
        log.stop()
    assert any(level == logging.WARNING for level, _ in said)
    said.clear()
    compiled(tape.constant(np.ones((3, 9), np.float32)))
    assert not any(level == logging.WARNING for level, _ in said)


def test_a_block_is_its_threads_alone(said):
    with tape.log_compiles():
        thread = threading.Thread(target=compiled, args=(tape.constant(np.ones((4, 8), np.float32)),))
        thread.start()
        thread.join()
    assert not any(level == logging.WARNING for level, _ in said)


def test_jaxs_own_switch_has_it_logged(said):
    with jax.log_compiles():
        tape.jit(lambda x: x * 3)(tape.constant(X))
    assert any(level == logging.WARNING and "compiled a step" in text for level, text in said)


def test_it_is_seen_without_setting_anything_up(tmp_path):
    (tmp_path / "run.py").write_text(
        "import tape\nf = tape.jit(lambda x: x * 2)\nx = tape.constant([1.0])\nwith tape.log_compiles():\n    f(x)\n"  # line 5
    )
    done = subprocess.run([sys.executable, "run.py"], cwd=tmp_path, env=_environment(), capture_output=True, text=True, check=True)
    assert "run.py:5: compiled a step of 1 op (multiply), " in done.stderr
    env = {**_environment(), "TAPE_LOG_COMPILES": "1"}
    (tmp_path / "run.py").write_text("import tape\ntape.jit(lambda x: x * 2)(tape.constant([1.0]))\n")
    done = subprocess.run([sys.executable, "run.py"], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert "run.py:2: compiled a step" in done.stderr


def _environment():
    return os.environ | {"PYTHONPATH": str(ROOT)}


def test_a_handler_that_fails_does_not_end_the_compiler():
    def refuse(record):
        raise RuntimeError

    telling.LOGGER.addFilter(refuse)
    try:
        with tape.log_compiles():
            compiled(tape.constant(np.ones((5, 8), np.float32)))
    finally:
        telling.LOGGER.removeFilter(refuse)
    done = background.submit(lambda: None)
    assert done.made_within(30)


# -- the warning --------------------------------------------------------------------------------------------------------


def told(step, steps=3 * STREAK):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for i in range(1, steps):
            step(i)
    return [w for w in found if issubclass(w.category, TapeWarning) and "at every step" in str(w.message)]


def test_a_loop_whose_shape_changes_is_told_once():
    w = tape.Variable(np.ones((20, 3), np.float32))

    def step(i):
        (tape.constant(np.ones((30 + i, 20), np.float32)) @ w).sum().backward()  # ever other shapes

    (found,) = told(step)
    assert (found.filename, found.lineno) == line("ever other shapes")
    assert "the shape of what matmul" in str(found.message)
    assert "pad arrays to one shape" in str(found.message)
    assert told(step) == []  # once a line


def test_a_loop_whose_python_number_is_part_of_the_program_is_told():
    times = tape.jit(lambda a, n: (a * n).sum(), static_argnums=1)
    x = tape.constant(X)
    (found,) = told(lambda i: times(x, float(i)))
    assert "static argument 1" in str(found.message)
    assert "give what changes as an array or a Variable" in str(found.message)
    scale = tape.jit(lambda a, n: (a * n).sum())  # the repair
    assert told(lambda i: scale(x, tape.constant(float(i)))) == []


def test_a_loop_that_makes_its_functions_anew_is_told():
    x = tape.constant(X)
    (found,) = told(lambda i: tape.jit(lambda a: a * 2)(x))
    assert "which is made anew" in str(found.message)
    double = tape.jit(lambda a: a * 2)  # the repair
    assert told(lambda i: double(x)) == []


@pytest.mark.parametrize("calls", [1, 4, 3 * STREAK])
def test_functions_that_are_called_often_are_not_made_anew(calls):
    def step(_):
        double = tape.jit(lambda a: a * 2)
        for _ in range(calls):
            double(tape.constant(X))

    assert len(told(step)) == (calls < STREAK)


class _Layer:
    @tape.jit
    def __call__(self, x):
        return x * 2


@pytest.mark.parametrize("made", [lambda k: tape.jit(lambda x: x * k), lambda _: _Layer()], ids=["functions", "methods"])
def test_functions_called_one_after_the_other_are_not_made_anew(made):
    layers = [made(k) for k in range(3 * STREAK)]
    assert told(lambda i: layers[i % len(layers)](tape.constant(X)), 6 * STREAK) == []


def test_a_loop_that_pads_is_not_told():
    w = tape.Variable(np.ones((21, 3), np.float32))

    def step(i):
        x = np.zeros((64, 21), np.float32)
        x[: 20 + i] = 1
        (tape.constant(x) @ w).sum().backward()

    assert told(step) == []


def test_different_programs_at_one_line_are_no_such_loop():
    x = tape.constant(np.ones((5, 7), np.float32))
    functions = [tnp.sinh, tnp.cosh, tnp.tan, tnp.arcsinh, tnp.exp2, tnp.log2, tnp.cbrt, tnp.sinc, tnp.i0, tnp.rint, tnp.fabs, tnp.sign]
    assert told(lambda i: functions[i % len(functions)](x * i).value, len(functions)) == []


def test_the_arrays_of_one_step_are_no_such_loop():
    shapes = [(3 + k, 31) for k in range(STREAK)] + [(71 + k,) for k in range(STREAK // 2)]
    parameters = [tape.Variable(np.ones(shape, np.float32)) for shape in shapes]

    def step(_):
        sum([(p**2).sum() for p in parameters]).backward()
        assert all(float((p.grad**2).sum()) > 0 for p in parameters)
        for p in parameters:
            p.zero_grad()

    assert told(step) == []


def _looks(x, w):
    assert tnp.linalg.det((w.T @ (x.T @ x)) @ w).item() is not None
    assert float((w * 0.5).sum()) > 0


_called = tape.jit(lambda x, w: (x @ w).sum())


@pytest.mark.parametrize(
    "step",
    [
        lambda x, w: (x @ w).sum().backward(),
        _looks,
        _called,
    ],
    ids=["sweep", "look beside others", "tape.jit"],
)
def test_a_loop_whose_shape_changes_is_told_at_once(step):
    w = tape.Variable(np.ones((23, 3), np.float32))
    (found,) = told(lambda i: step(tape.constant(np.ones((30 + i, 23), np.float32)), w), STREAK + 3)
    assert f"at every step, {STREAK} times by now" in str(found.message)


def test_as_an_error_it_leaves_all_as_it_is():
    w = tape.Variable(np.ones((22, 3), np.float32))
    steps = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TapeWarning, match="at every step"):  # noqa: PT012 - the step that raises is not known before
            for i in range(1, 40):
                y = tape.constant(np.ones((40 + i, 22), np.float32)) @ w
                steps = i
                y.value
    assert steps >= STREAK
    assert np.array_equal(y.value, np.full((40 + steps, 3), 22.0))  # it has run
    y.sum().backward()
    assert np.array_equal(w.grad.value, np.full((22, 3), 40.0 + steps))


def test_a_step_that_names_what_changes_at_each_call_is_told_of():
    """It is traced each time, though to one program: contract 25."""
    run = types.SimpleNamespace(w=tape.constant([1.0, 2.0]), name="start")
    step = tape.jit(lambda: (run.w * 2.0 if run.name else run.w).sum())
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for i in range(STREAK + 1):
            run.name = f"run {i}"
            assert step().item() == 6.0
    (warning,) = [w for w in found if issubclass(w.category, TapeWarning)]
    assert f"traces its function anew at every step, {STREAK} times by now" in str(warning.message)
    assert f"run.name, which <lambda> names, changes ('run {STREAK - 1}' -> 'run {STREAK}')" in str(warning.message)
    assert step.cache_info() == (STREAK + 1, STREAK + 1, 1)
    assert step.explain().splitlines()[1] == "trace 2: state run.name: 'run 0' -> 'run 1'"


WAYS = {  # what changes, and what is said of that
    "a length": (lambda run: run.layers.append(run.w), "length of run.layers: 1 -> 2"),
    "a name in a dict": (lambda run: run.options.update(act="relu"), "run.options['act']: 'tanh' -> 'relu'"),
    "a class": (lambda run: setattr(run, "other", Other()), "class of run.other: Some -> Other"),
    "a flag": (lambda run: setattr(run, "on", False), "run.on: True -> False"),
    "a function": (lambda run: setattr(run, "act", abs), "run.act: an object -> an object"),
}


class Some: ...


class Other: ...


@pytest.mark.parametrize("way", WAYS)
def test_a_step_says_what_it_looked_at_that_is_another_one(way):
    w = tape.constant([1.0, 2.0])
    run = types.SimpleNamespace(w=w, layers=[w], options={"act": "tanh"}, other=Some(), on=True, act=sum)

    @tape.jit
    def step():
        known = (run.options["act"], run.on, run.act, run.other)
        return sum(layer.sum() for layer in run.layers) * len(known)

    step()
    change, said = WAYS[way]
    change(run)
    step()
    assert step.explain().splitlines()[1:] == [f"trace 2: state {said}"]
