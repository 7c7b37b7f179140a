"""Sweeps after a look: what ``backward()`` wrote for a segment that had run is written again as one segment of its own.

Whoever looks at a loss before its sweep has two programs: that of the forward, and that of the sweep, which reads what the first one kept
(they run as one where :mod:`tape.programs.foresight` foresees it).
Where the thread has nothing else pending then, the second is the same segment in every step, down to which cells enter it in which order.
The recorder in C makes that segment at once (``swept_apart``), and does then what :func:`tape.sweeps.differentiation.backward` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tape import layout
from tape.graph.kinds import Place
from tape.graph.scope import LOCAL
from tape.graph.segment import Handle, LeafNode, Segment
from tape.graph.trie import State, link
from tape.programs.retention import leaf_slots, spent
from tape.rules import table
from tape.sweeps.sweep import Sweep


@dataclass(slots=True, eq=False)
class Looked:
    """A sweep on a segment of its own.

    Attributes:
        state: its structure.
        places: which cells enter, in this order: positions among those of the leaves of the swept segment, and then of what that keeps.
        slots: those that they get.
        ends: where sweeps go on from them in the swept segment, by its slots; None where they do not.
        results: slots of the swept segment at which the sweep ends, and the places of the gradients.
        released: which entries of the swept segment are released then.
        spent: whether that one keeps nothing for other sweeps.

    """

    state: State
    places: tuple[int, ...]
    slots: Sequence[int]
    ends: tuple[int | None, ...]
    results: tuple[tuple[int, Place], ...]
    released: frozenset[int]
    spent: bool


class After(NamedTuple):
    """A call from a segment that has run which waits to be remembered, and what it is known by."""

    segment: Segment
    key: tuple[Any, ...]

    def remember(self, sweep: Sweep) -> None:
        """Keep what the call wrote, if it is the same whenever it is made again."""
        segment, target, plan = self.segment, LOCAL.segment(), sweep.only_plan(self.segment)
        if target is None or plan is None or not plan.straight or segment.run is None or not segment.state.known or not target.state.known:
            return
        cells = [*segment.leaves, *segment.run.saved.values()]
        present = [(id(cell), i) for i, cell in enumerate(cells) if cell.__class__ is list]  # no sweep reads what was let go of
        numbers = dict(present)
        places = tuple([numbers.get(id(cell), -1) for cell in target.leaves])
        if -1 in places or len(numbers) != len(present) or target.leaf_lines or target.configuration is not segment.configuration:
            return
        given, own, slots = len(segment.leaves), [*leaf_slots(segment.state), *segment.run.saved], tuple(leaf_slots(target.state))
        ends = tuple([own[i] if slot in target.origins else None for i, slot in zip(places, slots, strict=True)])
        for i, slot, end in zip(places, slots, ends, strict=True):
            origin = None if end is None else target.origins[slot]
            if end is not None and (origin.__class__ is not LeafNode if i < given else origin != (segment, end)):
                return
        reached = [(slot, segment.origins.get(slot)) for slot, _ in plan.outputs]
        gradients = [sweep.gradients.get(node) for _, node in reached]
        if len({node for _, node in reached}) != len(reached) or not all(n.__class__ is LeafNode and not n.hooks for _, n in reached):
            return
        if all(g is not None and g._segment is target for g in gradients):
            released = segment.released | plan.entries
            results = tuple([(slot, g._place) for (slot, _), g in zip(reached, gradients, strict=True)])  # type: ignore[union-attr]
            known = Looked(target.state, places, slots, ends, results, released, spent(segment.state, released))
            link(segment.state, self.key, known)


def looked_at(root: object) -> After | None:
    """Return a call from one root without a seed, to be remembered; None where more than what has run decides what it does."""
    if layout.NATIVE is None or not isinstance(root, Handle) or root._segment is None or LOCAL.segment() is not None:
        return None
    segment, extra = root._segment, root._extra
    run = segment.run
    if run is None or run.failed or run.boxed or segment.trace is not None or segment.packing is not None or LOCAL.scope.trace.capturing:
        return None
    if segment.hooks or segment.retained or segment.functions or segment.state.cut or (extra is not None and extra.assigned):
        return None
    return After(segment, ("look", run.kept, segment.released, table.revision(), root._place.slot))
