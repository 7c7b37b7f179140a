"""Correct gradients at kinks, ties, ends, plateaus and jumps."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.power.case import BOTH, normal, right, right_rule, uniform

_HALVES = (*BOTH, "float16", "bfloat16")
_AT_ZERO = np.array([-1.5, 0.0, 2.0, -0.3, 0.0])

# kinks ----------------------------------------------------------------------------------------------------------------
right("kink", "relu_at_zero", "relu with elements at its kink", jax.nn.relu, _AT_ZERO, dtypes=_HALVES)
right("kink", "relu_of_zeros", "every element at the kink", jax.nn.relu, np.zeros(4))
right("kink", "relu_beside_zero", "a step of differences crosses the kink", jax.nn.relu, np.array([1e-5, -1e-5, 3e-4, -2e-3, 1.0]))
right("kink", "abs_at_zero", "|x| with elements at its kink", jnp.abs, _AT_ZERO)
right("kink", "abs_beside_zero", "a step of differences crosses the kink", jnp.abs, np.array([1e-6, -1e-6, 1e-4, -1e-3]))
right("kink", "sum_of_absolute_values", "an L1 penalty with zeros", lambda x: jnp.sum(jnp.abs(x)), np.array([0.0, 1.0, 0.0, -2.0]))
right("kink", "leaky_relu_at_zero", "two slopes meet", jax.nn.leaky_relu, _AT_ZERO)
right("kink", "relu6_at_both_ends", "kinks at 0 and 6", jax.nn.relu6, np.array([-1.0, 0.0, 3.0, 6.0, 7.0]))
right("kink", "hard_tanh_at_both_ends", "kinks at -1 and 1", jax.nn.hard_tanh, np.array([-2.0, -1.0, 0.3, 1.0, 1.5]))
right("kink", "hard_sigmoid_at_both_ends", "kinks at -3 and 3", jax.nn.hard_sigmoid, np.array([-4.0, -3.0, 0.3, 3.0, 3.5]))
right("kink", "clip_at_both_ends", "elements at the ends", lambda x: jnp.clip(x, -1.0, 1.0), np.array([-1.0, 1.0, 0.5, 3.0, -1.0]))
right(
    "kink",
    "clip_beside_the_ends",
    "elements next to the ends",
    lambda x: jnp.clip(x, -1, 1),
    np.array([-1.00001, -0.99999, 0.99999, 1.00001]),
)
right("kink", "hinge_at_the_margin", "the hinge's kink", lambda x: jnp.sum(jnp.maximum(0.0, 1.0 - x)), np.array([1.0, 0.2, 2.0, -1.0]))
right(
    "kink",
    "huber_at_delta",
    "the second derivative jumps",
    lambda x: jnp.where(jnp.abs(x) <= 1.0, 0.5 * x * x, jnp.abs(x) - 0.5),
    np.array([-1.0, 1.0, 0.3, 2.5]),
)
right("kink", "elu_at_zero", "once differentiable at zero", jax.nn.elu, _AT_ZERO)
right("kink", "selu_at_zero", "a kink of two nonzero slopes", jax.nn.selu, _AT_ZERO)
right("kink", "celu_beside_zero", "the second derivative jumps", jax.nn.celu, np.array([1e-6, -1e-6, 1e-3, 0.7]))
right("kink", "positive_part_squared", "the second derivative jumps at zero", lambda x: jnp.maximum(x, 0.0) ** 2, _AT_ZERO)
right(
    "kink",
    "relu_network_at_a_kink",
    "the kink lies inside a composite",
    lambda x, w: jnp.sum(jax.nn.relu(w @ x)),
    np.array([1.0, 1.0]),
    np.array([[1.0, -1.0], [2.0, 0.5]]),
)
right(
    "kink",
    "l2_norm_of_rows_beside_zero",
    "a norm near its kink",
    lambda x: jnp.sqrt(jnp.sum(x * x, 1)),
    np.array([[1e-4, 2e-4], [3.0, 4.0]]),
)
right("kink", "parametric_relu", "the slope is an argument", lambda x, a: jnp.where(x > 0, x, a * x), _AT_ZERO, np.array(0.2))
right("kink", "quantile_loss_at_zero", "a tilted kink", lambda x: jnp.maximum(0.3 * x, -0.7 * x), np.array([0.0, 1.0, -1.0]))
right(
    "kink",
    "soft_threshold_at_the_threshold",
    "the kinks of a proximal map",
    lambda x: jnp.sign(x) * jnp.maximum(jnp.abs(x) - 0.5, 0.0),
    np.array([0.5, -0.5, 0.2, 2.0]),
)

# ties -----------------------------------------------------------------------------------------------------------------
right("tie", "maximum_of_equals", "two arguments tie", jnp.maximum, np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.0, 3.0]), dtypes=_HALVES)
right("tie", "minimum_of_equals", "two arguments tie", jnp.minimum, np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.0, 3.0]))
right("tie", "max_with_ties", "three elements tie", lambda x: jnp.max(x), np.array([2.0, 5.0, 5.0, 1.0, 5.0]))
right("tie", "min_over_rows_with_ties", "ties in one row", lambda x: jnp.min(x, 1), np.array([[1.0, 1.0, 2.0], [3.0, 4.0, 5.0]]))
right("tie", "max_of_nearly_equals", "a difference step changes the largest", lambda x: jnp.max(x), np.array([1.0, 1.0 + 1e-6, 0.5]))
right("tie", "max_of_a_constant_array", "everything ties", lambda x: jnp.max(x), np.ones(6))
right("tie", "sort_of_distinct_values", "well-separated values", jnp.sort, np.array([3.0, -1.0, 0.5, 2.0]))
right("tie", "sort_of_close_values", "values 1e-4 apart", jnp.sort, np.array([1.0002, 1.0, 1.0001, 2.0]))
right("tie", "median_of_distinct_values", "an odd number of values", lambda x: jnp.median(x), np.array([3.0, -1.0, 0.5, 2.0, 7.0]))
right("tie", "top_two", "the largest two of four", lambda x: jax.lax.top_k(x, 2)[0], np.array([3.0, -1.0, 0.5, 2.0]))
right(
    "tie",
    "max_pool",
    "a window maximum without ties",
    lambda x: jax.lax.reduce_window(x, -np.inf, jax.lax.max, (2,), (2,), "VALID"),
    np.array([1.0, 4.0, 3.0, 2.0, 0.0, 6.0]),
)
right(
    "tie",
    "segment_max_with_ties",
    "two members of a segment tie",
    lambda x: jax.ops.segment_max(x, jnp.array([0, 0, 1, 1]), 2),
    np.array([2.0, 2.0, 1.0, 3.0]),
)
right("tie", "peak_to_peak", "largest minus smallest", lambda x: jnp.ptp(x), np.array([2.0, 2.5, -1.0, 3.0]))
right("tie", "infinity_norm", "the largest absolute value", lambda x: jnp.linalg.norm(x, jnp.inf), np.array([2.0, -3.5, 3.0]))

# plateaus and jumps ---------------------------------------------------------------------------------------------------
right("plateau", "rounding", "zero slope between the jumps", jnp.round, np.array([0.2, 1.3, -0.7]))
right("plateau", "sign_away_from_zero", "zero slope", jnp.sign, np.array([0.2, -1.3]))
right("plateau", "floor_beside_a_jump", "a difference step may cross the jump", lambda x: jnp.floor(x) + x, np.array([1.00001, 0.5, -0.2]))
right("plateau", "step_function", "a comparison's values", lambda x: jnp.where(x > 0, 1.0, -1.0) * 2.0, np.array([0.4, -0.3, 1.0]))
right("plateau", "saturated_tanh", "slopes of 1e-17 and of exactly zero", jnp.tanh, np.array([20.0, -20.0, 0.5, 9.0]), dtypes=_HALVES)
right("plateau", "constant_function", "no dependence at all", lambda x: 0.0 * x + 3.0, normal(3))
right("plateau", "remainder", "slope 1 between the jumps", lambda x: jnp.mod(x, 2.0), np.array([0.3, 1.7, -0.4]))
right("plateau", "clipped_everywhere", "everything is beyond the ends", lambda x: jnp.clip(x, -0.1, 0.1), np.array([1.0, -2.0, 3.0]))
right(
    "plateau",
    "stopped_on_purpose_without_effect",
    "the stopped maximum cancels",
    lambda x: (lambda m: m + jnp.log(jnp.sum(jnp.exp(x - m))))(jax.lax.stop_gradient(jnp.max(x))),
    normal(5),
)
right(
    "plateau",
    "smooth_bump_outside_its_support",
    "zero outside (-1, 1)",
    lambda x: jnp.where(jnp.abs(x) < 1, jnp.exp(-1 / jnp.where(jnp.abs(x) < 1, 1 - x * x, 1.0)), 0.0),
    np.array([0.3, -0.8, 1.2, 1.0]),
)

# correct rules at such places -----------------------------------------------------------------------------------------
right_rule(
    "kink",
    "rule_for_abs",
    "the sign, JAX's convention at zero",
    jnp.abs,
    lambda ct, out, x: (ct * jnp.where(x >= 0, 1.0, -1.0).astype(x.dtype),),
    _AT_ZERO,
)
right_rule("kink", "rule_for_abs_with_zero_at_zero", "another subgradient", jnp.abs, lambda ct, out, x: (ct * jnp.sign(x),), _AT_ZERO)
right_rule(
    "kink",
    "rule_for_relu_with_one_at_zero",
    "another subgradient",
    jax.nn.relu,
    lambda ct, out, x: (ct * (x >= 0).astype(x.dtype),),
    _AT_ZERO,
)
right_rule(
    "kink",
    "rule_for_relu_with_a_half_at_zero",
    "another subgradient",
    jax.nn.relu,
    lambda ct, out, x: (ct * jnp.heaviside(x, 0.5).astype(x.dtype),),
    _AT_ZERO,
)
right_rule(
    "tie",
    "rule_for_max_that_takes_the_first",
    "one of several maxima gets everything: a subgradient",
    lambda x: jnp.max(x),
    lambda ct, out, x: (jnp.zeros_like(x).at[jnp.argmax(x)].set(ct),),
    np.array([1.0, 3.0, 3.0, 2.0]),
)
right_rule(
    "tie",
    "rule_for_sort_by_inverse_permutation",
    "the permutation is inverted",
    lambda x: jnp.sort(x),
    lambda ct, out, x: (jnp.zeros_like(x).at[jnp.argsort(x)].set(ct),),
    uniform(-2.0, 2.0, 6),
)
right_rule(
    "kink",
    "clamped_between_arguments",
    "where both bounds are the number itself, its share is one of several",
    lambda x, low, high: jnp.clip(x, low, high),
    lambda ct, out, x, low, high: (ct * ((low <= x) & (x <= high)), ct * (x < low), ct * (x > high)),
    np.array([0.3, -2.0, 1.0, 0.1]),
    np.array([-1.0, -1.5, -0.7, -0.9]),
    np.array([1.0, 0.8, 1.5, 0.9]),
)
