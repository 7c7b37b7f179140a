"""Values as hooks look at them: arrays that are there, or the traced values of a running JAX transformation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from tape.jaxapi import Tracer
from tape.programs.program import look
from tape.variables.conversion import as_array

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["described", "has_values", "norm", "values_of", "wait"]


def values_of(variables: Sequence[Any]) -> list[Any]:
    """Return the arrays of Variables, None for None; what is pending runs."""
    return [None if v is None else as_array(look(v)) for v in variables]


def has_values(values: Sequence[Any]) -> bool:
    """Tell whether none of the arrays is traced."""
    return not any(isinstance(value, Tracer) for value in values)


def wait(variables: Sequence[Any]) -> bool:
    """Wait until the values of Variables are there; return False where they are traced."""
    values = values_of(variables)
    if not has_values(values):
        return False
    jax.block_until_ready(values)
    return True


def norm(value: Any) -> Any:
    """Return the Euclidean norm of an array, or None where it is not made of numbers."""
    if not (jnp.issubdtype(value.dtype, jnp.number) or value.dtype == bool):
        return None
    wide = jnp.abs(value).astype(jnp.promote_types(jnp.float32, jnp.abs(value).dtype if value.dtype != bool else jnp.float32))
    return jnp.sqrt(jnp.sum(wide * wide))


def described(variable: Any) -> str:
    """Return the dtype and shape of a Variable in short: ``float32(3, 4)``."""
    return "None" if variable is None else f"{variable.dtype}{variable.shape}"
