"""``tape.profile``: the parts sum to the whole, each run is counted once, and lines are those of this time."""

import gc
import inspect
import json
import re
import sys
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape.graph import meters
from tape.graph.scope import LOCAL
from tape.insight import profiling_meter, profiling_samples
from tape.ops.work import flops_of

A = np.linspace(0.1, 0.9, 9, dtype=np.float32).reshape(3, 3)
HERE = "test_profile.py"


def line():
    return inspect.currentframe().f_back.f_lineno


def sums(p):
    """Check that the parts sum to the whole."""
    assert min(p.python, p.programs, p.compiling, p.waiting) >= 0
    assert p.python + p.programs + p.compiling + p.waiting == pytest.approx(p.seconds, rel=1e-9)
    for what in ("op", "line", "function", "class", "module", "program"):
        rows = p.by(what)
        assert sum(row.seconds for row in rows) == pytest.approx(p.programs, rel=1e-9, abs=1e-12), what
    for row in p.by_op:
        assert row.seconds == row.forward.seconds + row.sweep.seconds
        assert row.count == row.forward.count + row.sweep.count


def counted(p):
    return {row.name: (row.forward.count, row.sweep.count) for row in p.by_op}


def step(x):
    tnp.tanh(x @ x).sum().backward()


@pytest.mark.parametrize("entries", [False, True])
@pytest.mark.parametrize("times", [1, 60])
def test_the_parts_sum_to_the_whole_and_every_entry_counts(entries, times):
    x = tape.Variable(A)
    with tape.profile(entries=entries) as p:
        for _ in range(times):
            step(x)
    sums(p)
    found = counted(p)
    assert found["matmul"] == (times, times)
    assert found["tanh"] == (times, times)
    assert found["sum"][0] == times
    assert all(row.predicted != entries for row in p.by_op)
    assert sum(row.runs for row in p.by_program) >= times


@pytest.mark.parametrize("entries", [False, True])
def test_eager_mode(entries):
    x = tape.Variable(A)
    with tape.eager(), tape.profile(entries=entries) as p:
        step(x)
        at = line() - 1
    sums(p)
    assert counted(p)["matmul"] == (1, 1)
    assert counted(p)["tanh"] == (1, 1)
    assert not any(row.predicted for row in p.by_op)
    assert {row.where[1] for row in p.by_line if row.where} <= {step.__code__.co_firstlineno + 1, at}


def test_a_step_of_tape_jit_shows_what_was_traced():
    x = tape.Variable(A)

    @tape.jit
    def stepped():
        y = tnp.tanh(x @ x).sum()
        y.backward()
        g, x.grad = x.grad, None
        return g

    with tape.profile() as p:
        for _ in range(3):
            stepped()
    sums(p)
    found = counted(p)
    assert found["matmul"] == (3, 3)
    assert found["tanh"] == (3, 3)
    assert p.compiling > 0
    (program,) = p.by_program
    assert (program.runs, program.interpreted) == (3, 0)
    assert program.name.startswith("stepped (")


def test_sweeps_in_a_step_of_tape_jit_have_the_lines_of_what_they_differentiate():
    x, w = (tape.Variable(np.linspace(-1, 1, 49).reshape(7, 7)) for _ in range(2))  # lines are those of who records a structure first

    @tape.jit
    def step(a):
        h = tnp.tanh(a @ w)
        loss = (h * tnp.sin(w)).sum()
        loss.backward()
        return loss

    with tape.profile() as p:
        step(x)
        step(x)  # which adds to w.grad
    first = step.__wrapped__.__code__.co_firstlineno + 2
    swept = {row.where[1] - first: row.sweep.count for row in p.by_line if row.where is not None and row.sweep.count}
    assert swept.pop(0) == 4  # tanh and matmul, twice
    assert swept.pop(1) >= 6
    assert set(swept) <= {2}  # seeds, and sums of w.grad
    assert all(row.forward.count == 0 for row in p.by_op if row.name == "add_any")


def test_a_differentiable_step_of_tape_jit():
    x = tape.Variable(A)
    inner = tape.jit(lambda v: tnp.sinh(v @ v).sum())
    with tape.profile() as p:
        for _ in range(2):
            inner(x).backward()
    sums(p)
    assert counted(p)["sinh"][0] == 2
    assert counted(p)["matmul"][0] == 2


def test_what_runs_is_the_same_with_and_without():
    def losses():
        x = tape.Variable(A)
        tape.stats().reset()
        for _ in range(50):
            y = tnp.cosh(x @ x).mean()
            y.backward()
            with tape.no_grad():
                x -= 0.1 * x.grad
            x.grad = None
        return x.numpy(), tape.stats().recorded, tape.stats().executed

    losses()  # whose last update was pending
    bare = losses()
    with tape.profile() as p:
        seen = losses()
    np.testing.assert_array_equal(bare[0], seen[0])
    assert bare[1:] == seen[1:]
    sums(p)


def test_lines_are_those_of_this_time_though_the_structure_was_recorded_elsewhere():
    def there(x):
        tnp.arcsinh(x @ x).sum().backward()

    def here(x):
        tnp.arcsinh(x @ x).sum().backward()

    x = tape.Variable(A)
    for _ in range(20):
        there(x)
    with tape.profile() as p:
        for _ in range(12):
            here(x)
    wanted = here.__code__.co_firstlineno + 1
    assert {row.where for row in p.by_line if row.name != "elsewhere"} == {(__file__, wanted)}
    assert [row.name for row in p.by_scope] == [
        f"{test_lines_are_those_of_this_time_though_the_structure_was_recorded_elsewhere.__name__}.here"
    ]


def test_two_loops_of_one_structure_are_told_apart():
    x = tape.Variable(A)
    with tape.profile() as p:
        for _ in range(12):
            tnp.arctan(x @ x).sum().backward()
            first = line() - 1
        for _ in range(20):
            tnp.arctan(x @ x).sum().backward()
            second = line() - 1
    found = {row.where[1]: row for row in p.by_line if row.where}
    assert found.keys() == {first, second}
    assert {at: (row.forward.count, row.sweep.count) for at, row in found.items()}[first][0] == 12 * 3
    assert {at: (row.forward.count, row.sweep.count) for at, row in found.items()}[second][0] == 20 * 3


def one_model(x, w):
    h = tnp.tanh(x @ w)
    return (h * h).sum()


def other_model(x, w):
    h = tnp.tanh(x @ w)

    return (h * h).sum()


def lines_of(model):
    first = inspect.getsourcelines(model)[1]
    return {f"{HERE}:{first + 1}", f"{HERE}:{first + (2 if model is one_model else 3)}"}


@pytest.mark.parametrize("look", [False, True])
@pytest.mark.parametrize("entries", [False, True])
def test_two_models_of_equal_ops_that_one_loop_trains_have_their_own_lines(entries, look):
    x = tape.constant(np.ones((2, 11), np.float32))

    def train(model, steps):
        w = tape.Variable(np.ones((11, 13), np.float32))
        for _ in range(steps):
            loss = model(x, w)
            if look:
                float(loss)
            loss.backward()

    with tape.profile(entries=entries) as p:
        for _ in range(2):
            for model, steps in ((one_model, 9), (other_model, 14)):
                train(model, steps)
    counts = {row.name: (row.forward.count, row.sweep.count) for row in p.by_line}
    for model, steps in ((one_model, 9), (other_model, 14)):
        for name in lines_of(model):
            again = 2 * steps if look and name.endswith(str(inspect.getsourcelines(model)[1] + 1)) else 0  # tanh, which was not kept
            assert counts[name] == (4 * steps, 4 * steps + again), (name, counts)
    sums(p)


@pytest.mark.parametrize("turns", [(1, 1), (3, 1), (60, 60)])
def test_equal_functions_that_take_turns_on_the_same_variables_share_what_nobody_saw(turns):
    x, w = tape.constant(np.ones((3, 11), np.float32)), tape.Variable(np.ones((11, 7), np.float32))
    models = [model for model, times in zip((one_model, other_model), turns, strict=True) for _ in range(times)]
    with tape.profile() as p:
        for step in range(480):
            models[step % len(models)](x, w).backward()
    counts = {row.name: row.forward.count for row in p.by_line}
    for model, times in zip((one_model, other_model), turns, strict=True):
        right = 480 * 2 * times / len(models)
        for name in lines_of(model):
            assert 0.6 * right < counts[name] < 1.5 * right, (name, counts)
    sums(p)


def test_parameters_that_are_new_at_each_step_do_not_have_lines_noted_for_ever():
    x = tape.constant(np.ones((2, 5), np.float32))

    def train(steps):
        for _ in range(steps):
            w = tape.Variable(np.ones((5, 17), np.float32))
            one_model(x, w).backward()

    with tape.profile() as p:
        train(60)
        assert LOCAL.scope.notes is None
    counts = {row.name: (row.forward.count, row.sweep.count) for row in p.by_line}
    assert {counts[name] for name in lines_of(one_model)} == {(120, 120)}


def test_each_step_of_tape_jit_has_the_lines_of_its_own_trace():
    x = tape.constant(np.ones((2, 7), np.float32))
    w = tape.Variable(np.ones((7, 19), np.float32))
    for model in (one_model, other_model, one_model, other_model):

        @tape.jit
        def update(x, model=model):
            loss = model(x, w)
            loss.backward()
            return loss.value

        w.grad = None
        with tape.profile() as p:
            update(x)
        found = {row.name for row in p.by_line if row.forward.count}
        assert found == lines_of(model)
        assert {row.name for row in p.by_line if row.sweep.count} >= lines_of(model)


def test_the_forward_of_a_line_that_was_looked_at_before_the_sweep():
    x = tape.Variable(A)
    with tape.profile() as p:
        for _ in range(12):
            y = tnp.log1p(x @ x).sum()
            at = line() - 1
            float(y)
            y.backward()
    (row,) = [row for row in p.by_line if row.where and row.where[1] == at]
    assert row.forward.count >= 12 * 3  # what is cheap is computed again
    assert row.sweep.count >= 12 * 2


def test_double_backprop_counts_in_both_sides():
    x = tape.Variable(A)
    with tape.profile() as p:
        (g,) = tape.gradients([tnp.tanh(x * x).sum()], [x], create_graph=True)
        g.sum().backward()
    sums(p)
    assert counted(p)["tanh"][0] == 1
    assert counted(p)["tanh"][1] >= 1


# -- contexts --------------------------------------------------------------------------------------------------------


def idle():
    assert not meters.METERS
    assert LOCAL.scope.notes is None
    assert not profiling_meter.BEHIND
    before = calls[0]
    jax.jit(lambda a: a * 3.25 + len(calls))(jnp.ones(3))
    assert calls[0] == before


calls = [0]


@pytest.fixture(autouse=True)
def heard(monkeypatch):
    """Count what JAX tells to a profile that is open."""
    original = profiling_meter.heard

    def counting(name, seconds, **said):
        calls[0] += 1
        original(name, seconds, **said)

    monkeypatch.setattr("tape.insight.profiling.heard", counting)
    yield
    assert not meters.METERS
    assert LOCAL.scope.notes is None


def test_nothing_listens_when_no_profile_is_open():
    idle()
    with tape.profile():
        step(tape.Variable(A))
    idle()


def test_nested_profiles_each_see_what_ran_in_them():
    x = tape.Variable(A)
    with tape.profile() as outer:
        step(x)
        with tape.profile() as inner:
            step(x)
        step(x)
    assert counted(outer)["tanh"] == (3, 3)
    assert counted(inner)["tanh"] == (1, 1)
    assert inner.seconds <= outer.seconds
    sums(outer)
    sums(inner)


def test_a_profile_in_itself_counts_once_and_adds_up_when_entered_again():
    p = tape.profile()
    x = tape.Variable(A)
    with p:
        with p:
            step(x)
        step(x)
    with p:
        step(x)
    assert counted(p)["tanh"] == (3, 3)
    sums(p)


def test_as_a_decorator_of_functions_generators_and_recursion():
    p = tape.profile()
    x = tape.Variable(A)

    @p
    def again(n):
        step(x)
        return again(n - 1) if n else None

    again(2)
    assert counted(p)["tanh"] == (3, 3)

    @p
    def each():
        for _ in range(2):
            step(x)
            yield

    for _ in each():
        step(x)  # outside of it
        assert not meters.METERS
    assert counted(p)["tanh"] == (5, 5)
    sums(p)


def test_an_error_inside_leaves_nothing_open():
    x = tape.Variable(A)
    p = tape.profile()

    @p
    def failing():
        step(x)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    idle()
    sums(p)
    assert counted(p)["tanh"] == (1, 1)


def test_an_entry_that_fails_is_no_run():
    def broken(a):
        raise RuntimeError(str(a))

    x = tape.Variable(A)
    with tape.profile() as p:
        y = tape.Variable(1.0) * 2.0
        float(y)

        class Broken(tape.Function):
            @staticmethod
            def forward(ctx, v):
                return v * 2

            @staticmethod
            def backward(ctx, g):
                raise RuntimeError("no")

        with pytest.raises(RuntimeError):
            Broken.apply(x).sum().backward()
    sums(p)


@pytest.mark.parametrize("at", range(12))
def test_ctrl_c_while_a_program_runs(monkeypatch, at):
    x = tape.Variable(A)
    seen = [0]
    original = profiling_meter.ThreadMeter.measure

    def interrupted(self, kind, what, call, *args):
        seen[0] += 1
        if seen[0] == at % 3 + 1:

            def call(*_):
                raise KeyboardInterrupt

        return original(self, kind, what, call, *args)

    monkeypatch.setattr(profiling_meter.ThreadMeter, "measure", interrupted)
    p = tape.profile()
    try:
        with p:
            for _ in range(3):
                step(x)
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError
    sums(p)
    idle()
    y = x * 2  # and the tape is as it was
    assert float(y[0, 0]) == pytest.approx(0.2)


def test_threads_are_measured_each():
    x = tape.Variable(A)
    p = tape.profile()

    def work():
        with p:
            for _ in range(3):
                step(tape.Variable(A))

    threads = [threading.Thread(target=work) for _ in range(3)]
    with p:
        step(x)
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert counted(p)["tanh"] == (10, 10)
    sums(p)


def test_another_thread_is_not_measured():
    with tape.profile() as p:
        t = threading.Thread(target=step, args=(tape.Variable(A),))
        t.start()
        t.join()
    assert not p.by_op
    sums(p)


def test_leaving_it_in_another_thread_is_an_error():
    p = tape.profile()
    errors = []
    with p:

        def leave():
            try:
                p.__exit__(None, None, None)
            except tape.errors.TapeRuntimeError as e:
                errors.append(e)

        t = threading.Thread(target=leave)
        t.start()
        t.join()
    assert len(errors) == 1
    assert str(errors[0]).startswith("profile: left in a thread that did not enter it")


def test_inside_of_tape_jit_and_of_a_jax_transformation():
    x = tape.Variable(A)

    @tape.jit
    def traced():
        with tape.profile() as p:
            y = tnp.tanh(x).sum()
        kept.append(p)
        return y

    kept = []
    with tape.no_grad():
        traced()
    sums(kept[0])
    assert not kept[0].by_op  # it was traced, not run

    @jax.jit
    def f(a):
        with tape.profile() as p:
            y = tnp.tanh(tape.constant(a)).sum().value
        kept.append(p)
        return y

    f(A)
    sums(kept[-1])
    with jax.checking_leaks(), tape.profile() as p:
        jax.grad(lambda a: tnp.tanh(tape.constant(a)).sum().value)(jnp.asarray(A))
    sums(p)


def test_it_keeps_no_value_alive():
    x = tape.Variable(np.ones((64, 64), np.float32))
    with tape.profile() as p:
        y = tnp.tanh(x @ x)
        y.sum().backward()
        ref = weakref.ref(y.value)
        del y
        x.grad = None
        gc.collect()
        assert ref() is None
    leaf = weakref.ref(x.value)
    del x
    gc.collect()
    assert leaf() is None
    assert counted(p)["tanh"] == (1, 1)


def test_compiling_in_the_background_is_told_apart():
    x = tape.Variable(A)
    with tape.profile() as p:
        for _ in range(60):
            tnp.expm1(x @ x + 1.5).sum().backward()
    sums(p)
    assert any(row.interpreted < row.runs for row in p.by_program)
    assert p.background > 0


def test_ever_new_structures_are_let_go_and_still_counted(monkeypatch):
    monkeypatch.setattr(profiling_meter, "_STRUCTURES", 8)
    x = tape.Variable(A)
    with tape.profile() as p:
        for n in range(1, 31):
            y = x
            for _ in range(n):
                y = tnp.tanh(y)
            float(y.sum())
    sums(p)
    assert counted(p) == {"tanh": (30 * 31 // 2, 0), "sum": (30, 0)}
    (ledger,) = p._all()
    assert len(ledger.runs) <= 8
    assert sum(row.runs for row in p.by_program) == 30
    assert "others" in {row.name for row in p.by_program}
    p.text(width=80)


def test_interpreted_runs_are_told_from_compiled_ones():
    x = tape.Variable(A)
    with tape.profile() as p:
        tnp.log2(x @ x + 3.5).sum().backward()
    assert all(row.interpreted == row.runs == 1 for row in p.by_program)


# -- FLOPs and bytes -------------------------------------------------------------------------------------------------

K = jnp.ones((3, 3, 4, 5))
CASES = {
    "dot": (lambda a, b: a @ b, (jnp.ones((7, 5)), jnp.ones((5, 3)))),
    "batched": (lambda a, b: jnp.einsum("bij,bjk->bik", a, b), (jnp.ones((2, 7, 5)), jnp.ones((2, 5, 3)))),
    "add": (lambda a, b: a + b, (jnp.ones((7, 5)), jnp.ones((7, 5)))),
    "sum": (lambda a: a.sum(), (jnp.ones((7, 5)),)),
    "max": (lambda a: a.max(axis=1), (jnp.ones((7, 5)),)),
    "transpose": (lambda a: a.T, (jnp.ones((7, 5)),)),
    "conv": (
        lambda a, k: jax.lax.conv_general_dilated(a, k, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")),
        (jnp.ones((2, 8, 8, 4)), K),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_floating_point_operations_are_those_that_xla_counts(name):
    f, arguments = CASES[name]
    counted = jax.jit(f).lower(*arguments).cost_analysis()
    counted = counted[0] if isinstance(counted, list) else counted
    assert flops_of(jax.make_jaxpr(f)(*arguments).jaxpr) == (counted or {}).get("flops", 0.0)


def test_operations_of_loops_and_branches():
    x = jnp.ones(8)
    scan = jax.make_jaxpr(lambda x: jax.lax.scan(lambda c, _: (c * x, None), x, None, length=10)[0])(x)
    assert flops_of(scan.jaxpr) == 80
    cond = jax.make_jaxpr(lambda x: jax.lax.cond(x[0] > 0, lambda x: x * x + x, lambda x: x, x))(x)
    assert flops_of(cond.jaxpr) >= 16


def test_rows_have_the_operations_and_bytes_of_all_runs():
    x = tape.Variable(np.ones((8, 8), np.float32))
    with tape.profile() as p:
        for _ in range(3):
            (x @ x).sum().backward()
    row = {row.name: row for row in p.by_op}["matmul"]
    assert row.forward.flops == 3 * 2 * 8**3
    assert row.forward.nbytes == 3 * 3 * 8 * 8 * 4
    assert row.sweep.flops >= 3 * 2 * 2 * 8**3
    assert row.flops == row.forward.flops + row.sweep.flops


# -- the peak --------------------------------------------------------------------------------------------------------


def test_the_peak_names_what_made_it():
    x = tape.Variable(np.ones((8, 8), np.float32))
    with tape.profile() as p, tape.no_grad():
        small = x + 1.0
        big = tnp.broadcast_to(small, (100, 8, 8)) * 2.0
        at = line() - 1
        float(big.sum())
    del small, big
    assert p.peak.where == (__file__, at)
    assert p.peak.op == "multiply"
    wide = 100 * 8 * 8 * 4
    assert p.peak.made == 2 * wide + 8 * 8 * 4  # both wide values, and ``small``, which is held
    assert p.peak.nbytes == p.peak.held + p.peak.made
    assert {(a.op, a.nbytes) for a in p.peak.alive} == {("multiply", wide), ("broadcast_to", wide), ("add", 256)}


def test_the_peak_sees_what_a_list_of_losses_keeps():
    def epoch(kept):
        losses = []
        with tape.profile() as p:
            for _ in range(8):
                x = tape.Variable(np.ones((32, 32), np.float32))
                loss = tnp.tanh(x @ x).sum()
                float(loss)
                losses.append(loss if kept else float(loss))
        return p.peak.nbytes

    assert epoch(kept=True) >= epoch(kept=False) + 6 * 32 * 32 * 4


def test_without_memory_there_is_no_peak():
    with tape.profile(memory=False) as p:
        pass
    with pytest.raises(tape.errors.TapeValueError, match=re.escape("tape.profile(memory=True)")):
        _ = p.peak


# -- what it looks like ----------------------------------------------------------------------------------------------


@pytest.fixture
def measured():
    x = tape.Variable(A)
    with tape.profile() as p:
        for _ in range(3):
            step(x)
    return p


@pytest.mark.parametrize("width", [80, 100, 140])
def test_tables_fit_the_line(measured, width):
    text = measured.text(width=width, color=False)
    assert max(map(len, text.splitlines())) <= width
    assert "matmul" in text
    assert f"{HERE}:" in text
    plain = re.sub("\x1b\\[[0-9;]*m", "", measured.text(width=width, color=True))
    assert plain == text


def test_wide_terminals_show_more(measured):
    assert "FLOP/s" in measured.text(width=140, color=False)
    assert "FLOP/s" not in measured.text(width=80, color=False)


def test_names_have_room_beside_the_time_of_python(monkeypatch):
    x = tape.Variable(np.ones((3, 23), np.float32))
    with tape.profile(python=True) as p:
        for _ in range(3):
            (x * x).sum().backward()
    row = p.by_line[0]
    monkeypatch.setattr(tape.profile, "_python", lambda self: {row.where: 12.3e-3})
    for width in (80, 100):
        text = p.text("line", width=width, color=False)
        assert all(len(line) <= width for line in text.splitlines())
        assert HERE in text


def test_columns_in_which_nothing_stands_are_left_out():
    with tape.profile() as p, tape.no_grad():
        float((tape.Variable(A) + 1.0).sum())
    text = p.text("op", width=140, color=False)
    assert "forward" in text
    assert "compiling" in p.text(width=140, color=False)
    assert "sweep  " not in text


def test_jaxs_profiler_shows_the_runs_of_a_profile(tmp_path):
    x = tape.Variable(A)
    with tape.profile() as p, jax.profiler.trace(str(tmp_path)):
        step(x)
    (captured,) = tmp_path.rglob("*.xplane.pb")
    assert p.by_program[0].name.startswith(f"backward ({HERE}:")
    assert p.by_program[0].name.encode() in captured.read_bytes()


def test_long_names_are_cut_and_rows_left_out_are_summed(measured):
    text = measured.text("op", width=80, color=False, most=1)
    assert re.search(r"\.\.\. \d+ more: ", text)


def test_the_notebook_shows_a_table(measured):
    shown = measured._repr_mimebundle_()
    assert shown["text/html"].startswith("<pre")
    assert "matmul" in shown["text/plain"]


def test_a_profile_of_nothing():
    p = tape.profile()
    assert "0.00 us" in str(p)
    assert p.by_op == p.by_line == []
    with p:
        assert "open" in repr(p)
    sums(p)


def test_samples_share_out_the_time_of_python(monkeypatch):
    monkeypatch.setattr(profiling_samples, "_RUNNING", [None])  # no thread takes them: they are taken below
    x = tape.Variable(A)

    def sampled(ledger, times):
        for _ in range(times):
            ledger.samples.take(profiling_meter.clock(), sys._getframe())

    def program(ledger):
        before = profiling_meter.clock()
        step(x)
        for at in (before + 1e-3 * (profiling_meter.clock() - before), profiling_meter.clock()):
            ledger.samples.take(at, sys._getframe())
        ledger.span("compiling", before, profiling_meter.clock(), None)  # takes back what was sampled meanwhile

    with tape.profile(python=True) as p:
        (ledger,) = p._all()
        sampled(ledger, 30)
        program(ledger)
        sampled(ledger, 10)
        json.dumps({})
    assert profiling_samples._TAKING == []
    rows = [row for row in p.by_line if row.python]
    assert [row.where[0] for row in rows] == [__file__]
    assert sum(row.python for row in rows) == pytest.approx(p.python)
    functions = {row.name.rpartition(".")[2]: row.python for row in p.by_scope if row.python}
    assert functions == {"sampled": pytest.approx(p.python)}
    assert sum(row.seconds for row in p.by_line) == pytest.approx(p.programs)  # besides
    assert "Python" in p.text("line", width=100, color=False).splitlines()[7]
    assert "by samples" in str(p)


def test_samples_are_taken_by_a_thread_that_ends():
    with tape.profile(python=True) as p:
        (ledger,) = p._all()
        for _ in range(1_000_000):
            sum(range(1000))
            if ledger.samples.counts():
                break
        taking = [t for t in threading.enumerate() if t.name == "tape-samples"]
        with tape.profile(python=True):
            assert [t for t in threading.enumerate() if t.name == "tape-samples"] == taking
    for t in taking:
        t.join(timeout=60)
        assert not t.is_alive()
    assert not profiling_samples._RUNNING
    assert {row.where[0] for row in p.by_line} == {__file__}


def test_many_samples_are_counted_and_the_latest_can_be_taken_back():
    samples = profiling_samples.Samples(0)
    for at in range(10_000):
        samples.take(float(at), sys._getframe())
    assert sum(samples.counts().values()) == 10_000
    samples.drop_since(9_000.0)
    assert sum(samples.counts().values()) == 9_000
    assert len(samples._recent) <= 4096
    assert tape.profile()._python() == {}


def test_options_are_checked():
    for option in ("entries", "wait", "memory", "python"):
        with pytest.raises(tape.errors.TapeTypeError, match=option):
            tape.profile(**{option: 1})
    for decorated in (step, type("Model", (), {})):
        with pytest.raises(tape.errors.TapeTypeError, match=r"write @tape.profile\(\), with parentheses"):
            tape.profile(decorated)
    p = tape.profile()
    with pytest.raises(tape.errors.TapeValueError):
        p.by("colour")
    with pytest.raises(tape.errors.TapeTypeError):
        p.text(width=0)
    with pytest.raises(tape.errors.TapeValueError):
        p.save("trace.txt")


# -- files -----------------------------------------------------------------------------------------------------------


def check_speedscope(whole):
    """Check a file by what its schema says."""
    assert whole["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = whole["shared"]["frames"]
    assert all(isinstance(f["name"], str) and f.keys() <= {"name", "file", "line", "col"} for f in frames)
    assert whole.keys() <= {"$schema", "shared", "profiles", "name", "activeProfileIndex", "exporter"}
    for one in whole["profiles"]:
        assert one.keys() == {"type", "name", "unit", "startValue", "endValue", "events"}
        assert (one["type"], one["unit"]) == ("evented", "seconds")
        stack, now = [], one["startValue"]
        for event in one["events"]:
            assert event.keys() == {"type", "at", "frame"}
            assert event["at"] >= now
            now = event["at"]
            if event["type"] == "O":
                assert 0 <= event["frame"] < len(frames)
                stack.append(event["frame"])
            else:
                assert event["type"] == "C"
                assert stack.pop() == event["frame"]
        assert not stack
        assert one["endValue"] == now


def test_the_files_have_the_published_formats(measured, tmp_path):
    trace, speedscope = measured.save(tmp_path / "trace.json")
    assert (trace.name, speedscope.name) == ("trace.json", "trace.speedscope.json")
    whole = json.loads(trace.read_text())
    assert whole["displayTimeUnit"] in ("ms", "ns")
    open_until = {}
    for event in whole["traceEvents"]:
        assert {"name", "ph", "pid", "tid"} <= event.keys()
        assert event["ph"] in "XM"
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            stack = open_until.setdefault(event["tid"], [])
            start, end = round(1000 * event["ts"]), round(1000 * (event["ts"] + event["dur"]))
            while stack and stack[-1] < start:
                stack.pop()
            assert not stack or end < stack[-1]  # spans of a thread lie in each other, or apart, without a common end: viewers add up
            stack.append(end)
    names = {event["name"] for event in whole["traceEvents"]}
    assert any(name.startswith("tanh (") for name in names)
    assert any(name.startswith("vjp_matmul (") for name in names)
    check_speedscope(json.loads(speedscope.read_text()))
    (alone,) = measured.save(tmp_path / "b.speedscope.json")
    check_speedscope(json.loads(alone.read_text()))


def test_files_of_a_profile_with_threads_compiling_and_nothing(tmp_path):
    p = tape.profile()
    (_, empty) = p.save(tmp_path / "empty.json")
    check_speedscope(json.loads(empty.read_text()))

    def work():
        with p:
            for _ in range(30):
                tnp.exp2(tape.Variable(A) @ A + 7.5).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    with p:
        (_, full) = p.save(tmp_path / "full.json")
    check_speedscope(json.loads(full.read_text()))
    sums(p)
