"""Written by ``python -m tests.typing.stubs`` with JAX 0.10.2: the names of the namespace and their signatures."""

import builtins as _b
from collections.abc import Callable as _Callable, Sequence as _Sequence
from typing import Any as _Any, Literal as _Literal, NamedTuple as _NamedTuple, overload as _overload

from jax.typing import ArrayLike as _ArrayLike, DTypeLike as _DTypeLike

from tape.mirrored.adapters import Indexer as _Indexer, UFunc as _UFunc
from tape.variables.declared import Axis as _Axis, Operand as _Operand
from tape.variables.variable import Variable as _Variable

def dct(x: _Operand, type: _b.int = 2, n: _b.int | None = None, axis: _b.int = -1, norm: _b.str | None = None) -> _Variable: ...
def dctn(x: _Operand, type: _b.int = 2, s: _Sequence[_b.int] | None = None, axes: _Sequence[_b.int] | None = None, norm: _b.str | None = None) -> _Variable: ...
def idct(x: _Operand, type: _b.int = 2, n: _b.int | None = None, axis: _b.int = -1, norm: _b.str | None = None) -> _Variable: ...
def idctn(x: _Operand, type: _b.int = 2, s: _Sequence[_b.int] | None = None, axes: _Sequence[_b.int] | None = None, norm: _b.str | None = None) -> _Variable: ...
