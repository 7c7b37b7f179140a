"""The trie of tapes: every prefix of a tape recorded before is a state, found again by one dict look-up per entry.

An edge is a new leaf (keyed by its :class:`Kind`), an entry (keyed by op and input slots), a sweep, or a change of the grad mode.  What
can be known of an entry without running it (shapes, dtypes, flags, place) hangs on its state, and so do programs and sweep plans, so that
nothing is hashed or planned for a structure met again.

A state met for the first time is not put on the trie: only a number is kept by which it is recognised.  So tapes whose structure never
repeats leave nothing behind.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

from tape import jaxapi, layout
from tape.bounded import Bounded
from tape.graph.kinds import DIFFERENTIABLE, PLAIN, UNRECORDED, Kind, MadePlace, Place, Role
from tape.graph.length import NUMBER_LIMIT, SEGMENT_LIMIT, Endless, Length
from tape.graph.lines import FOREIGN, LINES, user_line
from tape.locks import holding

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from tape.ops.kernel import Kernel

STATE_LIMIT = 1 << 14  # then what did not run among the last runs goes
RECENT = 1000

T = TypeVar("T")

# Grad modes. In SWEEP mode (a sweep without create_graph, and the forward of a tape.Function) results are constants that remember that they
# depend on differentiable values without being recorded.
CONSTANT, RECORD, SWEEP = 0, 1, 2

_NOWHERE: dict[Any, Any] = {}  # the edges of a state that has none, as most of a structure never met again; nothing is put in here
_LOCK = threading.RLock()  # garbage may be collected where it is held, and finalizers record too


class Step(layout.Step):
    """One line of a tape: an entry, or, without a ``kernel``, a leaf or a change of the grad mode.

    ``hazard`` is the number of the input, if any, that has no derivative, so that no sweep goes through the entry.  ``ends`` tells that
    sweeps end at its slot: it is a leaf, or an entry whose result was made one (:mod:`tape.recording.entering`).
    """

    __slots__ = ()

    op: Any = None
    mode = SWEEP  # of the entries of a sweep that was written as a whole, which is one state: they are not states themselves
    places: tuple[Place, ...] = ()  # nothing in such a sweep is differentiable
    hazard: int | None = None
    ends = False

    def __init__(
        self, kernel: Kernel | None, inputs: tuple[int, ...], slots: tuple[int, ...], where: tuple[str, int] | None, depth: int
    ) -> None:
        self.kernel: Any = kernel  # a Kernel
        self.inputs = inputs
        self.slots = slots
        self.where = where
        self.depth = depth  # entries so far, this one included


class State(Step, layout.State):
    """One prefix of a tape, and its last line; that of a sweep that was written as a whole has ``lines``.

    Sweeps end at the slots in ``cut`` as at leaves: these were cut from their past (:mod:`tape.variables.cuts`).
    """

    __slots__ = (
        "_before",
        "_cache",
        "_length",
        "cut",
        "ends",
        "full",
        "hash",
        "hazard",
        "known",
        "lines",
        "mode",
        "op",
        "parent",
        "places",
        "seen",
        "table",
        "used",
    )

    def __init__(self, parent: State | None, mode: int) -> None:
        self.kernel = None
        self.inputs = self.slots = ()
        self.where = None
        self.parent = parent
        self.mode = mode
        self.next: dict[Any, Any] = _NOWHERE
        self.latest: tuple[Any, ...] | None = None  # of these edges, the one that the recorder in C found last
        # One list is shared along a chain of states; the first n_slots of it are this state's.
        self.table: list[Place]
        self._length: Length | None = None  # :attr:`length`, where somebody has asked
        self.cut: frozenset[int]
        if parent is None:
            self.depth = self.n_slots = 0
            self.table, self._length, self.cut = [], Length(), frozenset()
        else:
            self.depth, self.n_slots = parent.depth, parent.n_slots
            self.table, self.cut = parent.table, parent.cut
            self._length = parent._length and parent._length.onward
        self.hash = id(self)
        self.ends = False
        self.known = True  # it is on the trie
        self.used = 0  # the last run that ended here
        self.seen = 0  # when it was met before it was put there, if ever: a run's number
        self.full = False
        self.quick = False  # one visible result, and room for more entries
        self.several: tuple[type, tuple[Place, ...]] | None = None  # several in a tuple or list, and room: that type, and their places
        self.op = None
        self.lines: tuple[Step, ...] | None = None
        self.places = ()
        self.place: Place | None = None
        self.hazard = None
        self._cache: dict[Hashable, Any] = _NOWHERE
        self._before: list[Any] | None = None  # the path but for its own end, where somebody has asked

    def known_of(self, key: Hashable) -> Any:
        """Return what is known of the structure under ``key`` (see :meth:`cached`), or None."""
        return self._cache.get(key)

    def cached(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what is known of the structure under ``key``, worked out once.  A key begins as in ``("plan", ...)``."""
        known: T | None = self._cache.get(key)
        if known is None:
            known = make()
            if self._cache is _NOWHERE:
                self._cache = {}
            self._cache[key] = known
        return known

    @property
    def length(self) -> Length:
        """How long a program it will be."""
        state: State = self
        ahead: list[State] = []
        while (length := state._length) is None:
            ahead.append(state)
            assert state.parent is not None, "the first one has a length"
            state = state.parent
        for state in reversed(ahead):
            length = state._length = _longer(length, state)
        return length

    def fill(self) -> None:
        """Work out whether it is to run now; none of so few entries and leaves is too long, whatever they are."""
        self.full = (self.depth > SEGMENT_LIMIT or self.n_slots - self.depth > NUMBER_LIMIT) and self.length.full

    def _add_slots(self, kinds: Sequence[Kind], line: tuple[str, int] | int | None = None) -> None:
        n = self.n_slots
        end = self.n_slots = n + len(kinds)
        self.slots = (n,) if end == n + 1 else tuple(range(n, end))
        if line is None:
            self.places = (Place(n, kinds[0]),) if end == n + 1 else tuple([Place(i, k) for i, k in zip(self.slots, kinds, strict=True)])
        else:  # they are unrecorded
            self.places = tuple([MadePlace(i, kind, line) for i, kind in zip(self.slots, kinds, strict=True)])
        if _extended is None:
            holding(_LOCK, self._extend_table, n)  # another thread may be growing the same list
        else:
            self.table = _extended(self.table, n, self.places)
        self.place = self.places[0] if self.kernel is None or self.kernel.single else None

    def _extend_table(self, n: int) -> None:
        if len(self.table) != n:
            self.table = self.table[:n]
        self.table.extend(self.places)

    def leaf(self, kind: Kind) -> State:
        """Make the state that follows when a leaf of this kind enters."""
        if _formed is not None:
            form = None, (kind,), bool(kind.unrecorded)
            child = _formed(self, None, form, (), None, kind, _SEEN, CLOCK.now if len(_SEEN) < _SEEN.limit else None)
            return _enter(self, kind, child) if child.known else child
        child = State(self, self.mode)
        child.ends = True
        child._add_slots((kind,), child.n_slots if kind.unrecorded else None)
        return _enter(self, kind, child)

    def switched(self, mode: int) -> State:
        """Return the state that follows when the grad mode becomes ``mode``."""
        return self._changed(mode, mode, self.cut)

    def severed(self, slots: frozenset[int]) -> State:
        """Return the state that follows when these slots are cut from their past."""
        return self._changed(("cut", slots), self.mode, self.cut | slots)

    def _changed(self, key: Hashable, mode: int, cut: frozenset[int]) -> State:
        known: State | None = self.next.get(key)
        if known is not None:
            return known
        child = State(self, mode)
        child.cut = cut
        child.known, child.seen, child.hash = self.known, self.seen, hash((self.hash, key))
        return link(self, key, child)

    def entry(self, key: Hashable, op: object, kernel: Kernel, inputs: tuple[int, ...], *, ends: bool = False) -> State:
        """Make the state that follows when ``kernel`` is recorded on the slots ``inputs``; where it ``ends``, its result is a leaf."""
        child = State(self, self.mode)
        child.depth += 1
        child.op, child.inputs, child.ends = op, inputs, ends
        table = self.table
        kinds = [table[s].kind for s in inputs]
        flows = any(kind.requires_grad for kind in kinds)
        arguments = getattr(op, "arguments", len(inputs))  # those beyond were computed from them, by a tape.Function
        tainted = next((i for i, kind in enumerate(kinds[:arguments]) if kind.unrecorded and not kind.requires_grad), None)
        role: Role = PLAIN
        child.where = line = user_line()
        if ends:
            role = DIFFERENTIABLE
        elif (reason := getattr(op, "unrecorded", None)) is not None and self.mode != CONSTANT:
            role = reason
        elif self.mode == RECORD and flows:
            role = DIFFERENTIABLE
            kernel = kernel.augmented()
            child.hazard = tainted
        elif self.mode == RECORD and tainted is not None:
            place = table[inputs[tainted]]
            role = place.kind.unrecorded if isinstance(place.kind.unrecorded, str) else UNRECORDED
            line = place.made
        elif self.mode == SWEEP and (flows or tainted is not None):
            role = UNRECORDED
        child.kernel = kernel
        child._add_slots(kernel.kinds(role), None if role in (PLAIN, DIFFERENTIABLE) else line)
        child.fill()
        child._hands_out()
        if kernel.transient:
            child.known, child.hash = False, 0
            return child
        return _enter(self, key, child)

    def formed(self, key: Hashable, op: object, form: tuple[Kernel, tuple[Kind, ...], bool], inputs: tuple[int, ...]) -> State:
        """:meth:`entry` for an op recorded before on inputs of the same kinds in the same mode, which is SWEEP, or all are recorded.

        ``form`` is what it came to: its kernel, the kinds of its results, and whether there are unrecorded ones.
        """
        if _formed is not None:
            child = _formed(self, op, form, inputs, user_line(), key, _SEEN, CLOCK.now if len(_SEEN) < _SEEN.limit else None)
            return _enter(self, key, child) if child.known else child
        return self.entry(key, op, form[0], inputs)

    def _hands_out(self) -> None:
        """Work out how results are handed out where the structure is met again."""
        kernel = self.kernel
        self.quick = self.place is not None and not self.full
        if not kernel.single and kernel.several is not None and not self.full:
            self.several = kernel.several, self.places[: kernel.visible]

    def path(self) -> list[Any]:
        """All entries, leaves and changes of mode from the first to this state's, in order: states, and the steps of sweeps."""
        if self.parent is None:
            return []
        before, state = self._before, self.parent
        if before is None:
            before = []
            while state.parent is not None and state._before is None:
                before += (state,) if state.lines is None else reversed(state.lines)
                state = state.parent
            before.reverse()
            before = state.path() + before
            if not self.known:  # of others, what is worked out from it is kept
                self._before = before
        return [*before, *((self,) if self.lines is None else self.lines)]


def _longer(length: Length, state: State) -> Length:
    """Return the length of a state, given that of the one before."""
    if state.lines is not None:
        return length.swept(state.lines, state.depth)
    if state.kernel is not None:
        return length.entry(state)
    return length.leaf(state.places[0].kind) if state.places else length


_formed = _extended = None
if layout.NATIVE is not None:
    layout.NATIVE.structured(state=State, step=Step, place=Place, made_place=MadePlace, nowhere=_NOWHERE, endless=Endless)
    _formed, _extended = layout.NATIVE.formed, layout.NATIVE.extended

_count = 0
_limit = STATE_LIMIT
_ROOTS: dict[Hashable, State] = {}
_SEEN: Bounded[int, int] = Bounded("structures met once", 1 << 17)  # the numbers of states, and when each was met


class _Clock:
    """Counts the runs of pending segments: the time by which structures are old or new."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 1


CLOCK = _Clock()


def making() -> dict[str, Any]:
    """Return what the recorder in C makes states with that were not met; before as many entries and leaves, none is too long."""
    limits = {"entries": SEGMENT_LIMIT, "leaves": NUMBER_LIMIT}
    return {"enter": _enter, "foreign": FOREIGN, "others": LINES, "met": _SEEN, "clock": CLOCK, "room": _SEEN.limit, **limits}


def _enter(parent: State, key: Hashable, child: State) -> State:
    """Put ``child`` on the trie if it was met before; return what is there, should another thread have been first."""
    if child._length.__class__ is Endless:
        child.known = False
        return child
    child.hash = number = hash((parent.hash, key))
    seen = _SEEN.get(number)
    if seen and parent.known:
        child.seen = seen
        return link(parent, key, child)
    child.known = False
    note = dict.__setitem__ if seen is None and len(_SEEN) < _SEEN.limit else type(_SEEN).__setitem__  # all that there is to it, or more
    note(_SEEN, number, CLOCK.now)
    return child


def link(parent: State, key: Hashable, child: T) -> T:
    """Make ``child`` (a state, or what leads to one) the one after ``parent`` by ``key``, where that is on the trie itself."""
    global _count  # noqa: PLW0603 - one trie for the process
    if not parent.known:
        return child
    if parent.next is _NOWHERE:
        holding(_LOCK, _open_edges, parent)
    there: T = parent.next.setdefault(key, child)
    if there is child:
        _count += 1
    return there


def _open_edges(parent: State) -> None:
    parent.next = {} if parent.next is _NOWHERE else parent.next


def _target(edge: Any) -> State:
    """Return the state that an edge leads to: itself, or where a sweep written before ends."""
    return getattr(edge, "state", edge)  # type: ignore[no-any-return]


def _evict() -> None:
    """Keep the structures that ran among the last runs, with all that leads to them.

    What is dropped still serves the segments that stand on it; it is only not found any more.
    """
    global _count, _limit  # noqa: PLW0603
    if _count <= _limit:
        return
    states = {id(state): state for state in _ROOTS.values()}
    waiting = list(states.values())
    while waiting:
        further = {id(target): target for edge in list(waiting.pop().next.values()) if id(target := _target(edge)) not in states}
        states.update(further)
        waiting += further.values()
    kept: set[int] = set()
    for state in states.values():
        step: State | None = state if state.used >= max(CLOCK.now - RECENT, 1) else None
        while step is not None and id(step) not in kept:
            kept.add(id(step))
            step = step.parent
    for key in [key for key, state in _ROOTS.items() if id(state) not in kept]:
        del _ROOTS[key]
    for state in states.values():
        state.latest = None
        if state.next and id(state) in kept:
            state.next = {key: edge for key, edge in list(state.next.items()) if id(_target(edge)) in kept}
    _count = len(kept)
    _limit = max(STATE_LIMIT, 2 * _count)  # a program that needs so many is not to be compiled over and over


def root(configuration: Hashable, mode: int) -> State:
    """Return the empty tape for a JAX configuration and grad mode."""
    if _count > _limit:
        holding(_LOCK, _evict)
    key = root_key(configuration, mode)
    state = _ROOTS.get(key)
    if state is None:
        state = _ROOTS[key] = State(None, mode)
    return state


def alone(mode: int) -> State:
    """Return an empty tape of its own, on no trie, for what is recorded once, and is not cut."""
    state = State(None, mode)
    state.known, state._length = False, Endless()
    return state


def root_key(configuration: Hashable, mode: int) -> tuple[int, tuple[Any, ...], int]:
    """Return by what :func:`root` finds it; the second is empty where no axes are named."""
    return id(configuration), jaxapi.named_axes(), mode  # equal ones are one object, and slow to hash
