"""Rules that are wrong for some outputs, modes, sizes or dtypes, and values that differ."""

import jax
import jax.numpy as jnp
import numpy as np

import tape
from tests.power.case import HALVES, built, complexes, custom, normal, rule, uniform

# several outputs ------------------------------------------------------------------------------------------------------
rule(
    "output ignored",
    "second_output_ignored",
    "the second output's cotangent is not used",
    lambda x: (jnp.sin(x), jnp.exp(x)),
    lambda ct, out, x: (ct[0] * jnp.cos(x),),
    normal(4),
)
rule(
    "output ignored",
    "auxiliary_output_ignored",
    "the auxiliary norm has a gradient too",
    lambda x: {"loss": jnp.sum(x**3), "norm": jnp.sqrt(jnp.sum(x * x))},
    lambda ct, out, x: (3 * ct["loss"] * x * x,),
    normal(4),
)
rule(
    "output ignored",
    "outputs_summed",
    "the first cotangent is used for both outputs",
    lambda x: (x**2, 3.0 * x),
    lambda ct, out, x: (ct[0] * 2 * x + ct[0] * 3.0,),
    normal(4),
)
rule(
    "output ignored",
    "log_determinant_of_the_pair_ignored",
    "a flow's log determinant has no gradient",
    lambda x: (x * jnp.exp(x), jnp.sum(x)),
    lambda ct, out, x: (ct[0] * (1 + x) * jnp.exp(x),),
    normal(4),
)

# only under vmap, only under jit --------------------------------------------------------------------------------------


def _batched(primal, slope, batched_slope):
    """An elementwise op whose slope is another function when it is batched."""
    batching = jax.custom_batching.custom_vmap(slope)
    batching.def_vmap(lambda size, batched, x: (batched_slope(size, x), True))
    factor = jax.custom_jvp(batching)  # custom_vmap itself has no second derivative
    factor.defjvp(lambda primals, tangents: jax.jvp(slope, primals, tangents))
    op = jax.custom_vjp(primal)
    op.defvjp(lambda x: (primal(x), x), lambda x, ct: (ct * factor(x),))
    return op


@built("only under vmap", "the batching rule halves the slope", normal(3), truth=jnp.sin, shows="vmap")
def slope_halved_under_vmap():
    return _batched(jnp.sin, jnp.cos, lambda size, x: 0.5 * jnp.cos(x))


@built("only under vmap", "the batching rule takes the slope of the first example", normal(3), truth=jnp.exp, shows="vmap")
def slope_of_the_first_example_under_vmap():
    return _batched(jnp.exp, jnp.exp, lambda size, x: jnp.broadcast_to(jnp.exp(x[:1]), x.shape))


@built("only under vmap", "the batching rule divides by the batch size", uniform(0.5, 1.5, 3), truth=lambda x: x**2, shows="vmap")
def slope_over_batch_size_under_vmap():
    return _batched(lambda x: x**2, lambda x: 2 * x, lambda size, x: 2 * x / size)


@built("only under vmap", "the inner sum of a softmax runs over the batch too", normal(4), truth=jax.nn.softmax, shows="vmap")
def softmax_summed_over_the_batch():
    def dot(ct, out):
        return jnp.sum(ct * out)

    batching = jax.custom_batching.custom_vmap(dot)
    batching.def_vmap(lambda size, batched, ct, out: (jnp.broadcast_to(jnp.sum(ct * out), (size,)), True))
    inner = jax.custom_jvp(batching)
    inner.defjvp(lambda primals, tangents: jax.jvp(dot, primals, tangents))
    op = jax.custom_vjp(lambda x: jax.nn.softmax(x))
    op.defvjp(lambda x: (jax.nn.softmax(x), x), lambda x, ct: (lambda p: (p * (ct - inner(ct, p)),))(jax.nn.softmax(x)))
    return op


@built("only under vmap", "the values of a batch have one mean", normal(4), truth=lambda x: x - jnp.mean(x), shows="vmap")
def centred_by_the_mean_of_the_batch():
    class Centred(tape.Function):
        @staticmethod
        def forward(ctx, x):
            return x - x.mean()

        @staticmethod
        def backward(ctx, g):
            return g - g.mean()

        @staticmethod
        def vmap(info, in_dims, x):
            return x - x.mean(), 0

    return Centred.apply


@built("only under jit", "the branch for traced values lacks the factor 2", normal(4), truth=lambda x: x * x, shows="jit")
def factor_missing_under_jit():
    def bwd(ct, out, x):
        return (ct * x if isinstance(x, jax.core.Tracer) else 2 * ct * x,)

    return custom(lambda x: x * x, bwd)


@built("only under jit", "a Python condition that traced values never meet", normal(4), truth=jnp.abs, shows="jit")
def concrete_sign_or_none():
    def bwd(ct, out, x):
        return (ct if isinstance(x, jax.core.Tracer) else ct * jnp.sign(x),)

    return custom(jnp.abs, bwd)


@built("only under jit", "a traced cotangent is taken for a symbolic zero", uniform(0.5, 1.5, 4), truth=lambda x: x**3, shows="jit")
def zeros_under_jit():
    def bwd(ct, out, x):
        return (jnp.zeros_like(x) if isinstance(ct, jax.core.Tracer) else 3 * ct * x * x,)

    return custom(lambda x: x**3, bwd)


# only large, only small dtypes ----------------------------------------------------------------------------------------
rule(
    "only large arrays",
    "only_the_first_block",
    "a blocked rule handles 1024 elements",
    jnp.sin,
    lambda ct, out, x: (jnp.where(jnp.arange(x.size) < 1024, ct * jnp.cos(x), 0.0),),
    uniform(-1.0, 1.0, 1500),
)
rule(
    "only large arrays",
    "index_in_uint8",
    "places are counted in eight bits",
    lambda x: x[::-1] ** 2,
    lambda ct, out, x: (2 * x * ct[(x.size - 1 - jnp.arange(x.size)) % 256],),
    uniform(0.5, 1.5, 300),
)
rule(
    "only large arrays",
    "tail_of_the_last_tile",
    "the remainder after tiles of 128 gets nothing",
    lambda x: jnp.tanh(x),
    lambda ct, out, x: (jnp.where(jnp.arange(x.size) < x.size // 128 * 128, ct * (1 - out * out), 0.0),),
    normal(200),
)
rule(
    "only in half precision",
    "squares_overflow_in_half",
    "the residual is squared before it is divided, and overflows",
    lambda x: jnp.sqrt(jnp.sum((x / 512) ** 2)) * 512,
    lambda ct, out, x: (ct * x / jnp.sqrt(jnp.sum(x * x)),),
    uniform(200.0, 400.0, 4),
    dtypes=("float16",),
    shows="first",
)
rule(
    "only in half precision",
    "epsilon_underflows_in_half",
    "an epsilon of 1e-8 is zero in half precision, and 0 / 0 is NaN",
    lambda x: x * x,
    lambda ct, out, x: (2 * ct * x * (x / (x + jnp.asarray(1e-8, x.dtype))),),
    np.array([0.0, 1.0, 2.0]),
    dtypes=("float16",),
    shows="nan",
)
rule(
    "only in half precision",
    "other_formula_in_half",
    "a shortcut for narrow dtypes that leaves the exponential out",
    lambda x: x * jax.nn.sigmoid(x),
    lambda ct, out, x: (ct * (jax.nn.sigmoid(x) if x.dtype.itemsize == 2 else jax.nn.sigmoid(x) + out * (1 - jax.nn.sigmoid(x))),),
    uniform(0.5, 2.0, 5),
    dtypes=HALVES,
)

# fwd is another function ----------------------------------------------------------------------------------------------


@built("value differs", "fwd returns twice the function", normal(4), truth=jnp.sin, shows="value")
def forward_doubles():
    return custom(jnp.sin, lambda ct, kept: (ct * jnp.cos(kept[0]),), lambda x: (2 * jnp.sin(x), (x,)))


@built("value differs", "fwd forgets the bias", normal(4), normal(4, seed=1), truth=lambda x, b: jnp.exp(x) + b, shows="value")
def forward_without_bias():
    return custom(lambda x, b: jnp.exp(x) + b, lambda ct, kept: (ct * kept[0], ct), lambda x, b: (jnp.exp(x), (jnp.exp(x),)))


@built(
    "value differs",
    "fwd computes an approximation, whose slope the rule returns",
    normal(4),
    truth=lambda x: jax.nn.gelu(x, approximate=False),
    shows="value",
)
def forward_approximates():
    def approximate(x):
        return x * jax.nn.sigmoid(1.702 * x)

    def bwd(ct, kept):
        return jax.vjp(approximate, kept[0])[1](ct)

    return custom(lambda x: jax.nn.gelu(x, approximate=False), bwd, lambda x: (approximate(x), (x,)))


# dtypes and arguments that carry no gradient --------------------------------------------------------------------------
rule(
    "dtype",
    "cotangent_in_half",
    "the cotangent is float16, whatever the argument",
    jnp.sin,
    lambda ct, out, x: ((ct * jnp.cos(x)).astype("float16"),),
    normal(4),
    shows="structure",
)
rule(
    "dtype",
    "complex_cotangent_of_a_real_argument",
    "the cotangent of a real argument is complex",
    lambda x, z: x * z,
    lambda ct, out, x, z: (ct * z, ct * x),
    normal(3),
    complexes(3),
    shows="structure",
)
rule(
    "dtype",
    "cotangent_in_float32",
    "the cotangent of a float64 argument is float32",
    jnp.cos,
    lambda ct, out, x: ((-ct * jnp.sin(x)).astype("float32"),),
    normal(4),
    dtypes=("float64",),
    shows="structure",
)
rule(
    "unused argument",
    "unused_argument_gets_a_gradient",
    "an argument that the result does not depend on gets ones",
    lambda x, y: x * x + 0 * y,
    lambda ct, out, x, y: (2 * ct * x, ct),
    normal(3),
    normal(3, seed=1),
)
rule(
    "unused argument",
    "unused_leaf_gets_the_other_one_s",
    "the unused leaf of a tree gets the used one's gradient",
    lambda p: jnp.sin(p["used"]),
    lambda ct, out, p: ({"used": ct * jnp.cos(p["used"]), "unused": ct * jnp.cos(p["used"])},),
    {"used": normal(3), "unused": normal(3, seed=1)},
)
rule(
    "integer argument",
    "integer_exponent_off_by_one",
    "the integer argument enters the slope one too large",
    lambda x, n: x ** n.astype(x.dtype),
    lambda ct, out, x, n: (ct * (n + 1) * x ** (n - 1).astype(x.dtype), None),
    uniform(0.5, 1.5, 4),
    np.array([2, 3, 1, 2]),
)
rule(
    "integer argument",
    "count_not_used",
    "the integer count is taken for one",
    lambda x, n: n * jnp.sin(x),
    lambda ct, out, x, n: (ct * jnp.cos(x), None),
    normal(3),
    np.array([3, 1, 2]),
)
