"""The gamma distribution."""

from __future__ import annotations

from typing import Any

import numpy as _np
import scipy.stats as _stats

from interop.autograd.numpy.dispatch import wrapped as _wrapped
from interop.autograd.scipy.special import _exp, gammainc, gammaln

_log = _wrapped(_np.log)


def _logpdf(x: Any, a: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    z = (x - loc) / scale
    return (a - 1) * _log(z) - z - gammaln(a) - _log(scale)


def _made(name: str, recorded: Any) -> Any:
    return _wrapped(getattr(_stats.gamma, name), recorded, name=name)


logpdf = _made("logpdf", _logpdf)
pdf = _made("pdf", lambda x, a, loc=0.0, scale=1.0: _exp(_logpdf(x, a, loc, scale)))
cdf = _made("cdf", lambda x, a, loc=0.0, scale=1.0: gammainc(a, (x - loc) / scale))
