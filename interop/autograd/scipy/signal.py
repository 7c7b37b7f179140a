"""``convolve`` over some axes, with others contracted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from interop.autograd.arguments import holds_variables
from interop.autograd.tracing import plain, scope
from tape import lax
from tape import numpy as tnp
from tape.errors import TapeValueError

__all__ = ["convolve"]

Axes = tuple[Sequence[int], Sequence[int]]


def convolve(A: Any, B: Any, axes: Axes | None = None, dot_axes: Axes = ((), ()), mode: str = "full") -> Any:  # noqa: N803
    """Convolve along pairs of axes; contract ``dot_axes``; the result has the other axes of A, those of B, and then the convolved ones.

    Args:
        A: an array.
        B: another one.
        axes: the axes of both to convolve along; all, where there are none.
        dot_axes: the axes of both to sum over.
        mode: "full", "valid" or "same" (of the size of A).

    Raises:
        TapeValueError: the mode is another one, or "valid" where neither array is the larger one along all axes.

    Example:
        >>> import interop.autograd.numpy as np
        >>> from interop.autograd.scipy.signal import convolve
        >>> convolve(np.array([1.0, 2.0, 3.0]), np.array([1.0, -1.0]))
        array([ 1.,  1.,  1., -3.])

    """
    if mode not in {"full", "valid", "same"}:
        msg = f"convolve: mode is 'full', 'valid' or 'same', got {mode!r}"
        raise TapeValueError(msg)
    traced = holds_variables((A, B))
    with scope():
        a, b = tnp.asarray(A), tnp.asarray(B)
        over, summed = axes or (list(range(a.ndim)), list(range(b.ndim))), dot_axes
        result = _convolved(a, b, [[i % x.ndim for i in over[n]] for n, x in enumerate((a, b))], summed, mode)
        return result if traced else plain(result)


def _convolved(a: Any, b: Any, over: Any, summed: Any, mode: str) -> Any:
    summed = [[i % x.ndim for i in summed[n]] for n, x in enumerate((a, b))]
    kept = [[i for i in range(x.ndim) if i not in (*over[n], *summed[n])] for n, x in enumerate((a, b))]
    outer = [tuple(x.shape[i] for i in kept[n]) for n, x in enumerate((a, b))]
    lengths = [tuple(x.shape[i] for i in over[n]) for n, x in enumerate((a, b))]
    features = int(np.prod([a.shape[i] for i in summed[0]], dtype=int))
    a, b = (
        x.transpose(*kept[n], *summed[n], *over[n]).reshape(int(np.prod(outer[n], dtype=int)), features, *lengths[n])
        for n, x in enumerate((a, b))
    )
    if not over[0]:
        return (a @ b.T).reshape(*outer[0], *outer[1])
    pairs = list(zip(*lengths, strict=True))
    small = mode == "valid" and any(n < m for n, m in pairs)
    if small and not all(n <= m for n, m in pairs):
        msg = f"convolve: with mode 'valid' one array must be the larger one along all axes, got lengths {lengths[0]} and {lengths[1]}"
        raise TapeValueError(msg)
    image, kernel = (b, a) if small else (a, b)
    padding = [(0, 0) if mode == "valid" else (k - 1, k - 1) for k in kernel.shape[2:]]
    if mode == "same":
        padding = [(k // 2, (k - 1) // 2) for k in kernel.shape[2:]]
    flipped = tnp.flip(kernel, tuple(range(2, kernel.ndim)))
    result = lax.conv_general_dilated(image, flipped, (1,) * len(padding), padding)
    if small:
        result = tnp.swapaxes(result, 0, 1)
    return result.reshape(*outer[0], *outer[1], *result.shape[2:])
