"""Contract 13: a sweep that fails changes nothing."""

import contextlib
import inspect
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core.primitives import sin_p

import tape
import tape.numpy as tnp
from tape import layout, locks
from tape.errors import GradientDtypeError, GradientShapeError, RuleError
from tape.recording import entering
from tape.sweeps import accumulation, differentiation, written
from tape.sweeps.sweep import Sweep
from tests.agreement import close
from tests.contracts.counting import BackwardError, counted, failing

A, B = np.array([1.0, -2.0, 0.5], np.float32), np.array([3.0, 0.25, -1.0], np.float32)


def equal(variable, expected):
    np.testing.assert_array_equal(np.asarray(variable.value), np.asarray(expected, variable.dtype))


@contextlib.contextmanager
def rule(primitive, fun):
    """Give a primitive another VJP rule for a while."""
    old = tape.rules.lookup(primitive)
    tape.rules.defvjp(primitive, fun)
    try:
        yield
    finally:
        tape.rules.defvjp(primitive, old.vjp)


# -- 13: all or nothing ------------------------------------------------------------------------------------------------------


def scene():
    """Two leaves with gradients already there, and a root that reaches both through a sine."""
    x, w = tape.Variable(A), tape.Variable(B)
    x.grad = B
    h = tnp.sin(x)
    h.retain_grad()
    y = (h * w).sum()
    y.grad = 2.0
    return x, w, h, y


def unchanged_and_usable(x, w, h, y):
    equal(x.grad, B)
    assert w.grad is h.grad is None
    equal(y.grad, 2)
    y.backward()
    close(x.grad, B + 2 * B * np.cos(A))
    close(w.grad, 2 * np.sin(A))
    close(h.grad, 2 * B)
    assert y.grad is None


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("at", ["leaf", "last leaf", "inner", "root"])
def test_contract_13_a_failing_hook(at):
    x, w, h, y = scene()
    handle = {"leaf": x, "last leaf": w, "inner": h, "root": y}[at].register_hook(failing)
    with pytest.raises(BackwardError):
        y.backward()
    handle.remove()
    unchanged_and_usable(x, w, h, y)


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize(("wrong", "error"), [(lambda g: g[:1], GradientShapeError), (lambda g: g.astype("float16"), GradientDtypeError)])
def test_contract_13_a_hook_that_returns_what_does_not_fit(wrong, error):
    x, w, h, y = scene()
    handle = h.register_hook(wrong)
    with pytest.raises(error, match="hook"):
        y.backward()
    handle.remove()
    unchanged_and_usable(x, w, h, y)


@pytest.mark.usefixtures("tier")
def test_contract_13_a_failing_function():
    x, _w, _h, y = scene()
    broken = [True]
    apply, _ = counted(lambda g: failing(g) if broken[0] else g)
    z = apply(y)
    y.grad = None
    z.grad = 2.0
    with pytest.raises(BackwardError):
        z.backward()
    broken[0] = False
    equal(z.grad, 2)
    y.grad = 2.0  # no root: left alone
    z.backward()
    equal(y.grad, 2)
    close(x.grad, B + 2 * B * np.cos(A))


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda ct, out, x, **_: failing(ct), BackwardError),
        (lambda ct, out, x, **_: (ct, ct), RuleError),
        (lambda ct, out, x, **_: (ct[:2],), GradientShapeError),
        (lambda ct, out, x, **_: (ct.astype(jnp.float16),), GradientDtypeError),
    ],
)
def test_contract_13_a_failing_rule(wrong, error):
    x, w, h, y = scene()
    with rule(sin_p, wrong), pytest.raises(error):
        y.backward()
    unchanged_and_usable(x, w, h, y)


@pytest.mark.filterwarnings("ignore")
def test_contract_13_a_run_that_fails_after_the_sweep(capfd):
    """backward() runs what is pending at its end: if that fails, nothing is released and no .grad was set."""
    x, w = tape.Variable(0.0), tape.Variable(2.0)
    w.grad = 1.0
    y = tnp.sqrt(x * x) + w * w
    for _ in range(2):
        with jax.debug_nans(True), pytest.raises(FloatingPointError):
            y.backward()
        assert x.grad is None
        equal(w.grad, 1)
    y.backward()
    equal(w.grad, 5)


def test_contract_13_failures_leave_modes_as_they_were():
    for create in (False, True):
        x, _, h, y = scene()
        h.register_hook(failing)
        with tape.no_grad(), pytest.raises(BackwardError):
            tape.gradients(y, x, create_graph=create)
        assert (x * 2).requires_grad
        with tape.no_grad():
            assert not (x * 2).requires_grad


# -- Ctrl-C while gradients are set -------------------------------------------------------------------------------------------


def interrupted(code, number, call):
    """Call something, interrupt a function at its line of this number, and tell whether it came so far."""
    lines = 0

    def on_line(frame, event, arg):
        nonlocal lines
        del frame, arg
        if event == "line":
            if lines == number:
                raise KeyboardInterrupt
            lines += 1
        return on_line

    old = sys.gettrace()
    sys.settrace(lambda frame, event, arg: on_line if frame.f_code is code else None)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(old)
    return False


@pytest.mark.usefixtures("sweeps_through_python")
@pytest.mark.parametrize("there", [True, False], ids=["added", "first"])
def test_contract_13_ctrl_c_while_gradients_are_set_changes_all_or_none(there, monkeypatch):
    """At every line of the function that sets them; the one in C cannot be interrupted."""
    monkeypatch.setattr(accumulation, "_at_once", layout.not_here)
    struck = 0
    for number in range(40):
        leaves = [tape.Variable(3.0) for _ in range(3)]
        for v in leaves:
            v.grad = 10.0 if there else None
        y = leaves[0] * leaves[1] + leaves[2] * leaves[2]
        float(y)  # so that the sweep is written anew
        came = interrupted(accumulation._assigned.__code__, number, y.backward)
        before, after = ([10.0] * 3, [13.0, 13.0, 16.0]) if there else ([None] * 3, [3.0, 3.0, 6.0])
        found = [None if v.grad is None else float(v.grad) for v in leaves]
        assert found in ([before, after] if came else [after])
        if not came:
            break
        struck += 1
    assert struck >= 5


FUNCTIONS = [f for f in vars(accumulation).values() if inspect.isfunction(f) and f.__module__ == accumulation.__name__]
FUNCTIONS += [differentiation._accumulated_again, written.asked, written.Written.enter]


@pytest.mark.parametrize("function", [*FUNCTIONS, locks.holding], ids=lambda f: f.__name__)
@pytest.mark.parametrize("way", ["first", "added", "replayed"])
def test_contract_13_ctrl_c_at_any_line_leaves_no_lock_held(function, way):
    """What comes after it, in this thread and in another one, finds every lock let go of and the tape as it was."""
    x, w = tape.Variable(3.0), tape.Variable(2.0)

    def step():
        y = x * w + x
        if way != "replayed":
            float(y)
        y.backward()

    def whole():
        for v in (x, w):
            v.grad = 10.0 if way == "added" else None
        step()
        begun = 10.0 if way == "added" else 0.0
        return [float(x.grad) - begun, float(w.grad) - begun]

    for _ in range(4):
        whole()
    for number in range(100):
        for v in (x, w):
            v.grad = 10.0 if way == "added" else None
        came = interrupted(function.__code__, number, step)
        assert accumulation._ASSIGNING.acquire(timeout=5), "a lock is held"
        accumulation._ASSIGNING.release()
        assert (x.grad is None) == (w.grad is None)
        if not came:
            break
        assert whole() == [3.0, 3.0]
        found = []
        thread = threading.Thread(target=lambda found=found: found.append(whole()), daemon=True)
        thread.start()
        thread.join(5)
        assert found == [[3.0, 3.0]]
    assert not came


def test_contract_13_ctrl_c_while_a_seed_enters_leaves_the_tape_as_it_was():
    """At every line of the function that writes a known sweep again: what is recorded next to it afterwards has its values and gradients."""
    values = np.array([1.0, 2.0, 3.0], np.float32)
    x = tape.Variable(values)

    def recorded():
        x.grad = None
        seed = tape.constant(np.array([1.0, 10.0, 100.0], np.float32))
        return tape.numpy.sin(x) * 2.0, seed

    for _ in range(4):
        y, seed = recorded()
        y.backward(seed)
    struck = 0
    for number in range(40):
        y, seed = recorded()
        came = interrupted(written.Written.enter.__code__, number, lambda y=y, seed=seed: y.backward(seed))
        if not came:
            break
        assert x.grad is None
        struck += 1
        np.testing.assert_allclose(tape.gradients(y, x, seed, retain_graph=True).value, np.array([2, 20, 200]) * np.cos(values), rtol=1e-5)
        z = y * x
        np.testing.assert_allclose(z.value, 2 * np.sin(values) * values, rtol=1e-5)
        z.sum().backward()
        np.testing.assert_allclose(x.grad.value, 2 * np.cos(values) * values + 2 * np.sin(values), rtol=1e-5)
    assert struck >= 5


def test_contract_13_ctrl_c_while_a_leaf_enters_leaves_its_gradient_alone():
    """The place that it was to have is taken by what is recorded next, whose gradient is none of its own."""
    x, w = tape.Variable(3.0), tape.Variable(2.0)
    struck = 0
    for number in range(40):
        y = w * 2.0
        segment, before = y._segment, y._segment.state
        interrupted(entering.enter.__code__, number, lambda segment=segment: entering.place_in(segment, x))
        if segment.state is not before:
            break
        h = tnp.sin(y)
        h.retain_grad()
        (h * h).backward()
        assert x.grad is None
        np.testing.assert_allclose(h.grad.value, 2 * np.sin(4.0), rtol=1e-5)
        struck += 1
    assert struck >= 8


def test_contract_13_ctrl_c_while_parts_are_marked_as_released_releases_none():
    x = tape.Variable(2.0)
    for number in range(7):  # lines of it, before what is kept goes
        y = x * 3.0
        float(y)
        z = y * x
        float(z)  # two parts of the tape
        assert interrupted(Sweep.releasing.__wrapped__.__code__, number, lambda z=z: tape.gradients(z, x))
        assert float(tape.gradients(z, x)) == 12.0
