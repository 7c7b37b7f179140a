"""The trie of tapes: every prefix of a tape recorded before is a state, found again by one dict look-up per entry.

An edge is a new leaf (keyed by its :class:`Kind`), an entry (keyed by op and input slots), a sweep, or a change of the grad mode.  What can be
known of an entry without running it (shapes, dtypes, flags, place) hangs on its state, and so do programs and sweep plans, so that
nothing is hashed or planned for a structure met again.

A state met for the first time is not put on the trie: only a number is kept by which it is recognised.  So tapes whose structure never
repeats leave nothing behind.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tape import jaxapi
from tape.bounded import Bounded
from tape.graph.eviction import evict
from tape.graph.kinds import DIFFERENTIABLE, PLAIN, UNRECORDED, Kind, MadePlace, Place, Role, differentiable
from tape.locks import holding

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from tape.ops.kernel import Kernel

__all__ = ["CONSTANT", "RECORD", "SWEEP", "Line", "State", "root"]

STATE_LIMIT = 1 << 14  # then what did not run among the last runs goes
RECENT = 1000
SEEN_LIMIT = 1 << 16

SEGMENT_LIMIT = 600  # entries; XLA compiles 600 ops with their sweep in 2 s, 1 000 in 5 s
NUMBER_LIMIT = 400  # leaves that are single numbers; XLA's compiler for the CPU may use up the memory where one short loop reads over 500

T = TypeVar("T")

# Grad modes. In SWEEP mode (a sweep without create_graph, and the forward of a tape.Function) results are constants that remember that they
# depend on differentiable values without being recorded.
CONSTANT, RECORD, SWEEP = 0, 1, 2

_NOWHERE: dict[Any, Any] = {}  # the edges of a state that has none: most states of a structure never met again; nothing is put in here
_LOCK = threading.Lock()

_PACKAGE = str(Path(__file__).parents[1])
_INTEROP = str(Path(__file__).parents[2] / "interop")


class Line:
    """One entry of a sweep that was written as a whole: the sweep is one state of the trie, and its lines stand in for states."""

    __slots__ = ("depth", "inputs", "kernel", "slots", "where")

    op: Any = None
    mode = SWEEP
    places: tuple[Place, ...] = ()  # nothing here is differentiable
    hazard: int | None = None
    ends = False

    def __init__(self, kernel: Kernel, inputs: tuple[int, ...], slots: tuple[int, ...], where: Any, depth: int) -> None:
        self.kernel = kernel
        self.inputs = inputs
        self.slots = slots
        self.where = where
        self.depth = depth


class State:
    """One prefix of a tape.  ``kernel`` is None for leaves, changes of mode, and sweeps (which have ``lines``).

    ``hazard`` is the number of the input, if any, that has no derivative, so that no sweep goes through the entry.
    ``ends`` tells that sweeps end at its slot: it is a leaf, or an entry whose result was made one (:mod:`tape.recording.leaves`).  They end at the
    slots in ``cut`` as well, which were cut from their past (:mod:`tape.variables.cuts`).
    """

    __slots__ = (
        "cut",
        "depth",
        "ends",
        "full",
        "hash",
        "hazard",
        "inputs",
        "kernel",
        "known",
        "lines",
        "mode",
        "n_slots",
        "next",
        "numbers",
        "op",
        "parent",
        "place",
        "places",
        "plans",
        "programs",
        "quick",
        "seen",
        "slots",
        "table",
        "used",
        "where",
    )

    def __init__(self, parent: State | None, mode: int) -> None:
        self.parent = parent
        self.mode = mode
        self.next = _NOWHERE
        # One list is shared along a chain of states; the first n_slots of it are this state's.
        self.table: list[Place]
        self.cut: frozenset[int] = frozenset() if parent is None else parent.cut
        if parent is None:
            self.depth, self.n_slots, self.numbers, self.table = 0, 0, 0, []
            self.hash = id(self)
        else:
            self.depth, self.n_slots, self.numbers = parent.depth, parent.n_slots, parent.numbers
            self.table = parent.table
        self.ends = False
        self.known = True  # it is on the trie
        self.used = 0  # the last run that ended here
        self.seen = 0  # when it was met before it was put there, if ever: a run's number
        self.full = False
        self.quick = False  # one visible result, and room for more entries
        self.kernel: Kernel | None = None
        self.op: Any = None
        self.lines: tuple[Line, ...] | None = None
        self.inputs: tuple[int, ...] = ()
        self.slots: tuple[int, ...] = ()
        self.places: tuple[Place, ...] = ()
        self.place: Place | None = None
        self.hazard: int | None = None
        self.where: tuple[str, int] | None = None
        self.programs: dict[Hashable, Any] | None = None
        self.plans: dict[Hashable, Any] | None = None

    def cached(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what is known of the structure under ``key``, worked out once.  A key begins with what it is of, as in ``("plan", ...)``."""
        if self.plans is None:
            self.plans = {}
        known: T | None = self.plans.get(key)
        if known is None:
            known = self.plans[key] = make()
        return known

    def _add_slots(self, kinds: Sequence[Kind], made: tuple[str, int] | int | None = None) -> None:
        n = self.n_slots
        if made is not None:  # they are unrecorded
            self.places = tuple([MadePlace(n + i, kind, made) for i, kind in enumerate(kinds)])
            self.slots = tuple(range(n, n + len(kinds)))
        elif len(kinds) == 1:  # the usual case, without loops
            self.places = (Place(n, kinds[0]),)
            self.slots = (n,)
        else:
            self.places = tuple([Place(n + i, kind) for i, kind in enumerate(kinds)])
            self.slots = tuple(range(n, n + len(kinds)))
        holding(_LOCK, self._extend_table, n)  # another thread may be growing the same list
        self.n_slots = n + len(kinds)
        self.place = self.places[0] if self.kernel is None or self.kernel.single else None

    def _extend_table(self, n: int) -> None:
        if len(self.table) != n:
            self.table = self.table[:n]
        self.table.extend(self.places)

    def leaf(self, kind: Kind) -> State:
        """Make the state that follows when a leaf of this kind enters."""
        child = State(self, self.mode)
        child.ends = True
        if not kind.aval.shape and not kind.requires_grad and differentiable(kind.aval):
            child.numbers += 1
        child._add_slots((kind,), child.n_slots if kind.unrecorded else None)
        found: State = enter(self, kind, child)
        return found

    def switched(self, mode: int) -> State:
        """Return the state that follows when the grad mode becomes ``mode``."""
        found: State | None = self.next.get(mode)
        if found is None:
            found = self._changed(mode, State(self, mode))
        assert found is not None
        return found

    def severed(self, slots: frozenset[int]) -> State:
        """Return the state that follows when these slots are cut from their past."""
        found: State | None = self.next.get(("cut", slots))
        if found is None:
            child = State(self, self.mode)
            child.cut = self.cut | slots
            found = self._changed(("cut", slots), child)
        assert found is not None
        return found

    def _changed(self, key: Hashable, child: State) -> State:
        """Put a state without an entry of its own where this one is."""
        child.known, child.seen, child.hash = self.known, self.seen, hash((self.hash, key))
        return link(self, key, child)  # type: ignore[no-any-return]

    def entry(self, key: Hashable, op: Any, kernel: Kernel, inputs: tuple[int, ...], *, ends: bool = False) -> State:
        """Make the state that follows when ``kernel`` is recorded on the slots ``inputs``; where it ``ends``, its result is a leaf."""
        child = State(self, self.mode)
        child.depth += 1
        child.full = child.depth > SEGMENT_LIMIT or child.numbers > NUMBER_LIMIT
        child.op = op
        child.inputs = inputs
        differentiable_input = False
        tainted = None
        table = self.table
        arguments = getattr(op, "arguments", len(inputs))  # those beyond were computed from them, by a tape.Function
        for i, s in enumerate(inputs):
            kind = table[s].kind
            if kind.requires_grad:
                differentiable_input = True
            elif kind.unrecorded and tainted is None and i < arguments:
                tainted = i
        role: Role = PLAIN
        child.where = made = user_line()
        if ends:
            role = DIFFERENTIABLE
        elif (reason := getattr(op, "unrecorded", None)) is not None and self.mode != CONSTANT:
            role = reason
        elif self.mode == RECORD:
            if differentiable_input:
                role = DIFFERENTIABLE
                kernel = kernel.augmented()
                child.hazard = tainted
            elif tainted is not None:
                place = table[inputs[tainted]]
                role = place.kind.unrecorded if isinstance(place.kind.unrecorded, str) else UNRECORDED
                made = place.made
        elif self.mode == SWEEP and (differentiable_input or tainted is not None):
            role = UNRECORDED
        child.ends = ends
        child.kernel = kernel
        child._add_slots(kernel.kinds(role), None if role in (PLAIN, DIFFERENTIABLE) else made)
        child.quick = child.place is not None and not child.full
        if kernel.transient:
            child.known, child.hash = False, 0
            return child
        found: State = enter(self, key, child)
        return found

    def swept(self, written: Sequence[tuple[Any, tuple[int, ...], Any]]) -> State:
        """Make the state that follows when a sweep without ``create_graph`` is written: kernels or ops, input slots, and lines in files.

        The results of the first one are numbered from ``n_slots``, and so on.
        """
        child = State(self, self.mode)
        child.known, child.seen, child.hash = self.known, self.seen, hash((self.hash, len(written)))
        n = self.n_slots
        child.table = table = self.table[:n]  # a list of its own: what follows takes time, and other threads may grow the old one
        child.depth = depth = self.depth + len(written)
        made = user_line()
        lines = []
        for op, inputs, where in written:
            kernel = op if hasattr(op, "kinds") else op.kernel_of(tuple([table[s].kind for s in inputs]))
            role = PLAIN
            for s in inputs:
                kind = table[s].kind
                if kind.requires_grad or kind.unrecorded:
                    role = UNRECORDED
                    break
            start = n
            for kind in kernel.kinds(role):
                table.append(Place(n, kind) if role == PLAIN else MadePlace(n, kind, made))
                n += 1
            lines.append(Line(kernel, inputs, (start,) if n == start + 1 else tuple(range(start, n)), where, depth))
        child.n_slots = n
        child.lines = tuple(lines)
        child.full = depth > SEGMENT_LIMIT or child.numbers > NUMBER_LIMIT
        return child

    def path(self) -> list[Any]:
        """All entries, leaves and changes of mode from the first to this state's, in order: states, and the lines of sweeps."""
        found: list[Any] = []
        state = self
        while state.parent is not None:
            if state.lines is None:
                found.append(state)
            else:
                found.extend(reversed(state.lines))
            state = state.parent
        found.reverse()
        return found


_count = 0
_limit = STATE_LIMIT
_ROOTS: dict[Hashable, State] = {}
_SEEN: list[dict[int, int]] = [{}, {}]  # numbers of states met once, and when: the newer ones, the older ones


class _Clock:
    """Counts the runs of pending segments: the time by which structures are old or new."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 1


CLOCK = _Clock()


def enter(parent: State, key: Hashable, child: State) -> State:
    """Put ``child`` on the trie if it was met before; return what is there, should another thread have been first."""
    child.hash = number = hash((parent.hash, key))
    newer, older = _SEEN
    seen = newer.get(number) or older.get(number)
    if seen and parent.known:
        child.seen = seen
        return link(parent, key, child)  # type: ignore[no-any-return]
    child.known = False
    if len(newer) > SEEN_LIMIT:
        newer = {}
        _SEEN[:] = newer, _SEEN[0]
    newer[number] = CLOCK.now
    return child


def link(parent: State, key: Hashable, child: Any) -> Any:
    """Make ``child`` (a state, or what leads to one) the one after ``parent`` by ``key``, where that is on the trie itself."""
    global _count  # noqa: PLW0603 - one trie for the process
    if not parent.known:
        return child
    if parent.next is _NOWHERE:
        holding(_LOCK, _open_edges, parent)
    found = parent.next.setdefault(key, child)
    if found is child:
        _count += 1
    return found


def _open_edges(parent: State) -> None:
    if parent.next is _NOWHERE:
        parent.next = {}


def _evict() -> None:
    global _count, _limit  # noqa: PLW0603
    if _count > _limit:
        _count = evict(_ROOTS, max(CLOCK.now - RECENT, 1))
        _limit = max(STATE_LIMIT, 2 * _count)  # a program that needs so many is not to be compiled over and over


def root(configuration: Hashable, mode: int) -> State:
    """Return the empty tape for a JAX configuration and grad mode."""
    if _count > _limit:
        holding(_LOCK, _evict)
    key = (configuration, jaxapi.named_axes(), mode)
    found = _ROOTS.get(key)
    if found is None:
        found = _ROOTS[key] = State(None, mode)
    return found


_FOREIGN: Bounded[Any, bool] = Bounded("code", 4096)  # code object -> whether it is outside this library


def user_line() -> tuple[str, int] | None:
    """File and line of the innermost frame outside this library."""
    frame: Any = sys._getframe(3)  # entry, first_meeting, record; a traceback would cost a hundred times as much
    while frame is not None:
        code = frame.f_code
        foreign = _FOREIGN.get(code)
        if foreign is None:
            foreign = _FOREIGN[code] = not code.co_filename.startswith((_PACKAGE, _INTEROP))
        if foreign:
            return (code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None
