"""Accumulation: the gradients of a sweep are added to the ``.grad`` of Variables, to all of them or to none.

Several threads may sweep to the same leaves.  A sum is recorded and run before it is assigned; where another thread was quicker to assign
its own in the meantime, the sum is made again with that one.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from tape.locks import holding
from tape.programs.program import run_pending
from tape.recording.failures import check_slots
from tape.recording.scope import LOCAL, in_mode
from tape.recording.segment import LeafNode, extra_of
from tape.recording.trie import RECORD, SWEEP
from tape.sweeps import emission
from tape.sweeps.sweep import target_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Addition", "additions", "assign", "assign_first", "awaited"]

_ASSIGNING = threading.Lock()


class Addition(NamedTuple):
    """One Variable's gradient of this sweep, the ``.grad`` that was found there, and the sum of the two."""

    variable: Any
    gradient: Any
    found: Any
    total: Any


def additions(gradients: dict[Any, Any], targets: Sequence[Any] | None, consumed: Sequence[Any] = ()) -> list[Addition]:
    """Record, for each Variable that receives a gradient, the sum with the one that it has.

    Args:
        gradients: those of the sweep, by target.
        targets: the Variables that receive one; None for all leaves and those that retain theirs.
        consumed: roots whose assigned ``.grad`` was their seed, and is not added to.

    """
    receivers: list[tuple[Any, Any]] = []
    if targets is not None:
        receivers.extend((target, gradients.get(target_of(target))) for target in {id(t): t for t in targets}.values())
    else:
        receivers.extend((target.ref(), gradient) for target, gradient in gradients.items() if isinstance(target, LeafNode))
    for target, gradient in gradients.items():
        if not isinstance(target, LeafNode):
            segment, slot = target
            alive = [v for ref in segment.retained.get(slot, ()) if (v := ref()) is not None]
            receivers.extend((v, gradient) for v in alive if targets is None or all(v is not t for t in targets))
    return [_addition(v, gradient, consumed) for v, gradient in receivers if v is not None and gradient is not None]


def _addition(variable: Any, gradient: Any, consumed: Iterable[Any]) -> Addition:
    found = extra_of(variable).grad
    first = found is None or any(variable is root for root in consumed)
    return Addition(variable, gradient, found, gradient if first else emission.add(found, gradient))


def awaited(made: Iterable[Addition]) -> bool:
    """Tell whether one optimizer updates all these Variables: its step will run the sweep too, so that both are one program."""
    updaters = {a.variable._extra.updater if a.found is None else None for a in made}
    return len(updaters) == 1 and None not in updaters


def assign(made: Sequence[Addition], consumed: Sequence[Any], *, recorded: bool) -> None:
    """Set every ``.grad`` to its sum (which has run), once none has failed.

    Args:
        made: what :func:`additions` returned.
        consumed: roots whose assigned ``.grad`` was their seed.
        recorded: whether the sums are differentiable.

    Raises:
        TapeError: a gradient could not be computed.  Nothing is changed then.

    """
    while True:
        for addition in made:
            segment = addition.total._segment
            if segment is not None and addition.total._cell[0] is None:
                check_slots(segment, (addition.total._place.slot,))
        if holding(_ASSIGNING, _assigned, made, consumed):
            return
        made = in_mode(RECORD if recorded else SWEEP, _added_again, made, consumed)
        segment = LOCAL.segment()
        if segment is not None:
            run_pending(segment, "backward")


def assign_first(made: dict[Any, Any]) -> bool:
    """Set gradients, which have run, where there are none yet; do nothing and return False should another thread have set one."""
    first: bool = holding(_ASSIGNING, _assigned_first, made)
    return first


def _assigned_first(made: dict[Any, Any]) -> bool:
    for extra in made:
        if extra.grad is not None:
            return False
    try:
        for extra, gradient in made.items():
            extra.grad = gradient
            extra.assigned = False
    except BaseException:  # Ctrl-C
        for extra in made:
            extra.grad = None
        raise
    return True


def _added_again(made: Sequence[Addition], consumed: Iterable[Any]) -> list[Addition]:
    return [a if a.variable._extra.grad is a.found else _addition(a.variable, a.gradient, consumed) for a in made]


def _assigned(made: Sequence[Addition], consumed: Iterable[Any]) -> bool:
    if any(a.variable._extra.grad is not a.found for a in made):
        return False
    _assign(made, consumed)
    return True


def _assign(made: Sequence[Addition], consumed: Iterable[Any]) -> None:
    new = {id(root._extra): (root._extra, None) for root in consumed}
    new.update((id(a.variable._extra), (a.variable._extra, a.total)) for a in made)
    before = [(extra, extra.grad, extra.assigned) for extra, _ in new.values()]
    try:
        for extra, gradient in new.values():
            extra.grad, extra.assigned = gradient, False
    except BaseException:  # Ctrl-C
        for extra, gradient, assigned in before:
            extra.grad, extra.assigned = gradient, assigned
        raise
