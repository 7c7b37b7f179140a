"""The normal distribution."""

from __future__ import annotations

from typing import Any

import numpy as _np
import scipy.stats as _stats

from interop.autograd.numpy.dispatch import wrapped as _wrapped
from interop.autograd.scipy.special import _exp, log_ndtr, ndtr

_LOG_ROOT = 0.5 * _np.log(2 * _np.pi)
_log = _wrapped(_np.log)


def _logpdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    return -0.5 * ((x - loc) / scale) ** 2 - _LOG_ROOT - _log(scale)


def _made(name: str, recorded: Any) -> Any:
    return _wrapped(getattr(_stats.norm, name), recorded, name=name)


logpdf = _made("logpdf", _logpdf)
pdf = _made("pdf", lambda x, loc=0.0, scale=1.0: _exp(_logpdf(x, loc, scale)))
cdf = _made("cdf", lambda x, loc=0.0, scale=1.0: ndtr((x - loc) / scale))
sf = _made("sf", lambda x, loc=0.0, scale=1.0: ndtr((loc - x) / scale))
logcdf = _made("logcdf", lambda x, loc=0.0, scale=1.0: log_ndtr((x - loc) / scale))
logsf = _made("logsf", lambda x, loc=0.0, scale=1.0: log_ndtr((loc - x) / scale))
