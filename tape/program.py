"""Programs: how a pending segment runs.

A structure met for the first time is interpreted, kernel by kernel; met again, it is compiled whole and found from then on.  What a
run keeps: the values that Variables still hold, and the residuals that a later sweep from them will read.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import jax

from tape import jaxapi, record
from tape.errors import LostGradientError
from tape.statistics import STATS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tape.record import Segment
    from tape.trie import State

__all__ = ["look", "run_pending"]


def _baseline() -> int:
    """References to a cell that nobody but its segment holds, as the count below sees them on this interpreter."""
    return next(iter(list(map(sys.getrefcount, {0: [None]}.values()))))


_ONLY_SEGMENT = _baseline()


class Program:
    """The compiled form of a segment for one choice of results."""

    __slots__ = ("executable", "keep", "met")

    def __init__(self, keep: tuple[int, ...]) -> None:
        self.keep = keep
        self.met = 0
        self.executable: Callable[..., Sequence[Any]] | None = None


def look(variable: record.Handle) -> Any:
    """Return the variable's array, running what is pending if it must."""
    if record.LOCAL.lifting is not None and variable._place.kind.requires_grad:
        raise LostGradientError(record.capture_message(record.LOCAL.lifting, variable))
    if record.LOCAL.captures is not None:
        variable = record.LOCAL.captures.inside(variable)
    value = variable._cell[0]
    if value is None:
        segment = variable._segment
        assert segment is not None
        run_pending(segment, "look")
        value = variable._cell[0]
    return value


def run_pending(segment: Segment, reason: str) -> None:
    """Run the pending entries of ``segment`` whose results somebody holds; afterwards it is no longer pending.

    If running fails, the segment stays as it was and can be run again.
    """
    with segment.lock:
        if not segment.pending:
            return
        state = segment.state
        cells = segment.cells
        counts = list(map(sys.getrefcount, cells.values()))  # before anything else here refers to a cell
        live = tuple(slot for (slot, cell), count in zip(cells.items(), counts, strict=True) if count > _ONLY_SEGMENT and cell[0] is None)
        residuals, history, dead = _residuals(state, live, segment.released)
        keep = live + residuals
        if keep:
            results = _run(state, keep, [cell[0] for cell in segment.leaves])
            STATS.flushed(reason)
            _store(segment, live, residuals, results, history)
        else:
            _store(segment, live, residuals, (), history)
        if dead:
            segment.released |= dead
    record.close(segment)


def _store(segment: Segment, live: tuple[int, ...], residuals: tuple[int, ...], results: Sequence[Any], history: bool) -> None:
    """Hand out what was computed and forget what no sweep will need."""
    cells = segment.cells
    values = iter(results)
    for slot in live:
        cells[slot][0] = next(values)
    for slot in residuals:
        segment.saved[slot] = [next(values)]
    if history:
        for slot, cell in cells.items():
            if cell[0] is not None:
                segment.saved[slot] = cell
        segment.kept = tuple(segment.saved)
    else:
        forget(segment)
    segment.cells = {}
    segment.entered = {}
    segment.pending = False
    segment.x64 = None  # equal to no setting: a thread that still takes it for its pending one leaves the fast path


def forget(segment: Segment) -> None:
    """Drop everything that a segment keeps for sweeps."""
    segment.leaves = []
    segment.origins = {}
    segment.saved = {}
    segment.functions = {}


def _residuals(state: State, live: tuple[int, ...], released: frozenset[int]) -> tuple[tuple[int, ...], bool, frozenset[int]]:
    """Slots that no Variable holds but that a sweep from the live ones reads, and whether there can be such a sweep at all.

    The third result are the depths of the differentiable entries that no sweep can reach, because their Variables are gone.

    What is cheap to compute again (elementwise) is not kept: XLA fuses it into the sweep, and each further result of a program would
    cost it a kernel of its own (100 chained sines: 0.15 s to compile with one result, 3.4 s with all of them).
    """
    if state.residuals is None:
        state.residuals = {}
    key = (live, released)
    found = state.residuals.get(key)
    if found is None:
        found = state.residuals[key] = _find_residuals(state, live, released)
    return found


def _find_residuals(state: State, live: tuple[int, ...], released: frozenset[int]) -> tuple[tuple[int, ...], bool, frozenset[int]]:
    table = state.table
    reached = {slot for slot in live if table[slot].kind.requires_grad}
    if not reached:
        return (), False, frozenset()
    history = False
    dead: set[int] = set()
    kept = set(live)
    needed: set[int] = set()
    saved: set[int] = set()
    for entry in reversed(state.path()):
        if entry.kernel is None:
            continue
        slots = [p.slot for p in entry.places]
        if entry.depth not in released and any(s in reached for s in slots):
            history = True
            reached.update(s for s in entry.inputs if table[s].kind.requires_grad)
            forward = (*entry.inputs, *slots)
            needed.update(forward[i] for i in entry.kernel.residuals())
        elif any(p.kind.requires_grad for p in entry.places):
            dead.add(entry.depth)
        missing = [s for s in slots if s in needed and s not in kept]
        if missing:
            if entry.kernel.cheap:
                needed.update(entry.inputs)
            else:
                saved.update(missing)
    return tuple(sorted(saved)), history, frozenset(dead)


def _run(state: State, keep: tuple[int, ...], leaves: list[Any]) -> Sequence[Any]:
    """Compute the slots ``keep``: interpreted at the first meeting, compiled from the second on."""
    if state.programs is None:
        state.programs = {}
    program = state.programs.get(keep)
    if program is None:
        program = state.programs[keep] = Program(keep)
        STATS.programs += 1
    program.met += 1
    with jaxapi.ensure_compile_time_eval():
        if program.executable is not None:
            STATS.hits += 1
            STATS.executed += state.depth
            return program.executable(*leaves)
        if program.met == 1:
            return _interpret(state, keep, leaves)
        started = time.perf_counter()
        program.executable = _compile(state, keep)
        results = program.executable(*leaves)
        STATS.compiled(time.perf_counter() - started)
        STATS.executed += state.depth
        return results


def needed_entries(state: State, keep: tuple[int, ...]) -> list[State]:
    """The states on the path to ``state`` that ``keep`` depends on, and all its leaves, in order."""
    wanted = set(keep)
    chosen = []
    for step in reversed(state.path()):
        if step.kernel is None:
            if step.places:
                chosen.append(step)
        elif any(p.slot in wanted for p in step.places):
            wanted.update(step.inputs)
            chosen.append(step)
    return chosen[::-1]


def _interpret(state: State, keep: tuple[int, ...], leaves: list[Any]) -> list[Any]:
    """Run kernel by kernel, each compiled on its own and shared by all structures."""
    values: list[Any] = [None] * state.n_slots
    arrays = iter(leaves)
    for step in needed_entries(state, keep):
        if step.kernel is None:
            values[step.places[0].slot] = next(arrays)
            continue
        results = step.kernel.executable(*[values[s] for s in step.inputs])
        for place, result in zip(step.places, results, strict=True):
            values[place.slot] = result
        STATS.interpreted += 1
        STATS.executed += 1
    return [values[s] for s in keep]


def _compile(state: State, keep: tuple[int, ...]) -> Callable[..., Sequence[Any]]:
    """Make one compiled function of the segment, from its leaves to ``keep``."""
    steps = needed_entries(state, keep)

    def run(*leaves: Any) -> list[Any]:
        values: list[Any] = [None] * state.n_slots
        arrays = iter(leaves)
        for step in steps:
            if step.kernel is None:
                values[step.places[0].slot] = next(arrays)
                continue
            results = step.kernel.inline(*[values[s] for s in step.inputs])
            for place, result in zip(step.places, results, strict=True):
                values[place.slot] = result
        return [values[s] for s in keep]

    run.__name__ = "segment"
    return jax.jit(run)
