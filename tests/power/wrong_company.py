"""Rules that are right where the author looked: alone, for all that can be asked, near the given point, with JAX to differentiate."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.power.case import BOTH, Case, built, cast, custom, enter, normal, rule, uniform

# between other calls --------------------------------------------------------------------------------------------------


@built("between other calls", "the residual is that of the latest forward pass", normal(4), truth=jnp.sin, shows="repeat")
def residual_of_the_latest_forward_pass():
    latest = []

    def fwd(x):
        latest.append(x)
        return jnp.sin(x), None

    return custom(jnp.sin, lambda ct, kept: (ct * jnp.cos(latest[-1]),), fwd)


# what is asked for ----------------------------------------------------------------------------------------------------


def told(primal, fwd, bwd):
    """``primal`` with a rule that is told which arguments are differentiated and which outputs are used."""
    op = jax.custom_vjp(lambda *args: primal(*args))
    op.defvjp(fwd, bwd, symbolic_zeros=True)
    return op


def unused(ct):
    """Tell whether nobody asked for an output."""
    return isinstance(ct, jax.custom_derivatives.SymbolicZero)


def sine_and_square(x):
    return jnp.sin(x), x * x


@built("what is asked for", "zero as soon as one output is not used", normal(4), truth=sine_and_square, shows="part")
def zero_where_the_other_output_is_unused():
    def bwd(x, cts):
        return (jnp.zeros_like(x) if any(map(unused, cts)) else cts[0] * jnp.cos(x) + 2 * cts[1] * x,)

    return told(sine_and_square, lambda x: (sine_and_square(x.value), x.value), bwd)


@built("what is asked for", "zero unless both are differentiated", normal(4), normal(4, seed=2), truth=lambda x, y: x * y, shows="part")
def zero_where_the_other_argument_is_constant():
    def fwd(x, y):
        return x.value * y.value, (x.value, y.value, y.perturbed)

    return told(lambda x, y: x * y, fwd, lambda kept, ct: (ct * kept[1] if kept[2] else 0 * ct, ct * kept[0]))


# away from the given point --------------------------------------------------------------------------------------------

rule(
    "away from the given point",
    "square_with_slope_one_beyond_four",
    "another branch for large arguments",
    lambda x: x**2,
    lambda ct, _, x: (ct * jnp.where(jnp.abs(x) > 4, 1, 2 * x),),
    uniform(0.5, 1, 4),
    shows="elsewhere",
    domain=(-np.inf, np.inf),
)
rule(
    "away from the given point",
    "sine_flat_near_zero",
    "a branch that avoids a division near zero",
    jnp.sin,
    lambda ct, _, x: (ct * jnp.where(jnp.abs(x) < 2e-3, 0, jnp.cos(x)),),
    uniform(0.5, 1, 4),
    shows="elsewhere",
    domain=(-np.inf, np.inf),
)
rule(
    "away from the given point",
    "exponential_of_the_absolute_value",
    "right for positive arguments",
    jnp.exp,
    lambda ct, _, x: (ct * jnp.exp(jnp.abs(x)),),
    uniform(0.5, 1, 4),
    shows="elsewhere",
    domain=(-np.inf, np.inf),
)
rule(
    "clipped cotangent",
    "cotangent_clipped_at_1e8",
    "beyond what one would try",
    jnp.sin,
    lambda ct, _, x: (jnp.clip(ct, -1e8, 1e8) * jnp.cos(x),),
    normal(4),
)

# JAX cannot differentiate it ------------------------------------------------------------------------------------------


def on_the_host(x):
    """A sine that NumPy computes."""
    return jax.pure_callback(lambda x: np.sin(x), jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="expand_dims")


def fixed_point(a):
    """The solution of ``s = a cos(s) / 4``, by a loop that stops when a turn changes little."""

    def far(state):
        return (jnp.max(jnp.abs(state[0] - state[1])) > 30 * jnp.finfo(a.dtype).eps) & (state[2] < 90)

    return jax.lax.while_loop(far, lambda state: (jnp.cos(state[0]) * a / 4, state[0], state[2] + 1), (a, a + 1, 0))[0]


def fixed_point_in_turns(a):
    """The same, to the end."""
    return jax.lax.fori_loop(0, 60, lambda _, s: jnp.cos(s) * a / 4, a)


def _implicit(size, factor):
    """The fixed point with the implicit rule, times a factor."""

    def bwd(ct, kept):
        a, s = kept
        return (factor * ct * jnp.cos(s) / 4 / (1 + jnp.sin(s) * a / 4),)

    return custom(fixed_point, bwd, lambda a: (fixed_point(a), (a, fixed_point(a)))), uniform(0.5, 1.5, size)


def _hosted(factor):
    """The sine of the host with a rule, times a factor."""
    return custom(on_the_host, lambda ct, _, x: (factor * ct * jnp.cos(x),)), normal(4)


def _enter(name, why, truth, build, *, wrong):
    """Enter a case whose truth is not what its function is made of."""

    def make(dtype):
        fun, x = build()
        return fun, cast((x,), dtype)

    enter(Case(name, "jax cannot differentiate", why, wrong, make, lambda _: truth, BOTH))


for _n in (3, 100):
    _enter(f"loop_of_{_n}_until_near", "an implicit rule", fixed_point_in_turns, lambda n=_n: _implicit(n, 1.0), wrong=False)
    _enter(f"loop_of_{_n}_until_near_scaled", "0.2 % too large", fixed_point_in_turns, lambda n=_n: _implicit(n, 1.002), wrong=True)
_enter("sine_on_the_host", "a callback", jnp.sin, lambda: _hosted(1.0), wrong=False)
_enter("sine_on_the_host_doubled", "a callback", jnp.sin, lambda: _hosted(2.0), wrong=True)


@built("what is asked for", "all that can be", normal(4), normal(4, seed=2), truth=lambda x, y: (x * y, jnp.sin(x)), wrong=False)
def rule_told_what_is_asked_for():
    def bwd(kept, cts):
        product, sine = (jnp.zeros(ct.shape, ct.dtype) if unused(ct) else ct for ct in cts)
        return product * kept[1] + sine * jnp.cos(kept[0]), product * kept[0]

    def fwd(x, y):
        return (x.value * y.value, jnp.sin(x.value)), (x.value, y.value)

    return told(lambda x, y: (x * y, jnp.sin(x)), fwd, bwd)
