"""Rules that are right once and wrong when they are differentiated again."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.power.case import built, custom, normal, rule, uniform

# the second derivative ------------------------------------------------------------------------------------------------


def _through_numpy(slope):
    """``slope`` evaluated by NumPy, where JAX cannot follow it."""

    def outside(x):
        return jax.pure_callback(
            lambda v: slope(np.asarray(v)).astype(v.dtype),
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            jax.lax.stop_gradient(x),
            vmap_method="expand_dims",
        )

    return outside


rule(
    "second derivative cut",
    "residual_stopped",
    "stop_gradient on the residual",
    jnp.sin,
    lambda ct, out, x: (ct * jnp.cos(jax.lax.stop_gradient(x)),),
    uniform(0.4, 1.3, 4),
    shows="second",
)
rule(
    "second derivative cut",
    "result_stopped",
    "stop_gradient on the result that serves as residual",
    jnp.exp,
    lambda ct, out, x: (ct * jax.lax.stop_gradient(out),),
    uniform(0.4, 1.3, 4),
    shows="second",
)
rule(
    "second derivative cut",
    "slope_through_numpy",
    "the slope is computed by NumPy in a callback",
    lambda x: x**3,
    lambda ct, out, x: (ct * _through_numpy(lambda v: 3 * v * v)(x),),
    uniform(0.4, 1.3, 4),
    shows="second",
)
rule(
    "second derivative cut",
    "softmax_residual_stopped",
    "the probabilities are constants in the rule",
    jax.nn.softmax,
    lambda ct, out, x: ((lambda p: p * (ct - jnp.sum(ct * p)))(jax.lax.stop_gradient(out)),),
    normal(4),
    shows="second",
)
rule(
    "second derivative cut",
    "cotangent_stopped",
    "the cotangent is a constant in the rule",
    lambda x: x * 2.0,
    lambda ct, out, x: (2.0 * jax.lax.stop_gradient(ct),),
    normal(4),
    compose=lambda op: lambda x: jnp.sum(op(x) ** 3),
    shows="second",
)
rule(
    "second derivative cut",
    "mixed_second_derivative_cut",
    "only the second argument's residual is stopped",
    lambda x, y: x * y,
    lambda ct, out, x, y: (ct * jax.lax.stop_gradient(y), ct * x),
    normal(3),
    normal(3, seed=1),
    shows="second",
)


def _slope_with(primal, slope, second):
    """``primal`` with the right slope, whose own slope is ``second``."""
    inner = custom(slope, lambda ct, out, x: (ct * second(x),))
    return custom(primal, lambda ct, out, x: (ct * inner(x),))


@built("wrong second derivative", "the second derivative has a wrong sign", uniform(0.4, 1.3, 4), truth=jnp.sin, shows="second")
def sine_whose_second_has_a_wrong_sign():
    return _slope_with(jnp.sin, jnp.cos, jnp.sin)


@built("wrong second derivative", "the second derivative is 1 % off", uniform(0.4, 1.3, 4), truth=jnp.exp, shows="second")
def exponential_whose_second_is_scaled():
    return _slope_with(jnp.exp, jnp.exp, lambda x: 1.01 * jnp.exp(x))


@built(
    "wrong second derivative",
    "a Gauss-Newton term stands for the whole second derivative",
    normal(3),
    truth=lambda x: jnp.sum(jnp.sin(x) ** 2),
    shows="second",
)
def gauss_newton_for_a_hessian():
    residual = _slope_with(jnp.sin, jnp.cos, jnp.zeros_like)
    return lambda x: jnp.sum(residual(x) ** 2)


@built("wrong second derivative", "zero at second order where x < 0", np.array([-1.0, -0.5, 0.7]), truth=lambda x: x**3, shows="second")
def cube_whose_second_is_zero_below():
    return _slope_with(lambda x: x**3, lambda x: 3 * x * x, lambda x: jnp.where(x > 0, 6 * x, 0.0))


@built(
    "wrong second derivative",
    "the cotangent's share is doubled at second order",
    normal(4),
    truth=lambda x: jnp.sum(jnp.tanh(x) ** 3),
    shows="second",
)
def cotangent_share_doubled():
    inner = jax.custom_vjp(lambda ct, out: ct * (1 - out * out))
    inner.defvjp(
        lambda ct, out: (ct * (1 - out * out), (ct, out)), lambda kept, g: (2 * g * (1 - kept[1] ** 2), -2 * g * kept[0] * kept[1])
    )
    op = jax.custom_vjp(jnp.tanh)
    op.defvjp(lambda x: (jnp.tanh(x), x), lambda x, ct: (inner(ct, jnp.tanh(x)),))
    return lambda x: jnp.sum(op(x) ** 3)
