"""Where the elementary functions are more exact than JAX's derivatives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import differences, own_vjp, project


@pytest.mark.parametrize("z", [-2 + 1j, -2 - 1j, 2 + 1j, 0.5 - 1j, -0.5 + 0.5j])
def test_acosh_follows_the_principal_branch_in_the_whole_plane(z):
    with jax.enable_x64(True):
        args, cts, directions = [jnp.array([z])], [jnp.array([1 - 0.5j])], [jnp.array([0.3 + 0.8j])]
        numeric, _ = differences(lambda v: (jax.lax.acosh(v),), args, cts, directions)
        slopes, _ = project(own_vjp(lambda v: (jax.lax.acosh(v),), args, cts), directions)
        np.testing.assert_allclose(slopes, numeric, rtol=1e-8)


def test_expm1_keeps_its_slope_far_to_the_left():
    (own,) = own_vjp(lambda x: (jax.lax.expm1(x),), (jnp.float32(-40),), (jnp.float32(1),))
    np.testing.assert_allclose(own, np.exp(-40.0), rtol=1e-5)


def test_acosh_of_a_large_half_precision_number_does_not_overflow():
    (own,) = own_vjp(lambda x: (jax.lax.acosh(x),), (jnp.float16(1000),), (jnp.float16(1),))
    np.testing.assert_allclose(np.float32(own), 1e-3, rtol=1e-2)
