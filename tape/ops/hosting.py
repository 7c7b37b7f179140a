"""Hosting: kernels whose arrays are small run on the host, in NumPy, as long as compiling them would cost more.

XLA needs 20 to 80 ms to compile even the smallest kernel for its shapes, and 5 to 10 us to run it; NumPy runs a primitive on a small array
in 1 us, at any shape, at once.  So what is met once, or always on other shapes, waits for no compiler; and a kernel over big arrays is
compiled when what NumPy needs for its runs has come to what the compiler needs.  That is foreseen, not measured: which run is made where
depends on the runs alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from tape import jaxapi
from tape.configuration import checks_results
from tape.graph.wengert import WengertList
from tape.jaxapi import ClosedJaxpr
from tape.ops import host_solving
from tape.ops.building import is_number
from tape.ops.host import ON_HOST
from tape.ops.linear import Equation, flatten

Host = np.ndarray[Any, Any]
Place = list[jax.sharding.Sharding]  # where results are bound to: nowhere in particular, or one device


def place_of(values: Sequence[Any]) -> Place | None:
    """Return where results of these values belong, None where that is not one device."""
    arrays = [x for x in values if not is_number(x)]
    for x in arrays:
        if not isinstance(x, jax.Array) or isinstance(x, jaxapi.Tracer) or not isinstance(x.sharding, jax.sharding.SingleDeviceSharding):
            return None
    places = {x.sharding for x in arrays if x.committed}
    return list(places) if len(places) < 2 else None


def owned(value: Any, aval: Any) -> Host | complex:
    """Return a value of NumPy for JAX, in memory of its own: one more user could have it overwritten by donation."""
    if aval.weak_type:  # a number: only one of Python is such
        return value.item()  # type: ignore[no-any-return]
    return np.array(value, aval.dtype, order="C")


COMPILING = 4e7  # nanoseconds that XLA needs for a kernel
_QUICK = 3e4  # nanoseconds: to have XLA run that would save nothing
REFUSALS = (LookupError, TypeError, ValueError, AttributeError)  # of NumPy, of what XLA may run
LIGHT = 4e3  # nanoseconds: its values are so small that they need not be freed at once
_FLOPS = 16.0  # that NumPy does in a nanosecond

_INNER = {
    primitive: key
    for name, key in {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "remat": "jaxpr", "checkpoint": "jaxpr"}.items()
    if (primitive := jaxapi.primitive(name)) is not None
}
_PARTS = set(map(jaxapi.primitive, ("slice", "dynamic_slice", "gather")))  # of their operands they read a part
_DOT = jaxapi.primitive("dot_general")
_COND = jaxapi.primitive("cond")
_PLATFORM = "platform_index"  # a primitive that no public module of JAX's has: which branch of a cond is for this platform


Function = Callable[..., Any]


def hosted(closed: ClosedJaxpr) -> tuple[Function | None, float]:
    """Return what runs a jaxpr on arrays of NumPy, and the nanoseconds that it needs; None where it has primitives or dtypes not for that.

    It returns the results in a tuple, a single one bare.
    """
    if closed.effects or any(a.shape and a.weak_type for a in closed.out_avals):  # only numbers can be handed on as weakly typed
        return None, 0.0
    writer = _Writer()
    function = writer.function(closed)
    return function, writer.cost


class _Writer:
    """Writes the equations of a jaxpr as lines of Python."""

    def __init__(self) -> None:
        self.cost = 0.0
        self._names: dict[str, Any] = {}
        self._lines: list[str] = []

    def function(self, closed: ClosedJaxpr) -> Function | None:
        inputs = [f"a{i}" for i in range(len(closed.jaxpr.invars))]
        results = self._inline(flatten(closed), inputs)
        if results is None:
            return None
        if len(results) == 1 and self._lines == [f"    {results[0]} = c0({', '.join(inputs)})"]:  # nothing but one call
            return self._names["c0"]  # type: ignore[no-any-return]
        ending = f"    return {results[0]}" if len(results) == 1 else f"    return ({' '.join(f'{name},' for name in results)})"
        source = "\n".join([f"def run({', '.join(inputs)}):", *self._lines, ending])
        exec(compile(source, "<kernel on the host>", "exec"), self._names)  # noqa: S102 - of names that are made here
        function: Function = self._names["run"]
        return function

    def _constant(self, value: object) -> str:
        name = f"c{len(self._names)}"
        self._names[name] = value
        return name

    def _inline(self, listed: WengertList[Equation], inputs: Sequence[str]) -> list[str] | None:
        if not all(map(_fits, listed.avals)):
            return None
        names: dict[Any, str] = dict(enumerate(inputs))

        def read(source: Any) -> str:
            if isinstance(source, int):
                return names[source]
            return self._constant(np.asarray(source.value, source.aval.dtype))

        for entry in listed.entries:
            if not all(map(_is_known, entry.inputs)):
                return None
            ins, outs = [listed.aval(s) for s in entry.inputs], [listed.avals[s] for s in entry.slots]
            given = list(map(read, entry.inputs))
            if entry.primitive in _INNER:
                inner = entry.params.get(_INNER[entry.primitive])
                results = None if inner is None else self._inline(flatten(jaxapi.closed(inner)), given)
                if results is None:
                    return None
                names.update(zip(entry.slots, results, strict=True))
                continue
            call = self._call(entry, ins, outs)
            if call is None:
                return None
            named = [f"v{len(self._lines)}_{i}" for i in range(len(outs))]
            names.update(zip(entry.slots, named, strict=True))
            target = f"{' '.join(f'{name},' for name in named)}" if entry.primitive.multiple_results else named[0]
            self._lines.append(f"    {target} = {self._constant(call)}({', '.join(given)})")
        if not all(map(_is_known, listed.outputs)):
            return None
        return list(map(read, listed.outputs))

    def _call(self, entry: Equation, ins: Sequence[Any], outs: Sequence[Any]) -> Function | None:
        """Return what computes an equation, at its cost."""
        if entry.primitive is _COND:
            return self._choice(entry.params["branches"])
        if entry.primitive.name == _PLATFORM:
            return _platform_index(entry.params["platforms"])
        make = ON_HOST.get(entry.primitive)
        self.cost += 0.0 if make is None else _cost(entry, ins, outs)
        return None if make is None else make(entry.params, ins, outs)

    def _choice(self, branches: Sequence[ClosedJaxpr]) -> Function | None:
        """Return what runs one of several jaxprs, by its number, at the cost of the dearest one."""
        writers = [_Writer() for _ in branches]
        functions = [writer.function(branch) for writer, branch in zip(writers, branches, strict=True)]
        if None in functions or not branches[0].out_avals or any(branch.effects for branch in branches):
            return None
        self.cost += max([writer.cost for writer in writers])
        single = len(branches[0].out_avals) == 1
        last = len(branches) - 1

        def run(which: Host, *operands: Host) -> Sequence[Host]:
            results: Any = functions[min(max(int(which), 0), last)](*operands)  # type: ignore[misc]
            return (results,) if single else results

        return run


def _platform_index(platforms: Sequence[Sequence[str] | None]) -> Function | None:
    """Return what tells which of several lists of platforms (None: any other one) is for the default one."""
    here = jax.default_backend()
    number = next((i for i, names in enumerate(platforms) if names is None or here in names), None)
    return None if number is None else lambda: np.int32(number)


def _fits(aval: Any) -> bool:
    """Tell whether a value is one for NumPy."""
    dtype = getattr(aval, "dtype", None)
    return isinstance(dtype, np.dtype) and dtype != jaxapi.float0


def _is_known(source: Any) -> bool:
    """Tell whether a source is computed, or a constant that NumPy has: neither a tracer nor, say, a key."""
    return isinstance(source, int) or (isinstance(source.aval.dtype, np.dtype) and not isinstance(source.value, jaxapi.Tracer))


def _cost(entry: Equation, ins: Sequence[Any], outs: Sequence[Any]) -> float:
    """Return about how many nanoseconds NumPy needs for an equation, beyond what any needs."""
    elements = sum(float(a.size) for a in outs)
    if entry.primitive is _DOT:
        over = entry.params["dimension_numbers"][0][0]
        elements *= 2.0 * math.prod(ins[0].shape[d] for d in over) / _FLOPS
    elements += host_solving.cost(entry.primitive.name, ins)
    return elements if entry.primitive in _PARTS else elements + sum(float(a.size) for a in ins)


def runs(cost: float, compiling: float) -> float:
    """Return how many runs of such a cost are made on the host before a kernel is worth its compilation, foreseen in seconds."""
    return math.inf if cost <= _QUICK else max(COMPILING, compiling * 1e9) // cost


def at_first(function: Function, closed: ClosedJaxpr, compiled: Function) -> Function:
    """Return what runs a jaxpr on JAX's arrays: on the host, if its arguments are on one device."""
    avals, results = closed.in_avals, closed.out_avals

    def run(*args: Any) -> Sequence[Any]:
        place = None if checks_results() else place_of(args)
        if place is None:
            return compiled(*args)  # type: ignore[no-any-return]
        try:
            with np.errstate(all="ignore"):  # NumPy warns where XLA does not
                computed = function(*[np.asarray(x, a.dtype) for x, a in zip(args, avals, strict=True)])
        except REFUSALS:
            return compiled(*args)  # type: ignore[no-any-return]
        arrays = [owned(x, a) for x, a in zip((computed,) if len(results) == 1 else computed, results, strict=True)]
        return jax.device_put(arrays, *place)  # type: ignore[no-any-return]

    return run
