"""The Poisson distribution; derivatives are by its mean."""

from __future__ import annotations

import scipy.stats as _stats

from interop.autograd.extend import defvjp as _defvjp
from interop.autograd.extend import primitive as _primitive
from interop.autograd.scipy.special import unbroadcast as _unbroadcast

cdf, logpmf, pmf = map(_primitive, (_stats.poisson.cdf, _stats.poisson.logpmf, _stats.poisson.pmf))

_defvjp(cdf, lambda _, k, mu: lambda g: _unbroadcast(mu, g * -pmf(k // 1, mu)), argnums=(1,))
_defvjp(logpmf, lambda _, k, mu: lambda g: _unbroadcast(mu, g * (k % 1 == 0) * (k / mu - 1)), argnums=(1,))
_defvjp(pmf, lambda ans, k, mu: lambda g: _unbroadcast(mu, g * ans * (k % 1 == 0) * (k / mu - 1)), argnums=(1,))
