"""Assembly: jaxprs of many lines put together from parts, without tracing them again.

The VJP of a long jaxpr (a lifted model) is a sweep over its lines like that over the entries of a tape.  Lines with the same primitive,
parameters, shapes and dtypes have the same VJP, which is traced once: layers that are alike cost one trace.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import lax

from tape import jaxapi
from tape.configuration import configuration
from tape.ops import building
from tape.ops.linear import Constant

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tape.ops.linear import Line, LineList

__all__ = ["Forward", "line_key", "one_line", "vjp_of_lines"]


class Forward:
    """The forward values of a list of lines as atoms of a jaxpr that is being put together; each line is added when it is read."""

    def __init__(self, into: building.JaxprBuilder, listed: LineList) -> None:
        self.into = into
        self.listed = listed
        self.atoms: dict[int, Any] = {slot: into.input(listed.avals[slot]) for slot in range(listed.n_inputs)}
        self._producer = {slot: line for line in listed.lines for slot in line.outputs}

    def read(self, wanted: int | Constant) -> Any:
        """Return the atom of a slot (with the lines that it depends on) or of a constant."""
        if isinstance(wanted, Constant):
            return self.into.constant(wanted.value, wanted.aval)
        atoms = self.atoms
        if wanted not in atoms:
            stack = [self._producer[wanted]]
            while stack:
                missing = [self._producer[s] for s in stack[-1].inputs if isinstance(s, int) and s not in atoms]
                if missing:
                    stack.extend(missing)
                else:
                    self.add(stack.pop())
        return atoms[wanted]

    def add(self, line: Line) -> None:
        """Add one line whose inputs are there."""
        if all(s in self.atoms for s in line.outputs):
            return
        ins = [self.read(s) for s in line.inputs]
        outs = self.into.equation(line.eqn, line.params, ins, [self.listed.avals[s] for s in line.outputs])
        for slot, atom in zip(line.outputs, outs, strict=True):
            self.atoms.setdefault(slot, atom)


def _is_number(source: int | Constant) -> bool:
    return isinstance(source, Constant) and building.is_number(source.value)


def _holds_tracers(param: Any) -> bool:
    """Tell whether a parameter holds values of the JAX transformation that is running: nothing may keep it beyond that."""
    if isinstance(param, (tuple, list)):
        return any(map(_holds_tracers, param))
    return isinstance(param, jaxapi.ClosedJaxpr) and any(isinstance(c, jaxapi.Tracer) for c in param.consts)


def line_key(line: Line, avals: Sequence[Any]) -> Any:
    """Return what lines have in common that have the same VJP; None where that cannot be told."""
    if any(_holds_tracers(value) for value in line.params.values()):
        return None
    operands = [avals[s] if isinstance(s, int) else (s.aval, np.asarray(s.value).tobytes() if _is_number(s) else None) for s in line.inputs]
    key = (line.primitive, tuple(line.params.items()), tuple(operands), tuple([avals[s] for s in line.outputs]), configuration())
    try:
        hash(key)
    except TypeError:
        return None
    return key


def one_line(line: Line, avals: Sequence[Any]) -> jaxapi.ClosedJaxpr:
    """Make a jaxpr of one line; its inputs are the line's but for the numbers."""
    into = building.JaxprBuilder()
    ins = [
        into.input(avals[s]) if isinstance(s, int) else into.constant(s.value, s.aval) if _is_number(s) else into.input(s.aval)
        for s in line.inputs
    ]
    return into.closed(into.equation(line.eqn, line.params, ins, [avals[s] for s in line.outputs]))


def vjp_of_lines(
    listed: LineList,
    out_avals: Sequence[Any],
    active: Sequence[bool],
    present: Sequence[bool],
    adding: Sequence[bool],
    same: Sequence[int],
    kernel_of: Callable[[Line, Sequence[Any]], Any],
) -> tuple[jaxapi.ClosedJaxpr, list[int]]:
    """Put the VJP of a list of lines together.

    Args:
        listed: the lines.
        out_avals: shapes and dtypes of their outputs.
        active: for each slot, whether a gradient can flow from it to where one is wanted.
        present: for each output, whether it has a cotangent.
        adding: for each input, whether there is a sum to add to, as for :meth:`tape.ops.kernel.Kernel.vjp`.
        same: for each input, the first one that is the same value.
        kernel_of: returns the kernel of one line.

    Returns:
        A jaxpr of the inputs, the outputs, the present cotangents and the sums to add to, and which inputs it gives cotangents of.

    """
    into = building.JaxprBuilder()
    forward = Forward(into, listed)
    for slot, aval in zip(listed.outputs, out_avals, strict=True):
        atom = into.input(aval)
        if isinstance(slot, int):
            forward.atoms.setdefault(slot, atom)
    totals: dict[int, Any] = {}
    for slot, a, p in zip(listed.outputs, out_avals, present, strict=True):
        if p:
            atom = into.input(jaxapi.ShapedArray(a.shape, a.dtype))
            if isinstance(slot, int) and active[slot]:
                _add(into, totals, slot, atom)
    avals = listed.avals[: listed.n_inputs]
    sums = {i: into.input(jaxapi.ShapedArray(a.shape, a.dtype)) for i, (a, p) in enumerate(zip(avals, adding, strict=False)) if p}
    _sweep(forward, totals, active, kernel_of)
    found = {i: totals[i] for i in range(listed.n_inputs) if i in totals and active[i]}
    for i, atom in found.items():
        _add(into, sums, same[i] if same else i, atom)
    targets = sorted({same[i] if same else i for i in found})
    return into.closed([sums[i] for i in targets]), targets


def _add(into: building.JaxprBuilder, totals: dict[int, Any], slot: int, atom: Any) -> None:
    """Add a cotangent to what there is for a slot."""
    if slot in totals:
        (atom,) = into.inline(_sum(jaxapi.ShapedArray(atom.aval.shape, atom.aval.dtype)), [totals[slot], atom])
    totals[slot] = atom


@functools.lru_cache(maxsize=1024)
def _sum(aval: Any) -> jaxapi.ClosedJaxpr:
    return jaxapi.trace(lax.add, aval, aval)[0]


def _sweep(forward: Forward, totals: dict[int, Any], active: Sequence[bool], kernel_of: Callable[[Line, Sequence[Any]], Any]) -> None:
    """Sweep lines backwards, adding what their VJPs compute to ``totals``: for each slot that has one, its cotangent."""
    for line in reversed(forward.listed.lines):
        present = tuple([s in totals for s in line.outputs])
        if True not in present:
            continue
        inputs = [s for s in line.inputs if not _is_number(s)]
        wanted = tuple([isinstance(s, int) and active[s] for s in inputs])
        if True not in wanted:
            continue
        first = [inputs.index(s) for s in inputs]
        same = tuple(first) if len(set(first)) < len(first) else ()
        adding = tuple([w and s in totals and first[i] == i for i, (s, w) in enumerate(zip(inputs, wanted, strict=True))])
        vjp = kernel_of(line, forward.listed.avals).vjp(present, wanted, adding if True in adding else (), same)
        known = [totals[s] for s in line.outputs if s in totals]
        known += [totals[s] for s, a in zip(inputs, adding, strict=True) if a and isinstance(s, int)]
        forwards = [*inputs, *line.outputs]
        atoms = [known[i - len(forwards)] if i >= len(forwards) else forward.read(forwards[i]) for i in vjp.sources]
        results = atoms if vjp.kernel is None else forward.into.inline(vjp.kernel.jaxpr, atoms)
        for slot in line.outputs:
            totals.pop(slot, None)
        for i, value in zip(vjp.targets, results, strict=True):
            slot = inputs[i]
            assert isinstance(slot, int)
            totals[slot] = value
