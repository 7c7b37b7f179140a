"""Transforms with JAX's signatures over the tape: plain arrays in, plain arrays out; Variables in, Variables out."""

from __future__ import annotations

from tape.transforms.first_order import grad, linearize, value_and_grad, vjp
from tape.transforms.jacobians import hessian, hvp, jacfwd, jacobian, jacrev, jvp
from tape.transforms.mapping import vmap

__all__ = ["grad", "hessian", "hvp", "jacfwd", "jacobian", "jacrev", "jvp", "linearize", "value_and_grad", "vjp", "vmap"]
