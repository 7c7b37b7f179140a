"""The recorder in Python: it defines what recording an op does, and does all that the one in C does not (:mod:`tape.recording.record`).

A structure recorded before is found again on the trie: one look-up per entry gives its place, shape and dtype.  While op hooks watch, the
segment's epoch is never the present one between entries, so that each of them is recorded in the slow way, where the hooks are called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from tape.configuration import CHANGES
from tape.graph.boxes import Cell
from tape.graph.constants import handle, scalar
from tape.graph.kinds import SMALL
from tape.graph.scope import LOCAL, watched
from tape.graph.segment import Handle, Segment, SegmentClosedError, TracerMetError, still_open
from tape.graph.trie import State
from tape.graph.watcher import NOBODY
from tape.ops.kernel import Op
from tape.recording.entering import begun, current, enter, following, place_in, run_if_long
from tape.recording.staging import record_at_once, record_staged

_variable_type: type[Handle] = Handle
_new = object.__new__


def connect(variable_type: type[Handle]) -> None:
    """Tell what to make."""
    global _variable_type  # noqa: PLW0603 - set once, at import
    _variable_type = variable_type


def record(op: Any, inputs: Sequence[Any]) -> Any:
    """Record one entry and return its result: a Variable, or the tree of Variables that the op returns.

    ``op`` is an Op (or what has its ``kernel_of`` method), or a Kernel where input shapes are known to fit; ``inputs`` are Variables, and
    numbers, which enter in the same step.
    """
    # The hot path. Everything that is not needed for a structure met before is off it, in functions of its own.
    segment = LOCAL.segment()
    if segment is None or segment.epoch is not CHANGES.epoch:
        segment = begun()
        if segment is None:
            return _record(op, [v if isinstance(v, Handle) else scalar(v) for v in inputs])
    kinds = segment.scalars if LOCAL.scope.caller is NOBODY else {}  # a number of NumPy may be made of a value that was looked at
    start: Any = segment.state
    if not start.next:  # nothing was ever recorded here
        return _record(op, [v if isinstance(v, Handle) else scalar(v) for v in inputs])
    state = start
    key: list[Any] = [op]
    numbers: list[Cell] = []
    for v in inputs:
        if v.__class__ is _variable_type or isinstance(v, Handle):
            if v._segment is segment:
                key.append(v._place.slot)
                continue
            slot = segment.entered.get(id(v._cell))
            if slot is None:
                if numbers:
                    break
                try:
                    slot = enter(segment, v)
                except (TracerMetError, SegmentClosedError):
                    break
                start = state = segment.state
            key.append(slot)
        else:
            key.append(state.n_slots)
            state = state.next.get(kinds.get(v.__class__))
            if state is None or (v.__class__ is int and not -SMALL <= v < SMALL):
                break
            numbers.append([v])
    else:
        child = state.next.get(tuple(key))
        if child is not None and child.quick:
            variable = _new(_variable_type)
            variable._segment = segment
            variable._place = place = child.place
            variable._cell = cell = [None]
            variable._extra = None
            if segment.epoch is CHANGES.epoch and segment.state is start:
                segment.cells[place.slot] = cell
                segment.state = child
                segment.leaves += numbers  # in the same breath: see Segment
                return variable
        elif child is not None and not numbers:
            return _results(segment, child, op, inputs)
    return _record(op, [v if isinstance(v, Handle) else scalar(v) for v in inputs])


def _record(op: Any, inputs: Sequence[Handle]) -> Any:
    """Record an entry that was not met here before, that has several results, or whose segment is not the pending one."""
    segment = LOCAL.segment()
    if segment is None or segment.epoch is not CHANGES.epoch:
        scope = LOCAL.scope
        if watched():
            return (scope.notes or scope.observer).record(op, inputs)
        if scope.eager:
            return record_staged(op, inputs) if scope.trace.pends else record_at_once(op, inputs)
        if scope.staged and any(v._segment is not None and v._segment.trace is not None for v in inputs):
            return record_staged(op, inputs)
        segment = current()
    try:
        child = following(segment, op, [place_in(segment, v) for v in inputs])
    except TracerMetError:
        return record_staged(op, inputs)
    except SegmentClosedError:
        return _record(op, inputs)
    return _results(segment, child, op, inputs)


def follow(segment: Segment, op: Any, slots: tuple[int, ...], inputs: Sequence[Handle]) -> Any:
    """Record an entry on slots of this thread's pending segment that was not met there, for the recorder in C."""
    return _results(segment, following(segment, op, slots), op, inputs)


def _results(segment: Segment, child: State, op: Any, inputs: Sequence[Handle]) -> Any:
    """Advance a segment to the state of an entry; return its Variables, in the op's own tree."""
    kernel = child.kernel
    cells: dict[int, Cell] = {place.slot: [None] for place in child.places[: kernel.visible]}  # hidden residuals follow
    variables = [handle(segment, place, cells[place.slot]) for place in child.places[: kernel.visible]]
    while segment.epoch is not CHANGES.epoch:
        if not still_open(segment):
            return _record(op, inputs)
    if segment.state is not child.parent:  # a finalizer or a signal's handler has recorded meanwhile
        return _record(op, inputs)
    segment.state = child
    segment.cells.update(cells)
    if child.full:
        run_if_long(segment)
    if kernel.single:
        return variables[0]
    return jax.tree.unflatten(kernel.tree, variables) if kernel.several is None else kernel.several(variables)


def record_one(op: Op, a: Handle) -> Any:
    """:func:`record` for one input."""
    return record(op, (a,))


def record_two(op: Op, a: Handle, b: Handle) -> Any:
    """:func:`record` for two inputs."""
    return record(op, (a, b))


def record_number(op: Op, a: Handle, number: Any, *, first: bool = False) -> Any:
    """:func:`record` for a Variable and a number (``first``: in the opposite order)."""
    return record(op, (number, a) if first else (a, number))
