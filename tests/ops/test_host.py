"""What NumPy computes in place of XLA is what XLA computes, for every primitive that it does, also at the edges of the numbers."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tape.ops.host import FUNCTIONS, ON_HOST
from tape.ops.hosting import hosted
from tape.rules import registered
from tape.testing.samples import draw, examples_of

PRIMITIVES = sorted(ON_HOST, key=lambda p: p.name)
RECORDS = {r.primitive: r for r in registered()}
FLOATS = [-np.inf, -3e38, -7.25, -2.5, -1.0, -0.5, -0.0, 0.0, 1e-30, 0.5, 1.0, 1.5, 3.0, 90.0, 3e38, np.inf, np.nan]
INTEGERS = [-(2**31), -7, -1, 0, 1, 2, 5, 2**31 - 1]
ONE_BY_ONE = frozenset(FUNCTIONS) | {"add", "div", "rem", "select_n"}
UNUSED = {"add_any", "copy_p", "name", "stop_gradient", "stack", "unstack"}  # not to be called by themselves, or not in each release
# Written with parameters or inputs of their own; those of the registry's examples are for gradients.
FURTHER = {
    "argmax": lambda x: (lax.argmax(x, 0, jnp.int32), lax.argmax(x.reshape(-1, 1), 1, jnp.int32)),
    "argmin": lambda x: lax.argmin(x, 0, jnp.int32),
    "convert_element_type": lambda x: (x.astype(jnp.float32), (x > 0).astype(jnp.int32), (x > 0).astype(jnp.float32)),
    "integer_pow": lambda x: [lax.integer_pow(x, y) for y in (-9, -3, -2, -1, 0, 1, 2, 3, 4, 5, 7, 19)] if x.dtype == jnp.float32 else None,
    "iota": lambda x: (lax.iota(jnp.int32, 5), lax.broadcasted_iota(jnp.float32, (2, 3), 1), x),
    "optimization_barrier": lambda x: lax.optimization_barrier((x, x[0])),
    "pad": lambda x: [
        lax.pad(x, x[0], [pads]) for pads in [(2, 3, 0), (-1, 2, 0), (1, -2, 1), (0, 0, 2), (-2, -1, 3), (-3, -1, 0), (-9, 4, 1)]
    ],
    "reduce_and": lambda x: jnp.all(x.reshape(-1, 1) > 0, (0, 1)),
    "reduce_max": lambda x: lax.reduce_max_p.bind(x, axes=(0,), out_sharding=None) if x.dtype != bool else None,
    "reduce_or": lambda x: jnp.any(x > 0),
    "reduce_precision": lambda x: [lax.reduce_precision(x, 8, n) for n in (0, 5, 11, 22, 23)] if x.dtype == jnp.float32 else None,
    "round": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN) if x.dtype == jnp.float32 else None,
    "scatter": lambda x: [
        x.at[jnp.array([1, -1, 1, 99])].set(x[:4]),
        x.at[jnp.array([3, 1])].set(x[0], mode="clip"),
        jnp.stack([x, x]).at[:, jnp.array([2, 0])].set(x[:2]),
        x.at[1:3].set(x[0]),
    ],
    "sort": lambda x: (
        [
            jnp.sort(x),
            jnp.argsort(x, descending=x.dtype != bool),
            lax.sort_key_val(x, lax.iota(jnp.int32, x.size)),
            jnp.sort(jnp.stack([x, x[::-1]]), 0),
        ]
        if x.dtype != bool
        else None
    ),
    "top_k": lambda x: lax.top_k(jnp.stack([x, x[::-1]]), 3) if x.dtype == jnp.float32 else None,
    "select_n": lambda x: (jnp.where(x > 0, x, -x if x.dtype != bool else x), jnp.where(True, x, x)),
    "dynamic_slice": lambda x: [lax.dynamic_slice(x, (jnp.int32(i),), (3,)) for i in (-9, -1, 0, 2, 99)],
    "dynamic_update_slice": lambda x: [lax.dynamic_update_slice(x, x[:2], (jnp.int32(i),)) for i in (-9, -1, 0, 2, 99)],
}


def compare(fun, *args):
    """Compare what NumPy and XLA make of a function; tell whether NumPy runs it."""
    closed = jax.make_jaxpr(fun)(*args)
    function, _ = hosted(closed)
    if function is None:
        return False
    given = [np.array(x) for x in args]
    with np.errstate(all="ignore"):
        found = function(*given)
    for x, before in zip(given, args, strict=True):
        np.testing.assert_array_equal(x, before)  # somebody else may hold it
    found = (found,) if len(closed.out_avals) == 1 else found
    expected = jax.tree.leaves(jax.jit(fun)(*args))
    assert len(found) == len(expected)
    for f, e in zip(found, expected, strict=True):
        assert (np.shape(f), f.dtype) == (e.shape, e.dtype)
        if jnp.issubdtype(e.dtype, jnp.inexact):
            eps = np.finfo(np.float32 if e.dtype != np.float64 else np.float64).eps
            with np.errstate(all="ignore"):
                np.testing.assert_allclose(f, e, rtol=16 * eps, atol=16 * eps)
        else:
            np.testing.assert_array_equal(f, e)
    return True


def uses(primitive, fun, args):
    """Tell whether a function is one of this primitive."""
    try:
        return any(eqn.primitive is primitive for eqn in jax.make_jaxpr(fun)(*args).eqns)
    except Exception:  # noqa: BLE001 - whatever JAX refuses with
        return False


def elementwise(primitive):
    return _SPELLED.get(primitive.name) or getattr(lax, primitive.name, None)


_SPELLED = {"and": lax.bitwise_and, "or": lax.bitwise_or, "not": lax.bitwise_not, "xor": lax.bitwise_xor}


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_elementwise_primitives_at_the_edges(dtype, number):
    values = {"float32": FLOATS, "int32": INTEGERS, "bool": [True, False]}[dtype]
    args = [np.ascontiguousarray(column) for column in np.array(list(itertools.product(values, repeat=number)), dtype).T]
    chosen = [p for p in PRIMITIVES if p.name in ONE_BY_ONE and uses(p, elementwise(p), args)]
    chosen = [p for p in chosen if hosted(jax.make_jaxpr(elementwise(p))(*args))[0] is not None]
    assert chosen or number == 3
    if chosen:
        assert compare(lambda *xs: [elementwise(p)(*xs) for p in chosen], *args)


@pytest.mark.parametrize("primitive", [p for p in PRIMITIVES if p.name not in ONE_BY_ONE], ids=lambda p: p.name)
def test_primitives_with_parameters(primitive):
    record = RECORDS.get(primitive)
    compared = 0
    for example in () if record is None or not record.domain else examples_of(record)[:3]:
        args = [np.asarray(a) for a in draw(record, example, "float32")]
        compared += uses(primitive, example.fun, args) and compare(example.fun, *args)
    further = FURTHER.get(primitive.name)
    if further is not None:
        for values in (np.array(FLOATS, np.float32)[3:9], np.array(INTEGERS, np.int32), np.array([True, False, False, True])):
            compared += uses(primitive, further, [values]) and compare(further, values)
    assert compared or primitive.name in UNUSED


@pytest.mark.parametrize("digits", [0, 1, 11, 22, 23, 30])
def test_numbers_of_fewer_digits(digits):
    drawn = np.random.default_rng(0).integers(0, 2**32, 1000, np.uint32).view(np.float32)
    halves = (np.arange(64, dtype=np.uint32) << 10 | 0x3F800000).view(np.float32)  # between two of eleven digits, at some
    values = np.concatenate([np.array([*FLOATS, np.finfo(np.float32).max], np.float32), drawn, halves])
    exact = hosted(jax.make_jaxpr(lambda x: lax.reduce_precision(x, 8, digits))(values))[0](values)
    expected = jax.jit(lambda x: lax.reduce_precision(x, 8, digits))(values)
    np.testing.assert_array_equal(exact.view(np.uint32)[~np.isnan(values)], np.asarray(expected).view(np.uint32)[~np.isnan(values)])
    assert np.isnan(exact[np.isnan(values)]).all()
    assert hosted(jax.make_jaxpr(lambda x: lax.reduce_precision(x, 5, digits))(values))[0] is None  # another range is XLA's


@pytest.mark.parametrize(
    ("dtype", "fits", "others"),
    [("int32", [-(2.0**31), 2147483520.0, -0.9], [2.0**31, np.nan, -np.inf]), ("uint8", [0.0, 255.9], [256.0, -1.0])],
)
def test_floats_that_no_integer_holds_are_left_to_xla(dtype, fits, others):
    def convert(x):
        return lax.convert_element_type(x, dtype)

    assert compare(convert, np.array(fits, np.float32))
    function, _ = hosted(jax.make_jaxpr(convert)(np.float32(0)))
    for x in others:
        with pytest.raises(ValueError, match="left to XLA"):
            function(np.float32(x))


ROUNDED = (lax.RoundingMethod.AWAY_FROM_ZERO, lax.RoundingMethod.TO_NEAREST_EVEN)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_small_integers_stay_small(dtype):
    x = np.array([[100, 27, 90], [3, 120, 77]], dtype)
    assert compare(lambda x: (lax.reduce_sum(x, (1,)), lax.reduce_prod(x, (0,)), lax.cumsum(x, 1), lax.cumprod(x, 1, reverse=True)), x)
    assert compare(lambda x: lax.reduce_max_p.bind(x, axes=(), out_sharding=None), x)


def test_what_is_no_number_is_the_least_and_the_largest():
    x = np.array([[1.0, np.nan], [np.nan, -np.inf], [2.0, 3.0]], np.float32)
    assert compare(lambda x: (x.min(1), x.max(1), x.min(0), x.max(), jnp.argmin(x, 1), jnp.argmax(x, 1)), x)


def test_what_is_rounded_or_shifted_otherwise_stays_with_xla():
    assert [compare(lambda x, how=how: lax.round(x, how), np.array([-2.5, 0.5, 1.5], np.float32)) for how in ROUNDED] == [False, True]
    shifted = [compare(lax.shift_right_arithmetic, np.array([200, 3], dtype), np.array([1, 1], dtype)) for dtype in ("uint8", "int32")]
    assert shifted == [False, True]


EMPTY, INDICES = np.zeros((0, 3), np.float32), np.zeros(0, np.int32)


@pytest.mark.parametrize(
    "fun",
    [
        lambda x, i: (x @ jnp.ones((3, 2)), jnp.ones((2, 0)) @ x, x.T @ x, x @ x.T, jnp.einsum("ij,ik->ijk", x, x)),
        lambda x, i: (x.sum(), x.sum(0), x.sum(1), x.prod(0), (x > 0).any(0), (x > 0).all(), jnp.cumsum(x, 0)),
        lambda x, i: (x.max(1), x.argmax(1), jax.nn.softmax(x), jax.nn.logsumexp(x, 1)),
        lambda x, i: (jnp.ones((4, 3))[i], jnp.ones(4).at[i].add(x[:, 0]), jnp.ones(4).at[i].set(x[:, 0]), jnp.ones((3, 2))[:, i]),
        lambda x, i: (jnp.concatenate([x, jnp.ones((2, 3)), x]), jnp.pad(x, 1), jnp.broadcast_to(x[:, None], (0, 2, 3)), x.reshape(3, 0)),
        lambda x, i: (jnp.sort(x, 0), jnp.sort(x, 1), lax.top_k(x, 2), jnp.where(x > 0, x, -x), jnp.flip(x, 0), x.astype(jnp.int32)),
        lambda x, i: (lax.dynamic_slice(x, (0, 1), (0, 2)), lax.dynamic_update_slice(jnp.ones((2, 3)), x, (1, 0)), jnp.split(x, 3, 1)),
        lambda x, i: (lax.pad(x, jnp.float32(7), [(1, 0, 2), (-1, -1, 0)]), jnp.stack([x, x]), jnp.tanh(x) ** 3, jnp.outer(x[:, 0], i)),
        lambda x, i: (
            jnp.ones((4, 3))[i[:0]] * x,
            x.transpose(),
            jnp.zeros((0,)).at[jnp.array([0, 2])].add(1.0),
            lax.reduce_precision(x, 8, 3),
        ),
    ],
)
def test_arrays_without_elements(fun):
    assert compare(fun, EMPTY, INDICES)


def test_what_is_no_number_is_left_to_xla_where_the_largest_are_asked_for():
    function, _ = hosted(jax.make_jaxpr(lambda x: lax.top_k(x, 2))(np.zeros(3, np.float32)))
    with pytest.raises(ValueError, match="no number"):
        function(np.array([1.0, np.nan, 2.0], np.float32))


@pytest.mark.parametrize(
    ("a", "b", "numbers"),
    [
        ((3,), (3,), (((0,), (0,)), ((), ()))),
        ((2, 3), (3,), (((1,), (0,)), ((), ()))),
        ((3,), (3, 4), (((0,), (0,)), ((), ()))),
        ((3,), (4, 3), (((0,), (1,)), ((), ()))),
        ((3, 2), (3,), (((0,), (0,)), ((), ()))),
        ((3, 2), (3, 4), (((0,), (0,)), ((), ()))),
        ((3, 2), (4, 3), (((0,), (1,)), ((), ()))),
        ((2, 3), (4, 3), (((1,), (1,)), ((), ()))),
        ((2,), (3,), (((), ()), ((), ()))),
        ((2, 3), (4, 5), (((), ()), ((), ()))),
        ((5, 2, 3), (5, 3, 4), (((2,), (1,)), ((0,), (0,)))),
        ((2, 5, 3), (3, 4, 5), (((2,), (0,)), ((1,), (2,)))),
        ((2, 3, 4), (4, 3, 6), (((1, 2), (1, 0)), ((), ()))),
        ((2, 3, 4), (5, 4), (((2,), (1,)), ((), ()))),
        ((5, 3), (5, 3), (((), ()), ((0,), (0,)))),
    ],
)
def test_products(a, b, numbers):
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in (a, b))
    assert compare(lambda x, y: lax.dot_general(x, y, numbers), x, y)


@pytest.mark.parametrize(
    ("a", "b", "numbers"),
    [
        ((131, 64), (64, 192), (((1,), (0,)), ((), ()))),
        ((127, 64), (64, 192), (((1,), (0,)), ((), ()))),
        ((64, 131), (192, 64), (((0,), (1,)), ((), ()))),
        ((4, 33, 64), (64, 192), (((2,), (0,)), ((), ()))),
        ((4, 33, 64), (4, 33, 192), (((0, 1), (0, 1)), ((), ()))),
    ],
)
def test_products_by_rows(a, b, numbers):
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-9, 9, shape).astype(np.float32) for shape in (a, b))  # of whole numbers they are exact
    assert compare(lambda x, y: lax.dot_general(x, y, numbers), x, y)


@pytest.mark.parametrize("mode", ["clip", "fill", "promise_in_bounds"])
@pytest.mark.parametrize(
    "take",
    [
        lambda x, i, mode: x.at[i].get(mode=mode),
        lambda x, i, mode: x.at[:, i % 3].get(mode=mode),
        lambda x, i, mode: x.at[i, i % 3].get(mode=mode),
        lambda x, i, mode: x.at[i[:, None], :, i[None, :] % 2].get(mode=mode),
        lambda x, i, mode: x.at[i[0]].get(mode=mode),
        lambda x, i, mode: x.at[:, :, i.reshape(2, -1) % 2].get(mode=mode),
        lambda x, i, mode: x.at[:, i % 3, 0].get(mode=mode),
        lambda x, i, mode: x.at[i, 1:3].get(mode=mode),
        lambda x, i, mode: x.at[i, i[::-1] % 5 if mode != "promise_in_bounds" else i % 3].get(mode=mode),
        lambda x, i, mode: jnp.take(x, i, axis=1, mode=mode if mode != "promise_in_bounds" else "clip"),
        lambda x, i, mode: lax.dynamic_slice(x, (i[0], i[1], i[2]), (2, 2, 2)),
    ],
)
def test_places_that_are_computed(take, mode):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 3, 2)).astype(np.float32)
    i = np.array([1, 0, 3, 3] if mode == "promise_in_bounds" else [1, 7, -9, 3], np.int32)
    assert compare(lambda x, i: take(x, i, mode), x, i)
    assert compare(lambda x, i: jax.grad(lambda x: (take(x, i, mode) ** 2).sum())(x), x, i)


@pytest.mark.parametrize("mode", ["clip", "drop", "promise_in_bounds"])
@pytest.mark.parametrize("how", ["add", "max", "min", "mul", "subtract"])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_places_that_are_combined(dtype, how, mode):
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 9, (4, 3, 2)).astype(dtype)
    i = np.array([1, 0, 3, 3] if mode == "promise_in_bounds" else [1, 7, -9, 3], np.int32)
    for place in (
        lambda i: (i,),
        lambda i: (slice(None), i % 3),
        lambda i: (i, i % 3),
        lambda i: (i, slice(1, 3), i % 2),
        lambda i: (i[3],),
    ):
        terms = rng.integers(-9, 9, np.shape(x[place(np.array([1, 0, 3, 3]))])).astype(dtype)
        assert compare(lambda x, i, y: getattr(x.at[place(i)], how)(y, mode=mode), x, i, terms)  # noqa: B023 - called at once
    assert compare(lambda x, i: getattr(x.T.at[..., i], how)(x[0].T[..., None], mode=mode), x, i)


ROWS = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: jnp.take_along_axis(x, jnp.array([[1, 0], [2, 2], [0, 1]]), 1),
        lambda x: jax.vmap(lambda row, i: row.at[i].add(1))(x, jnp.array([1, 0, 2])),
        lambda x: lax.sort((x, x.T), num_keys=2),
    ],
)
def test_what_numpy_would_do_otherwise_stays_with_xla(fun):
    assert not compare(fun, np.arange(9, dtype=np.float32).reshape(3, 3))


def test_equal_keys_keep_their_order():
    keys = (np.arange(300, dtype=np.float32) * 7 % 3).reshape(3, 100)
    assert compare(lambda x: (lax.sort_key_val(x, lax.broadcasted_iota(jnp.int32, (3, 100), 1)), jnp.argsort(x, 0)), keys)


def test_windows_that_are_narrower_than_the_array():
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert compare(lambda x, i: lax.gather(x, i, ROWS, (1, 2)), x, np.array([[2], [0], [3]], np.int32))


@pytest.mark.parametrize("fun", [lambda x, y: jnp.multiply.outer(x[0], y[0]).T, lambda x, y: (x @ y).T])
def test_products_that_are_transposed(fun):
    x, y = np.random.default_rng(0).normal(size=(2, 3, 3)).astype(np.float32)
    assert compare(fun, x, y)
    assert compare(lambda x, y: (lax.dot_general(x[0], y[0], (((), ()), ((), ()))).T, fun(x, y)), x, y)
    assert compare(lambda x, y: [(p := lax.dot_general(x[0], y[0], (((), ()), ((), ())))).T, p], x, y)


def test_the_second_derivative_of_a_network_is_computed_alike():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((5, 4)).astype(np.float32), rng.standard_normal((4, 4)).astype(np.float32)

    def slope(x, w):
        return jax.grad(lambda w: (jax.nn.softmax(jnp.tanh(x @ w) @ w) * jax.nn.relu(x)).sum())(w)

    assert compare(lambda x, w: jax.grad(lambda w: (slope(x, w) ** 2).sum())(w), x, w)


SYSTEMS = list(itertools.product([True, False], repeat=4))


@pytest.mark.parametrize("batch", [(), (3,), (2, 2)], ids=str)
@pytest.mark.parametrize("n", [0, 1, 7])
def test_triangular_systems_of_any_form(n, batch):
    rng = np.random.default_rng(0)
    a = (0.3 * rng.standard_normal((*batch, n, n)) + 2 * np.eye(n)).astype(np.float32)
    tall, wide = rng.standard_normal((2, *batch, n, 5)).astype(np.float32)
    wide = np.ascontiguousarray(wide.swapaxes(-1, -2))

    def solve(a, tall, wide):
        return [
            lax.linalg.triangular_solve(a, tall if left else wide, left_side=left, lower=lower, transpose_a=turned, unit_diagonal=unit)
            for left, lower, turned, unit in SYSTEMS
        ]

    assert compare(solve, a, tall, wide)


def test_a_triangular_system_reads_one_triangle_and_may_have_no_solution():
    a, b = np.array([[2, np.nan, np.nan], [1, 0, np.nan], [3, 4, 5]], np.float32), np.array([[1], [2], [3]], np.float32)
    assert compare(lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True), a, b)


def test_a_matrix_that_is_not_positive_definite_has_no_cholesky_factor():
    rows = [[[2, 1], [1, 2]], [[1, 2], [2, 1]], [[0, 0], [0, 0]], [[np.nan, 1], [1, 2]], [[1, 0], [0, np.nan]], [[np.inf, 0], [0, 1]]]
    matrices = np.array(rows, np.float32)
    for x in (*matrices, matrices, matrices.reshape(2, 3, 2, 2), matrices[:0]):
        assert compare(jnp.linalg.cholesky, x)


def test_branches_of_numbers_run_the_one_that_is_chosen():
    x = np.arange(3, dtype=np.float32)
    for i in (-5, 0, 1, 2, 9):
        assert compare(lambda i, x: lax.switch(i, [jnp.sin, lambda x: x * x, jnp.exp], x), np.int32(i), x)
        assert compare(lambda i, x: lax.cond(i > 0, lambda x: (x, 2 * x), lambda x: (-x, x), x), np.int32(i), x)
    assert not compare(lambda i, x: lax.switch(i, [jnp.sin, jax.scipy.special.digamma], x), np.int32(0), x)


def test_the_diagonal_is_that_of_this_platform():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert compare(lambda x: (jnp.diagonal(x), jnp.trace(x), jnp.diagonal(x, 1, 1, 0)), x)
