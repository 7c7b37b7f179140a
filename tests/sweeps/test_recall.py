"""Calls of gradients() that are recalled give what they gave, and what the general way gives."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import primitives

import interop
import tape
import tape.numpy as tnp
from tape.errors import ReleasedTapeError
from tape.sweeps import differentiation
from tests.agreement import close
from tests.tiers import by_xla

A = np.array([0.5, -0.25, 0.75], np.float32)
B = np.array([1.5, 2.0, -1.0], np.float32)
TWO = tape.constant(2.0)


@pytest.fixture
def recalls(monkeypatch, sweeps_through_python):
    """How often a call was recalled."""
    counted = []
    original = differentiation.asked

    def counting(*args, **options):
        known = original(*args, **options)
        if known is not None and known[1] in known[0].state.next:
            counted.append(known)
        return known

    monkeypatch.setattr(differentiation, "asked", counting)

    def at_once(known):
        def knowing(*args):
            found = known(*args)
            if found is not None:
                counted.append(found)
            return found

        return knowing

    for name in ("replayed", "regained"):
        monkeypatch.setattr(differentiation, name, at_once(getattr(differentiation, name)))
    return counted


def steps(run, count=5):
    return [run(A * (1 + 0.1 * k)) for k in range(count)]


def test_second_derivatives(recalls):
    x = tape.Variable(A)

    def run(a):
        x.value = a
        g = tape.gradients(tnp.sum(tnp.sin(x) * x), x, create_graph=True)
        return tape.gradients(tnp.sum(g * g), x).value

    def expected(a):
        return jax.grad(lambda v: jnp.sum(jax.grad(lambda u: jnp.sum(jnp.sin(u) * u))(v) ** 2))(a)

    for k, found in enumerate(steps(run)):
        np.testing.assert_allclose(found, expected(A * np.float32(1 + 0.1 * k)), rtol=1e-5)
    assert len(recalls) >= 4, "neither call was recalled"


def test_seeds_that_enter_in_another_order(recalls):
    x, w = tape.Variable(A), tape.Variable(A + 1)

    def run(a):
        seeds = [tape.constant(a), tape.constant(2 * a)]
        late, early = x * w, tnp.sin(x)
        return [g.value for g in tape.gradients([early, late], [x, w], seeds)]

    for k, (dx, dw) in enumerate(steps(run)):
        a = A * (1 + 0.1 * k)
        np.testing.assert_allclose(dx, a * np.cos(A) + 2 * a * (A + 1), rtol=1e-5)
        np.testing.assert_allclose(dw, 2 * a * A, rtol=1e-5)
    assert recalls


def test_the_same_seed_twice_and_none():
    x = tape.Variable(A)
    for k in range(5):
        seed = tape.constant(A + k)
        (g,) = tape.gradients([x * 2, tnp.sin(x), (x * 3).sum()], [x], [seed, seed, None])
        np.testing.assert_allclose(g.value, (A + k) * (2 + np.cos(A)) + 3, rtol=1e-5)


def test_a_released_tape_stays_released(recalls):
    x = tape.Variable(A)
    for _ in range(5):
        y = tnp.sum(x * x)
        tape.gradients(y, x)
        with pytest.raises(tape.errors.ReleasedTapeError):
            tape.gradients(y, x)
        np.testing.assert_allclose(tape.gradients(tnp.sum(x * 3), x).value, [3, 3, 3])
    assert recalls


@by_xla()
def test_what_a_hook_did_is_not_done_once_it_is_removed():
    x = tape.Variable(2.0)
    found = []
    handle = x.register_hook(lambda g: g * g)
    for k in range(12):
        if k == 6:
            handle.remove()
        x.zero_grad()
        (tnp.sin(x) * x).backward()
        found.append(float(x.grad))
    np.testing.assert_allclose(found[:6], found[0])
    np.testing.assert_allclose(found[:6], (np.sin(2.0) + 2.0 * np.cos(2.0)) ** 2, rtol=1e-5)
    np.testing.assert_allclose(found[6:], np.sin(2.0) + 2.0 * np.cos(2.0), rtol=1e-5)


def test_gradients_are_added_to_those_that_are_there(recalls):
    x = tape.Variable(A)
    for k in range(8):
        (tnp.sin(x) * x).sum().backward()
        np.testing.assert_allclose(x.grad.value, (k + 1) * (np.sin(A) + A * np.cos(A)), rtol=1e-5)
    assert recalls


def test_too_few_seeds_are_refused_where_none_was_given_before():
    x = tape.Variable(2.0)
    for _ in range(20):
        tape.gradients([x * x, tnp.sin(x)], [x])[0].value
    for seeds in ([None], []):
        with pytest.raises(tape.errors.SeedError):
            tape.gradients([x * x, tnp.sin(x)], [x], seeds)


def test_hooks_are_called_every_time():
    x = tape.Variable(A)
    seen = []
    for _ in range(4):
        tape.gradients(tnp.sum(x * x), x)
    h = x.register_hook(seen.append)
    for _ in range(3):
        tape.gradients(tnp.sum(x * x), x)
    h.remove()
    assert len(seen) == 3
    tape.gradients(tnp.sum(x * x), x)
    assert len(seen) == 3


def test_rebinding_between_calls():
    x = tape.Variable(A)
    old = A
    for k in range(5):
        y = x * x
        x.value = new = A + k + 1  # the tape keeps the value that it met
        z = tnp.sum(y * x)
        np.testing.assert_allclose(tape.gradients(z, x).value, 2 * old * new + old * old, rtol=1e-5)
        old = new


def test_mode_and_flags_tell_calls_apart():
    x = tape.Variable(A)
    for _ in range(4):
        y = tnp.sum(x * x * x)
        first = tape.gradients(y, x, create_graph=True)
        assert first.requires_grad
        np.testing.assert_allclose(tape.gradients(tnp.sum(first), x, retain_graph=True).value, 6 * A, rtol=1e-5)
        second = tape.gradients(y, x)
        assert not second.requires_grad
        np.testing.assert_allclose(second.value, 3 * A * A, rtol=1e-5)


def test_flags_are_checked_where_a_call_is_known(recalls):
    x = tape.Variable(A)
    for _ in range(4):
        (x * x * 5).sum().backward()
    assert recalls
    for wrong in (0, None, ""):
        with pytest.raises(tape.errors.TapeTypeError, match="create_graph must be True or False"):
            (x * x * 5).sum().backward(create_graph=wrong)


def test_a_new_rule_is_used():
    x = tape.Variable(A)

    def run(_):
        return tape.gradients(tnp.sum(tnp.sin(x)), x).value

    steps(run)
    old = tape.rules.lookup(primitives.sin_p)
    tape.rules.defvjp(primitives.sin_p, lambda ct, out, x, **_: (ct * 7,))
    try:
        np.testing.assert_allclose(run(A), [7, 7, 7])
    finally:
        tape.rules.defvjp(primitives.sin_p, old.vjp)
    np.testing.assert_allclose(run(A), np.cos(A), rtol=1e-5)


def test_a_leaf_that_an_earlier_segment_made_is_swept_on():
    a = tape.Variable(A)

    def run(b):
        return tape.gradients(tnp.sum(a * b), a, retain_graph=True).value

    for k in range(5):  # b is a leaf of its own, and the call is known
        np.testing.assert_allclose(run(tape.Variable(A + k)), A + k, rtol=1e-6)
    b = a * 2.0
    np.testing.assert_allclose(b.value, 2 * A, rtol=1e-6)  # so it enters the next segment as a leaf of the same shape
    np.testing.assert_allclose(run(b), 4 * A, rtol=1e-6)


@pytest.mark.parametrize("rebound_first", [False, True])
def test_a_leaf_that_entered_with_two_values_is_not_two_leaves(rebound_first):
    def two():
        x, y = tape.Variable(A), tape.Variable(A + 1)
        np.testing.assert_allclose(tape.gradients(tnp.sum(x * x * y), y).value, A * A, rtol=1e-5)

    def one():
        x = tape.Variable(A)
        square = x * x
        x.value = A + 1
        np.testing.assert_allclose(tape.gradients(tnp.sum(square * x), x).value, A * A + 2 * A * (A + 1), rtol=1e-5)

    first, then = (one, two) if rebound_first else (two, one)
    for _ in range(4):
        first()
    for _ in range(4):
        then()


@pytest.mark.parametrize("both", [False, True])
def test_leaves_that_were_updated_since_they_were_read(recalls, both):
    """A training step by hand: what is pending reads old values, and a sweep ends at the new ones; with ``both``, sometimes at the old ones, too."""
    x, w = tape.Variable(A), tape.Variable(A + 1)
    xs, ws = A, A + 1
    for k in range(10):
        old, old_x = tnp.cos(x), xs
        with tape.no_grad():
            x -= 0.1 * x
            w -= 0.2 * w
        xs, ws = xs - np.float32(0.1) * xs, ws - np.float32(0.2) * ws
        y = tnp.sum(tnp.sin(x) * w)
        if both and k % 3 == 2:
            y = y + tnp.sum(old * old)
            gradient = np.cos(xs) * ws - 2 * np.cos(old_x) * np.sin(old_x)
        else:
            gradient = np.cos(xs) * ws
        y.backward()
        np.testing.assert_allclose(x.grad.value, gradient, rtol=1e-5)
        np.testing.assert_allclose(w.grad.value, np.sin(xs), rtol=1e-5)
        x.zero_grad()
        w.zero_grad()
    assert len(recalls) >= (4 if both else 7)


def two_losses(p, again):
    h = tnp.tanh(p[0] * A) * p[1]
    h.sum().backward(retain_graph=True)
    (h * h).sum().backward(retain_graph=again)
    with tape.no_grad():
        for i, v in enumerate(p):
            p[i] -= 0.1 * v.grad
            v.grad = None


def updated(p):
    def losses(p):
        h = jnp.tanh(p[0] * A) * p[1]
        return h.sum() + (h * h).sum()

    return [v - np.float32(0.1) * g for v, g in zip(p, jax.grad(losses)(p), strict=True)]


@pytest.mark.parametrize(("again", "runs"), [(False, 20), (True, 20)])
def test_a_sweep_that_retains_is_known_and_runs_with_the_next_one(again, runs, recalls, stats):
    p, q = [tape.Variable(A), tape.Variable(2 * A)], [jnp.asarray(A), jnp.asarray(2 * A)]
    for _ in range(4):
        two_losses(p, again)
    del recalls[:]
    stats.reset()
    for _ in range(20):
        two_losses(p, again)
    assert len(recalls) == 40
    assert stats.flushes["backward"] == runs
    for _ in range(24):
        q = updated(q)
    for v, w in zip(p, q, strict=True):
        np.testing.assert_allclose(v.value, w, rtol=1e-5)


def test_who_retains_the_graph_in_every_step_has_few_steps_in_a_program(stats):
    w = tape.Variable(A)
    for _ in range(40):
        (tnp.tanh(w * A) ** 2).sum().backward(retain_graph=True)
        with tape.no_grad():
            w -= 0.1 * w.grad
            w.grad = None
    assert stats.flushes["backward"] == 20


def test_a_retained_gradient_that_waits_is_there_for_who_looks():
    w = tape.Variable(A)
    for _ in range(4):
        loss = (w * w * w).sum()
        loss.backward(retain_graph=True)
        np.testing.assert_allclose(w.grad.value, 3 * A**2, rtol=1e-6)
        loss.backward()
        np.testing.assert_allclose(w.grad.value, 6 * A**2, rtol=1e-6)
        w.grad = None
        with pytest.raises(tape.errors.ReleasedTapeError):
            loss.backward()


def test_a_retained_sweep_in_which_python_is_called_runs_at_once():
    broken = False

    def called(x):
        if broken:
            msg = "broken"
            raise ValueError(msg)
        return 2 * np.asarray(x)

    @jax.custom_vjp
    def squared(x):
        return x * x

    def backward(x, ct):
        return (jax.pure_callback(called, jax.typeof(x), x) * ct,)

    squared.defvjp(lambda x: (x * x, x), backward)
    op = interop.lift(squared)
    w = tape.Variable(A)
    for broken in (False, False, False, True):
        w.grad = None
        loss = op(w).sum()
        if not broken:
            loss.backward(retain_graph=True)
            (2 * loss).backward()
            np.testing.assert_allclose(w.grad.value, 6 * A, rtol=1e-6)
    with pytest.raises(tape.errors.ExecutionError, match="broken"):
        loss.backward(retain_graph=True)
    assert w.grad is None


@pytest.mark.parametrize(
    ("case", "recalled"),
    [
        ("both", True),
        ("turned", True),
        ("one", True),
        ("seeded", True),
        ("retains", True),
        ("told", True),
        ("added", True),
        ("twice", False),
        ("hooked", False),
        ("of a result", False),
    ],
)
def test_leaves_that_are_asked_for(case, recalled, recalls):
    """``backward(inputs=...)`` is known again, and adds to those leaves only."""
    x, w, other = (tape.Variable(A + k) for k in range(3))
    told = []
    if case == "hooked":
        x.register_hook(lambda g: 2 * g)
    if case == "told":
        x.register_post_accumulate_grad_hook(lambda v: told.append(np.asarray(v.grad.value)))

    def run(a):
        h = x * w
        y = tnp.sin(h) * other + h * a
        asked = {"turned": [w, x], "one": x, "twice": (x, w, x), "of a result": [x, h, w]}.get(case, [x, w])
        if case == "seeded":
            y.backward(tape.constant(a), inputs=asked)
        else:
            y.sum().backward(inputs=asked, retain_graph=case == "retains")
        assert other.grad is None
        np.testing.assert_allclose(h.grad.value, np.cos(h.value) * other.value + a, rtol=1e-5) if case == "of a result" else None
        gradients = [None if v.grad is None else np.asarray(v.grad.value) for v in (x, w)]
        if case != "added":
            x.grad = w.grad = None
        return gradients

    total = 0
    for k, (dx, dw) in enumerate(steps(run, 6)):
        a = A * np.float32(1 + 0.1 * k)
        inner = (np.cos(A * (A + 1)) * (A + 2) + a) * (a if case == "seeded" else 1)
        total = inner + (total if case == "added" else 0)
        np.testing.assert_allclose(dx, total * (A + 1) * (2 if case == "hooked" else 1), rtol=1e-4)
        if case == "one":
            assert dw is None
        else:
            np.testing.assert_allclose(dw, total * A, rtol=1e-4)
        if case == "told":
            np.testing.assert_allclose(told[k], dx, rtol=1e-6)
    assert len(told) == (6 if case == "told" else 0)
    assert (len(recalls) >= 4) is recalled


def test_other_leaves_are_asked_for_in_turn():
    """What is known is told apart by what is asked for, and from a call of gradients() for the same."""
    x, w = tape.Variable(A), tape.Variable(A + 1)
    for k in range(12):
        y = (x * w * w).sum()
        given = ([x], [w], [w, x], None)[k % 4]
        if given is None:
            dx, dw = tape.gradients(y, [x, w])
            assert x.grad is None
        else:
            y.backward(inputs=given)
            dx, dw = x.grad, w.grad
            x.grad = w.grad = None
        for gradient, variable, right in ((dx, x, (A + 1) ** 2), (dw, w, 2 * A * (A + 1))):
            if given is None or any(variable is v for v in given):
                np.testing.assert_allclose(gradient.value, right, rtol=1e-5)
            else:
                assert gradient is None


def test_leaves_that_are_asked_for_are_updated_in_the_same_program(stats):
    """The sweep runs with the optimizer that updates them all, as without ``inputs``."""
    optax = pytest.importorskip("optax")
    optimizer = pytest.importorskip("interop.optax").Optimizer([x := tape.Variable(A)], optax.sgd(0.01))
    w = tape.Variable(A + 1)

    def step():
        (x * x * w).sum().backward(inputs=[x])
        optimizer.step()
        optimizer.zero_grad()
        return np.asarray(x.value)

    for _ in range(40):
        step()
    stats.reset()
    for _ in range(20):
        found = step()
    assert not stats.flushes["backward"]
    assert sum(stats.flushes.values()) == 20
    a = A
    for _ in range(60):
        a = a - np.float32(0.01) * (2 * a * (A + 1))
    np.testing.assert_allclose(found, a, rtol=1e-4)


def released(y, x, w):
    y.backward()
    with pytest.raises(ReleasedTapeError):
        y.backward()
    return [x.grad, w.grad]


def retained(y, x, w):
    y.backward(retain_graph=True)
    once = [x.grad, w.grad]
    x.grad = w.grad = None
    y.backward()
    close(x.grad, once[0].value)
    return once


def recorded(y, x, w):
    y.backward(create_graph=True)
    once = [x.grad, w.grad]
    close(tape.gradients(once[0].sum(), x), B * B * (2 * np.cos(A) - A * np.sin(A)))
    return once


def seeded(y, x, w):
    y.backward(2.0)
    return [x.grad * 0.5, w.grad * 0.5]


def seeded_by_a_leaf(y, x, w):
    y.backward(TWO)
    return [x.grad * 0.5, w.grad * 0.5]


def to_one(y, x, w):
    y.backward(inputs=[x])
    assert w.grad is None
    return [x.grad]


def not_to_one(y, x, w):
    y.backward(ignore=[w])
    assert w.grad is None
    return [x.grad]


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize(
    ("first", "then"), list(itertools.permutations([released, retained, recorded, seeded, seeded_by_a_leaf, to_one, not_to_one], 2))
)
def test_contract_14_16_a_call_is_not_written_as_another_one_was(first, then, looks):
    for call in (first, first, first, then, then, first):
        x, w = tape.Variable(A), tape.Variable(B)
        y = (tnp.sin(x) * x * w * w).sum() * TWO * 0.5
        if looks:
            float(y)
        for gradient, expected in zip(call(y, x, w), [B * B * (np.sin(A) + A * np.cos(A)), 2 * B * A * np.sin(A)], strict=False):
            close(gradient, expected)


def test_contract_12_20_what_a_recorded_sweep_adds_to_is_differentiated_with_it():
    for _ in range(3):
        x = tape.Variable(A)
        tnp.sum(x * x * x).backward(create_graph=True)
        tnp.sum(tnp.sin(x)).backward(create_graph=True)
        close(x.grad, 3 * A * A + np.cos(A))
        close(tape.gradients(tnp.sum(x.grad), x), 6 * A - np.sin(A))


@pytest.mark.parametrize("change", [lambda y: y.register_hook(lambda g: g * 10), lambda y: y.unchain()], ids=["hook", "cut"])
def test_what_is_done_to_a_result_that_ran_counts_in_a_sweep_that_is_known(change):
    found = []
    for i in range(6):
        y = tape.Variable([1.0, 2.0]) * 2
        float(y.sum())
        if i > 2:
            change(y)
        found.append(tape.gradients((y * y).sum(), y).tolist())
    with tape.eager():
        y = tape.Variable([1.0, 2.0]) * 2
        change(y)
        expected = tape.gradients((y * y).sum(), y).tolist()
    assert found == [[4.0, 8.0]] * 3 + [expected] * 3
