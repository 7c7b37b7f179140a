"""Sweeps of what was looked at before, found again: by the recorder in C as one call, with what the recorder in Python does."""

import gc
import sys
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import interop.optax
import tape
import tape.numpy as tnp
from tape import layout
from tape.graph.scope import LOCAL
from tape.programs import execution, foresight, program
from tape.sweeps import differentiation
from tests.platforms import at_home
from tests.recording.test_steps_in_c import A, called, native, settled

B = np.linspace(0.4, 1.6, 29, dtype=np.float32)


M = np.random.default_rng(0).normal(size=(29, 29), scale=0.2).astype(np.float32)
CONSTANT = tape.constant(M)


def loss_of(x, w):
    h = tnp.tanh(CONSTANT @ (x * w))  # what is not cheap is kept
    return (h * tnp.exp(h) * 1.5).sum()


def right(x=A, w=B):
    def loss(x, w):
        h = jnp.tanh(M @ (x * w))
        return jnp.sum(h * jnp.exp(h) * 1.5)

    return jax.grad(loss, (0, 1))(jnp.asarray(x), jnp.asarray(w))


def leaves():
    return tape.Variable(A), tape.Variable(B)


def looked(x, w):
    y = loss_of(x, w)
    y.item()
    return y


def sweep(y):
    y.backward()


def after_many(x, w):
    """Have a look and a sweep be known, and return what was looked at once more, without gradients."""

    def step():
        x.grad = w.grad = None
        sweep(looked(x, w))
        return x.grad.value, w.grad.value

    for found, wanted in zip(settled(step), right(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    x.grad = w.grad = None
    return looked(x, w)


def check(x, w, times=1.0):
    for found, wanted in zip((x.grad, w.grad), right(), strict=True):
        np.testing.assert_allclose(found.numpy(), times * wanted, rtol=1e-5, atol=1e-5)


@at_home
@native
def test_a_look_before_a_sweep_calls_no_python_but_what_foresees_it():
    x, w = leaves()

    def step():
        x.grad = w.grad = None
        sweep(looked(x, w))
        return x.grad.value

    settled(step)
    names = {name for name in called(step) if name.split(".")[0] not in vars(foresight)}
    assert names <= {"in_trace", "looked", "loss_of", "sweep", "step"}
    check(x, w)


@native
@pytest.mark.parametrize("asks", [tnp.isnan, lambda y: y > 1e9, lambda y: tnp.abs(y) < 0])
def test_a_sweep_after_a_look_at_what_was_made_of_its_root_calls_no_python_either(asks):
    x, w = leaves()

    def step():
        x.grad = w.grad = None
        with tape.no_grad():
            w.__imul__(1.0)  # so that not all leaves are read by the sweep
        y = loss_of(x, w)
        if asks(y):
            raise AssertionError
        return called(lambda: sweep(y))

    for _ in range(100):
        names = step()
        check(x, w)
    assert not {"backward", "Variable.backward", "Sweep.run"} & set(names), names


@native
def test_a_sweep_after_a_look_is_part_of_the_update():
    x, w = leaves()
    optimizer = interop.optax.Optimizer([x, w], optax.sgd(0.0))

    def step():
        sweep(looked(x, w))
        optimizer.step()
        found = x.grad.value, w.grad.value
        optimizer.zero_grad()
        return found

    for found, wanted in zip(settled(step), right(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    before = tape.stats().hits
    names = called(step)
    assert tape.stats().hits - before == 2
    assert not {"run_pending", "_run", "Sweep.run", "backward"} & set(names)


def trained(look, turns=60):
    x, w = leaves()
    optimizer = interop.optax.Optimizer([x, w], optax.adam(1e-2))
    seen = []
    for k in range(turns):
        y = loss_of(x, w) + w.sum() * (1.0 + (k == turns // 2))
        if look:
            y.item()
        sweep(y)
        if k == turns - 3:
            z = (x * 2.0 + w).sum()  # recorded where the update is to be
            np.testing.assert_allclose(z.value, 2 * x.value.sum() + w.value.sum(), rtol=1e-5)
            sweep(z)
        optimizer.step()
        optimizer.zero_grad()
        seen.append((x.value, w.value))
    return seen


def test_looks_change_no_training():
    for found, wanted in zip(trained(look=True), trained(look=False), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("how", ["dropped", "other", "used", "mode", "hook"])
def test_a_sweep_that_waits_for_an_update(how):
    """What is pending for an optimizer is recorded on as what any sweep has written."""
    x, w = leaves()
    optimizer = interop.optax.Optimizer([x, w], optax.sgd(0.5))

    def step():
        y = looked(x, w)
        sweep(y)
        return y

    def train():
        step()
        optimizer.step()
        optimizer.zero_grad()
        x.value, w.value = A, B
        return x.value

    settled(train)
    seen = []
    handle = x.register_post_accumulate_grad_hook(lambda v: seen.append(v.grad is not None)) if how == "hook" else None
    y = step()
    if how == "dropped":
        optimizer.zero_grad()
        assert x.grad is None
        step()
    elif how == "other":
        z = (x * x).sum()
        sweep(z)
        np.testing.assert_allclose(x.grad.numpy(), right()[0] + 2 * A, rtol=1e-5, atol=1e-5)
        x.grad = x.grad - tape.constant(2 * A)
    elif how == "used":
        with pytest.raises(tape.errors.ReleasedTapeError):
            (y * 2.0).backward()
        with pytest.raises(tape.errors.UnrecordedGradientError):
            (x.grad * x).sum().backward()
        optimizer.zero_grad()
        step()
    elif how == "mode":
        with tape.no_grad():
            optimizer.zero_grad()
        y = looked(x, w)
        with tape.no_grad():
            sweep(y)
        assert (x * 1.0).requires_grad
    else:
        assert seen == [True]
        handle.remove()
    np.testing.assert_allclose(x.grad.numpy(), right()[0], rtol=1e-5, atol=1e-5)
    optimizer.step()
    np.testing.assert_allclose(x.value, A - 0.5 * right()[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(w.value, B - 0.5 * right()[1], rtol=1e-5, atol=1e-5)


class Seen(tape.OpHook):
    def __init__(self):
        self.ops = []

    def backward_preprocess(self, op, output_grads):
        self.ops.append(str(op))


OTHERWISE = [
    "sums",
    "hook",
    "post hook",
    "hook on a result",
    "retained",
    "assigned",
    "seed",
    "kept",
    "recorded",
    "gradients",
    "inputs",
    "ignored",
    "op hooks",
    "open tape",
    "pending",
    "no grad",
    "eager",
    "bits",
    "thread",
    "packed",
    "one leaf less",
    "reproducible",
    "transformed",
    "another line",
]


@pytest.mark.parametrize("what", OTHERWISE)
def test_a_sweep_after_a_look_that_is_not_the_common_one(what):
    x, w = leaves()
    y = after_many(x, w)
    if what == "sums":
        sweep(y)
        sweep(looked(x, w))
        check(x, w, 2.0)
        return
    if what == "hook":
        handle = x.register_hook(lambda g: g * 3.0)
        sweep(y)
        handle.remove()
        np.testing.assert_allclose(x.grad.numpy(), 3 * right()[0], rtol=1e-5, atol=1e-5)
        x.grad = w.grad = None
        sweep(looked(x, w))
    elif what == "post hook":
        seen = []
        handle = w.register_post_accumulate_grad_hook(lambda v: seen.append(v.grad.numpy()))
        sweep(y)
        handle.remove()
        np.testing.assert_allclose(seen, [right()[1]], rtol=1e-5, atol=1e-5)
    elif what == "hook on a result":
        y.register_hook(lambda g: g * 2.0)
        sweep(y)
        check(x, w, 2.0)
        return
    elif what == "retained":
        y.retain_grad()
        sweep(y)
        assert y.grad.numpy() == 1.0
    elif what == "assigned":
        y.grad = tape.constant(2.0)
        sweep(y)
        check(x, w, 2.0)
        return
    elif what == "seed":
        y.backward(tape.constant(4.0))
        check(x, w, 4.0)
        return
    elif what == "kept":
        y.backward(retain_graph=True)
        check(x, w)
        x.grad = w.grad = None
        sweep(y)
    elif what == "recorded":
        y.backward(create_graph=True)
        check(x, w)
        assert x.grad.requires_grad
        y = looked(x, w)
        x.grad = w.grad = None
        sweep(y)
    elif what == "gradients":
        for found, wanted in zip(tape.gradients(y, (x, w)), right(), strict=True):
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-5)
        sweep(looked(x, w))
    elif what == "inputs":
        y.backward(inputs=[x])
        assert w.grad is None
        x.grad = None
        sweep(looked(x, w))
    elif what == "ignored":
        y.backward(ignore=[x])
        assert x.grad is None
        w.grad = None
        sweep(looked(x, w))
    elif what == "op hooks":
        seen = Seen()
        with tape.hooks(seen):
            sweep(y)
        assert seen.ops
    elif what == "open tape":
        with tape.Tape() as t:
            sweep(y)
        assert len(t)
    elif what == "pending":
        z = tnp.cos(x) * 2.0
        sweep(y)
        assert z._segment.run is not None  # as everything that a sweep finds
        np.testing.assert_allclose(z.numpy(), 2 * np.cos(A), rtol=1e-6)
        (z * 1.0).sum().backward(inputs=[z])
    elif what == "no grad":
        with tape.no_grad():
            sweep(y)
        assert (x * 2.0).requires_grad
    elif what == "eager":
        with tape.eager():
            sweep(y)
    elif what == "bits":
        with jax.enable_x64(True):
            sweep(y)
        assert x.grad.dtype == np.float32
    elif what == "thread":
        thread = threading.Thread(target=sweep, args=(y,))
        thread.start()
        thread.join()
    elif what == "packed":
        with tape.saved_value_hooks(lambda v: (v,), lambda v: v[0]):
            y = looked(x, w)
        sweep(y)
        check(x, w)
        x.grad = w.grad = None
        y = looked(x, w)
        with tape.saved_value_hooks(lambda v: v, lambda v: v):
            sweep(y)
    elif what == "one leaf less":
        gone = tape.Variable(B)
        for _ in range(9):
            sweep(looked(x, gone))
            x.grad = gone.grad = None
        y = looked(x, gone)
        del gone
        gc.collect()
        sweep(y)
        w.grad = tape.constant(right()[1])
    elif what == "reproducible":
        with tape.reproducible():
            sweep(y)
    elif what == "transformed":
        jax.jit(lambda a: (sweep(y), a)[1])(A)
    else:
        tape.backward(y)
    check(x, w)
    assert LOCAL.segment() is None or what in {"bits", "packed"}
    with pytest.raises(tape.errors.ReleasedTapeError):
        y.backward()


def test_what_was_looked_at_is_released_once():
    x, w = leaves()
    y = after_many(x, w)
    sweep(y)
    with pytest.raises(tape.errors.ReleasedTapeError):
        sweep(y)
    check(x, w)


@pytest.mark.parametrize("first", [False, True])
def test_another_root_of_what_was_looked_at_is_swept_as_before(first):
    x, w = leaves()

    def step():
        x.grad = w.grad = None
        shared = tnp.sin(x)
        y, z = (shared * w).sum(), tnp.cos(x).sum()
        y.item()
        z.item()
        sweep(z if first else y)
        found = x.grad.value
        sweep(y if first else z)
        return found, x.grad.value

    found, both = settled(step)
    np.testing.assert_allclose(found, -np.sin(A) if first else np.cos(A) * B, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(both, np.cos(A) * B - np.sin(A), rtol=1e-5, atol=1e-6)


def test_a_rule_of_the_users_counts_after_a_look():
    x, w = leaves()
    y = after_many(x, w)
    own = tape.rules.table.lookup(jax.lax.exp_p).vjp
    try:
        tape.rules.defvjp(jax.lax.exp_p, lambda ct, out, x, **_: 0.0 * ct)
        sweep(y)
        h = np.tanh(M @ (A * B))
        np.testing.assert_allclose(x.grad.numpy(), 1.5 * B * (M.T @ (np.exp(h) * (1 - h * h))), rtol=1e-4, atol=1e-5)
    finally:
        tape.rules.defvjp(jax.lax.exp_p, own)
    x.grad = w.grad = None
    sweep(looked(x, w))
    check(x, w)


@native
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, RuntimeError])
def test_a_sweep_after_a_look_whose_run_is_stopped_changes_nothing(monkeypatch, error):
    x, w = leaves()
    y = after_many(x, w)
    left = []

    def broken(*_):
        raise error

    compiled = [o for o in gc.get_objects() if isinstance(o, execution.Program) and o.compiled]
    with monkeypatch.context() as patched:
        for each in compiled:
            patched.setattr(each, "executable", broken)
        patched.setattr(program, "_run", lambda *args: left.append(args))
        if error is RuntimeError:  # entry by entry, then
            sweep(y)
        else:
            with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else tape.errors.OutOfMemoryError):
                sweep(y)
        assert not left, "it was not the run of the recorder in C"
    if error is not RuntimeError:
        assert x.grad is None
        assert y._segment.released == frozenset()
        sweep(y)
    check(x, w)


@native
def test_what_a_looked_at_value_kept_is_freed_without_the_collector():
    x, w = leaves()

    def step():
        x.grad = w.grad = None
        y = looked(x, w)
        segment = y._segment
        kept = [weakref.ref(cell[0]) for cell in segment.run.saved.values() if cell is not y._cell]
        sweep(y)
        assert not segment.leaves
        assert not segment.run.saved
        return x.grad.value, kept, weakref.ref(segment), weakref.ref(x.grad._segment)

    settled(step)
    gc.disable()
    try:
        _, kept, segment, written = step()
        assert kept
        assert not any(ref() for ref in kept)
        assert segment() is None
        assert written() is not None
        x.grad = w.grad = None
        assert written() is None
    finally:
        gc.enable()


@native
@pytest.mark.parametrize("update", [False, True])
def test_nothing_is_kept_of_sweeps_after_looks(update):
    x, w = leaves()
    optimizer = interop.optax.Optimizer([x, w], optax.sgd(0.0)) if update else None

    def step():
        sweep(looked(x, w))
        if optimizer is not None:
            optimizer.step()
        found = x.grad.value
        x.grad = w.grad = None
        return found

    settled(step)
    objects = x, w, x._extra, x._extra.node, x._place, x._place.kind, None.__class__, LOCAL.scope
    found = []
    for _ in range(5):
        for _ in range(30):
            step()
        gc.collect()
        found.append([len(tape.stats().segments), *[sys.getrefcount(o) for o in objects]])
    assert found[-1] == found[2]


def test_threads_look_and_sweep_to_the_same_leaves():
    x, w = leaves()
    after_many(x, w)
    failed, turns = [], 40

    def work():
        try:
            for _ in range(turns):
                sweep(looked(x, w))
        except BaseException as e:  # noqa: BLE001 - told below
            failed.append(e)

    x.grad = w.grad = None
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    np.testing.assert_allclose(x.grad.numpy(), 3 * turns * right()[0], rtol=1e-4, atol=1e-4)


@native
def test_a_value_that_is_held_is_what_a_sweep_begins_at_later():
    """A segment that other sweeps still go through keeps what they read."""
    x, w = leaves()

    def step():
        x.grad = w.grad = None
        h, other = tnp.tanh(x * w), tnp.sin(x)
        y = (h * 1.5).sum()
        y.item()
        sweep(y)
        return x.grad.value, other

    found, other = settled(step)
    np.testing.assert_allclose(found, 1.5 * (1 - np.tanh(A * B) ** 2) * B, rtol=1e-5, atol=1e-6)
    other.sum().backward(inputs=[x])
    np.testing.assert_allclose(x.grad.numpy(), found + np.cos(A), rtol=1e-5, atol=1e-6)


def test_the_recorder_does_what_python_does(monkeypatch):
    def walk():
        x, w = leaves()
        seen, numbers = [], []
        for k in range(60):
            y = looked(x, w)
            if k % 3:
                sweep(y)
            else:
                y.backward(retain_graph=False)
            g = x.grad
            seen.append((g._segment.run, g._segment.leaves, g._segment.origins, g._place.kind, g.requires_grad, g.is_leaf))
            seen.append((y._segment.run, y._segment.leaves, sorted(y._segment.origins), sorted(y._segment.released), LOCAL.segment()))
            numbers.append((y.numpy(), g.numpy()))
            x.grad = w.grad = None
        return seen, numbers

    found, numbers = walk()
    if layout.NATIVE is not None:
        layout.NATIVE.sweeping(*[None] * len(differentiation._AGAIN))
    try:
        seen, others = walk()
        assert seen == found
        for one, other in zip(numbers, others, strict=True):
            np.testing.assert_allclose(one[0], other[0], rtol=1e-6)
            np.testing.assert_allclose(one[1], other[1], rtol=1e-6, atol=1e-7)  # programs round otherwise when more is known
    finally:
        if layout.NATIVE is not None:
            layout.NATIVE.sweeping(*differentiation._AGAIN)
