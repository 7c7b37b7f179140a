"""The chi-squared distribution."""

from __future__ import annotations

from typing import Any

import scipy.stats as _stats

from interop.autograd.numpy.dispatch import wrapped as _wrapped
from interop.autograd.scipy.stats import gamma as _gamma


def _made(name: str) -> Any:
    of_gamma = getattr(_gamma, name)
    return _wrapped(getattr(_stats.chi2, name), lambda x, df, loc=0.0, scale=1.0: of_gamma(x, df / 2, loc, 2 * scale), name=name)


def _density(name: str) -> Any:
    def recorded(x: Any, df: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
        value = getattr(_gamma, name)((x - loc) / (2 * scale), df / 2)
        return value - _log(2 * scale) if name == "logpdf" else value / (2 * scale)

    return _wrapped(getattr(_stats.chi2, name), recorded, name=name)


_log = _gamma._log
logpdf, pdf, cdf = _density("logpdf"), _density("pdf"), _made("cdf")
