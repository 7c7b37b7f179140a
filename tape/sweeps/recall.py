"""Recall: a call of ``gradients()`` that was made before at the same point of the same tape, as one step of the trie.

It applies where nothing but the tape decides what the call does: all roots are pending, inputs and seeds are on the pending segment or
about to enter it, and there are no hooks and no ``tape.Function``.  Everything else takes the general way in
:mod:`tape.sweeps.differentiation`, which fills the cache here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tape.configuration import CHANGES
from tape.recording.record import CONCRETE, handle
from tape.recording.scope import LOCAL
from tape.recording.segment import Handle, LeafNode
from tape.recording.trie import link
from tape.rules import registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tape.ops.kinds import Place
    from tape.recording.segment import Cell, Segment
    from tape.recording.trie import State
    from tape.sweeps.sweep import Sweep

__all__ = ["Call", "call_of"]


class _Written:
    """Where a sweep ended on the trie, the places of its results, the entries that it released, and the order in which seeds entered."""

    __slots__ = ("order", "places", "released", "state")

    def __init__(self, state: State, places: tuple[Place, ...], released: frozenset[int], order: list[int]) -> None:
        self.state = state
        self.places = places
        self.released = released
        self.order = order


class Call:
    """One call of ``gradients()``: what it is known by at this point of the tape.

    Attributes:
        segment: the pending segment.
        entering: the constant seeds that enter it as leaves with this call.

    """

    __slots__ = ("_key", "_start", "entering", "segment")

    def __init__(self, segment: Segment, key: tuple[Any, ...], entering: list[Handle]) -> None:
        self.segment = segment
        self.entering = entering
        self._key = key
        self._start = segment.state

    def recalled(self) -> list[Any] | None:
        """Do what the call did before, if it was made; return the gradients."""
        segment = self.segment
        known: _Written | None = self._start.next.get(self._key)
        if known is None:
            return None
        cells: dict[int, Cell] = {}
        present = segment.cells
        found = []
        for place in known.places:
            slot = place.slot
            cell = present.get(slot) or cells.get(slot)
            if cell is None:
                cell = cells[slot] = [None]
            found.append(handle(segment, place, cell))
        with segment.lock:
            if not segment.open:  # another thread has run it
                return None
            first = self._start.n_slots
            for i, n in enumerate(known.order):
                cell = self.entering[n]._cell
                segment.entered[id(cell)] = first + i
                segment.leaves.append(cell)
            segment.state = known.state
            segment.cells.update(cells)
            segment.released = known.released
        return found

    def remember(self, sweep: Sweep, results: Sequence[Any], leaves: int) -> None:
        """Keep what the call did, if it can be recalled; ``leaves`` is the number of the segment's leaves before it."""
        segment = self.segment
        plan = sweep.only_plan(segment)
        if plan is None or not plan.straight or not segment.open or LOCAL.segment() is not segment or not segment.state.known:
            return
        numbers = {id(seed._cell): n for n, seed in enumerate(self.entering)}
        entered = [id(cell) for cell in segment.leaves[leaves:]]
        first = self._start.n_slots
        if set(entered) != set(numbers) or [segment.entered.get(e) for e in entered] != list(range(first, first + len(entered))):
            return
        order = [numbers[e] for e in entered]
        if any(g is None or g._segment is not segment for g in results):
            return
        link(self._start, self._key, _Written(segment.state, tuple(g._place for g in results), segment.released, order))


def call_of(outputs: Any, inputs: Any, seeds: Any, *options: Any) -> Call | None:
    """Return what a call of ``gradients()`` is known by; None where more than the tape decides what it does."""
    segment = LOCAL.segment()
    if segment is None or segment.epoch is not CHANGES.epoch or segment.hooks or segment.retained or segment.trace is not None:
        return None
    if segment.packing is not None:
        return None
    roots = (outputs,) if isinstance(outputs, Handle) else outputs
    wanted = (inputs,) if isinstance(inputs, Handle) else inputs
    given = (seeds,) if seeds is None or isinstance(seeds, Handle) else seeds
    if not (_is_sequence(roots) and _is_sequence(wanted) and _is_sequence(given)):
        return None
    key: list[Any] = ["gradients", len(roots), len(wanted), options, segment.released, registry.revision()]
    for root in roots:
        if not isinstance(root, Handle) or root._segment is not segment or (root._extra is not None and root._extra.assigned):
            return None
        key.append(root._place.slot)
    origins = set(segment.origins.values())
    if len(origins) < len(segment.origins) or any(origin.__class__ is tuple for origin in origins):
        return None  # a leaf that entered with two values, or one that another segment made: where the sweep may go on
    entered = segment.entered
    for v in wanted:
        if not isinstance(v, Handle):
            return None
        if v._segment is segment:
            key.append(v._place.slot)
            continue
        slot = entered.get(id(v._cell))
        origin = None if slot is None else segment.origins.get(slot)
        if origin.__class__ is not LeafNode or origin.hooks or v._extra is None or v._extra.node is not origin:
            return None
        key.append(slot)
    entering: list[Handle] = []
    for seed in given:
        if seed is None:
            key.append(None)
        elif not isinstance(seed, Handle):
            return None
        elif seed._segment is segment:
            key.append(seed._place.slot)
        elif id(seed._cell) in entered:
            key.append(entered[id(seed._cell)])
        elif seed._place.kind.requires_grad or seed._cell[0].__class__ not in CONCRETE or any(seed._cell is s._cell for s in entering):
            return None
        else:
            key.append(seed._place.kind)
            entering.append(seed)
    return Call(segment, tuple(key), entering)


def _is_sequence(given: Any) -> bool:
    return given.__class__ is tuple or given.__class__ is list
