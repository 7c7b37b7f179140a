"""Student's t distribution; cumulative ones are differentiated by x and loc."""

from __future__ import annotations

from typing import Any

import numpy as _np
import scipy.stats as _stats

from interop.autograd.extend import defvjp as _defvjp
from interop.autograd.extend import primitive as _primitive
from interop.autograd.numpy.dispatch import wrapped as _wrapped
from interop.autograd.scipy.special import _exp, gammaln
from interop.autograd.scipy.special import unbroadcast as _unbroadcast

_log, _log1p = _wrapped(_np.log), _wrapped(_np.log1p)


def _logpdf(x: Any, df: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    z = (x - loc) / scale
    norm = gammaln((df + 1) / 2) - gammaln(df / 2) - 0.5 * _log(df * _np.pi) - _log(scale)
    return norm - (df + 1) / 2 * _log1p(z**2 / df)


logpdf = _wrapped(_stats.t.logpdf, _logpdf, name="logpdf")
pdf = _wrapped(_stats.t.pdf, lambda x, df, loc=0.0, scale=1.0: _exp(_logpdf(x, df, loc, scale)), name="pdf")
cdf, logcdf = _primitive(_stats.t.cdf), _primitive(_stats.t.logcdf)

_defvjp(
    cdf,
    lambda _, x, df, loc=0.0, scale=1.0: lambda g: _unbroadcast(x, g * pdf(x, df, loc, scale)),
    lambda _, x, df, loc=0.0, scale=1.0: lambda g: _unbroadcast(loc, -g * pdf(x, df, loc, scale)),
    argnums=(0, 2),
)
_defvjp(
    logcdf,
    lambda ans, x, df, loc=0.0, scale=1.0: lambda g: _unbroadcast(x, g * _exp(logpdf(x, df, loc, scale) - ans)),
    lambda ans, x, df, loc=0.0, scale=1.0: lambda g: _unbroadcast(loc, -g * _exp(logpdf(x, df, loc, scale) - ans)),
    argnums=(0, 2),
)
