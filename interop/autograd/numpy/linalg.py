"""``numpy.linalg``, recorded where it meets Variables."""

from __future__ import annotations

from typing import Any

import numpy as _np

from interop.autograd.numpy.dispatch import stacked as _stacked
from interop.autograd.numpy.dispatch import wrapped as _wrapped
from tape import numpy as _tnp


def _norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:  # noqa: A002 - NumPy's name
    return _tnp.linalg.norm(_stacked(x), ord, axis, keepdims)


def _eigh(a: Any, UPLO: str = "L") -> Any:  # noqa: N803 - NumPy's name
    """Decompose the triangle that is named, which is all that NumPy reads."""
    half = _tnp.tril(a, -1) if UPLO.upper() == "L" else _tnp.triu(a, 1)
    diagonal = _tnp.real(_tnp.diagonal(a, axis1=-2, axis2=-1))[..., None] * _np.eye(a.shape[-1])
    return _tnp.linalg.eigh(half + _tnp.conj(_tnp.swapaxes(half, -1, -2)) + diagonal, symmetrize_input=False)


_RECORDED: dict[str, Any] = {"norm": _norm, "eigh": _eigh}
globals().update({name: _wrapped(getattr(_np.linalg, name), _RECORDED.get(name)) for name in _np.linalg.__all__ if name != "LinAlgError"})
LinAlgError = _np.linalg.LinAlgError
__all__ = list(_np.linalg.__all__)

_swapaxes, _einsum = _wrapped(_np.swapaxes), _wrapped(_np.einsum)


def T(x: Any) -> Any:  # noqa: N802 - its name there
    """Swap the last two axes."""
    return _swapaxes(x, -1, -2)


def _dot(a: Any, b: Any) -> Any:
    """Multiply stacks of matrices."""
    return _einsum("...ij,...jk->...ik", a, b)
