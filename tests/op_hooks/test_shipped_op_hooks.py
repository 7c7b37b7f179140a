"""The op hooks that come with the tape, and ``tape.detect_anomaly``, against what is known beforehand."""

import inspect
import io
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp
from tape.errors import NonFiniteError, TapeTypeError, TapeValueError
from tape.op_hooks import GradientClipper, MemoryCounter, NaNWatcher, Printer, Timer, anomalies, clipping, showing, timing


def line():
    return inspect.currentframe().f_back.f_lineno


def shown(hook):
    text, page = repr(hook), hook._repr_html_()
    assert max(map(len, text.splitlines())) <= 100
    assert page.startswith("<table>")
    return text


# -- timer --------------------------------------------------------------------------------------------------------------------


SLOW = 0.03


def dawdle(x):
    time.sleep(SLOW)
    return np.asarray(x)


@interop.lift
def slow(x):
    return jax.pure_callback(dawdle, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


class SlowBackward(tape.Function):
    @staticmethod
    def forward(ctx, x):
        return slow(x)

    @staticmethod
    def backward(ctx, g):
        return slow(g.detach())


@pytest.mark.usefixtures("tier")
def test_a_timer_waits_for_each_op_and_tells_forward_from_backward():
    x = tape.Variable(np.ones(3, np.float32))
    timer = Timer()
    for _ in range(6):
        with timer:
            tape.gradients(SlowBackward.apply(x).sum(), x)
    rows = {row.op: row for row in timer.rows()}
    name = next(n for n in rows if n not in ("sum", "SlowBackward"))
    assert rows[name].forward_median >= SLOW
    assert rows["SlowBackward"].forward_median < SLOW  # the time of what is inside counts there
    assert rows["SlowBackward"].backward_median >= SLOW
    assert rows["sum"].forward_median < SLOW
    assert rows["sum"].backward_median < SLOW
    assert (rows["sum"].forward_calls, rows["sum"].backward_calls, rows[name].backward_calls) == (6, 6, 0)
    assert rows["sum"].forward_seconds >= 6 * min(timer._times["sum"][0])
    assert [row.op for row in timer.rows()][-1] == "sum"
    assert "SlowBackward" in shown(timer)


def test_a_timer_by_line_and_its_reset():
    x = tape.Variable(1.0)
    timer = Timer(by="line")
    assert "nothing so far" in repr(timer)
    with timer:
        y, first = tnp.sin(x), line()
        (y * tnp.sin(y)).backward()
    assert {row.op for row in timer.rows()} == {
        f"sin (test_shipped_op_hooks.py:{first})",
        f"sin (test_shipped_op_hooks.py:{first + 1})",
        f"multiply (test_shipped_op_hooks.py:{first + 1})",
    }
    shown(timer)
    timer.reset()
    assert timer.rows() == []


def test_a_timer_says_what_it_could_not_time():
    timer = Timer()
    with timer:
        jax.jit(tape.grad(lambda x: tnp.sin(x)))(1.0)
    assert timer.rows() == []
    assert timer.traced == 2
    with timer:
        tnp.sin(tape.Variable(1.0))
    assert "2 calls in traced functions left out" in shown(timer)


def test_a_timer_goes_on_after_an_op_that_fails():
    x = tape.Variable(1.0)
    timer = Timer()

    class Broken(tape.Function):
        @staticmethod
        def forward(ctx, x):
            raise ZeroDivisionError

        @staticmethod
        def backward(ctx, g):
            return g

    with timer:
        with pytest.raises(ZeroDivisionError):
            Broken.apply(x)
        (x * x).backward()
    assert [(r.op, r.forward_calls, r.backward_calls) for r in timer.rows()] == [("multiply", 1, 1)]


# -- memory -------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tier")
def test_memory_per_op_is_what_the_shapes_say():
    a, b = tape.Variable(np.ones((3, 4), np.float32)), tape.Variable(np.ones((4, 5), np.float32))
    for by in ("op", "line"):
        counter = MemoryCounter(by=by)
        for _ in range(2):
            with counter:
                tape.gradients((a @ b).sum(), (a, b))
        rows = {row.op.split(" ")[0]: row[1:] for row in counter.rows()}
        assert rows == {"matmul": (2, 2 * 4 * 15, 2, 2 * 4 * (12 + 20)), "sum": (2, 2 * 4, 2, 2 * 4 * 15)}
        assert "256 B" in shown(counter)
    with tape.no_grad(), counter:
        tape.constant(np.ones(1 << 20, np.float32)) + 1
    assert "4.0 MiB" in shown(counter)
    counter.reset()
    assert counter.rows() == []


def test_long_names_fit_the_table():
    def name(x):
        return x * 2

    name.__name__ = "n" * 200
    counter = MemoryCounter()
    with counter:
        interop.lift(name)(tape.Variable(1.0)).backward()
    assert "nnn…" in shown(counter)


# -- printer ------------------------------------------------------------------------------------------------------------------


EXPECTED = [
    "forward   multiply          float32(2,) |5|",
    "forward   sum               float32() |7|",
    "backward  sum               float32(2,) |1.414|",
    "backward  multiply          float32(2,) |5|  float32() |7|",
]


def without_lines(text):
    found = text.splitlines()
    assert all(len(x) <= 100 and "test_shipped_op_hooks.py:" in x for x in found)
    return [x.rsplit("  ", 1)[0] for x in found]


@pytest.mark.usefixtures("tier")
def test_a_printer_prints_each_op_with_its_norms():
    x, w = tape.Variable([3.0, 4.0]), tape.Variable(1.0)
    for _ in range(2):
        out = io.StringIO()
        with Printer(file=out):
            (x * w).sum().backward()
        assert without_lines(out.getvalue())[:3] == EXPECTED[:3]
        assert without_lines(out.getvalue())[3] == "backward  multiply          float32(2,) |1.414|  float32() |7|"


@pytest.mark.parametrize("jit", [tape.jit, jax.jit])
def test_a_printer_in_a_compiled_function_prints_at_every_run(jit):
    out = io.StringIO()
    printer = Printer(file=out)

    @jit
    def slope(x):
        return tape.grad(lambda v: (v * 2.0).sum())(x)

    for k in (1, 2, 3):
        with printer:
            slope(jnp.array([3.0 * k, 4.0 * k]))
        jax.effects_barrier()
        text = sorted(out.getvalue().splitlines())
        assert sum(f"|{10 * k:g}|" in x for x in text) == 1
        assert len(text) == 4 * k


def test_a_printer_without_norms_looks_at_nothing(stats):
    out = io.StringIO()
    x = tape.Variable([3.0, 4.0])
    with Printer(norms=False, file=out):
        y = (x * x).sum()
    assert stats.executed == 0
    assert "|" not in out.getvalue()
    assert float(y) == 25
    with Printer(file=out):  # a key has no norm
        tape.random.split(tape.random.key(0))
    assert "key" in out.getvalue()


# -- clipper ------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("repetition", range(2))
def test_clipping_by_value_and_by_norm_after_each_op(repetition):
    x, w = tape.Variable([3.0, -4.0]), tape.Variable([1.0, 2.0])
    with GradientClipper(value=2.5):
        (x * w * 1.0).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [1, 2])
    np.testing.assert_allclose(w.grad.numpy(), [2.5, -2.5])
    with tape.hooks(GradientClipper(norm=1.0), ops="multiply"):
        gx, gw = tape.gradients((x * w).sum(), (x, w))
    total = np.sqrt(1 + 4 + 9 + 16)  # over both inputs of the op
    np.testing.assert_allclose(gx.numpy(), np.float32([1, 2]) / total, rtol=1e-6)
    np.testing.assert_allclose(gw.numpy(), np.float32([3, -4]) / total, rtol=1e-6)
    with GradientClipper(norm=100.0):  # large enough: nothing changes, to the last bit
        clipped = tape.gradients(tnp.exp(x).sum(), x).numpy()
    assert clipped.tobytes() == tape.gradients(tnp.exp(x).sum(), x).numpy().tobytes()


def test_clipping_variables_clips_their_totals():
    x, w = tape.Variable([3.0, 4.0]), tape.Variable(2.0)
    handles = GradientClipper(norm=1.0).on(x, w)
    (x * x + x * w).sum().backward()  # 2 x + w and 7
    np.testing.assert_allclose(x.grad.numpy(), np.float32([8, 10]) / np.sqrt(164), rtol=1e-6)
    np.testing.assert_allclose(float(w.grad), 1, rtol=1e-6)
    for handle in handles:
        handle.remove()
    np.testing.assert_allclose(tape.gradients((x * w).sum(), w).numpy(), 7)


def test_a_clipper_of_variables_is_put_on_all_of_them_or_on_none():
    x = tape.Variable([3.0, 4.0])
    for other, error in ((tape.constant(1.0), TapeValueError), (1.0, TapeTypeError)):
        with pytest.raises(error, match=r"GradientClipper\.on"):
            GradientClipper(norm=1.0).on(x, other)
        np.testing.assert_array_equal(tape.gradients((x * x).sum(), x).numpy(), [6.0, 8.0])


def test_clipping_complex_half_and_zero():
    z = tape.Variable(np.complex64(1 + 1j))
    with GradientClipper(value=1.0):
        g = tape.gradients((z * np.complex64(3 + 4j)).real, z)
    np.testing.assert_allclose(np.abs(g.numpy()), 1, rtol=1e-6)
    np.testing.assert_allclose(g.numpy(), tape.gradients((z * np.complex64(3 + 4j)).real, z).numpy() / 5, rtol=1e-6)
    h = tape.Variable(np.full(4, 1, np.float16))
    with GradientClipper(norm=1.0):  # the squares overflow in float16
        g = tape.gradients((h * np.float16(300)).sum(), h)
    assert g.dtype == np.float16
    np.testing.assert_allclose(g.numpy(), 0.5, rtol=1e-3)
    x = tape.Variable(0.0)
    with GradientClipper(norm=1.0):
        g = tape.gradients(x * x, x, create_graph=True)  # zero: the norm has no derivative there
    assert float(tape.gradients(g, x)) == 2


def test_clipping_goes_where_squares_do_not():
    x, z = tape.Variable([1.0, 0.0]), tape.Variable(np.complex64([1, 1j]))
    huge, turned = np.float32([3e30, -4e30]), np.complex64([3e30 + 4e30j, 1])
    with GradientClipper(norm=5.0):
        np.testing.assert_allclose(tape.gradients((x * huge).sum(), x).numpy(), [3, -4], rtol=1e-6)
    with GradientClipper(value=5.0):
        g = tape.gradients((z * turned).sum().real, z).numpy()
    np.testing.assert_allclose(g, [3 + 4j, 1], rtol=1e-6)


def test_clipping_is_differentiated_with_create_graph():
    x = tape.Variable(3.0)
    with tape.hooks(GradientClipper(value=1e3)):
        g = tape.gradients(x**3, x, create_graph=True)
    np.testing.assert_allclose(float(tape.gradients(g, x)), 18, rtol=1e-6)
    with tape.hooks(GradientClipper(value=1.0)):
        g = tape.gradients(x**3, x, create_graph=True)
    assert float(g) == 1
    assert float(tape.gradients(g, x, unconnected="zero")) == 0


def test_equal_clippers_are_compiled_once():
    w = tape.Variable(np.float32([3.0, 4.0]))

    @tape.jit
    def slope():
        return tape.gradients((w**2).sum(), w)

    for _ in range(3):
        with GradientClipper(value=5.0):
            np.testing.assert_allclose(slope().numpy(), [5, 5])
    assert slope.cache_info().traces == 1
    np.testing.assert_allclose(slope().numpy(), [6, 8])
    assert repr(GradientClipper(norm=2.0)) == "GradientClipper(norm=2.0)"
    assert GradientClipper(value=5.0) != GradientClipper(norm=5.0)


REFUSED = {
    "both": (lambda: GradientClipper(value=1.0, norm=1.0), TapeValueError, ValueError, ["value=", "norm="]),
    "none": (lambda: GradientClipper(), TapeValueError, ValueError, ["value=", "norm="]),
    "zero": (lambda: GradientClipper(norm=0.0), TapeValueError, ValueError, ["positive", "0.0"]),
    "a flag": (lambda: GradientClipper(norm=True), TapeValueError, ValueError, ["positive", "True"]),
    "no number": (lambda: GradientClipper(norm="a"), TapeValueError, ValueError, ["positive", "'a'"]),
    "on an array": (lambda: GradientClipper(norm=1.0).on(np.ones(3)), TapeTypeError, TypeError, ["ndarray"]),
    "timer by": (lambda: Timer(by="file"), TapeValueError, ValueError, ["'file'", "'line'"]),
    "memory by": (lambda: MemoryCounter(by="file"), TapeValueError, ValueError, ["'file'", "'line'"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    refused, error, builtin, parts = REFUSED[case]
    with pytest.raises(error) as caught:
        refused()
    assert isinstance(caught.value, builtin)
    assert all(part in str(caught.value) for part in parts)


# -- NaN ----------------------------------------------------------------------------------------------------------------------


def told(watcher):
    return [(a.op.name, a.backward, a.position, a.born, a.what) for a in watcher.found]


@pytest.mark.usefixtures("tier")
def test_a_watcher_names_where_nans_are_born():
    x = tape.Variable([0.0, 1.0])
    for _ in range(2):
        watcher = NaNWatcher()
        with watcher:
            y, where = tnp.log(x) * 0.0, line()  # -inf, then NaN
            tape.gradients(y.sum(), x)
        assert told(watcher) == [("multiply", False, 0, True, "NaN"), ("sum", False, 0, False, "NaN"), ("log", True, 0, True, "NaN")]
        assert [a.op.where for a in watcher.found if a.op.name != "sum"] == [(__file__, where)] * 2
        assert f"{where}" in shown(watcher)
        watcher.reset()
        assert watcher.found == []
    watcher = NaNWatcher(inf=True)
    with watcher:
        tnp.log(x) + x
    assert told(watcher) == [("log", False, 0, True, "inf"), ("add", False, 0, False, "inf")]


def test_a_watcher_in_a_function_of_jax_reports_when_it_runs():
    watcher = NaNWatcher()

    @jax.jit
    def slope(x):
        return tape.grad(lambda v: tnp.sqrt(v) * 0.0)(x)

    with watcher:
        slope(1.0)
        jax.effects_barrier()
        assert watcher.found == []
    slope(0.0)
    jax.effects_barrier()
    assert told(watcher) == [("sqrt", True, 0, True, "NaN")]


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("create_graph", [False, True])
def test_detect_anomaly_names_the_op_the_side_and_the_line(create_graph):
    x, w = tape.Variable(0.0), tape.Variable(1.0)
    x.grad = 7.0
    for _ in range(2):
        with tape.detect_anomaly():
            y, where = tnp.sqrt(x), line()
            root = y * 0.0 + w
            with pytest.raises(
                NonFiniteError, match=f"backward of sqrt, recorded at {__file__}:{where}, gave NaN .*from gradients without"
            ):
                root.backward(create_graph=create_graph)
            assert float(x.grad) == 7
            assert w.grad is None
        here = line() + 2
        with tape.detect_anomaly(), pytest.raises(NonFiniteError, match=f"log, recorded at {__file__}:{here}, gave NaN in output 0"):
            tnp.log(x - 1)
    (x * w).backward()
    assert float(w.grad) == 0


def test_a_watcher_names_the_position_of_what_it_found():
    x = tape.Variable(0.0)
    with NaNWatcher(inf=True) as watcher:
        tape.gradients(1.0 / x, x)
    assert [(a.backward, a.position) for a in watcher.found] == [(False, 0), (True, 1)]


def test_what_a_hook_notes_of_ops_is_of_one_thread():
    nesting, found = showing.Nesting(), []
    nesting.stack.append(["sin", 1])

    def other():
        nesting.stack.append(["cos", 2])
        found.append(nesting.leave("sin"))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert (found, nesting.leave("sin")) == ([None], ["sin", 1])


def test_detect_anomaly_lets_infinities_pass_unless_told():
    x = tape.Variable([1.0, 2.0])

    def masked():
        return tape.gradients(tape.nn.softmax(tnp.where(x > 1.5, x, -tnp.inf))[1], x)

    with tape.detect_anomaly():
        masked()
    with pytest.raises(NonFiniteError, match="gave inf"), tape.detect_anomaly(inf=True):
        1 / (x - 1)


def test_detect_anomaly_decorates_and_ends():
    @tape.detect_anomaly()
    def divide(x):
        return x / x

    x = tape.Variable(0.0)
    with pytest.raises(NonFiniteError):
        divide(x)
    assert np.isnan(float(x / x))


@pytest.mark.parametrize("first", [False, True])
def test_detect_anomaly_in_compiled_functions(first):
    x = tape.Variable(np.float32(0))

    @tape.jit
    def slope():
        return tape.gradients(tnp.sqrt(x) * 0, x)

    if first:
        assert np.isnan(float(slope()))
    with tape.detect_anomaly(), pytest.raises(NonFiniteError, match=f"backward of sqrt, recorded at {__file__}"):
        slope()
    assert np.isnan(float(slope()))


@pytest.mark.filterwarnings("ignore")
def test_detect_anomaly_in_a_function_of_jax_raises_when_it_runs(capfd):
    @jax.jit
    def slope(x):
        return tape.grad(lambda v: tnp.sqrt(v) * 0.0)(x)

    with tape.detect_anomaly():
        slope(1.0)
        with pytest.raises(jax.errors.JaxRuntimeError, match="backward of sqrt, recorded at"):
            jax.block_until_ready(slope(0.0)), jax.effects_barrier()
    capfd.readouterr()


# -- the tests' power -----------------------------------------------------------------------------------------------------------


BUGS = {
    "a timer that does not wait": (timing, "wait", lambda variables: True, test_a_timer_waits_for_each_op_and_tells_forward_from_backward),
    "counting elements": (
        timing.MemoryCounter,
        "_on_results",
        lambda self, op, made, made_by=timing.MemoryCounter._on_results, **side: made_by(
            self, op, [v for v in made if v is not None][:1], **side
        ),
        test_memory_per_op_is_what_the_shapes_say,
    ),
    "a bound scaled by 1.001": (
        clipping,
        "_by_norm",
        lambda bound, by_norm=clipping._by_norm: by_norm(bound * 1.001),
        lambda: test_clipping_by_value_and_by_norm_after_each_op(0),
    ),
    "no look at what a VJP was given": (
        anomalies.NaNWatcher,
        "_dirty",
        lambda self, given: np.bool_(True),
        test_a_watcher_names_where_nans_are_born,
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_found(bug, monkeypatch):
    where, name, wrong, test = BUGS[bug]
    with monkeypatch.context() as patched:
        patched.setattr(where, name, wrong)
        with pytest.raises(AssertionError):
            test()


def test_an_op_with_several_such_outputs_is_one_anomaly():
    with NaNWatcher(inf=True) as watcher:
        tnp.divmod(tape.Variable([1.0, 2.0]), tape.constant([0.0, 1.0]))
    (found,) = watcher.found
    assert (found.op.name, found.position, found.what, found.born) == ("divmod", 0, "inf", True)


def test_a_norm_over_many_halves_is_no_infinity():
    x = tape.Variable(np.zeros(70_000, "float16"))
    with GradientClipper(norm=1.0):
        (x * 1).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 70_000**-0.5, rtol=2e-3)


def test_rows_of_memory_begin_with_what_made_most_bytes_both_ways():
    x, held = tape.Variable(np.ones(20, "float32")), tape.constant(np.ones(15, "float32"))
    with MemoryCounter() as memory:
        tnp.sin(held)
        x.sum().backward()
    assert [(row.op, row.output_bytes, row.cotangent_bytes) for row in memory.rows()] == [("sum", 4, 80), ("sin", 60, 0)]


def test_a_typical_time_is_that_of_median_calls_without_the_first():
    assert [timing._side(times) for times in ([9.0, 1.0, 3.0], [4.0], [])] == [(3, 13.0, 2.0), (1, 4.0, 4.0), (0, 0, 0.0)]
    assert timing.TimerRow("sin", 2, 0.0, 3.0, 4, 0.0, 5.0).typical == 26


@pytest.mark.parametrize(("value", "norm"), [([3 + 4j, 0], 5), (np.float16([300, 400]), 500), ([True, False, True], 2**0.5), ([3, 4], 5)])
def test_norms_are_those_of_all_kinds_of_numbers(value, norm):
    np.testing.assert_allclose(showing.norm(jnp.asarray(value)), norm, rtol=1e-6)
    assert showing.norm(jax.random.key(0)) is None
