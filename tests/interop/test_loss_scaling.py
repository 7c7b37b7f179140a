"""Contract 27: the loss scale is a seed; the optimizer divides it out, skips what overflowed, and adapts: as optax does on raw arrays."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tape
import tape.numpy as tnp
from interop.optax import DynamicLossScale, LossScaleState, Optimizer
from tape.errors import SeedError, TapeTypeError, TapeValueError

A = np.array([0.5, -0.25, 0.75], np.float32)


def bits(variable):
    return np.asarray(variable.value).tobytes()


@given(
    st.integers(-20, 20), st.sampled_from(["float16", "bfloat16", "float32"]), st.lists(st.floats(-2, 2, width=16), min_size=3, max_size=3)
)
def test_contract_27_a_scale_that_is_a_power_of_two_only_moves_the_exponent(power, dtype, values):
    """Where nothing leaves the range of normal numbers, dividing gives the same bits back."""
    x = tape.Variable(jnp.asarray(values, dtype))
    y = (tnp.sin(x) * x + x * x).sum().astype("float32")
    plain = tape.gradients(y, x, retain_graph=True)
    scaled = tape.gradients(y, x, np.float32(2.0**power))
    found, expected = np.asarray(scaled.value, np.float32), np.asarray(plain.value, np.float32) * np.float32(2.0**power)
    limits = jnp.finfo(dtype)
    tiny, largest = float(limits.tiny) * 2.0**12, float(limits.max) / 2.0**12
    inside = (np.abs(expected) > tiny) & (np.abs(expected) < largest) & (np.abs(plain.value.astype("float32")) > tiny)
    np.testing.assert_array_equal(found[inside], expected[inside])


def minimise(optimizer, x, steps, factor=1.0):
    for _ in range(steps):
        optimizer.zero_grad()
        optimizer.backward((x * x * factor).sum())
        optimizer.step()


@pytest.mark.parametrize("scale", [1.0, 1024, np.float32(2.0**15), DynamicLossScale(), DynamicLossScale(initial=8, interval=2)])
@pytest.mark.parametrize("make", [lambda: optax.sgd(0.1, momentum=0.9), lambda: optax.adam(0.05)])
def test_contract_27_scaled_steps_are_those_without(scale, make):
    x, w = tape.Variable(A), tape.Variable(A)
    scaled, plain = Optimizer([x], make(), loss_scale=scale), Optimizer([w], make())
    for _ in range(5):
        minimise(scaled, x, 1)
        minimise(plain, w, 1)
        np.testing.assert_allclose(x.value, w.value, rtol=1e-6, atol=1e-7)
    assert int(scaled.scaling.skipped) == 0
    assert jax.tree.structure(scaled.state) == jax.tree.structure(plain.state)
    assert plain.scaling is plain.loss_scale is None


def test_contract_27_a_step_with_a_gradient_that_is_not_finite_is_skipped():
    x, w = tape.Variable(A), tape.Variable(np.float32(2.0))
    optimizer = Optimizer([x, w], optax.adam(0.1), loss_scale=DynamicLossScale(initial=64, interval=3))
    minimise_both = lambda factor: (optimizer.zero_grad(), optimizer.backward((x * x).sum() + w * factor), optimizer.step())  # noqa: E731
    seen = []
    for factor in (1.0, np.inf, 1.0, np.nan, -np.inf, 1.0, 1.0, 1.0):
        before = [bits(x), bits(w), *[np.asarray(a).tobytes() for a in jax.tree.leaves(optimizer.state)]]
        minimise_both(factor)
        after = [bits(x), bits(w), *[np.asarray(a).tobytes() for a in jax.tree.leaves(optimizer.state)]]
        assert (before == after) == (not np.isfinite(factor))
        seen.append(tuple(map(float, optimizer.scaling)))
    assert [s[0] for s in seen] == [64, 32, 32, 16, 8, 8, 8, 16]
    assert [s[1] for s in seen] == [1, 0, 1, 0, 0, 1, 2, 0]
    assert [s[2] for s in seen] == [0, 1, 1, 2, 3, 3, 3, 3]
    assert np.isfinite(x.value).all()


def test_contract_27_a_static_scale_skips_as_well_and_stays():
    x = tape.Variable(A)
    optimizer = Optimizer([x], optax.sgd(0.1), loss_scale=128.0)
    minimise(optimizer, x, 1, factor=np.inf)
    np.testing.assert_array_equal(x.value, A)
    minimise(optimizer, x, 1)
    np.testing.assert_allclose(x.value, 0.8 * A, rtol=1e-6)
    assert (float(optimizer.scaling.scale), int(optimizer.scaling.skipped)) == (128.0, 1)


def test_contract_27_the_scale_keeps_between_its_limits():
    x = tape.Variable(A)
    optimizer = Optimizer([x], optax.sgd(0.0), loss_scale=DynamicLossScale(initial=4, minimum=0.5))
    minimise(optimizer, x, 6, factor=np.nan)
    assert float(optimizer.scaling.scale) == 0.5
    optimizer = Optimizer([x], optax.sgd(0.0), loss_scale=DynamicLossScale(initial=2.0**126, growth=4.0, interval=1))
    minimise(optimizer, x, 4, factor=0.0)
    assert float(optimizer.scaling.scale) == 2.0**126  # not infinity


def test_contract_27_small_gradients_survive_float16():
    """A gradient of 1e-8 is zero in float16; scaled by 2**15 it is not."""
    for dtype in (np.float32, np.float16):
        for scale in (None, 2.0**15):
            x = tape.Variable(np.zeros(2, dtype))
            optimizer = Optimizer([x], optax.sgd(2.0**14), loss_scale=scale)
            optimizer.backward((x.astype("float16") * np.float16(0.5)).astype("float32").sum() * np.float32(2e-8))
            optimizer.step()
            moved = -(2.0**14) * 1e-8 if scale else 0.0
            np.testing.assert_allclose(np.asarray(x.value, np.float32), moved, rtol=2e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_contract_27_parameters_of_sixteen_bits_are_updated_in_float32(dtype):
    x = tape.Variable(jnp.asarray(A, dtype))
    optimizer = Optimizer([x], optax.adam(0.01), loss_scale=256)
    assert {a.dtype for a in jax.tree.leaves(optimizer.state)} == {np.dtype(np.float32), np.dtype(np.int32)}
    reference = jnp.asarray(A, dtype)
    state = optax.adam(0.01).init(reference.astype(jnp.float32))
    for _ in range(4):
        gradient = (2 * reference).astype(jnp.float32)
        updates, state = optax.adam(0.01).update([gradient][0], state, reference.astype(jnp.float32))
        reference = (reference.astype(jnp.float32) + updates).astype(dtype)
        minimise(optimizer, x, 1)
        assert x.dtype == dtype
        np.testing.assert_array_equal(np.asarray(x.value, np.float32), np.asarray(reference, np.float32))


def test_contract_27_one_program_and_nobody_waits():
    x = tape.Variable(A)
    optimizer = Optimizer([x], optax.adam(0.1), loss_scale=DynamicLossScale(interval=2))
    for k in range(9):
        if k == 5:
            tape.stats().reset()
        optimizer.zero_grad()
        optimizer.backward((x * x).sum())
        optimizer.step()
    stats = tape.stats()
    assert (stats.compiles, stats.interpreted, stats.hits) == (0, 0, 4)
    assert stats.flushes == {"step": 4}  # sweep, check, update and scale


def test_contract_27_under_tape_jit():
    x, w = tape.Variable(A), tape.Variable(A)
    inside, outside = (Optimizer([v], optax.adam(0.1), loss_scale=DynamicLossScale(initial=16, interval=2)) for v in (x, w))

    @tape.jit
    def step(factor):
        inside.zero_grad()
        loss = (x * x * factor).sum()
        loss.backward(inside.loss_scale)
        inside.step()
        return loss

    for factor in (1.0, 1.0, np.inf, 1.0, 1.0, 2.0):
        step(np.float32(factor))
        minimise(outside, w, 1, np.float32(factor))
        np.testing.assert_allclose(x.value, w.value, rtol=1e-6)
        assert tuple(map(float, inside.scaling)) == tuple(map(float, outside.scaling))
    assert float(inside.scaling.scale) == 32.0


def test_contract_27_what_it_has_come_to_is_kept_and_restored():
    def made():
        x = tape.Variable(A)
        return x, Optimizer([x], optax.adam(0.1), loss_scale=DynamicLossScale(initial=16, interval=2))

    x, optimizer = made()
    minimise(optimizer, x, 3)
    kept = pickle.loads(pickle.dumps((x.value, optimizer.state, optimizer.scaling)))  # noqa: S301 - our own
    minimise(optimizer, x, 3)
    y, other = made()
    y.value, other.state, other.scaling = kept
    assert isinstance(other.scaling, LossScaleState)
    minimise(other, y, 3)
    assert bits(x) == bits(y)
    assert tuple(map(float, optimizer.scaling)) == tuple(map(float, other.scaling))
    assert pickle.loads(pickle.dumps(DynamicLossScale(interval=7))) == DynamicLossScale(interval=7)  # noqa: S301 - our own


def test_contract_27_losses_of_one_number_in_other_shapes():
    x = tape.Variable(A)
    optimizer = Optimizer([x], optax.sgd(0.1), loss_scale=8.0)
    optimizer.backward((x * x).sum(keepdims=True))
    np.testing.assert_allclose(x.grad.value, 16 * A)
    with pytest.raises(SeedError, match=r"a loss has one number, got shape \(3,\); reduce it"):
        optimizer.backward(x * x)
    with pytest.raises(TapeTypeError, match=r"loss must be a tape\.Variable, got float"):
        optimizer.backward(1.0)
    loss = (x * x).sum()
    optimizer.backward(loss, retain_graph=True)
    loss.backward()
    np.testing.assert_allclose(x.grad.value, (16 + 16 + 2) * A)
    plain = Optimizer([x], optax.sgd(0.1))
    optimizer.zero_grad()
    plain.backward((x * x).sum())
    np.testing.assert_allclose(x.grad.value, 2 * A)


def test_contract_27_a_missing_gradient_changes_nothing():
    x = tape.Variable(A)
    optimizer = Optimizer([x], optax.sgd(0.1), loss_scale=DynamicLossScale())
    before = optimizer.scaling
    with pytest.raises(TapeValueError, match="have no gradient"):
        optimizer.step()
    assert tuple(map(float, before)) == tuple(map(float, optimizer.scaling))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (
            lambda x: Optimizer([x], optax.sgd(1.0), loss_scale="dynamic"),
            TapeTypeError,
            "loss_scale must be a number, a DynamicLossScale or None",
        ),
        (lambda x: Optimizer([x], optax.sgd(1.0), loss_scale=True), TapeTypeError, "got bool"),
        (lambda x: Optimizer([x], optax.sgd(1.0), loss_scale=0.0), TapeValueError, "positive and finite, got 0.0"),
        (lambda x: Optimizer([x], optax.sgd(1.0), loss_scale=np.inf), TapeValueError, "positive and finite, got inf"),
        (lambda _: DynamicLossScale(initial=-1), TapeValueError, "initial must be a positive finite number, got -1"),
        (lambda _: DynamicLossScale(growth=0.5), TapeValueError, "growth must be a finite number of at least 1"),
        (lambda _: DynamicLossScale(backoff=2), TapeValueError, r"backoff must be in \(0, 1\]"),
        (lambda _: DynamicLossScale(interval=2.5), TapeValueError, "interval must be a positive integer"),
        (lambda _: DynamicLossScale(minimum=0), TapeValueError, "minimum must be a positive finite number"),
        (lambda x: setattr(Optimizer([x], optax.sgd(1.0)), "scaling", 3), TapeTypeError, "this optimizer has no loss scale"),
        (lambda x: setattr(Optimizer([x], optax.sgd(1.0), loss_scale=2), "scaling", 3), TapeTypeError, "must be a LossScaleState, got int"),
    ],
)
def test_contract_27_errors(make, error, words):
    with pytest.raises(error, match=words):
        make(tape.Variable(1.0))
