"""Numbers that stay the same become constants of a second program, and any other number is still served by the first one."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape import layout
from tape.programs import background, numbers, policy, program

X = np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4)
MANY = 200  # calls, by which the second program has taken over


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Have the second program take over as soon as it may."""
    monkeypatch.setattr(numbers, "MOST", numbers.FEWEST)
    monkeypatch.setattr(numbers, "_COMPILE", 0.0)
    monkeypatch.setattr(numbers, "_COMPILE_ENTRY", 0.0)


def of(xp, x, scale, at):
    return xp.tanh(x[:, at : at + 2] * scale).sum() + x[at, 0] / 3.0 - 0.0 * x[0, 1]


REFERENCE = jax.jit(jax.value_and_grad(lambda x, scale, at: of(jnp, x, scale, at)), static_argnums=2)


def stepping(signs):
    """Return a step; another number of signs makes it another structure."""
    x = tape.Variable(X)

    def step(scale, at):
        y = of(tnp, x, scale, at)
        for _ in range(2 * signs):
            y = -y
        (gradient,) = tape.gradients(y, [x])
        return float(y), np.asarray(gradient)

    return step


def check(found, scale, at):
    value, gradient = REFERENCE(jnp.asarray(X), scale, at)
    np.testing.assert_allclose(found[0], value, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1], gradient, rtol=1e-5, atol=1e-6)


def test_numbers_that_stay_the_same_become_constants_once(stats):
    step = stepping(0)
    for _ in range(MANY):
        check(step(1.5, 1), 1.5, 1)
    assert stats.reasons["numbers that stay the same"] == 1
    stats.reset()
    for numbers_given in ((1.5, 1), (2.5, 1), (1.5, 0), (-1.5, 2), (1.5, 1)) * 10:  # fewer misses than change it
        check(step(*numbers_given), *numbers_given)
    assert stats.interpreted == stats.compiles == stats.programs == 0


def test_a_number_that_varies_stays_an_argument(stats):
    step = stepping(1)
    for k in range(MANY):
        scale = 0.5 + 0.01 * k
        check(step(scale, 1), scale, 1)
    assert stats.reasons["numbers that stay the same"] == 1  # the positions do
    stats.reset()
    for k in range(20):
        check(step(-0.1037 * k, 1), -0.1037 * k, 1)
    assert stats.interpreted == stats.compiles == 0


def test_where_all_numbers_vary_there_is_one_program(stats):
    x = tape.Variable(X)
    for k in range(MANY):
        assert float((x * float(k)).sum()) == pytest.approx(float(X.sum()) * k, rel=1e-4)
    assert not stats.reasons["numbers that stay the same"]


def test_signs_of_zeros_are_told_apart():
    x = tape.constant(np.ones(2, np.float32))
    for k in range(MANY):
        zero = -0.0 if k > MANY - 10 and k % 2 else 0.0
        found = np.asarray(x * zero + np.float32(-0.0))
        assert np.signbit(found).all() == (str(zero) == "-0.0")


def test_nan_stays_nan():
    x = tape.constant(np.ones(2, np.float32))
    nan = float("nan")
    for k in range(MANY):
        found = np.asarray(x * (nan if k % 50 else 2.0) + 1.0)
        assert np.isnan(found).all() if k % 50 else (found == 3).all()


def test_threads_with_other_numbers_get_their_own_results(stats):
    step = stepping(4)
    for _ in range(numbers.FEWEST):
        step(1.5, 1)

    def run(scale):
        for _ in range(MANY):
            check(step(scale, 1), scale, 1)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(run, (1.5, 1.5, 0.25)))


def test_numbers_that_change_for_good_become_arguments_and_the_others_stay(stats):
    step = stepping(2)
    for scale in (1.5, 2.5):
        for _ in range(MANY):
            check(step(scale, 1), scale, 1)
    assert stats.reasons["numbers that stay the same"] == 2
    stats.reset()
    for k in range(MANY):
        check(step(0.1037 * k, 1), 0.1037 * k, 1)
    assert stats.compiles == stats.interpreted == 0


def test_a_program_that_cannot_be_compiled_anew_goes_on_as_it_is(monkeypatch, stats):
    step = stepping(3)
    for _ in range(8):
        step(1.5, 1)
    monkeypatch.setattr(numbers.background, "compiling", lambda *_: numbers.background.submit(lambda: 1 / 0))
    for _ in range(MANY):
        check(step(1.5, 1), 1.5, 1)
    assert not stats.reasons["numbers that stay the same"]


def test_one_call_in_a_while_waits_for_the_compiler(stats, monkeypatch):
    waits = []

    def stuck(job, seconds):
        special = job is steadies[0]
        waits.append(seconds if special else 0.0)
        return not special and made_within(job, 30)

    steadies, compiling, made_within = [], background.compiling, background.Job.made_within

    def noted(function, arguments):
        job = compiling(function, arguments)
        if function.__name__ == "knowing":
            steadies.append(job)
        return job

    step = stepping(5)
    monkeypatch.setattr(policy, "GAP", 100.0)
    monkeypatch.setattr(policy.TIME, "_waited", -100.0)
    monkeypatch.setattr(numbers.background, "compiling", noted)
    while not steadies:
        step(1.5, 1)
    monkeypatch.setattr(policy.TIME, "_waited", -100.0)
    monkeypatch.setattr(background.Job, "made_within", stuck)
    for _ in range(MANY):
        check(step(1.5, 1), 1.5, 1)
    assert [seconds for seconds in waits if seconds] == [numbers.LIMIT]


def test_a_number_is_put_on_the_device_when_it_has_come_often(monkeypatch, stats):
    put, given = numbers.known_array, []
    monkeypatch.setattr(numbers, "known_array", lambda value: given.append(value) or put(value))
    x = tape.Variable(X)

    def step(scale):
        y = tnp.sin(x[:, :3] * scale).sum()
        (gradient,) = tape.gradients(y, [x])
        return y.value, gradient.value

    for i in range(MANY):
        step(1.0 + i)
    compiled = stats.compiles
    given.clear()
    scales = np.linspace(0.1234, 0.9876, 9).tolist()
    for scale in (*scales, -0.0):
        for _ in range(numbers._OFTEN + 2):
            y, gradient = step(scale)
            value, expected = jax.value_and_grad(lambda x, scale: jnp.sin(x[:, :3] * scale).sum())(jnp.asarray(X), scale)
            np.testing.assert_allclose(y, value, rtol=1e-5)
            np.testing.assert_allclose(gradient, expected, rtol=1e-5)
            assert jnp.signbit(gradient[0, 0]) == jnp.signbit(expected[0, 0])
    step(0.9512)
    assert stats.compiles == compiled
    assert [value for value in given if value] == scales


def test_a_number_may_come_as_an_array_of_its_weak_type(monkeypatch):
    monkeypatch.setattr(program, "salvage", lambda *given: pytest.fail(f"a run has failed: {given[-1]!r}"))

    def slopes(turns, scale, context):
        x = tape.Variable(X[0])
        y, total = [x * 1, x * X[1]], 0.0
        for _ in range(turns):
            y.append(y[1] * y[1].detach().sum().value)
            with context():
                y.append(tnp.sin(y[0]) * y[2])
            total = total + tnp.tanh(y[-2]).sum() + tnp.tanh(y[-1]).sum()
            del y[:-4]
        total.backward(scale)
        return x.grad.numpy()

    for turns in (3, 2, 4):
        expected = 2.5 * slopes(turns, 1.0, contextlib.nullcontext)
        for _ in range(MANY // 10):  # what sweeps hand on has been computed by a program, and is an array, where it is a number at first
            found = slopes(turns, 2.5, lambda: tape.saved_value_hooks(lambda v: v * 1, lambda v: v))
            np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.skipif(layout.NATIVE is None, reason="the recorder in Python runs")
@pytest.mark.parametrize("changing", ["all", "some"])
def test_numbers_that_come_again_by_turns_are_left_to_the_recorder_in_c(monkeypatch, changing):
    left = []
    array = numbers._array
    monkeypatch.setattr(numbers, "_array", lambda *args, **kwargs: left.append(args) or array(*args, **kwargs))
    x = tape.Variable(X)

    def step(k):
        scale, at = [2.5, 0.25, -1.5, 4.0][k % 4], (k % 3 if changing == "all" else 1)
        y = of(tnp, x, scale, at)
        check((float(y), np.asarray(tape.gradients(y, [x])[0])), scale, at)

    for k in range(2 * MANY):
        step(k)
    left.clear()
    for k in range(24):
        step(k)
    assert not left


def test_equal_numbers_of_other_signs_and_types_are_not_taken_for_one_another():
    x = tape.Variable(np.asarray([2.0, -3.0], np.float32))
    for k in range(2 * MANY):
        number = [0.0, 1.5, -0.0, 1.0][k % 4]
        found = np.asarray((1.0 / (x * number)).value if number == 0 else (x * number).value)
        with np.errstate(divide="ignore"):
            expected = 1 / (x.value * np.float32(number)) if number == 0 else x.value * np.float32(number)
        np.testing.assert_array_equal(found, np.asarray(expected))
        one = [1, 1.0, True][k % 3]
        assert (tnp.asarray(x) * one).dtype == np.float32
        assert (tnp.arange(3) * one).dtype == (jnp.arange(3) * one).dtype
