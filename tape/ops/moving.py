"""Moving: kernels that only put values elsewhere (stack, concatenate, split, and their VJPs), run on the host as long as they are new.

XLA compiles a program with sixty results or arguments in a second, and one for each length of a list.  NumPy moves as many rows in the time
of one dispatch each, so that a list of ever new length waits for no compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tape import jaxapi
from tape.configuration import checks_results
from tape.ops.building import is_number
from tape.ops.linear import flatten

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tape.graph.wengert import Source, WengertList
    from tape.jaxapi import ClosedJaxpr
    from tape.ops.linear import Equation

__all__ = ["mover", "moving_at_first"]

_MANY = 6  # arguments and results together; fewer are compiled quickly
_BYTES = 1 << 24  # what is bigger is not brought to the host
_RUNS = 64  # on the host; after them a kernel is worth its compilation


def _broadcast_in_dim(x: Any, *, shape: Sequence[int], broadcast_dimensions: Sequence[int], **_: Any) -> Any:
    sizes = [1] * len(shape)
    for d, n in zip(broadcast_dimensions, x.shape, strict=True):
        sizes[d] = n
    return np.broadcast_to(x.reshape(sizes), shape)


def _slice(x: Any, *, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None, **_: Any) -> Any:
    return x[tuple(map(slice, start_indices, limit_indices, strides or (1,) * x.ndim))]


def _reshape(x: Any, *, new_sizes: Sequence[int], dimensions: Sequence[int] | None, **_: Any) -> Any:
    return (x if dimensions is None else x.transpose(dimensions)).reshape(new_sizes)


def _split(x: Any, *, sizes: Sequence[int], axis: int, **_: Any) -> Any:
    return np.split(x, np.cumsum(sizes)[:-1], axis)


_NAMED: dict[str, Callable[..., Any]] = {
    "add": lambda x, y, **_: np.add(x, y),
    "add_any": lambda x, y, **_: np.add(x, y),
    "broadcast_in_dim": _broadcast_in_dim,
    "concatenate": lambda *xs, dimension, **_: np.concatenate(xs, dimension),
    "convert_element_type": lambda x, **_: x,
    "copy": lambda x, **_: x,
    "reshape": _reshape,
    "slice": _slice,
    "split": _split,
    "squeeze": lambda x, *, dimensions, **_: np.squeeze(x, tuple(dimensions)),
    "stack": lambda *xs, axis, **_: np.stack(xs, axis),
    "transpose": lambda x, *, permutation, **_: x.transpose(permutation),
    "unstack": lambda x, *, axis, **_: list(np.moveaxis(x, axis, 0)),
}
_ON_HOST = {jaxapi.primitive(name): run for name, run in _NAMED.items()}


def mover(closed: ClosedJaxpr) -> Callable[[Sequence[Any]], list[Any] | None] | None:
    """Return what runs a jaxpr on the host, or says by None that the values are not for it; None for a jaxpr that does more than move values."""
    avals = [*closed.in_avals, *closed.out_avals]
    if (
        len(avals) < _MANY
        or closed.effects
        or any(a.weak_type for a in closed.out_avals)
        or not all(map(_plain, avals))
        or sum(a.size * a.dtype.itemsize for a in avals) > _BYTES
    ):
        return None
    listed = flatten(closed)
    for entry in listed.entries:
        dtypes = {listed.aval(s).dtype for s in (*entry.inputs, *entry.slots)}
        if entry.primitive not in _ON_HOST or len(dtypes) > 1:  # a conversion is the compiler's
            return None
    inputs = [a.dtype for a in closed.in_avals]
    results = [a.dtype for a in closed.out_avals]

    def run(values: Sequence[Any]) -> list[Any] | None:
        place = _place(values)
        if place is None or checks_results():
            return None
        hosted = [np.asarray(x, dtype) for x, dtype in zip(values, inputs, strict=True)]
        with np.errstate(all="ignore"):  # sums of cotangents overflow without a word, as compiled ones do
            moved = _moved(listed, hosted)
        found = [np.array(x, dtype, order="C") for x, dtype in zip(moved, results, strict=True)]
        return list(jax.device_put(found, place[0]))

    return run


def moving_at_first(
    moved: Callable[[Sequence[Any]], Sequence[Any] | None] | None, compiled: Callable[..., Sequence[Any]]
) -> Callable[..., Sequence[Any]]:
    """Return what runs on the host at first, if it can, and compiled later."""
    if moved is None:
        return compiled
    left = _RUNS

    def run(*args: Any) -> Sequence[Any]:
        nonlocal left
        if left:
            left -= 1
            found = moved(args)
            if found is not None:
                return found
        return compiled(*args)

    return run


def _plain(aval: Any) -> bool:
    """Tell whether NumPy holds such values."""
    return isinstance(aval.dtype, np.dtype) and aval.dtype != jaxapi.float0


def _place(values: Sequence[Any]) -> tuple[Any] | None:
    """Return where results belong (None: where JAX puts what is bound to no device); None where that is not one device."""
    found: Any = None
    for x in values:
        if is_number(x):
            continue
        if not isinstance(x, jax.Array) or isinstance(x, jaxapi.Tracer) or not isinstance(x.sharding, jax.sharding.SingleDeviceSharding):
            return None
        if x.committed:
            if found is not None and found != x.sharding:
                return None
            found = x.sharding
    return (found,)


def _moved(listed: WengertList[Equation], values: Sequence[Any]) -> list[Any]:
    """Run the entries on the host."""
    slots: list[Any] = [*values, *[None] * (len(listed.avals) - len(values))]

    def read(source: Source) -> Any:
        return slots[source] if isinstance(source, int) else np.asarray(source.value, source.aval.dtype)

    for entry in listed.entries:
        found = _ON_HOST[entry.primitive](*map(read, entry.inputs), **entry.params)
        for slot, value in zip(entry.slots, found if entry.primitive.multiple_results else (found,), strict=True):
            slots[slot] = value
    return [read(source) for source in listed.outputs]
