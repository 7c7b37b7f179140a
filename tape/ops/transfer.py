"""Transfers: between JAX's arrays and NumPy's, where both are in the host's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tape import jaxapi
from tape.ops.building import is_number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Host = np.ndarray[Any, Any]
Place = list[jax.sharding.Sharding]  # where results are bound to: nowhere in particular, or one device

_put = jax.jit(lambda x: x)


def place_of(values: Sequence[Any]) -> Place | None:
    """Return where results of these values belong, None where that is not one device."""
    arrays = [x for x in values if not is_number(x)]
    for x in arrays:
        if not isinstance(x, jax.Array) or isinstance(x, jaxapi.Tracer) or not isinstance(x.sharding, jax.sharding.SingleDeviceSharding):
            return None
    places = {x.sharding for x in arrays if x.committed}
    return list(places) if len(places) < 2 else None


def to_jax(value: Any, aval: Any, put: Callable[[Host], jax.Array] = jax.device_put) -> jax.Array:
    """Return JAX's array of a value of NumPy, which shares no memory with it: one more user could have it overwritten by donation."""
    if aval.weak_type:  # a number: only one of Python is such
        return _put(value.item())  # type: ignore[no-any-return]
    return put(np.array(value, aval.dtype, order="C"))
