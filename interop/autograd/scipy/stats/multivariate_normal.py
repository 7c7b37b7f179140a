"""The multivariate normal distribution."""

from __future__ import annotations

from typing import Any

import numpy as _np
import scipy.stats as _stats

from interop.autograd import numpy as _anp
from interop.autograd.numpy import linalg as _linalg_module
from interop.autograd.numpy.dispatch import wrapped as _wrapped
from interop.autograd.primitives import getval as _getval
from interop.autograd.primitives import holds_variables as _holds
from interop.autograd.scipy.special import _exp
from tape.errors import TapeNotImplementedError as _TapeNotImplementedError

_linalg: Any = _linalg_module


def _logpdf(x: Any, mean: Any = 0.0, cov: Any = 1.0, allow_singular: bool = False) -> Any:
    size = _np.shape(_getval(cov))
    if len(size) < 2:
        cov = cov * _np.eye(max([1, *_np.shape(_getval(x))[-1:], *_np.shape(_getval(mean))[-1:]]) if not size else size[0])
    residual = x - mean
    if _np.shape(_getval(residual)) == () or (_np.shape(_getval(cov))[0] == 1 and _np.shape(_getval(residual))[-1:] != (1,)):
        residual = residual[..., None]
    if allow_singular:
        if _holds(cov):
            msg = "multivariate_normal: with allow_singular=True there is no derivative by the covariance"
            raise _TapeNotImplementedError(msg)
        values, vectors = _np.linalg.eigh(cov)
        kept = values > 1e6 * _np.finfo(float).eps * _np.max(_np.abs(values))
        scaled = _anp.matmul(residual, vectors[:, kept] / _np.sqrt(values[kept]))
        rank, logdet = int(kept.sum()), _np.sum(_np.log(values[kept]))
        return -0.5 * (rank * _np.log(2 * _np.pi) + logdet + _anp.sum(scaled**2, axis=-1))
    inverse = _linalg.inv(cov)
    distance = _anp.sum(_anp.matmul(residual, inverse) * residual, axis=-1)
    return -0.5 * (_np.shape(_getval(cov))[-1] * _np.log(2 * _np.pi) + _linalg.slogdet(cov)[1] + distance)


def _entropy(mean: Any = 0.0, cov: Any = 1.0) -> Any:  # noqa: ARG001 - it does not depend on it
    cov = cov if _np.shape(_getval(cov)) else _anp.reshape(cov, (1, 1))
    return 0.5 * (_np.shape(_getval(cov))[-1] * (1 + _np.log(2 * _np.pi)) + _linalg.slogdet(cov)[1])


logpdf = _wrapped(_stats.multivariate_normal.logpdf, _logpdf, name="logpdf")
pdf = _wrapped(_stats.multivariate_normal.pdf, lambda *args, **kwargs: _exp(_logpdf(*args, **kwargs)), name="pdf")
entropy = _wrapped(_stats.multivariate_normal.entropy, _entropy, name="entropy")
