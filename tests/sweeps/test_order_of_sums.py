"""Terms of a gradient are added in one order, whichever way a program runs: it is JAX's, and decides on the last digits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import tape

SMALL = 2.0**-24  # 1 + SMALL + SMALL is 1 in float32, and 1 + 2 * SMALL is not


def _read_twice(a):
    return a * a + a


def _through_another(a):
    b = tape.numpy.reshape(a, (1,))
    return (b * b + b)[0]


def _eager(f, a):
    with tape.eager():
        return tape.grad(f)(a)


def _jit(f, a):
    def step(v):
        f(v).backward()
        return v.grad

    return tape.jit(step)(tape.Variable(a)).value


WAYS = {"lazy": lambda f, a: tape.grad(f)(a), "eager": _eager, "tape.jit": _jit, "jax.jit": lambda f, a: jax.jit(tape.grad(f))(a)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("f", [_read_twice, _through_another])
def test_a_value_that_an_entry_reads_twice(f, way):
    assert 1 + 2 * SMALL != 1 == jnp.float32(1) + jnp.float32(SMALL)
    assert WAYS[way](f, jnp.float32(SMALL)) == 1


@pytest.mark.parametrize("way", WAYS)
def test_only_what_is_asked_for_gets_it(way):
    def f(a):
        return tape.stop_gradient(a) * a + a * a * 0 + a

    assert WAYS[way](f, jnp.float32(0.5)) == jax.grad(lambda a: jax.lax.stop_gradient(a) * a + a * a * 0 + a)(0.5)
