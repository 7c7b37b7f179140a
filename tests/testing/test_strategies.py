"""Strategies draw what matters to derivatives, within what was asked for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings

import tape
from tape.testing import strategies
from tape.testing.programs import tape_names

DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "int32")
SEARCH = settings(max_examples=2000, database=None, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
FIRST = settings(SEARCH, phases=[p for p in Phase if p is not Phase.shrink])  # where what is found need not be simple


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=strategies.st.data())
def test_numbers_are_finite_and_normal_and_in_their_domain(dtype, data):
    x = np.asarray(data.draw(strategies.numbers(dtype, domain=(-2.5, 1e4))))
    assert x.dtype == jnp.dtype(dtype)
    for part in (x.real, x.imag) if x.dtype.kind == "c" else (x,):
        value = float(part)
        assert -2.5 <= value <= 1e4
        if x.dtype.kind != "i":
            assert value == 0 or abs(value) >= jnp.finfo(part.dtype).smallest_normal


@pytest.mark.parametrize(
    "wanted",
    [
        lambda x: x.size == 0,
        lambda x: x.shape == (1,),
        lambda x: x.ndim == 0,
        lambda x: x.size > 2 and len(set(x.ravel().tolist())) == 1,
        lambda x: 1 < len(set(x.ravel().tolist())) < x.size,
        lambda x: (x == 0).any() and (x < 0).any() and (x > 0).any(),
        lambda x: ((np.abs(x - 1) < 1e-5) & (x != 1)).any(),
        lambda x: ((np.abs(x) < 1e-5) & (x != 0)).any(),
        lambda x: ((np.abs(x) < 1e-2) & (np.abs(x) > 1e-5)).any(),
        lambda x: x.size > 3 and not x.flags.c_contiguous,
        lambda x: x.size > 3 and x.strides[-1] < 0,
        lambda x: not x.flags.writeable,
    ],
)
def test_every_edge_case_is_drawn(wanted):
    find(strategies.arrays(), wanted, settings=FIRST)


@pytest.mark.parametrize("size", [1e9, 1e-9])
def test_wide_arrays_hold_large_and_tiny_magnitudes(size):
    found = find(
        strategies.arrays((3,), "float32", wide=True),
        lambda x: (np.abs(x) > size / 2).any() if size > 1 else ((np.abs(x) < size * 2) & (x != 0)).any(),
        settings=FIRST,
    )
    assert np.isfinite(found).all()


def test_failures_shrink_to_simple_arrays():
    found = find(strategies.arrays(strided=False), lambda x: x.size > 1 and (x < -0.25).any(), settings=SEARCH)
    assert found.shape == (3,)
    assert set(found.tolist()) <= {1.0, -1.0, 0.0, -0.5}


@given(strategies.broadcastable(3))
def test_broadcastable_arrays_broadcast(drawn):
    np.broadcast_shapes(*(x.shape for x in drawn))
    assert len({x.dtype for x in drawn}) == 1


def test_the_same_array_is_drawn_twice():
    a, b = find(strategies.broadcastable(2), lambda pair: pair[0] is pair[1] and pair[0].size > 1, settings=FIRST)
    assert a is b


@given(strategies.indices(4, (5,)))
def test_indices_are_in_range(drawn):
    assert ((drawn >= -4) & (drawn < 4)).all()


def test_indices_repeat_and_count_from_the_end():
    find(strategies.indices(4, (3,)), lambda i: len(set((i % 4).tolist())) == 1 and (i < 0).any() and (i >= 0).any(), settings=FIRST)


@given(strategies.pytrees())
def test_pytrees_have_arrays_for_leaves(drawn):
    assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves(drawn))


@settings(phases=[p for p in Phase if p is not Phase.shrink], suppress_health_check=[HealthCheck.too_slow], max_examples=15)
@given(strategies.programs())
def test_programs_mean_the_same_on_the_tape_and_over_jax(program):
    def weigh(y):
        return jnp.sum(y * jnp.cos(jnp.arange(y.size, dtype=y.dtype).reshape(y.shape)))

    variables = [tape.Variable(a) for a in program.arguments]
    root = program(*variables)
    expected, grads = jax.value_and_grad(lambda args: weigh(program.reference(*args)).astype(float))(
        tuple(map(jnp.asarray, program.arguments))
    )
    scale = 1 + max(float(np.max(np.abs(np.asarray(g, float)), initial=0)) for g in grads)
    if not np.isfinite(scale) or scale > 100:
        return
    tolerance = 5e-2 if any(t in str(program) for t in ("float16",)) else 1e-3
    np.testing.assert_allclose(float(weigh(root.value)), float(expected), rtol=tolerance, atol=tolerance * scale)
    if root.requires_grad:
        weights = np.cos(np.arange(root.size)).reshape(root.shape).astype(root.dtype)
        ours = tape.gradients(root, variables, weights, unconnected="zero")
        for g, h in zip(ours, grads, strict=True):
            np.testing.assert_allclose(np.asarray(g.value, float), np.asarray(h, float), rtol=tolerance, atol=tolerance * scale)


def test_programs_are_long_and_shrink_to_what_matters():
    find(strategies.programs(), lambda p: len(p.lines) >= 5, settings=FIRST)
    found = find(strategies.programs(), lambda p: "np.tanh" in str(p), settings=SEARCH)
    assert len(found.lines) == 1


def test_a_program_prints_as_source_that_runs():
    found = find(strategies.programs(), lambda p: len(p.lines) >= 2, settings=SEARCH)
    names = {**tape_names()}
    exec(str(found), names)  # noqa: S102 - what is printed is to be pasted
    ours = names["program"](*map(tape.Variable, names["arguments"]))
    # Both run the same float32 operations, the tape as one program: they differ by the rounding of a few of them, of values near one.
    tolerance = 2e-2 if "float16" in str(found) else 1e-5
    theirs = np.asarray(found.reference(*found.arguments), float)
    np.testing.assert_allclose(np.asarray(ours.value, float), theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("call", "builtin", "message"),
    [
        (lambda: strategies.dtypes("float33"), TypeError, "'float33' is not a dtype"),
        (lambda: strategies.numbers("bool"), TypeError, "not numeric"),
        (lambda: strategies.numbers(domain=(2, 1)), ValueError, "is empty"),
        (lambda: strategies.shapes(min_dims=7), ValueError, "none of"),
        (lambda: strategies.arrays((-1,)), ValueError, "must be a tuple of sizes"),
        (lambda: strategies.indices(0), ValueError, "at least 1"),
        (lambda: strategies.programs(max_operations=0), ValueError, "at least 1"),
    ],
)
def test_bad_arguments_are_refused_at_the_call(call, builtin, message):
    with pytest.raises(tape.errors.TapeError, match=message) as caught:
        call()
    assert isinstance(caught.value, builtin)
