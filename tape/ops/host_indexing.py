"""Gather, and the scatter that adds, in NumPy: what :mod:`tape.ops.host` says of an equation, for these two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

Host = Any
_MODE = lax.GatherScatterMode


class _Windows:
    """Windows of an array: ``mapped`` are the axes on which indices say where they begin, ``dropped`` those of length 1 that go."""

    def __init__(self, shape: Sequence[int], sizes: Sequence[int], mapped: Sequence[int], dropped: Sequence[int], n_batch: int) -> None:
        self._mapped = tuple(mapped)
        kept = [d for d in range(len(shape)) if d not in dropped]
        self._last = np.array([shape[d] - sizes[d] for d in mapped], np.int64)
        self._inside = []
        for d, size in enumerate(sizes):
            at = [1] * (n_batch + len(kept))
            if d in kept:
                at[n_batch + kept.index(d)] = size
            self._inside.append(np.arange(size).reshape(at))
        self._further = (1,) * len(kept)

    def places(self, indices: Host) -> tuple[tuple[Host, ...], Host]:
        """Return the indices of all elements, batch axes first, and which windows lie inside; others are moved to where they do."""
        starts = indices.astype(np.int64)
        moved = np.clip(starts, 0, self._last)
        batch = indices.shape[:-1]
        places = list(self._inside)
        for k, d in enumerate(self._mapped):
            places[d] = places[d] + moved[..., k].reshape(batch + self._further)
        return tuple(places), (starts == moved).all(-1).reshape(batch + self._further)


def gather(p: dict[str, Any], ins: Sequence[Any], outs: Sequence[Any]) -> Callable[..., Host] | None:
    """Return the function for an equation of ``gather``."""
    numbers, mode, fill = p["dimension_numbers"], p["mode"], p["fill_value"]
    x, dtype = ins[0], outs[0].dtype
    fills = mode == _MODE.FILL_OR_DROP
    if numbers.operand_batching_dims or mode == _MODE.ONE_HOT or (fills and fill is None and dtype not in (np.float32, np.float64)):
        return None
    n_batch = ins[1].ndim - 1
    windows = _Windows(x.shape, p["slice_sizes"], numbers.start_index_map, numbers.collapsed_slice_dims, n_batch)
    value: Any = dtype.type(np.nan if fill is None else fill) if fills else None
    offsets = list(numbers.offset_dims)
    batches = [d for d in range(outs[0].ndim) if d not in offsets]
    order = [batches.index(d) if d in batches else n_batch + offsets.index(d) for d in range(outs[0].ndim)]

    def run(x: Host, indices: Host) -> Host:
        places, inside = windows.places(indices)
        gathered = np.asarray(x)[places]
        return (np.where(inside, gathered, value) if fills else gathered).transpose(order)

    return run


def scatter_add(p: dict[str, Any], ins: Sequence[Any], _: Sequence[Any]) -> Callable[..., Host] | None:
    """Return the function for an equation of ``scatter-add``."""
    numbers, mode = p["dimension_numbers"], p["mode"]
    x, indices, updates = ins
    if numbers.operand_batching_dims or mode == _MODE.ONE_HOT or x.dtype not in (np.float32, np.float64):
        return None
    window = list(numbers.update_window_dims)
    batches = [d for d in range(updates.ndim) if d not in window]
    lengths = iter([updates.shape[d] for d in window])
    sizes = [1 if d in numbers.inserted_window_dims else next(lengths) for d in range(x.ndim)]
    windows = _Windows(x.shape, sizes, numbers.scatter_dims_to_operand_dims, numbers.inserted_window_dims, indices.ndim - 1)
    order, drops, zero = [*batches, *window], mode == _MODE.FILL_OR_DROP, x.dtype.type(0)

    def run(x: Host, indices: Host, updates: Host) -> Host:
        places, inside = windows.places(indices)
        terms = updates.transpose(order)
        total = np.array(x)
        np.add.at(total, places, np.where(inside, terms, zero) if drops else terms)
        return total

    return run
