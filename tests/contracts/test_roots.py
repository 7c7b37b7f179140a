"""Contracts 1 to 6: roots and seeds."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tape
from tape.errors import SeedDtypeError, SeedError, TapeTypeError, TapeValueError
from tests.agreement import close

A, B = np.array([1.0, -2.0, 0.5], np.float32), np.array([3.0, 0.25, -1.0], np.float32)
numbers = st.integers(-8, 8).map(float)  # exact in float32


def equal(variable, expected):
    np.testing.assert_array_equal(np.asarray(variable.value), np.asarray(expected, variable.dtype))


# -- 1: any number of roots ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_contract_01_any_order_of_roots(order):
    x, w = tape.Variable(A), tape.Variable(B)
    h = x * w
    roots = [h.sum(), (h * h).sum(), (x * 3).sum()]
    tape.backward([roots[i] for i in order])
    close(x.grad, B + 2 * A * B * B + 3)
    close(w.grad, A + 2 * A * A * B)


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("feeding_first", [True, False])
def test_contract_01_a_root_may_feed_another(feeding_first):
    x = tape.Variable(2.0)
    h = x * x
    y = h * h * h  # x**6
    pair = (h, y) if feeding_first else (y, h)
    tape.backward(pair)
    equal(x.grad, 2 * 2 + 6 * 2**5)
    gh = tape.gradients([h * 1, h, h * h], h)
    equal(gh, 1 + 1 + 2 * 4)


def test_contract_01_a_root_that_is_a_leaf():
    x = tape.Variable(A)
    y = x * 2
    tape.backward([x, y], [B, np.ones(3)])
    equal(x.grad, B + 2)


def test_contract_01_roots_recorded_at_once_between_pending_ones():
    """A segment run in eager mode is younger than the pending one that uses it: it must be swept after it."""
    x, w = tape.Variable(5.0), tape.Variable(7.0)
    a = x * 2
    with tape.eager():
        e = w * 3
    seen = []
    e.register_hook(lambda g: seen.append(float(g)))
    b = a * e
    for roots in ([b, e], [e, b]):
        ge, gw = tape.gradients(roots, [e, w], retain_graph=True)
        equal(ge, 10 + 1)
        equal(gw, 33)
    assert seen == [11.0, 11.0]


@settings(max_examples=25, deadline=None)
@given(seeds=st.lists(numbers, min_size=3, max_size=3), picks=st.lists(st.integers(0, 2), min_size=1, max_size=4))
def test_contract_01_04_gradients_are_linear_in_the_seeds(seeds, picks):
    """Any multiset of roots with any seeds: the gradient is the sum of each root's own, a root listed twice counting twice."""
    x = tape.Variable(3.0)
    roots = [x * x, x * 5, x * x * x]
    slopes = [6.0, 5.0, 27.0]
    tape.backward([roots[i] for i in picks], [seeds[i] for i in picks])
    equal(x.grad, sum(slopes[i] * seeds[i] for i in picks))


# -- 2: seeds are checked before anything changes ---------------------------------------------------------------------------


def test_contract_02_a_missing_seed_changes_nothing():
    x = tape.Variable(A)
    good, bad = (x * x).sum(), x * 2
    x.grad = B
    with pytest.raises(SeedError, match=r"root 1 has shape \(3,\).*ones_like"):
        tape.backward([good, bad])
    equal(x.grad, B)
    tape.backward([good, bad], [None, B])  # nothing was released
    equal(x.grad, B + 2 * A + 2 * B)


@pytest.mark.parametrize(
    ("seed", "error"),
    [
        (np.ones(2), SeedError),
        (np.ones((3, 1)), SeedError),
        (np.ones(()), SeedError),
        (1.0, SeedError),
        (np.ones(3, np.complex64), SeedDtypeError),
        ("ones", TapeTypeError),
        (object(), TapeTypeError),
        ([1.0, 1.0, 1.0], TapeTypeError),
    ],
    ids=lambda v: repr(v).split(" at 0x")[0],
)
def test_contract_02_a_bad_second_seed_changes_nothing(seed, error):
    x = tape.Variable(A)
    first, second = (x * x).sum(), x * 2
    first.grad = 10.0
    with pytest.raises(error):
        tape.backward([first, second], [None, seed])
    assert x.grad is None
    equal(first.grad, 10)  # the assigned seed was not used up either
    tape.backward([first, second], [None, B])
    equal(x.grad, 20 * A + 2 * B)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_contract_02_size_one_needs_no_seed(shape):
    x = tape.Variable(np.full(shape, 3.0, np.float32))
    (x * x).backward()
    equal(x.grad, np.full(shape, 6.0))
    (x * x).backward(0.5)  # a Python scalar fits size 1
    equal(x.grad, np.full(shape, 9.0))


@pytest.mark.parametrize("seed", [2, True, np.int32(2), np.float64(2), np.array(2, np.int8), jnp.array(True)], ids=repr)
def test_contract_02_real_seeds_are_cast(seed):
    x = tape.Variable(np.float32(3.0))
    (x * x).backward(seed)
    assert x.grad.dtype == jnp.float32
    equal(x.grad, 6.0 * float(seed))


def test_contract_02_half_precision_roots_keep_their_dtype():
    x = tape.Variable(jnp.array([1.0, 2.0], jnp.bfloat16))
    (x * x).backward(np.array([0.5, 0.25]))
    assert x.grad.dtype == jnp.bfloat16
    equal(x.grad, [1.0, 1.0])


def test_contract_02_complex_roots_take_real_and_complex_seeds():
    z = np.array([1 + 2j, 3 - 1j], np.complex64)
    for seed in (np.ones(2), np.array([1j, 2.0], np.complex64)):
        x = tape.Variable(z)
        (x * x).backward(seed)
        expected = jax.vjp(lambda v: v * v, jnp.asarray(z))[1](jnp.asarray(seed, jnp.complex64))[0]
        close(x.grad, expected)
    with pytest.raises(SeedDtypeError, match=r"complex64.*real"):
        tape.Variable(1.0).backward(1j)


def test_contract_02_a_root_that_does_not_require_grad():
    x = tape.Variable(2.0)
    good = x * x
    for bad in (tape.constant(1.0) * 2, x > 1, good.detach()):
        with pytest.raises(TapeValueError, match="does not require grad"):
            tape.backward([good, bad])
    assert x.grad is None
    with pytest.raises(TapeValueError, match="outputs is empty"):
        tape.backward([])
    good.backward()
    equal(x.grad, 4)


# -- 3: assigned gradients are seeds ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tier")
def test_contract_03_an_assigned_gradient_is_the_seed_and_is_used_up():
    x = tape.Variable(A)
    y = x * x
    y.grad = B
    y.backward(retain_graph=True)
    equal(x.grad, 2 * A * B)
    assert y.grad is None
    with pytest.raises(SeedError):
        y.backward()
    y.grad = B
    y.backward(np.ones(3, np.float32))  # an explicit seed wins; the assigned one stays
    equal(x.grad, 2 * A * B + 2 * A)
    equal(y.grad, B)


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("how", ["inputs", "retain_grad"])
def test_contract_03_an_assigned_gradient_that_is_no_seed_is_added_to(how):
    """Only what was the seed is replaced: beside an explicit seed, and on a Variable that is no root, it is a gradient like any other."""
    x = tape.Variable(2.0)
    h = x * x
    y = h * 3
    if how == "retain_grad":
        h.retain_grad()
    h.grad = y.grad = 10.0
    tape.backward([y, h], [1.0, 5.0], inputs=[x, h, y] if how == "inputs" else None)
    equal(h.grad, 10 + 3 + 5)
    equal(y.grad, 10 + 1 if how == "inputs" else 10)
    equal(x.grad, 32)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_contract_03_equal_roots_each_use_their_own(shape):
    """Roots of equal values are different roots (comparing them by == would take one for the other)."""
    x = tape.Variable(np.full(shape, 1.0, np.float32))
    a, b, c = x * 2, x * 2, x * 2
    for root, g in ((a, 10.0), (b, 100.0), (c, 1000.0)):
        root.grad = np.full(shape, g, np.float32)
    tape.backward([a, b, c])
    equal(x.grad, np.full(shape, 2220.0))
    assert a.grad is b.grad is c.grad is None


def test_contract_03_04_an_assigned_gradient_is_used_once_for_a_root_given_twice():
    x = tape.Variable(2.0)
    y = x * x
    y.grad = 10.0
    tape.backward([y, y])
    equal(x.grad, 4 * (10 + 1))
    assert y.grad is None


def test_contract_03_a_retained_gradient_is_no_seed():
    x = tape.Variable(2.0)
    y = x * x
    y.retain_grad()
    y.backward(7.0, retain_graph=True)
    equal(y.grad, 7)
    y.backward()
    equal(x.grad, 28 + 4)
    equal(y.grad, 8)  # adds over sweeps, as leaves do


def test_contract_03_a_leaf_gathers_and_does_not_seed():
    x = tape.Variable(2.0)
    x.grad = 5.0
    x.backward()
    equal(x.grad, 6)
    x.backward(3.0)
    equal(x.grad, 9)


def test_contract_03_gradients_uses_the_assigned_seed_and_keeps_it():
    x = tape.Variable(2.0)
    y = x * x
    y.grad = 10.0
    equal(tape.gradients(y, x, retain_graph=True), 40)
    equal(y.grad, 10)


# -- 4: the same root twice ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tier")
def test_contract_04_seeds_of_a_root_given_twice_add_up():
    x = tape.Variable(A)
    y = x * x
    tape.backward([y, y, y], [B, B, np.ones(3)])
    close(x.grad, 2 * A * (2 * B + 1))
    z = x[0] * 3
    equal(tape.gradients([z, z], x), [6, 0, 0])


# -- 5: None in grad_outputs -----------------------------------------------------------------------------------------------


def test_contract_05_none_means_the_default_seed():
    x = tape.Variable(2.0)
    y, z = x * x, x * 3
    z.grad = 10.0
    tape.backward([y, z, y], [None, None, 5.0])
    equal(x.grad, 4 + 30 + 20)


@pytest.mark.parametrize("seeds", [[], [1.0], [None, None, None], (1.0,)], ids=repr)
def test_contract_05_lengths_that_differ(seeds):
    x = tape.Variable(2.0)
    with pytest.raises(SeedError, match=f"2 roots but {len(seeds)} grad_outputs"):
        tape.backward([x * x, x * 3], seeds)
    assert x.grad is None


def test_contract_05_one_array_is_no_sequence_of_seeds_for_two_roots():
    x = tape.Variable(2.0)
    with pytest.raises(SeedError, match="sequence of 2 seeds"):
        tape.backward([x * x, x * 3], np.ones(2))


# -- 6: what a seed may be -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [np.array, jnp.array, tape.Variable, tape.constant, lambda a: tape.constant(a) * 1])
def test_contract_06_seeds_of_every_array_type(make):
    x = tape.Variable(A)
    y = x * x
    y.backward(make(B))
    equal(x.grad, 2 * A * B)


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("leaf", [True, False])
def test_contract_06_numpy_seeds_are_copied(leaf):
    """The seed of a leaf becomes its gradient: neither may share memory with the user's array, before the run or after it."""
    buffer = np.zeros(64, np.float32)
    start = (-buffer.ctypes.data % 64) // 4  # aligned: JAX could take it without a copy
    seed = buffer[start : start + 3]
    seed[:] = B
    x = tape.Variable(A)
    y = x if leaf else x + 0
    (g,) = tape.gradients([y], [x], [seed])
    y = x if leaf else x + 0
    y.backward(seed)
    seed[:] = 77.0
    equal(g, B)
    equal(x.grad, B)
    np.testing.assert_array_equal(seed, 77.0)
    x.grad = seed
    seed[:] = 5.0
    equal(x.grad, np.full(3, 77.0))


def test_contract_06_a_variable_seed_is_differentiated_through():
    x, u = tape.Variable(3.0), tape.Variable(2.0)
    g = tape.gradients(x * x, x, u, create_graph=True)  # 2 x u
    equal(tape.gradients(g, u, retain_graph=True), 6)
    equal(tape.gradients(g, x), 4)
    g = tape.gradients(x, x, u, create_graph=True)  # the seed itself
    equal(tape.gradients(g, u), 1)


def test_contract_06_a_seed_is_not_aliased_by_gradients():
    x, w = tape.Variable(A), tape.Variable(B)
    seed = tape.constant(np.ones(3, np.float32))
    tape.backward([x, w], [seed, seed])
    assert x.grad is not seed
    assert w.grad is not x.grad
    x.grad[0] = 9.0
    equal(seed, np.ones(3))
    equal(w.grad, np.ones(3))


def test_contract_06_a_key_is_no_seed():
    x = tape.Variable(2.0)
    with pytest.raises(SeedDtypeError, match="pass numbers"):
        (x * x).backward(jax.random.key(0))
    assert x.grad is None
