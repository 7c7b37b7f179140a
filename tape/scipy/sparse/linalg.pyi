"""Written by ``python -m tests.typing.stubs`` with JAX 0.10.2: the names of the namespace and their signatures."""

import builtins as _b
from collections.abc import Callable as _Callable, Sequence as _Sequence
from typing import Any as _Any, Literal as _Literal, NamedTuple as _NamedTuple, overload as _overload

from jax.typing import ArrayLike as _ArrayLike, DTypeLike as _DTypeLike

from tape.mirrored.adapters import Indexer as _Indexer, UFunc as _UFunc
from tape.variables.declared import Axis as _Axis, Operand as _Operand
from tape.variables.variable import Variable as _Variable

def bicgstab(A: _Any, b: _Any, x0: _Any = None, *, tol: _Any = ..., atol: _Any = ..., maxiter: _Any = None, M: _Any = None) -> _Any: ...
def cg(A: _Any, b: _Any, x0: _Any = None, *, tol: _Any = ..., atol: _Any = ..., maxiter: _Any = None, M: _Any = None) -> _Any: ...
def gmres(A: _Any, b: _Any, x0: _Any = None, *, tol: _Any = ..., atol: _Any = ..., restart: _Any = 20, maxiter: _Any = None, M: _Any = None, solve_method: _Any = 'batched') -> _Any: ...
