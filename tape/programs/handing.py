"""Handing: values of NumPy become JAX's arrays, by a program of their shape once that has come often."""

from __future__ import annotations

from typing import Any

import jax

from tape.bounded import Bounded
from tape.ops import hosting
from tape.ops.hosting import Host
from tape.programs import background

_OFTEN = 32  # values of a shape, at 30 to 100 us; then a program, compiled in 7 ms, will hand them on in 6 us

_SEEN: Bounded[Any, int | background.Job] = Bounded("transfers", 4096)  # how many there were, or what compiles their program
_put = jax.jit(lambda x: x)


def to_jax(value: Any, aval: Any) -> jax.Array:
    """Return JAX's array of a value; as :func:`tape.ops.hosting.to_jax`."""
    return hosting.to_jax(value, aval, _handed)


def _handed(array: Host) -> jax.Array:
    key = (array.shape, array.dtype)
    seen = _SEEN.get(key, 0)
    if isinstance(seen, background.Job):
        if seen.made and not seen.lost:
            return _put(array)  # type: ignore[no-any-return]
    elif seen < _OFTEN:
        _SEEN[key] = seen + 1
    else:  # not here: that would wait for what is being compiled there
        _SEEN[key] = background.compiling(_put, [array])
    return jax.device_put(array)  # type: ignore[no-any-return]
