"""Entering: the pending segment of a thread, the values that enter it from outside, and entries that were never met at its point."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from tape import errors, jaxapi
from tape.configuration import CHANGES, configuration
from tape.errors import TapeError
from tape.graph import boundary
from tape.graph.borders import parts
from tape.graph.kinds import Kind
from tape.graph.length import ends_long
from tape.graph.scope import LOCAL, close, watched
from tape.graph.segment import Handle, Segment, SegmentClosedError, TracerMetError, end_of, made_at, node_of, still_open
from tape.graph.trie import CONSTANT, RECORD, SWEEP, State
from tape.graph.watcher import NOBODY
from tape.ops.kernel import Kernel, Op
from tape.ops.placing import leaf_kernel, placing
from tape.programs.growth import count
from tape.programs.program import computed, run_pending


def current() -> Segment:
    """Return this thread's pending segment, a new one where there is none that fits."""
    segment = LOCAL.segment()
    if segment is not None:
        if goes_on(segment):
            return segment
        close(segment)  # where it is pending, it runs when somebody looks at it
    segment = Segment(LOCAL.scope.mode)
    if not LOCAL.scope.eager:
        LOCAL.segment = weakref.ref(segment)
    return segment


def begun() -> Segment | None:
    """Return the segment in which this thread may record without further ado, as :func:`current`; None where somebody watches or waits."""
    scope = LOCAL.scope
    if scope.eager or watched():
        return None
    if scope.staged:
        scope.staged[:] = [ref for ref in scope.staged if ref() is not None]  # of a transformation that is over, nothing else tells
        if scope.staged:
            return None
    if LOCAL.segment() is not None:
        return current()
    segment = Segment(scope.mode)
    LOCAL.segment = weakref.ref(segment)
    return segment


def goes_on(segment: Segment) -> bool:
    """Tell whether this thread may go on recording in its segment, and have that be in the present grad mode."""
    if segment.epoch is not CHANGES.epoch and not still_open(segment):
        return False
    if segment.state.mode != LOCAL.scope.mode:
        segment.state = segment.state.switched(LOCAL.scope.mode)
    return True


def place_in(segment: Segment, variable: Handle) -> int:
    """Return the variable's slot in ``segment``, entering it as a leaf where it is not part of it."""
    if variable._segment is segment:
        return variable._place.slot
    slot = segment.entered.get(id(variable._cell))
    return enter(segment, variable) if slot is None else slot


CONCRETE: set[type] = set()  # types of values met that are no tracers: a look-up is quicker than isinstance


def enter(segment: Segment, variable: Handle) -> int:
    """Enter a Variable of another segment, or of none, as a leaf: unless it is a tracer, or this thread can no longer record there."""
    cell, origin, place = variable._cell, variable._segment, variable._place  # at once: another thread may rebind it
    value = cell[0]
    if value.__class__ not in CONCRETE:
        ours = segment.pending and LOCAL.segment() is segment
        if value is None:
            waiting = boundary.awaited(cell, origin, place)
            if ours and waiting.trace is not None:
                raise TracerMetError
            value = computed(cell, waiting, place.slot, "update" if parts(waiting.state, RECORD) else "used elsewhere")
        if boundary.is_abstract(value):
            raise errors.ConcretizationError(boundary.no_value(value))
        if not isinstance(value, jaxapi.Tracer):
            CONCRETE.add(value.__class__)
        elif ours:
            raise TracerMetError
    kind = place.kind
    state = segment.state
    child = state.next.get(kind)
    if child is None:
        child = state.leaf(kind)
    slot: int = child.slots[0]
    if (kind.requires_grad or kind.unrecorded) and LOCAL.scope.forward is not NOBODY:
        LOCAL.scope.forward.enter(segment, slot, cell, origin, place.slot)
    end: Any = None
    if kind.requires_grad:
        if origin is not None:
            end = end_of(origin, place.slot)
            if end is None:
                end = origin, place.slot
                count(segment, origin, place.slot)
                if origin.serial > segment.serial:  # recorded at once, or by another thread, while this one was pending
                    segment.serial = next(Segment.serials)
        else:
            extra = variable._extra
            end = extra.node if extra is not None and extra.node is not None else node_of(variable)
    line = made_at(place, origin) if kind.unrecorded else None
    key = id(cell)
    while segment.epoch is not CHANGES.epoch:
        if watched() or not still_open(segment):
            raise SegmentClosedError
    if segment.state is not state:  # a finalizer or a signal's handler has recorded meanwhile
        return place_in(segment, variable)
    segment.state = child  # what follows is done in the same breath: see Segment
    if end is not None:
        segment.origins[slot] = end
    elif kind.unrecorded:
        segment.leaf_lines[slot] = line
    segment.leaves.append(cell)
    segment.entered[key] = slot
    return slot


def run_if_long(segment: Segment) -> None:
    """Run a segment that has reached its limit, unless a sweep is being written (its cotangents under way would all be results)."""
    if not LOCAL.scope.writing:
        run_pending(segment, "length")


def following(segment: Segment, op: Any, slots: Sequence[int]) -> State:
    """Return the state that follows when an op is recorded on some slots, made where that was not met at this point of this tape."""
    state = segment.state
    key = (op, *slots)
    child: State | None = state.next.get(key)
    if child is not None:
        return child
    if not hasattr(op, "kernel_of"):
        return state.entry(key, op, op, key[1:])
    table = state.table
    kinds = tuple([table[s].kind for s in slots])
    common = op.__class__ is Op
    if common:
        form = op.forms.get(about := (kinds, state.mode, id(segment.configuration), jaxapi.named_axes()))
        if form is not None:
            return state.formed(key, op, form, key[1:])
    kernel = kernel_on(op, kinds)
    child = state.entry(key, op, kernel, key[1:])
    # What has effects, a step that is traced does at once (tape.recording.staging), and so is not to meet here.
    if common and not kernel.transient and not kernel.jaxpr.effects and (state.mode == SWEEP or not any(kind.unrecorded for kind in kinds)):
        results = tuple([p.kind for p in child.places])
        op.forms[about] = child.kernel, results, any(kind.unrecorded for kind in results)
    return child


def kernel_on(op: Op, kinds: Sequence[Kind]) -> Kernel:
    """Return an op's kernel for inputs of some kinds; nothing is recorded.

    Raises:
        TapeError: the inputs do not fit (JAX's message, and the builtin class that JAX raises).

    """
    try:
        return op.kernel_of(tuple(kinds))
    except (TapeError, *jaxapi.CONCRETE_ERRORS):
        raise
    except (TypeError, ValueError, IndexError, OverflowError, NotImplementedError, NameError) as e:
        asked = "any(v is w for w in variables) says whether v is one of them" if op.name in {"equal", "not_equal"} else None
        raise (errors.wrap(e, op.name, [kind.aval for kind in kinds], repair=asked) or e) from e


LEAF = Op("leaf", lambda x: x)


def made_leaf(variable: Handle, result: Handle | None = None) -> bool:
    """Make a pending Variable a leaf that requires grad; return False where somebody has to look at it first.

    ``v.detach().requires_grad_()`` makes inputs to differentiate by of results (interpolates of a gradient penalty, inner parameters of a
    meta-learner), and updates under ``no_grad`` are some.  To look at the value would part the step into two programs.  So the segment
    gets an entry instead, an identity whose result requires grad whatever it was made of, and at which sweeps end as at any leaf.  That
    is impossible where it does not stand on the segment in which this thread records: another thread's, or that of a JAX transformation.
    What refers to the Variable, a gradient and hooks, stays; its value is that of ``result``, another pending one, if there is one.
    """
    source = variable if result is None else result
    segment = source._segment
    if segment is None or source._cell[0] is not None or LOCAL.segment() is not segment:
        return False
    if segment.epoch is not CHANGES.epoch and segment.configuration is not configuration():  # it has none where hooks or tapes look
        return False
    old = source._place
    sharding = variable._place.kind.sharding
    op = LEAF if sharding is None else placing(sharding, "leaf")
    key = (op, old.slot)
    child: State | None = segment.state.next.get(key)
    if child is None:
        kernel = op.kernel_of((old.kind,)) if sharding is None else leaf_kernel(op, old.kind, sharding)
        child = segment.state.entry(key, op, kernel, (old.slot,), ends=True)
    (slot,) = child.slots
    node = node_of(variable)
    turns = variable._place.segment is segment and ends_long(child) and _recorded_since(segment.state, variable._place.slot)
    cell = [None]
    number = id(cell)
    with segment.lock:
        if not segment.open:  # another thread has run it
            return False
        place = segment.leaf_place(slot, child.places[0].kind)
        segment.state = child  # what follows is done in one breath: see Segment
        segment.cells[slot] = cell
        segment.entered[number] = slot
        segment.origins[slot] = node
        variable._segment, variable._place, variable._cell = None, place, cell
    if LOCAL.scope.notes is not None:
        LOCAL.scope.notes.updated(segment, slot)
    if child.full or turns:
        run_if_long(segment)
    return True


def _recorded_since(state: State, slot: int) -> bool:
    """Tell whether anything was recorded after the update that gave a slot, so that another one of that leaf ends another step.

    A loop of steps of which nobody looks at one is cut there, once it is long: then the next segments have one structure, and the first one
    is not as long as a loop of ops may be.
    """

    def found() -> bool:
        return any(step.mode != CONSTANT and step.kernel is not None and step.slots and step.slots[0] > slot for step in state.path())

    return state.cached(("since", slot), found)
