"""A tape autograd for JAX: define-by-run at the speed of jit."""

from __future__ import annotations

from tape import errors, rules
from tape.differentiation import backward, gradients
from tape.modes import eager, enable_grad, no_grad, set_grad_enabled
from tape.statistics import stats
from tape.variable import Variable, constant

__all__ = [
    "Variable",
    "backward",
    "constant",
    "eager",
    "enable_grad",
    "errors",
    "gradients",
    "no_grad",
    "rules",
    "set_grad_enabled",
    "stats",
]
__version__ = "0.1.0"
