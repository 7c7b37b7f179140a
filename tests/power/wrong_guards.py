"""Gradients of other arguments, guards and tails, what is stopped, and what is right once only."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.power.case import built, normal, rule, uniform

# arguments ------------------------------------------------------------------------------------------------------------
rule(
    "argument order",
    "three_of_a_shape_rotated",
    "the gradients of three arguments rotate",
    lambda x, y, z: x * y + jnp.sin(z),
    lambda ct, out, x, y, z: (ct * jnp.cos(z), ct * y, ct * x),
    normal(3),
    normal(3, seed=1),
    normal(3, seed=2),
)
rule(
    "argument order",
    "mean_and_scale_swapped",
    "the location gets the scale's",
    lambda x, m, s: (x - m) / s,
    lambda ct, out, x, m, s: (ct / s, -ct * out / s, -ct / s),
    normal(3),
    normal(3, seed=1),
    uniform(0.5, 1.5, 3),
)
rule(
    "argument order",
    "key_and_query_swapped",
    "query and key get each other's",
    lambda q, k: q @ k.T,
    lambda ct, out, q, k: (ct.T @ q, ct @ k),
    normal(3, 4),
    normal(3, 4, seed=1),
)
rule(
    "missing argument",
    "fifth_of_six",
    "one of six gets nothing",
    lambda a, b, c, d, e, f: a * b + c * d + e * f,
    lambda ct, out, a, b, c, d, e, f: (ct * b, ct * a, ct * d, ct * c, None, ct * e),
    *[normal(3, seed=i) for i in range(6)],
)
rule(
    "missing argument",
    "temperature_without_gradient",
    "a temperature is taken for a constant",
    lambda x, t: jax.nn.softmax(x / t),
    lambda ct, out, x, t: (out * (ct - jnp.sum(ct * out)) / t, jnp.zeros_like(t)),
    normal(4),
    np.array(0.7),
)
rule(
    "missing argument",
    "running_statistics_without_gradient",
    "the variance is a constant",
    lambda x, m, v: (x - m) / jnp.sqrt(v),
    lambda ct, out, x, m, v: (ct / jnp.sqrt(v), -ct / jnp.sqrt(v), jnp.zeros_like(v)),
    normal(3),
    normal(3, seed=1),
    uniform(0.5, 1.5, 3),
)
rule(
    "doubled argument",
    "sum_of_both_to_both",
    "both arguments get the sum of their gradients",
    lambda x, y: jnp.sin(x) * y,
    lambda ct, out, x, y: (ct * (jnp.cos(x) * y + jnp.sin(x)),) * 2,
    normal(3),
    normal(3, seed=1),
)
rule(
    "pytree",
    "list_reversed",
    "a list's cotangents come in reverse",
    lambda xs: xs[0] * 1.0 + xs[1] * 2.0 + xs[2] * 3.0,
    lambda ct, out, xs: ([3 * ct, 2 * ct, ct],),
    [normal(3), normal(3, seed=1), normal(3, seed=2)],
)
rule(
    "pytree",
    "nested_bias_forgotten",
    "a nested bias gets zeros",
    lambda p, x: jnp.tanh(x @ p["l"]["w"] + p["l"]["b"]),
    lambda ct, out, p, x: ({"l": {"w": x.T @ (ct * (1 - out**2)), "b": jnp.zeros_like(p["l"]["b"])}}, (ct * (1 - out**2)) @ p["l"]["w"].T),
    {"l": {"w": normal(3, 2), "b": normal(2)}},
    normal(4, 3),
)
rule(
    "pytree",
    "tuple_output_swapped",
    "the cotangents of a pair are swapped",
    lambda x: (jnp.sin(x), jnp.cos(x)),
    lambda ct, out, x: (ct[1] * jnp.cos(x) - ct[0] * jnp.sin(x),),
    normal(4),
)
rule(
    "output ignored",
    "third_of_three",
    "the third output's cotangent is not used",
    lambda x: (x, x**2, x**3),
    lambda ct, out, x: (ct[0] + 2 * x * ct[1],),
    normal(4),
)
rule(
    "output ignored",
    "integer_beside",
    "the count beside the sum makes the rule use the wrong cotangent",
    lambda x: (jnp.sum(x**2), jnp.sum(x > 0), jnp.sum(x)),
    lambda ct, out, x: (2 * x * ct[2] + ct[2],),
    normal(4),
)

# guards and tails -----------------------------------------------------------------------------------------------------
rule(
    "branch",
    "softplus_cut_at_two",
    "one beyond two",
    jax.nn.softplus,
    lambda ct, out, x: (ct * jnp.where(x > 2, 1.0, jax.nn.sigmoid(x)),),
    np.array([-1.0, 0.5, 2.5, 3.0]),
)
rule(
    "branch",
    "log1p_as_a_line_near_zero",
    "one minus x near zero",
    jnp.log1p,
    lambda ct, out, x: (ct * jnp.where(jnp.abs(x) < 0.3, 1 - x, 1 / (1 + x)),),
    np.array([0.2, -0.25, 0.5, 1.5]),
)
rule(
    "branch",
    "gelu_tail_zero",
    "zero below minus one",
    jax.nn.gelu,
    lambda ct, out, x: (ct * jnp.where(x < -1, 0.0, jax.jvp(jax.nn.gelu, (x,), (jnp.ones_like(x),))[1]),),
    np.array([-1.5, -0.5, 0.7, 2.0]),
)
rule(
    "branch",
    "power_of_negative_numbers",
    "|x|^(p-1) without the sign",
    lambda x: x**2,
    lambda ct, out, x: (2 * ct * jnp.abs(x),),
    normal(6),
)
rule(
    "branch",
    "cube_root_of_negative_numbers",
    "the slope's sign follows x",
    jnp.cbrt,
    lambda ct, out, x: (ct / (3 * out**2) * jnp.sign(x),),
    np.array([-1.5, 0.4, 2.0, -0.3]),
)
rule(
    "branch",
    "gradient_clamped",
    "slopes beyond one are clamped",
    lambda x: x**2,
    lambda ct, out, x: (ct * jnp.clip(2 * x, -1, 1),),
    normal(5),
)
rule(
    "branch",
    "logit_clipped",
    "probabilities beyond 0.9 get nothing",
    lambda p: jnp.log(p / (1 - p)),
    lambda ct, out, p: (jnp.where(p > 0.9, 0, ct / (p * (1 - p))),),
    np.array([0.1, 0.5, 0.93, 0.97]),
)
rule(
    "branch",
    "hardswish_middle",
    "the middle's slope is that of the sigmoid",
    jax.nn.hard_swish,
    lambda ct, out, x: (ct * jnp.where(x <= -3, 0, jnp.where(x >= 3, 1, jnp.clip(x / 6 + 0.5, 0, 1))),),
    np.array([-4.0, -1.0, 1.5, 4.0]),
)
rule(
    "nan",
    "where_of_a_root",
    "the untaken branch has an infinite slope",
    lambda x: jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1)), 0.0),
    lambda ct, out, x: (jnp.where(x > 0, 1.0, 0.0) * ct * 0.5 / jnp.sqrt(jnp.maximum(x, 0)),),
    np.array([0.5, -1.0, 2.0]),
)
rule(
    "nan",
    "log_ratio_of_zero",
    "x log(x / y) at zero",
    lambda x, y: jnp.where(x > 0, x * jnp.log(jnp.where(x > 0, x, 1) / y), 0.0),
    lambda ct, out, x, y: (ct * (x * jnp.log(x / y) / x + 1) * jnp.where(x > 0, 1.0, 0.0), -ct * x / y),
    np.array([0.5, 0.0, 0.3]),
    uniform(0.3, 1, 3),
)
rule(
    "epsilon",
    "normalised_with_epsilon",
    "1e-2 added in the rule alone",
    lambda x: x / jnp.sqrt(jnp.sum(x * x)),
    lambda ct, out, x: ((ct - out * jnp.sum(out * ct)) / (jnp.sqrt(jnp.sum(x * x)) + 1e-2),),
    normal(4),
)
rule(
    "ties",
    "argmax_of_ties_gets_two",
    "both of two equal ones get all",
    jnp.max,
    lambda ct, out, x: (jnp.where(x == out, ct, 0),),
    np.array([1.0, 3.0, 3.0, 2.0]),
)
rule(
    "ties",
    "minimum_of_equals_gets_both",
    "both of two equal arguments get all",
    jnp.minimum,
    lambda ct, out, x, y: (jnp.where(x <= y, ct, 0), jnp.where(y <= x, ct, 0)),
    np.array([1.0, 2.0, 3.0]),
    np.array([1.0, 1.0, 4.0]),
)

# stopped, straight through, lost --------------------------------------------------------------------------------------
rule(
    "straight through",
    "quantised_as_identity",
    "rounding to eighths passes everything",
    lambda x: jnp.round(x * 8) / 8 + x**2,
    lambda ct, out, x: (ct * (1 + 2 * x),),
    normal(4),
)
rule(
    "stopped gradient",
    "target_stopped_in_the_rule",
    "the target's gradient is dropped",
    lambda x, y: jnp.mean((x - y) ** 2),
    lambda ct, out, x, y: (2 * ct * (x - y) / x.size, jnp.zeros_like(y)),
    normal(4),
    normal(4, seed=1),
)


@built("stopped gradient", "the weights of a sum are stopped", normal(4), truth=lambda x: jnp.sum(jax.nn.softmax(x) * x))
def attention_weights_stopped():
    return lambda x: jnp.sum(jax.lax.stop_gradient(jax.nn.softmax(x)) * x)


@built("stopped gradient", "the denominator is stopped", uniform(0.5, 1.5, 4), truth=lambda x: x / jnp.sum(x))
def denominator_stopped():
    return lambda x: x / jax.lax.stop_gradient(jnp.sum(x))


# only once, only there ------------------------------------------------------------------------------------------------
rule(
    "wrong second derivative",
    "product_residual_stopped",
    "one factor is a constant the second time",
    lambda x, y: x * y,
    lambda ct, out, x, y: (ct * jax.lax.stop_gradient(y), ct * x),
    uniform(0.5, 1, 3),
    uniform(0.5, 1, 3, seed=1),
    shows="second",
)
rule(
    "wrong second derivative",
    "matmul_residual_stopped",
    "the left factor is a constant the second time",
    lambda a, b: a @ b,
    lambda ct, out, a, b: (ct @ b.T, jax.lax.stop_gradient(a).T @ ct),
    normal(3, 4),
    normal(4, 2),
    shows="second",
)
rule(
    "wrong second derivative",
    "logsumexp_weights_stopped",
    "the weights are constants the second time",
    jax.nn.logsumexp,
    lambda ct, out, x: (ct * jax.lax.stop_gradient(jax.nn.softmax(x)),),
    normal(4),
    shows="second",
)
rule(
    "wrong second derivative",
    "variance_mean_stopped",
    "the mean is a constant the second time",
    jnp.var,
    lambda ct, out, x: (2 * ct * (x - jax.lax.stop_gradient(jnp.mean(x))) / x.size,),
    normal(4),
    shows="second",
)
rule(
    "wrong second derivative",
    "norm_stopped_below",
    "the norm is a constant the second time",
    lambda x: jnp.sqrt(jnp.sum(x * x)),
    lambda ct, out, x: (ct * x / jax.lax.stop_gradient(out),),
    normal(4),
    shows="second",
)
rule(
    "dtype",
    "float16_inside_the_rule",
    "the rule computes in half precision",
    lambda x: jnp.exp(x),
    lambda ct, out, x: ((ct.astype(jnp.float16) * out.astype(jnp.float16)).astype(x.dtype),),
    normal(4),
)
rule(
    "dtype",
    "bfloat16_residual",
    "the residual is kept in bfloat16",
    lambda a, b: a @ b,
    lambda ct, out, a, b: (ct @ b.T, a.astype(jnp.bfloat16).astype(a.dtype).T @ ct),
    normal(3, 4),
    normal(4, 2),
)
rule(
    "not linear in the cotangent",
    "cotangent_relu",
    "negative cotangents are dropped",
    lambda x: 2 * x,
    lambda ct, out, x: (2 * jnp.maximum(ct, 0),),
    normal(4),
)
rule(
    "not linear in the cotangent",
    "cotangent_normalised_by_its_norm",
    "long cotangents are shortened to five",
    lambda x: x**2,
    lambda ct, out, x: (2 * x * ct * jnp.minimum(1, 5 / jnp.sqrt(jnp.sum(ct**2) + 1e-12)),),
    normal(4),
)
rule(
    "duplicates",
    "scatter_add_sets_last",
    "of equal indices the last counts",
    lambda x, i: jnp.zeros(3, x.dtype).at[i].add(x),
    lambda ct, out, x, i: (jnp.where(jnp.arange(5) == jnp.array([4, 3, 4, 3, 4])[jnp.arange(5)], ct[i], 0), None),
    normal(5),
    np.array([0, 1, 0, 1, 0]),
)
rule(
    "loop",
    "scan_carry_once",
    "the last turn's share only",
    lambda x: jax.lax.fori_loop(0, 3, lambda _, s: jnp.sin(s), x),
    lambda ct, out, x: (ct * jnp.cos(jnp.sin(jnp.sin(x))),),
    normal(3),
)
rule(
    "chain rule",
    "inner_slope_forgotten",
    "the inner function's slope is missing",
    lambda x: jnp.exp(jnp.sin(x)),
    lambda ct, out, x: (ct * out,),
    normal(4),
)
rule(
    "one element",
    "centre_of_a_matrix",
    "the centre of a matrix gets nothing",
    lambda x: x**2,
    lambda ct, out, x: ((2 * ct * x).at[2, 2].set(0),),
    normal(5, 5),
)
rule(
    "one element",
    "last_of_a_batch",
    "the last example gets nothing",
    lambda x: jnp.sum(x**2, 1),
    lambda ct, out, x: ((2 * ct[:, None] * x).at[-1].set(0),),
    normal(4, 3),
)
rule(
    "permutation",
    "argsort_for_its_inverse",
    "the permutation for its inverse",
    jnp.sort,
    lambda ct, out, x: (ct[jnp.argsort(x)],),
    np.array([0.3, -1.0, 2.0, 0.9, 1.1]),
)
rule(
    "permutation",
    "top_k_in_order_of_places",
    "the largest three get cotangents in order of place",
    lambda x: jax.lax.top_k(x, 3)[0],
    lambda ct, out, x: (jnp.zeros_like(x).at[jnp.sort(jax.lax.top_k(x, 3)[1])].set(ct),),
    np.array([0.3, -1.0, 2.0, 0.9, 1.1]),
)
