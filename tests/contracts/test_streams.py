"""Contract 18: ``stream_gradients`` gives each leaf as soon as its gradient is final, last layers first; nothing behind it has begun."""

from __future__ import annotations

import contextlib
import gc
import itertools
import random
import threading
import weakref
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import interop
import tape
import tape.numpy as tnp
from tape.errors import (
    ReleasedTapeError,
    SeedDtypeError,
    SeedError,
    TapeError,
    TapeTypeError,
    TapeValueError,
    UnconnectedError,
    UnrecordedGradientError,
)
from tape.graph.scope import LOCAL
from tape.programs.program import run_pending
from tape.sweeps import emission, streaming, sweep
from tests.agreement import close
from tests.contracts.counting import BackwardError, counted, failing

EVENTS = []  # numbers of the entries whose VJPs ran


def _ran(ct, number):
    EVENTS.append(int(number))
    return np.asarray(ct)


@jax.custom_vjp
def _product(a, b, number):
    return a * b


def _backward(residuals, ct):
    a, b, number = residuals
    ct = jax.pure_callback(_ran, jax.ShapeDtypeStruct(ct.shape, ct.dtype), ct, number)
    return ct * b, ct * a, None


_product.defvjp(lambda a, b, number: (a * b, (a, b, number)), _backward)
product = interop.lift(_product)  # notes when its VJP runs on the device, also inside a compiled program


@dataclass(frozen=True)
class Program:
    """Products of values: the leaves come first, then the results in order.

    Attributes:
        values: of the leaves.
        entries: the two operands of each product.
        cuts: entries after which the pending segment ends.
        rebound: entry -> (leaf, its value from then on).
        roots: what is differentiated.
        wanted: what to ask for; None for all leaves.

    """

    values: tuple[float, ...]
    entries: tuple[tuple[int, int], ...]
    cuts: frozenset[int]
    rebound: dict[int, tuple[int, float]]
    roots: tuple[int, ...]
    wanted: tuple[int, ...] | None

    @property
    def n(self):
        """The number of leaves."""
        return len(self.values)

    def swept(self):
        """The entries with a cotangent that leads to what is wanted, by number."""
        leads = set(range(self.n) if self.wanted is None else self.wanted)
        for i, operands in enumerate(self.entries):
            if not leads.isdisjoint(operands):
                leads.add(self.n + i)
        reached = set(self.roots)
        found = set()
        for i in range(len(self.entries) - 1, -1, -1):
            if self.n + i in reached and not leads.isdisjoint(self.entries[i]):
                found.add(i)
                reached.update(self.entries[i])
        return found, reached

    def consumers(self, value):
        """The swept entries that read a value."""
        return {i for i in self.swept()[0] if value in self.entries[i]}


def make_program(rng):
    """Draw a program."""
    n = rng.randint(1, 4)
    count = rng.randint(1, 8)
    entries = tuple((rng.randrange(n + i), rng.randrange(n + i)) for i in range(count))
    results = range(n, n + count)
    program = Program(
        values=tuple(rng.uniform(0.5, 1.5) for _ in range(n)),
        entries=entries,
        cuts=frozenset(i for i in range(count) if rng.random() < 0.3),
        rebound={i: (rng.randrange(n), rng.uniform(0.5, 1.5)) for i in range(count) if rng.random() < 0.15},
        roots=tuple(rng.choice(results) for _ in range(rng.randint(1, 3))),
        wanted=None,
    )
    if rng.random() < 0.5:
        able = sorted(program.swept()[1])
        chosen = rng.sample(able, rng.randint(1, len(able)))
        program = Program(**{**program.__dict__, "wanted": tuple(chosen)})
    return program


def record(program, leaves):
    """Record it; return all values."""
    values = list(leaves)
    for i, (a, b) in enumerate(program.entries):
        values.append(product(values[a], values[b], np.int32(i)))
        if i in program.cuts and LOCAL.segment() is not None:
            run_pending(LOCAL.segment(), "length")
        if i in program.rebound:
            leaf, new = program.rebound[i]
            leaves[leaf].value = jnp.float32(new)
    return values


def expected(program):
    """The gradients of all values that the roots depend on, by ``jax.grad``: each value has a zero added that is differentiated by."""
    n = program.n

    def total(taps):
        values = [v + t for v, t in zip(program.values, taps[:n], strict=True)]
        for i, (a, b) in enumerate(program.entries):
            values.append(values[a] * values[b] + taps[n + i])
            if i in program.rebound:
                leaf, new = program.rebound[i]
                values[leaf] = new + taps[leaf]
        return sum(values[r] for r in program.roots)

    return jax.grad(total)([jnp.zeros(())] * (n + len(program.entries)))


def check(program):
    """Compare a stream with ``jax.grad``, ``gradients`` and ``backward``, and when what comes with when what ran."""
    answers = expected(program)
    positions = [i for i in range(program.n) if i in program.swept()[1]] if program.wanted is None else list(program.wanted)
    leaves = [tape.Variable(v) for v in program.values]
    values = record(program, leaves)
    names = {id(v): i for i, v in enumerate(values)}
    roots = [values[r] for r in program.roots]
    inputs = None if program.wanted is None else [values[i] for i in program.wanted]
    EVENTS.clear()
    came, seen = [], []
    for variable, gradient in tape.stream_gradients(roots, inputs=inputs):
        position = names[id(variable)]
        np.testing.assert_allclose(float(gradient), answers[position], rtol=1e-5)
        came.append(position)
        seen.append(set(EVENTS))
        if position < program.n:
            variable.value = jnp.float32(np.nan)  # what is still to come does not notice
    swept, _ = program.swept()
    assert set(EVENTS) == swept
    assert len(EVENTS) == len(swept)
    assert sorted(came) == sorted(set(positions))
    ends = []
    for position, events in zip(came, seen, strict=True):
        own = program.consumers(position)
        assert own <= events, "not final"
        oldest = min(events, default=len(program.entries))
        if position < program.n:
            assert oldest == min(own), "not as soon as it was final"
            ends.append(oldest)
        else:  # a result comes in its turn, before the entry that made it is swept
            assert oldest > position - program.n, "not as soon as it was final"
    assert ends == sorted(ends, reverse=True)
    assert all(v.grad is None for v in leaves)
    if swept:
        with pytest.raises(ReleasedTapeError, match="retain_graph"):
            tape.stream_gradients(roots, inputs=inputs)
    leaves = [tape.Variable(v) for v in program.values]
    values = record(program, leaves)
    asked = [values[i] for i in positions]
    roots = [values[r] for r in program.roots]
    for ours, position in zip(tape.gradients(roots, asked, retain_graph=True), positions, strict=True):
        np.testing.assert_allclose(float(ours), answers[position], rtol=1e-5)
    tape.backward(roots, inputs=asked)
    for v, position in zip(asked, positions, strict=True):
        np.testing.assert_allclose(float(v.grad), answers[position], rtol=1e-5)


TIERS = {"lazy": contextlib.nullcontext, "eager": tape.eager}


@given(st.randoms(use_true_random=True).map(make_program), st.sampled_from(sorted(TIERS)))
def test_contract_18_each_gradient_comes_as_soon_as_it_is_final(program, tier):
    with TIERS[tier]():
        check(program)


@given(st.randoms(use_true_random=True).map(make_program), st.sampled_from(sorted(TIERS)), st.sampled_from(["close", "drop", "raise"]))
def test_contract_18_a_stream_given_up_anywhere_leaves_nothing_behind(program, tier, how):
    answers = expected(program)
    with TIERS[tier]():
        leaves = [tape.Variable(v) for v in program.values]
        values = record(program, leaves)
        roots = [values[r] for r in program.roots]
        for taken in range(len(program.swept()[1])):
            stream = tape.stream_gradients(roots, inputs=None if program.wanted is None else [values[i] for i in program.wanted])
            with contextlib.suppress(ZeroDivisionError):
                for k, _ in enumerate(stream):
                    if k == taken:
                        if how == "raise":
                            1 / 0
                        break
                else:
                    return  # it came to its end
            if how == "close":
                stream.close()
            gone = weakref.ref(stream)
            del stream, _
            assert gone() is None
            assert LOCAL.segment() is None or not LOCAL.segment().pending or LOCAL.segment().state.mode == LOCAL.scope.mode
            positions = sorted(program.swept()[1])
            for ours, position in zip(tape.gradients(roots, [values[i] for i in positions], retain_graph=True), positions, strict=True):
                np.testing.assert_allclose(float(ours), answers[position], rtol=1e-5)


# -- what the properties notice ------------------------------------------------------------------------------------------


def all_at_the_end(plan, groups, original=streaming.pieces_of):
    """One piece: what is final comes with everything else."""
    whole = original(plan, ())[-1]
    return (whole._replace(finals=tuple(range(len(groups)))),)


def too_early(plan, groups, original=streaming.pieces_of):
    """Leaves come with the first piece."""
    found = list(original(plan, groups))
    found[0] = found[0]._replace(finals=tuple(range(len(groups))))
    return tuple(piece if i == 0 else piece._replace(finals=()) for i, piece in enumerate(found))


def first_segment_is_the_last(self, roots, original=sweep.Sweep.foresee):
    """A leaf is taken for final after the newest segment that uses it."""
    order = original(self, roots)
    seen = set()
    moved = []
    for segment, targets in order:
        used = [] if segment is None else [o for o in segment.origins.values() if any(o in later for _, later in order) and o not in seen]
        used = [o for o in dict.fromkeys([*used, *targets]) if o not in seen]
        seen.update(used)
        moved.append((segment, used))
    return moved


def nothing_is_added(a, b, *_):
    return a if b is None else b


def keeps_going(self, target, terms):
    """Nothing is handed to older segments."""


WRONG = {
    "gradients come at the end": (streaming, "pieces_of", all_at_the_end),
    "gradients come too early": (streaming, "pieces_of", too_early),
    "older segments are forgotten": (sweep.Sweep, "foresee", first_segment_is_the_last),
    "contributions replace each other": (emission, "add", nothing_is_added),
    "older segments get no cotangents": (streaming._Stream, "_pass_on", keeps_going),
}


@pytest.mark.parametrize("bug", WRONG)
def test_contract_18_a_wrong_stream_is_noticed(bug, monkeypatch):
    owner, name, wrong = WRONG[bug]
    monkeypatch.setattr(owner, name, wrong)
    for number in range(100):
        try:
            check(make_program(random.Random(number)))  # noqa: S311
        except (AssertionError, LookupError, TapeError, TypeError):
            monkeypatch.undo()
            check(make_program(random.Random(number)))  # noqa: S311
            return
    pytest.fail("no example noticed it")


# -- what comes, and how -------------------------------------------------------------------------------------------------

A = np.array([1.0, -2.0, 0.5], np.float32)


def layers(count=4, width=8):
    rng = np.random.default_rng(0)
    parameters = []
    for i in range(count):
        parameters.append(tape.Variable(rng.normal(size=(width, width)).astype(np.float32) / 3, name=f"w{i}"))
        parameters.append(tape.Variable(np.zeros(width, np.float32), name=f"b{i}"))
    return parameters


def loss_of(parameters):
    h = tnp.ones((2, 8))
    for w, b in zip(parameters[::2], parameters[1::2], strict=True):
        h = tnp.tanh(h @ w + b)
    return (h * h).sum()


@pytest.mark.usefixtures("tier")
def test_contract_18_last_layers_first():
    parameters = layers()
    names = [leaf.name for leaf, _ in tape.stream_gradients(loss_of(parameters))]
    assert names == ["b3", "w3", "b2", "w2", "b1", "w1", "b0", "w0"]


def test_contract_18_nothing_runs_ahead(stats):
    """Each step runs a part of the sweep; in steady state all of them are programs compiled before."""
    parameters = layers()
    for _ in range(12):  # where its kernels were met before, a program stands in for them later than where they are new
        stats.reset()
        executed = []
        for _, gradient in tape.stream_gradients(loss_of(parameters)):
            assert gradient._cell[0] is not None  # dispatched
            executed.append(stats.executed)
        assert executed[0] > 0
        assert all(a < b for a, b in itertools.pairwise(executed))
    assert stats.interpreted == stats.programs == 0
    assert stats.hits == 1 + len(parameters)


@pytest.mark.usefixtures("tier")
def test_contract_18_an_update_during_the_sweep_changes_nothing_that_is_to_come():
    parameters, others = layers(), layers()
    for leaf, gradient in tape.stream_gradients(loss_of(parameters)):
        leaf.value = leaf.value - 0.1 * gradient.value
    loss_of(others).backward()
    for ours, theirs in zip(parameters, others, strict=True):
        close(ours, theirs.value - 0.1 * theirs.grad.value)
        assert ours.grad is None


@pytest.mark.usefixtures("tier")
def test_contract_18_leaves_final_together_come_together_and_apart():
    """Two leaves with one cotangent: neither gradient is the other."""
    a, b = tape.Variable(A), tape.Variable(A)
    found = {}
    executed = []
    for leaf, gradient in tape.stream_gradients(((a + b) * 3).sum()):
        executed.append(tape.stats().executed)
        gradient[0] = 100.0
        found[leaf] = gradient
    assert executed[0] == executed[1]
    close(found[a], [100, 3, 3])
    close(found[b], [100, 3, 3])
    assert found[a] is not found[b]


@pytest.mark.usefixtures("tier")
def test_contract_18_inputs_may_be_results_and_come_in_their_turn():
    x, w = tape.Variable(A), tape.Variable(A + 1)
    h = tnp.sin(x)
    y = (h * w).sum()
    came = list(tape.stream_gradients(y, inputs=[x, h, y, h]))
    assert [v for v, _ in came] == [y, h, x] or [id(v) for v, _ in came] == [id(y), id(h), id(x)]
    for (_, gradient), value in zip(came, [1.0, A + 1, (A + 1) * np.cos(A)], strict=True):
        close(gradient, value)
    tape.backward((w * 1).sum())  # not swept
    close(w.grad, np.ones(3))


@pytest.mark.usefixtures("tier")
def test_contract_18_roots_and_seeds_as_for_backward():
    x = tape.Variable(A)
    y = x * x
    z = y * 2
    y.grad = tape.constant(A)
    before = y.grad
    ((leaf, gradient),) = tape.stream_gradients([y, z, x], [None, np.ones(3), A])
    assert leaf is x
    close(gradient, 2 * A * A + 4 * A + A)
    assert y.grad is before  # no .grad is touched


REFUSED = {
    "no Variable": (lambda x: (3.0,), {}, TapeTypeError, "must be a tape.Variable"),
    "no roots": (lambda x: ([],), {}, TapeValueError, "empty"),
    "no seed": (lambda x: (x * 2,), {}, SeedError, "needs a seed"),
    "wrong seed": (lambda x: (x * 2, np.ones(2)), {}, SeedError, "shape"),
    "complex seed": (lambda x: (x * 2, np.ones(3) * 1j), {}, SeedDtypeError, "real part"),
    "two seeds": (lambda x: (x * 2, [A, A]), {}, SeedError, "1 roots but 2"),
    "a constant": (lambda x: (x.detach(), A), {}, TapeValueError, "does not require grad"),
    "an unconnected input": (lambda x: ((x * x).sum(),), {"inputs": tape.Variable(1.0)}, UnconnectedError, "not connected"),
    "a constant input": (lambda x: ((x * x).sum(),), {"inputs": tape.constant(1.0)}, UnconnectedError, "does not require grad"),
    "an unrecorded gradient": (lambda x: (tape.gradients((x * x).sum(), x), A), {}, UnrecordedGradientError, "create_graph"),
    "one used": (lambda x: ((x * tape.gradients((x * x).sum(), x)).sum(),), {}, UnrecordedGradientError, "create_graph"),
}


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("what", REFUSED)
def test_contract_18_arguments_are_checked_at_the_call(what):
    make, options, error, message = REFUSED[what]
    with pytest.raises(error, match=message):
        tape.stream_gradients(*make(tape.Variable(A)), **options)


@pytest.mark.usefixtures("tier")
def test_contract_18_a_released_tape_is_refused_at_the_call():
    x = tape.Variable(3.0)
    y = x * x
    stream = tape.stream_gradients(y)
    list(stream)
    assert list(stream) == []
    with pytest.raises(ReleasedTapeError, match="retain_graph"):
        tape.stream_gradients(y)
    with pytest.raises(ReleasedTapeError, match="retain_graph"):
        y.backward()


@pytest.mark.usefixtures("tier")
def test_contract_18_hooks_run_when_their_gradient_is_final():
    x, w = tape.Variable(A), tape.Variable(A)
    order = []
    h = x * 2
    h.register_hook(lambda g: order.append("h") or g * 10)
    x.register_hook(lambda g: order.append("x") or g + 1)
    w.register_hook(lambda g: order.append("w") or g * 3)
    w.register_post_accumulate_grad_hook(lambda _: order.append("never"))
    came = []
    for leaf, gradient in tape.stream_gradients((h * w).sum()):
        order.append("came")
        came.append((leaf, gradient))
    assert order == ["w", "came", "h", "x", "came"]
    assert [id(v) for v, _ in came] == [id(w), id(x)]
    close(came[0][1], 3 * 2 * A)
    close(came[1][1], 10 * 2 * A + 1)


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("at", ["leaf", "inner"])
def test_contract_18_a_failing_hook_ends_the_stream_and_releases_nothing(at):
    x, w = tape.Variable(A), tape.Variable(A)
    h = x * 2
    y = (h * w).sum()
    handle = (x if at == "leaf" else h).register_hook(failing)
    stream = tape.stream_gradients(y)
    assert next(stream)[0] is w
    with pytest.raises(BackwardError):
        next(stream)
    assert list(stream) == []
    handle.remove()
    assert [id(v) for v, _ in tape.stream_gradients(y)] == [id(w), id(x)]


@pytest.mark.usefixtures("tier")
def test_contract_18_a_function_runs_when_its_turn_comes():
    x, w = tape.Variable(A), tape.Variable(A)
    apply, calls = counted(lambda g: 2 * g)
    stream = tape.stream_gradients((apply(x * 3) * w).sum())
    assert next(stream)[0] is w
    assert not calls
    close(next(stream)[1], 6 * A)
    assert len(calls) == 1


@pytest.mark.usefixtures("tier")
def test_contract_18_a_gradient_that_a_function_leaves_out_is_not_lost_silently():
    x, w = tape.Variable(A), tape.Variable(A)
    apply, _ = counted(lambda _: None)

    def root():
        return (apply(tnp.sin(x) * 3) * w).sum()

    assert [id(v) for v, _ in tape.stream_gradients(root())] == [id(w)]
    stream = tape.stream_gradients(root(), inputs=[w, x])
    assert next(stream)[0] is w
    with pytest.raises(UnconnectedError, match="not connected"):
        next(stream)


def test_contract_18_what_a_function_leaves_out_is_not_taken_for_what_another_gave():
    x = tape.Variable(A)
    left, taken = tnp.sin(x), tnp.cos(x)
    tape.constant(0.0) + left.value + taken.value  # both are results of a segment that has run
    apply, _ = counted(lambda _: None)
    ((leaf, gradient),) = tape.stream_gradients((apply(left) * 3).sum() + taken.sum())
    assert leaf is x
    close(gradient, -np.sin(A))


def test_contract_18_what_a_function_adds_nothing_to_is_handed_out_with_what_came_before():
    class First(tape.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x + y

        @staticmethod
        def backward(ctx, g):
            return g, None

    w, x = tape.Variable(A), tape.Variable(A)
    taken, left = tnp.sin(w), tnp.cos(x)
    tape.constant(0.0) + taken.value + left.value  # in a segment of their own, to which a sweep was foreseen to come for both
    gradients = {id(leaf): gradient for leaf, gradient in tape.stream_gradients((First.apply(taken, left) + 2 * x).sum())}
    close([gradients[id(w)], gradients[id(x)]], [np.cos(A), np.full_like(A, 2)])


def test_contract_18_what_the_user_has_pending_stays_so(stats):
    parameters = layers()
    loss = loss_of(parameters)
    stream = tape.stream_gradients(loss)
    x = tape.Variable(A)
    y = x * x
    flushes = dict(stats.flushes)
    for _ in stream:
        y = y + x
    assert set(stats.flushes) - set(flushes) <= {"stream"}
    assert y._cell[0] is None
    y.backward(np.ones(3))
    close(x.grad, 2 * A + len(parameters))


@pytest.mark.usefixtures("tier")
def test_contract_18_other_sweeps_while_one_is_under_way():
    """From the same root, too: what this one needs is its own."""
    x, w = tape.Variable(A), tape.Variable(A)
    y = (tnp.sin(tnp.sin(x) * w) * w).sum()
    expected = jax.grad(lambda x, w: (jnp.sin(jnp.sin(x) * w) * w).sum(), argnums=(0, 1))(x.value, w.value)
    for (a, g), (b, h) in zip(tape.stream_gradients(y), tape.stream_gradients(y), strict=True):
        assert a is b
        close(g, expected[a is w])
        close(h, expected[a is w])
    y = (tnp.sin(tnp.sin(x) * w) * w).sum()
    stream = tape.stream_gradients(y)
    next(stream)
    y.backward()
    close(x.grad, expected[0])
    close(next(stream)[1], expected[0])


@pytest.mark.parametrize("pure", [jax.jit, lambda f: f])
def test_contract_18_inside_jax(pure):
    def f(a, b):
        x, w = tape.Variable(a), tape.Variable(b)
        return [(g * 2).value for _, g in tape.stream_gradients((tnp.sin(x) * w).sum())]

    x, w = jnp.asarray(A), jnp.asarray(A + 1)
    for ours, theirs in zip(pure(f)(x, w), (2 * jnp.sin(x), 2 * jnp.cos(x) * w), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    for ours, theirs in zip(pure(jax.vmap(f))(x[None], w[None]), (2 * jnp.sin(x), 2 * jnp.cos(x) * w), strict=True):
        np.testing.assert_allclose(ours[0], theirs, rtol=1e-5)
    slope = pure(jax.grad(lambda x: f(x, w)[1].sum()))(x)
    np.testing.assert_allclose(slope, -2 * jnp.sin(x) * w, rtol=1e-5)


def test_contract_18_inside_tape_jit():
    w, v = tape.Variable(2.0), tape.Variable(5.0)

    @tape.jit
    def step(x):
        for leaf, gradient in tape.stream_gradients(x * w * v * v):
            leaf.value = leaf.value - 0.1 * gradient.value

    for _ in range(3):
        w.value, v.value = 2.0, 5.0
        step(tape.constant(3.0))
        close(w, 2 - 0.1 * 75)
        close(v, 5 - 0.1 * 60)
        assert w.grad is v.grad is None
    outside = w * 2

    @tape.jit
    def wrong():
        return [g for _, g in tape.stream_gradients(outside * v)]

    with pytest.raises(TapeError, match="computed outside"):
        wrong()


def test_contract_18_in_several_threads():
    shared = tape.Variable(A)
    wrong = []

    def work(k):
        own = tape.Variable(A * k)
        for _ in range(20):
            found = {id(v): g for v, g in tape.stream_gradients((tnp.sin(shared * own) * own).sum())}
            expected = jax.grad(lambda s, o: (jnp.sin(s * o) * o).sum(), argnums=(0, 1))(A, A * k)
            for v, value in zip((shared, own), expected, strict=True):
                if not np.allclose(found[id(v)].value, value, rtol=1e-4):
                    wrong.append((k, found[id(v)], value))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.usefixtures("tier")
def test_contract_18_nothing_waits_for_the_garbage_collector():
    gc.collect()
    gc.disable()
    try:
        parameters = layers(2)
        live = tape.stats().live_entries  # of other tests' Variables
        for taken in (None, 0, 1, 3):
            loss = loss_of(parameters)
            segment = weakref.ref(loss._segment)
            stream = tape.stream_gradients(loss)
            gone = weakref.ref(stream)
            del loss
            for k, _ in enumerate(stream):
                if k == taken:
                    break
            _ = None
            del stream
            assert gone() is None
            assert segment() is None
        assert tape.stats().live_entries == live
    finally:
        gc.enable()


class Order(tape.OpHook):
    """Lists the ops whose backward was seen, from both of its sides."""

    def __init__(self):
        self.seen = []

    def backward_preprocess(self, op, output_grads):
        self.seen.append(f"to {op.name}")

    def backward_postprocess(self, op, input_grads):
        self.seen.append(f"from {op.name}")
        return [None if g is None else g * 2 for g in input_grads]


@pytest.mark.usefixtures("tier")
def test_contract_18_op_hooks_see_each_entry_in_its_turn():
    x, w = tape.Variable(A), tape.Variable(A)
    y = (tnp.sin(x) * w).sum()
    order = Order()
    with tape.hooks(order):
        stream = tape.stream_gradients(y)
        leaf, gradient = next(stream)
        assert leaf is w
        close(gradient, 4 * np.sin(A))
        assert [name.split()[0] for name in order.seen] == ["to", "from"] * 2
        close(next(stream)[1], 8 * A * np.cos(A))
        assert [name.split()[0] for name in order.seen] == ["to", "from"] * 3


# -- memory ----------------------------------------------------------------------------------------------------------------


def test_contract_18_a_gradient_that_is_dropped_is_free_at_once():
    parameters = layers()
    for _ in range(3):
        arrays = []
        for _, gradient in tape.stream_gradients(loss_of(parameters)):
            arrays.append(weakref.ref(gradient.value))
            del _, gradient
            assert arrays[-1]() is None


def test_contract_18_residuals_are_freed_as_the_sweep_goes(stats):
    """And computed again, should the stream be given up."""
    parameters = layers()
    expected = jax.grad(lambda ps: _jax_loss(ps))([p.value for p in parameters])
    for taken in range(len(parameters)):
        loss = loss_of(parameters)
        stream = tape.stream_gradients(loss)
        kept = [stats.live_bytes]
        for _ in range(taken):
            next(stream)
            kept.append(stats.live_bytes)
        assert kept == sorted(kept, reverse=True)
        assert taken < 4 or kept[-1] < kept[0]
        stream.close()
        for p in parameters:
            p.zero_grad()
        loss.backward()
        for p, value in zip(parameters, expected, strict=True):
            close(p.grad, value)


def _jax_loss(values):
    h = jnp.ones((2, 8))
    for w, b in zip(values[::2], values[1::2], strict=True):
        h = jnp.tanh(h @ w + b)
    return (h * h).sum()


def test_contract_18_what_has_effects_runs_once():
    """So the values that its sweep reads are not let go and computed again."""
    ran = []

    def note(x):
        ran.append(1)
        return np.asarray(x)

    noting = interop.lift(lambda x: jax.experimental.io_callback(note, jax.ShapeDtypeStruct((3,), jnp.float32), x))
    x, w = tape.Variable(A), tape.Variable(A)
    y = (noting(tape.constant(A)) * tnp.sin(x) * w).sum()
    next(tape.stream_gradients(y))
    assert len(ran) == 1
    y.backward()
    assert len(ran) == 1
    close(x.grad, A * A * np.cos(A))


@pytest.mark.usefixtures("tier")
def test_contract_18_packed_values_are_unpacked_in_their_turn():
    unpacked = []
    with tape.saved_value_hooks(lambda value: value, lambda value: unpacked.append(1) or value):
        parameters = layers()
        loss = loss_of(parameters)
    counts = []
    found = {}
    for leaf, gradient in tape.stream_gradients(loss):
        counts.append(len(unpacked))
        found[leaf] = gradient
    assert 0 < counts[0] < counts[-1]
    for p, value in zip(parameters, jax.grad(_jax_loss)([p.value for p in parameters]), strict=True):
        close(found[p], value)


@pytest.mark.usefixtures("tier")
def test_contract_18_hooks_over_several_variables():
    x, w, z = tape.Variable(A), tape.Variable(A), tape.Variable(A)
    order = []
    tape.register_multi_grad_hook([x, w], lambda grads: order.append([g is not None for g in grads]))
    tape.register_multi_grad_hook([x, z], lambda grads: order.append([g is not None for g in grads]))
    order.extend("came" for _ in tape.stream_gradients((tnp.sin(x) * w).sum()))
    assert order == ["came", [True, True], "came", [True, False]]
