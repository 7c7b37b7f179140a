"""An entry that fails when it runs takes nothing else with it, and says on which line it was recorded."""

import contextlib
import pickle
import re
import signal
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp
from tape.errors import ExecutionError, NonFiniteError, OutOfMemoryError, TapeError, TapeRuntimeError
from tape.graph import trie
from tape.graph.scope import LOCAL
from tape.programs import execution, failures

A = np.array([1.0, -2.0, 0.5], np.float32)

pytestmark = pytest.mark.filterwarnings("ignore:.*Invalid (nan|inf)")


class Switch:
    """A JAX function with a callback that raises while ``error`` is set."""

    def __init__(self):
        self.error = None
        self.calls = 0
        self.run = interop.lift(self._call)  # an attribute, so that the line is its caller's

    def _call(self, x):
        return jax.pure_callback(self._host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def _host(self, x):
        self.calls += 1
        if self.error is not None:
            raise self.error
        return np.asarray(x) + 1


def here(offset=0):
    return f"{__file__}:{sys._getframe(1).f_lineno + offset}"


@pytest.fixture(params=["interpreted", "compiled"])
def known(request):
    """How often the structure was met before; what other tests met is forgotten."""
    trie._ROOTS.clear()
    trie._count = 0
    return 4 if request.param == "compiled" else 0


def rehearsed(scene, known):
    """Record the scene without an error first, where its structure is to be known."""
    switch = Switch()
    for _ in range(known):
        for v in scene(switch)[1]:
            v.value
    switch.error = ValueError("boom")
    return switch


# -- looking -----------------------------------------------------------------------------------------------------------------


def scene(switch):
    x = tape.Variable(A)
    before = tnp.sin(x)
    bad = switch.run(before.detach())
    where = here(-1)
    after = tnp.cos(bad) * 2
    beside = tnp.exp(before)
    return where, (before, bad, after, beside)


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_only_what_depends_on_a_raising_callback_has_no_value(known, first):
    switch = rehearsed(scene, known)
    where, made = scene(switch)
    before, bad, after, _ = made
    for v in (made[first], *made, *made):
        if v is bad or v is after:
            with pytest.raises(ExecutionError, match=re.escape(where)) as caught:
                v.value
            assert "boom" in str(caught.value)
            assert isinstance(caught.value, RuntimeError)
            assert caught.value.__cause__ is not None
        else:
            np.testing.assert_allclose(v.value, np.sin(A) if v is before else np.exp(np.sin(A)), rtol=1e-6)
    switch.error = None
    again = scene(switch)[1]
    np.testing.assert_allclose(again[2].value, np.cos(np.sin(A) + 1) * 2, rtol=1e-6)


def test_a_failed_value_cannot_be_used_and_says_why(known):
    switch = rehearsed(scene, known)
    where, (before, bad, after, _) = scene(switch)
    with pytest.raises(ExecutionError):
        float(after.sum())
    for use in (lambda: bad + 1, lambda: tnp.stack([before, after]), lambda: tape.backward(tape.Variable(A) @ bad), lambda: repr(bad)):
        with pytest.raises(ExecutionError, match=re.escape(where)):
            use()
    np.testing.assert_allclose((before + 1).value, np.sin(A) + 1, rtol=1e-6)


def test_two_failing_entries_are_told_apart(known):
    one, two = Switch(), Switch()

    def both():
        x = tape.constant(A)
        return one.run(x), here(), two.run(x), here(), x * 3

    for _ in range(known):
        a, _, b, _, c = both()
        a.value, b.value, c.value
    one.error, two.error = ValueError("first"), ValueError("second")
    a, at_a, b, at_b, c = both()
    for v, at, text in ((a, at_a, "first"), (b, at_b, "second")):
        with pytest.raises(ExecutionError, match=re.escape(at)) as caught:
            v.value
        assert text in str(caught.value)
    np.testing.assert_array_equal(c.value, 3 * A)


def test_an_error_that_does_not_come_back_is_none():
    """What fails as a part of a program and then does not on its own (a compiler's error) has its value."""
    x = tape.Variable(A)

    def make():
        return tnp.tanh(x) * 7

    for _ in range(4):
        make().value

    def refusing(*leaves):
        msg = "INTERNAL: compiler"
        raise RuntimeError(msg)

    y = make()
    pending = y._segment
    programs = [known for known in pending.state._cache.values() if isinstance(known, execution.Program)]
    for compiled in programs:
        assert compiled.executable is not None
        compiled.executable = refusing
    try:
        np.testing.assert_allclose(y.value, 7 * np.tanh(A), rtol=1e-6)
    finally:
        pending.state._cache.clear()
    make().backward(jnp.ones(3))
    np.testing.assert_allclose(x.grad.value, 7 / np.cosh(A) ** 2, rtol=1e-5)


def test_eager_mode_names_the_line_too():
    switch = Switch()
    switch.error = ValueError("boom")
    x = tape.constant(A)
    with tape.eager(), pytest.raises(ExecutionError, match=re.escape(here(1))):
        switch.run(x)
    switch.error = None
    np.testing.assert_array_equal(switch.run(x).value, A + 1)


# -- devices that fail late --------------------------------------------------------------------------------------------------


class Late(Switch):
    """Its failure is known when somebody waits for the results, as where an accelerator calls Python."""

    def _host(self, x):
        self.calls += 1
        self.failed = self.error
        return np.asarray(x) + 1

    def wait(self, results):
        error = self.failed
        if error is not None:
            self.failed = None
            raise error
        return results


@pytest.fixture
def late(monkeypatch):
    switch = Late()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "block_until_ready", switch.wait)
    return switch


def test_a_program_that_calls_python_from_a_device_is_waited_for(known, late):
    for _ in range(known):
        scene(late)[1][3].value
    late.error = ValueError("boom")
    where, (before, bad, after, _) = scene(late)
    for v in (bad, after):
        with pytest.raises(ExecutionError, match=re.escape(where)) as caught:
            v.value
        assert "boom" in str(caught.value)
    np.testing.assert_allclose(before.value, np.sin(A), rtol=1e-6)


def test_so_is_an_entry_in_eager_mode(late):
    late.error = ValueError("boom")
    with tape.eager(), pytest.raises(ExecutionError, match=re.escape(here(1))):
        late.run(tape.constant(A))


def test_a_jitted_step_that_fails_late_assigns_nothing(late):
    w = tape.Variable(A)

    @tape.jit
    def step():
        w.value = late.run(w).value

    for error in (None, None, jax.errors.JaxRuntimeError("boom")):
        late.error = error
        old = w.value
        with contextlib.nullcontext() if error is None else pytest.raises(ExecutionError, match="nothing was assigned"):
            step()
        np.testing.assert_array_equal(w.value, old + (error is None))


# -- side effects ------------------------------------------------------------------------------------------------------------


def test_side_effects_are_not_repeated(known):
    told = []
    switch = Switch()

    @interop.lift
    def tell(x):
        return jax.experimental.io_callback(lambda v: (told.append(float(v)), np.float32(v))[1], jax.ShapeDtypeStruct((), np.float32), x)

    def run():
        x = tape.constant(2.0)
        return tell(x), switch.run(x), x * 2, tnp.sin(x)

    for _ in range(known):
        for v in run():
            v.value
    told.clear()
    switch.error = ValueError("boom")
    effect, bad, fine, sine = run()
    with pytest.raises(ExecutionError):
        bad.value
    assert float(fine) == 4.0
    np.testing.assert_allclose(float(sine), np.sin(2.0), rtol=1e-6)
    with contextlib.suppress(ExecutionError):
        effect.value
    assert len(told) <= 1


# -- sweeping ----------------------------------------------------------------------------------------------------------------


class Checked(tape.Function):
    """Identity whose gradient goes through a callback."""

    switch = None

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return Checked.switch.run(g)


def test_a_sweep_through_what_failed_changes_nothing(known):
    switch = Switch()
    x, w = tape.Variable(A), tape.Variable(A + 1)

    def loss():
        return (x * w * switch.run(w.detach())).sum(), (x * x).sum(), here()

    for _ in range(known):
        bad, fine, _ = loss()
        bad.backward(retain_graph=True)
        fine.backward()
    x.zero_grad()
    w.grad = A
    switch.error = ValueError("boom")
    for _ in range(2):
        bad, fine, where = loss()
        for _ in range(2):
            with pytest.raises(ExecutionError, match=re.escape(where)):
                bad.backward()
            assert x.grad is None
            np.testing.assert_array_equal(w.grad.value, A)
        fine.backward()
        np.testing.assert_allclose(x.grad.value, 2 * A)
        x.zero_grad()
    switch.error = None
    bad, fine, _ = loss()
    bad.backward()
    np.testing.assert_allclose(w.grad.value, A + A * (A + 2), rtol=1e-6)


def test_a_backward_that_fails_when_it_runs_can_be_tried_again(known):
    Checked.switch = switch = Switch()

    def loss(x):
        return (Checked.apply(tnp.sin(x)) * x).sum()

    for _ in range(known):
        loss(tape.Variable(A)).backward()
    x = tape.Variable(A)
    y = loss(x)
    switch.error = ValueError("boom")
    for _ in range(2):
        with pytest.raises(ExecutionError):
            y.backward()
        assert x.grad is None
    np.testing.assert_allclose(float(y), (np.sin(A) * A).sum(), rtol=1e-5)
    switch.error = None
    y.backward()
    np.testing.assert_allclose(x.grad.value, np.sin(A) + (A + 1) * np.cos(A), rtol=1e-5)


def test_an_error_in_a_hook_names_the_line_of_its_op():
    values = np.tile(A, 7)  # of a shape of its own: a structure names the line where it was first recorded, in whichever test
    x = tape.Variable(values)
    y = tnp.sin(x * 1.75)
    where = here(-1)

    def hook(g):
        msg = "in the hook"
        raise LookupError(msg)

    handle = y.register_hook(hook)
    with pytest.raises(LookupError) as caught:
        (y * y).sum().backward()
    assert any(where in note for note in caught.value.__notes__)
    assert x.grad is None
    handle.remove()
    np.testing.assert_allclose(y.value, np.sin(values * 1.75), rtol=1e-6)


def test_an_error_in_a_function_names_the_line_of_its_call():
    class Broken(tape.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            raise LookupError

    x = tape.Variable(A)
    y = Broken.apply(x)
    where = here(-1)
    with pytest.raises(LookupError) as caught:
        y.sum().backward()
    assert any(where in note for note in caught.value.__notes__)


# -- checks of results ---------------------------------------------------------------------------------------------------------


def test_nan_checks_hold_for_the_ops_recorded_under_them(known):
    def run(checked):
        x = tape.Variable(0.0)
        fine = tnp.log(x) * 0
        with jax.debug_nans(checked):
            bad = tnp.log(x) * 0
            where = here(-1)
        return fine, bad, where, x + 1

    for _ in range(known):
        for v in run(checked=False)[:2]:
            v.value
    fine, bad, where, after = run(checked=True)
    for _ in range(2):
        with pytest.raises(NonFiniteError, match=re.escape(where)):
            bad.value
    with pytest.raises(FloatingPointError):
        float(bad)
    assert np.isnan(float(fine))
    assert float(after) == 1.0


# -- nobody to blame -----------------------------------------------------------------------------------------------------------


def interrupted(monkeypatch, error):
    """Have the next run raise, once."""
    raised = []
    original = execution.Program.run

    def run(*args):
        if not raised:
            raised.append(error)
            raise error
        return original(*args)

    monkeypatch.setattr(execution.Program, "run", run)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), RuntimeError("RESOURCE_EXHAUSTED: out of memory")], ids=str)
def test_an_interrupted_flush_can_be_run_again(monkeypatch, error, known):
    x = tape.Variable(A)

    def make():
        return tnp.sin(x) * x

    for _ in range(known):
        make().sum().backward()
    x.zero_grad()
    y = make()
    z = y.sum()
    interrupted(monkeypatch, error)
    kind = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else OutOfMemoryError
    with pytest.raises(kind):
        y.value
    monkeypatch.undo()
    np.testing.assert_allclose((y + 1).value, np.sin(A) * A + 1, rtol=1e-6)
    np.testing.assert_allclose(y.value, np.sin(A) * A, rtol=1e-6)
    z.backward()
    np.testing.assert_allclose(x.grad.value, np.sin(A) + A * np.cos(A), rtol=1e-5)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()], ids=repr)
def test_an_interrupted_backward_can_be_run_again(monkeypatch, error, known):
    x = tape.Variable(A)
    for _ in range(known):
        (tnp.sin(x) * x).sum().backward()
        x.zero_grad()
    y = (tnp.sin(x) * x).sum()
    for _ in range(2):
        interrupted(monkeypatch, error)
        with pytest.raises((KeyboardInterrupt, OutOfMemoryError)):
            y.backward()
        monkeypatch.undo()
        assert x.grad is None
    y.backward()
    np.testing.assert_allclose(x.grad.value, np.sin(A) + A * np.cos(A), rtol=1e-5)


def test_memory_that_is_used_up_in_earnest():
    x = tape.constant(np.ones(3, np.float32))
    huge = tnp.broadcast_to(x[:1], (1 << 22, 1 << 22)) + x[0]
    small = huge[0, :3]
    with pytest.raises(OutOfMemoryError, match=re.escape(__file__)):
        huge.value
    del huge, small
    np.testing.assert_array_equal((x * 2).value, 2 * np.ones(3))


def test_ctrl_c_in_a_callback_leaves_the_segment_pending(known):
    switch = rehearsed(scene, known)
    switch.error = KeyboardInterrupt()
    _, (_, bad, after, _) = scene(switch)
    with pytest.raises(KeyboardInterrupt):
        after.value
    switch.error = None
    np.testing.assert_allclose(bad.value, np.sin(A) + 1, rtol=1e-6)


@pytest.mark.skipif(not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread(), reason="needs a timer")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it may strike a callback of a weak reference
def test_ctrl_c_at_any_moment_leaves_consistent_values():
    """Whatever line of the tape a signal interrupts, what is held has the right value afterwards."""
    x, w = tape.Variable(A), tape.Variable(A + 1)

    def interrupt(_signal, frame):
        if frame.f_code.co_name in {"__del__", "ended"}:
            return  # Python would not pass it on
        while frame is not None and frame.f_code.co_filename != __file__:
            if "/jax/" in frame.f_code.co_filename:
                return  # JAX's own caches do not survive it
            frame = frame.f_back
        raise KeyboardInterrupt

    def step(held):
        held.append((x.detach() * 5, 5 * A))
        h = tnp.sin(x) * w
        held.append((h, np.sin(A) * (A + 1)))
        q, r = tnp.divmod(h, tape.constant(A))
        held.append((q * A + r, np.sin(A) * (A + 1)))
        y = (h * h).sum()
        held.append((y, (np.sin(A) ** 2 * (A + 1) ** 2).sum()))
        y.backward()

    for _ in range(6):
        step([])
    expected = w.grad.value / 6
    x.zero_grad()
    w.zero_grad()
    old = signal.signal(signal.SIGALRM, interrupt)
    interruptions = 0
    try:
        for i in range(300):
            held = []
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 1e-5 + i % 60 * 1.5e-5)
                    step(held)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interruptions += 1
            assert LOCAL.scope.mode == 1
            for v, value in held:
                np.testing.assert_allclose(v.value, value, rtol=1e-5, atol=1e-6)
            assert (x.grad is None) == (w.grad is None)
            if w.grad is not None:
                np.testing.assert_allclose(w.grad.value, expected, rtol=1e-4)
            x.zero_grad()
            w.zero_grad()
    finally:
        signal.signal(signal.SIGALRM, old)
    assert interruptions > 10


@pytest.mark.parametrize("known", [1, 4])
def test_a_cotangent_that_a_sweep_hands_on_has_its_value_where_the_run_has_failed(known, monkeypatch):
    x, w, seed = tape.Variable(A), tape.Variable(A), tape.constant(A * 2)

    def swept():
        y = tnp.sin(x) + w
        y.block_until_ready()
        return tape.gradients(y, [x, w], grad_outputs=[seed])

    def failing(*_):
        raise RuntimeError("INTERNAL: compiler")

    for _ in range(known):
        for gradient, expected in zip(swept(), (A * 2 * np.cos(A), A * 2), strict=True):
            np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-6)
    gradients = swept()
    monkeypatch.setattr(execution.Program, "run", failing)
    for gradient, expected in zip(gradients, (A * 2 * np.cos(A), A * 2), strict=True):
        np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-6)


# -- arrays that are gone -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [contextlib.nullcontext, tape.eager])
def test_an_input_that_was_donated_is_named(mode, known):
    w, donated = tape.Variable(A * 1, name="w"), tape.Variable(jnp.array(A), name="weights")
    for _ in range(known):
        (w * donated).sum().backward()
    jax.jit(lambda a: a + 1, donate_argnums=0)(donated.value)
    gone = (
        rf"multiply, first recorded at {re.escape(__file__)}:\d+, .*: the array of its input 1 \('weights', shape \(3,\), dtype float32\)"
    )
    with pytest.raises(ExecutionError, match=rf"{gone} was deleted, .* donated .*v\.value = array"), mode():
        (w * donated).block_until_ready()
    w.grad = None
    donated.value = A
    (w * donated).sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), A)


@pytest.mark.parametrize("look", [np.asarray, pickle.dumps, format, tape.Variable.numpy, lambda v: v.item(0), lambda v: v.tolist()])
def test_a_variable_whose_array_is_gone_says_so(look):
    v = tape.Variable(jnp.array(A), requires_grad=False, name="weights")
    v.value.delete()
    assert repr(v) == "Variable(<float32[3], deleted>, name='weights')"
    with pytest.raises(TapeRuntimeError, match=r"'weights', shape \(3,\), dtype float32\) was deleted, .*donate a copy"):
        look(v)


# -- the power of these tests ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (failures, "_attempt", lambda entry, operands: failures.Failure(entry, ValueError("boom"))),  # all are taken for failing
        (failures, "_hand_out", lambda *_: None),  # as it was before: the segment stays pending
        (failures.Failure, "error", lambda self: TapeError("somewhere")),
    ],
)
def test_a_wrong_salvage_is_noticed(owner, name, wrong, monkeypatch):
    monkeypatch.setattr(owner, name, wrong)
    with pytest.raises((AssertionError, TapeError, StopIteration)):
        test_only_what_depends_on_a_raising_callback_has_no_value(known=4, first=0)


def test_a_compiled_program_that_runs_out_of_memory_stays_pending():
    line = tape.constant(np.ones(1000, np.float32))
    for _ in range(3):
        huge = tnp.broadcast_to(line, (1000, 1000, 1000, 1000, 1000)) * 2.0
        for _ in range(2):
            with pytest.raises(OutOfMemoryError, match=re.escape(__file__)):
                huge.block_until_ready()
