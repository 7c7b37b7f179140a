"""Jaxprs put together into one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tape import jaxapi
from tape.ops.building import JaxprBuilder

AVAL = jax.typeof(jnp.ones((2, 5)))


def _twice(first, second, *, once=True):
    """Inline two functions of one input into a jaxpr, each of which has one result."""
    builder = JaxprBuilder(once=once)
    x = builder.input(AVAL)
    results = [builder.inline(jaxapi.trace(f, AVAL)[0], [x])[0] for f in (first, second)]
    return results, builder.closed(results)


def test_equal_equations_are_there_once():
    def f(x):
        return jnp.sin(x).sum(0) * 2

    (a, b), closed = _twice(f, f)
    assert a is b
    assert len(closed.jaxpr.eqns) == 3
    x = np.linspace(0, 1, 10, dtype=np.float32).reshape(2, 5)
    np.testing.assert_allclose(jaxapi.jaxpr_as_fun(closed)(x)[1], np.sin(x).sum(0) * 2, rtol=1e-6)
    assert len(_twice(f, f, once=False)[1].jaxpr.eqns) == 6


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda x: x * 0.0, lambda x: x * -0.0),
        (lambda x: x + 1, lambda x: x + 1.5),
        (lambda x: x * np.float32(0.000123456), lambda x: x * np.float32(0.000123459)),  # which are printed alike
        (lambda x: x.sum(0), lambda x: x.sum(1)),
        (lambda x: x.astype(jnp.int16), lambda x: x.astype(jnp.int8)),
        (lax.optimization_barrier, lax.optimization_barrier),
    ],
)
def test_other_equations_and_barriers_stay_apart(first, second):
    (a, b), closed = _twice(first, second)
    assert a is not b
    assert len(closed.jaxpr.eqns) == 2


def test_effects_happen_each_time():
    def f(x):
        jax.debug.callback(lambda: None)
        return x + 1

    closed = _twice(f, f)[1]
    assert [eqn.primitive.name for eqn in closed.jaxpr.eqns] == ["debug_callback", "add", "debug_callback"]
