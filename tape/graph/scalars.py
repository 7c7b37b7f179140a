"""Scalars: numbers of Python (weakly typed) and NumPy (of their dtypes) as inputs of entries.

Each place of use is an input of its own, whatever the number: two that happen to be equal would otherwise be one input, and the tape another
structure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tape import errors
from tape.graph.kinds import kind_of
from tape.jaxapi import X64

if TYPE_CHECKING:
    from tape.graph.kinds import Kind

__all__ = ["KINDS", "NUMBERS", "SMALL", "WIDER", "is_scalar", "scalar_kind"]

NUMBERS = frozenset({bool, int, float, complex})

# By type, without and with 64-bit types.
KINDS: tuple[dict[type, Kind], dict[type, Kind]] = ({}, {})

WIDER = "pass a float, or have 64-bit integers by jax.config.update('jax_enable_x64', True)"
SMALL = 2**31  # smaller integers always fit


def is_scalar(value: Any) -> bool:
    """Tell whether a value is a number of Python or NumPy, not an array: the same wherever it is met."""
    return value.__class__ in NUMBERS or isinstance(value, np.generic)


def scalar_kind(value: Any) -> Kind:
    """Return the kind of a scalar.

    Raises:
        TapeOverflowError: a Python integer that the default integer type does not hold.
        TypeError: JAX makes no array of the value.

    """
    x64 = X64.value
    if isinstance(value, int) and not -SMALL <= value < SMALL:
        bits = 64 if x64 else 32
        if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            msg = f"Python integer {value} is out of bounds for int{bits}; {WIDER}"
            raise errors.TapeOverflowError(msg)
    kinds = KINDS[x64]
    found = kinds.get(value.__class__)
    if found is None:
        found = kinds[value.__class__] = kind_of(jax.typeof(value))
    return found
