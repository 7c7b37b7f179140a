"""Values of JAX transformations: ops on them are pending as well and enter the transformation together, or else run at once.

Evaluated one by one, each op would pass through JAX's own tracing, primitive by primitive.  Pending in a segment of its own (one per
running transformation), they are recorded on the trie and swept by its plans like any others; when a value is asked for, the jaxprs of
their kernels are put together into one, which JAX takes over as a single call.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import jax

from tape import jaxapi
from tape.graph import boundary
from tape.graph.boxes import Cell
from tape.graph.constants import handle
from tape.graph.kinds import MadePlace, is_scalar
from tape.graph.lines import user_line
from tape.graph.meters import METERS, measured
from tape.graph.scope import LOCAL, Scope, watched
from tape.graph.segment import Handle, Run, Segment, SegmentClosedError, extra_of, made_at
from tape.graph.trie import CONSTANT, alone
from tape.graph.watcher import NOBODY
from tape.graph.wengert import needed
from tape.programs.failures import failed_entry
from tape.programs.naming import inline
from tape.programs.retention import forget
from tape.recording import entering
from tape.recording.entering import following


def record_at_once(op: Any, inputs: Sequence[Handle]) -> Any:
    """Record one entry as a segment of its own and run it now: eager mode, and inputs that are JAX tracers."""
    scope = LOCAL.scope
    segment = Segment(scope.mode)
    slots = [entering.place_in(segment, _known(scope, v)) for v in inputs]
    segment.state = child = following(segment, op, slots)
    operands = [segment.leaves[s][0] for s in slots]  # leaves have the first slots
    kernel = child.kernel
    if scope.trace.capturing or any(isinstance(x, jaxapi.Tracer) for x in operands):
        line = user_line()  # this time's: so short a structure is met everywhere
        if line is not None and child.slots:
            segment.lines[child.slots[0]] = line
        results = inline(child, line=line)(*operands)
        if scope.mode == CONSTANT:  # no_grad: nor may the JAX transformation that traces us differentiate it
            results = [jax.lax.stop_gradient(r) for r in results]
    else:
        with jaxapi.ensure_compile_time_eval():
            try:
                executable = kernel.executable
                results = executable(*operands) if not METERS else measured("entry", child, executable, *operands)
            except Exception as error:
                raise failed_entry(segment, child, error, operands) from error
    variables = []
    inside = jaxapi.in_trace()
    saved: dict[int, Cell] = {}
    differentiable = any(p.kind.requires_grad for p in child.places)
    for place, value in zip(child.places, results, strict=True):
        cell = [value]
        scope.trace.adopt(cell)
        scope.forward.compute(cell, segment, place.slot)
        if differentiable:
            saved[place.slot] = cell
        elif place.kind.unrecorded:  # the segment is not held
            line = made_at(place, segment) if place.made.__class__ is int else user_line()
            place = MadePlace(place.slot, place.kind, line)  # noqa: PLW2901
        variables.append(handle(segment if place.kind.requires_grad else None, place, cell))
        if inside:  # the number of this segment does not say so
            extra_of(variables[-1]).inside = True
    segment.ran(Run(saved))
    if not differentiable:
        forget(segment)
    elif segment.packing is not None:
        segment.packing.take_entry(segment)
    return variables[0] if kernel.single else jax.tree.unflatten(kernel.tree, variables[: kernel.visible])


def _known(scope: Scope, variable: Handle) -> Handle:
    """Return a Variable as whoever traces knows it."""
    inner = scope.trace.operand(variable)
    if inner is not variable:
        scope.forward.stand(variable._cell, inner._cell)
    return inner


class Staged(weakref.ref[Segment]):
    """A segment that may be pending, and what :func:`jax.named_scope` says of its entries in a step of ``tape.jit``."""

    __slots__ = ("names",)

    names: Any


def current() -> Segment | None:
    """Return the pending segment of the JAX transformation that is running; None where ops on its values run at once."""
    scope = LOCAL.scope
    if (scope.eager or scope.trace is not NOBODY) and not scope.trace.pends:
        return None
    if not jaxapi.in_trace() or (scope.trace.pends and jaxapi.folds()):
        return None
    trace = jaxapi.current_trace()
    names = jaxapi.names.current_name_stack() if scope.trace.pends else None
    for ref in reversed(scope.staged):
        segment: Segment | None = ref()
        if segment is not None and segment.run is None and segment.trace is trace and (ref.names is names or ref.names == names):
            if not entering.goes_on(segment):
                break  # it runs when somebody looks at it
            return segment
    segment = Segment(scope.mode)
    segment.trace = trace
    if scope.trace.pends:  # so that its lines are those of this time
        segment.state = alone(scope.mode)
    scope.staged[:] = [*[ref for ref in scope.staged if (s := ref()) is not None and s.pending], there := Staged(segment)]
    there.names = names
    return segment


def begun() -> tuple[Segment, dict[int, Any], dict[int, Cell]] | None:
    """Return the segment in which a step that is traced records, what it has written to, and how it knows others, for the recorder in C."""
    scope = LOCAL.scope
    trace = scope.trace
    if not trace.pends or watched():
        return None
    segment = current()
    return None if segment is None else (segment, trace.touched, trace.stand_ins)


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
            slots = [place_in(segment, v) for v in inputs]
            break
        except SegmentClosedError:
            continue
    child = following(segment, op, slots)
    kernel = child.kernel
    if kernel.jaxpr.effects:  # what it does, it does now, whether or not somebody holds the result
        return record_at_once(op, inputs)
    segment.state = child
    variables = [handle(segment, place, [None]) for place in child.places[: kernel.visible]]
    segment.cells.update((v._place.slot, v._cell) for v in variables)
    return variables[0] if kernel.single else jax.tree.unflatten(kernel.tree, variables)


def place_in(segment: Segment, variable: Handle) -> int:
    """Return the variable's slot in ``segment``; as :func:`tape.recording.entering.place_in`, for a staged segment too."""
    scope = LOCAL.scope
    if scope.trace is not NOBODY:
        variable = _known(scope, variable)
    cell = variable._cell
    if segment.trace is not None and variable._segment is not segment and cell[0] is None and id(cell) not in segment.entered:
        _make_again(segment, boundary.awaited(cell, variable._segment, variable._place), variable._place.slot, cell)
    return entering.place_in(segment, variable)


def _make_again(segment: Segment, origin: Segment, slot: int, cell: Cell) -> None:
    """Record in ``segment`` what made a pending value outside, if it was made of numbers only (``zeros``, ``arange``, masks).

    JAX computes such values inside a transformation too.  Any other value is computed outside, once.
    """
    if origin.trace is not None:
        return
    path = origin.state.path()
    steps = needed(path, {slot})
    leaves = dict(zip([s.slots[0] for s in path if s.kernel is None and s.slots], origin.leaves, strict=True))
    for step in steps:
        if not is_scalar(leaves[step.slots[0]][0]) if step.kernel is None else step.ends or step.kernel.jaxpr.effects:
            return
    slots: dict[int, int] = {}
    for step in steps:
        if step.kernel is None:
            (leaf,) = step.slots
            slots[leaf] = entering.place_in(segment, handle(None, origin.state.table[leaf], leaves[leaf]))
        else:
            segment.state = child = following(segment, step.kernel if step.op is None else step.op, [slots[s] for s in step.inputs])
            slots.update(zip(step.slots, child.slots, strict=True))
    segment.borrowed.append(cell)  # so that its id stays its own
    segment.entered[id(cell)] = slots[slot]
