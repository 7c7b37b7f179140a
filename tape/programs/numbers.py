"""Numbers as arguments of compiled programs: each is put on the device once, whatever the number of its uses.

To pass a number of Python or NumPy costs as much as recording three entries, to pass an array a sixth of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tape.bounded import Bounded
from tape.graph.kinds import NUMBERS, is_scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from tape.configuration import Configuration

# By the settings of JAX, of which each is one object (they decide on dtype and device), by type and value.
_ARRAYS: Bounded[Hashable, jax.Array] = Bounded("numbers", 1 << 14)

_put = jax.jit(lambda x: x)


def on_device(program: Callable[..., Sequence[Any]], leaves: Sequence[Any], settings: Configuration) -> Callable[..., Sequence[Any]]:
    """Return ``program`` for arguments like ``leaves``, with the numbers among them given as arrays.

    It is ``program`` itself where there are none, or where an array is bound to a device: that one would be copied there at each call.
    """
    positions = [i for i, x in enumerate(leaves) if is_scalar(x) and not np.iscomplexobj(x)]  # of equal complex ones a zero may be negative
    if not positions or any(isinstance(x, jax.Array) and x.committed for x in leaves):
        return program
    number, known = id(settings), _ARRAYS.get

    def run(*given: object) -> Sequence[Any]:
        arguments = list(given)
        for i in positions:
            value = arguments[i]
            kind = value.__class__
            if kind in NUMBERS or is_scalar(value):
                key = (number, kind, value or repr(value))  # 0.0 and -0.0 are equal
                array = known(key)
                if array is None:
                    array = _ARRAYS[key] = _put(value)
                arguments[i] = array
        return program(*arguments)

    return run
