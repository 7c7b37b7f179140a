"""Contracts 23 and 25: what is made without recording, and what is cut from its past, for every later sweep."""

import copy
import functools
import gc
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import interop
import tape
import tape.numpy as tnp
from tape.errors import ExecutionError, ReleasedTapeError, TapeRuntimeError, UnconnectedError, UnrecordedGradientError
from tests import agreement

A = np.array([0.5, -0.25, 0.75], np.float32)
W = np.array([[0.2, -0.4, 0.1], [0.7, 0.3, -0.6], [-0.5, 0.8, 0.9]], np.float32)

close = functools.partial(agreement.close, rtol=2e-5)


# -- 25: unchain -------------------------------------------------------------------------------------------------------------

WHEN = pytest.mark.parametrize("looked", ["pending", "middle", "result", "both"])


def chain(looked, function=lambda y: y * y):
    """Return x, y computed from it, and z computed from y; looked at or not."""
    x = tape.Variable(3.0)
    y = tnp.sin(x)
    if looked in ("middle", "both"):
        float(y)
    z = function(y)
    if looked in ("result", "both"):
        float(z)
    return x, y, z


@pytest.mark.usefixtures("tier")
@WHEN
def test_contract_25_unchain_cuts_what_was_computed_before(looked):
    for _ in range(3):
        x, y, z = chain(looked)
        y.unchain()
        assert y.is_leaf
        assert y.requires_grad
        assert y.op is None
        z.backward()
        assert x.grad is None
        close(y.grad, 2 * np.sin(3.0))
        (y * x).backward()  # and what is computed afterwards
        close(x.grad, np.sin(3.0))
        close(y.grad, 2 * np.sin(3.0) + 3)


@pytest.mark.usefixtures("tier")
@WHEN
def test_contract_25_other_ways_stay(looked):
    x, y, z = chain(looked, lambda y: y * y)
    w = tnp.cos(x)
    total = z * w
    y.unchain()
    total.backward()
    close(x.grad, -np.sin(3.0) * np.sin(3.0) ** 2)
    close(y.grad, 2 * np.sin(3.0) * np.cos(3.0))


@pytest.mark.usefixtures("tier")
@WHEN
def test_contract_25_sweeps_before_the_cut_are_as_they_were(looked):
    x, y, z = chain(looked)
    z.backward(retain_graph=True)
    close(x.grad, 2 * np.sin(3.0) * np.cos(3.0))
    y.unchain()
    z.backward(retain_graph=True)
    z.backward()
    close(x.grad, 2 * np.sin(3.0) * np.cos(3.0))
    close(y.grad, 4 * np.sin(3.0))


@pytest.mark.usefixtures("tier")
@WHEN
def test_contract_25_unchain_in_higher_orders(looked):
    x, y, z = chain(looked, lambda y: y * y * y)
    y.unchain()
    g = tape.gradients(z, y, create_graph=True)
    close(g, 3 * np.sin(3.0) ** 2)
    close(tape.gradients(g, y, retain_graph=True), 6 * np.sin(3.0))
    g.backward()
    assert x.grad is None
    with pytest.raises(UnconnectedError):
        tape.gradients(y * y, x)


@pytest.mark.usefixtures("tier")
@WHEN
@pytest.mark.parametrize("when", ["before", "after"])
def test_contract_25_a_recorded_gradient_is_cut_as_well(looked, when):
    """The gradient reads y, which leads to x no more."""
    x, y, z = chain(looked, lambda y: y * y * y)
    g = tape.gradients(z, y, create_graph=True)
    if when == "before":
        float(g)
    y.unchain()
    g.backward()
    assert x.grad is None
    close(y.grad, 6 * np.sin(3.0))


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("order", ["cut first", "run first"])
def test_contract_25_what_is_computed_again_leads_nowhere_else(order):
    """Elementwise values are not kept but computed again by the sweep: also those that were cut, and nobody holds."""
    for _ in range(3):
        x = tape.Variable(3.0)
        y = tnp.sin(x)
        z = y * y * y
        last = tnp.cos(y)
        del y
        if order == "run first":
            float(z)
            float(last)
        last.unchain_backward()
        g = tape.gradients(z, z, create_graph=True)
        assert float(g) == 1.0
        z.backward(create_graph=True)
        assert x.grad is None
        again = tape.Variable(0.7)
        y = tnp.sin(again)
        z = y**3 * again
        if order == "run first":
            float(z)
        y.unchain()
        first = tape.gradients(z, again, create_graph=True)
        close(first, np.sin(0.7) ** 3)
        close(tape.gradients(first, y), 3 * np.sin(0.7) ** 2)


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("run", [False, True])
def test_contract_25_streams_end_at_cuts(run):
    x = tape.Variable(A)
    y = tnp.sin(x)
    if run:
        float(y.sum())
    z = tnp.sum(y * y)
    y.unchain()
    u = tnp.exp(x)
    if run:
        float(u.sum())
    v = tnp.sum(u * y)
    found = {id(leaf): gradient for leaf, gradient in tape.stream_gradients([z, v])}
    assert found.keys() == {id(x), id(y)}
    close(found[id(y)], 2 * np.sin(A) + np.exp(A))
    close(found[id(x)], np.exp(A) * np.sin(A))
    assert y.grad is None


@pytest.mark.usefixtures("tier")
def test_contract_25_across_segments():
    x = tape.Variable(A)
    y = tnp.sin(x)
    u = tnp.exp(y)
    float(u.sum())
    v = (u * y).sum()
    float(v)
    w = v * v
    u.unchain()
    w.backward()
    slope = 2 * np.sum(np.exp(np.sin(A)) * np.sin(A))
    close(u.grad, slope * np.sin(A))
    close(x.grad, slope * np.exp(np.sin(A)) * np.cos(A))


@pytest.mark.usefixtures("tier")
def test_contract_25_one_of_several_results():
    x = tape.Variable(A)
    first, rest = tnp.split(x * 2, [1])
    total = (first * first).sum() + (rest * rest).sum()
    first.unchain()
    total.backward()
    close(first.grad, 4 * A[:1])
    close(x.grad, [0, *8 * A[1:]])


@pytest.mark.usefixtures("tier")
def test_contract_25_a_function_whose_result_is_cut_is_not_called():
    calls = []

    class Twice(tape.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x, 3 * x

        @staticmethod
        def backward(ctx, *grads):
            calls.append([None if g is None else float(g) for g in grads])
            return sum(k * g for k, g in zip((2, 3), grads, strict=True) if g is not None)

    for _ in range(2):
        x = tape.Variable(1.0)
        a, b = Twice.apply(x)
        z = a * b
        a.unchain()
        z.backward(retain_graph=True)
        assert calls.pop() == [None, 2.0]
        close(x.grad, 6)
        close(a.grad, 3)
        b.unchain()
        z.backward()
        assert not calls
        close(x.grad, 6)
        close(b.grad, 2)


@pytest.mark.usefixtures("tier")
def test_contract_25_hooks_and_retained_gradients_stay_with_what_is_cut():
    seen = []
    x = tape.Variable(2.0)
    y = x * x
    y.retain_grad()
    y.register_hook(lambda g: seen.append(float(g)))
    doubling = y.register_hook(lambda g: 2 * g)
    z = 3 * y
    y.unchain()
    z.backward(retain_graph=True)
    assert seen == [3.0]
    close(y.grad, 6)
    doubling.remove()
    y.register_hook(lambda g: seen.append("new"))
    y.register_post_accumulate_grad_hook(lambda v: seen.append(float(v.grad)))
    z.backward()
    assert seen == [3.0, 3.0, "new", 9.0]
    assert x.grad is None


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("looked", [False, True])
def test_contract_25_a_sweep_that_comes_to_what_was_cut_by_another_way_calls_its_hooks(looked):
    w, seen = tape.Variable(2.0), []
    middle = w * 2
    middle.register_hook(lambda g: seen.append(float(g)))
    middle.retain_grad()
    other, loss = middle * 5, middle * 3
    if looked:
        float(other + loss)
    loss.unchain_backward()
    other.backward()
    assert seen == [5.0]
    assert (float(middle.grad), w.grad) == (5.0, None)


def test_contract_25_unchain_of_what_has_no_past():
    x = tape.Variable(2.0)
    with tape.no_grad():
        constant = x * x
    for v in (x, tape.constant(1.0), constant, x.detach()):
        flag = v.requires_grad
        v.unchain()
        v.unchain_backward()
        assert v.is_leaf
        assert v.requires_grad is flag
    y = x * x
    for _ in range(2):
        y.unchain()
    y.unchain_backward()
    (y * x).backward()
    close(x.grad, 4)
    close(y.grad, 2)


@pytest.mark.usefixtures("tier")
def test_contract_25_a_gradient_taken_without_recording_may_be_cut():
    x = tape.Variable(2.0)
    for method in ("unchain", "unchain_backward", None):
        g = tape.gradients(x**3, x)
        if method is None:
            with pytest.raises(UnrecordedGradientError):
                (g * x).backward()
        else:
            getattr(g, method)()
            x.grad = None
            (g * x).backward()
            close(x.grad, 12)


@pytest.mark.usefixtures("tier")
def test_contract_25_a_root_that_is_cut():
    x = tape.Variable(2.0)
    y = x * x
    y.unchain()
    y.backward()
    assert x.grad is None
    close(y.grad, 1)
    z = y * x
    y.unchain_backward()
    tape.backward([z, y])
    close(y.grad, 1 + 2 + 1)
    close(x.grad, 4)


def test_contract_25_a_copy_shares_the_cut():
    x = tape.Variable(2.0)
    y = x * x
    other = copy.copy(y)
    z = other * other
    y.unchain()
    z.backward()
    assert x.grad is None
    close(y.grad, 8)
    close(tape.gradients(other * 3.0, y), 3)


@pytest.mark.parametrize("function", ["unchain", "unchain_backward"])
def test_contract_25_what_failed_stays_as_it_was(function):
    def broken(v):
        raise ZeroDivisionError

    x = tape.Variable(np.float32(2.0))
    y = interop.lift(lambda v: jax.pure_callback(broken, jax.ShapeDtypeStruct((), np.float32), v))(x)
    with pytest.raises(ExecutionError):
        float(y)
    with pytest.raises(ExecutionError):
        getattr(y, function)()
    assert not y.is_leaf


def test_contract_25_what_another_thread_computes():
    x = tape.Variable(A)
    found = []

    def compute():
        y = tnp.sin(x)
        found.extend([y, (y * y).sum()])

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    y, z = found
    y.unchain()
    z.backward()
    assert x.grad is None
    close(y.grad, 2 * np.sin(A))


# -- 25: programs of cuts ----------------------------------------------------------------------------------------------------

OPS = [
    lambda np, a, _: np.sin(a),
    lambda np, a, b: a * np.cos(b),
    lambda _, a, b: a - 0.3 * b,
    lambda np, a, b: np.tanh(np.dot(W, a)) * b,
]


@st.composite
def programs(draw):
    """Ops on numbered values (the first two are leaves), looks, cuts of one value or of all before it, and sweeps."""
    steps, count = [], 2
    kinds = ["op", "op", "op", "look", "unchain", "unchain_backward", "sweep"]
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=5, max_size=12)):
        at = draw(st.integers(0, count - 1))
        if kind == "op":
            steps.append(("op", draw(st.integers(0, len(OPS) - 1)), at, draw(st.integers(0, count - 1))))
            count += 1
        elif kind == "look" or at >= 2:
            steps.append((kind, at))
    steps.append(("sweep", draw(st.integers(0, count - 1))))
    return steps, draw(st.booleans())


def by_jax(steps, cut, deltas):
    """All values; those that were cut are constants, to which ``deltas`` are added."""
    now = [jnp.asarray(A) + deltas[0], jnp.asarray(2 * A) + deltas[1]]
    for kind, *of in steps:
        if kind == "op":
            op, i, j = of
            made = OPS[op](jnp, now[i], now[j])
            now.append(jax.lax.stop_gradient(made) + deltas[len(now)] if len(now) in cut else made)
    return now


def sources(steps, i):
    """The values that a value was computed from directly."""
    op, *of = [of for kind, *of in steps if kind == "op"][i - 2]
    return of[:1] if op == 0 else of


def ancestors(steps, cut, i):
    """A value and all it leads to by ways on which nothing was cut, without the leaves."""
    found, stack = set(), [i]
    while stack:
        k = stack.pop()
        if k >= 2 and k not in found and k not in cut:
            found.add(k)
            stack.extend(sources(steps, k))
    return found


def expected_gradients(steps, squared):
    """What the sweeps of a program leave in leaves and in what was cut itself."""
    cut, leaves, expected, count = set(), {0, 1}, {}, 2
    for k, (kind, *of) in enumerate(steps):
        i = of[0]
        if kind == "op":
            count += 1
        elif kind == "unchain":
            cut = cut | {i}
            leaves = leaves | {i}
        elif kind == "unchain_backward":
            cut = cut | ancestors(steps[:k], cut, i)
            leaves = leaves | {i}
        elif kind == "sweep":

            def loss(deltas, i=i, k=k, cut=cut):
                return jnp.sin(by_jax(steps[:k], cut, deltas)[i]).sum()

            def squares(deltas, loss=loss, leaves=leaves):
                slope = jax.grad(loss)(deltas)
                return sum((slope[n] ** 2).sum() for n in leaves)

            gradients = jax.grad(squares if squared else loss)({n: jnp.zeros(3) for n in range(count)})
            for n in leaves:
                expected[n] = expected.get(n, 0) + gradients[n]
    return leaves, expected


def gathered_gradients(steps, squared, leaves):
    """What the tape leaves there, None elsewhere."""
    now = [tape.Variable(A), tape.Variable(2 * A)]
    for kind, *of in steps:
        i = of[0]
        if kind == "op":
            op, i, j = of
            now.append(OPS[op](tnp, now[i], now[j]))
        elif kind == "look":
            now[i].value
        elif kind == "sweep":
            loss = tnp.sin(now[i]).sum()
            if squared:  # the gradient of the squared gradients, in one more order
                slope = tape.gradients(loss, [v for v in now if v.is_leaf], unconnected="zero", create_graph=True)
                loss = sum((g * g).sum() for g in slope)
            if loss.requires_grad:
                loss.backward(retain_graph=True)
        else:
            getattr(now[i], kind)()
    assert {n for n, v in enumerate(now) if v.is_leaf} == leaves
    return {n: v.grad.value for n, v in enumerate(now) if v.grad is not None}


@given(programs())
def test_contract_25_programs_agree_with_jax(program):
    """A sweep sees all cuts before it and none after it; the gradients of leaves and of what was cut itself add up."""
    steps, squared = program
    leaves, expected = expected_gradients(steps, squared)
    for _ in range(3):  # met first, put on the trie, found there
        found = gathered_gradients(steps, squared, leaves)
        assert leaves.issuperset(found)
        for n in leaves:
            np.testing.assert_allclose(found.get(n, np.zeros(3)), expected.get(n, 0) * np.ones(3), rtol=1e-3, atol=1e-4)


# -- 25: unchain_backward ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("looked", ["pending", "each", "last"])
def test_contract_25_unchain_backward_cuts_everything_before(looked):
    for _ in range(3):
        x = tape.Variable(2.0)
        states = [x * 1.0]
        for _ in range(3):
            states.append(states[-1] * x)
            if looked == "each":
                float(states[-1])
        aside = states[1] * states[2]
        if looked == "last":
            float(states[-1])
        states[-1].unchain_backward()
        assert states[-1].is_leaf
        assert states[-1].requires_grad
        (states[-1] * x).backward()
        close(x.grad, 16)
        close(states[-1].grad, 2)
        aside.backward()  # it ends at states that were cut
        close(x.grad, 16)
        (states[0] * x).backward()
        close(x.grad, 16 + 2)
        with pytest.raises(UnconnectedError):
            tape.gradients(states[1], x)


@pytest.mark.usefixtures("tier")
def test_contract_25_gradients_of_what_lies_between():
    for looked in (False, True):
        x = tape.Variable(2.0)
        first = x * x
        second, third, last = first * first, first**3, first * 5
        if looked:
            float(second)
        first.retain_grad()
        last.unchain_backward()
        assert not first.is_leaf  # it is what it was, only its past is gone
        assert first.requires_grad
        seen = []
        second.register_hook(lambda g, seen=seen: seen.append(float(g)))
        z = second * third + first
        assert float(tape.gradients(z, first, retain_graph=True)) == 5 * 4.0**4 + 1
        z.backward(retain_graph=True)
        assert x.grad is None
        close(first.grad, 5 * 4.0**4 + 1)
        assert seen == [64.0] * 2
        z.backward(inputs=[third])
        close(third.grad, 16)
        other = first * 3
        other.backward()
        close(first.grad, 5 * 4.0**4 + 1 + 3)


@pytest.mark.usefixtures("tier")
def test_contract_25_what_was_released_can_be_cut():
    """``loss.backward(); loss.unchain_backward()``, and the state goes on."""
    x = tape.Variable(2.0)
    state = tape.constant(1.0)
    for k in range(4):
        loss = tape.constant(0.0)
        for _ in range(2):
            state = state * x
            loss = loss + state
        x.grad = None
        loss.backward()
        before = 4.0**k
        close(x.grad, before * (1 + 2 * 2.0))
        if k == 3:
            with pytest.raises(ReleasedTapeError):
                (state * x).backward()
        loss.unchain_backward()


@pytest.mark.parametrize("eager", [False, True])
def test_contract_25_earlier_steps_are_freed_at_once(eager):
    """With the garbage collector off, and the handles of all states held."""

    def run(steps, cut):
        w = tape.Variable(W)
        state = tape.constant(np.ones(3, np.float32))
        held = []
        gc.collect()
        gc.disable()
        try:
            start = tape.stats().live_bytes
            with tape.set_grad_enabled(True) if not eager else tape.eager():
                for _ in range(steps):
                    state = tnp.tanh(w @ state)
                    held.append(state)
                    float(state[0])
            before = tape.stats().live_bytes - start
            if cut:
                state.unchain_backward()
            after = tape.stats().live_bytes - start
        finally:
            gc.enable()
        (state * state).sum().backward()
        assert (w.grad is None) == cut == (state.grad is not None)
        return before, after, held

    before, after, _ = run(30, cut=True)
    assert before > 30 * 3 * 4
    assert after == 0
    assert run(30, cut=False)[1] > 30 * 3 * 4


def test_contract_25_memory_is_flat_over_thousands_of_windows():
    """Truncated backpropagation through time in three spellings; nothing but the state leads from window to window."""
    gc.collect()
    gc.disable()
    try:
        for spelling in ("state", "loss", "unchain"):
            w = tape.Variable(W)
            state = tape.constant(np.ones(3, np.float32))
            seen = []
            for k in range(400):
                loss = tape.constant(0.0)
                for _ in range(3):
                    state = tnp.tanh(w @ state)
                    loss = loss + (state * state).sum()
                if spelling == "state":
                    state.unchain_backward()
                loss.backward()
                if spelling == "loss":
                    loss.unchain_backward()
                elif spelling == "unchain":
                    state.unchain()
                w.zero_grad()
                if k % 100 == 99:
                    seen.append((tape.stats().live_bytes, tape.stats().live_entries, sum(1 for _ in tape.stats()._alive())))
            assert seen[0] == seen[-1], (spelling, seen)
    finally:
        gc.enable()


def test_contract_25_truncated_windows_are_replayed():
    w = tape.Variable(W)
    state = tape.constant(np.ones(3, np.float32))
    for k in range(8):
        if k == 5:
            tape.stats().reset()
        for _ in range(3):
            state = tnp.tanh(w @ state)
        loss = (state * state).sum()
        loss.backward()
        loss.unchain_backward()
        w.zero_grad()
    stats = tape.stats()
    assert (stats.compiles, stats.interpreted) == (0, 0)
    assert stats.flushes == {"backward": 3}


def test_contract_25_a_long_past_is_cut_without_recursion():
    x = tape.Variable(1.0)
    with tape.eager():
        y = x
        for _ in range(5000):
            y = y * 1.0
        y.unchain_backward()
    (y * x).backward()
    close(x.grad, 1)


# -- 25: traces --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["unchain", "unchain_backward"])
def test_contract_25_inside_tape_jit(function):
    @tape.jit
    def step(x):
        y = x * x
        z = y * y + x
        getattr(y, function)()
        assert y.is_leaf
        z.backward()
        return y.grad, y * x

    for _ in range(3):
        x = tape.Variable(3.0)
        g, later = step(x)
        close(g, 18)
        close(x.grad, 1)
        close(tape.gradients(later, x), 9)


@pytest.mark.parametrize("function", ["unchain", "unchain_backward"])
def test_contract_25_a_result_of_tape_jit_that_was_cut_inside(function):
    @tape.jit
    def step(x):
        y = x * x
        z = y * x
        getattr(y, function)()
        return z, y

    for _ in range(3):
        x = tape.Variable(3.0)
        z, y = step(x)
        assert y.is_leaf
        z.backward(retain_graph=True)
        close(x.grad, 9)
        getattr(z, function)()
        (z * x).backward()
        close(x.grad, 9 + 27)


@pytest.mark.parametrize("function", ["unchain", "unchain_backward"])
def test_contract_25_under_jax(function):
    def total(a):
        x = tape.Variable(a)
        y = x * x
        before = y * x
        getattr(y, function)()
        return tape.gradients(before, x).value, (y * x).value

    for transform in (lambda f: f, jax.jit):
        g, _ = transform(total)(3.0)
        assert float(g) == 9.0
        assert float(transform(jax.grad(lambda a: total(a)[1]))(3.0)) == 9.0

    @interop.lower
    def lowered(x):
        y = x * x
        getattr(y, function)()
        return y * x

    assert float(jax.grad(lowered)(3.0)) == 9.0


@pytest.mark.parametrize("function", ["unchain", "unchain_backward"])
def test_contract_25_what_was_computed_outside_of_a_trace_is_not_cut_inside(function):
    x = tape.Variable(3.0)
    y = x * x
    message = (
        rf"{function}: a Variable that was computed outside of the function that is traced \(shape \(\), dtype float32\).*\.detach\(\)"
    )
    with pytest.raises(TapeRuntimeError, match=message):
        tape.jit(lambda: getattr(y, function)())()
    with pytest.raises(TapeRuntimeError, match=message):
        tape.checkpoint(lambda v: (getattr(y, function)(), v)[1])(x)
    assert not y.is_leaf
    y.backward()
    close(x.grad, 6)


def without_recording(y):
    with tape.no_grad():
        return y * 1


CUTS = {
    "detach": lambda f: lambda x: f(x).detach(),
    "no_grad": tape.no_grad(),
    "no_grad on the result": lambda f: lambda x: without_recording(f(x)),
    "stop_gradient": lambda f: lambda x: tape.stop_gradient(f(x)),
    "tape.lax.stop_gradient": lambda f: lambda x: tape.lax.stop_gradient(f(x)),
}


@pytest.mark.parametrize("inner", [tnp.sin, lambda x: x**2], ids=["sin", "square"])
@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("looked", [False, True], ids=["pending", "looked at"])
def test_contract_25_what_was_cut_is_a_constant_at_every_order(name, inner, looked):
    """The sweep computes cheap values again: what was not recorded the first time is not recorded then."""

    def orders(x):
        y = CUTS[name](inner)(x) * x**3
        for _ in range(3):
            if looked:
                _ = y.value
            y = tape.gradients(y, x, create_graph=True)
            yield y

    x = tape.Variable(0.7)
    c = float(inner(x))
    for found, expected in zip(orders(x), [3 * c * 0.7**2, 6 * c * 0.7, 6 * c], strict=True):
        close(found, expected)

    def raw(a):
        return list(orders(tape.Variable(a)))[1].value

    for transform in (jax.grad, lambda f: jax.jit(jax.grad(f)), jax.jacfwd):
        close(transform(raw)(0.7), 6 * c)


def unchained(x, function, look):
    y = x * x
    z = y * x
    if look:
        _ = z.value
    getattr(y, function)()
    return z * y * x


@pytest.mark.parametrize("look", [False, True], ids=["pending", "looked at"])
@pytest.mark.parametrize("mode", ["plain", "eager", "tape.jit", "tape.checkpoint", "tape.lax.cond"])
@pytest.mark.parametrize("function", ["unchain", "unchain_backward"])
def test_contract_25_what_was_computed_before_the_cut_ends_there_for_jax_too(function, mode, look):
    def fun(x):
        return unchained(x, function, look)

    wrapped = {
        "plain": fun,
        "eager": tape.eager()(fun),
        "tape.jit": tape.jit(fun),
        "tape.checkpoint": tape.checkpoint(fun),
        "tape.lax.cond": lambda x: tape.lax.cond(True, fun, fun, x),
    }[mode]
    expected = 2 * 0.7**5  # y is a constant in y * x * y * x
    x = tape.Variable(0.7)
    close(tape.gradients(wrapped(x), x), expected)

    def raw(a):
        return wrapped(tape.Variable(a)).value

    for transform in (jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: lambda a: jax.vmap(jax.grad(f))(jnp.stack([a]))[0], jax.jacfwd):
        close(transform(raw)(0.7), expected)
    close(jax.grad(jax.grad(raw))(0.7), 2 * 0.7**4)


def test_contract_25_what_a_function_saved_before_a_cut_is_freed_with_results_held():
    contexts = []

    class Tripled(tape.Function):
        @staticmethod
        def forward(ctx, x):
            contexts.append(weakref.ref(ctx))
            return x * 3

        @staticmethod
        def backward(ctx, g):
            return 3 * g

    x = tape.Variable(np.ones(3, np.float32))
    middle = Tripled.apply(x)
    end = middle * middle
    end.unchain_backward()
    assert contexts[0]() is None
    (end + middle).sum().backward()
    assert x.grad is None
