"""Gather, the scatters that combine, and what sorts, in NumPy: what :mod:`tape.ops.host` says of an equation, for these.

Places are numbers on one axis: NumPy takes from there, and adds there, in a tenth of the time that indices for each axis need.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

Host = Any
Maker = Callable[[dict[str, Any], Sequence[Any], Sequence[Any]], Callable[..., list[Host]] | None]
_MODE = lax.GatherScatterMode


class _Windows:
    """Windows of an array: ``mapped`` are the axes on which indices say where they begin, ``dropped`` those of length 1 that go.

    The last axes, which are whole in each window, may be left ``together``: then rows have numbers, else elements.
    """

    def __init__(
        self, shape: Sequence[int], sizes: Sequence[int], mapped: Sequence[int], dropped: Sequence[int], *, together: bool
    ) -> None:
        parted = [d for d, n in enumerate(shape) if not together or d in mapped or d in dropped or sizes[d] < n]
        axes = range(max(parted, default=-1) + 1)
        self.rows = (-1, *shape[len(axes) :])
        steps = [math.prod(shape[d + 1 : len(axes)]) for d in axes]
        self._mapped = [(shape[d] - sizes[d], steps[d]) for d in mapped]
        self._inside = np.zeros((), np.intp)
        for d in axes:
            if d not in dropped:
                self._inside = self._inside[..., None] + np.arange(sizes[d]) * steps[d]
        self._further = (..., *[None] * self._inside.ndim)

    def numbers(self, indices: Host) -> tuple[Host, Host | None]:
        """Return the numbers of what is in all windows, batch axes first, and which of these fit; None where all do: others are moved."""
        first: Host = np.zeros(indices.shape[:-1], np.intp)
        fitting = None
        for k, (last, step) in enumerate(self._mapped):
            starts = indices[..., k].astype(np.intp)
            fits = starts.view(np.uintp) <= last
            if not fits.all():
                starts = np.minimum(np.maximum(starts, 0), last)
                fitting = fits if fitting is None else fitting & fits
            first = first + starts * step
        return first[self._further] + self._inside, fitting


def gather(p: dict[str, Any], ins: Sequence[Any], outs: Sequence[Any]) -> Callable[..., Host] | None:
    """Return the function for an equation of ``gather``."""
    numbers, mode, fill = p["dimension_numbers"], p["mode"], p["fill_value"]
    x, dtype = ins[0], outs[0].dtype
    fills = mode == _MODE.FILL_OR_DROP
    if numbers.operand_batching_dims or mode == _MODE.ONE_HOT or (fills and fill is None and dtype not in (np.float32, np.float64)):
        return None
    n_batch = ins[1].ndim - 1
    windows = _Windows(x.shape, p["slice_sizes"], numbers.start_index_map, numbers.collapsed_slice_dims, together=True)
    value: Any = dtype.type(np.nan if fill is None else fill) if fills else None
    offsets = list(numbers.offset_dims)
    batches = [d for d in range(outs[0].ndim) if d not in offsets]
    order = [batches.index(d) if d in batches else n_batch + offsets.index(d) for d in range(outs[0].ndim)]
    further = (..., *[None] * len(offsets))

    def run(x: Host, indices: Host) -> Host:
        places, fitting = windows.numbers(indices)
        gathered = x.reshape(windows.rows).take(places, 0)
        return (gathered if fitting is None or not fills else np.where(fitting[further], gathered, value)).transpose(order)

    return run


def put(line: Host, places: Host, values: Host) -> None:
    """Put values at places of an array, the last ones where several come to one."""
    line[places] = values


def scatter(combine: Callable[[Host, Host, Host], None], dtypes: frozenset[Any]) -> Callable[..., Callable[..., Host] | None]:
    """Return the maker of the function for an equation that scatters arrays of these dtypes.

    ``combine`` changes an array of one axis at places, each by its value: ``ufunc.at``, or :func:`put`.
    """

    def make(p: dict[str, Any], ins: Sequence[Any], __: Sequence[Any]) -> Callable[..., Host] | None:
        numbers, mode = p["dimension_numbers"], p["mode"]
        x, _, updates = ins
        if numbers.operand_batching_dims or mode == _MODE.ONE_HOT or x.dtype not in dtypes:
            return None
        window = list(numbers.update_window_dims)
        batches = [d for d in range(updates.ndim) if d not in window]
        lengths = iter([updates.shape[d] for d in window])
        sizes = [1 if d in numbers.inserted_window_dims else next(lengths) for d in range(x.ndim)]
        windows = _Windows(x.shape, sizes, numbers.scatter_dims_to_operand_dims, numbers.inserted_window_dims, together=False)
        order, drops = [*batches, *window], mode == _MODE.FILL_OR_DROP

        def run(x: Host, indices: Host, updates: Host) -> Host:
            places, fitting = windows.numbers(indices)
            terms = updates.transpose(order)
            if fitting is not None and drops:
                places, terms = places[fitting], terms[fitting]
            total = np.array(x, order="C")
            combine(total.reshape(-1), places.reshape(-1), terms.reshape(-1))
            return total

        return run

    return make


def sort(dtypes: frozenset[Any]) -> Maker:
    """Return the maker of the function for an equation that sorts arrays by the first of them, which is of these dtypes."""

    def make(p: dict[str, Any], ins: Sequence[Any], _: Sequence[Any]) -> Callable[..., list[Host]] | None:
        axis = p["dimension"]

        def run(*operands: Host) -> list[Host]:
            if len(operands) == 1:
                return [np.sort(operands[0], axis, kind="stable")]
            places = np.argsort(operands[0], axis, kind="stable")
            return [np.take_along_axis(x, places, axis) for x in operands]

        return run if p["num_keys"] == 1 and ins[0].dtype in dtypes else None

    return make


def top_k(dtypes: frozenset[Any]) -> Maker:
    """Return the maker of the function for an equation that takes the largest of the last axis of an array of these dtypes of floats."""

    def make(p: dict[str, Any], ins: Sequence[Any], outs: Sequence[Any]) -> Callable[..., list[Host]] | None:
        x = ins[0]
        if x.dtype not in dtypes or p.get("axis", x.ndim - 1) != x.ndim - 1:
            return None
        k, dtype, bits = p["k"], outs[1].dtype, np.dtype(f"i{x.dtype.itemsize}")
        most = np.iinfo(bits).max

        def run(x: Host) -> list[Host]:
            if np.isnan(x).any():
                raise ValueError("XLA takes what is no number for the largest")
            number = np.asarray(x).view(bits)  # in the order of floats, where -0 is before 0: of negative ones the other bits are inverted
            places = np.argsort(~np.where(number < 0, number ^ most, number), -1, kind="stable")[..., :k]
            return [np.take_along_axis(x, places, -1), places.astype(dtype)]

        return run

    return make
