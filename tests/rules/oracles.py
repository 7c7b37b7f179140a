"""Oracles of the derived suite: JAX's reverse mode, 5-point differences, and the comparisons.

Tolerances depend on the dtype and on the conditioning (the sum of what a directional derivative is summed from), never on size.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from tape.graph.kinds import differentiable
from tape.ops.pullback import pullback

# What two correct formulas may differ by, relative to the largest entry of an array.
RELATIVE = {"float16": 2e-2, "bfloat16": 2e-1, "float32": 3e-4, "complex64": 3e-4, "float64": 1e-9, "complex128": 1e-9}
NUMERIC = 2e-7  # relative to the summands of the directional derivative
ROUNDING = 2e-11  # relative to the summands of the value that is differenced: float64's epsilon over the step
STEP = 1e-3


class MismatchError(AssertionError):
    """Two derivatives that should agree do not."""


def flat(fun):
    """``fun`` with a tuple of arrays as its result."""
    return lambda *args: tuple(jax.tree.leaves(fun(*args)))


def contains(closed, primitive):
    """Tell whether ``primitive`` occurs in a jaxpr or in one inside it."""
    jaxpr = getattr(closed, "jaxpr", closed)
    for eqn in jaxpr.eqns:
        if eqn.primitive is primitive:
            return True
        for param in jax.tree.leaves(eqn.params, is_leaf=lambda p: hasattr(p, "eqns") or hasattr(p, "jaxpr")):
            if (hasattr(param, "eqns") or hasattr(param, "jaxpr")) and contains(param, primitive):
                return True
    return False


def own_vjp(fun, args, cts):
    """Cotangents by the rule table, zeros where no gradient flows."""
    grads = pullback(jax.make_jaxpr(fun)(*args), args, cts)
    return tuple(jnp.zeros_like(x) if g is None else g for g, x in zip(grads, args, strict=True))


def jax_vjp(fun, args, cts):
    """Cotangents by JAX's own reverse mode; zero stands for a cotangent of None."""
    outs, vjp = jax.vjp(fun, *args)
    return vjp(
        tuple(
            np.zeros(o.shape, o.dtype if differentiable(o) else jax.dtypes.float0) if c is None else c
            for o, c in zip(outs, cts, strict=True)
        )
    )


def double(fun, vjp):
    """``vjp`` as a function of its arguments and the cotangents that there are, in one list."""

    def first(count, cts, *values):
        rest = iter(values[count:])
        return tuple(vjp(fun, values[:count], [None if c is None else next(rest) for c in cts]))

    return first


def second_order(fun, vjp, args, cts, seeds):
    """Cotangents of the first order's arguments (and cotangents) for ``seeds``, by the same ``vjp``."""
    first = functools.partial(double(fun, vjp), len(args), cts)
    return vjp(first, (*args, *[c for c in cts if c is not None]), seeds)


def weigh(outs, cts):
    """Sum of the differentiable outputs times their cotangents (real part), and the sum of its summands' absolute values."""
    products = [jnp.real(c * o) for o, c in zip(outs, cts, strict=True) if c is not None]
    return sum(map(jnp.sum, products)), sum(jnp.sum(jnp.abs(p)) for p in products)


def differences(fun, args, cts, directions):
    """Central 5-point differences of the weighed outputs along one direction per argument, and the rounding that they carry."""

    def along(i, step):
        moved = [x + step * directions[i] if i == j else x for j, x in enumerate(args)]
        return weigh(fun(*moved), cts)

    slopes, roundings = [], []
    for i in range(len(args)):
        values, sizes = jax.vmap(lambda step, i=i: along(i, step))(STEP * jnp.array([-2.0, -1.0, 1.0, 2.0]))
        slopes.append(jnp.dot(values, jnp.array([1.0, -8.0, 8.0, -1.0])) / (12 * STEP))
        roundings.append(ROUNDING * jnp.max(sizes))
    return jnp.stack(slopes), jnp.stack(roundings)


def project(grads, directions):
    """Directional derivatives that gradients predict, and the sums of their summands' absolute values."""
    products = [jnp.real(g * d) for g, d in zip(grads, directions, strict=True)]
    return jnp.stack([jnp.sum(p) for p in products]), jnp.stack([jnp.sum(jnp.abs(p)) for p in products])


def assert_slopes(own, summands, numeric, rounding, what):
    """Compare directional derivatives with differences.

    Raises:
        MismatchError: one differs by more than its conditioning explains.

    """
    own, summands, numeric, rounding = map(np.asarray, (own, summands, numeric, rounding))
    wrong = ~(np.abs(own - numeric) <= NUMERIC * summands + rounding)
    if wrong.any():
        i = int(np.argmax(wrong))
        msg = f"{what}: along argument {i} the rule gives {own[i]!r}, 5-point differences {numeric[i]!r} (summands {summands[i]!r})"
        raise MismatchError(msg)


def assert_same(own, expected, what, factor=1.0, scale=0.0):
    """Compare arrays entry by entry, relative to the largest finite entry; NaN equals NaN, infinities must agree.

    Raises:
        MismatchError: shape, dtype or a value differs.

    """
    for i, (a, b) in enumerate(zip(own, expected, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            msg = f"{what}: cotangent {i} is {a.dtype}{list(a.shape)}, expected {b.dtype}{list(b.shape)}"
            raise MismatchError(msg)
        name = a.dtype.name
        x, y = np.asarray(a), np.asarray(b)
        if name in ("float16", "bfloat16"):
            x, y = x.astype(np.float32), y.astype(np.float32)
        finite = np.abs(y[np.isfinite(y)])
        largest = max(float(finite.max(initial=0.0)), scale)
        if not np.allclose(x, y, rtol=0, atol=factor * RELATIVE[name] * largest + math.ulp(0), equal_nan=True):
            msg = f"{what}: cotangent {i} is\n{x}\nexpected\n{y}"
            raise MismatchError(msg)
