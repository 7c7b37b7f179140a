"""Writing a planned sweep where part of it is traced by JAX."""

import jax
import jax.numpy as jnp
import numpy as np

import tape
import tape.numpy as tnp


def test_a_replayed_sweep_is_swept_with_a_traced_seed():
    """The values inside a replayed sweep have no Variables; a traced cotangent makes the tape look at them all the same."""
    w = tape.Variable(jnp.arange(1.0, 4.0))

    def twice(s):
        y = (tnp.sin(w) * w * w).sum()
        g = tape.gradients(y, w, create_graph=True)
        return tape.gradients((g * g).sum(), w, s).value

    expected = 2.0 * jax.grad(lambda v: (jax.grad(lambda u: (jnp.sin(u) * u * u).sum())(v) ** 2).sum())(w.value)
    for _ in range(3):
        np.testing.assert_allclose(jax.jit(lambda s: twice(s))(2.0), expected, rtol=1e-5)
        np.testing.assert_allclose(twice(2.0), expected, rtol=1e-5)
