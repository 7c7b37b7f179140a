"""Contracts 14 and 17: what a sweep releases, and what dropping Variables frees."""

import gc
import itertools
import weakref

import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape.errors import ReleasedTapeError
from tests.contracts.counting import counted

A = np.array([1.0, -2.0, 0.5], np.float32)


def equal(variable, expected):
    np.testing.assert_allclose(np.asarray(variable.value), np.asarray(expected, variable.dtype), rtol=1e-6)


# -- 14 --------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("looked", [True, False])
@pytest.mark.parametrize("by", ["backward", "gradients"])
def test_contract_14_a_second_sweep_raises(by, looked):
    x = tape.Variable(3.0)
    h = x * x
    y = h * x
    if looked:
        float(y)
    if by == "backward":
        y.backward()
    else:
        equal(tape.gradients(y, x), 27)
    before = x.grad
    for again in (lambda: y.backward(), lambda: tape.gradients(y, [x]), lambda: h.backward(), lambda: (y * 2).backward()):
        with pytest.raises(ReleasedTapeError, match="retain_graph=True"):
            again()
    assert x.grad is before or float(x.grad) == float(before)
    equal(y, 27)
    equal(h, 9)


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("looks", list(itertools.product([True, False], repeat=2)))
def test_contract_14_retained_it_gives_the_same_again(looks):
    x = tape.Variable(A)
    y = (tnp.sin(x) * x).sum()
    expected = np.cos(A) * A + np.sin(A)
    for k, look in enumerate(looks):
        if look:
            float(y)
        y.backward(retain_graph=True)
        equal(x.grad, (k + 1) * expected)
        equal(tape.gradients(y, x, retain_graph=True), expected)
    y.backward()
    with pytest.raises(ReleasedTapeError):
        y.backward()


def test_contract_14_create_graph_retains_unless_told_otherwise():
    x = tape.Variable(3.0)
    y = x * x
    tape.gradients(y, x, create_graph=True)
    tape.gradients(y, x, create_graph=True, retain_graph=False)
    with pytest.raises(ReleasedTapeError):
        y.backward()


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("looked", [True, False])
def test_contract_14_a_shared_part_is_released_by_the_first_root(looked):
    x, w = tape.Variable(3.0), tape.Variable(5.0)
    shared = x * x
    a, b, free = shared * 2, shared * 7, w * w
    if looked:
        tape.backward([a * 0 + b * 0 + free * 0], retain_graph=True)
        x.zero_grad()
        w.zero_grad()
    a.backward()
    with pytest.raises(ReleasedTapeError):
        tape.backward([free, b])
    assert w.grad is None
    free.backward()  # what was not swept is still there
    equal(w.grad, 10)
    equal(x.grad, 12)


@pytest.mark.usefixtures("tier")
def test_contract_14_only_what_was_swept_is_released():
    x, w = tape.Variable(3.0), tape.Variable(5.0)
    h, k = x * x, w * w
    y = h * k
    y.backward(inputs=[x])
    equal(x.grad, 2 * 3 * 25)
    k.backward()
    equal(w.grad, 10)
    with pytest.raises(ReleasedTapeError):
        y.backward(inputs=[w])


@pytest.mark.usefixtures("tier")
def test_contract_14_a_released_root_is_a_value_still():
    x = tape.Variable(3.0)
    y = x * x
    y.backward()
    z = y.detach() * x
    z.backward()
    equal(x.grad, 6 + 9)


def test_contract_14_long_tapes_are_released_segment_by_segment():
    x = y = tape.Variable(1.0)
    for _ in range(1000):
        y = y * 1.0
    y.backward()
    with pytest.raises(ReleasedTapeError):
        y.backward()
    y = x
    for _ in range(1000):
        y = y * 1.0
    y.backward(retain_graph=True)
    y.backward()
    equal(x.grad, 3)


# -- 17 --------------------------------------------------------------------------------------------------------------------


class Big:
    """Arrays that can be watched."""

    def __init__(self):
        self.refs = []

    def array(self, value=1.0):
        a = jnp.full((1000,), value)
        self.refs.append(weakref.ref(a))
        return a

    def watch(self, *objects):
        self.refs.extend(weakref.ref(o) for o in objects)

    def alive(self):
        return [ref() for ref in self.refs if ref() is not None]


@pytest.fixture
def big():
    """No garbage collector: only reference counts free."""
    gc.collect()
    gc.disable()
    yield Big()
    gc.enable()


def segments_of(variable):
    found, stack = [], [variable._segment]
    while stack:
        s = stack.pop()
        if s is not None and all(s is not f for f in found):
            found.append(s)
            stack.extend(o[0] for o in s.origins.values() if isinstance(o, tuple))
    return found


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("state", ["pending", "run", "swept", "retained", "create_graph", "hooked", "failed"])
def test_contract_17_dropping_the_last_reference_frees_everything(big, state):
    x = tape.Variable(big.array(2.0))
    h = tnp.sin(x) * x
    y = (h * big.array(3.0)).sum()
    if state == "hooked":
        h.register_hook(lambda g: g * 2)
        x.register_hook(lambda g: None)
        h.retain_grad()
    if state == "run":
        float(y)
    elif state == "failed":
        handle = h.register_hook(lambda g: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            y.backward()
        handle.remove()
        del handle
    elif state != "pending":
        y.backward(retain_graph=state == "retained" or None, create_graph=state == "create_graph")
        big.watch(x.grad)
    big.watch(x, h, y, *segments_of(y))
    assert big.alive()
    del x, h, y
    assert big.alive() == []


def test_contract_17_a_sweep_frees_residuals_at_once(big):
    """After backward() without retain_graph the root is held, and nothing behind it."""
    x = tape.Variable(big.array(2.0))
    c = big.array(3.0)
    h = tnp.exp(x)
    y = (tnp.sin(h) * c).sum()
    float(y)
    big.watch(h)
    segment = y._segment
    del c, h
    y.backward()
    x.zero_grad()
    assert not segment.run.saved
    assert not segment.leaves
    del x
    assert big.alive() == []
    assert np.isfinite(float(y))


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("create_graph", [False, True])
def test_contract_17_functions_hold_no_cycle(big, create_graph):
    """What a tape.Function saves (inputs, outputs, other Variables) refers back to nothing."""

    class Square(tape.Function):
        @staticmethod
        def forward(ctx, x):
            y = x * x
            ctx.save_for_backward(x, {"y": y}, [big.array()])
            return y

        @staticmethod
        def backward(ctx, g):
            x, _, _ = ctx.saved
            return 2 * x * g

    x = tape.Variable(big.array(3.0))
    y = Square.apply(x).sum()
    y.backward(create_graph=create_graph)
    big.watch(x, y, x.grad, *segments_of(y))
    del x, y
    assert big.alive() == []


def test_contract_17_the_tape_behind_a_dropped_branch_goes(big):
    x = tape.Variable(np.float32(2.0))
    keep = x * x
    branch = (tnp.sin(x) * big.array()).sum()
    big.watch(branch)
    del branch
    float(keep)
    keep.backward()
    equal(x.grad, 4)
    assert big.alive() == []


@pytest.mark.usefixtures("tier")
def test_contract_17_a_training_loop_holds_one_step(big):
    w = tape.Variable(np.ones(1000, np.float32))
    for _ in range(5):
        loss = (w * w * big.array()).sum()
        big.watch(loss)
        w.zero_grad()
        loss.backward()
        w.value = w.value - 0.1 * w.grad.value
    del loss
    w.zero_grad()
    assert big.alive() == []


def test_contract_17_transforms_free_their_arguments(big):
    a = big.array(2.0)
    tape.grad(lambda x: (x * x).sum())(a)
    y, pull = tape.vjp(lambda x: tnp.sin(x), a)
    pull(big.array())
    tape.jvp(lambda x: tnp.sin(x), (a,), (big.array(),))
    del a, y, pull
    assert big.alive() == []


@pytest.mark.usefixtures("tier")
def test_contract_17_a_long_chain_is_freed_without_recursion(big):
    x = tape.Variable(1.0)
    apply, _ = counted()
    y = apply(x)
    for _ in range(5_000):
        y = y * 1.0
    big.watch(x, y)
    del x, y, apply
    assert all(not isinstance(v, tape.Variable) for v in big.alive())


@pytest.mark.parametrize("looked", [False, True])
@pytest.mark.parametrize("options", [{}, {"ignore": "w"}, {"inputs": "x"}, {"inputs": "wx"}])
def test_a_released_way_beside_one_that_was_cut_raises(options, looked):
    x, w = tape.Variable(2.0), tape.Variable(3.0)
    named = {"x": x, "w": w}
    y = x * 1.0
    if looked:
        assert float(y) == 2.0
    z = y * 0.5
    tape.backward([y, z], [1.0, 1.0])
    z.unchain()
    q = w * w
    assert float(q) == 9.0
    with pytest.raises(ReleasedTapeError):
        tape.backward([q, y], [1.0, 1.0], **{name: [named[v] for v in value] for name, value in options.items()})
    assert (float(x.grad), w.grad) == (1.5, None)
    if not looked:  # what is older is not known any more
        tape.backward([q, y], [1.0, 1.0], inputs=[w])
        assert float(w.grad) == 6.0
