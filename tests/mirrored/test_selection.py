"""What looks at values to select gives what JAX's function gives, though NumPy does it for small arrays."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.numpy as tn

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
