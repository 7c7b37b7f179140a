"""What rules may assume of a primitive's parameters holds in whichever JAX release is installed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tape import jaxapi
from tape.rules import parameters

SCAN = jaxapi.primitives.scan_p


def loop(consts, carry, xs, ys):
    """The equation of a loop with so many constants, carries, inputs and stacked outputs, and values for its inputs."""
    n = consts + carry + xs
    values = [jnp.asarray(0.1 * (i + 1)) if i < consts + carry else jnp.arange(3.0) + i for i in range(n)]

    def fun(*inputs):
        def body(state, x):
            total = sum([*inputs[:consts], *state, *x], 1.0)
            return [jnp.sin(total) * s for s in state], [total * (i + 1) for i in range(ys)]

        return jax.lax.scan(body, list(inputs[consts : consts + carry]), list(inputs[consts + carry :]), length=3, reverse=True, unroll=3)

    (eqn,) = [eqn for eqn in jax.make_jaxpr(fun)(*values).eqns if eqn.primitive is SCAN]
    return eqn, values


@pytest.mark.parametrize("counts", [(2, 1, 1, 1), (0, 2, 0, 1), (1, 0, 2, 3), (0, 1, 1, 0)])
def test_a_loop_is_what_rules_assume(counts):
    eqn, values = loop(*counts)
    found = parameters.assumed(SCAN, eqn.params)
    assert {key: found[key] for key in ("num_consts", "num_carry", "length", "reverse", "unroll")} == {
        "num_consts": counts[0],
        "num_carry": counts[1],
        "length": 3,
        "reverse": True,
        "unroll": 3,
    }
    assert isinstance(found["jaxpr"], jaxapi.ClosedJaxpr)
    native = parameters.native(SCAN, found)
    assert set(native) == set(eqn.params)
    expected = jaxapi.bind(SCAN, eqn.params, values)
    for params in (found, native, eqn.params):
        for a, b in zip(parameters.bind(SCAN, params, values), expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_loop_may_be_given_other_counts():
    eqn, values = loop(2, 1, 1, 1)
    found = parameters.assumed(SCAN, eqn.params)
    body = found["jaxpr"].jaxpr
    wider = jaxapi.ClosedJaxpr(jaxapi.Jaxpr([], body.invars, [*body.outvars, body.invars[2]], body.eqns, body.effects, body.debug_info), [])
    with jax.disable_jit():
        parameters._loop.cache_clear()
        params = parameters.native(SCAN, {**found, "jaxpr": wider})
    *known, carries = jax.jit(lambda *inputs: jaxapi.bind(SCAN, params, inputs))(*values)
    for a, b in zip(known, jaxapi.bind(SCAN, eqn.params, values), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert carries.shape == (3,)
    assert float(carries[-1]) == float(values[2])  # reversed: the last step is the first


def test_other_primitives_keep_their_parameters():
    params = {"num_consts": 1, "num_carry": 1}
    assert parameters.assumed(jaxapi.primitives.sin_p, params) is params
    assert parameters.native(jaxapi.primitives.sin_p, params) is params
