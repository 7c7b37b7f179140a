"""Replay: a plain ``backward()`` that was written before at the same point of the same tape, as one step of the trie.

It applies to the common case (one pending root, without a seed or with a constant one, leaves without hooks whose ``.grad`` is empty);
everything else takes the general way in :mod:`tape.sweeps.differentiation`, which also fills the cache here.  Where one optimizer updates all leaves, what was replayed stays
pending until its step, and so is one program with the update.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tape.configuration import CHANGES
from tape.programs.program import run_pending
from tape.recording.failures import check_slots
from tape.recording.record import CONCRETE, place_in
from tape.recording.scope import LOCAL
from tape.recording.segment import Handle, LeafNode, SegmentClosedError, TracerMetError
from tape.recording.trie import link
from tape.rules import registry
from tape.sweeps.accumulation import Addition, assign, assign_first

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tape.ops.kinds import Place
    from tape.recording.segment import Segment
    from tape.recording.trie import State
    from tape.sweeps.sweep import Sweep

__all__ = ["is_plain", "remember", "replayed"]

_new = object.__new__
_BACKWARD = "backward"


class _Replay:
    """Where a backward pass ended on the trie, the place of each leaf's gradient, and the entries that it swept."""

    __slots__ = ("entries", "outputs", "state")

    def __init__(self, state: State, outputs: tuple[tuple[int, Place], ...], entries: frozenset[int]) -> None:
        self.state = state
        self.outputs = outputs
        self.entries = entries


def is_plain(seed: Any) -> bool:
    """Tell whether a seed, or none, does not keep a backward pass from being replayed: it is a constant that has its value."""
    return seed is None or (isinstance(seed, Handle) and not seed._place.kind.requires_grad and seed._cell[0].__class__ in CONCRETE)


def _key(segment: Segment, root: Any, seed: Any) -> tuple[Any, ...]:
    """Return what a backward pass is known by after its seed has entered, as it does first of all."""
    return (_BACKWARD, root._place.slot, registry.revision(), None if seed is None else place_in(segment, seed))


def replayed(root: Any, seed: Any = None) -> bool:
    """Do what ``backward(root, seed)`` does if it was done before at this point of the tape; tell whether it was."""
    segment: Any = root._segment
    current: Any = LOCAL.segment()
    if (
        segment is None
        or current is not segment
        or segment.epoch is not CHANGES.epoch
        or segment.hooks
        or segment.retained
        or segment.released
        or segment.packing is not None
    ):
        return False
    try:
        key = _key(segment, root, seed)
    except (SegmentClosedError, TracerMetError):
        return False
    known: _Replay | None = segment.state.next.get(key)
    if known is None or (root._extra is not None and root._extra.assigned):
        return False
    origins = segment.origins
    kind = root.__class__
    fresh: dict[int, list[Any]] = {}
    made: dict[Any, Any] = {}  # what holds a leaf's .grad -> the gradient
    updaters = set()
    for slot, place in known.outputs:
        node = origins.get(slot)  # none for a slot that was cut, unless somebody asked for its gradient
        if node.__class__ is not LeafNode or node.hooks:
            return False
        variable = node.ref()
        if variable is None:
            continue
        extra = variable._extra
        if extra is None or extra.grad is not None or extra.post_hooks or extra in made:
            return False  # also where one leaf entered with two values: its gradients add up
        made[extra] = gradient = _new(kind)
        gradient._segment = None  # it has its value, or an error was raised, before anybody sees it
        gradient._place = place
        gradient._cell = fresh.setdefault(place.slot, [None])
        gradient._extra = None
        updaters.add(extra.updater)
    waits = len(updaters) == 1 and None not in updaters  # as in accumulation.awaited
    with segment.lock:
        if not segment.open:  # another thread has run it
            return False
        old = segment.state
        try:
            segment.released = known.entries
            segment.state = known.state
            segment.cells.update(fresh)
            if waits:
                for gradient in made.values():
                    gradient._segment = segment
            else:
                run_pending(segment, "backward")
                if segment.failed:
                    check_slots(segment, tuple(fresh))
        except BaseException:
            if segment.pending:
                for slot in fresh:
                    segment.cells.pop(slot, None)
                segment.state = old
            if segment.leaves:  # nothing was released yet
                segment.released = frozenset()
            raise
    if not assign_first(made):
        variables = {v._extra: v for slot, _ in known.outputs if (v := origins[slot].ref()) is not None}
        assign([Addition(variables[extra], gradient, None, gradient) for extra, gradient in made.items()], (), recorded=False)
    return True


def remember(root: Any, seed: Any, segment: Segment, start: State, entered: int, sweep: Sweep, made: Sequence[Addition]) -> None:
    """Keep a backward pass from ``root`` that began in ``start``, after ``entered`` leaves, and is written now, if it can be replayed."""
    if len(segment.leaves) != entered:
        return  # a replay would lack what entered with the sweep
    plan = sweep.only_plan(segment)
    if plan is None or not plan.straight or LOCAL.segment() is not segment:
        return
    if not segment.state.known:
        return  # what is recorded after it would never come to be on the trie
    if any(addition.found is not None for addition in made):
        return  # what was in .grad before entered the tape, to be added to
    found = sweep.gradients  # also those of leaves that are gone, and may not be so the next time
    if len(found) != len(plan.outputs):
        return
    outputs = []
    for slot, _ in plan.outputs:
        gradient = found.get(segment.origins.get(slot))
        if gradient is None or gradient._segment is not segment:
            return
        outputs.append((slot, gradient._place))
    link(start, _key(segment, root, seed), _Replay(segment.state, tuple(outputs), plan.entries))
