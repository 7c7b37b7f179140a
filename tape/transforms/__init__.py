"""Transforms with JAX's signatures over the tape: plain arrays in, plain arrays out; Variables in, Variables out."""

from __future__ import annotations

from tape.transforms.forward import jvp, linearize
from tape.transforms.jacobians import hessian, hvp, jacfwd, jacobian, jacrev
from tape.transforms.mapping import vmap
from tape.transforms.reverse import grad, value_and_grad, vjp

__all__ = ["grad", "hessian", "hvp", "jacfwd", "jacobian", "jacrev", "jvp", "linearize", "value_and_grad", "vjp", "vmap"]
