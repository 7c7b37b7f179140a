"""Hooks for saved values: which values pack sees, and that gradients stay what they are (contracts 11, 13, 14, 17, 20, 23)."""

import contextlib
import functools
import gc
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import interop
import tape
import tape.numpy as tnp
from tape.errors import ReleasedTapeError, TapeError, TapeTypeError, TapeValueError
from tape.graph import scope, trie
from tape.graph.boxes import Box
from tape.hooking import packing
from tape.programs import program
from tape.sweeps import emission
from tests import agreement

W = np.array([[0.5, -0.3, 0.2], [0.1, 0.4, -0.6], [0.7, -0.2, 0.3]], np.float32)
X = np.array([[1.0, -2.0], [0.5, 0.3], [-0.7, 0.9]], np.float32)


def network(w, x, layers=3, xp=tnp):
    for _ in range(layers):
        x = xp.tanh(w @ x)
    return (x * x).sum()


def slope(w, x=X, layers=3):
    return jax.grad(lambda w: network(w, x, layers, jnp))(w)


def curvature(w, x=X):
    return jax.grad(lambda w: (slope(w, x) ** 2).sum())(w)


def states(eager):
    """What a sweep through the network reads besides its weights: the input, and of each layer the product (from which a sweep makes the
    tangent again), or the tangent where ops run at once.
    """
    found, x = [X], X
    for _ in range(3):
        x = W @ x
        found.append(np.tanh(x) if eager else x)
        x = np.tanh(x)
    return found


close = functools.partial(agreement.close, rtol=2e-5)


class Log:
    """Hooks that note what they see and change nothing."""

    def __init__(self):
        self.packed = []
        self.unpacked = []

    def pack(self, value):
        assert isinstance(value, tape.Variable)
        assert not value.requires_grad
        self.packed.append(value.numpy())
        return len(self.packed) - 1

    def unpack(self, number):
        self.unpacked.append(number)
        return self.packed[number]

    def hooks(self):
        return tape.saved_value_hooks(self.pack, self.unpack)


@pytest.fixture
def log():
    return Log()


# -- which values -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 4])
def test_pack_sees_what_a_sweep_reads_and_nothing_else(tier, log, times):
    for _ in range(times):
        log.packed.clear()
        with log.hooks():
            w, x = tape.Variable(W), tape.constant(X)
            y = network(w, x)
        assert len(log.packed) == 4
        for seen, expected in zip(log.packed, states(tier == "eager"), strict=True):
            np.testing.assert_allclose(seen, expected, rtol=1e-5)
        log.unpacked.clear()
        y.backward()
        if tier == "lazy":
            assert sorted(log.unpacked) == [0, 1, 2, 3]
        close(w.grad, slope(W))


def test_what_variables_hold_and_looks_afterwards_do_not_decide(log):
    w, x = tape.Variable(W), tape.constant(X)
    with log.hooks():
        held = [x]
        for _ in range(3):
            held += [w @ held[-1]]
            held += [tnp.tanh(held[-1])]
        y = (held[-1] * held[-1]).sum()
    assert [p.shape for p in log.packed] == [X.shape] * 4
    assert [float(h.sum()) for h in held]
    assert len(log.packed) == 4
    y.backward()
    close(w.grad, slope(W))


def test_what_no_root_leads_to_is_not_packed(log):
    w, x = tape.Variable(W), tape.constant(X)
    with log.hooks():
        network(w, x)
        y = (w * 2).sum()
    assert log.packed == []
    y.backward()


def test_leaves_that_require_grad_numbers_and_keys_are_not_packed(log):
    w, v, key = tape.Variable(W), tape.Variable(W), tape.constant(jax.random.key(0))
    with log.hooks():
        y = (w * v * 3.0 * tape.random.normal(key, (3, 3))).sum()
    y.backward()
    noise = np.asarray(jax.random.normal(jax.random.key(0), (3, 3)))
    assert [p.shape for p in log.packed] in ([(3, 3)], [(3, 3), (3, 3)])
    close(w.grad, W * 3 * noise)


def test_a_key_that_a_sweep_reads_is_not_packed(log):
    w, key = tape.Variable(W), tape.constant(jax.random.key(0))
    noisy = tape.checkpoint(lambda v, k: (tnp.sin(v) * tape.random.normal(k, (3, 3))).sum())
    with log.hooks():
        y = noisy(w, key)
    assert log.packed == []
    y.backward()
    close(w.grad, np.cos(W) * np.asarray(jax.random.normal(jax.random.key(0), (3, 3))))


def test_masks_and_indices_are_packed(log):
    w = tape.Variable(W)
    rows, mask = tape.constant(np.array([2, 0])), tape.constant(W > 0)
    with log.hooks():
        y = tnp.where(mask, w, 0.0)[rows].sum()
    assert {p.dtype.kind for p in log.packed} == {"b", "i"}
    y.backward()
    close(w.grad, np.array([1, 0, 1])[:, None] * (W > 0))


def test_a_value_that_many_entries_and_contexts_read_is_packed_once(log, tier):
    w, x = tape.Variable(W), tape.constant(X)
    roots = []
    for _ in range(3):
        with log.hooks():
            roots.append((w @ x).sum())
    assert len(log.packed) == 1
    tape.backward(roots)
    close(w.grad, 3 * np.ones((3, 2), np.float32) @ X.T)


def test_a_value_that_several_contexts_pack_is_unpacked_by_the_hooks_of_each():
    w, x = tape.Variable(W), tape.constant(X)
    first, second, seen = Log(), Log(), []
    contexts = [first.hooks(), second.hooks(), tape.saved_value_hooks(first.pack, lambda n: seen.append(n) or first.packed[n])]
    roots = []
    for context in contexts:
        with context:
            roots.append((w @ x).sum())
    assert [len(first.packed), len(second.packed)] == [2, 1]
    tape.backward(roots)
    assert [first.unpacked, second.unpacked, seen] == [[0], [0], [1]]


def test_unpack_may_use_its_array_again(log):
    """One that lies so that JAX would take it as it is, without a copy."""
    memory = np.empty(X.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    array = memory[start : start + X.nbytes].view(np.float32).reshape(X.shape)

    def unpack(number):
        array[...] = log.packed[number]
        return array

    w, x = tape.Variable(W), tape.constant(X)
    with tape.saved_value_hooks(log.pack, unpack):
        y = network(w, x)
    y.backward()
    close(w.grad, slope(W))


def test_inner_values_of_loops_checkpoints_and_lifted_functions(log):
    def layer(x, _=None):
        return tnp.tanh(w @ x), None

    calls = {
        "scan": lambda: (tape.lax.scan(layer, x, None, length=3)[0] ** 2).sum(),
        "checkpoint": lambda: tape.checkpoint(lambda x: network(w, x))(x),
        "lift": lambda: interop.lift(lambda w, x: network(w, x, xp=jnp))(w, x),
    }
    expected = {"scan": (X.size * 7, 1), "checkpoint": (X.size, 1), "lift": (X.size * 4, 1)}
    for name, call in calls.items():
        w, x = tape.Variable(W), tape.constant(X)
        log.packed.clear()
        with log.hooks():
            y = call()
        assert sum(p.size for p in log.packed) <= expected[name][0], name
        assert len(log.packed) >= expected[name][1]
        y.backward()
        close(w.grad, slope(W))


def test_what_was_recorded_before_and_after_is_left_alone(log):
    w, x = tape.Variable(W), tape.constant(X)
    before = tnp.tanh(w @ x)
    with log.hooks():
        inside = tnp.tanh(w @ before)
    after = tnp.tanh(w @ inside)
    (after * after).sum().backward()
    assert len(log.packed) == 2  # the input from before, and the result
    close(w.grad, slope(W))


# -- that gradients stay ------------------------------------------------------------------------------------------------


def test_a_sweep_that_follows_at_once_uses_what_unpack_returns(tier):
    w, x = tape.Variable(W), tape.constant(X)
    with tape.saved_value_hooks(lambda v: v, lambda v: 2 * v):
        (w @ x).sum().backward()
    close(w.grad, 2 * np.ones((3, 2), np.float32) @ X.T)
    y = [None]
    for _ in range(3):  # also as a structure that is known
        w.zero_grad()
        with tape.saved_value_hooks(lambda v: v, lambda v: 2 * v):
            y[0] = (w @ x).sum()
            y[0].backward()
        close(w.grad, 2 * np.ones((3, 2), np.float32) @ X.T)


def test_contract_20_second_derivatives_go_through_unpacked_values(tier, log):
    for inside in (False, True):
        w, x = tape.Variable(W), tape.constant(X)
        with contextlib.ExitStack() as stack:
            stack.enter_context(log.hooks())
            y = network(w, x)
            if not inside:
                stack.close()
            g = tape.gradients(y, w, create_graph=True)
            h = tape.gradients((g * g).sum(), w)
        close(g, slope(W))
        close(h, curvature(W))


def unchained(x):
    z = x * 2
    z.unchain()
    return z


@pytest.mark.parametrize("made", [unchained, lambda x: (x.detach() * 2).requires_grad_()])
def test_contract_20_25_a_leaf_made_in_a_context_is_one_in_second_derivatives(tier, log, made):
    x = tape.Variable(X)
    with log.hooks():
        z = made(x)
        y = (z * z * z).sum()
    slope = tape.gradients(y, z, create_graph=True)
    close(slope, 3 * (2 * X) ** 2)
    slope.sum().backward()
    close(z.grad, 6 * 2 * X)
    assert x.grad is None


@pytest.mark.parametrize("inside", [False, True])
def test_contract_20_second_derivatives_by_a_result_that_is_held_and_cheap_to_compute_again(tier, log, inside):
    """What a sweep computes again of it would lead to the leaf alone: zeros, or the terms of what was recorded elsewhere."""
    x = tape.Variable(X)
    with contextlib.ExitStack() as stack:
        stack.enter_context(log.hooks())
        z = x * 2.0
        y = (z * z * z).sum()
        if not inside:
            stack.close()
        slope = tape.gradients(y + (z * z).sum(), z, create_graph=True)
        by_z, by_x = tape.gradients(slope.sum(), [z, x], retain_graph=True)
    close(slope, 3 * (2 * X) ** 2 + 4 * X)
    close(by_z, 12 * X + 2)
    close(by_x, 2 * (12 * X + 2))
    del z
    close(tape.gradients(slope.sum(), x), 2 * (12 * X + 2))


@pytest.mark.parametrize("context", [tape.save_on_host, lambda: tape.saved_value_hooks(lambda v: v, lambda v: v)])
def test_contract_20_products_with_second_derivatives_in_a_context(context):
    x, v = tape.Variable(X), np.ones_like(X)
    with context():
        product = tape.hvp(lambda x: (x * x * x).sum(), (x,), (v,))
        pushed = tape.jvp(tape.grad(lambda x: (x * x * x).sum()), (x,), (v,))[1]
    close(product, 6 * X)
    close(pushed, 6 * X)


def test_contract_14_retained_values_are_unpacked_again(tier, log):
    w, x = tape.Variable(W), tape.constant(X)
    with log.hooks():
        y = network(w, x)
    y.backward(retain_graph=True)
    first = len(log.unpacked)
    assert first
    y.backward()
    assert len(log.unpacked) == 2 * first
    close(w.grad, 2 * slope(W))
    with pytest.raises(ReleasedTapeError):
        y.backward()


def test_contract_11_what_was_packed_is_a_snapshot(tier, log):
    w, x = tape.Variable(W), tape.constant(X)
    with log.hooks():
        y = network(w, x)
    x.value = 0 * X
    y.backward()
    close(w.grad, slope(W))


def test_quantised_values_give_gradients_of_their_precision(tier):
    def quantise(v):
        scale = abs(v).max() / 127
        return tnp.round(v / scale).astype("int8"), scale

    w, x = tape.Variable(W), tape.constant(X)
    with tape.saved_value_hooks(quantise, lambda kept: kept[0].astype("float32") * kept[1]):
        y = network(w, x)
    y.backward()
    exact = slope(W)
    error = np.abs(w.grad.numpy() - exact).max() / np.abs(exact).max()
    assert 1e-5 < error < 0.02


def test_save_on_host_moves_values_and_brings_them_back(tier):
    w, x = tape.Variable(W), tape.constant(X)
    for _ in range(3):
        with tape.save_on_host():
            x = tnp.tanh(w @ x)
    kept = [a for s in tape.statistics.STATS._alive() if s.run for p in s.run.saved.values() if isinstance(p, Box) for a in p.arrays()]
    assert {a.sharding.memory_kind for a in kept if isinstance(a, jax.Array)} == {"pinned_host"}
    (x * x).sum().backward()
    close(w.grad, slope(W))
    assert w.grad.value.sharding.memory_kind == w.value.sharding.memory_kind


OPS = {
    "tanh": (lambda xp, a, _: xp.tanh(a)),
    "sin": (lambda xp, a, _: xp.sin(a)),
    "mul": (lambda _, a, b: a * b),
    "sub": (lambda _, a, b: a - b),
    "matmul": (lambda _, a, b: a @ b),
}


def run(steps, w, x, xp, opened):
    """Run drawn steps; contexts open and close where ``opened`` says, None for none."""
    pool = [w, x]
    with contextlib.ExitStack() as stack:
        for name, i, j, boundary in steps:
            if opened is not None and boundary == 1:
                stack.enter_context(opened())
            elif opened is not None and boundary == 2:
                stack.close()
            elif opened is not None and boundary == 3:
                float(pool[-1].sum())
            pool.append(OPS[name](xp, pool[i % len(pool)], pool[j % len(pool)]))
    return xp.tanh(sum(pool[2:]) / len(pool)).sum()


numbers = st.integers(0, 5)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(OPS)), numbers, numbers, st.integers(0, 4)), min_size=1, max_size=6), st.booleans())
def test_anything_packed_anywhere_has_the_gradients_that_it_has_unpacked(steps, eagerly):
    reference = jax.grad(lambda w: run(steps, w, W.T, jnp, None))
    w, x = tape.Variable(W), tape.constant(W.T)
    log = Log()
    with tape.eager() if eagerly else contextlib.nullcontext():
        y = run(steps, w, x, tnp, log.hooks)
        g = tape.gradients(y, w, create_graph=True, unconnected="zero")
        h = tape.gradients((g * g).sum(), w, unconnected="zero")
    np.testing.assert_allclose(g.numpy(), reference(W), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(h.numpy(), jax.grad(lambda w: (reference(w) ** 2).sum())(W), rtol=1e-3, atol=1e-4)


# -- contexts -----------------------------------------------------------------------------------------------------------


def test_contract_23_the_innermost_context_applies_and_the_outer_one_again_after_it():
    outer, inner = Log(), Log()
    w, x = tape.Variable(W), tape.constant(X)
    with outer.hooks():
        a = tnp.tanh(w @ x)
        with inner.hooks():
            b = tnp.tanh(w @ a)
        c = tnp.tanh(w @ b)
    (c * c).sum().backward()
    assert [len(outer.packed), len(inner.packed)] == [4, 2]  # what passes from one to the other is kept by both
    close(w.grad, slope(W))


def test_contract_23_contexts_are_thread_local_re_entrant_and_restored_on_exceptions(log):
    hooks = log.hooks()
    w, x = tape.Variable(W), tape.constant(X)
    with hooks, hooks:
        seen = []
        thread = threading.Thread(target=lambda: seen.append(scope.LOCAL.scope.packing))
        thread.start()
        thread.join()
        assert seen == [None]
    with pytest.raises(ZeroDivisionError), hooks:
        network(w, 1 / 0)
    assert scope.LOCAL.scope.packing is None
    roots = []
    with pytest.raises(ZeroDivisionError), hooks:
        roots.append(network(w, x)) or 1 / 0
    assert log.packed == []  # it runs when somebody looks
    roots[0].backward()
    assert len(log.packed) == 4
    close(w.grad, slope(W))
    w.grad = None
    log.packed.clear()

    @hooks
    def decorated(v):
        return v if v.ndim == 0 else decorated(network(w, v))

    decorated(x).backward()
    assert len(log.packed) == 4
    close(w.grad, slope(W))


def test_in_transformations_hooks_are_part_of_the_program(log):
    def halved(v):
        return tape.lax.reduce_precision(v, 8, 7).astype("bfloat16")  # rounded for itself: XLA's GPUs leave conversions out that are undone

    def loss(w, x):
        w = w * 1  # is pending outside of the context
        with tape.saved_value_hooks(halved, lambda v: v.astype("float32")):
            return network(w, x)

    w, x = tape.Variable(W), tape.constant(X)
    for transformed in (
        lambda: tape.gradients(loss(w, x), w).numpy(),
        lambda: jax.jit(lambda w: tape.grad(loss)(w, X))(W),
        lambda: tape.jit(lambda w, x: tape.gradients(loss(w, x), w))(w, x).numpy(),
        lambda: jax.vmap(lambda w: tape.grad(loss)(w, X))(W[None])[0],
    ):
        assert 1e-5 < np.abs(transformed() - slope(W)).max() < 0.02  # the precision of bfloat16
    np.testing.assert_allclose(jax.jit(lambda w: tape.grad(on_host)(w, X))(W), slope(W), rtol=1e-5, atol=1e-6)
    with log.hooks():  # from outside it does not apply
        np.testing.assert_allclose(jax.jit(lambda w: tape.grad(network)(w, X))(W), slope(W), rtol=1e-5, atol=1e-6)
    assert log.packed == []


def test_what_is_concrete_in_a_transformation_is_packed_and_unpacked_outside_of_it():
    w, x = tape.Variable(W), tape.constant(X)
    roots = []

    def traced(z):
        with tape.saved_value_hooks(lambda v: v.value.astype(jnp.float16), lambda a: a.astype(jnp.float32)):
            roots.append(network(w, x))
        return z + tape.gradients(roots[0], w, retain_graph=True).value.sum()

    inside = jax.jit(traced)(1.0)
    roots[0].backward()
    for off in (inside - (1 + slope(W).sum()), w.grad.numpy() - slope(W)):
        assert 1e-5 < np.abs(off).max() < 2e-3  # the precision of float16


def test_what_hooks_read_in_a_compiled_function_is_read_at_each_call():
    w, x, scale = tape.Variable(W), tape.constant(X), tape.Variable(np.float32(1), requires_grad=False)

    @tape.jit
    def compiled(w, x):
        with tape.saved_value_hooks(lambda v: v * scale, lambda v: v):
            y = (w @ x).sum()
        return tape.gradients(y, w)

    for factor in (1, 2, 3):
        scale.value = np.float32(factor)
        close(compiled(w, x), factor * np.ones((3, 2), np.float32) @ X.T)


@pytest.mark.parametrize("jit", [lambda f: f, tape.jit, jax.jit])
def test_second_derivatives_go_through_what_hooks_made_of_values_of_transformations(jit):
    def loss(w):
        with tape.saved_value_hooks(lambda v: v * 2, lambda v: v * 0.5):
            return network(w, X)

    w = tape.Variable(W)
    if jit is jax.jit:
        close(jax.jit(jax.grad(lambda w: (tape.grad(loss)(w) ** 2).sum()))(W), curvature(W))
    else:
        (tape.gradients(jit(loss)(w), w, create_graph=True) ** 2).sum().backward()
        close(w.grad, curvature(W))


@pytest.mark.parametrize("jit", [lambda f: f, tape.jit, jax.jit])
def test_second_derivatives_through_what_hooks_kept_as_integers_are_those_of_the_function_or_refused(jit):
    def pack(value):
        return (value * 2.0**20).astype("int32") if value.dtype.kind == "f" else value

    def unpack(kept):
        return kept.astype("float32") / 2.0**20 if kept.dtype == "int32" else kept

    def loss(w):
        with tape.saved_value_hooks(pack, unpack):
            return network(w, X)

    def plain(w):
        return network(w, X)

    def first(f):
        w = tape.Variable(W)
        f(w).backward()
        return w.grad

    def second(f):
        w = tape.Variable(W)
        g = tape.gradients(f(w), w, create_graph=True)
        return tape.gradients((g * g).sum(), w)

    if jit is jax.jit:
        close(jax.jit(tape.grad(loss))(W), first(plain))
        with pytest.raises(tape.errors.UnrecordedGradientError, match="kept as integers"):
            jax.jit(jax.grad(lambda w: (tape.grad(loss)(w) ** 2).sum()))(W)
        return
    close(first(jit(loss)), first(plain))
    if jit is tape.jit:
        with pytest.raises(tape.errors.UnrecordedGradientError, match="kept as integers"):
            second(tape.jit(loss))
    else:
        close(second(loss), second(plain))


def on_host(w, x):
    with tape.save_on_host():
        return network(w, x)


def test_hooks_that_need_values_say_so_in_transformations(log):
    def loss(w):
        with log.hooks():
            return network(w, X)

    with pytest.raises(TapeError):
        jax.jit(tape.grad(loss))(W)


# -- refusals, failures, memory -----------------------------------------------------------------------------------------


def test_arguments_are_checked():
    with pytest.raises(TapeTypeError, match="pack must be callable, got int"):
        tape.saved_value_hooks(1, lambda v: v)
    with pytest.raises(TapeTypeError, match="unpack must be callable, got NoneType"):
        tape.saved_value_hooks(lambda v: v, None)


@pytest.mark.parametrize(
    ("unpack", "error", "message"),
    [
        (
            lambda _: "text",
            TapeTypeError,
            r"unpack made str of a saved value of shape \(3, 2\), dtype float32; return a Variable or an array",
        ),
        (lambda v: v[0], TapeValueError, r"unpack made shape \(2,\) of a saved value of shape \(3, 2\).*reshape"),
        (lambda v: v.astype("float16"), TapeTypeError, r"unpack made dtype float16 of a saved value of .*float32.*astype"),
    ],
)
def test_contract_13_unpack_is_checked_before_anything_changes(tier, unpack, error, message):
    w, x = tape.Variable(W), tape.constant(X)
    with tape.saved_value_hooks(lambda v: v, unpack):
        y = network(w, x)
    v = tape.Variable(W)
    z = (v * 2).sum()
    for _ in range(2):  # nothing was released either
        with pytest.raises(error, match=message):
            tape.backward([y, z])
        assert w.grad is None
        assert v.grad is None
    z.backward()
    close(v.grad, 2)


def test_contract_13_where_pack_raises_the_values_stay(tier):
    calls = []

    def pack(v):
        calls.append(v)
        if len(calls) == 3:
            raise ZeroDivisionError
        return v

    w, x = tape.Variable(W), tape.constant(X)
    made = []
    with pytest.raises(ZeroDivisionError) as raised, tape.saved_value_hooks(pack, lambda v: 0 * v):
        made.append(network(w, x))
    assert any("pack" in note for note in raised.value.__notes__)
    assert scope.LOCAL.scope.packing is None
    if tier == "lazy":
        made[0].backward()
        close(w.grad, slope(W))


def test_contract_13_where_unpack_raises_it_can_be_tried_again(tier):
    failing = [True]

    def unpack(v):
        if failing[0]:
            raise ZeroDivisionError
        return v

    w, x = tape.Variable(W), tape.constant(X)
    with tape.saved_value_hooks(lambda v: v, unpack):
        y = network(w, x)
    with pytest.raises(ZeroDivisionError):
        y.backward()
    assert w.grad is None
    failing[0] = False
    y.backward()
    close(w.grad, slope(W))


def test_hooks_may_look_record_and_sweep_themselves(tier):
    v = tape.Variable(W)

    def pack(value):
        with tape.enable_grad():
            tape.gradients((v @ v @ v).sum(), v)
        assert not (v @ value).requires_grad
        float(value.sum())
        return value * 1

    w, x = tape.Variable(W), tape.constant(X)
    with tape.saved_value_hooks(pack, pack):
        y = network(w, x)
    y.backward()
    close(w.grad, slope(W))


def test_contract_24_op_hooks_do_not_see_what_hooks_of_saved_values_record():
    class Names(tape.OpHook):
        def __init__(self):
            self.names = []

        def forward_postprocess(self, op, inputs, outputs):
            self.names.append(op.name)

    alone, beside = Names(), Names()
    w, x = tape.Variable(W), tape.constant(X)
    with alone:
        network(w, x).backward()
    with beside:
        with tape.saved_value_hooks(lambda v: v.astype("float16"), lambda v: v.astype("float32")):
            y = network(w, x)
        y.backward()
    assert beside.names == alone.names


@pytest.mark.parametrize("half", [lambda v: np.asarray(v.numpy(), np.float16), lambda v: v.astype(np.float16)])
def test_contract_17_only_what_pack_returns_is_kept(half):
    gc.collect()
    before, live = jax.live_arrays(), tape.stats().live_bytes  # of other tests' Variables
    others = set(map(id, before))

    def arrays():
        return [a for a in jax.live_arrays() if id(a) not in others]

    w, x = tape.Variable(W), tape.constant(X)
    with tape.saved_value_hooks(half, lambda v: v.astype(np.float32)):
        y = network(w, x)
    del x
    assert len([a for a in arrays() if a.dtype != np.float16]) == 2  # w and y
    assert tape.stats().live_bytes == live + W.nbytes + 4 * X.nbytes // 2
    gc.disable()
    try:
        del y
        assert len(arrays()) == 1
        assert tape.stats().live_bytes == live
    finally:
        gc.enable()


def test_contract_17_a_sweep_unpacks_one_context_at_a_time():
    """While a sweep goes back through layers of a context each, what was unpacked for one is gone when the next one is unpacked."""
    most = [0]

    def unpack(v):
        most[0] = max(most[0], len(jax.live_arrays()))
        return v

    gc.collect()
    w, x = tape.Variable(W), tape.constant(X)
    for _ in range(12):
        with tape.saved_value_hooks(lambda v: v.numpy().copy(), unpack):
            x = tnp.tanh(w @ x)
    y = (x * x).sum()
    float(y)
    del x
    gc.collect()
    before = len(jax.live_arrays())
    y.backward()
    assert most[0] <= before + 6
    close(w.grad, slope(W, layers=12))


# -- what a tape.Function saves -----------------------------------------------------------------------------------------


class Layer(tape.Function):
    """tanh(w @ x), whose backward reads what was saved in every way."""

    @staticmethod
    def forward(ctx, w, x):
        h = w @ x
        y = tnp.tanh(h)
        ctx.save_for_backward({"inputs": (w, x)}, y, jnp.full(3, 2.0), np.ones(2))
        ctx.h = h
        return y

    @staticmethod
    def backward(ctx, g):
        saved, y, two, _ = ctx.saved
        w, x = saved["inputs"]
        slope = g * (1 - y * y) * (two[0] / 2) + 0 * ctx.h
        return slope @ x.T, w.T @ slope


def layers(w, x):
    for _ in range(3):
        x = Layer.apply(w, x)
    return (x * x).sum()


@pytest.mark.parametrize("times", [1, 4])
def test_what_a_function_saves_is_packed_but_parameters_and_numpy_arrays(tier, log, times):
    del tier
    for _ in range(times):
        log.packed.clear()
        with log.hooks():
            w = tape.Variable(W)
            y = layers(w, tape.constant(X))
        expected, x = [], X
        for _ in range(3):
            expected += [x, np.full(3, 2.0), W @ x]
            x = np.tanh(W @ x)
        expected.append(x)
        seen = list(log.packed)
        assert len(seen) == len(expected)
        for e in expected:
            assert sum(s.shape == e.shape and np.allclose(s, e, rtol=1e-5) for s in seen) == (3 if e.shape == (3,) else 1)
        log.unpacked.clear()
        y.backward()
        assert set(log.unpacked) == set(range(len(expected)))
        close(w.grad, slope(W))


def test_what_a_function_saves_is_what_unpack_returns(tier):
    """Ten times the saved values, and what a layer of two saved products then says."""
    del tier

    class Times(tape.Function):
        @staticmethod
        def forward(ctx, x, c):
            ctx.save_for_backward(x * 1, c)
            return x * c

        @staticmethod
        def backward(ctx, g):
            x, c = ctx.saved
            return g * c, g * x

    with tape.saved_value_hooks(lambda v: v * 10, lambda v: v):
        w, c = tape.Variable(X), tape.Variable(X + 1)
        y = Times.apply(w, c * 1)
    y.backward(X)
    np.testing.assert_allclose(w.grad.value, 10 * X * (X + 1), rtol=1e-6)
    np.testing.assert_allclose(c.grad.value, 10 * X * X, rtol=1e-6)


def test_contract_20_second_derivatives_through_what_a_function_saved(tier, log):
    del tier

    class Cube(tape.Function):
        @staticmethod
        def forward(ctx, x):
            y = x * x * x
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved
            return 3 * g * y / x

    for _ in range(3):
        with log.hooks():
            w = tape.Variable(X)
            y = Cube.apply(w * 2).sum()
        g = tape.gradients(y, w, create_graph=True)
        np.testing.assert_allclose(g.value, 24 * X * X, rtol=1e-5)
        np.testing.assert_allclose(tape.gradients((g * X).sum(), w).value, 48 * X * X, rtol=1e-5)


def test_contract_17_what_a_function_saved_is_gone_from_the_device():
    gc.collect()
    before = len(jax.live_arrays())
    w, x = tape.Variable(W), tape.constant(X)
    with tape.saved_value_hooks(lambda v: v.numpy().copy(), lambda v: v):
        y = layers(w, x)
    del x
    assert len(jax.live_arrays()) == before + 2  # w and y
    y.backward()
    close(w.grad, slope(W))


def test_contract_13_where_pack_raises_what_functions_saved_stays(tier):
    def pack(v):
        if v.shape == (3,):
            raise LookupError
        return v.numpy() * 0

    @tape.saved_value_hooks(pack, lambda v: v)
    def recorded():
        kept.append(layers(w, tape.constant(X)))
        float(kept[0])

    w = tape.Variable(W)
    kept = []
    with pytest.raises(LookupError):
        recorded()
    if tier == "lazy":
        kept[0].backward()
        close(w.grad, slope(W))


# -- planted bugs -------------------------------------------------------------------------------------------------------


def test_planted_a_sweep_that_fuses_forward_and_reverse_is_noticed(monkeypatch):
    monkeypatch.setattr(packing.Packing, "applies", lambda _: False)
    with pytest.raises(AssertionError):
        test_a_sweep_that_follows_at_once_uses_what_unpack_returns("lazy")


def test_planted_values_that_lose_their_place_in_the_graph_are_noticed(monkeypatch):
    original = emission.forward_handle

    def cut(*args):
        found = original(*args)
        return found if found._cell.__class__ is list else emission.handle(None, packing.record.leaf(X)._place, found._cell)

    monkeypatch.setattr(emission, "forward_handle", cut)
    with pytest.raises(AssertionError):
        test_contract_20_second_derivatives_go_through_unpacked_values("lazy", Log())


def test_planted_held_variables_that_decide_what_is_packed_are_noticed(monkeypatch):
    original = program.residuals

    def shared(state, live, released, **options):
        found = original(state, live, released, **options)
        return found._replace(read=tuple(slot for slot in found.read if slot not in live))

    trie._ROOTS.clear()
    monkeypatch.setattr(program, "residuals", shared)
    with pytest.raises(AssertionError):
        test_what_variables_hold_and_looks_afterwards_do_not_decide(Log())


def test_what_a_function_saved_is_unpacked_once_however_often_its_backward_reads_it():
    class Cubed(tape.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx, g):
            return 3 * g * ctx.saved[0] * ctx.saved[0]

    unpacked = []
    x = tape.Variable(np.float32(0.5))
    with tape.saved_value_hooks(lambda value: value, lambda value: unpacked.append(1) or value):
        y = Cubed.apply(x * 2)
    for count in (1, 2):
        y.backward(retain_graph=True)
        assert len(unpacked) == count
    assert float(x.grad) == 2 * 6
