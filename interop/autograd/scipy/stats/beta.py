"""The beta distribution."""

from __future__ import annotations

from typing import Any

import numpy as _np
import scipy.stats as _stats

from interop.autograd.numpy.dispatch import wrapped as _wrapped
from interop.autograd.scipy.special import _exp, betainc, gammaln

_log, _log1p = _wrapped(_np.log), _wrapped(_np.log1p)


def _logpdf(x: Any, a: Any, b: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    z = (x - loc) / scale
    return (a - 1) * _log(z) + (b - 1) * _log1p(-z) - gammaln(a) - gammaln(b) + gammaln(a + b) - _log(scale)


def _made(name: str, recorded: Any) -> Any:
    return _wrapped(getattr(_stats.beta, name), recorded, name=name)


logpdf = _made("logpdf", _logpdf)
pdf = _made("pdf", lambda x, a, b, loc=0.0, scale=1.0: _exp(_logpdf(x, a, b, loc, scale)))
cdf = _made("cdf", lambda x, a, b, loc=0.0, scale=1.0: betainc(a, b, (x - loc) / scale))
