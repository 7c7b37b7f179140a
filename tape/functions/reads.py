"""What the forward of a ``tape.Function`` reads without being given it: a Variable from around it would lose its gradient.

A forward records what it computes as values without a derivative, and only its arguments have gradients.  So what its outputs were computed
of is followed back along the tape: to the arguments, to constants (what was detached, computed under ``no_grad``, or read by ``.value``),
to ops that have no gradient (``sign``, ``floor``), and to Variables that it made itself.  Anything else that has a gradient is refused.
What was found for a structure is found again on the trie.
"""

from __future__ import annotations

from collections.abc import Sequence

from tape.errors import LostGradientError, TapeError
from tape.graph import boundary
from tape.graph.boxes import Cell
from tape.graph.kinds import Kind, differentiable
from tape.graph.scope import LOCAL
from tape.graph.segment import Handle, LeafNode, Segment
from tape.graph.trie import State
from tape.graph.watcher import NOBODY, Watcher
from tape.graph.wengert import backwards
from tape.rules import table


class Reads(Watcher):
    """One call of a forward: what was there before, and what is made in it."""

    __slots__ = ("_entered", "_made", "_origins", "_serial", "_starts")

    def __init__(self, outer: Watcher) -> None:
        self._made: dict[int, Cell] = {}  # leaves, by the id of their cell
        self._origins: dict[int, tuple[Cell, Segment, int]] = {}  # results that enter other segments
        self._entered: dict[tuple[Segment, int], Cell] = {}  # what enters a segment forgets when it has run
        if isinstance(outer, Reads):  # whose forward this one is a part of
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
        """Note a leaf of a segment that is not a constant, and which slot of which segment its value comes from."""
        self._entered[segment, slot] = cell
        if origin is not None:
            self._origins[id(cell)] = (cell, origin, place)

    def check(self, name: str, inputs: Sequence[Handle], outputs: Sequence[Handle]) -> None:
        """Check that what a forward (of the ``tape.Function`` called ``name``) returned has no other gradients than those of its inputs."""
        trace = LOCAL.scope.trace
        if trace.capturing:  # who traces may know them by other cells
            inputs = [*inputs, *map(trace.read, inputs)]
        lost = self.lost(inputs, outputs)
        if lost is not None:
            raise LostGradientError(_message(name, *lost))

    def lost(self, inputs: Sequence[Handle], outputs: Sequence[Handle]) -> tuple[Kind, object, tuple[str, int] | None] | None:
        """Return what else than the inputs and what is made here the outputs have gradients of: its kind, where it ends, who reads it."""
        if self._lost(inputs, outputs, exact=False) is None:
            return None
        return self._lost(inputs, outputs, exact=True)  # unless it was read by ops through which no gradient flows

    def _lost(
        self, inputs: Sequence[Handle], outputs: Sequence[Handle], *, exact: bool
    ) -> tuple[Kind, object, tuple[str, int] | None] | None:
        todo: dict[Segment, set[int]] = {}
        met: list[tuple[Cell | None, Kind, object, tuple[str, int] | None]] = []  # values with a gradient that come from elsewhere
        known: set[int] = set()
        for v in outputs:
            kind = v._place.kind
            if kind.requires_grad or kind.unrecorded:
                if v._segment is None:
                    met.append((v._cell, kind, v, None))
                else:
                    todo.setdefault(v._segment, set()).add(v._place.slot)
        while todo or met:
            if met and not known:
                known = {id(v._cell) for v in inputs}
            for cell, kind, source, where in met:
                if id(cell) in known or id(cell) in self._made:
                    continue
                origin = self._origins.get(id(cell))
                if origin is None:
                    return kind, source, where
                known.add(id(cell))  # followed once, by however many paths it is met
                todo.setdefault(origin[1], set()).add(origin[2])
            met.clear()
            if todo:
                segment, wanted = todo.popitem()
                start, entered = self._start(segment)
                safe = {v._place.slot if v._segment is segment else entered.get(id(v._cell)) for v in inputs}
                for slot, where in _sources(segment.state, start, tuple(sorted(wanted)), exact=exact):
                    if slot not in safe:
                        cell = self._entered.get((segment, slot)) or segment.cells.get(slot)
                        met.append((cell, segment.state.table[slot].kind, segment.origins.get(slot), where))
        return None

    def _start(self, segment: Segment) -> tuple[int, dict[int, int]]:
        """Return the first slot of a segment that the forward recorded, and the slots of leaves before that by the ids of their cells."""
        for known, start, entered in self._starts:
            if known is segment:
                return start, entered
        return (0 if segment.serial > self._serial else segment.state.n_slots), segment.entered


class Lifted(Reads):
    """A raw JAX function that is being traced: a Variable that requires grad and is none of its arguments would lose its gradient."""

    __slots__ = ("_around", "_name", "noted")

    guards = True

    def __init__(self, name: str) -> None:
        self._name = name
        self._around = LOCAL.scope.forward
        self.noted: list[tuple[Handle, Cell]] = []  # the Variables from around that it read, with their cells
        super().__init__(NOBODY)  # what was made around this function is not its own

    def read(self, variable: Handle, *, flows: bool = True) -> Handle:
        """Note that the function reads a Variable, or refuse that; a sweep inside reads what has been read."""
        lost = self.lost((), [variable]) if flows and not LOCAL.scope.unseen else None
        if lost is not None:
            called, what, _ = _described(*lost, unrecorded="with a gradient that was taken without recording")
            msg = (
                f"lift: the function {self._name!r} captures a Variable{called} {what}, whose gradient would be lost; pass it as an "
                "argument, or capture variable.detach()"
            )
            raise LostGradientError(msg)
        return self.operand(variable)

    def operand(self, variable: Handle) -> Handle:
        """Note a Variable from around that an op reads; if the result has a gradient that would be lost, reading that is refused."""
        if not (boundary.is_traced(variable) or boundary.made_inside(variable)):
            self.noted.append((variable, variable._cell))
        return variable

    def make(self, cell: Cell) -> None:
        """Note a leaf that is made now, and tell the forward around."""
        super().make(cell)
        self._around.make(cell)

    def stand(self, cell: Cell, stand_in: Cell) -> None:
        """Note that a callable knows a leaf by another cell, and tell the forward around."""
        super().stand(cell, stand_in)
        self._around.stand(cell, stand_in)


def _sources(state: State, start: int, wanted: tuple[int, ...], *, exact: bool) -> tuple[tuple[int, tuple[str, int] | None], ...]:
    """Return what the slots ``wanted`` were computed of that has a gradient: leaves, and slots before ``start``; and lines that read them.

    With ``exact``, that is by ops through which a gradient flows (not by ``sign`` or ``floor``), as their rules say.
    """

    def followed() -> tuple[tuple[int, tuple[str, int] | None], ...]:
        places, cut = state.table, state.cut
        reached = set(wanted)
        readers: dict[int, tuple[str, int] | None] = dict.fromkeys(wanted)
        leaves: list[int] = []
        for step in backwards(state.path(), reached):
            if step.slots[0] < start:
                break
            if step.ends:
                leaves += step.slots[:1] if step.kernel is None else ()
                continue
            if not cut.isdisjoint(step.slots):
                continue
            inputs = step.inputs[: getattr(step.op, "arguments", None)]
            smooth = [slot for slot in inputs if places[slot].kind.requires_grad or places[slot].kind.unrecorded]
            for slot in _flowing(step, reached, smooth) if exact and len(inputs) == len(step.inputs) else smooth:
                reached.add(slot)
                readers[slot] = step.where
        return tuple((slot, readers[slot]) for slot in [*(slot for slot in readers if slot < start), *leaves])

    return state.cached(("sources", start, wanted, table.revision() if exact else None), followed)


def _flowing(step: State, reached: set[int], smooth: list[int]) -> list[int]:
    """Return which of the slots ``smooth`` get a cotangent from an entry's results in ``reached``; all where its rules refuse to say."""
    kernel = step.kernel
    assert kernel is not None
    present = tuple([slot in reached and differentiable(aval) for slot, aval in zip(step.slots, kernel.out_avals, strict=True)])
    wanted = tuple([slot in smooth for slot in step.inputs])
    try:
        targets = kernel.vjp(present, wanted).targets if True in present else ()
    except (TapeError, NotImplementedError, TypeError, ValueError):
        return smooth
    return [step.inputs[i] for i in targets]


def _message(name: str, kind: Kind, source: object, where: tuple[str, int] | None) -> str:
    """Say which Variable a forward reads, and at which line, if that is known."""
    called, what, at = _described(kind, source, where)
    return (
        f"{name}.forward reads a Variable{called} {what}{at} and is not given it, so "
        f"its gradient would be lost; pass it to {name}.apply as an argument and return its gradient from {name}.backward, or read "
        "variable.detach() in its place; of an argument that it updates in place, it is to make another Variable: x = x.at[i].set(y)"
    )


def _described(
    kind: Kind, source: object, where: tuple[str, int] | None, *, unrecorded: str = "whose own derivative was not recorded"
) -> tuple[str, str, str]:
    """Return the name of a Variable, what it is, and the line that reads it, for a message."""
    variable = source.ref() if isinstance(source, LeafNode) else source
    extra = getattr(variable, "_extra", None)
    what = "that requires grad" if kind.requires_grad else unrecorded
    return (
        f" {extra.name!r}" if extra is not None and extra.name else "",
        f"{what} (shape {kind.aval.shape}, dtype {kind.aval.dtype})",
        "" if where is None else f" at {where[0]}:{where[1]}",
    )
