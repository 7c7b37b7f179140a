"""Cuts: ``unchain()`` and ``unchain_backward()`` take Variables off their past, for every sweep from then on.

A cut is a step of the tape's structure, like a change of mode: a sweep that comes to a slot that was cut ends there as at a leaf.  So what
was computed from the Variable before the cut is cut off as well, plans and programs know by themselves what they no longer need, and a
segment that no sweep can enter any more lets go of what it kept.
"""

from __future__ import annotations

import weakref

import jax

from tape import jaxapi
from tape.errors import TapeRuntimeError, warn
from tape.graph import boundary
from tape.graph.kinds import Place, kind_of, leaf_kind
from tape.graph.lines import user_line
from tape.graph.scope import LOCAL
from tape.graph.segment import GONE, Handle, Segment, WayBack, end_of, hooks_at, node_of
from tape.graph.watcher import NOBODY
from tape.mirrored.detachment import detach
from tape.programs import traced
from tape.programs.program import look, run_pending
from tape.programs.retention import forget, trim
from tape.recording import staging
from tape.recording.entering import made_leaf
from tape.sweeps.plan import behind
from tape.sweeps.seeds import describe


def unchain(variable: Handle, *, backward: bool = False) -> None:
    """Make a leaf of ``variable``: sweeps that come to it, by whatever was computed from it, end there.

    Those that come to any result that led to it do so, too, if ``backward``.
    """
    boundary.note_origin(variable)
    origin, place = variable._segment, variable._place
    if origin is not None and place.kind.requires_grad:
        _refuse_captured("unchain_backward" if backward else "unchain", variable)
        _settle(origin)
        LOCAL.scope.trace.write(variable)
        for segment, cut in _past(origin, place.slot)[::-1] if backward else ():
            _sever(segment, cut - {place.slot} if segment is origin else cut)
        _make_leaf(variable, origin)
    elif place.kind.unrecorded and not place.kind.requires_grad:  # that it has no past is what the user says here
        LOCAL.scope.trace.write(variable)
        cut_off = detach(variable)
        variable._segment, variable._cell, variable._place = cut_off._segment, cut_off._cell, cut_off._place


def retain_cut(variable: Handle, segment: Segment) -> bool:
    """Have sweeps that end at ``variable``, whose past was cut off, leave their gradient there; return False where it was not."""
    end = end_of(segment, variable._place.slot)
    if end is None:
        return False
    if end.ref() is None:
        end.ref = weakref.ref(variable)
    return True


def hint_at_retaining(variable: Handle, segment: Segment) -> None:
    """Warn who reads the gradient of a result that has none, should a sweep have gone through it."""
    slot = variable._place.slot
    if not variable._place.kind.requires_grad or not segment.released or end_of(segment, slot) is not None:
        return
    if any(ref() is variable for ref in segment.retained.get(slot, ())):
        return
    if any(slot in step.slots and step.depth in segment.released for step in segment.state.path() if step.kernel is not None):
        msg = (
            f"grad: a sweep has gone through this Variable ({describe(variable)}), which is not a leaf, and left no "
            "gradient there; call y.retain_grad() before backward(), or ask for it by tape.gradients(loss, y)"
        )
        warn(msg, user_line())


def _past(segment: Segment, slot: int) -> list[tuple[Segment, frozenset[int]]]:
    """Return the segments that lead to a slot, newest first, with the results in them that are to be cut."""
    way = WayBack([(segment, slot)])
    before = []
    for older, wanted in way:
        _settle(older)
        ends, _, cut = behind(older.state, wanted)
        before.append((older, cut))
        for end in ends:
            origin = older.origins.get(end)
            if isinstance(origin, tuple) and origin[1] not in origin[0].state.cut:
                way.arrive(origin)
    return before


def _settle(segment: Segment) -> None:
    """Run a segment on which this thread does not record, so that its structure no longer changes."""
    if segment.pending and not staging.recording(segment):
        run_pending(segment, "cut elsewhere")


def _make_leaf(variable: Handle, segment: Segment) -> None:
    """Cut one Variable that requires grad from its past and rebind the handle to a leaf of its value."""
    slot = variable._place.slot
    pending = variable._cell[0] is None and LOCAL.segment() is segment
    end = node_of(variable)
    with segment.lock:
        if hooks := hooks_at(variable):
            end.hooks = hooks
        segment.hooks.pop(slot, None)
        segment.retained.pop(slot, None)
        run = segment.run
        if run is not None and run.saved and slot not in run.saved:  # computed again it would not be this leaf
            run.saved[slot] = variable._cell
        segment.origins[slot] = end
        segment.state = segment.state.severed(frozenset([slot]))
    if not segment.pending:
        traced.run_again(segment)
    if not (pending and made_leaf(variable)):  # it has run, belongs to a JAX transformation, or another thread has just run it
        value = look(variable)
        if isinstance(value, jaxapi.Tracer):  # which a JAX transformation would differentiate on
            value = jax.lax.stop_gradient(value)
        hold(variable, value, requires_grad=True, of=variable)
        boundary.made(variable)
    _release(segment)


def made_constant(variable: Handle) -> bool:
    """Make a constant of a leaf whose value is pending where this thread records; return False where somebody has to look at it first."""
    segment: Segment | None = variable._place.segment if variable._segment is None else variable._segment
    if variable._cell[0] is not None or segment is None or segment is not LOCAL.segment() or segment.trace is not None:
        return False
    if variable._place.kind.sharding is not None or LOCAL.scope.trace is not NOBODY or jaxapi.in_trace():
        return False
    constant = detach(variable)
    variable._segment, variable._place, variable._cell = constant._segment, constant._place, constant._cell
    return True


def hold(variable: Handle, array: jax.Array, *, requires_grad: bool, of: object = None) -> None:
    """Have the handle be a leaf that holds ``array``, which is the value ``of`` a Variable."""
    notes = LOCAL.scope.notes if isinstance(of, Handle) else None
    sources = () if notes is None else notes.sources(of)
    sharding = variable._place.kind.sharding
    if requires_grad and sharding is not None and isinstance(array, jaxapi.Tracer):  # a step that is traced leaves it as it lies
        array = jax.lax.with_sharding_constraint(array, sharding)
        kind = kind_of(jax.typeof(array), requires_grad=True, sharding=sharding)
    elif isinstance(array, jax.Array):
        kind = leaf_kind(array, requires_grad=requires_grad)
    else:  # there may be no more than a shape
        kind = kind_of(variable._place.kind.aval, requires_grad=requires_grad)
    before, place = variable._cell, Place(-1, kind)
    variable._segment, variable._cell, variable._place = None, [array], place  # at once, for the threads that share it
    LOCAL.scope.forward.stand(before, variable._cell)
    if notes is not None:
        notes.took(variable, sources)


def _sever(segment: Segment, cut: frozenset[int]) -> None:
    """Cut results of a segment from their past; those who retain their gradient, and hooks, are found where sweeps end now."""
    with segment.lock:
        if cut:
            segment.state = segment.state.severed(cut)
        for slot in cut & (segment.retained.keys() | segment.hooks.keys()):
            end = end_of(segment, slot)
            assert end is not None
            end.hooks = segment.hooks.pop(slot, end.hooks)
            end.ref = next((ref for ref in segment.retained.pop(slot, ()) if ref() is not None), end.ref)
        for slot in cut:
            segment.functions.pop(slot, None)
    if not segment.pending:
        traced.run_again(segment)
    _release(segment)


def _release(segment: Segment) -> None:
    """Free what a segment keeps for sweeps, should none come any more."""
    with segment.lock:
        if not segment.pending and not trim(segment):
            forget(segment, origins=True)
            segment.origins = {slot: GONE if isinstance(end, tuple) else end for slot, end in segment.origins.items()}  # nor what is older


def _refuse_captured(function: str, variable: Handle) -> None:
    if not LOCAL.scope.trace.owns(variable):
        msg = (  # the calls that follow would not do so
            f"{function}: a Variable that was computed outside of the function that is traced ({describe(variable)}) "
            f"cannot be cut from its past inside; call {function}() outside, or use .detach() inside"
        )
        raise TapeRuntimeError(msg)
