"""Wrong adjoints of equations, fixed points and loops."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.power.case import built, normal, rule, uniform

_A = np.eye(3) * 2 + 0.5 * normal(3, 3)

# implicit functions ---------------------------------------------------------------------------------------------------
rule(
    "implicit",
    "solve_without_transpose",
    "the adjoint system is solved with A instead of its transpose",
    jnp.linalg.solve,
    lambda ct, out, a, b: (lambda lam: (-jnp.outer(lam, out), lam))(jnp.linalg.solve(a, ct)),
    _A,
    normal(3),
)
rule(
    "implicit",
    "solve_without_minus",
    "the matrix's gradient lacks its minus",
    jnp.linalg.solve,
    lambda ct, out, a, b: (lambda lam: (jnp.outer(lam, out), lam))(jnp.linalg.solve(a.T, ct)),
    _A,
    normal(3),
)


@built("implicit", "custom_linear_solve with A in place of its transpose", _A, normal(3), truth=jnp.linalg.solve)
def linear_solve_transposed_wrongly():
    def fun(a, b):
        return jax.lax.custom_linear_solve(
            lambda x: a @ x,
            b,
            solve=lambda _, y: jnp.linalg.solve(a, y),
            transpose_solve=lambda _, y: jnp.linalg.solve(a, y),
        )

    return fun


def _root(a):
    """The x with x^3 + x = a, by Newton's method."""
    return jax.lax.fori_loop(0, 30, lambda _, x: x - (x**3 + x - a) / (3 * x * x + 1), a / (1 + jnp.abs(a)))


rule("implicit", "root_slope_inverted", "F_x instead of 1 / F_x", _root, lambda ct, out, a: (ct * (3 * out**2 + 1),), uniform(0.5, 2.0, 3))
rule(
    "implicit",
    "root_slope_at_the_start",
    "the slope at the parameter, not at the root",
    _root,
    lambda ct, out, a: (ct / (3 * a**2 + 1),),
    uniform(0.5, 2.0, 3),
)


def _fixed_point(w, b):
    """The x with x = tanh(w x + b) / 2."""
    return jax.lax.fori_loop(0, 60, lambda _, x: 0.5 * jnp.tanh(w @ x + b), jnp.zeros_like(b))


def _fixed_point_bwd(adjoint):
    def bwd(ct, out, w, b):
        slope = 0.5 * (1 - jnp.tanh(w @ out + b) ** 2)
        lam = adjoint(ct, slope[:, None] * w)
        return jnp.outer(slope * lam, out), slope * lam

    return bwd


_W = 0.8 * normal(3, 3, seed=6)
rule(
    "fixed point",
    "one_step_of_the_fixed_point",
    "one step is differentiated, not the fixed point",
    _fixed_point,
    _fixed_point_bwd(lambda ct, j: ct),
    _W,
    normal(3),
)
rule(
    "fixed point",
    "fixed_point_adjoint_not_transposed",
    "I - J instead of its transpose",
    _fixed_point,
    _fixed_point_bwd(lambda ct, j: jnp.linalg.solve(jnp.eye(3, dtype=ct.dtype) - j, ct)),
    _W,
    normal(3),
)
rule(
    "fixed point",
    "fixed_point_adjoint_cut_short",
    "two terms of the Neumann series",
    _fixed_point,
    _fixed_point_bwd(lambda ct, j: ct + j.T @ ct),
    _W,
    normal(3),
)

# loops ----------------------------------------------------------------------------------------------------------------


def _recurrence(x, w):
    return jax.lax.scan(lambda h, v: (jnp.tanh(w * h + v),) * 2, jnp.zeros_like(w), x)


def _recurrence_bwd(*, carried=True, seeded=True, backwards=True):
    """The rule of a recurrence, with parts left out."""

    def bwd(ct, out, x, w):
        _, states = out
        before = jnp.concatenate([jnp.zeros(1, states.dtype), states[:-1]])

        def step(carry, line):
            h, g, last = line
            inner = (carry + g) * (1 - h * h)
            return (w * inner if carried else jnp.zeros_like(inner)), (inner, inner * last)

        start = ct[0] if seeded else jnp.zeros_like(ct[0])
        _, (dx, dw) = jax.lax.scan(step, start, (states, ct[1], before), reverse=backwards)
        return dx, jnp.sum(dw)

    return bwd


_SEQUENCE = (normal(5), np.array(0.7))
rule(
    "loop",
    "recurrence_truncated",
    "the carry's cotangent is dropped at every step",
    _recurrence,
    _recurrence_bwd(carried=False),
    *_SEQUENCE,
)
rule(
    "loop",
    "recurrence_without_final_state",
    "the final state's cotangent is left out",
    _recurrence,
    _recurrence_bwd(seeded=False),
    *_SEQUENCE,
)
rule("loop", "recurrence_forwards", "the reverse loop runs forwards", _recurrence, _recurrence_bwd(backwards=False), *_SEQUENCE)
rule(
    "loop",
    "cumulative_product_from_the_left",
    "the products of what comes before, for what comes after",
    jnp.cumprod,
    lambda ct, out, x: (jnp.cumsum(ct * out) / x,),
    uniform(0.5, 1.5, 5),
)


@built("loop", "the carry is detached at every step", normal(5), np.array(0.7), truth=lambda x, w: _recurrence(x, w)[1])
def carry_detached():
    return lambda x, w: jax.lax.scan(lambda h, v: (jnp.tanh(w * jax.lax.stop_gradient(h) + v),) * 2, jnp.zeros_like(w), x)[1]
