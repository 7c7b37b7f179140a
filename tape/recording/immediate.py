"""What runs at once: an entry recorded as a segment of its own and run now, in eager mode and on inputs that are JAX tracers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from tape import jaxapi
from tape.graph.constants import handle
from tape.graph.kinds import MadePlace
from tape.graph.scope import LOCAL
from tape.graph.segment import Handle, Segment, made_at
from tape.graph.trie import CONSTANT, user_line
from tape.programs.failures import failed_entry
from tape.recording.entering import first_meeting, place_in

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["record_at_once"]


def record_at_once(op: Any, inputs: Sequence[Handle]) -> Any:
    """Record one entry as a segment of its own and run it now: eager mode, and inputs that are JAX tracers."""
    scope = LOCAL.scope
    segment = Segment(scope.mode)
    slots = []
    for v in inputs:
        inner = scope.trace.read(v)
        if inner is not v:
            scope.forward.stand(v._cell, inner._cell)
        slots.append(place_in(segment, inner))
    key = (op, *slots)
    child = segment.state.next.get(key)
    if child is None:
        child = first_meeting(segment, op, key)
    segment.state = child
    values = {p.slot: c[0] for p, c in zip([s.place for s in child.path() if s.kernel is None and s.place], segment.leaves, strict=True)}
    operands = [values[s] for s in slots]
    kernel = child.kernel
    assert kernel is not None
    if scope.trace.capturing or any(isinstance(x, jaxapi.Tracer) for x in operands):
        results = kernel.inline(*operands)
        if scope.mode == CONSTANT:  # no_grad: nor may the JAX transformation that traces us differentiate it
            results = [jax.lax.stop_gradient(r) for r in results]
    else:
        with jaxapi.ensure_compile_time_eval():
            try:
                results = kernel.executable(*operands)
            except Exception as error:
                raise failed_entry(child, error) from error
    made = []
    differentiable = any(p.kind.requires_grad for p in child.places)
    for place, value in zip(child.places, results, strict=True):
        cell = [value]
        scope.trace.adopt(cell)
        scope.forward.compute(cell, segment, place.slot)
        if differentiable:
            segment.saved[place.slot] = cell
        elif place.kind.unrecorded:  # so short a structure is met everywhere, and the segment is not held
            line = made_at(place, segment) if place.made.__class__ is int else user_line()
            place = MadePlace(place.slot, place.kind, line)  # noqa: PLW2901
        made.append(handle(segment if place.kind.requires_grad else None, place, cell))
    segment.pending = False
    if not differentiable:
        segment.leaves = []
        segment.origins = {}
    segment.kept = tuple(segment.saved)
    segment.entered = {}
    if differentiable and segment.packing is not None:
        segment.packing.take_entry(segment)
    return made[0] if kernel.single else jax.tree.unflatten(kernel.tree, made[: kernel.visible])
