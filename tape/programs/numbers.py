"""Numbers as arguments of compiled programs: each is put on the device once, whatever the number of its uses.

To pass a number of Python or NumPy costs as much as recording three entries, to pass an array a sixth of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tape.bounded import Bounded
from tape.graph.scalars import is_scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tape.configuration import Configuration

__all__ = ["on_device"]

# What is on the device: by the settings of JAX (which decide on dtype and device), by type, by value.
_ARRAYS: dict[Configuration, dict[type, Bounded[Any, jax.Array]]] = {}

_put = jax.jit(lambda x: x)


def on_device(program: Callable[..., Any], leaves: Sequence[Any], settings: Configuration) -> Callable[..., Any]:
    """Return ``program`` for arguments like ``leaves``, with the numbers among them given as arrays.

    It is ``program`` itself where there are none, or where an array is bound to a device: that one would be copied there at each call.
    """
    positions = [i for i, x in enumerate(leaves) if is_scalar(x) and not np.iscomplexobj(x)]  # of equal complex ones a zero may be negative
    if not positions or any(isinstance(x, jax.Array) and x.committed for x in leaves):
        return program
    tables = _ARRAYS.setdefault(settings, {})

    def run(*given: Any) -> Any:
        arguments = list(given)
        for i in positions:
            value = arguments[i]
            table = tables.get(value.__class__)
            found = None if table is None else table.get(value or repr(value))  # 0.0 and -0.0 are equal
            arguments[i] = _added(tables, value) if found is None else found
        return program(*arguments)

    return run


def _added(tables: dict[type, Bounded[Any, jax.Array]], value: Any) -> Any:
    """Put a number on the device; another value is returned as it is."""
    if not is_scalar(value):
        return value
    table = tables.get(value.__class__)
    if table is None:
        table = tables.setdefault(value.__class__, Bounded("numbers", 1 << 14))
    found = table[value or repr(value)] = _put(value)
    return found
