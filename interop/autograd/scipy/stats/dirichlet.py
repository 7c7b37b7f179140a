"""The Dirichlet distribution."""

from __future__ import annotations

from typing import Any

import scipy.stats as _stats

from interop.autograd import numpy as _anp
from interop.autograd.extend import primitive as _primitive
from interop.autograd.numpy.dispatch import wrapped as _wrapped
from interop.autograd.scipy.special import _exp, gammaln

rvs = _primitive(_stats.dirichlet.rvs)


def _logpdf(x: Any, alpha: Any) -> Any:
    terms = (alpha - 1) * _anp.log(x).T
    return _anp.sum(terms.T, axis=0) + gammaln(_anp.sum(alpha)) - _anp.sum(gammaln(alpha))


logpdf = _wrapped(_stats.dirichlet.logpdf, _logpdf, name="logpdf")
pdf = _wrapped(_stats.dirichlet.pdf, lambda x, alpha: _exp(_logpdf(x, alpha)), name="pdf")
