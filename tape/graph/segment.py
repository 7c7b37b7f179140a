"""Segments: the pending part of a thread's tape, and what is kept of it once it has run.

A cell is a list of one item, the value once there is one.  Variables hold cells, and a segment tells by a cell's reference count whether
a Variable still does; so nothing here refers back to a Variable, and dropping Variables frees their tape.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import TYPE_CHECKING, Any, ClassVar

from tape.configuration import CHANGES, Configuration, configuration, on_change
from tape.graph.kinds import LeafPlace, MadePlace, Place
from tape.graph.scalars import KINDS
from tape.graph.scope import LOCAL
from tape.graph.trie import CONSTANT, State, root
from tape.locks import holding
from tape.statistics import STATS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tape.graph.kinds import Kind

__all__ = [
    "SIGN",
    "Cell",
    "Extra",
    "Handle",
    "LeafNode",
    "Segment",
    "SegmentClosedError",
    "TracerMetError",
    "end_of",
    "extra_of",
    "inherit_doubts",
    "itself",
    "made_at",
    "node_of",
    "outside",
    "still_open",
]

Cell = list[Any]


class LeafNode:
    """Where a leaf's gradient goes: the Variable (weakly; None: nobody asked for it so far) and its hooks."""

    __slots__ = ("hooks", "ref")

    def __init__(self, variable: Handle | None) -> None:
        self.ref: Callable[[], Handle | None] = _nobody if variable is None else weakref.ref(variable)
        self.hooks: dict[int, Callable[..., Any]] = {}

    def belongs_to(self, variable: Handle) -> None:
        """Have a Variable receive the gradients that end here."""
        self.ref = weakref.ref(variable)


def _nobody() -> None:
    """Stand for the weak reference to a Variable where there is none."""


class Extra:
    """What few Variables have: a gradient, a name, hooks."""

    __slots__ = ("assigned", "grad", "inside", "name", "node", "post_hooks", "updater")

    def __init__(self) -> None:
        self.grad: Any = None
        self.assigned = False  # .grad was set by the user, not by a sweep
        self.inside = False  # made inside a JAX transformation
        self.name: str | None = None
        self.node: LeafNode | None = None
        self.post_hooks: dict[int, Callable[..., Any]] = {}
        self.updater: Any = None  # who updates the leaf from its gradient, and runs what is pending then


class Handle:
    """The recorder's side of a Variable.

    ``_cell`` holds the value or will; ``_segment`` is the segment that produced it (None for a leaf); ``_place`` its slot and kind.
    """

    __slots__ = ("__weakref__", "_cell", "_extra", "_place", "_segment")

    _cell: Cell
    _segment: Segment | None
    _place: Place
    _extra: Extra | None
    _original: Handle | None = None  # for what a function of jax.tree handed out: the Variable that it stands for


def itself(variable: Handle) -> Handle:
    """Return the Variable that somebody means who gives this one to have its state read or set."""
    return variable if variable._original is None else variable._original


_EXTRAS = threading.Lock()


def extra_of(variable: Handle) -> Extra:
    """Return the variable's Extra, made on first use (by one thread, should several be first)."""
    extra = variable._extra
    if extra is None:
        extra = holding(_EXTRAS, _made_extra, variable)
    return extra


def _made_extra(variable: Handle) -> Extra:
    extra = variable._extra
    if extra is None:
        extra = variable._extra = Extra()
    return extra


def node_of(variable: Handle) -> LeafNode:
    """Return the leaf's accumulation node, made on first use."""
    extra = extra_of(variable)
    if extra.node is None:
        return holding(_EXTRAS, _made_node, extra, variable)  # every thread must find the same one
    return extra.node


def _made_node(extra: Extra, variable: Handle) -> LeafNode:
    if extra.node is None:
        extra.node = LeafNode(itself(variable))
    return extra.node


def end_of(segment: Segment, slot: int) -> LeafNode | None:
    """Return where sweeps end that come to a slot which was cut from its past; None where it was not."""
    if slot not in segment.state.cut:
        return None
    with segment.lock:
        return segment.origins.setdefault(slot, LeafNode(None))  # type: ignore[no-any-return]


SIGN = 4  # what weighs as much as an entry that no sweep can pass; an end of a sweep that can itself be differentiated is a lesser sign


_USES_RELEASED = -1  # no slot: a sign of a segment as a whole


def inherit_doubts(segment: Segment, origin: Segment) -> None:
    """Note at least as many signs before a segment as there are up to one that leads to it."""
    doubts, looked = origin.doubts
    doubts += SIGN * (origin.state.hazards + bool(origin.released)) + sum([sign for sign, _ in origin.asked.values()])
    if doubts > segment.doubts[0]:
        segment.doubts = doubts, looked
    if origin.released and _USES_RELEASED not in segment.asked:
        segment.asked = {**segment.asked, _USES_RELEASED: (SIGN, _USES_RELEASED)}


def made_at(place: Place, segment: Segment | None) -> tuple[str, int] | None:
    """Return the user's file and line where an unrecorded value of a segment was made, if they are known."""
    made = place.made
    if made.__class__ is int:
        return None if segment is None else segment.taken.get(made)
    return made  # type: ignore[no-any-return]


def outside(place: Place, segment: Segment | None) -> Place:
    """Return the place, outside any segment, of a value that has this one in ``segment``."""
    kind = place.kind
    return MadePlace(-1, kind, made_at(place, segment)) if kind.unrecorded else Place(-1, kind)


class SegmentClosedError(Exception):
    """The segment was run by another thread, or JAX's configuration changed: the entry belongs to another segment."""


class TracerMetError(Exception):
    """An input of an op is a JAX tracer, or will be one: the op cannot be part of a segment outside the transformation."""


class Segment:
    """A run of entries: pending, or run (then it keeps what a later sweep needs).

    Any thread may run it, but only the thread that made it records in it, as long as it is ``open``.  That thread takes no lock: it sees
    that ``epoch`` is the present one, and in the same breath (nothing in between calls: so no other thread and no signal comes between)
    advances ``state`` and enters the cells.  Whoever runs the segment takes ``epoch`` away first.
    """

    __slots__ = (
        "__weakref__",
        "asked",
        "borrowed",
        "cells",
        "configuration",
        "doubts",
        "entered",
        "epoch",
        "failed",
        "functions",
        "hooks",
        "kept",
        "leaf_places",
        "leaves",
        "lines",
        "lock",
        "open",
        "origins",
        "packing",
        "pending",
        "released",
        "retained",
        "saved",
        "scalars",
        "serial",
        "state",
        "taken",
        "trace",
        "ways",
    )

    serials: ClassVar[itertools.count[int]] = itertools.count()

    def __init__(self, mode: int) -> None:
        self.epoch: Any = CHANGES.epoch  # before the configuration is read: should it change meanwhile, the epoch tells
        self.configuration: Configuration = configuration()
        self.state: State = root(self.configuration, mode)
        self.scalars = KINDS[self.configuration[0]]  # the first setting: whether there are 64-bit types
        self.pending = True
        self.open = True
        self.cells: dict[int, Cell] = {}
        self.leaves: list[Any] = []  # cells, or boxes
        self.entered: dict[int, int] = {}  # id(cell of a leaf) -> slot; self.leaves keeps the cells alive
        self.origins: dict[int, Any] = {}  # slot of a differentiable leaf, or of one that was cut -> LeafNode, or (segment, slot)
        self.leaf_places: list[weakref.ref[LeafPlace]] = []  # of leaves whose values this segment will give
        self.taken: dict[int, tuple[str, int] | None] = {}  # slot of an unrecorded leaf -> the user's line where it was made
        self.functions: dict[int, Any] = {}  # first slot of a tape.Function's entry -> its context
        self.hooks: dict[int, dict[int, Callable[..., Any]]] = {}
        self.lines: dict[int, tuple[str, int]] = {}  # first slot of an entry that op hooks saw -> where it was recorded this time
        self.retained: dict[int, list[weakref.ref[Handle]]] = {}
        self.saved: dict[int, Any] = {}  # slot -> cell, or box (tape.graph.boxes)
        self.kept: tuple[int, ...] = ()  # the slots in saved: part of the structure, once it has run
        self.packing: Any = None  # who packs what it keeps (tape.hooking.packing)
        packing = LOCAL.scope.packing
        if packing is not None and packing.applies():
            self.packing = packing
        self.ways: dict[int, Cell] = {}  # slot -> what newer segments hold that lead to it and do not hold its value (tape.graph.boxes)
        self.released: frozenset[int] = frozenset()  # depths of the entries that a sweep released
        self.failed: dict[int, Any] | None = None  # slots without a value, because an entry failed -> why
        self.serial = next(self.serials)
        self.asked: dict[
            int, tuple[int, int]
        ] = {}  # slots where sweeps ended that were asked for gradients there -> what sign that is, which sweep
        self.doubts = (
            0,
            0,
        )  # signs before it of a loop that grows, and how many there were when they were looked into (tape.programs.growth)
        self.trace: Any = None  # the JAX transformation that its values belong to (tape.recording.staging)
        self.borrowed: list[Cell] = []  # cells of values that were made again in it
        self.lock = threading.RLock()
        STATS.segments[id(self)] = weakref.ref(self)

    def __del__(self, ended: Callable[[Segment], None] = STATS.ended) -> None:  # bound now: when Python ends, the name may be gone first
        ended(self)

    def leaf_place(self, slot: int, kind: Kind) -> LeafPlace:
        """Return a place for a leaf whose value is that of ``slot``, while it is pending."""
        place = LeafPlace(slot, kind, self)
        self.leaf_places.append(weakref.ref(place))
        return place

    def settle(self) -> None:
        """Let go of the leaves that have their values now, so that they do not keep the segment."""
        global _settled  # noqa: PLW0603 - made once, at first use
        if _settled is None:
            _settled = Segment(CONSTANT)
            _settled.pending = _settled.open = False
        for ref in self.leaf_places:
            place = ref()
            if place is not None and not (self.failed and place.slot in self.failed):
                place.segment = _settled  # not None: another thread may just be about to ask it for the value
        self.leaf_places = []


_settled: Segment | None = None  # has run; stands for those that leaves no longer wait for


def still_open(segment: Segment) -> bool:
    """Tell whether this thread may go on recording in its segment, whose epoch has passed."""
    with segment.lock:
        epoch = CHANGES.epoch
        if not segment.open or segment.configuration is not configuration():
            return False
        segment.epoch = epoch
        return True


def _configuration_changed() -> None:
    segment = LOCAL.segment()
    if segment is not None:
        segment.epoch = None


on_change(_configuration_changed)
