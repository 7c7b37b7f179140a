"""Rules that are wrong in a part of the domain: branches, ties, edges, denominators, and second derivatives."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.power.case import built, normal, rule, uniform

_SIGNS = np.array([-1.7, -0.4, 0.6, 1.9, -0.9])

# branches -------------------------------------------------------------------------------------------------------------
rule(
    "branch",
    "elu_zero_below",
    "zero where x < 0, as relu",
    jax.nn.elu,
    lambda ct, out, x: (jnp.where(x > 0, ct, 0.0),),
    _SIGNS,
)
rule(
    "branch",
    "branches_swapped",
    "the branches of the slope are swapped",
    lambda x: jnp.where(x > 0, x, 0.1 * x),
    lambda ct, out, x: (jnp.where(x > 0, 0.1 * ct, ct),),
    _SIGNS,
)
rule(
    "branch",
    "threshold_at_one",
    "the rule's threshold is 1, the function's 0",
    jax.nn.relu,
    lambda ct, out, x: (jnp.where(x > 1, ct, 0.0),),
    _SIGNS,
)
rule(
    "branch",
    "clip_passes_everything",
    "places that were clipped get a gradient",
    lambda x: jnp.clip(x, -1, 1),
    lambda ct, out, x: (ct,),
    _SIGNS,
)
rule(
    "branch",
    "clip_upper_end_forgotten",
    "only the lower end stops the gradient",
    lambda x: jnp.clip(x, -1, 1),
    lambda ct, out, x: (jnp.where(x > -1, ct, 0.0),),
    _SIGNS,
)
rule(
    "branch",
    "huber_without_delta",
    "the linear part has slope 1 instead of delta",
    lambda x: jnp.sum(jnp.where(jnp.abs(x) < 0.5, 0.5 * x * x, 0.5 * (jnp.abs(x) - 0.25))),
    lambda ct, out, x: (ct * jnp.where(jnp.abs(x) < 0.5, x, jnp.sign(x)),),
    _SIGNS,
)
rule(
    "branch",
    "leaky_slope_forgotten_below_minus_one",
    "right near zero, zero below -1",
    lambda x: jax.nn.leaky_relu(x, 0.2),
    lambda ct, out, x: (ct * jnp.where(x > 0, 1.0, jnp.where(x > -1, 0.2, 0.0)),),
    _SIGNS,
)
rule(
    "branch",
    "branch_chosen_by_the_cotangent",
    "the sign of the cotangent decides instead of that of x, as in guided backpropagation",
    jax.nn.relu,
    lambda ct, out, x: (jnp.where((x > 0) & (ct > 0), ct, 0.0),),
    _SIGNS,
)
rule(
    "branch",
    "sine_cardinal_near_zero",
    "the series used near zero has a wrong coefficient",
    jnp.sinc,
    lambda ct, out, x: (
        ct
        * jnp.where(
            jnp.abs(x) < 0.2,
            -(jnp.pi**2) * x / 2,
            (jnp.cos(jnp.pi * x) - jnp.sinc(x)) / jnp.where(x == 0, 1.0, x),
        ),
    ),
    np.array([0.1, -0.15, 0.8, 1.3]),
)

# ties and kinks -------------------------------------------------------------------------------------------------------
rule(
    "ties",
    "every_maximum_gets_all",
    "each of two equal maxima gets the whole cotangent",
    lambda x: jnp.max(x),
    lambda ct, out, x: (jnp.where(x == out, ct, 0.0),),
    np.array([1.0, 3.0, 3.0, 2.0]),
)
rule(
    "ties",
    "no_maximum_gets_any",
    "two equal maxima get nothing",
    jnp.maximum,
    lambda ct, out, x, y: (jnp.where(x > y, ct, 0.0), jnp.where(y > x, ct, 0.0)),
    np.array([1.0, 2.0, 3.0]),
    np.array([1.0, 1.0, 3.0]),
)
rule(
    "ties",
    "absolute_value_slope_two_at_zero",
    "slope 2 at zero, between no one-sided derivatives",
    jnp.abs,
    lambda ct, out, x: (ct * jnp.where(x == 0, 2.0, jnp.sign(x)),),
    np.array([-1.0, 0.0, 2.0]),
)
rule(
    "ties",
    "relu_negative_slope_at_zero",
    "slope -1 at zero",
    jax.nn.relu,
    lambda ct, out, x: (ct * jnp.where(x > 0, 1.0, jnp.where(x == 0, -1.0, 0.0)),),
    np.array([-1.0, 0.0, 2.0]),
)
rule(
    "ties",
    "square_root_of_square_at_a_kink",
    "slope 1 + 1 where both branches of a maximum meet",
    lambda x: jnp.maximum(x, -x),
    lambda ct, out, x: (ct * ((x >= 0) * 1.0 + (x <= 0) * 1.0 * jnp.where(x == 0, 1.0, -1.0)),),
    np.array([0.0, 1.5]),
)

# NaN ------------------------------------------------------------------------------------------------------------------


@built(
    "nan",
    "where() does not stop the NaN of the branch not taken",
    np.array([-1.0, 4.0, 2.0]),
    truth=lambda x: jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1.0)), 0.0),
    shows="nan",
)
def square_root_masked_outside():
    return lambda x: jnp.where(x > 0, jnp.sqrt(x), 0.0)


@built(
    "nan",
    "0 * NaN in the branch not taken",
    np.array([-1.0, 2.0]),
    truth=lambda x: jnp.where(x > 0, x * jnp.log(jnp.where(x > 0, x, 1.0)), x * x),
    shows="nan",
)
def x_log_x_masked_outside():
    return lambda x: jnp.where(x > 0, x * jnp.log(x), x * x)


@built(
    "nan",
    "the square root of a sum that is zero for one row",
    np.array([[0.0, 0.0], [3.0, 4.0]]),
    truth=lambda x: jnp.sum(x * x, 1),
    shows="nan",
)
def norm_squared_of_a_zero_row():
    return lambda x: jnp.sqrt(jnp.sum(x * x, 1)) ** 2


@built(
    "nan",
    "exp overflows in the branch not taken",
    np.array([800.0, 1.0]),
    truth=lambda x: jnp.where(x > 50, x, jnp.log1p(jnp.exp(jnp.minimum(x, 50.0)))),
    shows="nan",
)
def softplus_masked_outside():
    return lambda x: jnp.where(x > 50, x, jnp.log1p(jnp.exp(x)))


rule(
    "nan",
    "quotient_of_zeros",
    "x / x in the rule is NaN at zero",
    lambda x: x**2,
    lambda ct, out, x: (2 * ct * out / x,),
    np.array([0.0, 1.0, -2.0]),
    shows="nan",
)
rule(
    "nan",
    "product_of_others_by_division",
    "prod / x is NaN where x is zero",
    lambda x: jnp.prod(x),
    lambda ct, out, x: (ct * out / x,),
    np.array([2.0, 0.0, 3.0]),
    shows="nan",
)

# epsilon --------------------------------------------------------------------------------------------------------------
rule(
    "epsilon",
    "reciprocal_with_epsilon",
    "1e-3 is added to the denominator",
    lambda x: 1 / x,
    lambda ct, out, x: (-ct / (x * x + 1e-3),),
    uniform(0.2, 0.8, 4),
)
rule(
    "epsilon",
    "norm_with_epsilon",
    "1e-2 is added to the norm",
    lambda x: jnp.sqrt(jnp.sum(x * x)),
    lambda ct, out, x: (ct * x / (out + 1e-2),),
    normal(3),
)
rule(
    "epsilon",
    "logarithm_with_epsilon",
    "1e-4 is added to the argument",
    jnp.log,
    lambda ct, out, x: (ct / (x + 1e-4),),
    uniform(0.05, 0.2, 4),
)
rule(
    "epsilon",
    "square_root_with_epsilon",
    "1e-3 under the root",
    jnp.sqrt,
    lambda ct, out, x: (0.5 * ct / jnp.sqrt(x + 1e-3),),
    uniform(0.1, 0.5, 4),
)

# result in place of the argument ----------------------------------------------------------------------------------
rule(
    "residual mixed up",
    "tanh_of_the_result",
    "1 - tanh(out)^2",
    jnp.tanh,
    lambda ct, out, x: (ct * (1 - jnp.tanh(out) ** 2),),
    normal(4),
)
rule(
    "residual mixed up",
    "sigmoid_of_the_argument",
    "x (1 - x) instead of out (1 - out)",
    jax.nn.sigmoid,
    lambda ct, out, x: (ct * x * (1 - x),),
    normal(4),
)
rule(
    "residual mixed up",
    "exponential_of_the_argument",
    "the argument is returned as slope",
    jnp.exp,
    lambda ct, out, x: (ct * x,),
    normal(4),
)
rule(
    "residual mixed up",
    "square_root_by_the_argument",
    "1 / (2 x) instead of 1 / (2 out)",
    jnp.sqrt,
    lambda ct, out, x: (0.5 * ct / x,),
    uniform(0.5, 3.0, 4),
)
rule(
    "residual mixed up",
    "result_after_an_update",
    "the argument is read after it was normalised",
    lambda x: (x / 2.0) ** 3,
    lambda ct, out, x: (1.5 * ct * (x / 4.0) ** 2,),
    uniform(0.5, 3.0, 4),
)

# straight-through and stopped gradients -------------------------------------------------------------------------------
rule(
    "straight through",
    "rounding_as_identity",
    "a straight-through estimator is no derivative",
    jnp.round,
    lambda ct, out, x: (ct,),
    np.array([0.2, 1.3, -0.7]),
)
rule(
    "straight through",
    "sign_as_hard_tanh",
    "the sign's slope is zero, not that of a clip",
    jnp.sign,
    lambda ct, out, x: (jnp.where(jnp.abs(x) < 1, ct, 0.0),),
    _SIGNS,
)
rule(
    "straight through",
    "gradient_reversal",
    "the identity whose gradient is reversed",
    lambda x: x * 1.0,
    lambda ct, out, x: (-0.5 * ct,),
    normal(3),
)


@built("stopped gradient", "a factor is detached that belongs to the function", normal(4), truth=lambda x: jnp.sum(x * jnp.sin(x)))
def factor_detached():
    return lambda x: jnp.sum(x * jax.lax.stop_gradient(jnp.sin(x)))


@built("stopped gradient", "the batch statistics are detached", normal(5, 2), truth=lambda x: (x - jnp.mean(x, 0)) / jnp.std(x, 0))
def statistics_detached():
    def fun(x):
        mean, std = jax.lax.stop_gradient((jnp.mean(x, 0), jnp.std(x, 0)))
        return (x - mean) / std

    return fun


@built(
    "stopped gradient", "the maximum is detached and not added again", normal(5), truth=lambda x: jnp.log(jnp.sum(jnp.exp(x - jnp.max(x))))
)
def logsumexp_without_its_maximum():
    return lambda x: jnp.log(jnp.sum(jnp.exp(x - jax.lax.stop_gradient(jnp.max(x)))))


@built(
    "stopped gradient",
    "one of two equal weights is detached",
    normal(3, 3),
    normal(3),
    truth=lambda w, x: jnp.sum(jnp.tanh(w @ jnp.tanh(w @ x))),
)
def tied_weight_detached():
    return lambda w, x: jnp.sum(jnp.tanh(w @ jnp.tanh(jax.lax.stop_gradient(w) @ x)))
