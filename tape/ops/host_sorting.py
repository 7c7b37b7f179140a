"""Sorting, and the largest of an axis, in NumPy: what :mod:`tape.ops.host` says of an equation, for these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Host = Any
Maker = Callable[[dict[str, Any], Sequence[Any], Sequence[Any]], Callable[..., list[Host]] | None]


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
