"""The compiled programs of a check: compiled quickly, and found again by a later check that asks for the same computation.

What a program computes is read off the jaxprs it is made of, traced anew by each check.  So the second check of a function compiles
nothing, a function that changed its mind is noticed, and no two functions share a program unless their jaxprs are the same.
"""

from __future__ import annotations

import collections
import concurrent.futures
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.callables.objects import Itself
from tape.jaxapi import Jaxpr
from tape.ops.running import quick_options
from tape.testing.precise import RULE_PRIMITIVES, Precise, inner

MOST = 256  # programs that are kept
_KEPT: collections.OrderedDict[Hashable, tuple[Any, list[bool]]] = collections.OrderedDict()
_LOCK = threading.Lock()
_BACKGROUND = concurrent.futures.ThreadPoolExecutor(1, "tape.testing")


def quickly(fun: Callable[..., Any]) -> Any:
    """Compile a program that runs once."""
    return jax.jit(fun, compiler_options=quick_options(jax.default_backend()))


class Program:
    """``fun(*args)``, which computes with ``parts``, as one program.

    Args:
        kind: what ``fun`` makes of its parts; two programs are the same if kind, parts and the arguments' shapes are.
        fun: the function, over pytrees of arrays.
        parts: the jaxprs that it evaluates.

    """

    def __init__(self, kind: Hashable, fun: Callable[..., Any], parts: Iterable[Precise]) -> None:
        self._kind = kind
        self._fun = fun
        self._parts = list(parts)
        self._signature: Any = None
        self._compiled: dict[Hashable, Any] = {}  # by the arguments' shapes; what the background compiles, as a future
        self._mapped: Program | None = None

    def __call__(self, *args: object) -> Any:
        """Run in double precision."""
        with jax.enable_x64(True):
            shapes = self._shapes(args)
            program = self._compiled.get(shapes)
            if program is None:
                key = self._key(shapes)
                program = self._compiled[shapes] = self._recalled(key) or self._compile(key, self._lower(args))
            elif isinstance(program, concurrent.futures.Future):
                program = self._compiled[shapes] = program.result()
            executable, opaque = program
            for part, was in zip(self._parts, opaque, strict=True):
                part.opaque = part.opaque or was
            return executable([part.consts for part in self._parts], *args)

    def each(self, points: Iterable[Any]) -> list[Any]:
        """Run for several lists of arguments in one call."""
        batch = [np.stack(column) for column in zip(*points, strict=True)]
        if self._mapped is None:
            self._mapped = Program((self._kind, "each"), lambda xs: jax.lax.map(lambda x: self._fun(*x), xs), self._parts)
        columns = jax.tree.map(np.asarray, self._mapped(batch))
        return [jax.tree.map(lambda a, i=i: a[i], columns) for i in range(len(batch[0]))]

    def prepare(self, *args: object) -> None:
        """Compile in the background for arguments of these shapes."""
        with jax.enable_x64(True):
            shapes = self._shapes(args)
            key = self._key(shapes)
            self._compiled[shapes] = self._recalled(key) or _BACKGROUND.submit(self._compile, key, self._lower(args))

    @staticmethod
    def _shapes(args: object) -> Hashable:
        leaves, tree = jax.tree.flatten(args)
        return tree, tuple(_aval(x) for x in leaves)

    def _key(self, shapes: Hashable) -> Hashable:
        if self._signature is None:
            self._signature = (
                self._kind,
                tuple((signature(part.closed.jaxpr), part.further, part.most, part.twice) for part in self._parts),
                tuple(_aval(c) for part in self._parts for c in part.consts),
                getattr(jax.config, "jax_default_device", None),
            )
        return self._signature, shapes

    @staticmethod
    def _recalled(key: Hashable) -> Any:
        with _LOCK:
            kept = _KEPT.get(key)
            if kept is not None:
                _KEPT.move_to_end(key)
            return kept

    def _lower(self, args: Sequence[object]) -> Any:
        return jax.jit(self._with_consts).lower([part.consts for part in self._parts], *args)

    def _compile(self, key: Hashable, lowered: Any) -> Any:
        compiled = lowered.compile(quick_options(jax.default_backend())), [part.opaque for part in self._parts]
        with _LOCK:
            _KEPT[key] = compiled
            while len(_KEPT) > MOST:
                _KEPT.popitem(last=False)
        return compiled

    def _with_consts(self, consts: Sequence[Any], *args: object) -> object:
        """Call the function with the constants of its parts as arguments, so that other constants need no other program."""
        own = [part.consts for part in self._parts]
        try:
            for part, given in zip(self._parts, consts, strict=True):
                part.consts = given
            return self._fun(*args)
        finally:
            for part, given in zip(self._parts, own, strict=True):
                part.consts = given


def signature(jaxpr: Jaxpr) -> tuple[Hashable, ...]:
    """Return what a jaxpr computes, as a key: equal keys mean equal results (rules of derivatives are left out)."""
    numbers: dict[Any, int] = {}

    def atom(a: object) -> Hashable:
        if isinstance(a, jaxapi.Literal):
            return _value(a.val), a.aval
        return numbers[a]

    def bound(variables: Sequence[Any]) -> tuple[Hashable, ...]:
        for v in variables:
            numbers[v] = len(numbers)
        return tuple(v.aval for v in variables)

    lines: list[Hashable] = [bound(jaxpr.constvars), bound(jaxpr.invars)]
    for eqn in jaxpr.eqns:
        inputs = tuple(map(atom, eqn.invars))
        params = {"": inner(eqn)} if eqn.primitive.name in RULE_PRIMITIVES else eqn.params
        lines.append((eqn.primitive, inputs, _value(params), bound(eqn.outvars)))
    return (*lines, tuple(map(atom, jaxpr.outvars)))


def _value(x: object) -> Hashable:
    """Return a parameter or literal as a key."""
    if isinstance(x, jaxapi.Jaxpr):
        return signature(x)
    if isinstance(x, jaxapi.ClosedJaxpr):
        return signature(x.jaxpr), tuple(map(_value, x.consts))
    if isinstance(x, (tuple, list)):
        return type(x), tuple(map(_value, x))
    if isinstance(x, dict):
        return tuple((k, _value(v)) for k, v in x.items())
    if isinstance(x, (np.ndarray, np.generic)) and x.dtype != object:
        return x.dtype, x.shape, x.tobytes()
    if isinstance(x, (float, complex)):
        return type(x), np.asarray(x).tobytes()  # zero has a sign, and NaN is not a key
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.number):
        return x.dtype, x.shape, np.asarray(x).tobytes()
    try:
        hash(x)
    except TypeError:
        return Itself(x, kept=True)
    return type(x), x


def _aval(x: Any) -> Hashable:
    """Return what a program is compiled for, of one argument."""
    if isinstance(x, jax.Array):
        return jax.typeof(x), x.sharding
    kind: Any = type(x)
    return (x.shape, x.dtype) if hasattr(x, "dtype") else kind
