"""What looks at values to select gives what JAX's function gives, though NumPy does it for small arrays."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.numpy as tn
import tape.ops

FLOATS = np.array([3.0, -0.0, np.nan, 1.5, 0.0, 3.0, np.nan, -2.0], np.float32)
INTEGERS = np.array([[3, 0, 1], [0, 2, 3]], np.int32)
FLAGS = np.array([True, False, True, True])
HALVES = np.array([1.0, 0.0, 2.0, 1.0], jnp.bfloat16)
GIVEN = {
    "floats": FLOATS,
    "integers": INTEGERS,
    "flags": FLAGS,
    "halves": HALVES,
    "none": FLOATS[:0],
    "one": np.float32(2),
    "unsigned": np.array([7, 7, 0], np.uint32),
}
OF_ONE = {
    "nonzero": [{}],
    "argwhere": [{}],
    "flatnonzero": [{}],
    "where": [{}],
    "unique": [
        {},
        {"return_index": True},
        {"return_inverse": True, "return_counts": True},
        {"axis": 0, "return_inverse": True},
        {"equal_nan": False},
    ],
}
OF_SEVERAL = {
    "nonzero": [([1, 0, 2],)],
    "unique": [([1, 0, 1],)],
    "compress": [(FLAGS, FLOATS[:4]), (np.array([0, 1]), INTEGERS, 0), (FLAGS[:2], INTEGERS, 1), (np.array([0.0, 2.0, 1.0]), FLOATS)],
    "extract": [(FLAGS, FLOATS[:4]), (INTEGERS > 1, INTEGERS), (FLAGS[:2], FLOATS)],
    "repeat": [(FLOATS, np.arange(8)), (INTEGERS, np.array([2, 0]), 0), (INTEGERS, np.array([3]))],
    "delete": [(FLOATS, np.array([1, -1])), (FLOATS, FLAGS[[0, 1, 2, 3] * 2]), (INTEGERS, np.array([0]), 1), (FLOATS, np.array([1, 99]))],
    "insert": [
        (FLOATS, np.array([1, 1, 8]), FLOATS[:3]),
        (INTEGERS, np.array([1]), INTEGERS[:, :1], 1),
        (FLOATS, np.array([2]), np.float32(5)),
    ],
    "intersect1d": [(FLOATS, FLOATS[2:5]), (INTEGERS, INTEGERS[0]), (INTEGERS, FLOATS)],
    "setdiff1d": [(FLOATS, FLOATS[3:5]), (INTEGERS, INTEGERS[0, :1]), (INTEGERS, FLOATS)],
    "setxor1d": [(FLOATS[[0, 3]], FLOATS[3:6]), (INTEGERS[0], INTEGERS[1])],
    "union1d": [(FLOATS[3:6], FLOATS[:2]), (INTEGERS, INTEGERS[0] + 4), (INTEGERS, FLOATS[3:6])],
}
CASES = [(name, (x,), options) for name, listed in OF_ONE.items() for options in listed for x in GIVEN.values()]
CASES += [(name, args, {}) for name, listed in OF_SEVERAL.items() for args in listed]


def told(fun, args, options):
    """What a function returns, as arrays, or the type of what it raises."""
    try:
        results = fun(*args, **options)
    except Exception as e:  # noqa: BLE001 - whatever JAX refuses with
        return (
            type(e).__name__
            if not isinstance(e, tape.errors.TapeError)
            else next(t.__name__ for t in type(e).__mro__ if t.__module__ == "builtins")
        )
    plain = isinstance(results, (jax.Array, tape.Variable))
    return type(results) if not plain else None, [np.asarray(getattr(x, "value", x)) for x in ([results] if plain else results)]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(("name", "args", "options"), CASES)
def test_a_selection_is_that_of_jax(name, args, options, wide):
    with jax.enable_x64(True) if wide else contextlib.nullcontext():
        expected = told(getattr(jnp, name), [jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in args], options)
        for kind in (tape.constant, jnp.asarray, np.asarray):
            found = told(getattr(tn, name), [kind(x) if isinstance(x, (np.ndarray, np.generic)) else x for x in args], options)
            if isinstance(expected, str) or isinstance(found, str):
                assert found == expected
                continue
            assert found[0] is expected[0]
            for f, e in zip(found[1], expected[1], strict=True):
                assert (f.dtype, f.shape) == (e.dtype, e.shape)
                np.testing.assert_array_equal(f, e)


def test_what_selects_is_known_inside_of_a_jax_transformation():
    flags, x = tape.constant(FLAGS), np.array([1.0, 2.0, 3.0, 4.0], np.float32)

    def fun(x):
        v = tape.constant(x)
        (rows,) = tn.nonzero(flags)
        return (tn.compress(flags, v) * tn.extract(flags, v) * v[rows]).sum().value

    for transformed in (jax.jit(jax.grad(fun)), jax.grad(jax.jit(fun))):
        np.testing.assert_allclose(transformed(x), np.where(FLAGS, 3 * x**2, 0))


def gradient_of(fun, *data):
    """What of each number of the data is in the weighted sum of a selection."""
    variables = [tape.Variable(np.asarray(x, "float32")) for x in data]
    found = fun(*variables)
    weights = np.arange(1.0, 1 + found.size, dtype="float32").reshape(found.shape)
    return [np.asarray(g.value).tolist() for g in tape.gradients((found * weights).sum(), variables, unconnected="zero")]


def test_of_equal_elements_the_first_one_has_the_gradient():
    x, y = [3.0, 1.0, 3.0, 1.0, 2.0], [2.0, 5.0, 1.0, 5.0]
    assert gradient_of(tn.unique, x) == [[3, 1, 0, 0, 2]]
    assert gradient_of(tn.union1d, x, y) == [[3, 1, 0, 0, 2], [0, 4, 0, 0]]
    assert gradient_of(tn.intersect1d, x, y) == [[0, 1, 0, 0, 2], [0, 0, 0, 0]]
    assert gradient_of(tn.setdiff1d, x, y) == [[1, 0, 0, 0, 0], [0, 0, 0, 0]]
    assert gradient_of(tn.setxor1d, x, y) == [[1, 0, 0, 0, 0], [0, 2, 0, 0]]
    assert gradient_of(lambda x: tn.unique(x, axis=0), [[2.0, 1.0], [0.0, 1.0], [2.0, 1.0]]) == [[[3, 4], [1, 2], [0, 0]]]
    of_y = tape.Variable(np.asarray(y, "float32"))  # alone
    assert tape.gradients(tn.union1d(np.asarray(x, "float32"), of_y).sum(), of_y).value.tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("options", [{}, {"equal_nan": False}, {"return_index": True}, {"size": 5, "fill_value": 0.0}])
def test_what_differentiates_selects_the_same(options):
    for x in (FLOATS, FLOATS[[0, 3, 5]]):
        ours, theirs = tn.unique(tape.Variable(x), **options), jnp.unique(x, **options)
        for found, expected in zip(*([r] if "return_index" not in options else r for r in (ours, theirs)), strict=True):
            np.testing.assert_array_equal(found.value if isinstance(found, tape.Variable) else found, expected)
    for name in ("unique_all", "unique_counts", "unique_inverse"):
        ours, theirs = getattr(tn, name)(tape.Variable(FLOATS)), getattr(jnp, name)(FLOATS)
        assert type(ours) is type(theirs)
        for found, expected in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(getattr(found, "value", found), expected)
    np.testing.assert_array_equal(tn.unique_values(tape.Variable(FLOATS)).value, jnp.unique_values(FLOATS))


@pytest.mark.parametrize("trim", ["fb", "f", "B", "F"])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_what_is_trimmed(trim, axis):
    whole = np.zeros((4, 5), np.float32)
    whole[1:3, 2] = whole[2, 3] = 1
    for x in (whole, whole[:, 0:0], np.zeros((2, 3), np.float32), *([whole[1], np.zeros(3, np.float32)] if axis != 1 else ())):
        np.testing.assert_array_equal(tn.trim_zeros(tape.Variable(x), trim, axis).value, jnp.trim_zeros(x, trim, axis))


@pytest.mark.parametrize(
    "fun",
    [
        lambda n, x: n.compress(FLAGS, x, size=2),
        lambda n, x: n.compress(FLAGS[[0, 1, 0, 1]], x, size=3, fill_value=7),
        lambda n, x: n.repeat(x, np.array([2, 0, 1, 1]), total_repeat_length=7),
        lambda n, x: n.bincount(INTEGERS.ravel()[:4], x, 6),
        lambda n, x: n.bincount(INTEGERS.ravel()[:4], x, 6, length=3),
        lambda n, x: n.bincount(INTEGERS.ravel()[:4], x, length=5),
        lambda n, x: n.bincount(INTEGERS.ravel()[:0], x[:0], 2),
        lambda n, x: n.bincount(INTEGERS.ravel()[:0], x[:0]),
        lambda n, x: n.choose(np.array([1, 0, 1, 1]), [x, 2 * x]),
        lambda n, x: n.choose(np.array([3, -1, 1, 2]), [x, 2 * x], mode="wrap"),
        lambda n, x: abs(n.roots(x - x[0])),
    ],
)
def test_what_takes_further_options_is_jaxs(fun):
    x = np.array([1.0, -3.0, 2.5, 0.5], np.float32)
    v = tape.Variable(x)
    ours = fun(tn, v)
    np.testing.assert_allclose(ours.value, fun(jnp, x), rtol=1e-5)
    if ours.size:
        np.testing.assert_allclose(
            tape.gradients((ours * ours).sum(), v).value, jax.grad(lambda x: (fun(jnp, x) ** 2).sum())(x), rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("place", [2, -1, np.array([0, 2])])
def test_a_choice_that_there_is_not_is_refused(place):
    with pytest.raises(tape.errors.TapeValueError, match="outside 0 to 1"):
        tn.choose(place, [tape.Variable(np.ones(2, np.float32)), np.zeros(2, np.float32)])


def test_segments_below_zero_are_those_of_jax():
    x = tape.Variable(np.ones(2, np.float32))
    assert tape.ops.segment_sum(x, np.array([-1, -2])).shape == jax.ops.segment_sum(x.value, np.array([-1, -2])).shape == (0,)
    for segment_sum in (tape.ops.segment_sum, jax.ops.segment_sum):
        with pytest.raises(ValueError, match="non-negative"):
            segment_sum(x.value, np.array([-3, -2]))
