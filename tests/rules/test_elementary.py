"""Where the elementary functions are more exact than JAX's derivatives."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core.primitives import logistic_p, tanh_p
from oracles import differences, own_vjp, project

import tape


@pytest.mark.parametrize("z", [-2 + 1j, -2 - 1j, 2 + 1j, 0.5 - 1j, -0.5 + 0.5j])
def test_acosh_follows_the_principal_branch_in_the_whole_plane(z):
    with jax.enable_x64(True):
        args, cts, directions = [jnp.array([z])], [jnp.array([1 - 0.5j])], [jnp.array([0.3 + 0.8j])]
        numeric, _ = differences(lambda v: (jax.lax.acosh(v),), args, cts, directions)
        slopes, _ = project(own_vjp(lambda v: (jax.lax.acosh(v),), args, cts), directions)
        np.testing.assert_allclose(slopes, numeric, rtol=1e-8)


def test_expm1_keeps_its_slope_far_to_the_left():
    (own,) = own_vjp(lambda x: (jax.lax.expm1(x),), (jnp.float32(-40),), (jnp.float32(1),))
    np.testing.assert_allclose(own, np.exp(-40.0), rtol=1e-5)


def test_acosh_of_a_large_half_precision_number_does_not_overflow():
    (own,) = own_vjp(lambda x: (jax.lax.acosh(x),), (jnp.float16(1000),), (jnp.float16(1),))
    np.testing.assert_allclose(np.float32(own), 1e-3, rtol=1e-2)


def test_a_mask_hides_where_acosh_has_no_value():
    x = jnp.array([-4.0, -1.5, 1.5, 2.0])

    def masked(v):
        return tape.numpy.sum(tape.numpy.where(v > 1, tape.lax.acosh(v), 0.0))

    np.testing.assert_allclose(tape.grad(masked)(x), [0, 0, 1 / np.sqrt(1.25), 1 / np.sqrt(3)], rtol=1e-6)  # JAX 0.12 has NaN there


def slope(fun):
    return lambda x: own_vjp(lambda v: (fun(v),), (x,), (jnp.ones_like(x),))[0]


LINE = [-85.0, -30.0, -9.5, -3.1, -0.4, -1e-3, -1e-20, 0.0, 1e-20, 1e-3, 0.4, 0.7, 3.1, 9.5, 15.0, 30.0, 85.0]
UNIT = [-0.999999, -0.7, -1e-3, -1e-20, 0.0, 1e-20, 1e-3, 0.3, 0.6, 0.999999]
WIDE = [-1e12, -30.0, -0.4, -1e-20, 0.0, 1e-3, 2.5, 1e4, 1e12]
WAVE = [x for x in LINE if abs(x) < 9]


def sech_squared(x):
    return 1 / np.cosh(x) ** 2


# Derivatives of first and second order in closed forms that float64 gets right to the last digits.
TRUE = {
    "sinh": (lax.sinh, [*LINE, -89.2, 89.2], np.cosh, np.sinh),
    "cosh": (lax.cosh, [*LINE, -89.2, 89.2], np.sinh, np.cosh),
    "logit": (tape.scipy.special.logit, [1e-12, 1e-9, 0.5, 0.7], lambda x: 1 / (x * (1 - x)), lambda x: (2 * x - 1) / (x * (1 - x)) ** 2),
    "rsqrt": (lax.rsqrt, [3e-16, 0.3, 4e14], lambda x: -0.5 * x**-1.5, lambda x: 0.75 * x**-2.5),
    "asin": (lax.asin, UNIT, lambda x: ((1 - x) * (1 + x)) ** -0.5, lambda x: x * ((1 - x) * (1 + x)) ** -1.5),
    "acos": (lax.acos, UNIT, lambda x: -(((1 - x) * (1 + x)) ** -0.5), lambda x: -x * ((1 - x) * (1 + x)) ** -1.5),
    "atanh": (lax.atanh, UNIT, lambda x: 1 / ((1 - x) * (1 + x)), lambda x: 2 * x / ((1 - x) * (1 + x)) ** 2),
    "atan": (lax.atan, WIDE, lambda x: 1 / (1 + x * x), lambda x: -2 * x / (1 + x * x) ** 2),
    "atan2": (lambda x: lax.atan2(x, 2 * x / x), WIDE[5:], lambda x: 2 / (4 + x * x), lambda x: -4 * x / (4 + x * x) ** 2),
    "asinh": (lax.asinh, WIDE, lambda x: (1 + x * x) ** -0.5, lambda x: -x * (1 + x * x) ** -1.5),
    "erf": (lax.erf, WAVE, lambda x: 2 / np.sqrt(np.pi) * np.exp(-x * x), lambda x: -4 * x / np.sqrt(np.pi) * np.exp(-x * x)),
    "erfc": (lax.erfc, WAVE, lambda x: -2 / np.sqrt(np.pi) * np.exp(-x * x), lambda x: 4 * x / np.sqrt(np.pi) * np.exp(-x * x)),
}


def hold(got, true, what):
    """Demand eight units in the last place, where there are that many digits."""
    got, true = np.asarray(got, "float64"), np.asarray(true)
    normal = (np.abs(true) >= np.finfo("float32").tiny) & (np.abs(true) <= np.finfo("float32").max)
    wrong = np.abs(got - true)[normal] / np.spacing(np.abs(true[normal]).astype("float32"))
    assert np.all(wrong <= 8), (what, np.asarray(true)[normal][wrong > 8], got[normal][wrong > 8])
    assert not np.any(np.isnan(got)), what


@pytest.mark.parametrize("name", TRUE)
def test_no_digits_are_lost_in_the_tails_and_near_zero(name):
    fun, grid, first, second = TRUE[name]
    x = np.asarray(grid, "float32")
    once, twice = jax.jit(lambda x: (slope(fun)(x), slope(slope(fun))(x)))(x)
    with np.errstate(over="ignore", under="ignore"):
        hold(once, first(x.astype("float64")), name)
        hold(twice, second(x.astype("float64")), f"{name}, second order")


@pytest.mark.parametrize("name", [n for n, (_, grid, *_) in TRUE.items() if min(grid) < -1])
def test_derivatives_at_infinity_are_limits(name):
    fun = TRUE[name][0]
    once, twice = (np.asarray(f(jnp.asarray([-np.inf, np.inf], "float32"))) for f in (slope(fun), slope(slope(fun))))
    if name in {"sinh", "cosh"}:
        assert np.all(np.isinf(once))
        assert np.all(np.isinf(twice))
    else:
        np.testing.assert_array_equal(np.abs(np.concatenate([once, twice])), 0)


@pytest.mark.parametrize(
    ("fun", "at", "slopes"),
    [
        *((tape.numpy.cbrt, at, (0, 0)) for at in (-np.inf, np.inf)),
        *((fun, at, (0, 0)) for fun in (tape.numpy.exp2, lambda x: 8.0**x) for at in (-np.inf, -1e30)),
        *((fun, at, (np.inf, np.inf)) for fun in (tape.numpy.exp2, lambda x: 8.0**x) for at in (np.inf, 1e30, 150.0)),
        (lambda x: tape.numpy.hypot(x, 1e38), 2.4e38, (12 / 13, 0)),
        (lambda x: tape.numpy.hypot(x, np.inf), 1e30, (0, 0)),
        *((fun, -89.0, (-88 * np.exp(-89.0), -87 * np.exp(-89.0))) for fun in (tape.nn.silu, tape.nn.mish)),
        (lambda x: tape.numpy.logaddexp(x, -3e38), 3e38, (1, 0)),
        (lambda x: tape.numpy.logaddexp2(x, 3e38), -3e38, (0, 0)),
        (tape.scipy.special.spence, 0.6, (np.log(0.6) / 0.4, 1 / 0.24 + np.log(0.6) / 0.16)),
    ],
)
def test_derivatives_where_parts_of_their_formulas_are_out_of_range(fun, at, slopes):
    first = tape.grad(fun)
    found = [float(f(np.float32(at))) for f in (first, tape.grad(first))]
    np.testing.assert_allclose(found, slopes, rtol=1e-5, atol=1e-39)


@pytest.mark.parametrize(("name", "base"), [("logaddexp", np.e), ("logaddexp2", 2.0)])
def test_shares_of_a_sum_know_what_the_difference_was_rounded_by(name, base):
    x, y = np.asarray([60.3, 1e-3, 33.3], "float32"), np.asarray([1e-3, 47.7, 7e-4], "float32")
    found = jax.jit(tape.grad(lambda x, y: tape.numpy.sum(getattr(tape.numpy, name)(x, y)), argnums=(0, 1)))(x, y)
    x, y = x.astype("float64"), y.astype("float64")
    for share, true in zip(found, (1 / (1 + base ** (y - x)), 1 / (1 + base ** (x - y))), strict=True):
        hold(share, true, name)


@contextlib.contextmanager
def given(primitive, rule):
    usual = tape.rules.lookup(primitive).vjp
    tape.rules.defvjp(primitive, rule)
    try:
        yield
    finally:
        tape.rules.defvjp(primitive, usual)


OPTIONS = {
    "tanh": (tanh_p, tape.rules.accurate_tanh, lax.tanh, sech_squared, lambda x: -2 * np.tanh(x) * sech_squared(x)),
    "logistic": (
        logistic_p,
        tape.rules.accurate_logistic,
        lax.logistic,
        lambda x: sech_squared(x / 2) / 4,
        lambda x: -np.tanh(x / 2) * sech_squared(x / 2) / 4,
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_rules_by_request_keep_the_tails(name):
    primitive, rule, fun, first, second = OPTIONS[name]
    x = np.asarray(LINE[1:-1], "float32")
    z = jnp.asarray([0.3 + 0.4j], "complex64")
    with given(primitive, rule):
        once, twice = jax.jit(lambda x: (slope(fun)(x), slope(slope(fun))(x)))(x)
        plane = slope(fun)(z)
        for dtype in ("float16", "bfloat16"):
            half = jnp.asarray([-4.0, -2.0, 0.0, 1.5, 4.0], dtype)
            found = slope(fun)(half)
            assert found.dtype == half.dtype
            np.testing.assert_allclose(np.asarray(found, "float64"), first(np.asarray(half, "float64")), rtol=float(jnp.finfo(dtype).eps))
    true = x.astype("float64")
    hold(once, first(true), name)
    hold(twice, second(true), f"{name}, second order")
    np.testing.assert_allclose(plane, jax.vmap(jax.grad(fun, holomorphic=True))(z), rtol=1e-6)


@pytest.mark.parametrize("size", [1e-33, 1e-22, 2e19, 1e37])
def test_angles_of_two_tiny_or_huge_numbers_keep_their_slopes(size):
    y, x = (jnp.asarray(v * size, "float32") for v in (0.3, -1.2))
    by_y, by_x = jax.jit(lambda y, x: own_vjp(lambda y, x: (lax.atan2(y, x),), (y, x), (jnp.float32(1e-3 * size),)))(y, x)
    true = np.array([-1.2, -0.3]) / (0.3**2 + 1.2**2) * 1e-3  # XLA folds a scale that is divided by into its square
    np.testing.assert_allclose([by_y, by_x], true, rtol=1e-6)


@pytest.mark.parametrize("z", [1 + 3000j, -2 + 1e4j, -3 - 1e5j, 2000j])
def test_a_gate_far_along_the_imaginary_axis_is_not_taken_for_saturated(z):
    z = np.complex64(z)
    ours, jaxs = tape.nn.silu, jax.nn.silu
    for _ in range(2):  # the first and the second derivative
        ours, jaxs = tape.grad(ours, holomorphic=True), jax.grad(jaxs, holomorphic=True)
        np.testing.assert_allclose(ours(z), jaxs(z), rtol=2e-4)


@pytest.mark.parametrize(("x", "slopes"), [(-200.0, (0, 0)), (200.0, (1, 0))])
def test_a_gate_of_complex_numbers_is_flat_or_straight_far_from_zero(x, slopes):
    for order in (1, 2):
        slope = tape.nn.silu
        for _ in range(order):
            slope = tape.grad(slope, holomorphic=True)
        for y in (-1.0, 1.0):
            np.testing.assert_allclose(slope(np.complex64(complex(x, y))), slopes[order - 1], atol=1e-30)


@pytest.mark.parametrize(("fun", "pole"), [(lax.log1p, -1), (lax.atan, 1j), (lax.atanh, 1), (lax.atanh, -1)])
def test_slopes_of_complex_numbers_are_infinite_at_poles_whatever_the_cotangent(fun, pole):
    z = jnp.complex64(pole)
    for ct in (1, 1j):
        (own,) = own_vjp(lambda z: (fun(z),), (z,), (jnp.complex64(ct),))
        assert np.isinf(own)


@pytest.mark.parametrize("z", [complex(np.inf, 1), complex(-2, np.inf), complex(np.inf, np.inf), 1e30 + 1e30j])
@pytest.mark.parametrize("fun", [lax.sqrt, lax.rsqrt, lax.atanh, lax.asinh, lambda z: lax.integer_pow(z, -1)])
def test_slopes_of_complex_numbers_vanish_far_away_in_both_orders(fun, z):
    z = jnp.asarray([complex(z)], "complex64")
    for value in jax.jit(lambda z: (slope(fun)(z), slope(slope(fun))(z)))(z):
        assert abs(value) < 1e-14


@pytest.mark.parametrize("fun", [lax.tanh, lax.logistic, lambda z: lax.tan(lax.complex(lax.imag(z), lax.real(z)))])
def test_gates_of_complex_numbers_are_flat_at_an_infinity_whatever_the_imaginary_part(fun):
    z = jnp.asarray([complex(np.inf, np.inf), complex(-np.inf, np.nan)], "complex64")
    for value in jax.jit(lambda z: (slope(fun)(z), slope(slope(fun))(z)))(z):
        assert not value.any()


@pytest.mark.parametrize(("x", "b"), [(1e14, 1.0), (-3e15, 2.0), (1e-16, 1e-30)])
def test_second_derivatives_of_squareplus_are_in_range_where_a_cube_is_not(x, b):
    x, b = np.float32(x), np.float32(b)
    by_x, by_b = jax.jit(tape.grad(tape.grad(tape.nn.squareplus), argnums=(0, 1)))(x, b)
    size = np.hypot(float(x), np.sqrt(float(b)))
    np.testing.assert_allclose(by_b, -0.25 * float(x) / size / size / size, rtol=1e-6)
    np.testing.assert_allclose(by_x, 0.5 * float(b) / size / size / size, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize(("x", "y"), [(1e25, 1e-25), (1e-25, 1e25), (2e-30, 5e9), (1.5, 2e12)])
@pytest.mark.parametrize(("name", "more"), [("rel_entr", 1.0), ("kl_div", 0.0)])
def test_entropies_of_numbers_whose_quotient_is_out_of_range(name, more, x, y):
    x, y = np.float32(x), np.float32(y)
    by_x = tape.grad(getattr(tape.scipy.special, name))
    np.testing.assert_allclose(jax.jit(by_x)(x, y), np.log(float(x)) - np.log(float(y)) + more, rtol=1e-6)


@pytest.mark.parametrize("x", [3.0, 1.7e-3, 2.3e11])
def test_the_derivative_of_a_divergence_by_its_second_argument_has_all_digits_beside_its_zero(x):
    x = np.float32(x)
    y = np.nextafter(x, np.float32(np.inf))
    found = jax.jit(tape.grad(tape.scipy.special.kl_div, argnums=1))(x, y)
    np.testing.assert_allclose(found, (float(y) - float(x)) / float(y), rtol=1e-6)


@pytest.mark.parametrize(("x", "y"), [(1e-3, 1e9), (1.5, 2e12), (1e12, 3e14), (2.0, 3.0)])
def test_the_second_derivative_of_a_divergence_is_no_difference_of_equals(x, y):
    x, y = np.float32(x), np.float32(y)
    found = jax.jit(tape.grad(tape.grad(tape.scipy.special.kl_div, argnums=1), argnums=(0, 1)))(x, y)
    np.testing.assert_allclose(found, [-1 / float(y), float(x) / float(y) / float(y)], rtol=1e-6)


@pytest.mark.parametrize("z", [2 + 2e-38j, 2 - 2e-38j, -2 + 2e-38j, -2 - 2e-38j])
def test_the_slope_of_asin_knows_its_side_of_the_cut_where_the_square_underflows(z):
    side = np.sign(z.real) * np.sign(z.imag)
    np.testing.assert_allclose(tape.grad(tape.numpy.arcsin, holomorphic=True)(np.complex64(z)), side * 1j / np.sqrt(3), rtol=1e-6)
