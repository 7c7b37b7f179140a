"""Written by ``python -m tests.typing.stubs`` with JAX 0.10.2: the names of the namespace and their signatures."""

import builtins as _b
from collections.abc import Callable as _Callable, Sequence as _Sequence
from typing import Any as _Any, Literal as _Literal, NamedTuple as _NamedTuple, overload as _overload

from jax.typing import ArrayLike as _ArrayLike, DTypeLike as _DTypeLike

from tape.mirrored.adapters import Indexer as _Indexer, UFunc as _UFunc
from tape.variables.declared import Axis as _Axis, Operand as _Operand
from tape.variables.variable import Variable as _Variable

from tape.scipy.stats import bernoulli as bernoulli
from tape.scipy.stats import beta as beta
from tape.scipy.stats import betabinom as betabinom
from tape.scipy.stats import binom as binom
from tape.scipy.stats import cauchy as cauchy
from tape.scipy.stats import chi2 as chi2
from tape.scipy.stats import dirichlet as dirichlet
from tape.scipy.stats import expon as expon
from tape.scipy.stats import gamma as gamma
gaussian_kde: _Any
from tape.scipy.stats import gennorm as gennorm
from tape.scipy.stats import geom as geom
from tape.scipy.stats import gumbel_l as gumbel_l
from tape.scipy.stats import gumbel_r as gumbel_r
from tape.scipy.stats import laplace as laplace
from tape.scipy.stats import logistic as logistic
def mode(a: _Operand, axis: _b.int | None = 0, nan_policy: _b.str = 'propagate', keepdims: _b.bool = False) -> _Any: ...
from tape.scipy.stats import multinomial as multinomial
from tape.scipy.stats import multivariate_normal as multivariate_normal
from tape.scipy.stats import nbinom as nbinom
from tape.scipy.stats import norm as norm
from tape.scipy.stats import pareto as pareto
from tape.scipy.stats import poisson as poisson
def rankdata(a: _Operand, method: _b.str = 'average', *, axis: _b.int | None = None, nan_policy: _b.str = 'propagate') -> _Variable: ...
def sem(a: _Operand, axis: _b.int | None = 0, ddof: _b.int = 1, nan_policy: _b.str = 'propagate', *, keepdims: _b.bool = False) -> _Variable: ...
from tape.scipy.stats import t as t
from tape.scipy.stats import truncnorm as truncnorm
from tape.scipy.stats import uniform as uniform
from tape.scipy.stats import vonmises as vonmises
from tape.scipy.stats import wrapcauchy as wrapcauchy
