"""What the derived suite cannot ask of control flow: refusals, carries without cotangents, and what a loop keeps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from oracles import assert_same, flat, jax_vjp, own_vjp

from tape.errors import TapeValueError

A = np.array([0.5, -0.25], "float32")
B = np.array([[1.5, 0.5], [0.25, -1.0], [2.0, 1.0]], "float32")


def agrees(fun, args):
    """Compare with JAX, for all cotangents and for those of one output only."""
    outs = jax.eval_shape(flat(fun), *args)
    full = [np.linspace(0.5, 1.5, o.size, dtype=o.dtype).reshape(o.shape) if jnp.issubdtype(o.dtype, jnp.inexact) else None for o in outs]
    single = [[c if i == j else None for j, c in enumerate(full)] for i in range(len(full)) if full[i] is not None]
    for cts in [full, *single]:
        assert_same(own_vjp(flat(fun), args, cts), jax_vjp(flat(fun), args, cts), "control flow")


def test_while_is_refused_with_a_repair():
    with pytest.raises(TapeValueError, match=r"carry 0 .* use lax\.scan"):
        own_vjp(lambda x: (lax.while_loop(lambda v: v.sum() < 3, lambda v: v * 2, x),), (np.ones(2, "float32"),), (A,))


def test_while_behind_a_step_function_lets_the_rest_be_differentiated():
    def fun(x):
        doubled = lax.while_loop(lambda state: state[0] < 3, lambda state: (state[0] + 1, state[1] * 2), (0, jnp.floor(x)))
        return doubled[1] * jnp.sin(x)

    agrees(fun, (A,))


def test_carries_that_wander_get_their_cotangents():
    agrees(lambda a, b: lax.scan(lambda c, x: ((c[1], c[2] * x, c[0]), c[0]), (a, b[0], a * b[1]), b), (A, B))


def test_integers_and_keys_pass_through_a_scan():
    def body(carry, x):
        key, count, h = carry
        key, draw = jax.random.split(key)
        return (key, count + 1, h * x * jax.random.normal(draw, h.shape)), (count, h)

    agrees(lambda a, b: lax.scan(body, (jax.random.key(0), 0, a), b)[1], (A, B))


def test_loops_and_branches_nest():
    def body(h, x):
        return lax.scan(lambda g, y: (lax.cond(y > 0, jnp.sin, lambda v: v * y, g), g), h, x)

    agrees(lambda a, b: lax.scan(jax.checkpoint(body), a, b), (A, B))


def test_scan_without_arrays_to_scan():
    agrees(lambda a: lax.scan(lambda c, _: (jnp.sin(c), c), a, None, length=3), (A,))


def test_branch_without_a_gradient():
    agrees(lambda a: lax.cond(a[0] > 0, lambda a: (jnp.ones(2), 1), lambda a: (a, 2), a), (A,))


def test_linear_loop_keeps_no_carries():
    def total(b):
        return (lax.scan(lambda c, x: (c + x, None), jnp.zeros(2), b)[0],)

    closed = jax.make_jaxpr(lambda b, ct: own_vjp(total, (b,), (ct,)))(B, A)
    used = [e for e in closed.jaxpr.eqns if any(v in closed.jaxpr.outvars for v in e.outvars)]
    assert len(used) == 1
    assert used[0].params["reverse"]
