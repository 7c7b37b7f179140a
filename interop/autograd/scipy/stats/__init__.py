"""Distributions: densities and cumulative ones, with SciPy's signatures; each is a module, as in HIPS autograd."""

from __future__ import annotations

import sys
from types import ModuleType as _ModuleType
from typing import Any

import numpy as _np
import scipy.stats as _stats

from interop.autograd import numpy as _anp
from interop.autograd.arguments import holds_variables as _holds
from interop.autograd.extend import defvjp as _defvjp
from interop.autograd.extend import primitive as _primitive
from interop.autograd.numpy import linalg as _linalg_module
from interop.autograd.numpy.dispatch import wrapped as _wrapped
from interop.autograd.primitives import getval as _getval
from interop.autograd.scipy.special import _exp, betainc, gammainc, gammaln, log_ndtr, ndtr
from interop.autograd.scipy.special import unbroadcast as _unbroadcast
from tape.errors import TapeNotImplementedError as _TapeNotImplementedError

__all__ = ["beta", "chi2", "dirichlet", "gamma", "multivariate_normal", "norm", "poisson", "t"]

_linalg: Any = _linalg_module
_log, _log1p = _wrapped(_np.log), _wrapped(_np.log1p)
_LOG_ROOT = 0.5 * _np.log(2 * _np.pi)


def _distribution(_name: str, _logpdf: Any = None, /, **recorded: Any) -> Any:
    """Make the module of a distribution: its functions are SciPy's, and on Variables what is ``recorded``; of None, primitives."""
    scipy, module = getattr(_stats, _name), _ModuleType(f"{__name__}.{_name}", f"SciPy's distribution ``{_name}``.")
    if _logpdf is not None:
        recorded = {"logpdf": _logpdf, "pdf": lambda *args, **kwargs: _exp(_logpdf(*args, **kwargs)), **recorded}
    for name, function in recorded.items():
        own = getattr(scipy, name)
        setattr(module, name, _primitive(own) if function is None else _wrapped(own, function, name=name))
    sys.modules[module.__name__] = module
    return module


def _norm(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    return -0.5 * ((x - loc) / scale) ** 2 - _LOG_ROOT - _log(scale)


norm = _distribution(
    "norm",
    _norm,
    cdf=lambda x, loc=0.0, scale=1.0: ndtr((x - loc) / scale),
    sf=lambda x, loc=0.0, scale=1.0: ndtr((loc - x) / scale),
    logcdf=lambda x, loc=0.0, scale=1.0: log_ndtr((x - loc) / scale),
    logsf=lambda x, loc=0.0, scale=1.0: log_ndtr((loc - x) / scale),
)


def _gamma(x: Any, a: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    z = (x - loc) / scale
    return (a - 1) * _log(z) - z - gammaln(a) - _log(scale)


gamma = _distribution("gamma", _gamma, cdf=lambda x, a, loc=0.0, scale=1.0: gammainc(a, (x - loc) / scale))
chi2 = _distribution(
    "chi2",
    lambda x, df, loc=0.0, scale=1.0: _gamma(x, df / 2, loc, 2 * scale),
    cdf=lambda x, df, loc=0.0, scale=1.0: gamma.cdf(x, df / 2, loc, 2 * scale),
)


def _beta(x: Any, a: Any, b: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    z = (x - loc) / scale
    return (a - 1) * _log(z) + (b - 1) * _log1p(-z) - gammaln(a) - gammaln(b) + gammaln(a + b) - _log(scale)


beta = _distribution("beta", _beta, cdf=lambda x, a, b, loc=0.0, scale=1.0: betainc(a, b, (x - loc) / scale))


def _dirichlet(x: Any, alpha: Any) -> Any:
    terms = (alpha - 1) * _anp.log(x).T
    return _anp.sum(terms.T, axis=0) + gammaln(_anp.sum(alpha)) - _anp.sum(gammaln(alpha))


dirichlet = _distribution("dirichlet", _dirichlet, rvs=None)


def _multivariate(x: Any, mean: Any = 0.0, cov: Any = 1.0, allow_singular: bool = False) -> Any:
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


multivariate_normal = _distribution("multivariate_normal", _multivariate, entropy=_entropy)
poisson = _distribution("poisson", cdf=None, logpmf=None, pmf=None)  # derivatives are by its mean
_defvjp(poisson.cdf, lambda _, k, mu: lambda g: _unbroadcast(mu, g * -poisson.pmf(k // 1, mu)), argnums=(1,))
_defvjp(poisson.logpmf, lambda _, k, mu: lambda g: _unbroadcast(mu, g * (k % 1 == 0) * (k / mu - 1)), argnums=(1,))
_defvjp(poisson.pmf, lambda ans, k, mu: lambda g: _unbroadcast(mu, g * ans * (k % 1 == 0) * (k / mu - 1)), argnums=(1,))


def _t(x: Any, df: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    z = (x - loc) / scale
    norm = gammaln((df + 1) / 2) - gammaln(df / 2) - 0.5 * _log(df * _np.pi) - _log(scale)
    return norm - (df + 1) / 2 * _log1p(z**2 / df)


t = _distribution("t", _t, cdf=None, logcdf=None)  # cumulative ones are differentiated by x and loc
for _name, _slope in (("cdf", lambda _, *given: t.pdf(*given)), ("logcdf", lambda ans, *given: _exp(t.logpdf(*given) - ans))):
    _defvjp(
        getattr(t, _name),
        lambda ans, x, df, loc=0.0, scale=1.0, f=_slope: lambda g: _unbroadcast(x, g * f(ans, x, df, loc, scale)),
        lambda ans, x, df, loc=0.0, scale=1.0, f=_slope: lambda g: _unbroadcast(loc, -g * f(ans, x, df, loc, scale)),
        argnums=(0, 2),
    )
