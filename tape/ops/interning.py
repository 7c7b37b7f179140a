"""Interning: equal traced programs are one op, so that a function made anew at each call does not make a new structure.

Programs are equal if their fingerprints are.  Variables are numbered there, nested jaxprs are followed, and functions that a primitive
carries (the rules of a ``custom_jvp``) are compared by their code and what they close over.  What is compared by identity lives as long as
the fingerprint.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Hashable
from typing import Any

import jax
import numpy as np

from tape import jaxapi
from tape.bounded import Bounded
from tape.configuration import configuration
from tape.ops.kernel import Kernel, Op
from tape.ops.residuals import AppliedPolicy

_OPS: Bounded[Hashable, Op] = Bounded("programs of callables", 2048)


def intern(name: str, jaxpr: jaxapi.ClosedJaxpr, tree: jax.tree_util.PyTreeDef, *, exact: bool = False) -> Op:
    """Return the op of a traced program whose results form ``tree``, the same one for an equal program.

    One that is ``exact`` rounds as ``jax.jit`` of the program does also where it runs on its own.
    """

    def make() -> Op:
        kernel = Kernel(name, jaxpr, tree)
        kernel.exact = exact
        op = Op(name, lambda *arrays: jax.tree.unflatten(tree, kernel.inline(*arrays)))
        op.adopt(kernel)
        return op

    return intern_op((name, tree, _Fingerprint().closed(jaxpr), configuration(), exact), make, _OPS)


def fingerprint(value: object) -> Hashable:
    """Return what is equal for programs of the same computation, for numbers and arrays of the same bits, and else for the same thing."""
    return _Fingerprint(small=sys.maxsize).of(value)


_BY_KEY: Bounded[Hashable, Op] = Bounded("ops", 1 << 14)


def intern_op(key: Hashable, make: Callable[[], Op], ops: Bounded[Hashable, Op] = _BY_KEY) -> Op:
    """Return the op known under ``key``, made at the first meeting."""
    op = ops[key] = ops.get(key) or make()  # the newest, also if it is known
    return op


_BY_VALUE = (str, bytes, int, type(None), type, np.dtype, type(Ellipsis), types.BuiltinFunctionType)
# What JAX's tracing leaves in closures, without a part in what is computed.
_BOOKKEEPING = frozenset({"DynamicJaxprTrace", "Store", "EqualStore", "InitialResultPaths", "DebugInfo"})


class Itself:
    """An object that is equal to nothing but itself."""

    __slots__ = ("_thing",)

    def __init__(self, thing: object) -> None:
        self._thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and other._thing is self._thing

    def __hash__(self) -> int:
        return id(self._thing)


class _Fingerprint:
    """One walk through a jaxpr; a function met again on the way is named by when it was first met.

    What it returns is equal for jaxprs of the same computation, arrays of NumPy being compared by identity unless they are ``small``.
    """

    def __init__(self, small: int = 1 << 12) -> None:
        self._small = small
        self._met: dict[int, int] = {}

    def closed(self, closed: jaxapi.ClosedJaxpr) -> Hashable:
        return (self.jaxpr(closed.jaxpr), tuple(self.of(c) for c in closed.consts))

    def jaxpr(self, jaxpr: jaxapi.Jaxpr) -> Hashable:
        numbers: dict[Any, int] = {}
        lines: list[Hashable] = []

        def read(atom: jaxapi.Var | jaxapi.Literal) -> Hashable:
            if isinstance(atom, jaxapi.Literal):
                return (atom.aval, self.of(atom.val))
            return numbers[atom]

        def write(variable: jaxapi.Var) -> Hashable:
            numbers[variable] = len(numbers)
            return variable.aval

        heads = tuple([write(v) for v in (*jaxpr.constvars, *jaxpr.invars)])
        for eqn in jaxpr.eqns:
            inputs = tuple([read(a) for a in eqn.invars])
            params = tuple([(k, self.of(p)) for k, p in sorted(eqn.params.items())])
            lines.append((eqn.primitive, inputs, params, getattr(eqn, "ctx", None), tuple([write(v) for v in eqn.outvars])))
        return (heads, len(jaxpr.constvars), tuple(lines), tuple([read(a) for a in jaxpr.outvars]))

    def of(self, value: Any) -> Hashable:
        """Return what stands for one parameter, constant, or content of a closure."""
        kind = type(value)
        if isinstance(value, jaxapi.ClosedJaxpr):
            return self.closed(value)
        if isinstance(value, jaxapi.Jaxpr):
            return self.jaxpr(value)
        if isinstance(value, _BY_VALUE):
            return (kind, value)
        if isinstance(value, (float, complex, np.generic)):
            return (kind, value.dtype if isinstance(value, np.generic) else None, repr(value))
        if kind in (tuple, list):
            return (kind, tuple([self.of(v) for v in value]))
        if kind is dict:
            return (kind, tuple([(self.of(k), self.of(v)) for k, v in value.items()]))
        if isinstance(value, jaxapi.Tracer):  # nobody has it in another trace
            return object()
        if isinstance(value, np.ndarray) or kind.__name__ == "TypedNdArray":  # what JAX makes of one in a jaxpr
            array = np.asarray(value)  # of the latter another one each time
            small = array.dtype != object and array.nbytes <= self._small
            return (kind, array.shape, array.dtype, array.tobytes()) if small else Itself(value)
        return self._object(value)

    def _object(self, value: Any) -> Hashable:
        kind = type(value)
        if kind.__name__ in _BOOKKEEPING:
            return kind.__name__
        if id(value) in self._met:
            return ("met", self._met[id(value)])
        if kind is object:  # a mark that JAX makes anew at each trace of a custom_jvp, and that holds nothing
            self._met[id(value)] = len(self._met)
            return (kind,)
        if isinstance(value, types.FunctionType):
            self._met[id(value)] = len(self._met)
            cells = tuple([self._cell(c) for c in value.__closure__ or ()])
            return (value.__code__, Itself(value.__globals__), cells, self.of(value.__defaults__), self.of(value.__kwdefaults__))
        if isinstance(value, types.MethodType):
            return (kind, self.of(value.__func__), Itself(value.__self__))
        if kind is AppliedPolicy:
            return (kind, self.of(value.policy), value.kept)
        if kind is functools.partial:
            return (kind, self.of(value.func), self.of(value.args), self.of(value.keywords))
        if kind.__name__ == "WrappedFun":
            return (kind, self.of(value.f), self.of(value.transforms), self.of(value.params))
        if kind.__module__.split(".")[0] in ("jax", "jaxlib", "numpy"):
            with contextlib.suppress(TypeError):  # arrays are not hashed
                hash(value)
                return (kind, value)
        return Itself(value)

    def _cell(self, cell: types.CellType) -> Hashable:
        try:
            return self.of(cell.cell_contents)
        except ValueError:  # not yet filled
            return None
