"""What an optimizer is given to train, and by what: checked before anything of it is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import tape
from interop.parameter_groups import PARAMS
from tape import extend
from tape.errors import TapeTypeError, TapeValueError


def check_trained(parameters: Any, leaves: Sequence[Any], transformation: Any) -> None:
    """Raise where ``leaves`` (of the pytree ``parameters``) are not different leaves that require grad, or optax made no transformation."""
    if _transforms(parameters):
        msg = "Optimizer: got a transformation where parameters stand; write Optimizer(parameters, transformation)"
        raise TapeTypeError(msg)
    seen: set[int] = set()
    for i, p in enumerate(leaves):
        if not isinstance(p, tape.Variable):
            msg = f"Optimizer: parameter {i} must be a tape.Variable, got {type(p).__name__}; {_repair(parameters, p)}"
            raise TapeTypeError(msg)
        if not (p.requires_grad and p.is_leaf):
            advice = "leave it out, or call its requires_grad_() (should it be frozen again afterwards, steps skip it)"
            msg = (
                f"Optimizer: parameter {i} ({extend.describe(p)}) must be a leaf that requires grad; "
                f"{advice if p.is_leaf else 'pass the Variable that was made first'}"
            )
            raise TapeValueError(msg)
        if id(p) in seen:
            msg = f"Optimizer: parameter {i} ({extend.describe(p)}) is given twice"
            raise TapeValueError(msg)
        seen.add(id(p))
    if not _transforms(transformation):
        repair = "call it, as in optax.adam(1e-3)" if callable(transformation) else "pass one, such as optax.adam(1e-3)"
        msg = f"Optimizer: transformation must be an optax.GradientTransformation, got {type(transformation).__name__}; {repair}"
        raise TapeTypeError(msg)


def _transforms(given: Any) -> bool:
    return hasattr(given, "init") and hasattr(given, "update")


def _repair(parameters: Any, given: Any) -> str:
    """Say what to write where something stands for a parameter."""
    if isinstance(parameters, list) and any(isinstance(group, dict) and PARAMS in group for group in parameters):
        return "for groups, pass *interop.optax.parameter_groups(groups, optax.sgd, learning_rate=0.1)"
    if hasattr(given, "parameters"):
        return "pass its parameters()"
    if isinstance(given, str):
        return "for names and Variables in turn, pass dict(named)"
    if isinstance(given, (jax.Array, np.ndarray, np.generic, float, int, complex)):
        return "wrap it with tape.Variable"
    return "pass the Variables in it, in a list or a dictionary"
