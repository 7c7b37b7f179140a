"""Cholesky factors and triangular systems in NumPy: what :mod:`tape.ops.host` says of an equation, for these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Host = Any
Maker = Callable[[dict[str, Any], Sequence[Any], Sequence[Any]], Callable[..., Host] | None]

_CALL = 1e4  # nanoseconds of LAPACK's, whatever the size
_ROW = 2.5e3  # and of a row of a system, which is a product and a quotient here
_FLOPS = 4.0  # that NumPy does in a nanosecond where it takes row by row


def cholesky(dtypes: frozenset[Any]) -> Maker:
    """Return the maker of the function for an equation that factorises matrices of these dtypes.

    NumPy asks the same function of LAPACK as JAX does, but raises where a matrix is not positive definite: that one has no number then.
    """

    def run(x: Host) -> Host:
        try:
            return np.linalg.cholesky(x)
        except np.linalg.LinAlgError:
            return np.full_like(x, np.nan) if x.ndim == 2 else np.stack([run(one) for one in x])

    return lambda _, ins, __: run if ins[0].dtype in dtypes else None


def triangular_solve(dtypes: frozenset[Any]) -> Maker:
    """Return the maker of the function for an equation that solves triangular systems of these dtypes, by substitution, row by row."""

    def make(p: dict[str, Any], ins: Sequence[Any], _: Sequence[Any]) -> Callable[..., Host] | None:
        left, turned, unit = p["left_side"], p["transpose_a"], p["unit_diagonal"]
        matrix, given = ins
        if matrix.dtype not in dtypes or given.dtype != matrix.dtype:
            return None
        n = matrix.shape[-1]
        upwards = p["lower"] == (turned == left)  # the last row is the one with a single unknown
        product = np.ndarray.dot if matrix.ndim == 2 else np.matmul

        def run(a: Host, b: Host) -> Host:
            if turned == left:
                a = a.swapaxes(-1, -2)
            x = np.array(b if left else b.swapaxes(-1, -2), order="C")
            for i in range(n - 1, -1, -1) if upwards else range(n):
                known = slice(i + 1, n) if upwards else slice(0, i)
                row = x[..., i : i + 1, :]
                if known.start < known.stop:
                    row -= product(a[..., i : i + 1, known], x[..., known, :])
                if not unit:
                    row /= a[..., i : i + 1, i : i + 1]
            return x if left else x.swapaxes(-1, -2)

        return run

    return make


def cost(name: str, ins: Sequence[Any]) -> float:
    """Return about how many nanoseconds an equation of such a primitive needs, nothing for others."""
    if name not in ("cholesky", "triangular_solve"):
        return 0.0
    n, size = float(ins[0].shape[-1]), float(ins[-1].size)
    if name == "cholesky":
        return size / max(n, 1.0) ** 2 * (_CALL + n**3 / (3 * _FLOPS))
    return n * (_ROW + size / (2 * _FLOPS))
