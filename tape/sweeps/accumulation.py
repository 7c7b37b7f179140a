"""Accumulation: the gradients of a sweep are added to the ``.grad`` of Variables, to all of them or to none.

Several threads may sweep to the same leaves.  A sum is recorded and run before it is assigned; where another thread was quicker to assign
its own in the meantime, the sum is made again with that one.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from tape import layout
from tape.graph.boxes import Cell
from tape.graph.constants import handle
from tape.graph.kinds import Place
from tape.graph.scope import LOCAL, in_mode
from tape.graph.segment import LeafNode, Segment, extra_of
from tape.graph.trie import SWEEP
from tape.programs.failures import check_slots
from tape.programs.program import run_pending
from tape.sweeps import emission
from tape.sweeps.sweep import target_of
from tape.sweeps.written import SEQUENCES

_ASSIGNING = threading.Lock()


# One Variable, its gradient of this sweep, the ``.grad`` that was there, and the sum of the two.
Addition = tuple[Any, Any, Any, Any]


def additions(gradients: dict[Any, Any], targets: Sequence[Any] | None) -> list[Addition]:
    """Return what is added to whom: to ``targets``, or without them to all leaves and those that retain their gradient."""
    if targets is not None:
        receivers = [(target, gradients.get(target_of(target))) for target in {id(t): t for t in targets}.values()]
    else:
        receivers = [(target.ref(), gradient) for target, gradient in gradients.items() if target.__class__ is LeafNode]
    for target, gradient in gradients.items():
        if target.__class__ is not LeafNode:
            segment, slot = target
            alive = [v for ref in segment.retained.get(slot, ()) if (v := ref()) is not None]
            receivers.extend((v, gradient) for v in alive if targets is None or all(v is not t for t in targets))
    return [(v, gradient, None, gradient) for v, gradient in receivers if v is not None and gradient is not None]


# What arrives at leaves: an addition for each that somebody holds, further cells of their segment, whether one has a gradient already, and
# whether one has hooks that wait for it.
Arrival = tuple[list[Addition], "dict[int, Cell]", bool, bool]


def _arrived(segment: Segment, results: Sequence[tuple[int, Place]]) -> Arrival | None:
    """Return what arrives at the leaves in some slots of a segment, where a sweep ends in these places; None where there are others."""
    ends = [segment.origins.get(slot) for slot, _ in results]  # none for a slot that was cut, unless somebody asked for its gradient
    if len(set(ends)) < len(ends):  # a leaf that entered with two values
        return None
    receivers = []
    for end in ends:
        if end.__class__ is not LeafNode or end.hooks:
            return None
        receivers.append(end.ref())
    return arrived_at(segment, results, receivers)


arrived = layout.chosen("arrived", _arrived)


def leaves_given(segment: Segment, slots: Sequence[int], given: Any) -> Sequence[Any] | None:
    """Return leaves that are to receive gradients, in some slots of a segment; None where one is no leaf, or given twice."""
    receivers = given if given.__class__ in SEQUENCES else (given,)
    ends = [segment.origins.get(slot) for slot in slots]
    for variable, end in zip(receivers, ends, strict=True):
        if end.__class__ is not LeafNode or variable._extra is None or variable._extra.node is not end:
            return None
    return receivers if len(set(ends)) == len(ends) > 0 else None


def arrived_at(segment: Segment, results: Sequence[tuple[int, Place]], receivers: Sequence[Any]) -> Arrival:
    """Return what arrives at leaves where a sweep ends in these places, one for each; None stands for a leaf that nobody holds."""
    cells: dict[int, Cell] = {}
    fresh: list[Addition] = []
    for variable, (_, place) in zip(receivers, results, strict=True):
        if variable is not None:
            gradient = handle(segment, place, segment.cells.get(place.slot) or cells.setdefault(place.slot, [None]))
            fresh.append((variable, gradient, None, gradient))
    extras = [variable._extra for variable, *_ in fresh]
    return fresh, cells, any(extra.grad is not None for extra in extras), any(extra.post_hooks for extra in extras)


def summed(added: Sequence[Addition], consumed: Sequence[Any] = (), mode: int = SWEEP) -> Sequence[Addition]:
    """Record sums anew where ``.grad`` is no longer what the addition was made with; a gradient ``consumed`` as a seed is not added to."""
    if all(extra_of(variable).grad is grad for variable, _, grad, _ in added):
        return added
    return in_mode(mode, _anew, added, consumed)  # type: ignore[no-any-return]


def _anew(added: Sequence[Addition], consumed: Sequence[Any]) -> list[Addition]:
    sums = []
    for variable, gradient, _, _ in added:
        grad = extra_of(variable).grad
        first = grad is None or any(variable is root for root in consumed)
        sums.append((variable, gradient, grad, gradient if first else emission.add(grad, gradient)))
    if LOCAL.scope.notes is not None:
        LOCAL.scope.notes.grew()
    return sums


def awaited(added: Sequence[Addition]) -> bool:
    """Tell whether optimizers update all these Variables, and one has its first gradient: a step will run the sweep too, as one program."""
    return any(grad is None for _, _, grad, _ in added) and all(variable._extra.updater is not None for variable, *_ in added)


def assign(added: Sequence[Addition], consumed: Sequence[Any] = (), *, mode: int = SWEEP) -> None:
    """Set every ``.grad`` to its sum (which has run), or none where one could not be computed; ``mode`` is that of sums made again."""
    while True:
        with _ASSIGNING: done = (not consumed and _at_once(added)) or _assigned(added, consumed)  # fmt: skip  # noqa: E701 - see tape.locks
        if done:
            return
        added = summed(added, consumed, mode)
        segment = LOCAL.segment()
        if segment is not None:
            run_pending(segment, "backward")


_at_once = layout.chosen("assigned")  # what :func:`_assigned` does, in the common case


def _assigned(added: Sequence[Addition], consumed: Sequence[Any]) -> bool:
    given = [(root._extra, root._extra.grad) for root in consumed] if consumed else []  # what the user assigned
    for variable, _, grad, total in added:
        extra = variable._extra
        if extra.grad is not grad:
            return False
        if extra.assigned:
            given.append((extra, grad))
        if total._cell[0] is None and total._segment is not None:
            check_slots(total._segment, (total._place.slot,))
    try:
        for extra, _ in given:
            extra.grad, extra.assigned = None, False
        for variable, _, _, total in added:
            variable._extra.grad = total
    except BaseException:  # Ctrl-C
        for variable, _, grad, _ in added:
            variable._extra.grad = grad
        for extra, grad in given:
            extra.grad, extra.assigned = grad, True
        raise
    return True
