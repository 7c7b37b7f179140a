"""Special functions: arguments without a closed derivative are refused, never passed over in silence."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
from jax import lax
from oracles import own_vjp

from tape.errors import RuleError

HALF, TWO, THREE = (jnp.full((2,), v) for v in (0.5, 2.0, 3.0))


@pytest.mark.parametrize(
    ("fun", "args"),
    [
        (lax.zeta, (TWO, THREE)),
        (lax.polygamma, (TWO, THREE)),
        (lax.igamma_grad_a, (TWO, THREE)),
        (lax.betainc, (TWO, THREE, HALF)),
    ],
    ids=["zeta", "polygamma", "igamma_grad_a", "regularized_incomplete_beta"],
)
def test_derivative_without_a_closed_form_is_refused(request, fun, args):
    with pytest.raises(RuleError, match=f"{request.node.callspec.id}: .*not implemented; hold .* fixed with lax.stop_gradient"):
        own_vjp(lambda *a: (fun(*a),), args, (jnp.ones(2),))
