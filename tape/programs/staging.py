"""Staging: ops on the values of a JAX transformation that is running stay pending as well, and enter it together.

Evaluated one by one, each op would pass through JAX's own tracing, primitive by primitive.  Pending in a segment of its own (one per
running transformation), they are recorded on the trie and swept by its plans like any others; when a value is asked for, the jaxprs of
their kernels are put together into one, which JAX takes over as a single call.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

import jax

from tape import jaxapi
from tape.configuration import applying
from tape.graph.walks import needed
from tape.ops import building
from tape.programs.interpretation import needed_entries
from tape.recording import boundary, record
from tape.recording.immediate import record_at_once
from tape.recording.scalars import is_scalar
from tape.recording.scope import LOCAL
from tape.recording.segment import Cell, Handle, Segment, SegmentClosedError, still_open
from tape.recording.trie import CONSTANT
from tape.recording.watcher import NOBODY
from tape.statistics import STATS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tape.ops.kernel import Kernel

__all__ = ["current", "place_in", "record_staged", "recording", "run", "run_again"]


def current() -> Segment | None:
    """Return the pending segment of the JAX transformation that is running; None where ops on its values run at once."""
    scope = LOCAL.scope
    if scope.eager or scope.trace is not NOBODY or not jaxapi.in_trace():
        return None
    trace = jaxapi.current_trace()
    waiting = scope.staged
    for ref in reversed(waiting):
        segment: Segment | None = ref()
        if segment is not None and segment.trace is trace and segment.pending:
            if not still_open(segment):
                break  # it runs when somebody looks at it
            if segment.state.mode != scope.mode:
                segment.state = segment.state.switched(scope.mode)
            return segment
    made = Segment(scope.mode)
    made.trace = trace
    waiting[:] = [*[ref for ref in waiting if (s := ref()) is not None and s.pending], weakref.ref(made)]
    return made


def recording(segment: Segment) -> bool:
    """Tell whether entries recorded now go to ``segment``."""
    return (LOCAL.segment() if segment.trace is None else current()) is segment


def record_staged(op: Any, inputs: Sequence[Handle]) -> Any:
    """Record one entry on values of the running JAX transformation; as :func:`tape.recording.record.record`."""
    while True:
        segment = current()
        if segment is None:
            return record_at_once(op, inputs)
        try:
            key = (op, *[place_in(segment, v) for v in inputs])
            break
        except SegmentClosedError:
            continue
    child = segment.state.next.get(key)
    if child is None:
        child = record.first_meeting(segment, op, key)
    kernel = child.kernel
    assert kernel is not None
    if kernel.jaxpr.effects:  # what it does, it does now, whether or not somebody holds the result
        return record_at_once(op, inputs)
    segment.state = child
    made = []
    for place in child.places[: kernel.visible]:
        cell = segment.cells[place.slot] = [None]
        made.append(record.handle(segment, place, cell))
    return made[0] if kernel.single else jax.tree.unflatten(kernel.tree, made)


def place_in(segment: Segment, variable: Handle) -> int:
    """Return the variable's slot in ``segment``; as :func:`tape.recording.record.place_in`, for a staged segment too."""
    if segment.trace is None or variable._segment is segment:
        return record.place_in(segment, variable)
    cell = variable._cell
    slot = segment.entered.get(id(cell))
    if slot is None and cell[0] is None:
        origin = boundary.awaited(cell, variable._segment, variable._place)
        slot = _made_again(segment, origin, variable._place.slot, cell)
    return record.place_in(segment, variable) if slot is None else slot


def _made_again(segment: Segment, origin: Segment, slot: int, cell: Cell) -> int | None:
    """Record in ``segment`` what made a pending value outside, if it was made of numbers only (``zeros``, ``arange``, masks).

    JAX computes such values inside a transformation too.  None for any other value, which is computed outside, once.
    """
    if origin.trace is not None:
        return None
    path = origin.state.path()
    steps = needed(path, {slot})
    leaves = dict(zip([s.slots[0] for s in path if s.kernel is None and s.slots], origin.leaves, strict=True))
    for step in steps:
        if not is_scalar(leaves[step.slots[0]][0]) if step.kernel is None else step.ends or step.kernel.jaxpr.effects:
            return None
    slots: dict[int, int] = {}
    for step in steps:
        if step.kernel is None:
            scalar = record.handle(None, origin.state.table[step.slots[0]], leaves[step.slots[0]])
            slots[step.slots[0]] = record.place_in(segment, scalar)
            continue
        op = step.kernel if step.op is None else step.op
        key = (op, *[slots[s] for s in step.inputs])
        child = segment.state.next.get(key)
        segment.state = child = record.first_meeting(segment, op, key) if child is None else child
        slots.update(zip(step.slots, child.slots, strict=True))
    segment.borrowed.append(cell)  # so that its id stays its own
    segment.entered[id(cell)] = slots[slot]
    return slots[slot]


def run(segment: Segment, keep: tuple[int, ...]) -> Sequence[Any]:
    """Return the values of the slots ``keep`` of a segment, evaluated in the JAX transformation that it belongs to."""
    entries, leaves = needed_entries(segment.state, keep)
    values = {slot: cell[0] for slot, cell in zip(leaves, segment.leaves, strict=True)}
    inside = contextlib.nullcontext() if segment.trace is None else jaxapi.within(segment.trace)
    with applying(segment.configuration), inside:
        if jaxapi.makes_jaxpr(segment.trace):
            table = segment.state.table
            return _merged(entries, {s: (v, table[s].kind.aval) for s, v in values.items()}, keep, segment.state.cut)
        for step in entries:
            values.update(zip(step.slots, _kernel(step, segment.state.cut).inline(*[values[s] for s in step.inputs]), strict=True))
        return [values[s] for s in keep]


def run_again(cut: Segment) -> None:
    """Compute anew what JAX differentiates of a segment that has run, now that some of it is cut, and of newer ones that read it."""
    if not any(_is_traced(cell) for cell in cut.saved.values()):
        return
    changed: set[int] = set()  # ids of cells
    found = [s for ref in list(STATS.segments.values()) if (s := ref()) is not None and s.serial >= cut.serial]
    for segment in sorted(found, key=lambda s: s.serial):
        if segment.pending or not segment.leaves or (segment is not cut and changed.isdisjoint(map(id, segment.leaves))):
            continue
        cells = {slot: cell for slot, cell in segment.saved.items() if _is_traced(cell)}
        keep = tuple(cells)
        if any(step.kernel.jaxpr.effects for step in needed_entries(segment.state, keep)[0]):
            continue
        for cell, value in zip(cells.values(), run(segment, keep), strict=True):
            cell[0] = value
            changed.add(id(cell))


def _is_traced(cell: Any) -> bool:
    return cell.__class__ is list and isinstance(cell[0], jaxapi.Tracer)


def _kernel(step: Any, cut: frozenset[int]) -> Kernel:
    """Return an entry's kernel; recorded under ``no_grad`` or cut from its past, the transformations of JAX may not differentiate it either."""
    found: Kernel = step.kernel
    if step.mode == CONSTANT:
        return found.stopped()
    return found if cut.isdisjoint(step.slots) else found.stopped(frozenset([i for i, s in enumerate(step.slots) if s in cut]))


def _merged(entries: Sequence[Any], leaves: dict[int, tuple[Any, Any]], keep: Sequence[int], cut: frozenset[int]) -> Sequence[Any]:
    """Put the jaxprs of entries together into one, and call it on ``leaves``: values, with their shapes and dtypes."""
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
        atoms.update(zip(step.slots, joined.inline(_kernel(step, cut).jaxpr, [atoms[s] for s in step.inputs]), strict=True))
    return joined.call("tape", [atoms[s] for s in keep], inputs)
