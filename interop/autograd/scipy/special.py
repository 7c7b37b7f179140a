"""``scipy.special``: SciPy's values; derivatives by rules, each of which is made of functions that have one again."""

from __future__ import annotations

from typing import Any

import numpy as _np
import scipy.special as _special

from interop.autograd.extend import defvjp, primitive
from interop.autograd.numpy.dispatch import stacked, wrapped
from interop.autograd.primitives import getval
from interop.autograd.trees import is_variable
from tape.scipy import special as _recorded

_ON_TAPE = ("digamma", "gammaln", "erf", "erfc", "expit", "logit", "ndtr", "log_ndtr", "xlogy", "xlog1py", "entr", "i0e", "i1e")


def unbroadcast(like: Any, g: Any) -> Any:
    """Sum a gradient over the axes along which ``like`` was broadcast."""
    shape = like.shape if is_variable(like) else _np.shape(like)
    more = len(g.shape) - len(shape)
    axes = (*range(more), *[i + more for i, n in enumerate(shape) if n == 1 and g.shape[i + more] != 1])
    if axes:
        g = g.sum(axis=axes)
    return g.reshape(shape) if g.shape != shape else g


def rules(fun: Any, *slopes: Any) -> None:
    """Say what the slopes of an elementwise function are by each argument (None: unknown): ``slope(ans, *args)``."""
    makers = {
        n: (lambda ans, *args, n=n, slope=slope: lambda g: unbroadcast(args[n], g * slope(ans, *args)))
        for n, slope in enumerate(slopes)
        if slope is not None
    }
    defvjp(fun, *makers.values(), argnums=tuple(makers))


def _own(name: str) -> Any:
    return wrapped(getattr(_special, name), getattr(_recorded, name), name=name)


digamma, gammaln, erf, erfc, expit, logit, ndtr, log_ndtr, xlogy, xlog1py, entr, i0e, i1e = map(_own, _ON_TAPE)
psi = digamma
_exp, _log, _power = [wrapped(f) for f in (_np.exp, _np.log, _np.power)]
_complex_erf = primitive(_special.erf), primitive(_special.erfc)
rules(_complex_erf[0], lambda ans, x: 2 / _np.sqrt(_np.pi) * _exp(-(x**2)))
rules(_complex_erf[1], lambda ans, x: -2 / _np.sqrt(_np.pi) * _exp(-(x**2)))


def _either(real: Any, complex_one: Any) -> Any:
    return lambda x: complex_one(x) if is_variable(x) and x.dtype.kind == "c" else real(x)


erf, erfc = _either(erf, _complex_erf[0]), _either(erfc, _complex_erf[1])

polygamma, gamma, gammasgn, rgamma = map(primitive, (_special.polygamma, _special.gamma, _special.gammasgn, _special.rgamma))
gammainc, gammaincc, multigammaln = map(primitive, (_special.gammainc, _special.gammaincc, _special.multigammaln))
beta, betaln, betainc = map(primitive, (_special.beta, _special.betaln, _special.betainc))
j0, j1, jn, jv, y0, y1, yn, yv = map(
    primitive, (_special.j0, _special.j1, _special.jn, _special.jv, _special.y0, _special.y1, _special.yn, _special.yv)
)
i0, i1, iv, ive = map(primitive, (_special.i0, _special.i1, _special.iv, _special.ive))
erfinv, erfcinv = map(primitive, (_special.erfinv, _special.erfcinv))

defvjp(gammasgn, None)
rules(polygamma, None, lambda ans, n, x: polygamma(n + 1, x))
rules(gamma, lambda ans, x: ans * psi(x))
rules(rgamma, lambda ans, x: -psi(x) * ans)
rules(gammainc, None, lambda ans, a, x: _exp(-x + (a - 1) * _log(x) - gammaln(a)))
rules(gammaincc, None, lambda ans, a, x: -_exp(-x + (a - 1) * _log(x) - gammaln(a)))
rules(beta, lambda ans, a, b: ans * (psi(a) - psi(a + b)), lambda ans, a, b: ans * (psi(b) - psi(a + b)))
rules(betaln, lambda ans, a, b: psi(a) - psi(a + b), lambda ans, a, b: psi(b) - psi(a + b))
rules(betainc, None, None, lambda ans, a, b, x: _power(x, a - 1) * _power(1 - x, b - 1) / beta(a, b))
defvjp(multigammaln, lambda ans, a, d: lambda g: g * sum(psi(a - i / 2.0) for i in range(int(getval(d)))), None)
rules(j0, lambda ans, x: -j1(x))
rules(j1, lambda ans, x: (j0(x) - jn(2, x)) / 2)
rules(y0, lambda ans, x: -y1(x))
rules(y1, lambda ans, x: (y0(x) - yn(2, x)) / 2)
for _f in (jn, jv, yn, yv):
    rules(_f, None, lambda ans, n, x, f=_f: (f(n - 1, x) - f(n + 1, x)) / 2)
rules(i0, lambda ans, x: i1(x))
rules(i1, lambda ans, x: (i0(x) + iv(2, x)) / 2)
rules(iv, None, lambda ans, n, x: (iv(n - 1, x) + iv(n + 1, x)) / 2)
rules(ive, None, lambda ans, n, x: ans * (n / x - wrapped(_np.sign)(x)) + ive(n + 1, x))
rules(erfinv, lambda ans, x: _np.sqrt(_np.pi) / 2 * _exp(ans**2))
rules(erfcinv, lambda ans, x: -_np.sqrt(_np.pi) / 2 * _exp(ans**2))


def _logsumexp(a: Any, axis: Any = None, b: Any = None, keepdims: bool = False, return_sign: bool = False) -> Any:
    return _recorded.logsumexp(stacked(a), axis=axis, b=b, keepdims=keepdims, return_sign=return_sign)


logsumexp = wrapped(_special.logsumexp, _logsumexp, name="logsumexp")
softmax = wrapped(_special.softmax, lambda x, axis=None: _exp(x - _logsumexp(x, axis, None, True)), name="softmax")
log_softmax = wrapped(_special.log_softmax, lambda x, axis=None: x - _logsumexp(x, axis, None, True), name="log_softmax")


def __getattr__(name: str) -> Any:
    attribute = getattr(_special, name)
    return primitive(attribute) if callable(attribute) and not name.startswith("_") else attribute
