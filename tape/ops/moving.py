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

_MANY = 6  # arguments and results together; fewer are compiled quickly
_BYTES = 1 << 24  # what is bigger is not brought to the host
_RUNS = 64  # on the host; after them a kernel is worth its compilation

Host = np.ndarray[Any, Any]


def _broadcast_in_dim(x: Host, *, shape: Sequence[int], broadcast_dimensions: Sequence[int], **_: object) -> Host:
    sizes = [1] * len(shape)
    for d, n in zip(broadcast_dimensions, x.shape, strict=True):
        sizes[d] = n
    return np.broadcast_to(x.reshape(sizes), shape)


def _slice(x: Host, *, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None, **_: object) -> Host:
    return x[tuple(map(slice, start_indices, limit_indices, strides or (1,) * x.ndim))]


def _reshape(x: Host, *, new_sizes: Sequence[int], dimensions: Sequence[int] | None, **_: object) -> Host:
    return (x if dimensions is None else x.transpose(dimensions)).reshape(new_sizes)


def _split(x: Host, *, sizes: Sequence[int], axis: int, **_: object) -> list[Host]:
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
    """Return what runs a jaxpr on the host, or says by None that the values are not for it; None for one that does more than move values."""
    inputs, results = closed.in_avals, closed.out_avals
    avals = [*inputs, *results]
    if len(avals) < _MANY or closed.effects or any(a.weak_type for a in results):
        return None
    if (
        not all(isinstance(a.dtype, np.dtype) and a.dtype != jaxapi.float0 for a in avals)
        or sum(a.size * a.dtype.itemsize for a in avals) > _BYTES
    ):
        return None
    listed = flatten(closed)
    for entry in listed.entries:
        dtypes = {listed.aval(s).dtype for s in (*entry.inputs, *entry.slots)}
        if entry.primitive not in _ON_HOST or len(dtypes) > 1:  # a conversion is the compiler's
            return None

    def run(values: Sequence[Any]) -> list[Any] | None:
        place = _place(values)
        if place is None or checks_results():
            return None
        hosted = [np.asarray(x, a.dtype) for x, a in zip(values, inputs, strict=True)]
        with np.errstate(all="ignore"):  # sums of cotangents overflow without a word, as compiled ones do
            moved = _moved(listed, hosted)
        return list(jax.device_put([np.array(x, a.dtype, order="C") for x, a in zip(moved, results, strict=True)], *place))

    return run


def moving_at_first(closed: ClosedJaxpr, compiled: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """Return what runs a jaxpr on the host at first, if it can, and compiled later."""
    moved = mover(closed)
    if moved is None:
        return compiled
    left = _RUNS

    def run(*args: object) -> Sequence[Any]:
        nonlocal left
        left -= 1
        results = moved(args) if left >= 0 else None
        return compiled(*args) if results is None else results

    return run


def _place(values: Sequence[Any]) -> list[jax.sharding.Sharding] | None:
    """Return where results belong (nowhere in particular if nothing is bound to a device), None where that is not one device."""
    arrays = [x for x in values if not is_number(x)]
    for x in arrays:
        if not isinstance(x, jax.Array) or isinstance(x, jaxapi.Tracer) or not isinstance(x.sharding, jax.sharding.SingleDeviceSharding):
            return None
    places = {x.sharding for x in arrays if x.committed}
    return list(places) if len(places) < 2 else None


def _moved(listed: WengertList[Equation], values: Sequence[Any]) -> list[Any]:
    """Run the entries on the host."""
    slots: dict[int, Any] = dict(enumerate(values))

    def read(source: Source) -> Host:
        return slots[source] if isinstance(source, int) else np.asarray(source.value, source.aval.dtype)

    for entry in listed.entries:
        results = _ON_HOST[entry.primitive](*map(read, entry.inputs), **entry.params)
        slots.update(zip(entry.slots, results if entry.primitive.multiple_results else (results,), strict=True))
    return [read(source) for source in listed.outputs]
