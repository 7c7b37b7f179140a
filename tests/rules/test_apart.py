"""Rules whose primitives the derived suite cannot use as it uses all others (``APART`` in records.py), each with an oracle of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from oracles import assert_same, flat, jax_vjp, own_vjp
from records import APART, RECORDS, draw_like

from tests.daily import pairs

A, B, X = (np.linspace(low, high, 5) for low, high in ((0.6, 2.5), (0.3, 1.4), (-0.8, 0.9)))


def second(fun, vjp, args, cts):
    """The VJP of a VJP."""
    return vjp(lambda *a: vjp(fun, a, cts), args, args)


def check_by_differences(fun, args):
    """Hold both orders to differences, one argument after the other (what is compared cannot be mapped)."""
    fun = flat(fun)
    cts = draw_like(jax.eval_shape(fun, *args))
    orders = (fun, cts), (lambda *a: own_vjp(fun, a, cts), draw_like(args, "seeds"))
    for f, seeds in orders:
        own = jax.jit(lambda a, f=f, seeds=seeds: own_vjp(f, a, seeds))(args)
        value = jax.jit(f)
        for i, x in enumerate(args):
            direction = np.asarray(draw_like([x], i)[0])
            values = []
            for step in (-2e-3, -1e-3, 1e-3, 2e-3):
                moved = [a + step * direction if i == j else a for j, a in enumerate(args)]
                values.append(sum(np.sum(np.real(c * np.asarray(o))) for c, o in zip(seeds, value(*moved), strict=True) if c is not None))
            slope = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / 12e-3
            np.testing.assert_allclose(np.sum(np.real(np.asarray(own[i]) * direction)), slope, rtol=1e-7, atol=1e-8)


def test_every_record_that_is_apart_is_here():
    assert set(APART) <= {r.primitive.name for r in RECORDS}


def test_composite():
    with jax.enable_x64(True):
        fun = lax.composite(lambda x, y: (jnp.sin(x) * y, x), name="tests.fun")
        check_by_differences(lambda x, y: fun(x, y), (A, X))


def test_cholesky_update():
    with jax.enable_x64(True):
        factor = np.triu(np.cos(np.arange(9.0)).reshape(3, 3)) + 2 * np.eye(3)
        check_by_differences(lambda r, w: lax.linalg.cholesky_update(jnp.triu(r), w), (factor, X[:3]))


@pytest.mark.parametrize("residual", ["moves", "stands still"])
def test_linear_call(residual):
    with jax.enable_x64(True):
        hold = lax.stop_gradient if residual == "stands still" else jnp.sin

        def fun(a, x):
            return jax.custom_derivatives.linear_call(lambda a, x: a * x, lambda a, ct: a * ct, hold(a), x)

        args = (A, X)
        expected = lambda a, x: (hold(a) * x,)  # noqa: E731 - the same without the call
        cts = [B]
        assert_same(own_vjp(flat(fun), args, cts), jax_vjp(expected, args, cts), residual)
        assert_same(second(flat(fun), own_vjp, args, cts), second(expected, jax_vjp, args, cts), residual)


def test_linear_call_uses_the_transpose_that_it_was_given():
    def fun(x):
        return (jax.custom_derivatives.linear_call(lambda _, x: 2 * x, lambda _, ct: 3 * ct, (), x),)

    assert float(own_vjp(fun, (jnp.float32(1),), (jnp.float32(1),))[0]) == 3


@pytest.mark.parametrize(("sampler", "dtype"), pairs(["gamma", "loggamma"], ["float32", "float64"], 2))
def test_random_gamma(sampler, dtype):
    with jax.enable_x64(True):
        a = (jnp.asarray(A.astype(dtype)),)
        fun = lambda a: (getattr(jax.random, sampler)(jax.random.key(0), a, dtype=dtype),)  # noqa: E731
        own, expected = (jax.jit(lambda a, vjp=vjp: vjp(fun, a, (B.astype(dtype),)))(a) for vjp in (own_vjp, jax_vjp))
        assert_same(own, expected, sampler)
        mapped = jax.jit(jax.vmap(lambda *a: own_vjp(fun, a, (jnp.ones((), dtype),))))(*a)
        assert np.isfinite(mapped[0]).all()


def test_logarithm_of_a_sample_that_underflows_has_a_gradient():
    a = jnp.full(4, 5e-4)
    fun = lambda a: (jax.random.loggamma(jax.random.key(0), a),)  # noqa: E731
    (sample,) = fun(a)
    assert (np.exp(sample) < 1e-37).all()
    own = jax.jit(lambda a: own_vjp(fun, (a,), (jnp.ones(4),))[0])(a)
    with jax.enable_x64(True):  # log x = (log u + lgamma(a + 1)) / a, with u held
        wide = np.asarray(a, "float64")
        expected = jax.grad(lambda b: jnp.sum((wide * np.asarray(sample, "float64") - lax.lgamma(wide + 1) + lax.lgamma(b + 1)) / b))(wide)
    np.testing.assert_allclose(own, expected, rtol=1e-4)


def test_rng_uniform_is_differentiated_by_the_numbers_that_were_drawn():
    from interop import lift
    from tape import Variable

    a, b = Variable(np.float32(1)), Variable(np.float32(2))  # positive, so that no sum below is nearly nothing by chance
    drawn = lift(lambda a, b: lax.rng_uniform(a, b, (64,)))(a, b)
    u = drawn.value - 1
    (drawn**2).sum().backward()
    np.testing.assert_allclose(a.grad.value, np.sum(2 * drawn.value * (1 - u)), rtol=1e-5)
    np.testing.assert_allclose(b.grad.value, np.sum(2 * drawn.value * u), rtol=1e-5)


def affine(a, b):
    """Composition of affine maps: associative, but not commutative."""
    return a[0] * b[0], a[1] * b[0] + b[1]


@pytest.mark.parametrize("n", [1, 2, 7, 8])
def test_reduction_keeps_the_order_of_what_does_not_commute(n):
    with jax.enable_x64(True):
        x, y = np.cos(np.arange(2.0 * n)).reshape(n, 2), np.sin(np.arange(2.0 * n)).reshape(n, 2)
        check_by_differences(lambda x, y: lax.reduce((x, y), (np.float64(1), np.float64(0)), affine, (0,)), (x, y))


def test_initial_values_of_reductions_have_gradients():
    with jax.enable_x64(True):
        x, i = np.cos(np.arange(6.0)).reshape(3, 2), np.float64(0.7)
        check_by_differences(lambda x, i: lax.reduce(x, i, lambda a, b: a + b + a * b, (0,)), (x, i))
        check_by_differences(lambda x, i: lax.reduce(x, i, lax.mul, (1,)), (x, i))
        check_by_differences(lambda x, i: lax.reduce_window(x, i, lax.add, (2, 2), (1, 1), "SAME"), (x, i))
        check_by_differences(
            lambda x, i: lax.reduce_window(x, i, lambda a, b: a + b + a * b, (2, 2), (1, 1), ((1, 1), (2, 0)), (2, 1)), (x, i)
        )
        check_by_differences(
            lambda x, i: lax.reduce_window(x, i, lambda a, b: a + b + a * b, (2, 2), (1, 1), "VALID", base_dilation=(2, 1)), (x, i)
        )
        check_by_differences(lambda x: lax.reduce_window(x, np.float64(0.1), lax.max, (2, 2), (1, 1), "SAME"), (x,))


@pytest.mark.parametrize("shape", [(3, 2), (0, 2)])
def test_windows_that_are_larger_than_the_array_have_gradients_of_zeros(shape):
    (own,) = own_vjp(
        lambda x: (lax.reduce_window(x, np.float32(0), lambda a, b: a + b + a * b, (7, 2), (3, 1), "VALID"),),
        (jnp.ones(shape),),
        (jnp.zeros((0, 1)),),
    )
    np.testing.assert_array_equal(own, np.zeros(shape))


def test_reduction_of_numbers_with_their_places():
    def largest(a, b):
        wins = a[0] >= b[0]
        return jnp.where(wins, a[0], b[0]), jnp.where(wins, a[1], b[1])

    def fun(x):
        return lax.reduce((x, jnp.arange(5, dtype="int32")), (np.float32(-np.inf), np.int32(0)), largest, (0,))

    own = own_vjp(lambda x: (fun(x)[0],), (jnp.asarray(np.sin(np.arange(5.0)), "float32"),), (jnp.float32(2),))
    np.testing.assert_array_equal(own[0], [0, 0, 2, 0, 0])


def _groups(sizes, rows):
    ends = np.cumsum(sizes)
    return ((np.arange(rows) >= (ends - sizes)[:, None]) & (np.arange(rows) < ends[:, None])).astype("float32")


RAGGED = {
    "rows": ((([1], [1]), ([], [])), [0], [0], (4, 3), (2, 3, 2), [1, 2], "mk,gkn,gm->mn"),
    "rows in batches": ((([2], [2]), ([0], [1])), [1], [0], (2, 4, 3), (2, 2, 3, 5), [1, 3], "bmk,gbkn,gm->bmn"),
    "summed": ((([0], [0]), ([], [])), [0], [], (4, 3), (4, 2), [3, 1], "km,kn,gk->gmn"),
    "batches": ((([2], [1]), ([0], [0])), [0], [], (2, 3, 4), (2, 4, 5), [1, 1], "bmk,bkn,gb->bmn"),
    "an empty group": ((([1], [1]), ([], [])), [0], [0], (4, 3), (3, 3, 2), [4, 0, 0], "mk,gkn,gm->mn"),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("name", RAGGED)
def test_ragged_products_are_products_with_masks_to_second_order(name, dtype):
    numbers, ragged, grouped, left, right, sizes, equation = RAGGED[name]
    sizes = np.array(sizes, "int32")
    rng = np.random.default_rng(3)
    with jax.enable_x64(dtype == "float64"):
        x, y = (jnp.asarray(rng.standard_normal(s), dtype) for s in (left, right))
        dimensions = lax.RaggedDotDimensionNumbers(numbers, ragged, grouped)
        mask = _groups(sizes, left[ragged[0]])

        def product(x, y):
            return (jnp.sin(lax.ragged_dot_general(x, y, sizes, dimensions)),)

        def dense(x, y):
            return (jnp.sin(jnp.einsum(equation, x, y, mask.astype(x.dtype))),)

        def both(vjp, fun):
            def first(x, y):
                return vjp(fun, (x, y), tuple(jnp.ones_like(z) for z in fun(x, y)))

            return lambda x, y: (*first(x, y), *vjp(lambda x, y: tuple(g * g for g in first(x, y)), (x, y), (x, y)))

        own, expected = (jax.jit(both(vjp, fun))(x, y) for vjp, fun in ((own_vjp, product), (jax_vjp, dense)))
    for a, b in zip(own, expected, strict=True):
        assert a.dtype == b.dtype
        tolerance = 8 * float(jnp.finfo(dtype).eps)
        np.testing.assert_allclose(
            *(np.asarray(v, "float64") for v in (a, b)), rtol=tolerance, atol=tolerance * np.abs(np.asarray(b, "float64")).max()
        )


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("lower", [True, False])
def test_eigh_that_reads_one_triangle_gives_it_the_gradient(lower, dtype):
    rng = np.random.default_rng(4)
    with jax.enable_x64(True):
        a = np.asarray(rng.standard_normal((3, 3)) + (1j * rng.standard_normal((3, 3)) if dtype == "complex128" else 0), dtype)
        weights = np.array([1.0, -2.0, 0.5])

        def fun(a):
            v, w = lax.linalg.eigh(a, lower=lower, symmetrize_input=False)
            return (jnp.sum(weights * w) + jnp.sum(jnp.abs(v) ** 2 * np.arange(9.0).reshape(3, 3)),)

        def slope(a):
            return own_vjp(fun, (a,), (jnp.ones(()),))[0]

        def curved(a):
            return (jnp.sum(jnp.real(slope(a) * np.arange(9.0).reshape(3, 3))),)

        for one, found in ((fun, slope(a)), (curved, own_vjp(curved, (a,), (jnp.ones(()),))[0])):
            value = jax.jit(lambda a, one=one: one(a)[0])
            for part in (1, 1j) if dtype == "complex128" else (1,):
                for i in np.ndindex(3, 3):
                    step = np.zeros((3, 3), dtype)
                    step[i] = 1e-5 * part
                    numeric = (8 * (value(a + step) - value(a - step)) - (value(a + 2 * step) - value(a - 2 * step))) / 12e-5
                    np.testing.assert_allclose(np.real(found[i] * part), numeric, rtol=1e-7, atol=1e-7)
