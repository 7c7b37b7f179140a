"""Values of NumPy become arrays of JAX: by a program of their shape when that comes often, which no run compiles itself."""

import jax
import jax.numpy as jnp
import numpy as np

from tape.programs import handing
from tests import idle

SHAPE = (3, 107)


def test_a_program_of_a_shape_is_compiled_in_the_background(monkeypatch):
    called = []
    put = handing._put

    class Put:
        lower = staticmethod(put.lower)

        def __call__(self, x):
            called.append(x)
            return put(x)

    monkeypatch.setattr(handing, "_put", Put())
    aval, value = jax.typeof(jnp.zeros(SHAPE)), np.ones(SHAPE, np.float32)
    for _ in range(handing._OFTEN + 1):
        handing.to_jax(value, aval)
    assert not called
    idle.settle()
    made = handing.to_jax(value, aval)
    assert len(called) == 1
    value[:] = 2.0
    np.testing.assert_array_equal(made, np.ones(SHAPE))
    assert (made.dtype, made.weak_type, made.committed) == (jnp.float32, False, False)
