"""Accumulation: the gradients of a sweep are added to the ``.grad`` of Variables, to all of them or to none.

Several threads may sweep to the same leaves.  A sum is recorded and run before it is assigned; where another thread was quicker to assign
its own in the meantime, the sum is made again with that one.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from tape.graph.scope import LOCAL, in_mode
from tape.graph.segment import LeafNode, extra_of
from tape.graph.trie import SWEEP
from tape.programs.failures import check_slots
from tape.programs.program import run_pending
from tape.sweeps import emission
from tape.sweeps.sweep import target_of

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def summed(added: Sequence[Addition], consumed: Sequence[Any] = (), mode: int = SWEEP) -> Sequence[Addition]:
    """Record sums for Variables that have another ``.grad`` than their addition says; what was ``consumed`` as a seed is not added to."""
    if all(extra_of(variable).grad is grad for variable, _, grad, _ in added):
        return added
    return in_mode(mode, _anew, added, consumed)  # type: ignore[no-any-return]


def _anew(added: Sequence[Addition], consumed: Sequence[Any]) -> list[Addition]:
    sums = []
    for variable, gradient, _, _ in added:
        grad = extra_of(variable).grad
        first = grad is None or any(variable is root for root in consumed)
        sums.append((variable, gradient, grad, gradient if first else emission.add(grad, gradient)))
    return sums


def awaited(added: Sequence[Addition]) -> bool:
    """Tell whether one optimizer updates all these Variables: its step will run the sweep too, so that both are one program."""
    updater = added[0][0]._extra.updater if added else None
    if updater is None:
        return False
    return all(grad is None and variable._extra.updater is updater for variable, _, grad, _ in added)


def assign(added: Sequence[Addition], consumed: Sequence[Any] = (), *, mode: int = SWEEP) -> None:
    """Set every ``.grad`` to its sum (which has run), or none where one could not be computed; ``mode`` is that of sums made again."""
    while True:
        with _ASSIGNING: assigned = _assigned(added, consumed)  # fmt: skip  # noqa: E701 - see tape.locks
        if assigned:
            return
        added = summed(added, consumed, mode)
        segment = LOCAL.segment()
        if segment is not None:
            run_pending(segment, "backward")


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
