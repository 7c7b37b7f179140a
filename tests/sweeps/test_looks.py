"""Loops that look at a value in every turn: each turn is a segment, and neither it nor its sweep grows with those before."""

import contextlib
import gc
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape import layout
from tape.programs import policy
from tape.sweeps import differentiation, emission, sweep

DT = 0.05
START = np.array([0.5, 1.0], np.float32)
SPEED = np.array([1.0, -0.5], np.float32)


def energy(xp, gravity, q):
    return gravity * q[1] + 0.1 * xp.sum(q * q) ** 2


def fall(gravity, q, v, turns, seen=lambda *_: None):
    """Euler's method, the force a gradient that is recorded; the height is looked at in every turn."""
    for k in range(turns):
        assert np.isfinite(float(q[1]))
        v = v - DT * tape.gradients(energy(tnp, gravity, q), q, create_graph=True)
        q = q + DT * v
        seen(k, q, v)
    return q


def expected(turns, order=1):
    def loss(gravity, start, speed):
        def turn(carry, _):
            q, v = carry
            v = v - DT * jax.grad(energy, 2)(jnp, gravity, q)
            return (q + DT * v, v), None

        return jnp.sum(jax.lax.scan(turn, (start, speed), length=turns)[0][0] ** 2)

    if order == 1:
        return jax.grad(loss, (0, 1, 2))(np.float32(9.8), START, SPEED)
    return jax.grad(lambda *args: jax.grad(loss)(*args) ** 2, (0, 1, 2))(np.float32(9.8), START, SPEED)


def ball():
    return tape.Variable(np.float32(9.8)), tape.Variable(START), tape.Variable(SPEED)


def agree(found, right, rtol=1e-4):
    for a, b in zip(found, right, strict=True):
        np.testing.assert_allclose(a.value, b, rtol=rtol, atol=1e-4 * float(np.max(np.abs(b))))


def swept(turns):
    leaves = ball()
    (fall(*leaves, turns) ** 2).sum().backward()
    return [v.grad for v in leaves]


@pytest.mark.parametrize("turns", [1, 2, 7, 8, 9, 10, 23])
def test_gradients_of_loops_of_any_length(turns):
    for _ in range(3):
        agree(swept(turns), expected(turns))


def test_no_turn_is_interpreted_whatever_the_number_of_turns(stats):
    for _ in range(policy.OFTEN):
        for turns in (15, 16):  # the last one is swept alone, or with others
            swept(turns)
    stats.reset()
    for turns in (29, 37, 64, 51):
        agree(swept(turns), expected(turns))
    assert stats.interpreted == 0
    assert stats.compiles == 0


def test_structures_do_not_become_more_with_the_turns(stats):
    for turns in (40, 41, 40, 41):
        swept(turns)
    before = stats.programs
    swept(90)
    assert stats.programs == before


@pytest.fixture
def visited(monkeypatch):
    """How many segments sweeps looked for ways in."""
    found = []
    original = sweep.active_slots

    def counting(*args):
        found.append(args)
        return original(*args)

    monkeypatch.setattr(sweep, "active_slots", counting)
    return found


def test_a_gradient_within_a_turn_does_not_look_at_the_turns_before(visited):
    leaves = ball()
    counts = []

    def seen(*_):
        counts.append(len(visited))
        visited.clear()

    with tape.eager():  # nothing is recalled
        fall(*leaves, 12, seen)
    assert len(set(counts[1:])) == 1


@pytest.fixture
def general(monkeypatch):
    """The sweeps that were not recalled."""
    made = []
    original = differentiation.Sweep

    def counting(*args, **options):
        made.append(args)
        return original(*args, **options)

    monkeypatch.setattr(differentiation, "Sweep", counting)
    return made


def test_a_gradient_by_a_result_of_the_turn_before_is_recalled(general):
    swept(5)
    swept(5)
    general.clear()
    q = fall(*ball(), 6)
    assert not general
    assert np.isfinite(float(q[0]))


def test_second_derivatives_through_the_loop():
    for turns in (3, 12):
        for _ in range(3):
            leaves = ball()
            loss = (fall(*leaves, turns) ** 2).sum()
            first = tape.gradients(loss, leaves[0], create_graph=True)
            agree(tape.gradients(first * first, leaves), expected(turns, order=2))


def test_hooks_and_retained_gradients_between_looks():
    def run(hooked):
        leaves, kept, seen = ball(), [], []

        def watch(k, _, v):
            if hooked and k % 3 == 0:
                v.register_hook(lambda g: seen.append((k, g)))
                v.retain_grad()
                kept.append((k, v))

        (fall(*leaves, 20, watch) ** 2).sum().backward()
        return [v.grad for v in leaves], kept, seen

    right = expected(20)
    for _ in range(3):
        agree(run(hooked=False)[0], right)
        gradients, kept, seen = run(hooked=True)
        agree(gradients, right)
        assert [k for k, _ in seen] == [k for k, _ in reversed(kept)]
        for (_, v), (_, g) in zip(reversed(kept), seen, strict=True):
            np.testing.assert_array_equal(v.grad.value, g.value)


def test_hooks_may_replace_gradients_between_looks():
    for _ in range(3):
        leaves = ball()
        q = fall(*leaves, 18, lambda k, _, v: v.register_hook(lambda g: g * 0.0) if k == 0 else None)
        (q**2).sum().backward()
        assert np.all(leaves[2].grad.value == 0)  # the first speed passes nothing on to the one before ...
        assert np.any(leaves[1].grad.value != 0)  # ... but places do


def test_contract_14_a_loop_is_released_as_a_whole():
    for _ in range(3):
        leaves = ball()
        middle = []
        loss = (fall(*leaves, 14, lambda _, q, v, kept=middle: kept.append((q, v))) ** 2).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        agree([v.grad * 0.5 for v in leaves], expected(14))
        with pytest.raises(tape.errors.ReleasedTapeError):
            loss.backward()
        with pytest.raises(tape.errors.ReleasedTapeError):
            (middle[3][0] ** 2).sum().backward()


def test_contract_13_a_hook_that_fails_midway_leaves_all_as_it_was():
    leaves = ball()

    def fails(_):
        raise KeyError

    handles = []
    q = fall(*leaves, 25, lambda k, _, v: handles.append(v.register_hook(fails)) if k == 5 else None)
    loss = (q**2).sum()
    for _ in range(2):
        with pytest.raises(KeyError):
            loss.backward()
        assert all(v.grad is None for v in leaves)
    handles[0].remove()
    loss.backward()
    agree([v.grad for v in leaves], expected(25))


def test_contract_17_turns_that_were_cut_off_are_free():
    gc.collect()
    before = tape.stats().live_entries
    gc.disable()
    try:
        gravity, q, v = ball()
        counts = []
        for _ in range(12):
            assert np.isfinite(float(q[1]))
            v = v - DT * tape.gradients(energy(tnp, gravity, q), q, create_graph=True)
            q = (q + DT * v).detach().requires_grad_()
            v = v.detach()
            counts.append(tape.stats().live_entries - before)
        assert max(counts) == counts[2], counts
        fall(*ball(), 12)  # dropped as a whole
        del q, v
        assert tape.stats().live_entries - before <= counts[2]
    finally:
        gc.enable()


class Doubled(tape.OpHook):
    """Adds to each gradient of a sine itself; what it writes reads nothing else."""

    def backward_postprocess(self, op, input_grads):
        return tuple(g + g for g in input_grads) if op.name == "sin" else None


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("hook", ["leaf", "op"])
def test_a_sweep_is_not_written_again_as_a_hook_changed_it(hook, looks):
    w = tape.Variable(START)
    for turn in range(6):
        with contextlib.ExitStack() as hooked:
            if turn < 4 and hook == "leaf":
                hooked.callback(w.register_hook(lambda g: g + g).remove)
            elif turn < 4:
                hooked.enter_context(tape.hooks(Doubled()))
            loss = tnp.sum(tnp.sin(w))
            assert not looks or float(loss) > 0
            w.grad = None
            loss.backward()
        np.testing.assert_allclose(w.grad.value, np.cos(START) * (2 if turn < 4 else 1), rtol=1e-6)


def test_what_is_kept_for_a_turn_is_the_same_for_all():
    tape.backward(tnp.sum(fall(*ball(), 6)))
    kept = []
    q = fall(*ball(), 40, lambda *_: kept.append(tape.stats().live_bytes))
    steps = np.diff(kept)
    assert np.all(steps <= steps[0]), kept
    del q


def test_contract_17_what_a_turn_held_and_no_sweep_reads_is_free_in_the_next():
    big = np.full(1 << 15, 2.0**-15, np.float32)
    x, total = tape.constant(big), tape.Variable(1.0)
    before = tape.stats().live_bytes
    for _ in range(20):
        product = total * x  # what the sweep reads of this is x
        total = product.sum()
        np.testing.assert_allclose(float(total), 1.0, rtol=1e-3)
    assert tape.stats().live_bytes - before < 4 * big.nbytes


# -- gradients by results of turns before -----------------------------------------------------------------------------------


def looked(v):
    assert np.all(np.isfinite(np.asarray(v.value)))
    return v


RUNS = 5


def test_a_way_through_the_turn_before_counts():
    for k in range(RUNS):
        x = tape.Variable(START + k)
        p = looked(x * 2.0)
        q = looked(p * p)
        r = looked(p * 3.0)
        total = tnp.sum(q * p * r)  # q and r lead to p, too
        np.testing.assert_allclose(tape.gradients(total, p, retain_graph=True).value, 12 * (2 * (START + k)) ** 3, rtol=1e-5)
        np.testing.assert_allclose(tape.gradients(total, x).value, 24 * (2 * (START + k)) ** 3, rtol=1e-5)


def test_a_way_within_the_same_turn_before_counts():
    for k in range(RUNS):
        x = tape.Variable(START + k)
        p = x * 2.0
        q = p * p
        looked(q)
        p0 = 2 * (START + k)
        assert p._segment is q._segment
        np.testing.assert_allclose(tape.gradients(tnp.sum(q * p), p, retain_graph=True).value, 3 * p0**2, rtol=1e-5)
        by_q, by_p = tape.gradients(tnp.sum(q * p), [q, p], retain_graph=True)
        np.testing.assert_allclose(by_q.value, p0, rtol=1e-5)
        np.testing.assert_allclose(by_p.value, 3 * p0**2, rtol=1e-5)
        np.testing.assert_allclose(tape.gradients(tnp.sum(q * p), q).value, p0, rtol=1e-5)


def test_what_is_independent_before_does_not_count():
    for k in range(RUNS):
        x, y = tape.Variable(START + k), tape.Variable(SPEED)
        p, q = looked(x * 2.0), looked(y * y)
        by_p, by_q = tape.gradients(tnp.sum(p * q), [p, q], retain_graph=True)
        np.testing.assert_allclose(by_p.value, SPEED**2, rtol=1e-5)
        np.testing.assert_allclose(by_q.value, 2 * (START + k), rtol=1e-5)
        by_q, by_y = tape.gradients(tnp.sum(p * q), [q, y])  # a leaf: the way goes on
        np.testing.assert_allclose(by_q.value, 2 * (START + k), rtol=1e-5)
        np.testing.assert_allclose(by_y.value, 4 * (START + k) * SPEED, rtol=1e-5)


WAYS = {  # from a to b, of which the same is made afterwards: (without a way from one to the other, with one)
    "in turns before": (lambda a, b: (looked(a * 2.0), looked(b * 2.0)), lambda a, b: (looked((q := looked(b * 2.0)) * a), q)),
    "in the same turn": (
        lambda a, b: looked_together(a * 2.0, b * 2.0),
        lambda a, b: looked_together((q := b * 2.0) * a, q),
    ),
    "from a leaf": (lambda a, b: (looked(a * 2.0), b), lambda a, b: (looked(a * b), b)),
}


def looked_together(p, q):
    looked(p)
    assert p._segment is q._segment
    return p, q


@pytest.mark.parametrize("ways", WAYS)
def test_a_call_is_not_recalled_where_a_way_leads_through_turns_before(ways):
    without, with_one = WAYS[ways]
    for make in (without, without, without, without, with_one, without, with_one):
        a, b = tape.Variable(START), tape.Variable(SPEED)
        p, q = make(a, b)
        right = p.value if make is without else 2.0 * p.value  # p * q, where p is a times q
        np.testing.assert_allclose(tape.gradients(tnp.sum(p * q), q).value, right, rtol=1e-5)


def test_a_hook_on_the_result_of_a_turn_before_is_called():
    for k in range(2 * RUNS):
        p = looked(tape.Variable(START) * 2.0)
        hook = p.register_hook(lambda g: g * 5.0) if k % 2 else None
        factor = 5.0 if hook else 1.0
        np.testing.assert_allclose(tape.gradients(tnp.sum(p * p), p, retain_graph=True).value, factor * 4 * START, rtol=1e-5)
        if hook:
            hook.remove()
            np.testing.assert_allclose(tape.gradients(tnp.sum(p * p), p).value, 4 * START, rtol=1e-5)


def test_a_result_that_was_unchained_after_it_entered():
    for k in range(RUNS):
        x = tape.Variable(START + k)
        p = looked(x * 2.0)
        total = tnp.sum(p * p)
        p.unchain()
        np.testing.assert_allclose(tape.gradients(total, p, retain_graph=True).value, 4 * (START + k), rtol=1e-5)
        with pytest.raises(tape.errors.UnconnectedError):
            tape.gradients(total, x)


def test_a_result_of_a_turn_before_may_be_released():
    for k in range(RUNS):
        x = tape.Variable(START + k)
        p = looked(x * 2.0)
        tnp.sum(p).backward()
        total = tnp.sum(p * p)
        np.testing.assert_allclose(tape.gradients(total, p, retain_graph=True).value, 4 * (START + k), rtol=1e-5)
        with pytest.raises(tape.errors.ReleasedTapeError):
            tape.gradients(total, [p, x])


def test_a_second_call_after_a_released_one_raises():
    for _ in range(RUNS):
        p = looked(tape.Variable(START) * 2.0)
        total = tnp.sum(p * p)
        np.testing.assert_allclose(tape.gradients(total, p).value, 4 * START, rtol=1e-5)
        with pytest.raises(tape.errors.ReleasedTapeError):
            tape.gradients(total, p)


def test_wider_results_of_before():
    with jax.enable_x64(True):
        before = [looked(tape.Variable(START.astype("float64")) * 2.0) for _ in range(RUNS)]
    for p in before:
        g = tape.gradients(p * p, p, np.ones(2))
        np.testing.assert_allclose(g.value, 4 * START, rtol=1e-5)
        assert g.dtype == np.float64


def test_in_several_threads():
    swept(12)
    found, right = [], expected(12)

    def run():
        found.extend(swept(12) for _ in range(3))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 12
    for gradients in found:
        agree(gradients, right)


def test_independent_turns_are_swept_one_by_one(stats):
    """A rollout: the turns do not lie behind each other, and the last segment gathers them."""

    def rollout(turns):
        w = tape.Variable(START)
        logs = [looked(tnp.log(tnp.sum(tnp.exp(w * (k + 1.0))))) for k in range(turns)]
        sum(logs).backward()
        right = jax.grad(lambda w: sum(jnp.log(jnp.sum(jnp.exp(w * (k + 1.0)))) for k in range(turns)))(START)
        np.testing.assert_allclose(w.grad.value, right, rtol=1e-4)

    for _ in range(policy.OFTEN + 1):
        rollout(20)
    stats.reset()
    rollout(20)
    assert stats.interpreted == 0


def test_saved_values_that_are_packed_between_looks():
    for _ in range(2):
        leaves = ball()
        with contextlib.ExitStack() as stack:
            stack.enter_context(tape.saved_value_hooks(lambda x: np.asarray(x), lambda x: jnp.asarray(x)))
            q = fall(*leaves, 12)
        (q**2).sum().backward()
        agree([v.grad for v in leaves], expected(12))


@pytest.mark.skipif(layout.NATIVE is None, reason="the recorder in Python writes all of them")
def test_a_multiple_of_many_turns_behind_a_sweep_does_not_end_the_fast_path(monkeypatch):
    for _ in range(4):
        swept(90)
    slow = []
    entered = emission._entered
    monkeypatch.setattr(emission, "_entered", lambda *args: slow.append(args) or entered(*args))
    swept(90)
    assert len(slow) < 4


def rollout(w, v, turns):
    """Products of matrices, which compile for long, one of whose results is looked at in each turn."""
    x, taken = np.ones(4, np.float32), []
    for k in range(turns):
        logs = tape.nn.log_softmax(tnp.tanh(x @ w) @ v)
        x = x * np.float32(0.5 + 0.1 * float(logs[0] > -1.0))
        taken.append(logs[k % 2])
    return sum(taken)


def test_turns_that_compile_for_long_are_soon_compiled(stats):
    parameters = [tape.Variable(np.linspace(-0.5, 0.5, 4 * n, dtype=np.float32).reshape(4, n)) for n in (4, 2)]
    for _ in range(40):
        rollout(*parameters, 40).backward()
    stats.reset()
    rollout(*parameters, 40).backward()
    assert stats.interpreted == 0
