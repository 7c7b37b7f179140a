"""Wrong rules in other forms: forward rules, ``tape.Function``, static arguments, and small errors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import tape
from tests.power.case import built, complexes, custom, normal, rule, uniform


def pushed(primal, tangent):
    """``primal`` with a forward rule ``tangent(primals, tangents)``."""
    op = jax.custom_jvp(primal)
    op.defjvp(lambda primals, tangents: (primal(*primals), tangent(primals, tangents)))
    return op


def forward_rule(kind, name, why, primal, tangent, *args, shows="first"):
    """Enter ``primal`` with a wrong forward rule."""

    def build():
        return pushed(primal, tangent)

    build.__name__ = name
    built(kind, why, *args, truth=primal, shows=shows)(build)


# forward rules --------------------------------------------------------------------------------------------------------
forward_rule(
    "forward rule",
    "pushed_product_once",
    "the second tangent is left out",
    lambda x, y: x * y,
    lambda p, t: t[0] * p[1],
    normal(4),
    normal(4, seed=1),
)
forward_rule(
    "forward rule",
    "pushed_quotient_sign",
    "the denominator's tangent has the wrong sign",
    lambda x, y: x / y,
    lambda p, t: t[0] / p[1] + p[0] * t[1] / p[1] ** 2,
    normal(4),
    uniform(0.5, 1.5, 4),
)
forward_rule(
    "forward rule",
    "pushed_norm_squared",
    "the norm's tangent is not divided by the norm",
    lambda x: jnp.sqrt(jnp.sum(x * x)),
    lambda p, t: jnp.sum(p[0] * t[0]),
    normal(4),
)
forward_rule(
    "forward rule",
    "pushed_softmax_diagonal",
    "only the diagonal of the Jacobian",
    jax.nn.softmax,
    lambda p, t: jax.nn.softmax(p[0]) * (1 - jax.nn.softmax(p[0])) * t[0],
    normal(4),
)
forward_rule("forward rule", "pushed_abs_slope", "the slope of |x| is one", jnp.abs, lambda p, t: t[0], normal(5))
forward_rule(
    "forward rule",
    "pushed_tanh_stopped",
    "the slope is a constant the second time",
    jnp.tanh,
    lambda p, t: t[0] * jax.lax.stop_gradient(1 - jnp.tanh(p[0]) ** 2),
    uniform(0.3, 1.3, 4),
    shows="second",
)
forward_rule(
    "forward rule",
    "pushed_solve_sign",
    "the matrix's tangent is added",
    lambda a, b: jnp.linalg.solve(a, b),
    lambda p, t: jnp.linalg.solve(p[0], t[1] + t[0] @ jnp.linalg.solve(p[0], p[1])),
    normal(3, 3) + 3 * np.eye(3),
    normal(3, seed=1),
)
forward_rule(
    "forward rule",
    "pushed_logsumexp_argmax",
    "all of the tangent goes with the largest",
    jax.nn.logsumexp,
    lambda p, t: t[0][jnp.argmax(p[0])],
    normal(4),
)
forward_rule(
    "forward rule",
    "pushed_cumsum_total",
    "the total for the running sum",
    jnp.cumsum,
    lambda p, t: jnp.full_like(p[0], jnp.sum(t[0])),
    normal(4),
)
forward_rule(
    "forward rule",
    "pushed_complex_square_conjugated",
    "the tangent of z^2 is conjugated",
    lambda z: z * z,
    lambda p, t: 2 * p[0] * jnp.conj(t[0]),
    complexes(4),
)

# small errors ---------------------------------------------------------------------------------------------------------
for _share, _dtypes in ((1e-3, ("float32", "float64")), (1e-4, ("float64",)), (1e-5, ("float64",)), (-2e-4, ("float32", "float64"))):
    _n = f"{_share:.0e}".replace("-", "m")
    rule(
        "small error",
        f"sigmoid_off_by_{_n}",
        f"off by a relative {_share}",
        jax.nn.sigmoid,
        lambda ct, out, x, s=_share: (ct * out * (1 - out) * (1 + s),),
        normal(5),
        dtypes=_dtypes,
    )
    rule(
        "small error",
        f"matmul_off_by_{_n}",
        f"off by a relative {_share} in the second argument",
        lambda a, b: a @ b,
        lambda ct, out, a, b, s=_share: (ct @ b.T, (a.T @ ct) * (1 + s)),
        normal(3, 4),
        normal(4, 2),
        dtypes=_dtypes,
    )
rule(
    "small error",
    "one_of_many_off_by_1e-3",
    "one element of 40 is off by a thousandth",
    jnp.sin,
    lambda ct, out, x: ((ct * jnp.cos(x)).at[17].mul(1.001),),
    normal(40),
)
rule(
    "small error",
    "pi_of_four_digits",
    "pi is 3.1416 in the slope",
    lambda x: jnp.sin(jnp.pi * x),
    lambda ct, out, x: (ct * 3.1416 * jnp.cos(jnp.pi * x),),
    normal(4),
    dtypes=("float64",),
)
rule(
    "small error",
    "epsilon_in_the_slope_of_a_root",
    "1e-4 added below the root",
    jnp.sqrt,
    lambda ct, out, x: (ct * 0.5 / jnp.sqrt(x + 1e-4),),
    uniform(0.1, 1, 5),
)
rule(
    "small error",
    "differences_for_a_derivative",
    "forward differences of step 1e-3",
    jnp.exp,
    lambda ct, out, x: (ct * (jnp.exp(x + 1e-3) - out) / 1e-3,),
    normal(4),
    dtypes=("float64",),
)


# of the tape ----------------------------------------------------------------------------------------------------------


def recorded(kind, why, forward, backward, *args, shows="first"):
    """Enter ``apply`` of a ``tape.Function``."""

    def decorate(name):
        def build():
            return type(name, (tape.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}).apply

        build.__name__ = name
        built(kind, why, *args, truth=lambda *a: jax.tree.map(lambda v: v, _plain(name)(*a)), shows=shows)(build)

    return decorate


_TRUTHS = {
    "Recorded_square": lambda x: x * x,
    "Recorded_product": lambda x, y: x * y,
    "Recorded_pair": lambda x: (jnp.sin(x), x * x),
    "Recorded_scaled": lambda x: 3.0 * x,
    "Recorded_bias": lambda x, b: x + b,
    "Recorded_stopped": lambda x: x * x * x,
    "Recorded_matmul": lambda a, b: a @ b,
}


def _plain(name):
    return _TRUTHS[name]


def _keeping(fun):
    def forward(ctx, *args):
        ctx.save_for_backward(*args)
        return fun(*args)

    return forward


recorded("tape", "the two is forgotten", _keeping(lambda x: x * x), lambda ctx, g: g * ctx.saved[0], normal(4))("Recorded_square")
recorded(
    "tape",
    "the gradients are swapped",
    _keeping(lambda x, y: x * y),
    lambda ctx, g: (g * ctx.saved[0], g * ctx.saved[1]),
    normal(4),
    normal(4, seed=1),
)("Recorded_product")
recorded(
    "tape",
    "an output without gradient loses the other's",
    _keeping(lambda x: (tape.numpy.sin(x), x * x)),
    lambda ctx, g, h: g * tape.numpy.cos(ctx.saved[0]) if g is not None else 0 * h,
    normal(4),
)("Recorded_pair")
recorded("tape", "ten for three", _keeping(lambda x: 3.0 * x), lambda ctx, g: 10 * g, normal(4))("Recorded_scaled")
recorded(
    "tape", "the bias gets the mean", _keeping(lambda x, b: x + b), lambda ctx, g: (g, tape.numpy.mean(g, 0)), normal(4, 3), normal(3)
)("Recorded_bias")
recorded(
    "tape",
    "the residual is detached",
    _keeping(lambda x: x * x * x),
    lambda ctx, g: g * 3 * ctx.saved[0].detach() ** 2,
    uniform(0.5, 1.5, 4),
    shows="second",
)("Recorded_stopped")
recorded(
    "tape",
    "the right factor is not transposed",
    _keeping(lambda a, b: a @ b),
    lambda ctx, g: (g @ ctx.saved[1], ctx.saved[0].T @ g),
    normal(3, 3),
    normal(3, 3, seed=1),
)("Recorded_matmul")


# static and keyword arguments -----------------------------------------------------------------------------------------


@built("static argument", "a static power is off by one", uniform(0.5, 1.5, 4), truth=lambda x: x**3)
def static_power():
    @functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
    def power(x, n):
        return x**n

    power.defvjp(lambda x, n: (x**n, x), lambda n, x, ct: (ct * n * x**n,))
    return lambda x: power(x, 3)


@built("static argument", "a static axis is taken for the last", normal(3, 3), truth=lambda x: jax.nn.softmax(x, 0))
def static_axis():
    @functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
    def softmax(x, axis):
        return jax.nn.softmax(x, axis)

    def fwd(x, axis):
        y = jax.nn.softmax(x, axis)
        return y, y

    softmax.defvjp(fwd, lambda axis, y, ct: (y * (ct - jnp.sum(ct * y, -1, keepdims=True)),))
    return lambda x: softmax(x, 0)


@built(
    "static argument", "an option that scales is forgotten", normal(4), normal(4, seed=1), truth=lambda x, y: 0.5 * jnp.sum((x - y) ** 2)
)
def option_forgotten():
    op = custom(
        lambda x, y: 0.5 * jnp.sum((x - y) ** 2),
        lambda ct, kept: (2 * ct * kept[0], -2 * ct * kept[0]),
        lambda x, y: (0.5 * jnp.sum((x - y) ** 2), (x - y,)),
    )
    return lambda x, y, *, scale=1.0: op(x, y) * scale


@built("not the same twice", "noise is added to the gradient", normal(4), truth=jnp.sin)
def noise_in_the_gradient():
    rng = np.random.default_rng(0)
    return custom(
        jnp.sin,
        lambda ct, kept: (ct * jnp.cos(kept[0]) * float(rng.uniform(0.9, 1.1) if rng.uniform() > 0.3 else 1),),
        lambda x: (jnp.sin(x), (x,)),
    )
