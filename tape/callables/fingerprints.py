"""Fingerprints: equal traced programs are one op, so that a function made anew at each call does not make a new structure.

Programs are equal if their fingerprints are.  Variables are numbered there, nested jaxprs are followed, and functions that a primitive
carries (the rules of a ``custom_jvp``) are compared by their code, what they close over, and what those of the user's read besides: such
a rule is called when the program is differentiated.  What is compared by identity lives as long as the fingerprint.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
import types
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from tape import jaxapi
from tape.bounded import Bounded
from tape.callables.code import all_names
from tape.callables.objects import MISSING, Itself, attributes, in_cell
from tape.configuration import configuration
from tape.graph.lines import LIBRARIES, STANDARD
from tape.graph.scope import LOCAL
from tape.graph.segment import Handle
from tape.graph.watcher import NOBODY
from tape.ops.kernel import Kernel, Op, intern_op
from tape.ops.residuals import AppliedPolicy
from tape.programs.program import look

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


_BY_VALUE = (str, bytes, int, type(None), type, np.dtype, type(Ellipsis), types.BuiltinFunctionType)
# What JAX's tracing leaves in closures, without a part in what is computed.
_BOOKKEEPING = frozenset({"DynamicJaxprTrace", "Store", "EqualStore", "InitialResultPaths", "DebugInfo"})


_kept = functools.partial(Itself, kept=True)
_OBJECTS, _DEEP = 2000, 16  # objects that functions lead to, and how deep inside each other they are looked at


class _Fingerprint:
    """One walk through a jaxpr; a function met again on the way is named by when it was first met.

    What it returns is equal for jaxprs of the same computation, arrays of NumPy being compared by identity unless they are ``small``.
    Of globals and objects counts what functions of the user's that are met take from them by name.
    """

    def __init__(self, small: int = 1 << 12) -> None:
        self._small = small
        self._met: dict[int, int] = {}
        self._names: frozenset[str] = frozenset()  # in the code around
        self._depth, self._left = 0, _OBJECTS

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
        return (heads, tuple(lines), tuple([read(a) for a in jaxpr.outvars]))

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
        if kind in (tuple, list) or isinstance(value, dict):
            return self._items(value)
        if isinstance(value, jaxapi.Tracer):  # nobody has it in another trace
            return object()
        if isinstance(value, np.ndarray) or kind.__name__ == "TypedNdArray":  # what JAX makes of one in a jaxpr
            array = np.asarray(value)  # of the latter another one each time
            if array.dtype == object or (array.nbytes > self._small and not self._names):
                return _kept(value)
            content = array.tobytes()  # of a large one that a rule of the user's reads, which may have been written into
            return (kind, array.shape, array.dtype, content if len(content) <= self._small else hashlib.blake2b(content).digest())
        return self._object(value)

    def _items(self, value: Any) -> Hashable:
        if self._names and type(value) is not tuple:  # what a user's function leads to may hold itself, and much
            if id(value) in self._met:
                return ("met", self._met[id(value)])
            self._met[id(value)] = len(self._met)
            self._left -= len(value)
            if self._left < 0:
                return _kept(value)
        items = value.items() if isinstance(value, dict) else value
        return (type(value), tuple([self.of(x) for x in items]))

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
            names = () if _is_installed(value.__code__.co_filename) else all_names(value.__code__)
            with self._naming(names):
                read = [(n, self.of(value.__globals__[n])) for n in names if n in value.__globals__] if self._left > 0 else []
                cells = tuple([self._cell(c) for c in value.__closure__ or ()])
                defaults = self.of(value.__defaults__), self.of(value.__kwdefaults__)
            return (value.__code__, _kept(value.__globals__), cells, *defaults, *read)
        if isinstance(value, types.MethodType):
            return (kind, self.of(value.__func__), self.of(value.__self__))
        if kind is AppliedPolicy:
            return (kind, self.of(value.policy), value.kept)
        if kind is functools.partial:
            return (kind, self.of(value.func), self.of(value.args), self.of(value.keywords))
        if kind is jaxapi.ForwardRule:
            return self.of(value.rule)
        if kind.__name__ == "WrappedFun":
            return (kind, self.of(value.f), self.of(value.transforms), self.of(value.params))
        if kind.__module__.split(".")[0] in ("jax", "jaxlib", "numpy"):
            with contextlib.suppress(TypeError):  # arrays are not hashed
                hash(value)
                return (kind, value)
        return self._followed(value)

    def _cell(self, cell: types.CellType) -> Hashable:
        content = in_cell(cell)
        return None if content is MISSING else self.of(content)

    @contextlib.contextmanager
    def _naming(self, names: Iterable[str]) -> Iterator[None]:
        """While what code that takes these names leads to is looked at."""
        outer, self._names = self._names, self._names.union(names)
        self._depth += 1
        try:
            yield
        finally:
            self._names = outer
            self._depth -= 1

    def _followed(self, value: Any) -> Hashable:
        """Return an object with what it holds under the names that the code around takes, of it and of its class."""
        self._left -= 1
        own = self._names or (("__call__",) if callable(value) and not isinstance(value, type) else ())  # of a rule that is an object
        if not own or self._left < 0 or self._depth > _DEEP:
            return _kept(value)
        if isinstance(value, Handle):
            if LOCAL.scope.trace is NOBODY:  # what is pending would call the rule, which waits for it
                look(value)
            return _kept(value), _kept(value._cell[0])
        self._met[id(value)] = len(self._met)
        shared = {name: x for cls in (value if isinstance(value, type) else type(value)).__mro__[-2::-1] for name, x in vars(cls).items()}
        held = {**shared, **(vars(value) if isinstance(value, types.ModuleType) else {} if isinstance(value, type) else attributes(value))}
        names = [*own]
        taken: dict[str, Any] = {}
        for name in names:  # grows: methods take further ones
            if name in held and name not in taken:
                content = taken[name] = _unwrapped(held[name])
                names += all_names(content.__code__) if isinstance(content, types.FunctionType) else ()
        with self._naming(names):
            return (_kept(value), *[(name, self.of(taken[name])) for name in sorted(taken)])


def _unwrapped(held: Any) -> Any:
    """Return the function that a class holds as a property or a method of its own kind; anything else as it is."""
    if isinstance(held, (classmethod, staticmethod)):
        return held.__func__
    return held.fget if isinstance(held, property) else held


def _is_installed(file: str) -> bool:
    """Tell whether code in a file is a library's, which reads by name what does not change."""
    return file.startswith((*LIBRARIES, STANDARD)) or "-packages" in file
