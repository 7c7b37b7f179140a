"""Running inside a JAX transformation: entries are put together into one jaxpr, loops as loops, which JAX takes as a single call."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import jax

from tape import jaxapi
from tape.configuration import applying
from tape.graph.kinds import is_scalar
from tape.graph.segment import Segment
from tape.graph.trie import CONSTANT, Step
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
            table = segment.state.table
            return _merged(entries, {s: (v, table[s].kind.aval) for s, v in values.items()}, keep, segment.state.cut)
        return evaluate(entries, values, keep, lambda step: inline(step, differentiable_as_recorded(step, segment.state.cut).inline))


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


def differentiable_as_recorded(step: Step, cut: frozenset[int]) -> Kernel:
    """Return an entry's kernel; recorded under ``no_grad`` or cut from its past, JAX may not differentiate it either."""
    kernel: Kernel = step.kernel
    if step.mode == CONSTANT:
        return kernel.stopped()
    return kernel if cut.isdisjoint(step.slots) else kernel.stopped(frozenset([i for i, s in enumerate(step.slots) if s in cut]))


def _merged(entries: Sequence[Step], leaves: dict[int, tuple[Any, Any]], keep: Sequence[int], cut: frozenset[int]) -> Sequence[Any]:
    """Put the jaxprs of entries together into one, and call it on ``leaves``: values, with their shapes and dtypes."""
    # What a loop carries must have one type; on a mesh, types say where values are, which is seen only as JAX goes through the turns.
    if jax.sharding.get_abstract_mesh().empty and all(differentiable_as_recorded(step, cut) is step.kernel for step in entries):
        values = [value for value, _ in leaves.values()]
        loops = rolled_inside(entries, list(leaves), keep, values)
        if loops is not None:
            return loops.called("tape", values)
    joined = building.JaxprBuilder()
    atoms: dict[int, Any] = {}
    inputs = []
    for slot, (value, aval) in leaves.items():
        if is_scalar(value):
            atoms[slot] = joined.constant(value, aval)
        else:
            atoms[slot] = joined.input(aval)
            inputs.append(value)
    for step in entries:
        copy(step, joined, atoms, differentiable_as_recorded(step, cut))
    return joined.call("tape", [atoms[s] for s in keep], inputs)
