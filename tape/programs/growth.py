"""Growth: a loop whose tape becomes longer with each turn, though no gradient can come of what the turns before have left.

``params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)`` and ``total = total + loss`` are such loops: what they carry over
depends on all that came before it.  Unrolled loops do so on purpose, but lead back to a leaf that somebody holds.  Here nobody has held
the first parameters since the second turn, or every way back to a leaf that is held is refused: through what a sweep released, or through
a gradient that was taken without recording.
"""

from __future__ import annotations

from tape.errors import warn
from tape.graph.segment import LeafNode, Segment
from tape.graph.trie import State
from tape.graph.wengert import backwards, producers

LIMIT = 64


def count(segment: Segment, origin: Segment, slot: int) -> None:
    """Note that a value of ``origin`` enters a segment; where many lie behind each other, look whether it can have a gradient."""
    behind = origin.generation + 1
    if behind < segment.generation:
        return
    segment.generation = behind
    turns, rest = divmod(behind, LIMIT)
    if not rest and turns & (turns - 1) == 0 and _grows(origin, slot):  # now, and when twice as many do
        state = origin.state
        entry = producers(state.path())[slot]
        assert entry.kernel is not None
        at = "" if entry.where is None else f" at {entry.where[0]}:{entry.where[1]}"
        warn(
            f"a tape that grows: {entry.kernel.name}{at} depends on what the same loop made in the turns before, {LIMIT} or more, all of "
            "which is kept, though no gradient can come of it: nobody holds the leaves where it began, or a sweep released them, or the "
            "way there uses a gradient that was taken without recording; update a parameter in place, `with tape.no_grad(): p -= 0.1 * g`, "
            "or cut the new one off, `(p - 0.1 * g).detach().requires_grad_()`; carry over the value of a sum, "
            "`total = total + loss.detach()`",
            entry.where,
        )


def _grows(segment: Segment, slot: int) -> bool:
    """Tell whether as many segments lie on the ways back from a slot, and none of these leads to a leaf that somebody holds."""
    waiting = [(segment, slot, False)]
    seen = set(waiting)
    for segment, slot, lost in waiting:  # noqa: PLR1704 - grows while it is walked
        state, released = segment.state, segment.released
        ends = state.cached(("ends", slot, released), lambda: _ends(state, slot, released))  # noqa: B023 - called at once
        for leaf, refused in ends.items():
            end = segment.origins.get(leaf)
            if isinstance(end, tuple):
                further = (*end, lost or refused)
                if further not in seen:
                    seen.add(further)
                    waiting.append(further)
            elif isinstance(end, LeafNode) and not (lost or refused) and (end.hooks or end.ref() is not None):
                return False
    return len({segment for segment, *_ in waiting}) >= LIMIT


def _ends(state: State, slot: int, released: frozenset[int]) -> dict[int, bool]:
    """Return the slots that sweeps from one of a structure reach, leaves among them, and whether all ways there are refused."""
    refused = {slot: False}
    for step in backwards(state.path(), refused.keys()):
        if step.ends or not state.cut.isdisjoint(step.slots):
            continue
        refuses = step.hazard is not None or step.depth in released or all(refused.get(s, True) for s in step.slots)
        for s in step.inputs:
            if state.table[s].kind.requires_grad:
                refused[s] = refuses and refused.get(s, True)
    return refused
