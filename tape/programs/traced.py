"""Running inside a JAX transformation: entries are put together into one jaxpr, loops as loops, which JAX takes as a single call."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Hashable, Sequence
from typing import Any

import jax

from tape import jaxapi
from tape.configuration import applying
from tape.graph.kinds import is_scalar
from tape.graph.scope import LOCAL
from tape.graph.segment import Segment
from tape.graph.trie import CONSTANT, State, Step
from tape.ops import building
from tape.ops.kernel import Kernel
from tape.programs.interpretation import evaluate, needed_entries
from tape.programs.naming import copy, inline
from tape.programs.rolling import rolled_inside
from tape.statistics import STATS


def run(segment: Segment, keep: tuple[int, ...]) -> Sequence[Any]:
    """Return the values of the slots ``keep`` of a segment, evaluated in the JAX transformation that it belongs to."""
    entries, leaves = needed_entries(segment.state, keep)
    values = {slot: cell[0] for slot, cell in zip(leaves, segment.leaves, strict=True)}
    inside = contextlib.nullcontext() if segment.trace is None else jaxapi.within(segment.trace)
    with applying(segment.configuration), inside:
        if jaxapi.makes_jaxpr(segment.trace):
            alone = jax.sharding.get_abstract_mesh().empty  # otherwise types say where values are, which is seen only as JAX goes
            part = Part(entries, segment.state, values, keep, next((r.names for r in LOCAL.scope.staged if r() is segment), None))
            results = LOCAL.scope.trace.place(part, [values[slot] for slot in part.inputs], segment.trace) if alone else None
            return part.called(values, loops=alone) if results is None else results
        return evaluate([differentiable_as_recorded(e, segment.state.cut) for e in entries], values, keep, inline)


def run_again(cut: Segment) -> None:
    """Compute anew what JAX differentiates of a segment that has run, now that some of it is cut, and of newer ones that read it."""
    if cut.run is None or not any(_is_traced(cell) for cell in cut.run.saved.values()):
        return
    changed: set[int] = set()  # ids of cells
    later = [s for ref in list(STATS.segments.values()) if (s := ref()) is not None and s.serial >= cut.serial]
    for segment in sorted(later, key=lambda s: s.serial):
        run_of = segment.run
        if run_of is None or not segment.leaves or (segment is not cut and changed.isdisjoint(map(id, segment.leaves))):
            continue
        cells = {slot: cell for slot, cell in run_of.saved.items() if _is_traced(cell)}
        keep = tuple(cells)
        if any(step.kernel.jaxpr.effects for step in needed_entries(segment.state, keep)[0]):
            continue
        for cell, value in zip(cells.values(), run(segment, keep), strict=True):
            cell[0] = value
            changed.add(id(cell))


def _is_traced(cell: object) -> bool:
    return cell.__class__ is list and isinstance(cell[0], jaxapi.Tracer)


def differentiable_as_recorded(step: Step, cut: frozenset[int]) -> Step:
    """Return an entry; where it was recorded under ``no_grad`` or cut from its past, as one that JAX does not differentiate either."""
    kernel: Kernel = step.kernel
    if step.mode == CONSTANT:
        kernel = kernel.stopped()
    elif not cut.isdisjoint(step.slots):
        kernel = kernel.stopped(frozenset([i for i, s in enumerate(step.slots) if s in cut]))
    return step if kernel is step.kernel else Step(kernel, step.inputs, step.slots, step.where, step.depth)


_REAL = (bool, int, float)  # others are told apart in more ways than by their signs


class Part:
    """Entries of a segment between its leaves (``values`` by slot, which it does not keep) and the slots to ``keep``, as one jaxpr."""

    def __init__(self, entries: Sequence[Step], state: State, values: dict[int, Any], keep: Sequence[int], names: object = None) -> None:
        self.recorded = entries
        self.keep = keep
        self.size = state.n_slots
        self._names = (str(names),) if str(names or "") else ()
        self._cut = state.cut
        self._table = state.table
        self.inputs = [slot for slot, value in values.items() if not is_scalar(value)]
        self.numbers = self._literals({slot: value for slot, value in values.items() if is_scalar(value)})

    def _literals(self, numbers: dict[int, Any]) -> dict[int, Any]:
        """Return what stands for numbers in equations: of the same ones, one, for in a loop they come again and again."""
        known: dict[Hashable, Any] = {}
        literals = {}
        for slot, number in numbers.items():
            kind = self._table[slot].kind
            key: Hashable = (kind, number, math.copysign(1, number)) if isinstance(number, _REAL) else (kind, slot)
            literal = known.get(key)
            if literal is None:
                literal = known[key] = building.literal(number, kind.aval)
            literals[slot] = literal
        return literals

    def aval(self, slot: int) -> Any:
        """Return the shape and dtype of a slot."""
        return self._table[slot].kind.aval

    def entries(self, *, final: bool = False) -> Sequence[Step]:
        """Return the entries; those of a ``final`` program are not differentiated any more."""
        return self.recorded if final else [differentiable_as_recorded(entry, self._cut) for entry in self.recorded]

    @property
    def named(self) -> bool:
        """Whether it was recorded within names."""
        return bool(self._names)

    def line(self, entry: Step) -> tuple[Any, ...] | None:
        """Return where an entry was recorded: file and line, and within which names, if any."""
        return entry.where if entry.where is None else (*entry.where, *self._names)

    def joined(self, *, final: bool = False) -> tuple[building.JaxprBuilder, list[Any]]:
        """Return one jaxpr of all, as it is being built, and what stands for its results in it."""
        into = building.JaxprBuilder()
        atoms: dict[int, Any] = {slot: into.input(self.aval(slot)) for slot in self.inputs}
        atoms.update(self.numbers)
        for entry in self.entries(final=final):
            copy(entry, into, atoms, self.line(entry))
        return into, [atoms[slot] for slot in self.keep]

    def called(self, values: dict[int, Any], *, loops: bool) -> Sequence[Any]:
        """Call it in the JAX transformation that is running, with ``loops`` for what repeats."""
        rolled = rolled_inside(self.entries(), list(values), self.keep, list(values.values())) if loops else None
        if rolled is not None:
            return rolled.called("tape", list(values.values()))
        into, outputs = self.joined()
        return into.call("tape", outputs, [values[slot] for slot in self.inputs])
