"""Entering: the pending segment of a thread, the values that enter it from outside, and entries that were never met at its point."""

from __future__ import annotations

import weakref
from typing import Any

from tape import errors, jaxapi
from tape.configuration import CHANGES
from tape.errors import TapeError
from tape.graph import boundary
from tape.graph.scope import LOCAL, close, watched
from tape.graph.segment import Handle, Segment, SegmentClosedError, TracerMetError, end_of, made_at, node_of, still_open
from tape.graph.trie import State
from tape.graph.watcher import NOBODY
from tape.programs.failures import check_slots
from tape.programs.growth import count
from tape.programs.program import run_pending

__all__ = ["CONCRETE", "current", "enter", "first_meeting", "place_in", "run_if_long"]


def current() -> Segment:
    """Return this thread's pending segment, a new one where there is none that fits."""
    local = LOCAL
    segment = local.segment()
    if segment is not None:
        if still_open(segment):
            if segment.state.mode != local.scope.mode:
                segment.state = segment.state.switched(local.scope.mode)
            return segment
        close(segment)  # where it is pending, it runs when somebody looks at it
    segment = Segment(local.scope.mode)
    if not local.scope.eager:
        local.segment = weakref.ref(segment)
    return segment


def place_in(segment: Segment, variable: Handle) -> int:
    """Return the variable's slot in ``segment``, entering it as a leaf where it is not part of it.

    Raises:
        TracerMetError: the variable's value is a JAX tracer (the caller then evaluates at once).
        SegmentClosedError: this thread can no longer record in ``segment`` (the caller then begins again).

    """
    if variable._segment is segment:
        return variable._place.slot
    cell = variable._cell
    slot = segment.entered.get(id(cell))
    if slot is not None:
        return slot
    return enter(segment, variable)


CONCRETE: set[type] = set()  # types of values met that are no tracers: a look-up is quicker than isinstance


def enter(segment: Segment, variable: Handle) -> int:
    """Enter a Variable of another segment, or of none, as a leaf."""
    cell, origin, place = variable._cell, variable._segment, variable._place  # at once: another thread may rebind it
    value = cell[0]
    if value.__class__ not in CONCRETE:
        if value is None:
            waiting = boundary.awaited(cell, origin, place)
            if waiting.trace is not None and segment.pending and LOCAL.segment() is segment:
                raise TracerMetError
            run_pending(waiting, "used elsewhere")
            value = cell[0]
            if value is None:
                check_slots(waiting, (place.slot,))
                assert value is not None, "a cell that its segment does not know"
        if boundary.is_abstract(value):
            raise errors.ConcretizationError(boundary.no_value(value))
        if not isinstance(value, jaxapi.Tracer):
            CONCRETE.add(value.__class__)
        elif segment.pending and LOCAL.segment() is segment:
            raise TracerMetError
    kind = place.kind
    state = segment.state
    child = state.next.get(kind)
    if child is None:
        child = state.leaf(kind)
    slot: int = child.slots[0]
    if (kind.requires_grad or kind.unrecorded) and LOCAL.scope.forward is not NOBODY:
        LOCAL.scope.forward.enter(segment, slot, cell, origin, place.slot)
    if kind.requires_grad:
        if origin is not None:
            end = end_of(origin, place.slot)
            segment.origins[slot] = (origin, place.slot) if end is None else end
            if end is None:
                count(segment, origin, place.slot)
            if end is None and origin.serial > segment.serial:  # recorded at once, or by another thread, while this one was pending
                segment.serial = next(Segment.serials)
        else:
            extra = variable._extra
            segment.origins[slot] = extra.node if extra is not None and extra.node is not None else node_of(variable)
    elif kind.unrecorded:
        segment.taken[slot] = made_at(place, origin)
    key = id(cell)
    while segment.epoch is not CHANGES.epoch:
        if watched() or not still_open(segment):
            raise SegmentClosedError
    segment.state = child
    segment.leaves.append(cell)  # in the same breath: see Segment
    segment.entered[key] = slot
    return slot


def run_if_long(segment: Segment) -> None:
    """Run a segment that has reached its limit, unless a sweep is being written (its cotangents under way would all be results)."""
    if not LOCAL.scope.writing:
        run_pending(segment, "length")


def first_meeting(segment: Segment, op: Any, key: tuple[Any, ...]) -> State:
    """Make the trie state of an entry that was never recorded at this point of this tape."""
    state = segment.state
    slots = key[1:]
    if hasattr(op, "kernel_of"):
        try:
            kernel = op.kernel_of(tuple([state.table[s].kind for s in slots]))
        except TapeError:
            raise
        except jaxapi.CONCRETE_ERRORS:
            raise
        except (TypeError, ValueError, IndexError, NotImplementedError, NameError) as e:
            raise (errors.wrap(e, op.name, [state.table[s].kind.aval for s in slots]) or e) from e
    else:
        kernel = op
    return state.entry(key, op, kernel, slots)
