"""Where JAX's derivatives are wrong, or none, and the tape's are the limits that there are."""

from __future__ import annotations

import fractions
import math

import jax
import numpy as np
import pytest

import tape
from tape import jaxapi
from tape.ops.hosting import hosted


@pytest.mark.parametrize(("y", "x"), [(np.inf, np.inf), (-np.inf, np.inf), (np.inf, 1.0), (2.0, -np.inf)])
def test_the_angle_of_what_is_far_away_does_not_change(y, x):
    """Of ``x / (x^2 + y^2)`` the limit is 0 along every path; JAX has NaN."""
    assert tape.grad(tape.numpy.arctan2)(y, x) == 0
    assert tape.grad(tape.numpy.arctan2, argnums=1)(y, x) == 0


FAR = {
    "acosh": (tape.lax.acosh, np.inf),
    "arctan": (tape.numpy.arctan, -np.inf),
    "arctan2": (lambda x: tape.numpy.arctan2(x, 2.0), np.inf),
    "arctan2 of infinities": (lambda x: tape.numpy.arctan2(x, -x), np.inf),
    "asinh": (tape.lax.asinh, -np.inf),
    "hypot": (lambda x: tape.numpy.hypot(x, np.inf), 0.7),
    "sinc": (tape.numpy.sinc, np.inf),
    "spence": (tape.scipy.special.spence, np.inf),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FAR)
def test_slopes_far_away_are_zero_where_denormal_numbers_are_kept(name, dtype):
    """And not one over the largest number, which is denormal: XLA's CPUs take those for zero, its GPUs and NumPy do not."""
    (fun, x), counted = FAR[name], 0
    with jax.enable_x64(dtype == "float64"):
        for slope in (tape.grad(fun), tape.grad(tape.grad(fun))):
            x = np.asarray(x, dtype)
            assert slope(x) == 0
            with np.errstate(all="ignore"):
                kept, _ = hosted(jax.make_jaxpr(slope)(x))
                assert kept is None or kept(x) == 0
            counted += kept is not None
    series = jaxapi.primitive("polynomial") is not None  # as JAX 0.12 writes that of sinc's first slope: NumPy has none
    assert counted == {"sinc": 2 - series, "spence": 1}.get(name, 2)


@pytest.mark.parametrize("exponents", [np.array([0.0, 1.0, 2.0]), np.array([0, 1, 2])])
def test_powers_of_zero_have_the_derivatives_of_polynomials(exponents):
    """``x ** 0.0`` is 1 everywhere; JAX's derivative is NaN at zero."""

    def powers(x):
        return x**exponents

    assert tape.jacobian(powers)(0.0).tolist() == [0.0, 1.0, 0.0]
    assert tape.jacobian(tape.jacobian(powers))(0.0).tolist()[0] == 0.0
    assert float(tape.grad(tape.grad(lambda x, y: x**y), argnums=1)(2.0, 0.0)) == 0.5  # of other bases nothing is cut off


def test_slopes_of_bessel_functions_are_bessel_functions_also_at_zero_and_far_away():
    """``I0' = I1``, which is 0 at 0 where JAX has 1, and infinite with it where JAX has NaN."""
    special = tape.scipy.special
    assert (tape.grad(special.i0)(0.0), tape.grad(special.i0)(1e-20)) == (0, 0.5e-20)
    assert (tape.grad(special.i0)(100.0), tape.grad(special.i1)(100.0)) == (np.inf, np.inf)
    assert tape.grad(special.i1)(0.0) == 0.5
    assert np.isnan(tape.grad(special.i1e)(np.nan))


def test_running_sums_that_begin_with_nothing_give_it_no_share():
    """What is zero before its logarithm was taken has no weight, alone or beside others; JAX has NaN."""
    x, ct = np.array([-np.inf, -np.inf, 0.0, np.log(3.0), -np.inf], "float32"), np.arange(1.0, 6.0, dtype="float32")
    (shares,) = tape.vjp(tape.lax.cumlogsumexp, x)[1](ct)
    np.testing.assert_allclose(shares, [0, 0, 3 + 9 / 4, 27 / 4, 0], rtol=1e-6)


def test_running_sums_that_become_infinite_give_what_is_infinite_the_whole():
    (shares,) = tape.vjp(tape.lax.cumlogsumexp, np.array([0.5, np.inf, 1.0], "float32"))[1](np.array([3.0, 1.0, 2.0], "float32"))
    np.testing.assert_array_equal(shares, [3, 3, 0])


@pytest.mark.parametrize("logsumexp", [tape.nn.logsumexp, tape.scipy.special.logsumexp])
def test_infinities_share_the_weight_of_a_sum_of_exponentials(logsumexp):
    """JAX has NaN for them, and 0 for the others; where all are minus infinity, nothing is a share."""
    x = np.array([[np.inf, 0.5, -np.inf], [np.inf, 1.0, np.inf], [-np.inf, -np.inf, -np.inf]], "float32")
    shares = tape.grad(lambda x: logsumexp(x, axis=1).sum())(x)
    np.testing.assert_array_equal(shares, [[1, 0, 0], [0.5, 0, 0.5], [np.nan] * 3])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("name", "middle"), [("cumlogsumexp", 100.0), ("cumprod", 1.0)])
def test_running_reductions_in_half_precision_have_derivatives_of_results_that_are_not_rounded(name, middle, reverse, dtype):
    """In both orders, beside those of the same numbers in double precision; JAX's are off by up to half of the largest."""
    rng = np.random.default_rng(0)
    x, ct = jax.numpy.asarray(middle + 0.1 * rng.normal(size=50), dtype), jax.numpy.asarray(rng.normal(size=50), dtype)

    def first(space, x, ct):
        return space.vjp(lambda x: getattr(space.lax, name)(x, reverse=reverse), x)[1](ct)[0]

    def both(space, x, ct):
        return first(space, x, ct), space.vjp(lambda x: first(space, x, ct), x)[1](ct)[0]

    with jax.enable_x64(True):
        expected = jax.jit(lambda x, ct: both(jax, x, ct))(*(np.asarray(v, "float64") for v in (x, ct)))
    for value, exact in zip(both(tape, x, ct), expected, strict=True):
        assert value.dtype == x.dtype
        error = np.abs(np.asarray(value, "float64") - np.asarray(exact))
        assert error.max() <= float(jax.numpy.finfo(dtype).eps) * np.abs(np.asarray(exact)).max()


def test_a_running_product_that_is_out_of_the_range_of_half_precision_has_a_gradient():
    (slopes,) = tape.vjp(tape.lax.cumprod, np.array([512.0, 512.0, 2.0**-9], "float16"))[1](np.array([0, 0, 2.0**-6], "float16"))
    np.testing.assert_array_equal(slopes, [2.0**-6, 2.0**-6, 2.0**12])


def test_the_quantile_of_the_normal_distribution_is_infinitely_steep_at_its_ends():
    """One over a density that tends to zero; JAX has 0."""
    assert tape.grad(tape.scipy.special.ndtri)(0.0) == tape.grad(tape.scipy.special.ndtri)(1.0) == np.inf


@pytest.mark.parametrize("x", [0.5, 0.3, 0.7])
@pytest.mark.parametrize("y", [0.1, -0.1])
def test_a_remainder_counts_whole_quotients_of_the_numbers_that_there_are(x, y):
    """0.5 is not five times the number 0.1 in binary, which is larger than a tenth; JAX takes -5 for -4."""
    with jax.enable_x64(True):
        slope = float(tape.grad(tape.numpy.remainder, argnums=1)(x, y))
    assert slope == -math.floor(fractions.Fraction(x) / fractions.Fraction(y))


@pytest.mark.parametrize("axis", [None, -1])
def test_compiled_deviations_of_large_numbers(axis):
    """JAX's program subtracts a mean that is rounded in one place and not in another, and is 6 % off."""
    x = np.asarray([1000000.25, 1000000.0, 1000002.0], "float32")
    slope = jax.jit(tape.grad(lambda v: tape.numpy.sum(tape.numpy.var(v, axis=axis))))(x)
    np.testing.assert_allclose(slope, [-1 / 3, -1 / 2, 5 / 6], rtol=1e-6)


def test_the_entropy_of_no_number_has_no_derivative():
    assert np.isnan(tape.grad(tape.scipy.special.entr)(np.nan))
    assert tape.grad(tape.scipy.special.kl_div, argnums=1)(2.5, np.inf) == 1


@pytest.mark.parametrize(("name", "slope"), [("silu", 1), ("soft_sign", 0), ("squareplus", 1)])
def test_gates_are_straight_far_away(name, slope):
    """JAX has NaN at infinity."""
    assert tape.grad(getattr(tape.nn, name))(np.inf) == slope


@pytest.mark.parametrize("name", ["logaddexp", "logaddexp2"])
def test_two_infinities_share_a_sum(name):
    """By symmetry half each, as of other equal numbers; JAX gives the whole to both."""
    assert tape.grad(getattr(tape.numpy, name), argnums=(0, 1))(np.inf, np.inf) == (0.5, 0.5)
