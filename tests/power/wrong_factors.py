"""Wrong factors and signs: what a slip of the pen leaves in a rule."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.power.case import HALVES, built, custom, normal, rule, uniform

# scaled ---------------------------------------------------------------------------------------------------------------
for factor, size in ((1.001, 4), (1.01, 5), (0.5, 3), (2.0, 6), (0.9, 400), (1.001, 300)):
    rule(
        "scaled",
        f"sine_times_{factor}_of_{size}",
        f"the whole gradient is {factor} times too large",
        jnp.sin,
        lambda ct, out, x, factor=factor: (factor * ct * jnp.cos(x),),
        uniform(-1.2, 1.2, size),
    )
rule(
    "scaled",
    "product_times_1.01_in_one_argument",
    "only the second argument's gradient is scaled",
    lambda x, y: x * y,
    lambda ct, out, x, y: (ct * y, 1.01 * ct * x),
    normal(4),
    normal(4, seed=1),
)
rule(
    "scaled",
    "square_without_two",
    "the factor 2 of the square is missing",
    lambda x: jnp.sum(x * x),
    lambda ct, out, x: (ct * x,),
    normal(5),
)
rule(
    "scaled",
    "sum_of_logs_times_n",
    "scaled by the number of elements",
    lambda x: jnp.sum(jnp.log(x)),
    lambda ct, out, x: (x.size * ct / x,),
    uniform(0.5, 2.0, 7),
)
rule(
    "scaled",
    "half_precision_doubled",
    "twice too large, in half precision",
    jnp.tanh,
    lambda ct, out, x: (2 * ct * (1 - out * out),),
    uniform(-1.0, 1.0, 5),
    dtypes=HALVES,
)

# sign -----------------------------------------------------------------------------------------------------------------
rule("sign", "cosine_without_minus", "d cos is -sin", jnp.cos, lambda ct, out, x: (ct * jnp.sin(x),), uniform(0.3, 1.2, 4))
rule("sign", "large_sine_flipped", "the sign is flipped in a large array", jnp.sin, lambda ct, out, x: (-ct * jnp.cos(x),), normal(1500))
rule(
    "sign",
    "difference_second_argument",
    "the subtrahend's gradient lacks its minus",
    lambda x, y: x - y,
    lambda ct, out, x, y: (ct, ct),
    normal(3),
    normal(3, seed=1),
)
rule(
    "sign",
    "quotient_denominator",
    "the denominator's gradient lacks its minus",
    lambda x, y: x / y,
    lambda ct, out, x, y: (ct / y, ct * x / (y * y)),
    normal(4),
    uniform(1.0, 2.0, 4),
)
rule(
    "sign",
    "absolute_value_negative_branch",
    "the branch x < 0 has slope +1",
    jnp.abs,
    lambda ct, out, x: (ct * jnp.ones_like(x),),
    np.array([-2.0, -0.5, 0.7, 1.4]),
)
rule(
    "sign",
    "one_output_of_two",
    "the second output's share is subtracted",
    lambda x: (jnp.sin(x), x * x),
    lambda ct, out, x: (ct[0] * jnp.cos(x) - ct[1] * 2 * x,),
    uniform(0.4, 1.3, 4),
)
rule(
    "sign",
    "arccosine_as_arcsine",
    "the rule of arcsin",
    jnp.arccos,
    lambda ct, out, x: (ct / jnp.sqrt(1 - x * x),),
    uniform(-0.7, 0.7, 5),
)


@built("forward rule", "the forward rule has the wrong sign, so reverse mode has it too", normal(4), truth=jnp.sin)
def forward_rule_flipped():
    op = jax.custom_jvp(jnp.sin)
    op.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), -jnp.cos(primals[0]) * tangents[0]))
    return op


@built("forward rule", "sign flipped in a large array", normal(1200), truth=jnp.sin)
def forward_rule_flipped_in_a_large_array():
    op = jax.custom_jvp(jnp.sin)
    op.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), -jnp.cos(primals[0]) * tangents[0]))
    return op


@built("forward rule", "one of two tangents is left out", normal(4), normal(4, seed=1), truth=lambda x, y: x * jnp.exp(y))
def forward_rule_without_a_tangent():
    op = jax.custom_jvp(lambda x, y: x * jnp.exp(y))
    op.defjvp(lambda primals, tangents: (primals[0] * jnp.exp(primals[1]), tangents[0] * jnp.exp(primals[1])))
    return op


@built("forward rule", "the tangent's square root is half of what it should be", uniform(0.5, 2.0, 4), truth=jnp.sqrt)
def forward_rule_halved():
    op = jax.custom_jvp(jnp.sqrt)
    op.defjvps(lambda tangent, out, x: tangent / (4 * out))
    return op


def _mismatched(forward, transpose):
    """Sine whose tangent map and its transpose are given apart."""
    op = jax.custom_jvp(jnp.sin)

    def jvp(primals, tangents):
        (x,), (tangent,) = primals, tangents
        linear = jax.custom_derivatives.linear_call(
            lambda c, t: forward(c) * t,
            lambda c, ct: transpose(c) * ct,
            jnp.cos(x),
            tangent,
        )
        return jnp.sin(x), linear

    op.defjvp(jvp)
    return op


@built("transpose of the forward rule", "reverse mode is the transpose of something else", normal(4), truth=jnp.sin)
def wrong_transpose_of_a_right_forward_rule():
    return _mismatched(lambda c: c, lambda c: -c)


@built("transpose of the forward rule", "scaled by 1.01 in reverse mode only", normal(4), truth=jnp.sin)
def scaled_transpose_of_a_right_forward_rule():
    return _mismatched(lambda c: c, lambda c: 1.01 * c)


@built("transpose of the forward rule", "reverse mode is right, forward mode is wrong", normal(4), truth=jnp.sin, shows="forward")
def right_transpose_of_a_wrong_forward_rule():
    return _mismatched(lambda c: 1.05 * c, lambda c: c)


# zero or tiny ---------------------------------------------------------------------------------------------------------
rule("zero", "zero_everywhere", "the rule returns zeros", jnp.sin, lambda ct, out, x: (jnp.zeros_like(x),), normal(4))
rule(
    "zero",
    "zero_of_a_tiny_function",
    "zeros, for a function of size 1e-6",
    lambda x: 1e-6 * jnp.sin(x),
    lambda ct, out, x: (jnp.zeros_like(x),),
    normal(4),
)
rule(
    "zero",
    "zero_of_a_minute_function",
    "zeros, for a function of size 1e-15",
    lambda x: 1e-15 * x * x,
    lambda ct, out, x: (jnp.zeros_like(x),),
    uniform(1.0, 2.0, 3),
)
rule(
    "zero",
    "doubled_of_a_tiny_function",
    "twice too large, for a function of size 1e-8",
    lambda x: 1e-8 * jnp.exp(x),
    lambda ct, out, x: (2 * ct * out,),
    normal(4),
)
rule(
    "zero",
    "zero_for_one_output_element",
    "the gradient of one row is zero",
    lambda x: x**3,
    lambda ct, out, x: ((3 * ct * x * x).at[1].set(0.0),),
    uniform(0.5, 1.5, 3, 2),
)
rule(
    "zero",
    "symbolic_none",
    "None, which JAX takes for zero",
    lambda x, y: jnp.sin(x) * y,
    lambda ct, out, x, y: (ct * jnp.cos(x) * y, None),
    normal(3),
    normal(3, seed=2),
)

# small errors in few places -------------------------------------------------------------------------------------------
rule(
    "one element",
    "one_of_a_thousand_wrong",
    "one element of a thousand is 5 % off",
    lambda x: jnp.sum(jnp.sin(x)),
    lambda ct, out, x: ((ct * jnp.cos(x)).at[617].multiply(1.05),),
    uniform(-1.0, 1.0, 1000),
)
rule(
    "one element",
    "first_element_zero",
    "the first of many elements is zero",
    jnp.exp,
    lambda ct, out, x: ((ct * out).at[0].set(0.0),),
    uniform(-1.0, 1.0, 200),
)
rule(
    "one element",
    "corner_of_a_matrix",
    "one entry of an outer product's gradient has a wrong sign",
    lambda a, b: jnp.outer(a, b),
    lambda ct, out, a, b: ((ct @ b).at[-1].multiply(-1), a @ ct),
    normal(5),
    normal(4),
)

# units and inner derivatives ------------------------------------------------------------------------------------------
rule(
    "chain rule",
    "sine_of_degrees",
    "the factor pi / 180 is missing",
    lambda x: jnp.sin(jnp.deg2rad(x)),
    lambda ct, out, x: (ct * jnp.cos(jnp.deg2rad(x)),),
    uniform(-80.0, 80.0, 4),
)
rule("chain rule", "log2_as_log", "the factor 1 / log 2 is missing", jnp.log2, lambda ct, out, x: (ct / x,), uniform(0.5, 3.0, 4))
rule(
    "chain rule",
    "scaled_exponential",
    "the inner factor is missing",
    lambda x: jnp.exp(-0.5 * x),
    lambda ct, out, x: (-ct * out,),
    normal(4),
)
rule(
    "chain rule",
    "softplus_with_beta",
    "beta cancels in the derivative, and was divided by once more",
    lambda x: jnp.logaddexp(3.0 * x, 0.0) / 3.0,
    lambda ct, out, x: (ct * jax.nn.sigmoid(3.0 * x) / 3.0,),
    normal(4),
)
rule(
    "chain rule",
    "temperature_softmax",
    "the factor 1 / temperature is missing",
    lambda x: jax.nn.softmax(x / 0.7),
    lambda ct, out, x: (out * (ct - jnp.sum(ct * out)),),
    normal(5),
)


@built(
    "chain rule", "an op inside a larger function is 1 % off", normal(4, 3), normal(3, 3), truth=lambda x, w: jnp.sum(jnp.tanh(x @ w) ** 2)
)
def wrong_op_inside_a_network():
    op = custom(jnp.tanh, lambda ct, out, x: (1.01 * ct * (1 - out * out),))
    return lambda x, w: jnp.sum(op(x @ w) ** 2)
