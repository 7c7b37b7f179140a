"""Pending leaves: Variables that become leaves before their values are there.

``v.detach().requires_grad_()`` makes inputs to differentiate by of results: interpolates of a gradient penalty, the inner parameters of a
meta-learner; and updates of a leaf (``w -= 0.1 * w.grad`` under ``no_grad``) are some.  To look at the value would part the step into two programs.  So the segment gets an entry instead, an identity whose result
requires grad whatever it was made of, and at which sweeps end as at any leaf: its cotangent goes to the Variable.
"""

from __future__ import annotations

from tape.configuration import CHANGES
from tape.graph.scope import LOCAL
from tape.graph.segment import Handle, node_of
from tape.ops.kernel import Op
from tape.recording.entering import run_if_long

__all__ = ["made_leaf"]

_LEAF = Op("leaf", lambda x: x)


def made_leaf(variable: Handle, result: Handle | None = None) -> bool:
    """Make a pending Variable a leaf that requires grad; return False where somebody has to look at it first.

    That is where it does not stand on the segment in which this thread records: another thread's, or that of a JAX transformation.

    Args:
        variable: what becomes the leaf.  What refers to it as one, a gradient and hooks, stays.
        result: whose value it gets, that of another pending Variable; None for its own.

    """
    source = variable if result is None else result
    segment = source._segment
    if segment is None or source._cell[0] is not None or LOCAL.segment() is not segment or segment.epoch is not CHANGES.epoch:
        return False
    old = source._place
    state = segment.state
    key = (_LEAF, old.slot)
    child = state.next.get(key)
    if child is None:
        child = state.entry(key, _LEAF, _LEAF.kernel_of((old.kind,)), (old.slot,), ends=True)
    slot: int = child.slots[0]
    node = node_of(variable)
    cell = [None]
    number = id(cell)
    with segment.lock:
        if not segment.open:  # another thread has run it
            return False
        place = segment.leaf_place(slot, child.places[0].kind)
        segment.state = child  # what follows is done in one breath: see Segment
        segment.cells[slot] = cell
        segment.entered[number] = slot
        segment.origins[slot] = node
        variable._segment, variable._place, variable._cell = None, place, cell
    if child.full:
        run_if_long(segment)
    return True
