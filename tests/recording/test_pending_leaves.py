"""Leaves made of pending values: ``detach().requires_grad_()`` and ``unchain()`` run nothing, and mean what they mean of values."""

import copy
import functools
import gc
import pickle
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import tape
import tape.numpy as tnp
from interop import lift
from tape.errors import ExecutionError, TapeValueError
from tape.graph.scope import LOCAL
from tape.sweeps import differentiation
from tests import agreement

A = np.array([0.5, -0.25, 0.75], np.float32)
W = np.array([[0.2, -0.4, 0.1], [0.7, 0.3, -0.6], [-0.5, 0.8, 0.9]], np.float32)


def pending(v):
    return v._cell[0] is None


def leaf_of(v):
    """Make a leaf of a pending Variable."""
    made = v.detach().requires_grad_()
    assert pending(made)
    return made


def flushes():
    return sum(tape.stats().flushes.values())


close = functools.partial(agreement.close, rtol=2e-5)


# -- programs --------------------------------------------------------------------------------------------------------------

OPS = [
    lambda np, a, _: np.sin(a),
    lambda np, a, _: np.tanh(a),
    lambda np, a, b: a * np.sin(b),
    lambda _, a, b: 0.5 * (a + b),
    lambda _, a, b: a - 0.3 * b,
    lambda np, a, b: np.tanh(np.dot(W, a)) * b,
]
N_PARAMETERS = 2
MAKING = ("op", "cut", "gradient")  # the kinds of steps that make a value


@st.composite
def programs(draw):
    """Steps over numbered values; the first are the parameters, and each step but looks, drops and rebindings adds a value."""
    steps, count, leaves, gradients = [], N_PARAMETERS, list(range(N_PARAMETERS)), 0
    for kind in draw(
        st.lists(st.sampled_from(["op", "op", "op", "cut", "cut", "gradient", "look", "drop", "rebind"]), min_size=4, max_size=11)
    ):
        at = draw(st.integers(0, count - 1))
        if kind == "gradient" and gradients == 2:
            kind = "op"  # noqa: PLW2901 - each further one is another order for JAX
        if kind == "op":
            steps.append(("op", draw(st.integers(0, len(OPS) - 1)), at, draw(st.integers(0, count - 1))))
        elif kind == "cut":
            steps.append(("cut", at, draw(st.sampled_from(["detach", "unchain", "no_grad"])), draw(st.booleans())))
            leaves.append(count)
        elif kind == "gradient":
            steps.append(("gradient", at, draw(st.sampled_from(leaves))))
            gradients += 1
        elif kind == "rebind":
            steps.append(("rebind", draw(st.sampled_from(leaves)), draw(st.floats(-1, 1, width=16))))
        else:
            steps.append((kind, at))
        count += kind in MAKING
    return steps, draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=3)), draw(st.integers(1, 2))


def by_jax(steps, deltas):
    """The program's values; ``deltas`` are added to the leaves, whatever they hold."""
    now = [jnp.asarray(A) + deltas[0], jnp.asarray(2 * A) + deltas[1]]
    for k, (kind, *of) in enumerate(steps):
        if kind == "op":
            op, i, j = of
            now.append(OPS[op](jnp, now[i], now[j]))
        elif kind == "cut":
            i = of[0]
            now.append(lax.stop_gradient(now[i]) + deltas.get(len(now), 0))
        elif kind == "gradient":
            i, leaf = of

            def total(delta, i=i, leaf=leaf, k=k):
                return by_jax(steps[:k], {**deltas, leaf: delta})[i].sum()

            now.append(jax.grad(total)(deltas.get(leaf, jnp.zeros(3))) * factor(steps, leaf))
        elif kind == "rebind":
            leaf, x = of
            now[leaf] = jnp.full(3, x, np.float32) + deltas.get(leaf, 0)
    return now


def factor(steps, leaf):
    """What the hook of a leaf multiplies gradients by."""
    makers = [s for s in steps if s[0] in MAKING]
    return 2.0 if leaf >= N_PARAMETERS and makers[leaf - N_PARAMETERS][3] else 1.0


def by_tape(steps, roots, sweeps):
    """Return the values of the leaves, and their gradients; None where they were dropped."""
    now = [tape.Variable(A), tape.Variable(2 * A)]
    leaves = {0, 1}
    dropped = set()
    for kind, *of in steps:
        if kind == "op":
            op, i, j = of
            now.append(OPS[op](tnp, now[i], now[j]))
        elif kind == "cut":
            i, how, hooked = of
            if how == "unchain":
                made = now[i] + 0.0
                made.unchain()
                made.requires_grad_()
            elif how == "no_grad":
                with tape.no_grad():
                    made = (now[i] + 0.0).requires_grad_()
            else:
                made = now[i].detach().requires_grad_()
            assert made.is_leaf
            assert made.op is None
            if hooked:
                made.register_hook(lambda g: 2.0 * g)
            leaves.add(len(now))
            now.append(made)
        elif kind == "gradient":
            i, leaf = of
            now.append(gradient(now[i], now[leaf]))
        elif kind == "look":
            now[of[0]].value
        elif kind == "drop":
            dropped.add(of[0])
        elif kind == "rebind":
            leaf, x = of
            now[leaf].value = np.full(3, x, np.float32)
    kept = {i: now[i] for i in leaves - dropped}
    loss = tnp.sum(sum((now[i] for i in roots), start=tape.constant(np.zeros(3, np.float32))))
    del now
    for n in range(sweeps):
        if loss.requires_grad:
            loss.backward(retain_graph=n + 1 < sweeps)
    return {i: (np.asarray(v.value), None if v.grad is None else np.asarray(v.grad.value)) for i, v in kept.items()}


def gradient(output, leaf):
    if not output.requires_grad:
        return tape.constant(np.zeros(3, np.float32))
    return tape.gradients(tnp.sum(output), leaf, create_graph=True, unconnected="zero")


@given(programs())
def test_programs_agree_with_jax(program):
    steps, roots, sweeps = program
    leaves = [0, 1]
    count = N_PARAMETERS
    for kind, *_ in steps:
        if kind == "cut":
            leaves.append(count)
        count += kind in MAKING
    zeros = {i: jnp.zeros(3) for i in leaves}
    values = by_jax(steps, zeros)
    expected = jax.grad(lambda deltas: sum(by_jax(steps, deltas)[i].sum() for i in roots))(zeros)
    for eager in (False, False, False, True):  # met first, put on the trie, found there
        with tape.eager() if eager else tape.enable_grad():
            found = by_tape(steps, roots, sweeps)
        for i, (value, grad) in found.items():
            np.testing.assert_allclose(value, values[i], rtol=1e-4, atol=1e-5)
            total = sweeps * factor(steps, i) * expected[i]
            np.testing.assert_allclose(0 if grad is None else grad, total, rtol=1e-3, atol=1e-4)


# -- what a pending leaf is ------------------------------------------------------------------------------------------------


def test_it_is_a_leaf_and_nothing_ran():
    w = tape.Variable(A, name="w")
    before = flushes()
    x = leaf_of(w * 2)
    h = (w * 3).detach()
    h.name = "h"
    assert h.requires_grad_() is h
    u = w * w
    u.unchain()
    for v in (x, h, u):
        assert v.requires_grad
        assert v.is_leaf
        assert v.op is None
        assert v.grad is None
        assert pending(v)
        v.retain_grad()  # of a leaf: nothing to do
        assert v.requires_grad_() is v
        v.unchain()
    assert h.name == "h"
    tnp.sum(x * h * u).backward()
    assert flushes() == before + 1
    assert w.grad is None, "a leaf is cut off from what it was made of"
    close(x.grad, 3 * A**3)
    close(h.grad, 2 * A**3)
    close(u.grad, 6 * A**2)
    close(x, 2 * A)
    close(u, A * A)


@pytest.mark.parametrize("looked", [False, True])
def test_it_gathers_over_sweeps_and_enters_later_segments(looked):
    w = tape.Variable(A)
    x = leaf_of(w * 2)
    y = tnp.sum(x * x)
    if looked:
        float(y)
    y.backward()
    tnp.sum(tnp.sin(x) * w).backward()
    close(x.grad, 4 * A + np.cos(2 * A) * A)
    close(w.grad, np.sin(2 * A))
    g = tape.gradients(tnp.sum(x**3), x, create_graph=True)
    close(tape.gradients(tnp.sum(g), x), 12 * A)


@pytest.mark.parametrize("looked", [False, True])
def test_a_segment_that_has_run_leads_to_it(looked):
    w = tape.Variable(A)
    x = leaf_of(w * 2)
    y = tnp.sum(tnp.sin(x) * x * w)
    if looked:
        float(y)
    g = tape.gradients(y, x, create_graph=True)
    if looked:
        g.value
    gx, gw = tape.gradients(tnp.sum(g * g), [x, w])

    def slope(x, w):
        return jax.grad(lambda x: jnp.sum(jnp.sin(x) * x * w))(x)

    ex, ew = jax.grad(lambda x, w: jnp.sum(slope(x, w) ** 2), (0, 1))(2 * A, A)
    close(gx, ex)
    close(gw, ew)


def test_as_inputs_ignored_root_and_seed():
    w = tape.Variable(A)
    x, u = leaf_of(w * 2), leaf_of(w * 3)
    y = x * u * w
    gx, gw = tape.gradients(y, [x, w], np.ones(3, np.float32), retain_graph=True)
    close(gx, 3 * A * A)
    close(gw, 6 * A * A)
    tape.backward(y, [u], inputs=[u], retain_graph=True)
    close(u.grad, 2 * A * A * 3 * A)
    assert x.grad is None
    tape.backward(y, [np.ones(3, np.float32)], ignore=[x])
    assert x.grad is None
    close(u.grad, 2 * A * A * (3 * A + 1))
    close(w.grad, 6 * A * A)
    v = leaf_of(w * 2)
    v.backward(np.float32([1, 2, 3]))
    close(v.grad, [1, 2, 3])
    seed = leaf_of(w * 2)
    close(tape.gradients(tape.gradients(w * w, w, seed, create_graph=True).sum(), seed), 2 * A)


def test_hooks_see_it():
    w = tape.Variable(A)
    x = leaf_of(w * 2)
    met = []
    handle = x.register_hook(lambda g: met.append(g.numpy()) or 10 * g)
    x.register_post_accumulate_grad_hook(lambda v: met.append(v.grad.numpy()))
    tnp.sum(x * w).backward(retain_graph=True)
    np.testing.assert_allclose(met, [A, 10 * A])
    handle.remove()
    tnp.sum(x * w).backward()
    close(x.grad, 11 * A)


def test_rebinding_is_a_snapshot():
    w = tape.Variable(A)
    x = leaf_of(w * 2)
    y = tnp.sum(x * x)
    x.value = A
    z = tnp.sum(x * x * x)
    tape.backward([y, z])
    close(x.grad, 4 * A + 3 * A**2)
    close(x, A)
    x, a = leaf_of(w * 2), 2 * A
    y = tnp.sum(tnp.sin(x) * x)
    x.value = A  # nobody holds the old value any more, and it is needed
    float(y)
    g = tape.gradients(y, x, create_graph=True)
    close(g, np.cos(a) * a + np.sin(a))
    close(tape.gradients(tnp.sum(g), x), 2 * np.cos(a) - a * np.sin(a))
    with pytest.raises(TapeValueError, match="leaf"):
        leaf_of(w * 2)[0] = 1.0


def test_the_flag_and_copies():
    w = tape.Variable(A)
    x = leaf_of(w * 2)
    other = copy.copy(leaf_of(w * 2))
    close(other, 2 * A)
    assert other.is_leaf
    assert other.requires_grad
    close(copy.deepcopy(leaf_of(w * 2)), 2 * A)
    restored = pickle.loads(pickle.dumps(leaf_of(w * 2)))  # noqa: S301 - our own bytes
    close(restored, 2 * A)
    assert restored.requires_grad
    detached = leaf_of(w * 3).detach()
    assert pending(detached), "detach() looks at nothing"
    assert not detached.requires_grad
    x.requires_grad_(False)
    assert not (x * x).requires_grad
    close(x.requires_grad_(), 2 * A)
    close(jax.tree.leaves(leaf_of(w * 2))[0], 2 * A)


@pytest.mark.parametrize("mode", [tape.no_grad, tape.enable_grad])
def test_it_does_not_depend_on_the_mode(mode):
    w = tape.Variable(A)
    with mode():
        x = leaf_of(w * 2)
    close(tape.gradients(tnp.sum(x * x), x), 4 * A)


def test_an_unrecorded_gradient_becomes_a_leaf():
    w = tape.Variable(A)
    g = tape.gradients(tnp.sum(tnp.sin(w)), w).requires_grad_()
    assert pending(g)
    close(tape.gradients(tnp.sum(g * g), g), 2 * np.cos(A))


def test_in_eager_mode_it_has_its_value():
    w = tape.Variable(A)
    with tape.eager():
        x = (w * 2).detach().requires_grad_()
        assert not pending(x)
        close(tape.gradients(tnp.sum(x * x), x), 4 * A)


def test_weak_types_stay():
    w = tape.Variable(2.0)
    assert leaf_of(w * 2).weak_type == (w * 2).weak_type
    assert ((leaf_of(w * 2) * np.float16(2)).dtype) == ((tape.Variable(2.0) * np.float16(2)).dtype)


# -- where it goes ---------------------------------------------------------------------------------------------------------


def test_a_long_tape_runs_in_between():
    w = tape.Variable(A)
    x = leaf_of(w * 0.5)
    y = x
    for _ in range(1000):
        y = tnp.sin(y)
        last = leaf_of(y) if _ % 100 == 99 else None
    tnp.sum(y).backward()
    assert last is not None
    expected = jax.jit(jax.grad(lambda x: jnp.sum(lax.fori_loop(0, 1000, lambda _, y: jnp.sin(y), x))))(0.5 * A)
    close(x.grad, expected, rtol=1e-3)


def test_captured_by_a_callable():
    w = tape.Variable(A)
    x = leaf_of(w * 2)
    _, ys = tape.lax.scan(lambda c, a: (c, a * x), 0.0, w)
    tnp.sum(ys).backward()
    close(x.grad, np.full(3, A.sum()))


def test_outside_of_what_is_transformed():
    w = tape.Variable(A)
    x = leaf_of(w * 2)
    slope = tape.grad(lambda v: tnp.sum(v * v * x))(A)
    close(tape.gradients(tnp.sum(slope), x), 2 * A)


def test_in_compiled_steps():
    w = tape.Variable(A)
    x = leaf_of(w * 2)

    @tape.jit
    def step():
        tnp.sum(x * x * w).backward()
        return x * 1.0

    for k in range(3):
        close(step(), 2 * A)
        close(x.grad, (k + 1) * 4 * A * A)
    made = tape.jit(lambda v: tape.gradients(tnp.sum(tnp.sin((2 * v).detach().requires_grad_()) * v), v))
    close(made(w), np.sin(2 * A))


def test_among_traced_values():
    zeros = leaf_of(tnp.zeros(3) + 1.0)

    @jax.jit
    def traced(a):
        return tape.gradients(tnp.sum(tape.constant(a) * zeros), zeros).value

    close(traced(A), A)


class Times(tape.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved
        x.value
        return g * y, g * x


def test_saved_by_a_function():
    w = tape.Variable(A)
    x = leaf_of(w * 2)
    y = Times.apply(x, w)
    g = tape.gradients(tnp.sum(y * y), x, create_graph=True)
    close(g, 4 * A**3)
    close(tape.gradients(tnp.sum(g), x), 2 * A**2)


def test_what_it_was_made_of_fails():
    def fail(_):
        raise ValueError("no such number")

    w = tape.Variable(A)
    bad = leaf_of(tnp.where(True, _callback(fail, w.detach()), 0.0))
    good = leaf_of(w * 2)
    for _ in range(2):
        with pytest.raises(ExecutionError, match="no such number"):
            bad.value
        with pytest.raises(ExecutionError, match="no such number"):
            (bad * 2).value
    close(good, 2 * A)
    tnp.sum(good * good).backward()
    close(good.grad, 4 * A)


def _callback(fun, x):
    return lift(lambda a: jax.pure_callback(fun, jax.ShapeDtypeStruct((3,), np.float32), a))(x)


# -- threads ---------------------------------------------------------------------------------------------------------------


def in_thread(fun):
    found = []
    thread = threading.Thread(target=lambda: found.append(fun()))
    thread.start()
    thread.join()
    return found[0]


def test_another_thread_looks_records_and_makes_one():
    w = tape.Variable(A)
    x = leaf_of(w * 2)
    close(in_thread(lambda: x.numpy()), 2 * A)
    x, u, h = leaf_of(w * 2), leaf_of(w * 3), (w * 4).detach()
    close(in_thread(lambda: tape.gradients(tnp.sum(x * x * u), x).numpy()), 12 * A * A)
    h, u = (w * 4).detach(), leaf_of(w * 3)
    made = in_thread(h.requires_grad_)
    assert not pending(made), "not that thread's segment: looked at"
    close(tape.gradients(tnp.sum(made * u), u), 4 * A)


# -- memory ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def without_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("kept", ["function", "hook", "plain"])
def test_dropping_it_frees_the_pending_tape(kept):
    LOCAL.segment() and (tape.Variable(A) * 2).value
    w = tape.Variable(A)
    x = leaf_of(w * 2)
    segment, dropped = weakref.ref(LOCAL.segment()), weakref.ref(x)
    y = Times.apply(x, w) if kept == "function" else x * w
    if kept == "hook":
        x.register_hook(lambda g: g)
        g = tape.gradients(y, x, w, create_graph=True)
        del g
    del y
    assert segment() is not None, "it waits for it"
    del x
    assert dropped() is None
    assert segment() is None


@pytest.mark.usefixtures("without_collector")
def test_once_run_it_keeps_nothing():
    w = tape.Variable(A)
    x = leaf_of(w * 2)
    segment = weakref.ref(LOCAL.segment())
    y = tnp.sum(tnp.sin(x) * w)
    y.backward()
    w.zero_grad()
    x.zero_grad()
    del y
    assert segment() is None
    close(x, 2 * A)
    x = leaf_of(w * 2)
    big = x * w
    residual = weakref.ref(LOCAL.segment())
    big.value
    assert residual() is not None
    del big
    assert residual() is None


# -- steps -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch, sweeps_through_python):
    """How often a call of gradients() was recalled and a backward() replayed."""
    counts = {"recalled": 0, "replayed": 0}
    original = differentiation.asked

    def counting(outputs, inputs, *args, **options):
        known = original(outputs, inputs, *args, **options)
        counts["replayed" if inputs is None else "recalled"] += known is not None and known[1] in known[0].state.next
        return known

    monkeypatch.setattr(differentiation, "asked", counting)

    def at_once(known, kind):
        def knowing(*args):
            found = known(*args)
            counts[kind] += found is not None
            return found

        return knowing

    monkeypatch.setattr(differentiation, "replayed", at_once(differentiation.replayed, "replayed"))
    monkeypatch.setattr(differentiation, "regained", at_once(differentiation.regained, "recalled"))
    return counts


@pytest.mark.parametrize("keep", [True, False])
def test_a_penalty_step_is_one_program_found_again(counted, keep):
    w = tape.Variable(W)

    def critic(x):
        return tnp.sum(tnp.tanh(x @ w))

    def step(a):
        x = leaf_of(0.5 * (tape.constant(a) + tape.constant(W)))
        g = tape.gradients(critic(x), x, create_graph=True)
        if not keep:
            del x
        loss = tnp.sum((tnp.sqrt(tnp.sum(g * g, axis=1)) - 1) ** 2)
        loss.backward()
        found = w.grad.value
        w.zero_grad()
        return found, x.grad.value if keep else None

    def expected(x, w):
        g = jax.grad(lambda x: jnp.sum(jnp.tanh(x @ w)))(x)
        return jnp.sum((jnp.sqrt(jnp.sum(g * g, axis=1)) - 1) ** 2)

    for k in range(8):
        a = np.float32(k) * W.T
        before = flushes()
        gw, gx = step(a)
        assert flushes() == before + 1
        ex, ew = jax.grad(expected, (0, 1))(0.5 * (a + W), W)
        close(gw, ew, rtol=1e-4)
        if keep:
            close(gx, ex, rtol=1e-4)
    assert min(counted.values()) >= 4


def test_a_step_replayed_with_its_leaf_gone_gives_it_its_gradient_when_it_is_there(counted):
    w = tape.Variable(A)
    for k in range(10):
        x = leaf_of(w * 2)
        y = tnp.sum(x * x * w)
        if k < 5:
            del x
        y.backward()
        close(w.grad, 4 * A * A)
        w.zero_grad()
        if k >= 5:
            close(x.grad, 4 * A * A)
    assert counted["replayed"] >= 7


def test_meta_learning_is_one_program():
    w = tape.Variable(A)
    for k in range(6):
        p = leaf_of(w * (1.0 + k))
        before = flushes()
        q = p
        for _ in range(2):
            q = q - 0.1 * tape.gradients(tnp.sum(tnp.sin(q) ** 2), q, create_graph=True)
        tnp.sum(q * q).backward()
        assert flushes() == before + 1

        def outer(p):
            q = p
            for _ in range(2):
                q = q - 0.1 * jax.grad(lambda q: jnp.sum(jnp.sin(q) ** 2))(q)
            return jnp.sum(q * q)

        close(p.grad, jax.grad(outer)(A * np.float32(1 + k)), rtol=1e-4)


def test_freezing_what_was_updated_just_now_runs_nothing(stats):
    w, v = tape.Variable(A), tape.Variable(2 * A)
    q = jnp.asarray(A), jnp.asarray(2 * A)

    def loss(np, w, v):
        return (np.tanh(w * A) * v).sum()

    for turn in range(24):
        w.requires_grad_(turn % 2 == 0)
        loss(tnp, w, v).backward()
        assert (w.grad is not None) == w.requires_grad == (turn % 2 == 0)
        with tape.no_grad():
            for p in (w, v):
                if p.requires_grad:
                    p -= 0.1 * p.grad  # noqa: PLW2901
                    p.grad = None
        g = jax.grad(functools.partial(loss, jnp), (0, 1))(*q)
        q = q[0] - 0.1 * g[0] if turn % 2 == 0 else q[0], q[1] - 0.1 * g[1]
    assert stats.flushes == {"backward": 24}
    close(w.value, q[0])
    close(v.value, q[1])
    assert w.is_leaf
    w.value = A
    assert w.requires_grad_().grad is None


def test_a_frozen_leaf_keeps_its_gradient_its_hooks_and_its_node():
    w, seen = tape.Variable(A), []
    w.register_hook(lambda g: seen.append(g.shape))
    (w * w).sum().backward()
    with tape.no_grad():
        w -= 0.1 * w.grad
    w.requires_grad_(False)
    assert pending(w)
    assert w.grad is not None
    y = (w * 2.0).sum()
    assert not y.requires_grad
    w.requires_grad_()
    assert pending(w)
    (w * w).sum().backward()
    assert seen == [(3,), (3,)]
    close(w.grad.value, 2 * A + 2 * 0.8 * A)


def test_what_was_recorded_before_it_was_frozen_still_flows():
    w = tape.Variable(A)
    with tape.no_grad():
        w -= 0.5 * w
    y = (w * w).sum()
    w.requires_grad_(False)
    y.backward()
    close(w.grad.value, A)
