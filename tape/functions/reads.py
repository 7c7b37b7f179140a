"""What the forward of a ``tape.Function`` reads without being given it: a Variable from around it would lose its gradient.

A forward records what it computes as values without a derivative, and only its arguments have gradients.  So what its outputs were computed
of is followed back along the tape: to the arguments, to constants (what was detached, computed under ``no_grad``, or read by ``.value``), to ops
that have no gradient (``sign``, ``floor``), and to Variables that it made itself.  Anything else that has a gradient is refused.  What was found for
a structure is found again on the trie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tape.errors import LostGradientError, TapeError
from tape.graph.kinds import differentiable
from tape.graph.scope import LOCAL
from tape.graph.segment import LeafNode, Segment
from tape.graph.watcher import Watcher
from tape.graph.wengert import backwards
from tape.rules import table

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tape.graph.kinds import Kind
    from tape.graph.segment import Cell, Handle
    from tape.graph.trie import State

__all__ = ["Reads"]


class Reads(Watcher):
    """One call of a forward: what was there before, and what is made in it."""

    __slots__ = ("_entered", "_made", "_origins", "_serial", "_starts")

    def __init__(self) -> None:
        outer = LOCAL.scope.forward
        self._made: dict[int, Cell] = {}  # leaves, by the id of their cell
        self._origins: dict[int, tuple[Cell, Segment, int]] = {}  # results that enter other segments
        self._entered: dict[tuple[Segment, int], Cell] = {}  # what enters a segment forgets when it has run
        if isinstance(outer, Reads):
            self._made, self._origins, self._entered = outer._made, outer._origins, outer._entered
        segment = LOCAL.segment()
        self._starts = [] if segment is None else [(segment, segment.state.n_slots, segment.entered)]
        if LOCAL.scope.staged:
            self._starts += [(s, s.state.n_slots, s.entered) for ref in LOCAL.scope.staged if (s := ref()) is not None]
        self._serial = next(Segment.serials)

    def make(self, cell: Cell) -> None:
        """Note a leaf that is made now."""
        self._made[id(cell)] = cell

    def stand(self, cell: Cell, stand_in: Cell) -> None:
        """Note that a callable that is being traced knows a leaf by another cell."""
        if id(cell) in self._made:
            self._made[id(stand_in)] = stand_in

    def compute(self, cell: Cell, segment: Segment, slot: int) -> None:
        """Note where a value comes from that cannot tell by itself: it ran at once."""
        self._origins[id(cell)] = (cell, segment, slot)

    def enter(self, segment: Segment, slot: int, cell: Cell, origin: Segment | None, place: int) -> None:
        """Note a leaf of a segment that is no constant, and which slot of which segment its value comes from."""
        self._entered[segment, slot] = cell
        if origin is not None:
            self._origins[id(cell)] = (cell, origin, place)

    def check(self, function: Any, inputs: Sequence[Handle], outputs: Sequence[Handle], constants: Collection[int]) -> None:
        """Check that outputs have no other gradients than those of the inputs.

        Args:
            function: the ``tape.Function``.
            inputs: its array arguments.
            outputs: what its forward returned.
            constants: ids of the cells of outputs that are no matter.

        Raises:
            LostGradientError: one was computed of another Variable that has one.

        """
        try:
            self._check(function, inputs, outputs, constants, exact=False)
        except LostGradientError:  # unless it was read by ops through which no gradient flows
            self._check(function, inputs, outputs, constants, exact=True)

    def _check(
        self, function: Any, inputs: Sequence[Handle], outputs: Sequence[Handle], constants: Collection[int], *, exact: bool
    ) -> None:
        todo: dict[Segment, set[int]] = {}
        given: set[int] | None = None
        for v in outputs:
            kind = v._place.kind
            if kind.requires_grad or kind.unrecorded:
                segment = v._segment
                if segment is not None and id(v._cell) not in constants:
                    todo.setdefault(segment, set()).add(v._place.slot)
                    continue
                if given is None:
                    given = _cells(inputs)
                if id(v._cell) not in constants:
                    self._follow(v._cell, kind, given, todo, function, (v, None))
        while todo:
            segment, wanted = todo.popitem()
            start, entered = self._start(segment)
            safe = {v._place.slot if v._segment is segment else entered.get(id(v._cell)) for v in inputs}
            for slot, where in _sources(segment.state, start, tuple(sorted(wanted)), exact=exact):
                if slot not in safe:
                    if given is None:
                        given = _cells(inputs)
                    cell = self._entered.get((segment, slot)) or segment.cells.get(slot)
                    self._follow(cell, segment.state.table[slot].kind, given, todo, function, (segment.origins.get(slot), where))

    def _start(self, segment: Segment) -> tuple[int, dict[int, int]]:
        """Return the first slot of a segment that the forward recorded, and the slots of leaves before that by the ids of their cells."""
        for known, start, entered in self._starts:
            if known is segment:
                return start, entered
        return (0 if segment.serial > self._serial else segment.state.n_slots), segment.entered

    def _follow(
        self, cell: Any, kind: Kind, given: set[int], todo: dict[Segment, set[int]], function: Any, source: tuple[Any, Any]
    ) -> None:
        """Go on with the segment that a value comes from, if the forward computed it."""
        if id(cell) in given or id(cell) in self._made:
            return
        origin = self._origins.get(id(cell))
        if origin is None:
            raise LostGradientError(_message(function, kind, *source))
        todo.setdefault(origin[1], set()).add(origin[2])


def _cells(inputs: Sequence[Handle]) -> set[int]:
    """Return the ids of the cells of the inputs, also as the callable of the tape that is being traced knows them."""
    trace = LOCAL.scope.trace
    cells = {id(v._cell) for v in inputs}
    return cells | {id(trace.read(v)._cell) for v in inputs} if trace.capturing else cells


def _sources(state: State, start: int, wanted: tuple[int, ...], *, exact: bool = False) -> tuple[tuple[int, Any], ...]:
    """Return what the slots ``wanted`` were computed of that has a gradient: leaves, and slots before ``start``; and lines that read them.

    With ``exact``, that is by ops through which a gradient flows (not by ``sign`` or ``floor``), as their rules say.
    """
    key = ("sources", start, wanted, table.revision() if exact else None)
    return state.cached(key, lambda: tuple(_followed(state, start, set(wanted), exact=exact).items()))


def _followed(state: State, start: int, reached: set[int], *, exact: bool) -> dict[int, Any]:
    table, cut = state.table, state.cut
    readers: dict[int, Any] = {}
    found = {slot: None for slot in reached if slot < start}
    for step in backwards(state.path(), reached):
        if step.slots[0] < start:
            break
        if step.ends:
            if step.kernel is None:
                found[step.slots[0]] = readers.get(step.slots[0])
            continue
        if not cut.isdisjoint(step.slots):
            continue
        inputs = step.inputs[: getattr(step.op, "arguments", None)]
        smooth = [slot for slot in inputs if table[slot].kind.requires_grad or table[slot].kind.unrecorded]
        for slot in _flowing(step, reached, smooth) if exact and len(inputs) == len(step.inputs) else smooth:
            reached.add(slot)
            readers[slot] = step.where
            if slot < start:
                found[slot] = step.where
    return found


def _flowing(step: Any, reached: set[int], smooth: list[int]) -> list[int]:
    """Return which of the slots ``smooth`` that an entry reads get a cotangent from its results in ``reached``; all where its rules refuse to say."""
    kernel = step.kernel
    present = tuple([slot in reached and differentiable(aval) for slot, aval in zip(step.slots, kernel.out_avals, strict=True)])
    wanted = tuple([slot in smooth for slot in step.inputs])
    try:
        targets = kernel.vjp(present, wanted).targets if True in present else ()
    except (TapeError, NotImplementedError, TypeError, ValueError):
        return smooth
    return [step.inputs[i] for i in targets]


def _message(function: Any, kind: Kind, source: Any, where: tuple[str, int] | None) -> str:
    """Say which Variable a forward reads, and at which line, if that is known."""
    name = function.__name__
    variable = source.ref() if isinstance(source, LeafNode) else source
    extra = getattr(variable, "_extra", None)
    called = f" {extra.name!r}" if extra is not None and extra.name else ""
    at = "" if where is None else f" at {where[0]}:{where[1]}"
    what = "that requires grad" if kind.requires_grad else "whose own derivative was not recorded"
    return (
        f"{name}.forward reads a Variable{called} {what} (shape {kind.aval.shape}, dtype {kind.aval.dtype}){at} and is not given it, so its "
        f"gradient would be lost; pass it to {name}.apply as an argument and return its gradient from {name}.backward, or read "
        "variable.detach() in its place"
    )
