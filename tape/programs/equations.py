"""Steps of ``tape.jit`` as one list: parts of the tape, and equations that JAX traced between; what repeats in it is a loop of XLA's."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tape import jaxapi
from tape.jaxapi import ClosedJaxpr, JaxprEqn, Literal, ShapedArray, Var
from tape.ops.building import JaxprBuilder, alone, number_key
from tape.ops.kernel import Kernel
from tape.programs.loops import Flow, PerTurn
from tape.programs.rolling import FEW, chosen_inside, equations
from tape.programs.scans import Writing, fitted
from tape.programs.traced import Part

_SLICE, _FROM = jaxapi.primitive("slice"), jaxapi.primitive("dynamic_slice")
_DERIVED = [jaxapi.primitive("custom_jvp_call"), jaxapi.primitive("custom_vjp_call")]
_INT32 = np.dtype(np.int32)


class _Held:
    """A part of the tape, as long as somebody else holds it."""

    __slots__ = ("part",)

    def __init__(self, part: Callable[[], Part | None]) -> None:
        self.part = part


def placed(part: Part, inputs: Sequence[Any], holder: list[Part]) -> Sequence[Any]:
    """Take a part of the tape into the step that JAX is tracing, as one equation for now; return its results.

    JAX keeps the parameters of equations for longer than these, so that the part is held by whoever traces.
    """
    holder.append(part)
    results: Sequence[Any] = _PART.bind(*inputs, part=_Held(weakref.ref(part)))
    return results


_PART = jaxapi.Primitive("part")
_PART.multiple_results = True
_PART.def_abstract_eval(lambda *_, part: [part.part().aval(slot) for slot in part.part().keep])


def _part_of(eqn: JaxprEqn) -> Part | None:
    """Return the part of the tape that an equation is, if it is one."""
    if eqn.primitive is not _PART:
        return None
    part: Part | None = eqn.params["part"].part()
    assert part is not None, "it is held as long as the step is traced"
    return part


def ops_of(closed: ClosedJaxpr) -> list[str]:
    """Return the names of what a step was recorded as: the tape's ops, and primitives of what JAX traced between."""
    return [
        name
        for eqn in closed.jaxpr.eqns
        for part in (_part_of(eqn),)
        for name in ([eqn.primitive.name] if part is None else [e.kernel.name for e in part.recorded])
    ]


def written(closed: ClosedJaxpr, *, final: bool) -> ClosedJaxpr:
    """Return what a step was traced to with its parts written, and with loops for what repeats, unless it compiles soon without.

    A ``final`` one is not differentiated any more, so that derivatives of its parts' own go.
    """
    parts = [part for eqn in closed.jaxpr.eqns if (part := _part_of(eqn)) is not None]
    size = len(closed.jaxpr.eqns) - len(parts) + sum(equations(part.recorded) for part in parts)
    if size >= FEW and not any(eqn.effects for eqn in closed.jaxpr.eqns) and jax.sharding.get_abstract_mesh().empty:
        with_loops = _with_loops(closed, final=final)
        if with_loops is not None:
            return with_loops
    return _straight(closed, final=final) if parts else closed


def _straight(closed: ClosedJaxpr, *, final: bool) -> ClosedJaxpr:
    """Return the same with the equations of its parts."""

    def instead(eqn: JaxprEqn) -> ClosedJaxpr | None:
        part = _part_of(eqn)
        if part is None:
            return None
        joined, outputs = part.joined(final=final)
        return joined.closed(outputs)

    into = JaxprBuilder()
    return into.closed(into.inline(closed, [into.input(v.aval) for v in closed.jaxpr.invars], instead=instead))


def _with_loops(closed: ClosedJaxpr, *, final: bool) -> ClosedJaxpr | None:
    """Return a jaxpr that computes the same with loops; None where there are none that are worth it."""
    jaxpr = closed.jaxpr
    listing = _Listing(next((part.size for eqn in jaxpr.eqns if (part := _part_of(eqn)) is not None), 0), final=final)
    inputs = [listing.slot(v) for v in jaxpr.invars]
    listing.add(closed, None)
    entries, avals = listing.entries, listing.avals
    flow = Flow(entries, [listing.slot(v) for v in jaxpr.outvars])
    numbers = {slot: value for slot, value in listing.values.items() if avals[slot].shape == () and not isinstance(value, jax.Array)}
    loops = chosen_inside(flow, list(numbers))
    if not loops:
        return None

    def run(*arrays: Any) -> list[Any]:
        writing = Writing(flow, {**listing.values, **dict(zip(inputs, arrays, strict=True))})
        rows: dict[Any, dict[int, None]] = {}  # by dtype, numbers that are other ones in each turn
        own = [slot for loop in loops for source in loop.sources if isinstance(source, PerTurn) for slot in source.slots]
        for slot in own:
            if slot in numbers:
                rows.setdefault(avals[slot].dtype, {})[slot] = None
        for dtype, line in rows.items():
            writing.stack(np.array([numbers[slot] for slot in line], dtype), list(line), avals)
        results = writing.whole(loops)
        return [fitted(x, v.aval) for x, v in zip(results, jaxpr.outvars, strict=True)]

    return jaxapi.trace(run, *[v.aval for v in jaxpr.invars])[0]


class _Entry(NamedTuple):
    """An entry of a part, or an equation as one, whose kernel bears the name under which it was traced."""

    kernel: Any
    inputs: tuple[int, ...]
    slots: tuple[int, ...]
    op: Any = None
    where: tuple[Any, ...] | None = None


class _Listing:
    """A jaxpr's equations as entries, equal ones with the same kernel, and what they read that is known.

    The first part has its own ``first`` slots, so that most of its entries stand here as they are.
    """

    def __init__(self, first: int, *, final: bool) -> None:
        self.entries: list[Any] = []
        self.avals: dict[int, Any] = {}  # by slot, but for results of parts
        self._first, self._free = first, first
        self.values: dict[int, Any] = {}  # of constants and numbers
        self._final = final
        self._slots: dict[Any, int] = {}  # by variable, or by which number it is
        self._kernels: dict[Hashable, Kernel] = {}

    def slot(self, atom: Any) -> int:
        """Return the slot of what an equation reads."""
        key = number_key(atom) if isinstance(atom, Literal) else atom
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = self._add(atom.aval)
            if isinstance(atom, Literal):
                self.values[slot] = atom.val
        return slot

    def _add(self, aval: Any) -> int:
        slot, self._free = self._free, self._free + 1
        self.avals[slot] = aval
        return slot

    def add(self, closed: ClosedJaxpr, names: Any) -> None:
        """Add the equations of a jaxpr whose inputs have slots, within what bears these ``names``."""
        for v, constant in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            self.values[self.slot(v)] = constant
        for eqn in closed.jaxpr.eqns:
            info: Any = eqn.source_info
            stack = info.name_stack if names is None else names + info.name_stack
            if (part := _part_of(eqn)) is not None:
                self._take(part, eqn)
            elif self._final and eqn.primitive in _DERIVED:  # each time it is another call, though of the same
                called = jaxapi.closed(eqn.params["call_jaxpr"])
                self._slots.update(zip(called.jaxpr.invars, map(self.slot, eqn.invars), strict=True))
                self.add(called, stack)
                self._slots.update(zip(eqn.outvars, map(self.slot, called.jaxpr.outvars), strict=True))
            else:
                self._enter(_where_known(eqn), stack)

    def _take(self, part: Part, eqn: JaxprEqn) -> None:
        leaves = dict(zip(part.inputs, map(self.slot, eqn.invars), strict=True))
        numbers = {id(number): number for number in part.numbers.values()}
        known = {key: self.slot(number) for key, number in numbers.items()}
        leaves.update((slot, known[id(number)]) for slot, number in part.numbers.items())
        own = bool(self._first)
        on = 0 if own else self._free
        self._first, self._free = 0, self._free + (0 if own else part.size)
        own &= not part.named
        for entry in part.entries(final=self._final):
            if own and leaves.keys().isdisjoint(entry.inputs):
                self.entries.append(entry)
            else:
                read = tuple([leaves[s] if s in leaves else on + s for s in entry.inputs])
                self.entries.append(_Entry(entry.kernel, read, tuple([on + s for s in entry.slots]), entry.op, part.line(entry)))
        self._slots.update(zip(eqn.outvars, [leaves[s] if s in leaves else on + s for s in part.keep], strict=True))

    def _enter(self, eqn: JaxprEqn, stack: Any) -> None:
        read = tuple(map(self.slot, eqn.invars))
        given = [self._add(v.aval) for v in eqn.outvars]  # another one where a jaxpr is called twice
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
    outs = [Var(v.aval) for v in eqn.outvars]
    return Kernel(eqn.primitive.name, alone(eqn.replace(outvars=outs, source_info=info.replace(name_stack=stack))), None)
