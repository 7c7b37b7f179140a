"""Updates found again: what an optimizer did at this point of the tape before is written, run and assigned by one look-up."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from tape import layout
from tape.configuration import CHANGES
from tape.graph.kinds import LeafPlace, Place
from tape.graph.scope import LOCAL
from tape.graph.segment import Handle, Segment, SegmentClosedError, made_at, node_of
from tape.graph.trie import State, link
from tape.graph.watcher import NOBODY
from tape.programs.deferral import GRADIENTS
from tape.programs.failures import check_slots
from tape.programs.program import run_pending
from tape.recording.entering import CONCRETE, current, place_in
from tape.variables.variable import Variable


@dataclass(slots=True, eq=False)
class _Known:
    """Where the trie stands after an update.

    Attributes:
        state: that structure.
        places: those of all that it reads, when last seen to be of these kinds.
        slots: where each of it is on the segment before; None for what enters with the update, in this order.
        first: the slot that the first of these gets.
        results: the slots of the new values.
        changing: which of what it may write gets those.

    """

    state: State
    places: list[Place]
    slots: list[int | None]
    first: int
    results: list[int]
    changing: list[int]

    def fits(self, read: Sequence[Handle]) -> bool:
        """Tell whether what is to be read is of the kinds that were read."""
        places = [v._place for v in read]
        if places != self.places:
            kinds = [place.kind for place in self.places]
            if [place.kind for place in places] != kinds or any(isinstance(place, LeafPlace) for place in places):
                return False
            self.places = places
        return True


class Update:
    """An update of the same Variables by the same computation, found again where it was done before.

    Whoever computes it asks :meth:`again` first.  Where that says no, it computes the new values under :func:`updating` and hands them to
    :meth:`note` there, and to an :class:`Assignment` afterwards.  What it computes may depend on what :meth:`again` is given, and on
    nothing else that changes; one Update serves one such computation.

    Example:
        >>> import tape, tape.extend
        >>> w, rate = tape.Variable(2.0), tape.constant(0.25)
        >>> update, assign = tape.extend.Update(), tape.extend.Assignment()
        >>> for _ in range(4):
        ...     w.zero_grad()
        ...     (w * w).backward()
        ...     if not update.again([w], [rate]):
        ...         with tape.extend.updating():
        ...             new = [w - rate * w.grad, None]
        ...             update.note(new)
        ...         assign([w, rate], new)
        >>> float(w)
        0.125

    """

    __slots__ = ("_began", "_key")

    def __init__(self) -> None:
        self._key = object()  # on the trie, which is not to hold what refers to this
        self._began: tuple[Segment, State, int, list[Any]] | None = None

    def again(self, parameters: Sequence[Variable], further: Sequence[Variable]) -> bool:
        """Update as the last time, if everything is as it was then; tell whether that was done.

        Args:
            parameters: leaves with a gradient, which the update reads as well.
            further: what else it reads and writes: the optimizer's state.

        Raises:
            ExecutionError: a new value could not be computed.  Nothing is changed then.

        """
        self._began = None
        if _as_before(self._key, parameters, further, run_pending, check_slots):
            return True
        scope = LOCAL.scope
        if scope.eager or scope.observer is not None or scope.notes is not None or any(there() is not None for there in scope.staged):
            return False
        if scope.trace is not NOBODY or scope.forward is not NOBODY or scope.caller is not NOBODY:
            return False
        segment = LOCAL.segment() or current()
        if segment.epoch is not CHANGES.epoch or segment.trace is not None:
            return False
        extras = [p._extra for p in parameters]
        variables = [*parameters, *further]
        read: list[Any] = [None if extra is None else extra.grad for extra in extras]
        for gradient in read:
            if gradient is None:
                return False
        read += variables
        state = segment.state
        known: _Known | None = state.next.get(self._key)
        if known is None or not known.fits(read):
            self._began = segment, state, len(segment.leaves), read
            if all(v._segment is segment or v._cell[0].__class__ in CONCRETE for v in read):
                with contextlib.suppress(SegmentClosedError):
                    for v in read:  # in this order, whichever the update reads first
                        place_in(segment, v)
            return False
        return _repeated(segment, known, read, variables)

    def note(self, results: Sequence[Variable | None]) -> None:
        """Remember what was recorded since :meth:`again`; ``results`` are the new values of parameters and state, None for what stays."""
        began, self._began = self._began, None
        segment = LOCAL.segment()
        if began is None or segment is not began[0] or not segment.open or not segment.state.known:
            return
        _, start, entered, read = began
        slots = [v._place.slot if v._segment is segment else segment.entered.get(id(v._cell)) for v in read]
        first = start.n_slots
        entering = [v for v, slot in zip(read, slots, strict=True) if slot is not None and slot >= first]
        if [id(v._cell) for v in entering] != [id(cell) for cell in segment.leaves[entered:]]:
            return  # numbers, or constants of its own
        variables = read[len(read) - len(results) :]
        ends = [r._place.slot for r in results if r is not None and r._segment is segment]
        changing = [i for i, r in enumerate(results) if r is not None]
        if not ends or len(ends) != len(changing) or len({*ends}) < len(ends) or min(ends) < first:
            return
        if not all(r is None or _fits(v, r) for v, r in zip(variables, results, strict=True)) or any(
            isinstance(v._place, LeafPlace) for v in read
        ):
            return
        before = [None if slot is None or slot >= first else slot for slot in slots]
        known = _Known(segment.state, [v._place for v in read], before, first, ends, changing)
        gradients = frozenset([slot for slot in before[: len(read) - len(variables)] if slot is not None])
        segment.state.cached(GRADIENTS, lambda: gradients)
        if link(start, self._key, known) is not known:
            start.next[self._key] = known  # what was read then was of other kinds, or elsewhere


def _fits(variable: Any, result: Any) -> bool:
    return variable._segment is None and variable._place.kind.aval == result._place.kind.aval


def _repeated(segment: Segment, known: _Known, read: list[Any], variables: Sequence[Handle]) -> bool:
    """Do a known update, unless what it reads is elsewhere than it was."""
    entering = _lacking(segment, read, known.slots)
    if entering is None:
        return False
    cells = [[None] for _ in known.results]
    with segment.lock:
        if not segment.open:
            return False
        _entered(segment, entering, known.first)
        segment.state = known.state
        segment.cells.update(zip(known.results, cells, strict=True))
    run_pending(segment, "step")
    check_slots(segment, known.results)
    hand_over([variables[i] for i in known.changing], cells)
    return True


def hand_over(variables: Sequence[Handle], cells: Sequence[Any]) -> None:
    """Give Variables these cells, all or none: Ctrl-C interrupts a loop in Python, and not one in C."""
    deque(map(setattr, variables, repeat("_cell"), cells), maxlen=0)


def _lacking(segment: Segment, read: list[Any], slots: list[int | None]) -> list[Any] | None:
    """Return the Variables that are to enter a segment, where ``slots`` has None; None where others are elsewhere than in these slots."""
    inside = segment.entered
    entering = []
    for v, slot in zip(read, slots, strict=True):
        if v._segment is segment:
            if v._place.slot != slot:
                return None
            continue
        if inside.get(id(v._cell)) != slot:
            return None
        if slot is None:
            if v._cell[0].__class__ not in CONCRETE or (v._place.kind.requires_grad and v._segment is not None):
                return None
            entering.append(v)
    return entering


def _entered(segment: Segment, entering: list[Any], first: int) -> None:
    """Enter Variables into a segment (its lock is held), from the slot ``first`` on."""
    for number, v in enumerate(entering, first):
        segment.entered[id(v._cell)] = number
        segment.leaves.append(v._cell)
        if v._place.kind.requires_grad:
            segment.origins[number] = node_of(v)
        elif v._place.kind.unrecorded:
            segment.leaf_lines[number] = made_at(v._place, v._segment)


_as_before = layout.chosen("updated")  # what :meth:`Update.again` does where everything is in the places where it was
