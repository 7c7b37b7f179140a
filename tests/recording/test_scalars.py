"""Numbers as inputs: each place of use is an input of its own, so that which of them are equal does not change the structure."""

import contextlib
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp
from tape.graph import length
from tape.mirrored import mirror
from tape.mirrored.mirror import mirrored
from tape.programs import numbers
from tests.daily import pairs

W = np.linspace(-1.0, 1.0, 8, dtype=np.float32)
E = np.arange(40, dtype=np.float32).reshape(5, 8) / 10
LIFTED = interop.lift(lambda x, a, b: x * a + b)


def assigned(x, a, b):
    y = x * 1
    y[int(a)], y[1, int(b)] = b, 2.0
    return y


# Each takes a matrix and two numbers, from 0 to 2.
PLACES = {
    "operators": lambda x, a, b: (a * x + b) / (2.0 - x) - a,
    "comparisons": lambda x, a, b: tnp.where((x > a) & (x < b + 2), x, b),
    "positions": lambda x, a, b: tnp.tanh(x[int(a)]) + x[int(b)],
    "two positions": lambda x, a, b: x[int(a), int(b)] * x[int(b), 0],
    "windows": lambda x, a, b: x[int(a) : int(a) + 2] * x[int(b) : int(b) + 2],
    "clip": lambda x, a, b: tnp.clip(x, a, b + 1),
    "keywords": lambda x, a, b: tnp.nan_to_num(x, nan=a, posinf=b) * a,
    "take": lambda x, a, b: tnp.take(x, int(a), axis=0) + tnp.take(x, int(b), axis=0),
    "updates": lambda x, a, b: x.at[int(a)].add(b).at[int(b)].multiply(a),
    "assignments": assigned,
    "lists": lambda x, a, b: tnp.stack([x[0, 0], a, b, a]) * tnp.array([b, x[0, 1], a, 1.0]),
    "starts": lambda x, a, b: tape.lax.dynamic_slice(x, [int(a), 0], [2, 8]) + tape.lax.dynamic_index_in_dim(x, int(b), 0),
    "lifted": lambda x, a, b: LIFTED(x, a, b),
    "constants": lambda x, a, b: x * tape.constant(a) + tape.constant(b),
    "scan": lambda x, a, b: tape.lax.scan(lambda c, r: ((c[0] * 0.5, c[1] + 1.0), r * c[0] + c[1]), (float(a), float(b)), x)[1],
}
PLAIN = {
    "operators": lambda x, a, b: (a * x + b) / (2.0 - x) - a,
    "positions": lambda x, a, b: jnp.tanh(x[int(a)]) + x[int(b)],
    "lists": lambda x, a, b: jnp.stack([x[0, 0], a, b, a]) * jnp.array([b, x[0, 1], a, 1.0]),
    "starts": lambda x, a, b: jax.lax.dynamic_slice(x, [int(a), 0], [2, 8]) + jax.lax.dynamic_index_in_dim(x, int(b), 0),
    "lifted": lambda x, a, b: x * a + b,
}


@pytest.mark.parametrize(
    ("place", "kind"), [pair for pair in pairs(PLACES, (float, int, np.float32, np.int32, bool), 2) if pair != ("lifted", bool)]
)  # a lifted function takes a bool for an option
def test_equal_numbers_make_the_same_structure_as_different_ones(place, kind):
    x = tape.Variable(E)

    def step(a, b):
        y = PLACES[place](x, kind(a), kind(b))
        gradient = tape.gradients(y.sum(), x)
        return np.asarray(y.detach()), np.asarray(gradient)

    different, equal = (1, 0), (1, 1)
    for _ in range(3):
        step(*different)
    tape.stats().reset()
    results = [step(*numbers) for numbers in (equal, (0, 0), different, equal)]
    stats = tape.stats()
    assert stats.programs == stats.interpreted == stats.compiles == 0
    if place in PLAIN:
        for (value, gradient), (a, b) in zip(results, (equal, (0, 0), different, equal), strict=True):
            np.testing.assert_allclose(value, PLAIN[place](jnp.asarray(E), kind(a), kind(b)), rtol=1e-6)
            expected = jax.grad(lambda x, a=a, b=b: PLAIN[place](x, kind(a), kind(b)).sum())(jnp.asarray(E))
            np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)


def test_random_ids_and_coins_find_their_program():
    rng = np.random.default_rng(0)
    x = tape.Variable(E)

    def step():
        total = sum(tnp.tanh(x[int(i)]).sum() * (2.0 if rng.random() < 0.5 else 0.5) for i in rng.integers(0, 5, 6))
        return float(total - 0.25 * total)

    for _ in range(3):
        step()
    tape.stats().reset()
    for _ in range(20):
        step()
    assert tape.stats().hits == 20
    assert tape.stats().interpreted == 0


def test_what_the_user_holds_is_one_input():
    x, c = tape.Variable(W), tape.constant(2.0)
    y = (x * c + c) * 2.0 * 2.0
    first, second, third, fourth = [step.inputs[1] for step in y._segment.state.path() if step.kernel is not None][-4:]
    assert first == second
    assert len({second, third, fourth}) == 3
    np.testing.assert_array_equal(y.value, (W * 2 + 2) * 4)


def test_a_tape_jit_is_one_op_whatever_its_numbers():
    f = tape.jit(lambda x, a, b: (x * a + b).sum())
    x = tape.Variable(W)

    def step(*given):
        return float(f(x, *given[:2]) + f(x, *given[2:]))

    for _ in range(4):
        step(1.0, 2.0, 3.0, 4.0)
    tape.stats().reset()
    assert step(1.0, 1.0, 1.0, 2.0) == pytest.approx(float((W + 1).sum() + (W + 2).sum()), rel=1e-5)
    assert tape.stats().interpreted == tape.stats().compiles == 0


def test_numbers_keep_sign_and_dtype_in_programs():
    x = tape.constant(np.ones(2, np.float32))
    given = [
        0.0,
        -0.0,
        1.0,
        np.float32(-0.0),
        np.float16(2),
        np.int32(3),
        True,
        complex(1, 0.0),
        complex(1, -0.0),
        float("nan"),
        float("inf"),
    ]
    for _ in range(2):
        for v in given:
            for _ in range(4):  # interpreted, then compiled
                found = x * v
                expected = x.value * v
                assert found.dtype == expected.dtype
                np.testing.assert_array_equal(found.value, expected)
                np.testing.assert_array_equal(np.signbit(found.value.real), np.signbit(expected.real))
                np.testing.assert_array_equal(np.signbit(found.value.imag), np.signbit(expected.imag))


def test_numbers_are_put_on_the_device_once(monkeypatch):
    x = tape.Variable(W)

    def step(a):
        return tnp.sin(x * 2.5 + a).value  # three numbers would come in a buffer

    for a in (1.53, 2.53, 3.53, 4.53):
        step(a)
    put = []
    monkeypatch.setattr(numbers, "known_array", lambda value: put.append(value) or jnp.asarray(value))
    for a in (1.53, *[5.53] * (numbers._OFTEN + 4), 3.53):  # as soon as that costs less than to pass it
        np.testing.assert_allclose(step(a), np.sin(W * 2.5 + a), rtol=1e-5)
    assert put in ([5.53], [1.53, 5.53])  # which no other test puts there; the first may have run interpreted


def test_a_segment_ends_before_its_numbers_are_too_many_for_the_compiler():
    x = tape.Variable(np.ones(4, np.float32))
    divides = np.random.default_rng(0).integers(2, size=600).tolist()  # in a loop of the program they are one array

    def loop():
        y = x
        for i in range(600):  # over 500 numbers in one loop of four elements took the compiler all memory
            y = y / (1 / (1 + i * 1e-6)) if divides[i] else y * (1 + i * 1e-6)
        return y

    tape.stats().reset()
    for _ in range(3):
        value = loop().value
    assert tape.stats().flushes["length"] >= 3
    np.testing.assert_allclose(value, np.prod(1 + np.arange(600) * 1e-6), rtol=1e-3)
    assert length.NUMBER_LIMIT < 500


@pytest.mark.parametrize("value", [np.datetime64("2020-01-01"), np.longdouble(2), np.timedelta64(1, "s")])
def test_what_jax_makes_no_array_of(value):
    x = tape.Variable(W)
    for record in (lambda: x * value, lambda: tnp.add(x, value), lambda: tnp.where(x > 0, x, value)):
        with pytest.raises(tape.errors.TapeTypeError, match="cannot make an array of"):
            record()


def test_integers_among_other_numbers_may_be_big():
    x = tape.Variable(np.float32(1.0))
    np.testing.assert_array_equal(tnp.array([x, 2**40]).value, np.array([1.0, 2.0**40], np.float32))
    with pytest.raises(OverflowError, match="out of bounds for int32"):
        tnp.clip(x, 0, 2**40)


def resized(x, a, b):
    return jnp.reshape(x, (a, b))


def jax_keeps_frames():
    """Whether JAX itself keeps the frames of those who called for a trace that failed, until garbage is collected."""
    refs = []

    def calling():
        mine = tape.Variable(W)
        refs.append(weakref.ref(mine))
        with contextlib.suppress(TypeError):
            jax.make_jaxpr(resized)(W, 2, 4)

    gc.disable()
    try:
        calling()
        return refs[0]() is not None
    finally:
        gc.enable()


def test_a_number_that_the_function_needs_as_it_is_does_not_enter_the_tape():
    """Nor does the first call, which finds that out, make another structure than the next ones, or keep its caller's frame."""
    resize = mirrored(resized)  # one that no other test has called
    x = tape.Variable(W)
    leaves, seen, kept = [], [], jax_keeps_frames()

    def call():
        between = x * 2.0
        seen.append(weakref.ref(between))
        return resize(between, 2, 4)

    for _ in range(3):
        y = call()
        leaves.append(len(y._segment.leaves))
        assert seen.pop()() is None or kept
        y.sum().backward()
        np.testing.assert_array_equal(x.grad, np.full(8, 2.0))
        x.zero_grad()
    assert leaves == [2, 2, 2]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.reshape(2, 2, 2).transpose(2, 0, 1),
        lambda x: tnp.stack(tnp.split(x, 2)) + tnp.stack(tnp.array_split(x, 2)) + tnp.stack(tnp.hsplit(x, 2)),
        lambda x: tnp.repeat(x, 3) + x.repeat(3),
    ],
)
def test_integers_that_are_no_arrays_are_not_tried_as_such(call, monkeypatch):
    """A trace that fails takes time, and JAX may keep the frames of those who asked for it."""
    asked = []
    monkeypatch.setattr(mirror, "_NEEDS_VALUES", {})
    monkeypatch.setattr(mirror, "kernel_on", lambda op, kinds: asked.append(op.name) or op.kernel_of(tuple(kinds)))
    x = tape.Variable(W)
    assert call(x).size
    assert asked == []


def test_an_array_may_stand_where_a_number_had_to_be_known():
    x, edges = tape.Variable(W), tape.Variable(np.array([-1.0, 0.1, 1.0], np.float32))
    tnp.histogram(x, 2)
    counts, _ = tnp.histogram(x, edges)
    np.testing.assert_array_equal(counts.value, [4.0, 4.0])
    assert counts.requires_grad
