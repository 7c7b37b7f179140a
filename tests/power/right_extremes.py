"""Correct gradients of functions that are large, tiny, steep, cancelling or near the edge of their domain."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.power.case import BOTH, HALVES, complexes, normal, right, uniform

_ALL = (*BOTH, *HALVES)

# large and tiny values ------------------------------------------------------------------------------------------------
right("large values", "square_at_30", "which check_grads rejects in float32", lambda x: x**2, np.array([30.0, -30.0, 17.0]))
right("large values", "cube_at_ten_thousand", "values of 1e12", lambda x: x**3, np.array([1e4, -2e4]))
right("large values", "exponential_at_20", "values of 5e8", jnp.exp, np.array([20.0, 15.0]))
right("large values", "logsumexp_of_large_numbers", "thousands", jax.nn.logsumexp, np.array([1000.0, 1001.0, 999.5]))
right("large values", "logsumexp_far_apart", "all but one underflow", jax.nn.logsumexp, np.array([1000.0, -1000.0, 0.0]))
right("large values", "log1p_exp_at_80", "softplus on its straight part", jax.nn.softplus, np.array([80.0, -80.0, 0.1]))
right("large values", "sum_of_squares_of_1e10", "values of 1e20", lambda x: jnp.sum(x * x), np.array([1e10, -3e10]))
right("large values", "mean_of_1e10", "a large offset", lambda x: jnp.mean(x), np.array([1e10, 1e10 + 1e5]))
right("large values", "linear_map_of_1e6", "straight, with large weights", lambda x, w: w @ x, normal(3), 1e6 * normal(2, 3))
right("large values", "polynomial_of_degree_9", "at 5", lambda x: x**9 - 3 * x**4, np.array([5.0, -4.0]))
right("large values", "factorial_growth", "gammaln at 1e5", jax.scipy.special.gammaln, np.array([1e5, 30.0]))
right("tiny values", "scaled_by_1e_20", "values of 1e-20", lambda x: 1e-20 * jnp.sin(x), normal(4))
right("tiny values", "arguments_of_1e_20", "arguments of 1e-20", jnp.sin, np.array([1e-20, -3e-20, 2e-18]))
right("tiny values", "squares_of_1e_20", "squares that underflow in float32", lambda x: jnp.sum(x * x), np.array([1e-20, -3e-20]))
right("tiny values", "tiny_and_huge", "1e10 and 1e-10 in one array", lambda x: x * x, np.array([1e10, 1e-10, 1.0]))
right(
    "tiny values",
    "tiny_and_huge_arguments",
    "one argument of 1e10, one of 1e-10",
    lambda x, y: x * y,
    np.array([1e10, 2e10]),
    np.array([1e-10, -1e-10]),
)
right("tiny values", "exponential_at_minus_80", "values of 1e-35", jnp.exp, np.array([-80.0, -75.0]))
right("tiny values", "product_of_small_numbers", "a product of 1e-16", lambda x: jnp.prod(x), np.full(4, 1e-4))

# saturation and steepness ---------------------------------------------------------------------------------------------
right("steep", "saturated_softmax", "logits of 100", jax.nn.softmax, np.array([100.0, -100.0, 0.0, 99.0]))
right("steep", "saturated_sigmoid", "at +-50", jax.nn.sigmoid, np.array([50.0, -50.0, 2.0]))
right("steep", "steep_sigmoid", "a slope of 1e3 at zero", lambda x: jax.nn.sigmoid(4000.0 * x), np.array([1e-4, -2e-4, 0.0]))
right("steep", "steep_tanh", "a transition of width 1e-3", lambda x: jnp.tanh(1000.0 * x), np.array([1e-3, -5e-4, 0.3]))
right("steep", "narrow_gaussian", "a width of 1e-2", lambda x: jnp.exp(-((x / 0.01) ** 2)), np.array([0.005, -0.012, 0.3]))
right("steep", "cross_entropy_of_a_sure_guess", "a loss of 100", lambda x: -jax.nn.log_softmax(x)[1], np.array([100.0, 0.0, -3.0]))
right("steep", "softmax_at_low_temperature", "a temperature of 0.01", lambda x: jax.nn.softmax(x / 0.01), np.array([0.50, 0.51, 0.2]))
right("steep", "arctan_scaled", "a transition of width 1e-4", lambda x: jnp.arctan(1e4 * x), np.array([1e-4, 0.0, 1.0]))
right("steep", "fast_sine", "a wavelength of 1e-2", lambda x: jnp.sin(600.0 * x), uniform(0.0, 1.0, 4))
right(
    "steep",
    "log_normal_density",
    "a scale of 0.01",
    lambda x, s: jax.scipy.stats.norm.logpdf(x, 0.0, s),
    np.array([0.01, 0.03]),
    np.array(0.01),
)

# periodic at large arguments ------------------------------------------------------------------------------------------
right("periodic", "sine_at_a_thousand", "arguments of 1e3", jnp.sin, np.array([1000.0, 2000.5]))
right("periodic", "cosine_at_a_million", "arguments of 1e6", jnp.cos, np.array([1e6, 1.5e6]))
right("periodic", "complex_exponential", "a phase of 300", lambda x: jnp.exp(1j * x), np.array([300.0, 1.0]))
right("periodic", "wrapped_angle", "the angle of a phase of 100", lambda x: jnp.arctan2(jnp.sin(x), jnp.cos(x)), np.array([100.0, 31.0]))

# the edge of a domain -------------------------------------------------------------------------------------------------
right("edge of the domain", "square_root_near_zero", "arguments of 1e-6", jnp.sqrt, np.array([1e-6, 1e-4, 1.0]))
right("edge of the domain", "logarithm_near_zero", "arguments of 1e-6", jnp.log, np.array([1e-6, 1e-3, 2.0]))
right("edge of the domain", "arcsine_near_one", "1e-4 from the branch point", jnp.arcsin, np.array([0.9999, -0.9999, 0.3]))
right("edge of the domain", "arccosh_near_one", "1e-3 from the branch point", jnp.arccosh, np.array([1.001, 1.1]))
right("edge of the domain", "arctanh_near_one", "1e-4 from the pole", jnp.arctanh, np.array([0.9999, -0.5]))
right("edge of the domain", "reciprocal_near_zero", "arguments of 1e-4", lambda x: 1 / x, np.array([1e-4, -1e-3, 2.0]))
right("edge of the domain", "power_near_zero", "x^0.3 at 1e-4", lambda x: x**0.3, np.array([1e-4, 0.1]))
right("edge of the domain", "xlogy_near_zero", "x log x at 1e-5", lambda x: jax.scipy.special.xlogy(x, x), np.array([1e-5, 0.2]))
right("edge of the domain", "gammaln_near_a_pole", "at 1e-3", jax.scipy.special.gammaln, np.array([1e-3, 0.5]))
right("edge of the domain", "logit_near_its_ends", "at 1e-4 and 1 - 1e-4", jax.scipy.special.logit, np.array([1e-4, 1 - 1e-4, 0.5]))
right("edge of the domain", "tangent_near_a_pole", "1e-3 from pi / 2", jnp.tan, np.array([np.pi / 2 - 1e-3, 0.3]))
right("edge of the domain", "inverse_error_function_near_one", "at 0.9999", jax.scipy.special.erfinv, np.array([0.9999, -0.3]))
right(
    "edge of the domain",
    "square_root_masked_inside",
    "where() on the argument as well, so no NaN",
    lambda x: jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1.0)), 0.0),
    np.array([-1.0, 4.0, 0.25]),
)
right("edge of the domain", "complex_logarithm_near_its_cut", "just above the negative axis", jnp.log, np.array([-1.0 + 1e-3j, 2.0 + 1.0j]))

# cancellation ---------------------------------------------------------------------------------------------------------
right(
    "cancellation",
    "difference_of_large_sums",
    "the value is what is left of 1e8",
    lambda x: jnp.sum(x + 1e8) - jnp.sum(jnp.full_like(x, 1e8)),
    normal(4),
)
right("cancellation", "expm1_near_zero", "exact near zero", jnp.expm1, np.array([1e-8, 1e-4]))
right("cancellation", "log1p_near_zero", "exact near zero", jnp.log1p, np.array([1e-8, -1e-4]))
right("cancellation", "variance_with_an_offset", "values near 1e4", lambda x: jnp.var(x), 1e4 + normal(5))
right(
    "cancellation",
    "squared_distance_of_neighbours",
    "points 1e-3 apart",
    lambda x, y: jnp.sum((x - y) ** 2),
    np.array([1.0, 2.0]),
    np.array([1.001, 1.999]),
)
right("cancellation", "one_minus_cosine", "2 sin^2(x / 2) for small x", lambda x: 2 * jnp.sin(x / 2) ** 2, np.array([1e-4, 1e-2]))
right(
    "cancellation",
    "alternating_sum",
    "terms that cancel to 1e-4",
    lambda x: jnp.sum(x * jnp.array([1, -1, 1, -1], x.dtype)),
    np.array([1.0, 1.0001, 2.0, 2.0]),
)
right("cancellation", "product_with_inverse", "A times its inverse is constant", lambda x: x * (1 / x), uniform(0.5, 2.0, 4))
right("cancellation", "sine_squared_plus_cosine_squared", "the constant one", lambda x: jnp.sin(x) ** 2 + jnp.cos(x) ** 2, normal(4))

# half precision -------------------------------------------------------------------------------------------------------
right("half precision", "half_sine", "every step of 1e-4 is lost", jnp.sin, normal(5), dtypes=HALVES)
right("half precision", "half_product", "two arguments", lambda x, y: x * y, normal(4), normal(4, seed=1), dtypes=HALVES)
right("half precision", "half_matrix_product", "sums of eight", lambda a, b: a @ b, normal(3, 8), normal(8, 2), dtypes=HALVES)
right("half precision", "half_softmax", "probabilities", jax.nn.softmax, normal(6), dtypes=HALVES)
right("half precision", "half_layer", "a whole layer", lambda x, w: jnp.tanh(x @ w), normal(2, 4), 0.5 * normal(4, 3), dtypes=HALVES)
right("half precision", "half_sum_of_squares", "a scalar", lambda x: jnp.sum(x * x), normal(6), dtypes=HALVES)
right(
    "half precision",
    "half_in_single_inside",
    "cast up, computed, cast down",
    lambda x: jnp.exp(x.astype("float32")).astype(x.dtype),
    normal(4),
    dtypes=HALVES,
)
right(
    "half precision",
    "single_with_a_half_inside",
    "a float32 function that passes through half precision loses bits, not its derivative",
    lambda x: x.astype("bfloat16").astype(x.dtype) * 2.0,
    np.array([0.5, 1.25, -2.0]),
    dtypes=("float32",),
)

# large arrays ---------------------------------------------------------------------------------------------------------
right("large array", "sine_of_ten_thousand", "1e4 elements", jnp.sin, normal(10_000))
right("large array", "mean_of_ten_thousand", "gradients of 1e-4 each", lambda x: jnp.mean(x * x), normal(10_000))
right("large array", "logsumexp_of_ten_thousand", "a sum of 1e4 exponentials", jax.nn.logsumexp, normal(10_000))
right("large array", "matrix_product_of_hundreds", "100 by 100", lambda a, b: a @ b, normal(100, 100), normal(100, 100, seed=1))
right("large array", "sum_of_positive_thousands", "a sum whose rounding grows", lambda x: jnp.sum(jnp.exp(x)), normal(5000))
right("large array", "softmax_of_a_thousand", "small probabilities", jax.nn.softmax, normal(1000))
right("large array", "cumulative_sum_of_a_thousand", "rounding piles up", jnp.cumsum, normal(1000))
right("large array", "relu_of_ten_thousand", "some elements lie next to the kink", jax.nn.relu, normal(10_000))

# complex --------------------------------------------------------------------------------------------------------------
right("complex", "complex_square", "holomorphic", lambda z: z * z, complexes(3))
right("complex", "squared_modulus_of_complex", "not holomorphic", lambda z: jnp.sum(jnp.abs(z) ** 2), complexes(4))
right(
    "complex",
    "complex_exponential_of_product",
    "two arguments",
    lambda z, w: jnp.exp(z * w),
    0.5 * complexes(3),
    0.5 * complexes(3, seed=1),
)
right("complex", "phase", "the angle", jnp.angle, complexes(3))
right("complex", "conjugate_times_itself", "real part of conj(z) z", lambda z: jnp.real(z.conj() * z), complexes(3))
right("complex", "modulus_near_zero", "a kink at zero, arguments of 1e-3", jnp.abs, 1e-3 * complexes(3))
right("complex", "complex_matrix_product", "with a conjugate", lambda a, b: a.conj().T @ b, complexes(3, 2), complexes(3, 2, seed=1))
right("complex", "complex_square_root", "off the cut", jnp.sqrt, complexes(3))
right("complex", "real_to_complex_and_back", "the modulus of a spectrum", lambda x: jnp.abs(jnp.fft.fft(x)) ** 2, normal(5))
