"""``numpy.linalg``, recorded where it meets Variables."""

from __future__ import annotations

from inspect import signature as _signature
from typing import Any
from typing import NamedTuple as _NamedTuple

import jax as _jax
import numpy as _np

from interop.autograd.numpy.dispatch import counterpart as _counterpart
from interop.autograd.numpy.dispatch import stacked as _stacked
from interop.autograd.numpy.dispatch import wrapped as _wrapped
from interop.autograd.primitives import getval as _getval
from tape import lax as _lax
from tape import numpy as _tnp


def _checked(name: str, message: str) -> Any:
    """Return what raises the error that NumPy's function raises, where LAPACK said so in numbers that are not finite."""
    recorded = _counterpart(getattr(_np.linalg, name))

    def checked(a: Any, *args: Any, **options: Any) -> Any:
        result = recorded(a, *args, **options)
        value = _getval(result)
        if isinstance(value, _np.ndarray) and not _np.isfinite(value).all() and (name == "cholesky" or _np.isfinite(_getval(a)).all()):
            raise _np.linalg.LinAlgError(message)
        return result

    return checked


def _norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:  # noqa: A002 - NumPy's name
    return _tnp.linalg.norm(_stacked(x), ord, axis, keepdims)


class EigResult(_NamedTuple):
    """What ``eig`` returns."""

    eigenvalues: Any
    eigenvectors: Any


# From JAX 0.10 on, eigenvectors have derivatives where they are asked for.
_DERIVED = {"enable_eigvec_derivs": True} if "enable_eigvec_derivs" in _signature(_jax.lax.linalg.eig).parameters else {}

# From NumPy 2.5 on, eigenvalues of general matrices are complex, whatever they are.
_COMPLEX = _np.linalg.eigvals(_np.eye(1)).dtype.kind == "c"


def _named(a: Any, triangle: str) -> Any:
    """Return a Hermitian matrix of the triangle that is named, which is all that NumPy reads."""
    a = _stacked(a)
    half = _tnp.tril(a, -1) if triangle.upper() == "L" else _tnp.triu(a, 1)
    diagonal = _tnp.real(_tnp.diagonal(a, axis1=-2, axis2=-1))[..., None] * _np.eye(a.shape[-1])
    return half + _tnp.conj(_tnp.swapaxes(half, -1, -2)) + diagonal


def _eigh(a: Any, UPLO: str = "L") -> Any:  # noqa: N803 - NumPy's name
    """Have LAPACK read the same triangle as for NumPy: it chooses the vectors' signs."""
    return _tnp.linalg.eigh(_named(a, UPLO), UPLO.upper(), symmetrize_input=False)


def _eigvalsh(a: Any, UPLO: str = "L") -> Any:  # noqa: N803 - NumPy's name
    return _tnp.linalg.eigvalsh(_named(a, UPLO), UPLO.upper(), symmetrize_input=False)


def _eig(a: Any) -> Any:
    """Return real numbers where NumPy does, of real matrices with real eigenvalues; vectors have derivatives, as in HIPS autograd."""
    w, v = _lax.linalg.eig(_stacked(a), compute_left_eigenvectors=False, **_DERIVED)
    return EigResult(_real_where(w, a, w), _real_where(v, a, w))


def _eigvals(a: Any) -> Any:
    w = _tnp.linalg.eigvals(_stacked(a))
    return _real_where(w, a, w)


def _real_where(x: Any, a: Any, w: Any) -> Any:
    """Return the real part of what was computed of ``a``, if that is real, has real eigenvalues, and NumPy's result would be real."""
    return x if _COMPLEX or _stacked(a).dtype.kind == "c" or _np.any(_getval(w).imag) else _tnp.real(x)


_SINGULAR = "Singular matrix"
_RECORDED: dict[str, Any] = {
    "cholesky": _checked("cholesky", "Matrix is not positive definite"),
    "inv": _checked("inv", _SINGULAR),
    "solve": _checked("solve", _SINGULAR),
    "norm": _norm,
    "eigh": _eigh,
    "eigvalsh": _eigvalsh,
    "eig": _eig,
    "eigvals": _eigvals,
}
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
