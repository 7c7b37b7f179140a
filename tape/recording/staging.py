"""Staging: ops on the values of a JAX transformation that is running stay pending as well, and enter it together.

Evaluated one by one, each op would pass through JAX's own tracing, primitive by primitive.  Pending in a segment of its own (one per
running transformation), they are recorded on the trie and swept by its plans like any others; when a value is asked for, the jaxprs of
their kernels are put together into one, which JAX takes over as a single call.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import jax

from tape import jaxapi
from tape.graph import boundary
from tape.graph.constants import handle
from tape.graph.scalars import is_scalar
from tape.graph.scope import LOCAL
from tape.graph.segment import Cell, Handle, Segment, SegmentClosedError, still_open
from tape.graph.walks import needed
from tape.graph.watcher import NOBODY
from tape.recording import entering
from tape.recording.entering import first_meeting
from tape.recording.immediate import record_at_once

if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["current", "place_in", "record_staged", "recording"]


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
        child = first_meeting(segment, op, key)
    kernel = child.kernel
    assert kernel is not None
    if kernel.jaxpr.effects:  # what it does, it does now, whether or not somebody holds the result
        return record_at_once(op, inputs)
    segment.state = child
    made = []
    for place in child.places[: kernel.visible]:
        cell = segment.cells[place.slot] = [None]
        made.append(handle(segment, place, cell))
    return made[0] if kernel.single else jax.tree.unflatten(kernel.tree, made)


def place_in(segment: Segment, variable: Handle) -> int:
    """Return the variable's slot in ``segment``; as :func:`tape.recording.record.place_in`, for a staged segment too."""
    if segment.trace is None or variable._segment is segment:
        return entering.place_in(segment, variable)
    cell = variable._cell
    slot = segment.entered.get(id(cell))
    if slot is None and cell[0] is None:
        origin = boundary.awaited(cell, variable._segment, variable._place)
        slot = _made_again(segment, origin, variable._place.slot, cell)
    return entering.place_in(segment, variable) if slot is None else slot


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
            scalar = handle(None, origin.state.table[step.slots[0]], leaves[step.slots[0]])
            slots[step.slots[0]] = entering.place_in(segment, scalar)
            continue
        op = step.kernel if step.op is None else step.op
        key = (op, *[slots[s] for s in step.inputs])
        child = segment.state.next.get(key)
        segment.state = child = first_meeting(segment, op, key) if child is None else child
        slots.update(zip(step.slots, child.slots, strict=True))
    segment.borrowed.append(cell)  # so that its id stays its own
    segment.entered[id(cell)] = slots[slot]
    return slots[slot]
