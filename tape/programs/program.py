"""Programs: what a run of a pending segment computes and keeps.

What it keeps: the values that Variables still hold, and the residuals that a later sweep from them will read.  How it runs is the
business of :mod:`tape.programs.execution`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tape import jaxapi, layout
from tape.accounts.records import Site
from tape.configuration import applying, configuration
from tape.graph import boundary
from tape.graph.boxes import Cell
from tape.graph.kinds import Kind
from tape.graph.lines import FOREIGN
from tape.graph.meters import METERS, measured
from tape.graph.scope import LOCAL, Scope, close, no_segment
from tape.graph.segment import NOTHING, Handle, Run, Segment, has_run
from tape.graph.trie import CLOCK, State
from tape.graph.watcher import NOBODY
from tape.programs import retention, traced
from tape.programs.deferral import fetch
from tape.programs.execution import Program
from tape.programs.failures import check_slots, salvage
from tape.programs.interpretation import needed_entries
from tape.programs.retention import forget, held, note, residuals, stored, trim_one
from tape.programs.telling import flushed, warn_of
from tape.statistics import STATS


def look(variable: Handle) -> Any:
    """Return the variable's array, running what is pending if it must."""
    trace = LOCAL.scope.trace
    if trace is not NOBODY:
        variable = trace.read(variable)
    value = variable._cell[0]
    if value is None:
        segment = boundary.awaited(variable._cell, variable._segment, variable._place)
        return computed(variable._cell, segment, variable._place.slot, "look")
    return value


def taken(variable: Handle) -> Any:
    """Return the variable's array for use off the tape, where no derivative follows it."""
    return LOCAL.scope.trace.leave(variable, look(variable))


def computed(cell: Cell, segment: Segment, slot: int, reason: str) -> Any:
    """Return the value that an empty cell gets by running what is pending, or raise why it gets none."""
    run_pending(segment, reason)
    if cell[0] is None:
        check_slots(segment, (slot,))
        fetch(segment)
        assert cell[0] is not None, "a cell that its segment does not know"
    return cell[0]


def run_pending(segment: Segment, reason: str, inner: int | None = None) -> None:
    """Run the pending entries of ``segment`` whose results somebody holds; afterwards it is no longer pending.

    What a sweep has written from the slot ``inner`` on, nobody has seen yet but that sweep: where it was interpreted, it may come as NumPy
    has it, and that sweep has it handed to JAX before anybody sees it (:func:`tape.programs.handing.hand_on`).

    An entry that fails, and what depends on it, has no value then: looking at one raises (:mod:`tape.programs.failures`).  After Ctrl-C,
    or where memory was used up, the segment is pending as before and can be run again.
    """
    if launched(segment, reason):
        return
    trim_one()
    with segment.lock:
        if segment.run is not None:
            return
        segment.open, segment.epoch = False, None  # should it belong to another thread, that one does not touch it any more
        if configuration() is segment.configuration:
            _run(segment, reason, inner)
        else:
            with applying(segment.configuration):
                _run(segment, reason, None)
    close(segment)


def _run(segment: Segment, reason: str, inner: int | None) -> None:
    state = segment.state
    if state.kernel is None:
        segment.state = state = _settled(state)
    cells = segment.cells
    live = held(cells)  # before anything else here refers to a cell
    if segment.hooks:  # as if held: what is computed again has no hooks
        live = tuple(slot for slot in cells if slot in live or segment.hooks.get(slot))
    packs = segment.packing is not None
    inside = segment.trace is not None and reason != "swept elsewhere"
    word = "inside" if inside else "whole" if LOCAL.scope.reproducible else "program"
    key = (word, live, segment.released, packs)
    program = state.known_of(key) or state.cached(key, lambda: _program(state, live, segment.released, packs, word))
    results: Sequence[Any] = ()
    if program.keep:
        CLOCK.now += 1
        state.used = CLOCK.now
        program.site = flushed(reason, program.site)
        if segment.trace is not None:
            results = traced.run(segment, program.keep)
            LOCAL.scope.trace.ran(segment, live)
        else:
            leaves = gathered(segment.leaves)
            if segment.run is not None:  # garbage was collected above, and a finalizer has looked
                return
            try:
                if METERS:
                    results = measured("flush", (segment, program, reason), program.run, state, leaves)
                else:
                    results = program.run(state, leaves, inner)
            except Exception as error:  # noqa: BLE001 - whoever looks at what failed is told
                _finish(segment, program, None, error)
                return
    _finish(segment, program, results)


def _finish(segment: Segment, program: Program, results: Sequence[Any] | None, error: Exception | None = None) -> None:
    """Hand out what a run has computed; where it has failed, what can be computed still."""
    if error is not None:
        with jaxapi.ensure_compile_time_eval():
            salvage(segment, *needed_entries(segment.state, program.keep), error)
    failed = segment.run is not None
    if not failed:
        _store(segment, program, results or ())
    if segment.packing is not None and program.kept.history and not failed:
        segment.packing.take(segment, program.live, program.kept.read)
    if program.kept.history and program.roots > 1:  # sweeps may come from several
        note(segment, heavy=program.kept.heavy)
    site = program.site
    if program.keep and site is not None and site.due is not None:
        warn_of(site)


def _settled(state: State) -> State:
    """Return a structure without changes of the grad mode at its end: nothing was recorded in that mode."""
    while (parent := state.parent) is not None and state.mode != parent.mode:
        state = parent
    return state


def _store(segment: Segment, program: Program, results: Sequence[Any]) -> None:
    """Hand out what was computed and forget what no sweep will need."""
    live, kept = program.live, program.kept
    if kept.deferral is not None and kept.deferral.stored(segment, program, results):
        return
    if not kept.history and handed(segment, live, results, program.roots > 0, NOTHING):
        return
    saved = stored(segment.cells, live, results)
    if kept.history:
        for slot, value in zip(kept.residuals, results[len(live) :], strict=True):
            saved[slot] = [value]
        if kept.dead:
            segment.released |= kept.dead
        segment.ran(Run(saved))
    else:
        segment.ran(NOTHING)
        forget(segment, origins=program.roots > 0)


def _gathered(cells: list[Cell]) -> list[Any]:
    """Return the values in some cells."""
    return [cell[0] for cell in cells]


gathered = layout.chosen("gathered", _gathered)
# What :func:`_store` does for a segment that keeps nothing for sweeps; and what :func:`run_pending` does for one of this thread whose
# program is compiled and runs from the line from which it ran last, while nobody measures, hooks or packs, and no transformation of JAX
# is running.
handed, launched = layout.chosen("handed"), layout.chosen("launched")
if layout.NATIVE is not None:
    layout.NATIVE.launches(
        counts=STATS,
        clock=CLOCK,
        site=Site,
        files=FOREIGN,
        meters=METERS,
        **retention.noted(),
        run=Run,
        nothing=NOTHING,
        no_segment=no_segment,
        in_trace=jaxapi.in_trace,
        trim=trim_one,
        finish=_finish,
        over=has_run,
        reproducible=Scope._fields.index("reproducible"),
    )


def _program(state: State, live: tuple[int, ...], released: frozenset[int], packs: bool, word: str) -> Program:
    """Work out what a run has to keep, and note it on the structure; in which order the ``live`` slots were held makes no difference.

    What is cheap to compute again (elementwise) is not kept: XLA fuses it into the sweep, and each further result of a program would
    cost it a kernel of its own (100 chained sines: 0.15 s to compile with one result, 3.4 s with all of them).
    """
    ordered = tuple(sorted(live))
    if ordered != live:
        return state.cached((word, ordered, released, packs), lambda: _program(state, ordered, released, packs, word))
    STATS.programs += 1
    kinds = [state.table[slot].kind for slot in live]
    # What comes back will be compiled; what never does is interpreted, and a reproducible program is the same from its first meeting on.
    few = None if word == "inside" else state.known and not packs and word == "program"
    kept = residuals(state, live, released, packs=packs, few=few)
    roots = sum(kind.requires_grad and slot not in state.cut for slot, kind in zip(live, kinds, strict=True))
    return Program(state, _ordered(live, kinds), kept, roots, whole=word == "whole", packs=packs)


def _ordered(live: tuple[int, ...], kinds: list[Kind]) -> tuple[int, ...]:
    """Put gradients last, those of the first leaves first.

    XLA schedules what the first results need first.  The way back to the first leaves is the long one, and the gradients beside it fill
    the gaps of the other threads; in the order of their making they hold it up (7 percent of a transformer block on two cores).
    """
    forward = [slot for slot, kind in zip(live, kinds, strict=True) if not kind.unrecorded]
    gradients = [slot for slot, kind in zip(live, kinds, strict=True) if kind.unrecorded]
    return (*forward, *reversed(gradients))
