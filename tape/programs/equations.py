"""Equations of a jaxpr as entries: where they repeat, as those of a Python loop in a step of ``tape.jit`` do, they are a loop of XLA's."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tape import jaxapi
from tape.jaxapi import ClosedJaxpr, JaxprEqn, Literal, ShapedArray, Var
from tape.ops.building import number_key
from tape.ops.kernel import Kernel
from tape.programs.costs import Costs
from tape.programs.loops import Flow, Loop, Outside, find
from tape.programs.rolling import FEW, chosen
from tape.programs.scans import Writing, fitted

# Seconds to compile: a kernel that is like no other, and an equation where there are others like it, whose kernel XLA has.
_KERNEL, _AGAIN = 0.011, 0.001
LEAST = 0.3  # seconds that loops must save

_SLICE, _FROM = jaxapi.primitive("slice"), jaxapi.primitive("dynamic_slice")
_DERIVED = [jaxapi.primitive("custom_jvp_call"), jaxapi.primitive("custom_vjp_call")]
_INT32 = np.dtype(np.int32)


def with_loops(closed: ClosedJaxpr, *, final: bool) -> ClosedJaxpr:
    """Return a jaxpr that computes the same with loops for what repeats; itself where nothing does, or where it compiles soon as it is.

    A ``final`` one is not differentiated any more, so that derivatives of its parts' own go.
    """
    jaxpr = closed.jaxpr
    if len(jaxpr.eqns) < FEW or any(eqn.effects for eqn in jaxpr.eqns) or not jax.sharding.get_abstract_mesh().empty:
        return closed
    listing = _Listing(final=final)
    inputs = [listing.slot(v) for v in jaxpr.invars]
    listing.add(closed, None)
    entries, avals = listing.entries, listing.avals
    flow = Flow(entries, [listing.slot(v) for v in jaxpr.outvars])
    numbers = {slot: value for slot, value in listing.values.items() if avals[slot].shape == () and not isinstance(value, jax.Array)}
    found = find(flow)
    if _saved(flow, found, numbers) < LEAST:
        return closed
    loops, _ = chosen(flow, found, dict.fromkeys(numbers, 0), calls=False, waits=True)
    if not loops:
        return closed

    def run(*arrays: Any) -> list[Any]:
        writing = Writing(flow, {**listing.values, **dict(zip(inputs, arrays, strict=True))})
        rows: dict[Any, dict[int, None]] = {}  # by dtype, numbers that are other ones in each turn
        for slot in _read_in_turn(loops):
            if slot in numbers:
                rows.setdefault(avals[slot].dtype, {})[slot] = None
        for dtype, line in rows.items():
            writing.stack(np.array([numbers[slot] for slot in line], dtype), list(line), avals)
        results = writing.whole(loops, flow.keep)
        return [fitted(x, v.aval) for x, v in zip(results, jaxpr.outvars, strict=True)]

    return jaxapi.trace(run, *[v.aval for v in jaxpr.invars])[0]


def _saved(flow: Flow, loops: Sequence[Loop], numbers: Collection[int]) -> float:
    """Return the seconds of compilation that loops save: those of their turns, but for the rows that are taken out of what they give."""
    seconds, costs = 0.0, Costs(flow, loops, ())
    for loop in loops:
        others = sum(any(isinstance(s, Outside) and len(s.slots) > 1 and s.slots[0] in numbers for s in sources) for sources in loop.reads)
        seconds += (loop.count - 1) * (others * _KERNEL + (loop.period - others) * _AGAIN) - costs.taken_out(loop) * _KERNEL
    return seconds


def _read_in_turn(loops: Sequence[Loop]) -> Iterator[int]:
    for loop in loops:
        for sources in loop.reads:
            for source in sources:
                if isinstance(source, Outside) and len(source.slots) > 1:
                    yield from source.slots


class _Entry(NamedTuple):
    """An equation as an entry; its kernel bears the name under which it was traced."""

    kernel: Any
    inputs: tuple[int, ...]
    slots: tuple[int, ...]
    op: None = None
    where: None = None


class _Listing:
    """A jaxpr's equations as entries, equal ones with the same kernel, and what they read that is known."""

    def __init__(self, *, final: bool) -> None:
        self.entries: list[Any] = []
        self.avals: dict[int, Any] = {}  # by slot
        self.values: dict[int, Any] = {}  # of constants and numbers
        self._final = final
        self._slots: dict[Any, int] = {}  # by variable, or by which number it is
        self._kernels: dict[Hashable, Kernel] = {}

    def slot(self, atom: Any) -> int:
        """Return the slot of what an equation reads."""
        key = number_key(atom) if isinstance(atom, Literal) else atom
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = self._new(atom)
            if isinstance(atom, Literal):
                self.values[slot] = atom.val
        return slot

    def _new(self, atom: Any) -> int:
        slot = len(self.avals)
        self.avals[slot] = atom.aval
        return slot

    def add(self, closed: ClosedJaxpr, names: Any) -> None:
        """Add the equations of a jaxpr whose inputs have slots, within what bears these ``names``."""
        for v, constant in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            self.values[self.slot(v)] = constant
        for eqn in closed.jaxpr.eqns:
            info: Any = eqn.source_info
            stack = info.name_stack if names is None else names + info.name_stack
            if self._final and eqn.primitive in _DERIVED:  # each time it is another call, though of the same
                called = jaxapi.closed(eqn.params["call_jaxpr"])
                self._slots.update(zip(called.jaxpr.invars, map(self.slot, eqn.invars), strict=True))
                self.add(called, stack)
                self._slots.update(zip(eqn.outvars, map(self.slot, called.jaxpr.outvars), strict=True))
            else:
                self._enter(_where_known(eqn), stack)

    def _enter(self, eqn: JaxprEqn, stack: Any) -> None:
        read = tuple(map(self.slot, eqn.invars))
        given = [self._new(v) for v in eqn.outvars]  # another one where a jaxpr is called twice
        self._slots.update(zip(eqn.outvars, given, strict=True))
        key: Hashable = (eqn.primitive, tuple([v.aval for v in eqn.invars]), tuple(eqn.params.items()), eqn.ctx, str(stack))
        try:
            kernel = self._kernels.get(key)
        except TypeError:  # a parameter that is not hashed: like no other
            key, kernel = len(self.entries), None
        if kernel is None:
            kernel = self._kernels[key] = _kernel(eqn, stack)
        self.entries.append(_Entry(kernel, read, tuple(given)))


def _where_known(eqn: JaxprEqn) -> JaxprEqn:
    """Return a slice, as in ``x[3]``, as one from numbers on, so that it is the same as others of its size; other equations as they are."""
    if eqn.primitive is not _SLICE or set(eqn.params["strides"] or [1]) != {1}:
        return eqn
    starts, ends = eqn.params["start_indices"], eqn.params["limit_indices"]
    sizes = tuple([end - start for start, end in zip(starts, ends, strict=True)])
    numbers = [Literal(np.int32(start), ShapedArray((), _INT32)) for start in starts]
    known: JaxprEqn = eqn.replace(primitive=_FROM, invars=[eqn.invars[0], *numbers], params={"slice_sizes": sizes})
    return known


def _kernel(eqn: JaxprEqn, stack: Any) -> Kernel:
    """Return a kernel that is one equation."""
    info: Any = eqn.source_info
    ins: list[Any] = [Var(v.aval) for v in eqn.invars]
    outs = [Var(v.aval) for v in eqn.outvars]
    alone = eqn.replace(invars=ins, outvars=outs, source_info=info.replace(name_stack=stack))
    return Kernel(eqn.primitive.name, ClosedJaxpr(jaxapi.assembled([], ins, outs, [alone], eqn.effects, jaxapi.no_origin()), []), None)
