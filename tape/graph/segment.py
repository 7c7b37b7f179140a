"""Segments: the pending part of a thread's tape, and what is kept of it once it has run.

A cell is a list of one item, the value once there is one.  Variables hold cells, and a segment tells by a cell's reference count whether
a Variable still does; so nothing here refers back to a Variable, and dropping Variables frees their tape.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import threading
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeGuard, TypeVar

from tape import layout
from tape.configuration import CHANGES, Configuration, configuration, on_change
from tape.graph import trie
from tape.graph.boxes import Box, Cell, lent
from tape.graph.kinds import KINDS, LeafPlace, MadePlace, Place
from tape.graph.scope import LOCAL, Scope
from tape.graph.trie import CONSTANT, State, root, root_key
from tape.locks import holding
from tape.statistics import STATS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tape.graph.kinds import Kind


class LeafNode:
    """Where a leaf's gradient goes: the Variable (weakly; None: nobody asked for it so far) and its hooks."""

    __slots__ = ("hooks", "ref")

    def __init__(self, variable: Handle | None) -> None:
        self.ref: Callable[[], Handle | None] = _nobody if variable is None else weakref.ref(variable)
        self.hooks: dict[int, Callable[..., Any]] = {}


def _nobody() -> None:
    """Stand for the weak reference to a Variable where there is none."""


GONE = LeafNode(None)  # an end in an older segment of which nothing is known any more: sweeps to it find that the way there was released


class Extra:
    """What few Variables have: a gradient, a name, hooks."""

    __slots__ = ("assigned", "grad", "hooks", "inside", "name", "node", "post_hooks", "updater")

    def __init__(self) -> None:
        self.grad: Any = None
        self.assigned = False  # .grad was set by the user, not by a sweep
        self.hooks: dict[int, Callable[..., Any]] = {}  # of a result: they outlive what its segment keeps for sweeps
        self.inside: Any = None  # True: made inside the JAX transformation that runs; else those that it is of; None: the segment says so
        self.name: str | None = None
        self.node: LeafNode | None = None
        self.post_hooks: dict[int, Callable[..., Any]] = {}
        self.updater: Any = None  # who updates the leaf from its gradient, and runs what is pending then


class Handle(layout.Handle):
    """The recorder's side of a Variable.

    ``_cell`` holds the value or will; ``_segment`` is the segment that produced it (None for a leaf); ``_place`` its slot and kind.
    """

    __slots__ = ()

    _cell: Cell
    _segment: Segment | None
    _place: Place
    _extra: Extra | None
    _original: Handle | None = None  # for what a function of jax.tree handed out: the Variable that it stands for


def is_variable(x: object) -> TypeGuard[Handle]:
    """Tell whether something is a Variable: a leaf of the pytrees of users."""
    return isinstance(x, Handle)


V = TypeVar("V", bound=Handle)  # of functions that return a Variable for a Variable


def itself(variable: Handle) -> Handle:
    """Return the Variable that somebody means who gives this one to have its state read or set."""
    return variable if variable._original is None else variable._original


def is_leaf(variable: Handle) -> bool:
    """Tell whether no differentiable entry produced a Variable."""
    return variable._segment is None or not variable._place.kind.requires_grad


_EXTRAS = threading.Lock()


def extra_of(variable: Handle) -> Extra:
    """Return the variable's Extra, made on first use."""
    return variable._extra or holding(_EXTRAS, _made_extra, variable)


def _made_extra(variable: Handle) -> Extra:
    if variable._extra is None:  # several threads may be first, and must find the same one
        variable._extra = Extra()
    assert variable._extra is not None
    return variable._extra


def node_of(variable: Handle) -> LeafNode:
    """Return the leaf's accumulation node, made on first use."""
    extra = variable._extra
    return (None if extra is None else extra.node) or holding(_EXTRAS, _made_node, variable)


def _made_node(variable: Handle) -> LeafNode:
    extra = _made_extra(variable)
    extra.node = extra.node or LeafNode(itself(variable))
    return extra.node


def end_of(segment: Segment, slot: int) -> LeafNode | None:
    """Return where sweeps end that come to a slot which was cut from its past; None where it was not."""
    if slot not in segment.state.cut:
        return None
    with segment.lock:
        end = segment.origins.setdefault(slot, LeafNode(None))
    assert isinstance(end, LeafNode), "what is cut is a result, which has no origin in another segment"
    return end


def hooks_at(variable: Handle) -> dict[int, Callable[..., Any]]:
    """Return the hooks that a sweep which ends at a result calls, also where its segment was released."""
    segment, slot, extra = variable._segment, variable._place.slot, variable._extra
    assert segment is not None, "a leaf has them in its node"
    end = end_of(segment, slot)
    return (segment.hooks.get(slot) if end is None else end.hooks) or ({} if extra is None else extra.hooks)


def made_at(place: Place, segment: Segment | None) -> tuple[str, int] | None:
    """Return the user's file and line where an unrecorded value of a segment was made, if they are known."""
    line = place.made
    if line.__class__ is int:
        return None if segment is None else segment.leaf_lines.get(line)
    return line  # type: ignore[no-any-return]


def outside(place: Place, segment: Segment | None) -> Place:
    """Return the place, outside any segment, of a value that has this one in ``segment``."""
    kind = place.kind
    return MadePlace(-1, kind, made_at(place, segment)) if kind.unrecorded else Place(-1, kind)


class SegmentClosedError(Exception):
    """The segment was run by another thread, or JAX's configuration changed: the entry belongs to another segment."""


class TracerMetError(Exception):
    """An input of an op is a JAX tracer, or will be one: the op cannot be part of a segment outside the transformation."""


_NONE: frozenset[int] = frozenset()


def _emptied(segment: Segment) -> None:
    """Have a new segment hold nothing so far."""
    segment.trace = segment.run = segment.ways = None
    segment.open = True
    segment.cells, segment.entered, segment.origins, segment.leaf_lines, segment.functions = {}, {}, {}, {}, {}
    segment.hooks, segment.lines, segment.retained = {}, {}, {}
    segment.leaves, segment.borrowed, segment.leaf_places = [], [], []


emptied = layout.chosen("emptied", _emptied)


class Run(NamedTuple):
    """What there is of a segment once it has run, beside what it has at all times.  A segment that has none is pending."""

    saved: dict[int, Any]  # slot -> cell, or box: what is kept for sweeps
    failed: dict[int, Any] = {}  # slots without a value, because an entry failed -> why  # noqa: RUF012 - a default
    boxed: bool = False  # there are boxes among them
    deferred: Any = None  # gradients that have no values until somebody looks (tape.programs.deferral)

    @property
    def cells(self) -> list[Any]:
        """What holds its values, and those that its gradients wait for."""
        return [*self.saved.values(), *(() if self.deferred is None else self.deferred[1])]

    @property
    def kept(self) -> tuple[int, ...]:
        """The slots whose values are there for sweeps, as they are or in a box: part of the structure."""
        readable = [slot for slot, kept in self.saved.items() if kept.__class__ is not Box or kept.readable] if self.boxed else self.saved
        return tuple(readable)

    @property
    def there(self) -> tuple[int, ...]:
        """Those, and the slots whose values somebody holds."""
        return (*self.kept, *lent(self.saved)) if self.boxed else self.kept


NOTHING = Run({})  # what most runs keep whose results no sweep comes to


class Segment(layout.Segment):
    """A run of entries: pending as long as there is no ``run`` of it, which :meth:`ran` gives it once and for all.

    Any thread may run it, but only the thread that made it records in it, as long as it is ``open``.  That thread takes no lock: it sees
    that ``epoch`` is the present one, and in the same breath (nothing in between calls: so no other thread and no signal comes between)
    advances ``state`` and enters the cells.  Whoever runs the segment takes ``epoch`` away first.
    """

    __slots__ = ()

    serials: ClassVar[itertools.count[int]] = itertools.count()

    # At all times.
    epoch: Any
    configuration: Configuration
    state: State
    lock: threading.RLock
    serial: int
    generation: int  # how many segments lie behind each other on a way back from it
    trace: Any  # the JAX transformation that its values belong to (tape.recording.staging)
    leaves: list[Any]  # cells, or boxes (tape.graph.boxes)
    origins: dict[
        int, LeafNode | tuple[Segment, int]
    ]  # slot of a differentiable leaf, or of one that was cut -> LeafNode, or (segment, slot)
    leaf_lines: dict[int, tuple[str, int] | None]  # slot of an unrecorded leaf -> the user's line where it was made
    functions: dict[int, Any]  # first slot of a tape.Function's entry -> its context
    hooks: dict[int, dict[int, Callable[..., Any]]]
    lines: dict[int, tuple[str, int]]  # first slot of an entry that op hooks saw -> where it was recorded this time
    retained: dict[int, list[weakref.ref[Handle]]]
    released: frozenset[int]  # depths of the entries that a sweep released
    ways: dict[int, Cell] | None  # slot -> what newer segments hold that lead to it and do not hold its value (tape.graph.boxes)
    packing: Any  # who packs what it keeps (tape.hooking.packing)
    # As long as it is pending, as is the epoch.
    open: bool
    scalars: dict[type, Kind]
    cells: dict[int, Cell]
    entered: dict[int, int]  # id(cell of a leaf) -> slot; self.leaves keeps the cells alive
    borrowed: list[Cell]  # further cells in it, of values that were made again (tape.recording.staging)
    leaf_places: list[weakref.ref[LeafPlace]]  # of leaves whose values this segment will give
    # Once it has run.
    run: Run | None

    def __init__(self, mode: int) -> None:
        self.epoch = CHANGES.epoch  # before the configuration is read: should it change meanwhile, the epoch tells
        self.configuration = settings = configuration()
        self.state = root(settings, mode)
        self.lock = threading.RLock()
        self.serial = next(self.serials)
        self.generation = 0
        self.released = _NONE
        packing = LOCAL.scope.packing
        self.packing = packing if packing is not None and packing.applies() else None
        self.scalars = KINDS[settings[0]]  # the first setting: whether there are 64-bit types
        emptied(self)
        STATS.segments[id(self)] = weakref.ref(self)
        if layout.NATIVE is not None and not (key := root_key(settings, mode))[1]:
            LOCAL.outset = self.epoch, key[1], settings, key[0], self.scalars  # type: ignore[attr-defined]

    if layout.NATIVE is None:

        def __del__(
            self, ended: Callable[[Segment], None] = STATS.ended
        ) -> None:  # bound now: when Python ends, the name may be gone first
            ended(self)

    def leaf_place(self, slot: int, kind: Kind) -> LeafPlace:
        """Return a place for a leaf whose value is that of ``slot``, while it is pending."""
        place = LeafPlace(slot, kind, self)
        self.leaf_places.append(weakref.ref(place))
        return place

    @property
    def pending(self) -> bool:
        """Whether it is still to run."""
        return self.run is None

    @property
    def results(self) -> dict[int, Any]:
        """What there is of its results by slot: the cells of those that Variables may hold, as long as it is pending, or what is saved."""
        return self.cells if self.run is None else self.run.saved

    @property
    def swept(self) -> bool:
        """Whether a sweep may still go through it."""
        return self.run is None or bool(self.leaves or self.run.saved)

    def way(self, slot: int) -> Cell:
        """Return what a newer segment is to hold that leads to a slot and does not hold its value."""
        if self.ways is None:
            self.ways = {}
        return self.ways.setdefault(slot, [None])

    def ran(self, run: Run) -> None:
        """Be no longer pending, and keep this for sweeps; leaves that have their values now do not keep the segment."""
        self.run = run  # Ctrl-C before this line leaves it to be run again
        self.open = False
        self.cells, self.entered, self.borrowed = {}, {}, []
        for ref in self.leaf_places:
            place = ref()
            if place is not None and place.slot not in run.failed:
                place.segment = has_run()  # not None: another thread may just be about to ask it for the value
        self.leaf_places = []


@functools.cache
def has_run() -> Segment:
    """Stand for the segments that leaves no longer wait for."""
    segment = Segment(CONSTANT)
    segment.ran(NOTHING)
    return segment


def behind(starts: Iterable[Segment], met: dict[int, Segment]) -> Iterator[Segment]:
    """Yield segments and those that sweeps of them lead to, but for those that were ``met``, which they join by their ids."""
    waiting = list(starts)
    while waiting:
        segment = waiting.pop()
        if id(segment) not in met:
            met[id(segment)] = segment
            yield segment
            waiting += [end[0] for end in list(segment.origins.values()) if isinstance(end, tuple)]


class WayBack:
    """The segments that lead to some results, newest first, each once, with those of its slots that do.

    Whoever walks tells by :meth:`follow` (or :meth:`arrive`) where it goes on from a segment.  ``leaves`` are those met so far.
    """

    def __init__(self, targets: Iterable[LeafNode | tuple[Segment, int]]) -> None:
        self.leaves: dict[LeafNode, None] = {}
        self._slots: dict[Segment, set[int]] = {}  # of the segments that are still to come
        self._heap: list[tuple[int, Segment]] = []
        for target in targets:
            self.arrive(target)

    def arrive(self, target: LeafNode | tuple[Segment, int]) -> None:
        """Go on to a leaf, or to a slot of a segment."""
        if isinstance(target, LeafNode):
            self.leaves[target] = None
            return
        segment, slot = target
        if segment not in self._slots:
            self._slots[segment] = set()
            heapq.heappush(self._heap, (-segment.serial, segment))
        self._slots[segment].add(slot)

    def follow(self, segment: Segment, ends: Iterable[int]) -> None:
        """Go on from slots of a segment that no entry of it gives, or that were cut, to where they come from."""
        for end in ends:
            origin = segment.origins.get(end)
            if origin is not None:
                self.arrive(origin)

    def __iter__(self) -> Iterator[tuple[Segment, frozenset[int]]]:
        while self._heap:
            _, segment = heapq.heappop(self._heap)
            yield segment, frozenset(self._slots.pop(segment))


def still_open(segment: Segment) -> bool:
    """Tell whether this thread may go on recording in its segment, whose epoch has passed."""
    with segment.lock:
        epoch = CHANGES.epoch
        if not segment.open or segment.configuration is not configuration():
            return False
        segment.epoch = epoch
        return True


def _configuration_changed() -> None:
    if layout.NATIVE is not None:
        LOCAL.outset = None  # type: ignore[attr-defined]
    segment = LOCAL.segment()
    if segment is not None:
        segment.epoch = None


on_change(_configuration_changed)

if layout.NATIVE is not None:
    layout.NATIVE.begins(
        segment=Segment,
        counts=STATS,
        segments=STATS.segments,
        lock=type(threading.RLock()),
        serials=Segment.serials,
        none=_NONE,
        constant=CONSTANT,
        roots=trie._ROOTS,
        trie=trie,
        **{field: Scope._fields.index(field) for field in ("staged", "eager", "packing", "observer", "notes")},
    )
