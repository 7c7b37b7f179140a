"""Random interleavings of recording, looking, dropping, sweeping, rebinding, modes, settings, failures and threads, against a plain model.

The model is eager and has no tape: a value is a NumPy array in float64 together with its Jacobians, which are carried forward.
"""

import contextlib
import functools
import queue
import threading
import weakref

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

import interop
import tape
import tape.numpy as tnp
from tape import modes
from tape.errors import ExecutionError, ReleasedTapeError, TapeError
from tape.programs import failures, program
from tape.recording.record import handle
from tape.sweeps import accumulation, emission

SIZE = 3
LEAVES = (np.array([0.5, -0.25, 0.75]), np.array([-0.5, 0.3, 0.1]))
numbers = st.integers(0, 10**6)


class Entry:
    """A differentiable entry: whether a sweep released it; None where that sweep failed half-way."""

    def __init__(self):
        self.released = False


class Model:
    """What a Variable should be: its value, its Jacobian by each leaf (None: it does not require grad), and whether it cannot be computed.

    ``history`` are the entries that a sweep from it goes through.
    """

    def __init__(self, value, jacobians=None, *, failed=False, history=frozenset()):
        self.value = np.asarray(value, np.float64)
        self.jacobians = jacobians
        self.failed = failed
        self.history = history


def leaf_model(value, number):
    return Model(value, [np.eye(SIZE) * (i == number) for i in range(len(LEAVES))])


def result(value, *inputs, entry=None):
    """Model of an op's result, for pairs of an input's model and the op's Jacobian by it; ``entry``: of an op with several results."""
    failed = any(m.failed for m, _ in inputs)
    able = [(m, local) for m, local in inputs if m.jacobians is not None]
    if not able:
        return Model(value, failed=failed)
    jacobians = [sum(local @ m.jacobians[i] for m, local in able) for i in range(len(LEAVES))]
    return Model(value, jacobians, failed=failed, history=frozenset({entry or Entry()}.union(*(m.history for m, _ in able))))


UNARY = {
    "sin": (tnp.sin, np.sin, np.cos),
    "tanh": (tnp.tanh, np.tanh, lambda x: 1 / np.cosh(x) ** 2),
    "affine": (lambda v: v / 2 + 0.25, lambda x: x / 2 + 0.25, lambda x: 0.5 + 0 * x),
}
BINARY = {
    "sub": (lambda a, b: a - b, lambda a, b: (np.ones(SIZE), -np.ones(SIZE))),
    "mul": (lambda a, b: a * b, lambda a, b: (b, a)),
}


def _raise(x):
    raise ArithmeticError


fails = interop.lift(lambda x: jax.pure_callback(_raise, jax.ShapeDtypeStruct(x.shape, x.dtype), x))
rotate = np.eye(SIZE)[[1, 2, 0]]

SETTINGS = {
    "none": contextlib.nullcontext,
    "infs": functools.partial(jax.debug_infs, True),
    "precision": functools.partial(jax.default_matmul_precision, "float32"),
    "ranks": functools.partial(jax.numpy_rank_promotion, "raise"),
    "wide": functools.partial(jax.enable_x64, True),
}


class Worker:
    """A thread that makes calls, one by one."""

    def __init__(self):
        self._calls, self._answers = queue.SimpleQueue(), queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while (call := self._calls.get()) is not None:
            error = None
            try:
                call()
            except BaseException as e:  # noqa: BLE001 - raised by the caller
                error = e
            del call
            self._answers.put(error)

    def __call__(self, call):
        self._calls.put(call)
        error = self._answers.get(timeout=60)
        if error is not None:
            raise error

    def stop(self):
        self._calls.put(None)
        self._thread.join(60)


def placed(method):
    """Have a rule run in the thread, modes and settings of the moment."""

    @functools.wraps(method)
    def wrapped(self, **drawn):
        def call():
            with tape.set_grad_enabled(self.recording), tape.eager() if self.eager else contextlib.nullcontext(), SETTINGS[self.setting]():
                method(self, **drawn)

        self.workers[self.thread](call)

    return wrapped


class TapeMachine(RuleBasedStateMachine):
    """The tape beside the model."""

    def __init__(self):
        super().__init__()
        self.workers = [Worker() for _ in range(3)]
        self.thread, self.recording, self.eager, self.setting = 0, True, False, "none"
        self.leaves = [tape.Variable(x.astype(np.float32)) for x in LEAVES]
        self.models = [leaf_model(x, i) for i, x in enumerate(LEAVES)]
        self.gradients = [None for _ in LEAVES]
        self.pool = []  # pairs of a Variable and its model

    def teardown(self):
        for worker in self.workers:
            worker.stop()

    def pick(self, number):
        """A Variable and its model; new ones are the likelier the smaller the number."""
        able = [*zip(self.leaves, self.models, strict=True), *self.pool]
        return able[-1 - number % len(able)]

    def add(self, make, model, *, recording=True):
        """Record what ``make`` does; where an input is known to have failed, that fails at once."""
        try:
            made = make()
        except ExecutionError:
            assert model.failed
            return
        if not (self.recording and recording):
            model = Model(model.value, failed=model.failed)
        assert made.requires_grad is (model.jacobians is not None)
        self.pool.append((made, model))

    # -- recording ------------------------------------------------------------------------------------------------------

    @initialize(number=numbers)
    @placed
    def first(self, number):
        (a, m), (b, n) = zip(self.leaves, self.models, strict=True)
        self.add(lambda: a * b, result(m.value * n.value, (m, np.diag(n.value)), (n, np.diag(m.value))))
        v, m = self.pick(number)
        self.add(lambda: tnp.sin(v), result(np.sin(m.value), (m, np.diag(np.cos(m.value)))))

    @rule(name=st.sampled_from(sorted(UNARY)), number=numbers)
    @placed
    def unary(self, name, number):
        ours, theirs, slope = UNARY[name]
        v, m = self.pick(number)
        self.add(lambda: ours(v), result(theirs(m.value), (m, np.diag(slope(m.value)))))

    @precondition(lambda self: len(self.pool) > 1)
    @rule(name=st.sampled_from(sorted(BINARY)), i=numbers, j=numbers)
    @placed
    def binary(self, name, i, j):
        op, slopes = BINARY[name]
        (a, m), (b, n) = self.pick(i), self.pick(j)
        if np.abs(m.value * n.value).max() < 10:
            by_a, by_b = slopes(m.value, n.value)
            self.add(lambda: op(a, b), result(op(m.value, n.value), (m, np.diag(by_a)), (n, np.diag(by_b))))

    @rule(number=numbers, keep=st.sets(st.integers(0, 2), min_size=1))
    @placed
    def several_outputs(self, number, keep):
        v, m = self.pick(number)
        entry = Entry()
        model = [result(m.value[[i]], (m, np.eye(SIZE)[[i]]), entry=entry) for i in range(SIZE)]
        with contextlib.suppress(ExecutionError):
            parts = tnp.split(v, 3)
            for i in keep:
                self.add(lambda i=i: tnp.tile(parts[i], 3), result(np.tile(model[i].value, 3), (model[i], np.ones((SIZE, 1)))))
            return
        assert m.failed

    @rule(number=numbers)
    @placed
    def indexing(self, number):
        v, m = self.pick(number)
        self.add(lambda: tnp.concatenate([v[1:], v[:1]]), result(rotate @ m.value, (m, rotate)))

    @rule(number=numbers)
    @placed
    def detaching(self, number):
        v, m = self.pick(number)
        self.add(v.detach, m, recording=False)

    @rule(number=numbers, used=st.booleans())
    @placed
    def failing(self, number, used):
        v, m = self.pick(number)
        model = Model(m.value, failed=True)

        def make():
            with tape.no_grad():
                bad = fails(v)
                return tnp.sin(bad) if used else bad

        self.add(make, model, recording=False)

    @rule(number=numbers, leaf=st.integers(0, len(LEAVES) - 1))
    @placed
    def gradient_as_a_value(self, number, leaf):
        """Double backprop: the gradient of a sine is on the tape like any other value."""
        x, m, seed = self.leaves[leaf], self.models[leaf], np.roll([1.0, -0.5, 0.25], number % 3)

        def make():
            with tape.enable_grad():
                return tape.gradients(tnp.sin(x), x, seed, create_graph=True)

        old, self.recording = self.recording, True  # create_graph does not depend on no_grad
        self.add(make, result(np.cos(m.value) * seed, (m, np.diag(-np.sin(m.value) * seed))))
        self.recording = old

    # -- looking and dropping -------------------------------------------------------------------------------------------

    @rule(number=numbers)
    @placed
    def look(self, number):
        v, m = self.pick(number)
        if m.failed:
            with pytest.raises(ExecutionError):
                v.value
        else:
            np.testing.assert_allclose(np.asarray(v.value, np.float64), m.value, rtol=1e-3, atol=1e-3)

    @precondition(lambda self: self.pool)
    @rule(number=numbers)
    def drop(self, number):
        del self.pool[number % len(self.pool)]

    @precondition(lambda self: len(self.pool) > 10)
    @rule()
    def drop_most(self):
        del self.pool[:-3]

    # -- sweeping -------------------------------------------------------------------------------------------------------

    @rule(number=numbers, retain=st.booleans(), how=st.sampled_from(["backward", "gradients", "scalar"]))
    @placed
    def sweep(self, number, retain, how):
        self.sweep_from(*self.pick(number), number, retain, how)

    @rule(number=numbers, retain=st.booleans(), how=st.sampled_from(["backward", "gradients"]))
    @placed
    def sweep_twice(self, number, retain, how):
        v, m = self.pick(number)
        self.sweep_from(v, m, number, retain, how)
        self.sweep_from(v, m, number + 1, not retain, how)

    def sweep_from(self, v, m, number, retain, how):
        seed = np.roll([1.0, -0.5, 0.25], number % 3).astype(np.float32)
        if m.jacobians is None:
            with pytest.raises(TapeError):
                v.backward(seed)
            return
        expected = [seed @ jacobian for jacobian in m.jacobians]
        try:
            if how == "gradients":
                found = tape.gradients(v, self.leaves, seed, unconnected="zero", retain_graph=retain)
                for g, e in zip(found, expected, strict=True):
                    np.testing.assert_allclose(np.asarray(g.value, np.float64), e, rtol=1e-3, atol=1e-3)
            elif how == "backward":
                v.backward(seed, retain_graph=retain)
            else:
                with tape.enable_grad():
                    root = (v * seed).sum()
                root.backward(retain_graph=retain)
        except ReleasedTapeError:
            assert m.failed or any(entry.released is not False for entry in m.history)
            return
        except ExecutionError:
            assert m.failed
            self.release(m, None, retain=retain)
            return
        assert not any(entry.released for entry in m.history), "a sweep went through what another one had released"
        self.release(m, True, retain=retain)
        if how != "gradients":
            for i, e in enumerate(expected):
                if self.leaves[i].grad is None:
                    assert self.gradients[i] is None
                    assert not e.any()
                else:
                    self.gradients[i] = e if self.gradients[i] is None else self.gradients[i] + e

    def release(self, model, released, *, retain):
        """Note what a sweep did to the entries it went through."""
        for entry in () if retain else model.history:
            entry.released = entry.released or released

    @rule()
    def zero_grad(self):
        for leaf in self.leaves:
            leaf.zero_grad()
        self.gradients = [None for _ in LEAVES]

    @invariant()
    def gradients_agree(self):
        for leaf, expected in zip(self.leaves, self.gradients, strict=True):
            assert (leaf.grad is None) is (expected is None)
            if expected is not None:
                np.testing.assert_allclose(
                    np.asarray(leaf.grad.value, np.float64), expected, rtol=1e-3, atol=1e-3 * (1 + np.abs(expected).max())
                )

    # -- rebinding ------------------------------------------------------------------------------------------------------

    @rule(leaf=st.integers(0, len(LEAVES) - 1), factor=st.sampled_from([0.5, -1.0, 0.9]))
    @placed
    def assign(self, leaf, factor):
        self.models[leaf] = leaf_model(self.models[leaf].value * factor, leaf)
        self.leaves[leaf].value = self.models[leaf].value.astype(np.float32)

    @precondition(lambda self: self.pool)
    @rule(i=numbers, j=numbers)
    @placed
    def assign_element(self, i, j):
        place = i % len(self.pool)
        (v, m), (w, n) = self.pool[place], self.pick(j)
        mask = np.diag([1.0, 0.0, 0.0])
        model = result(np.where([True, False, False], n.value, m.value), (m, np.eye(SIZE) - mask), (n, mask))
        if not self.recording:
            model.jacobians, model.history = None, frozenset()
        try:
            v[0] = w[0]
        except ExecutionError:
            assert model.failed
            return
        self.pool[place] = (v, model)

    # -- where and how --------------------------------------------------------------------------------------------------

    @rule(thread=st.integers(0, 2))
    def switch_thread(self, thread):
        self.thread = thread

    @rule()
    def switch_recording(self):
        self.recording = not self.recording

    @rule()
    def switch_eager(self):
        self.eager = not self.eager

    @rule(name=st.sampled_from(sorted(SETTINGS)))
    def switch_setting(self, name):
        self.setting = name


CHECKS = settings(
    deadline=None,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def test_the_tape_agrees_with_the_model():
    run_state_machine_as_test(TapeMachine, settings=CHECKS)


# -- the power of the machine ------------------------------------------------------------------------------------------------


def keep_last(a, b):
    return a if b is None else b


def newest_value(segment, state, slot, leaf_index, original=emission.forward_handle):
    """The leaf as it is now, not as it was when the entry was recorded."""
    origin = segment.origins.get(slot)
    if hasattr(origin, "ref") and slot in leaf_index and origin.ref() is not None:
        return handle(None, state.table[slot], origin.ref()._cell)
    return original(segment, state, slot, leaf_index)


def all_but_one(cells, original=program.held):
    return original(cells)[:-1]


def half(added):
    return accumulation._assigned(added[:1], ())


def nothing_failed(segment, values, failed, leaf_slots, original=failures._hand_out):
    original(segment, {**dict.fromkeys(failed, np.zeros(SIZE, np.float32)), **values}, {}, leaf_slots)


def all_failed(segment, values, failed, leaf_slots, original=failures._hand_out):
    one = next(iter(failed.values()))
    original(segment, {}, {**dict.fromkeys(values, one), **failed}, leaf_slots)


def retaining(*args, original=tape.gradients, **options):
    return original(*args, **{**options, "retain_graph": True})


def released_for_all(*args, retain_graph=None, original=tape.gradients, known=[], **options):  # noqa: B006 - kept
    """After a sweep that released something, none from any root whatever goes through."""
    leaf = args[1][0] if isinstance(args[1], list) else args[1]
    if any(ref() is leaf for ref in known):
        msg = "an earlier sweep released it"
        raise ReleasedTapeError(msg)
    gradients = original(*args, retain_graph=retain_graph, **options)
    known.extend([] if retain_graph else [weakref.ref(leaf)])
    return gradients


PLANTED = {
    "nothing is released": (tape, "gradients", retaining),
    "too much is released": (tape, "gradients", released_for_all),
    "accumulation is dropped": (emission, "add", keep_last),
    "residuals follow a rebound leaf": (emission, "forward_handle", newest_value),
    "a Variable's value is not kept": (program, "held", all_but_one),
    "one gradient of several is assigned": (accumulation, "_at_once", half),
    "what failed has a value": (failures, "_hand_out", nothing_failed),
    "what did not fail has none": (failures, "_hand_out", all_failed),
    "no_grad does nothing": (modes, "switch", lambda mode: None),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug, monkeypatch):
    owner, name, wrong = PLANTED[bug]
    monkeypatch.setattr(owner, name, wrong)
    checks = settings(CHECKS, max_examples=200, derandomize=True, database=None, phases=[Phase.generate], print_blob=False)
    with pytest.raises(BaseException):  # noqa: B017, PT011 - whatever the bug leads to
        run_state_machine_as_test(TapeMachine, settings=checks)
