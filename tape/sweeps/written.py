"""Written sweeps: what was asked at a point of the trie before is written again as one step of it.

:mod:`tape.sweeps.emission` keeps plans so.  Whole calls of ``backward()`` and ``gradients()`` are kept where nothing but the tape decides
what they do: all roots are pending, inputs and seeds are on the pending segment or about to enter it, and there are no hooks and no
``tape.Function``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tape.configuration import CHANGES
from tape.graph.length import ends_long
from tape.graph.scope import LOCAL
from tape.graph.segment import Handle, LeafNode
from tape.graph.trie import link
from tape.recording.entering import CONCRETE
from tape.recording.record import handle
from tape.rules import table
from tape.sweeps.plan import behind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tape.graph.boxes import Cell
    from tape.graph.kinds import Place
    from tape.graph.segment import Segment
    from tape.graph.trie import State
    from tape.sweeps.sweep import Sweep


@dataclass(slots=True, eq=False)
class Written:
    """Where the trie stands after a sweep.

    Attributes:
        state: that structure.
        results: slots at which the sweep ended (where somebody asks for them), and the places of the cotangents there.
        order: that in which seeds that were no part of the segment entered it.
        released: which entries are released then; None: none more than before.
        ends: of a call with inputs, the slots at which a sweep without them ends; None where the segment may run after it.

    """

    state: State
    results: Sequence[tuple[int, Place]]
    order: Sequence[int] = ()
    released: frozenset[int] | None = None
    ends: tuple[int, ...] | None = None

    def again(self, segment: Segment, start: State, entering: Sequence[Handle] = ()) -> list[Any] | None:
        """Write it on a segment that stands at ``start``, where it began; return the results, None where :meth:`enter` fails."""
        present = segment.cells
        cells: dict[int, Cell] = {}
        results = []
        for _, place in self.results:
            slot = place.slot
            cell = present.get(slot) or cells.get(slot)
            if cell is None:
                cell = cells[slot] = [None]
            results.append(handle(segment, place, cell))
        return results if self.enter(segment, start, entering, cells) else None

    def enter(self, segment: Segment, start: State, entering: Sequence[Handle], cells: dict[int, Cell]) -> bool:
        """Advance a segment, with further cells for results, and the seeds that enter.

        Returns:
            False where another thread has run it, or a finalizer or a signal's handler has recorded meanwhile.

        """
        released = segment.released
        try:
            with segment.lock:
                entered, leaves = segment.entered, segment.leaves
                if self.order:
                    further = [entering[n]._cell for n in self.order]
                    entered = {**entered, **{id(cell): slot for slot, cell in enumerate(further, start.n_slots)}}
                    leaves = [*leaves, *further]
                if not segment.open or segment.state is not start:
                    return False
                segment.entered, segment.leaves, segment.state = entered, leaves, self.state  # in one breath: see Segment
                segment.cells.update(cells)
                if self.released is not None:
                    segment.released = self.released
                return True
        except BaseException:  # Ctrl-C
            segment.released = released
            raise


SEQUENCES = frozenset({tuple, list})


class Call(NamedTuple):
    """One call that waits to be remembered: what :func:`asked` says of it, and where its segment stood."""

    segment: Segment
    key: tuple[Any, ...]
    entering: list[Handle]
    start: State
    leaves: int

    def remember(self, sweep: Sweep, results: Iterable[Any] | None = None, *, retains: bool = False) -> None:
        """Keep what the call wrote, if it can be written again; without ``results``, these are the gradients where it ended."""
        segment = self.segment
        plan = sweep.only_plan(segment)
        if plan is None or not plan.straight or not segment.open or LOCAL.segment() is not segment or not segment.state.known:
            return
        numbers = {id(seed._cell): n for n, seed in enumerate(self.entering)}
        entered = [id(cell) for cell in segment.leaves[self.leaves :]]
        first = self.start.n_slots
        if set(entered) != set(numbers) or [segment.entered.get(e) for e in entered] != list(range(first, first + len(entered))):
            return
        ends: list[tuple[int, Any]]
        if results is None:
            ends = [(slot, sweep.gradients.get(segment.origins.get(slot))) for slot, _ in plan.outputs]
        else:
            ends = [(-1, gradient) for gradient in results]
        if all(g is not None and g._segment is segment for _, g in ends):
            # Where nothing was released before, the plan's own, as in Sweep.releasing: programs are found by it, one object at once.
            released = None if retains else segment.released | plan.entries if segment.released else plan.entries
            create_graph, retains, before, *_ = self.key
            cut = before and ends_long(segment.state) and not (create_graph or retains)
            stops = None if results is None or cut else behind(self.start, frozenset(plan.seeds)).ends
            written = Written(segment.state, tuple([(slot, g._place) for slot, g in ends]), [numbers[e] for e in entered], released, stops)
            link(self.start, self.key, written)


def asked(
    outputs: Any, inputs: Any, seeds: Any, *, create_graph: bool = False, retains: bool = False
) -> tuple[Segment, tuple[Any, ...], list[Handle]] | None:
    """Return what a call is known by (``inputs`` None: all leaves); None where more than the tape decides what it does.

    Returns:
        The pending segment, the key where that stands, and the constant seeds that enter it as leaves with the call.

    """
    segment = LOCAL.segment()
    if segment is None or segment.epoch is not CHANGES.epoch or segment.hooks or segment.retained or segment.packing is not None:
        return None
    if segment.trace is not None or LOCAL.scope.trace.capturing:
        return None
    roots = outputs if outputs.__class__ in SEQUENCES else (outputs,)
    key: list[Any] = [create_graph, retains, segment.released, table.revision()]
    for root in roots:
        if not isinstance(root, Handle) or root._segment is not segment or not root._place.kind.requires_grad:
            return None
        if root._extra is not None and root._extra.assigned:
            return None
        key.append(root._place.slot)
    entering: list[Handle] = []
    if seeds is not None:
        given = seeds if seeds.__class__ in SEQUENCES else (seeds,)
        if len(given) != len(roots):
            return None
        key.append("seeds")
        cells: set[int] = set()  # of those that enter
        for seed in given:
            if seed is None:
                key.append(None)
                continue
            if not isinstance(seed, Handle):
                return None
            slot = seed._place.slot if seed._segment is segment else segment.entered.get(id(seed._cell))
            if slot is not None:
                key.append(slot)
            elif seed._place.kind.requires_grad or seed._cell[0].__class__ not in CONCRETE or id(seed._cell) in cells:
                return None
            else:
                key.append(seed._place.kind)
                entering.append(seed)
                cells.add(id(seed._cell))
    if inputs is not None:
        wanted = _slots(segment, (inputs,) if isinstance(inputs, Handle) else inputs)
        if wanted is None or not (_ends_in_leaves(segment) or _ends_here(segment, frozenset([root._place.slot for root in roots]), wanted)):
            return None
        key.append(wanted)
    return segment, tuple(key), entering


def call_to(segment: Segment, key: tuple[Any, ...], entering: list[Handle]) -> Call:
    """Return a call with inputs that is not known yet, to be remembered."""
    return Call(segment, key, entering, segment.state, len(segment.leaves))


def call_to_leaves(segment: Segment, key: tuple[Any, ...], entering: list[Handle], roots: Iterable[Handle]) -> Call | None:
    """Return a call without inputs that is not known yet (see :func:`asked`), to be remembered; None where it can not be."""
    if not (_ends_in_leaves(segment) or _ends_apart(segment, frozenset([root._place.slot for root in roots]))):
        return None
    return call_to(segment, key, entering)


def _ends_in_leaves(segment: Segment) -> bool:
    """Tell whether sweeps end within a segment, at leaves each of which entered it with one value, and call no hooks there."""
    ends = set(segment.origins.values())
    return len(ends) == len(segment.origins) and not any(isinstance(end, tuple) or end.hooks for end in ends)


def _ends_apart(segment: Segment, roots: frozenset[int]) -> bool:
    """Tell whether a sweep from some slots ends as in :func:`_ends_in_leaves`, whatever else entered: the old values of leaves, say."""
    ends = [segment.origins.get(slot) for slot in behind(segment.state, roots).ends]
    return len(set(ends)) == len(ends) and all(end.__class__ is LeafNode and not end.hooks for end in ends)


def _ends_here(segment: Segment, roots: frozenset[int], wanted: tuple[int, ...]) -> bool:
    """Tell whether a sweep from some slots to others goes through this segment only, and calls no hooks elsewhere.

    Some of these are results of segments before.  Nothing else at which the sweep ends here may lead to one of them, or to a leaf that is
    asked for.
    """
    origins = segment.origins
    ends = {slot: origins.get(slot) for slot in behind(segment.state, roots).ends}
    if len(set(ends.values())) != len(ends):
        return False
    before: list[tuple[Segment, int]] = []
    for end in ends.values():
        if isinstance(end, tuple):
            one, slot = end
            if slot in one.hooks or slot in one.state.cut or one.configuration is not segment.configuration:
                return False
            before.append(end)
        elif end is None or end.hooks:
            return False
    targets = [origins.get(slot) for slot in wanted]
    for one, slot in before:
        for target in targets:
            if target is None:  # made here
                continue
            if target.__class__ is not tuple:  # a leaf: it may be where the other began
                return False
            if one is target[0]:
                there = behind(one.state, frozenset((slot,)))
                if slot != target[1] and (target[1] in there.ends or target[1] in there.passed):  # one leads to the other
                    return False
            elif one.serial > target[0].serial:
                return False
    return True


def _slots(segment: Segment, wanted: Any) -> tuple[int, ...] | None:
    """Return the slots of Variables in a segment that ends in leaves; None where one has none, and where a gradient would go elsewhere."""
    if wanted.__class__ not in SEQUENCES:
        return None
    slots = []
    for v in wanted:
        if not isinstance(v, Handle):
            return None
        slot = v._place.slot if v._segment is segment else segment.entered.get(id(v._cell))
        if slot is None:
            return None
        if v._segment is not segment:
            origin = segment.origins.get(slot)
            if origin.__class__ is tuple:
                if origin[0] is not v._segment or origin[1] != v._place.slot:
                    return None
            elif origin.__class__ is not LeafNode or v._extra is None or v._extra.node is not origin:
                return None
        slots.append(slot)
    return tuple(slots)
