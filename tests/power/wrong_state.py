"""Rules that are right for one call, one cotangent, one mode or one dtype, and wrong for others."""

import jax
import jax.numpy as jnp

from tests.power.case import built, custom, normal, rule, uniform

# stale residuals ------------------------------------------------------------------------------------------------------


@built("stale", "the residual of the first call is kept", normal(4), truth=jnp.sin, shows="repeat")
def residual_of_the_first_call():
    first = []

    def bwd(ct, kept):
        if not any(isinstance(k, jax.core.Tracer) for k in kept):
            first.extend(kept)
        return (ct * jnp.cos(first[0] if first else kept[0]),)

    return custom(jnp.sin, bwd, lambda x: (jnp.sin(x), (x,)))


@built(
    "stale",
    "a cache keyed by shape returns the slope of the values that came first",
    uniform(0.5, 1.5, 4),
    truth=lambda x: x**2,
    shows="repeat",
)
def slopes_cached_by_shape():
    cache = {}

    def bwd(ct, kept):
        if isinstance(kept[0], jax.core.Tracer):
            return (2 * ct * kept[0],)
        return (ct * cache.setdefault(kept[0].shape, 2 * kept[0]),)

    return custom(lambda x: x**2, bwd, lambda x: (x**2, (x,)))


@built("stale", "the slope lags one call behind", normal(3), truth=jnp.exp, shows="repeat")
def slopes_of_the_call_before():
    last = []

    def bwd(ct, kept):
        if isinstance(kept[0], jax.core.Tracer):
            return (ct * kept[0],)
        last.append(kept[0])
        return (ct * last[-2 if len(last) > 1 else -1],)

    return custom(jnp.exp, bwd, lambda x: (jnp.exp(x), (jnp.exp(x),)))


@built("stale", "every call adds to what the calls before it left", normal(3), truth=lambda x: x**3, shows="repeat")
def gradients_pile_up():
    total = []

    def bwd(ct, kept):
        grad = 3 * ct * kept[0] ** 2
        if isinstance(grad, jax.core.Tracer):
            return (grad,)
        total.append(grad)
        return (sum(total),)

    return custom(lambda x: x**3, bwd, lambda x: (x**3, (x,)))


# residuals of low precision -------------------------------------------------------------------------------------------
for narrow in ("float16", "bfloat16"):
    rule(
        "low precision",
        f"residual_in_{narrow}",
        f"the residual passes through {narrow}",
        jnp.sin,
        lambda ct, out, x, narrow=narrow: (ct * jnp.cos(x.astype(narrow).astype(x.dtype)),),
        uniform(0.4, 1.4, 6),
    )
rule(
    "low precision",
    "residual_in_int8",
    "the residual is quantised to 127 levels",
    lambda x: x**2,
    lambda ct, out, x: (2 * ct * jnp.round(x * 127).astype("int8").astype(x.dtype) / 127,),
    uniform(-0.9, 0.9, 6),
)
rule(
    "low precision",
    "cotangent_in_float16",
    "the cotangent passes through float16",
    lambda x: x**3,
    lambda ct, out, x: (3 * ct.astype("float16").astype(x.dtype) * x * x,),
    uniform(0.5, 1.5, 5),
)
rule(
    "low precision",
    "residual_in_float32",
    "float64 values whose rule computes in float32",
    jnp.exp,
    lambda ct, out, x: ((ct.astype("float32") * out.astype("float32")).astype(x.dtype),),
    normal(5),
    dtypes=("float64",),
)

# cotangents that are bent ---------------------------------------------------------------------------------------------
rule(
    "clipped cotangent",
    "cotangent_clipped_at_one",
    "clipped to [-1, 1]",
    jnp.sin,
    lambda ct, out, x: (jnp.clip(ct, -1, 1) * jnp.cos(x),),
    normal(4),
)
rule(
    "clipped cotangent",
    "cotangent_clipped_at_ten",
    "clipped to [-10, 10]",
    lambda x: x**2,
    lambda ct, out, x: (2 * jnp.clip(ct, -10, 10) * x,),
    uniform(0.5, 1.5, 4),
)
rule(
    "clipped cotangent",
    "gradient_norm_clipped",
    "the gradient is scaled to norm 5 at most",
    lambda x: jnp.tanh(x) * 2.0,
    lambda ct, out, x: ((lambda g: g * jnp.minimum(1.0, 5.0 / (jnp.sqrt(jnp.sum(g * g)) + 1e-12)))(2 * ct * (1 - (out / 2) ** 2)),),
    normal(4),
)
rule(
    "clipped cotangent",
    "cotangent_saturated",
    "passed through tanh",
    lambda x: jnp.exp(x),
    lambda ct, out, x: (jnp.tanh(ct) * out,),
    normal(4),
)
rule(
    "clipped cotangent",
    "cotangent_saturated_far_out",
    "passed through 100 tanh(ct / 100)",
    lambda x: jnp.cos(x),
    lambda ct, out, x: (-100 * jnp.tanh(ct / 100) * jnp.sin(x),),
    uniform(0.4, 1.4, 4),
)
rule(
    "clipped cotangent",
    "small_cotangents_dropped",
    "cotangents below 1e-3 are set to zero",
    lambda x: jnp.sin(x) * 3.0,
    lambda ct, out, x: (jnp.where(jnp.abs(ct) < 1e-3, 0.0, 3 * ct) * jnp.cos(x),),
    normal(4),
)

rule(
    "not linear in the cotangent",
    "cotangent_squared",
    "ct^2, right for ones",
    lambda x: x**2,
    lambda ct, out, x: (2 * ct * ct * x,),
    normal(4),
)
rule(
    "not linear in the cotangent",
    "cotangent_ignored",
    "the slope is returned, whatever the cotangent",
    jnp.sin,
    lambda ct, out, x: (jnp.cos(x),),
    normal(4),
)
rule(
    "not linear in the cotangent",
    "sign_of_cotangent_ignored",
    "|ct| instead of ct",
    jnp.tanh,
    lambda ct, out, x: (jnp.abs(ct) * (1 - out * out),),
    normal(4),
)
rule(
    "not linear in the cotangent",
    "constant_added",
    "a weight decay of 1e-3 x hides in the rule",
    jnp.sin,
    lambda ct, out, x: (ct * jnp.cos(x) + 1e-3 * x,),
    uniform(0.5, 1.5, 4),
)
rule(
    "not linear in the cotangent",
    "cotangent_normalised",
    "the cotangent is scaled to norm 1",
    lambda x: jnp.exp(x),
    lambda ct, out, x: (ct / jnp.sqrt(jnp.sum(ct * ct)) * out,),
    normal(4),
)
rule(
    "not linear in the cotangent",
    "scalar_loss_assumed_to_be_last",
    "the loss takes its cotangent for one",
    lambda x: jnp.mean(x**2),
    lambda ct, out, x: (2 * x / x.size,),
    normal(5),
)
