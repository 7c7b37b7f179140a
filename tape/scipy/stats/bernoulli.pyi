"""Written by ``python -m tests.typing.stubs`` with JAX 0.10.2: the names of the namespace and their signatures."""

import builtins as _b
from collections.abc import Callable as _Callable, Sequence as _Sequence
from typing import Any as _Any, Literal as _Literal, NamedTuple as _NamedTuple, overload as _overload

from jax.typing import ArrayLike as _ArrayLike, DTypeLike as _DTypeLike

from tape.mirrored.adapters import Indexer as _Indexer, UFunc as _UFunc
from tape.variables.declared import Axis as _Axis, Operand as _Operand
from tape.variables.variable import Variable as _Variable

def cdf(k: _Any, p: _Any) -> _Variable: ...
def logpmf(k: _Any, p: _Any, loc: _Any = 0) -> _Variable: ...
def pmf(k: _Any, p: _Any, loc: _Any = 0) -> _Variable: ...
def ppf(q: _Any, p: _Any) -> _Variable: ...
