"""Functions whose derivatives are held to 50 digits: where each is asked, and the same function in mpmath.

A function of several arguments has one case per argument that is differentiated, the others held.  A grid covers the domain, its ends
and what overflows or underflows; where the true derivative is no normal number of the dtype, nothing is asked but that it is no NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mpmath as mp
import numpy as np

__all__ = ["CASES", "Case"]

Grid = tuple[float, ...]
Limits = tuple[tuple[float, float], str]  # what the errors of both orders may be in the first dtype, and why


@dataclass(frozen=True, eq=False)
class Case:
    """A function of one number.

    Attributes:
        name: of the function in JAX's namespaces (``numpy.tanh``), and in the tape's.
        true: the function of mpmath numbers.
        grid: the arguments.
        held: the other arguments, with None in place of the one that is differentiated.
        options: keyword arguments.
        stacked: the elements of the vector that the function takes in place of a number, with None for the one that is differentiated.
        element: which element of the result is meant, where that is a vector.
        known: its limits, where they do not stand in ``LIMITS``.
        where: the part of the domain that is asked, where a function has several.

    """

    name: str
    true: Callable[[Any], Any]
    grid: tuple[Any, ...]
    held: tuple[float | None, ...] = (None,)
    options: dict[str, Any] = field(default_factory=dict)
    stacked: tuple[float | None, ...] = ()
    element: int = 0
    known: Limits | None = None
    where: str = ""

    @property
    def plane(self) -> bool:
        """Whether it is asked at complex numbers."""
        return isinstance(self.grid[0], complex)

    @property
    def lacks(self) -> tuple[str, ...]:
        """The dtypes that JAX's function refuses."""
        return ("bfloat16", "float16") if self.name.rpartition(".")[2] in {"ndtr", "log_ndtr", "ndtri"} else ()

    @property
    def limits(self) -> tuple[float, float]:
        """What the errors of both orders may be in float32 or complex64, in units in the last place."""
        return self._limits[0]

    @property
    def note(self) -> str:
        """What limits the accuracy, where something does."""
        return self._limits[1]

    @property
    def _limits(self) -> Limits:
        return self.known or (((8.0, 8.0), "") if self.plane else LIMITS.get(self.label, ((8.0, 8.0), "")))

    @property
    def label(self) -> str:
        """The name with what is held, and where."""
        return f"{self._called} {self.where}".rstrip()

    @property
    def _called(self) -> str:
        options = [f"{name}={value}" for name, value in self.options.items()]
        if self.stacked:
            return f"{self.name}([{', '.join('x' if h is None else f'{h:g}' for h in self.stacked)}])[{self.element}]"
        if self.held == (None,) and not options:
            return self.name
        return f"{self.name}({', '.join(['x' if h is None else f'{h:g}' for h in self.held] + options)})"


def _numbers(*values: float) -> Grid:
    return tuple(values)


def _spread(low: float, high: float, count: int) -> Grid:
    """Return numbers of even logarithms, moved off round ones."""
    return tuple(np.exp(np.linspace(np.log(low), np.log(high), count)).tolist())


def _beside(*places: float) -> Grid:
    """Return three numbers at each place: tests ask each third."""
    return tuple(x * (1 + k * 2e-7) for x in places for k in (-1, 0, 1))


_SMALL = _spread(1e-30, 1e-2, 9)
_MIDDLE = _spread(1.3e-2, 3.1, 40)
_LARGE = _spread(3.2, 95.0, 40)
_HUGE = _numbers(150.0, 1e3, 3e4)
_POSITIVE = (*_SMALL, *_MIDDLE, *_LARGE)
_HALF_LINE = (*_POSITIVE, *_HUGE, *_spread(1e6, 1e18, 5))


def _both(grid: Sequence[float], *, zero: bool = True) -> Grid:
    return (*[-x for x in reversed(grid)], *([0.0] if zero else []), *grid)


_LINE = _both((*_POSITIVE, *_HUGE))
_UNIT = _both((*_SMALL, *_spread(1.3e-2, 0.9, 20), *(1 - x for x in _spread(3e-7, 0.09, 15))))
_BELOW_ONE = tuple(x for x in _UNIT if x > 0)
_MODERATE = _both((*_SMALL, *_MIDDLE, *_spread(3.2, 30.0, 12)))
_WAVE = _both((*_SMALL, *_MIDDLE, *_spread(3.2, 30.0, 20), 1e3))


_LEFT = (*(-x for x in _spread(1e-6, 0.4, 8)), -0.53, -2.6, -2.61, -7.25, *(-x for x in _spread(1.03, 7.93, 45)))
_BESIDE = "beside a zero left of 0"


def _logistic(x: Any) -> Any:
    return 1 / (1 + mp.exp(-x))


def _phi(x: Any) -> Any:
    return mp.erfc(-x / mp.sqrt(2)) / 2


def _softplus(x: Any) -> Any:
    return mp.log1p(mp.exp(x))


def _gelu_tanh(x: Any) -> Any:
    c, cubic = mp.mpf(float(np.sqrt(2 / np.pi))), mp.mpf(0.044715)
    return x / 2 * (1 + mp.tanh(c * (x + cubic * x**3)))


_ALPHA, _SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def _selu(x: Any) -> Any:
    return mp.mpf(_SCALE) * (x if x > 0 else mp.mpf(_ALPHA) * mp.expm1(x))


def _lgamma(x: Any) -> Any:
    return mp.loggamma(x) if x > 0 else mp.log(abs(mp.gamma(x)))


def _igamma(a: Any, x: Any) -> Any:
    return mp.gammainc(a, 0, x, regularized=True)


def _igammac(a: Any, x: Any) -> Any:
    return mp.gammainc(a, x, mp.inf, regularized=True)


def _i0e(x: Any) -> Any:
    return mp.besseli(0, x) * mp.exp(-abs(x))


def _i1e(x: Any) -> Any:
    return mp.besseli(1, x) * mp.exp(-abs(x))


# What does not reach eight units, by label: what the errors of both orders may be in float32 (inf: all digits are lost somewhere), and why.
LIMITS: dict[str, tuple[tuple[float, float], str]] = {
    "numpy.tanh": ((np.inf, np.inf), "the tails, by default: `accurate_tanh` keeps them (6 to 10 % of a step)"),
    "nn.gelu": ((np.inf, np.inf), "the left tail, and beside the zero, by default: `accurate=True` keeps them (5 to 8 % of a step)"),
    "nn.sigmoid": ((np.inf, np.inf), "the upper tail, by default: `accurate_logistic` keeps it (9 % of a step)"),
    "scipy.special.expit": ((np.inf, np.inf), "the upper tail, by default: `accurate_logistic` keeps it (9 % of a step)"),
    "numpy.power(1000, x)": ((8.0, 16.0), "in float16, what XLA's value is rounded by"),
}


_FAR, _NEAR = _both(_spread(1e22, 1e30, 12), zero=False), _both(_spread(1e-29, 1e-20, 12), zero=False)


def _shares(which: int) -> Callable[[Any], Any]:
    """Return an element of the softmax of x, 0 and -1."""
    return lambda x: mp.exp((x, 0, -1)[which]) / (mp.exp(x) + 1 + mp.exp(-1))


def _log_shares(which: int) -> Callable[[Any], Any]:
    share = _shares(which)
    return lambda x: mp.log(share(x))


def _spread_of(x: Any, others: Sequence[float]) -> Any:
    """Variance of x and others."""
    values = [x, *map(mp.mpf, others)]
    mean = mp.fsum(values) / len(values)
    return mp.fsum((v - mean) ** 2 for v in values) / len(values)


def _reductions() -> list[Case]:
    pair, far = (1.0, 3.0), (1e6, 1000002.0)
    huge, tiny = float(np.float32(3e25)), float(np.float32(3e-25))
    around = tuple(1e6 + d for d in (-9.0, -3.5, -0.5, 0.25, 4.0, 100.0))
    logits = _both(_spread(0.1, 60.0, 20))

    def length(other: float) -> Callable[[Any], Any]:
        return lambda x: mp.sqrt(x * x + mp.mpf(other) ** 2)

    return [
        Case("numpy.linalg.norm", length(2.0), _both(_HALF_LINE), stacked=(None, 2.0)),
        Case("numpy.linalg.norm", length(huge), _FAR, stacked=(None, huge)),
        Case("numpy.linalg.norm", length(tiny), _NEAR, stacked=(None, tiny)),
        Case("numpy.std", lambda x: mp.sqrt(_spread_of(x, pair)), _both(_MIDDLE), stacked=(None, *pair)),
        Case("numpy.std", lambda x: mp.sqrt(_spread_of(x, (huge, -huge))), _FAR, stacked=(None, huge, -huge)),
        Case("numpy.std", lambda x: mp.sqrt(_spread_of(x, far)), around, stacked=(None, *far)),
        Case("numpy.var", lambda x: _spread_of(x, far), around, stacked=(None, *far)),
        *(Case("nn.softmax", _shares(i), logits, stacked=(None, 0.0, -1.0), element=i) for i in (0, 1)),
        Case(
            "nn.softmax",
            _shares(0),
            _beside(0.31326169),
            stacked=(None, 0.0, -1.0),
            where="beside a zero",
        ),
        *(Case("nn.log_softmax", _log_shares(i), logits, stacked=(None, 0.0, -1.0), element=i) for i in (0, 1)),
        Case("nn.logsumexp", lambda x: mp.log(mp.exp(x) + mp.exp(mp.mpf(0.5))), logits, stacked=(None, 0.5)),
        Case("numpy.prod", lambda x: x * 5, _LINE, stacked=(2.0, None, 2.5)),
        Case("numpy.cumprod", lambda x: x * x * 0, _LINE, stacked=(0.0, None), element=1),
    ]


def _cases() -> list[Case]:
    return [
        # exponentials and logarithms
        Case("numpy.exp", mp.exp, _LINE),
        Case("numpy.exp2", lambda x: mp.mpf(2) ** x, _LINE),
        Case("numpy.expm1", mp.expm1, _LINE),
        Case("numpy.log", mp.log, _HALF_LINE),
        Case("numpy.log2", lambda x: mp.log(x, 2), _HALF_LINE),
        Case("numpy.log10", mp.log10, _HALF_LINE),
        Case("numpy.log1p", mp.log1p, (*(x for x in _UNIT if x < 0), *_HALF_LINE)),
        # roots and powers
        Case("numpy.sqrt", mp.sqrt, _HALF_LINE),
        Case("lax.rsqrt", lambda x: 1 / mp.sqrt(x), _HALF_LINE),
        Case("numpy.cbrt", lambda x: mp.sign(x) * mp.cbrt(abs(x)), _both(_HALF_LINE, zero=False)),
        Case("numpy.reciprocal", lambda x: 1 / x, _both(_HALF_LINE, zero=False)),
        Case("numpy.square", lambda x: x * x, _LINE),
        Case("lax.integer_pow", lambda x: x**7, _both(_HALF_LINE), options={"y": 7}),
        Case("lax.integer_pow", lambda x: x**-3, _both(_HALF_LINE, zero=False), options={"y": -3}),
        Case("numpy.power", lambda x: x ** mp.mpf("2.5"), _HALF_LINE, (None, 2.5)),
        Case("numpy.power", lambda x: x ** mp.mpf("0.5"), _HALF_LINE, (None, 0.5)),
        Case("numpy.power", lambda x: x ** mp.mpf("-1.5"), _HALF_LINE, (None, -1.5)),
        Case("numpy.power", lambda y: mp.mpf(1.25) ** y, _MODERATE, (1.25, None)),
        Case("numpy.power", lambda y: mp.mpf(1000) ** y, tuple(x for x in _MODERATE if abs(x) < 12), (1000.0, None)),
        Case("numpy.power", lambda y: mp.mpf(0.125) ** y, _MODERATE, (0.125, None)),
        Case("numpy.hypot", lambda x: mp.hypot(x, 3), _LINE, (None, 3.0)),
        # circular functions
        Case("numpy.sin", mp.sin, _WAVE),
        Case("numpy.cos", mp.cos, _WAVE),
        Case("numpy.tan", mp.tan, tuple(x for x in _WAVE if abs(x) < 1.56)),
        Case("numpy.arcsin", mp.asin, _UNIT),
        Case("numpy.arccos", mp.acos, _UNIT),
        Case("numpy.arctan", mp.atan, _both(_HALF_LINE)),
        Case("numpy.arctan2", lambda y: mp.atan2(y, 2), _both(_HALF_LINE), (None, 2.0)),
        Case("numpy.arctan2", lambda x: mp.atan2(2, x), _both(_HALF_LINE), (2.0, None)),
        Case("numpy.sinc", mp.sincpi, _both((*_SMALL, *_MIDDLE, *_spread(3.3, 62.0, 20), *_beside(1.43354265, 1.8916467, 7.4931797)))),
        # hyperbolic functions
        Case("numpy.sinh", mp.sinh, _LINE),
        Case("numpy.cosh", mp.cosh, _LINE),
        Case("numpy.tanh", mp.tanh, _LINE),
        Case("numpy.arcsinh", mp.asinh, _both(_HALF_LINE)),
        Case("numpy.arccosh", mp.acosh, (*(1 + x for x in _spread(3e-7, 1.0, 20)), *_LARGE, *_HUGE, 1e10, 1e18)),
        Case("numpy.arctanh", mp.atanh, _UNIT),
        # activations
        Case("nn.sigmoid", _logistic, _LINE),
        Case("nn.softplus", _softplus, _LINE),
        Case("nn.log_sigmoid", lambda x: -_softplus(-x), _LINE),
        Case("nn.silu", lambda x: x * _logistic(x), _LINE),
        Case("nn.mish", lambda x: x * mp.tanh(_softplus(x)), _LINE),
        Case("nn.gelu", _gelu_tanh, _LINE),
        Case("nn.gelu", lambda x: x * _phi(x), _LINE, options={"approximate": False}),
        Case("nn.elu", lambda x: x if x > 0 else mp.expm1(x), _both(_POSITIVE, zero=False)),
        Case("nn.celu", lambda x: x if x > 0 else mp.expm1(x), _both(_POSITIVE, zero=False)),
        Case("nn.selu", _selu, _both(_POSITIVE, zero=False)),
        Case("nn.soft_sign", lambda x: x / (1 + abs(x)), _both(_POSITIVE, zero=False)),
        Case("nn.squareplus", lambda x: (x + mp.sqrt(x * x + 4)) / 2, _LINE),
        Case("numpy.logaddexp", lambda x: x + mp.log1p(mp.exp(mp.mpf(0.5) - x)), _LINE, (None, 0.5)),
        Case("numpy.logaddexp", lambda x: x + mp.log1p(mp.exp(100 - x)), _LINE, (None, 100.0)),
        Case("numpy.logaddexp2", lambda x: mp.log(mp.mpf(2) ** x + mp.mpf(2) ** mp.mpf(0.5), 2), _LINE, (None, 0.5)),
        # error functions
        Case("scipy.special.erf", mp.erf, _MODERATE),
        Case("scipy.special.erfc", mp.erfc, _MODERATE),
        Case("scipy.special.erfinv", mp.erfinv, _both((*_spread(1.3e-2, 0.9, 10), *(1 - x for x in _spread(3e-7, 0.09, 8))))),
        Case("scipy.special.ndtr", _phi, _MODERATE),
        Case("scipy.special.log_ndtr", lambda x: mp.log(_phi(x)), _MODERATE),
        Case("scipy.special.ndtri", lambda p: mp.sqrt(2) * mp.erfinv(2 * p - 1), (*_spread(1e-3, 0.49, 10), *_spread(0.51, 0.999, 6))),
        # information
        Case("scipy.special.expit", _logistic, _LINE),
        Case("scipy.special.logit", lambda p: mp.log(p) - mp.log1p(-p), _BELOW_ONE),
        Case("scipy.special.entr", lambda x: -x * mp.log(x), _HALF_LINE),
        Case("scipy.special.xlogy", lambda x: x * mp.log(mp.mpf(2.5)), _HALF_LINE, (None, 2.5)),
        Case("scipy.special.xlogy", lambda y: mp.mpf(2.5) * mp.log(y), _HALF_LINE, (2.5, None)),
        Case("scipy.special.xlog1py", lambda y: mp.mpf(2.5) * mp.log1p(y), _HALF_LINE, (2.5, None)),
        Case("scipy.special.rel_entr", lambda x: x * mp.log(x / mp.mpf(2.5)), _HALF_LINE, (None, 2.5)),
        Case("scipy.special.kl_div", lambda x: x * mp.log(x / mp.mpf(2.5)) - x + mp.mpf(2.5), _HALF_LINE, (None, 2.5)),
        # gamma and its relatives
        Case("scipy.special.gammaln", _lgamma, (*_spread(1e-10, 1.3, 14), *_spread(1.6, 1e6, 20), *_beside(1.41, 1.4614634, 1.48), *_LEFT)),
        Case("scipy.special.digamma", mp.digamma, (*_spread(1e-6, 1e6, 30), *_LEFT)),
        Case("scipy.special.gammaln", _lgamma, _beside(-0.504083, -1.5734985, -2.6107209, -20.7456169, -63.7942405), where=_BESIDE),
        Case("scipy.special.digamma", mp.digamma, _beside(-0.49571568, -1.4987862, -2.4994443, -20.4999884, -63.4999987), where=_BESIDE),
        Case("scipy.special.polygamma", lambda x: mp.psi(2, x), _spread(1e-4, 1e4, 25), (2, None)),
        Case("scipy.special.zeta", lambda q: mp.zeta(mp.mpf(2.5), q), _spread(1e-3, 1e3, 20), (2.5, None)),
        Case("scipy.special.gammainc", lambda x: _igamma(mp.mpf(1.5), x), _spread(1e-6, 60.0, 25), (1.5, None)),
        Case("scipy.special.gammainc", lambda x: _igamma(mp.mpf(40), x), (*_spread(1.0, 120.0, 25), *_beside(1.66)), (40.0, None)),
        Case("scipy.special.gammaincc", lambda x: _igammac(mp.mpf(1.5), x), _spread(1e-6, 60.0, 25), (1.5, None)),
        Case("scipy.special.betainc", lambda x: mp.betainc(1.5, 2.5, 0, x, regularized=True), _spread(1e-4, 0.999, 20), (1.5, 2.5, None)),
        # reductions of a few numbers
        *_reductions(),
        # what squares would overflow and underflow in
        Case("numpy.hypot", lambda x: mp.hypot(x, mp.mpf(float(np.float32(1e25)))), _FAR, (None, float(np.float32(1e25)))),
        Case("numpy.hypot", lambda x: mp.hypot(x, mp.mpf(float(np.float32(1e-25)))), _NEAR, (None, float(np.float32(1e-25)))),
        Case("numpy.arctan2", lambda x: mp.atan2(x, mp.mpf(float(np.float32(1e25)))), _FAR, (None, float(np.float32(1e25)))),
        Case("numpy.arctan2", lambda x: mp.atan2(mp.mpf(float(np.float32(1e-25))), x), _NEAR, (float(np.float32(1e-25)), None)),
        # Bessel functions
        Case("scipy.special.i0e", _i0e, _both((*_SMALL, *_spread(1.3e-2, 80.0, 25), 1e3), zero=False)),
        Case("scipy.special.i1e", _i1e, _both((*_SMALL, *_spread(1.3e-2, 80.0, 25), 1e3), zero=False)),
        Case("scipy.special.i0", lambda x: mp.besseli(0, x), _both((*_SMALL, *_spread(1.3e-2, 80.0, 20)))),
        Case("scipy.special.i1", lambda x: mp.besseli(1, x), _both((*_SMALL, *_spread(1.3e-2, 80.0, 20)))),
    ]


CASES: tuple[Case, ...] = tuple(_cases())
