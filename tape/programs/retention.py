"""Retention: what a segment that has run keeps for sweeps, and when it lets go of that.

Which Variables are held, the reference counts of cells tell, so nothing is noticed when one is dropped: a segment of which no Variable is
held goes at once, and one of which some still are lets go of what only the others needed with the next sweep of it, or one of the next
runs, each of which looks at one such segment (:func:`trim`, :func:`trim_one`).
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from tape import layout
from tape.configuration import applying
from tape.graph.boxes import UNREAD, Box, Cell
from tape.graph.kinds import Place
from tape.graph.length import bytes_of
from tape.graph.segment import NOTHING, Run, Segment
from tape.graph.trie import State
from tape.graph.wengert import backwards
from tape.statistics import STATS


def _baseline() -> int:
    """References to a cell that nobody but its segment holds, as the count below sees them on this interpreter."""
    return next(iter(list(map(sys.getrefcount, {0: [None]}.values()))))


HEAVY = 1 << 16  # bytes that are not to wait for long until somebody notices that they were let go

# Values of a loop's turns: as results of a program each is an array of its own, where the loop has them in one. An LSTM of 900 steps took
# 1.9 s with 1,500 of them in each program, and 0.1 s where the turns are computed again, at most a third more work.
MANY = 128

# Each value that is kept is a result of one program and an argument of the next, which takes 2 us. Of more than so many, those that take no
# longer to compute again are not kept: an LSTM of 20 steps whose loss is looked at took 740 us with 100 of them, and 460 without.
FEW = 8

ONLY_SEGMENT = _baseline()


def _held(cells: dict[int, Any]) -> tuple[int, ...]:
    """Return the slots whose cells somebody holds beside this dict: Variables, or newer segments."""
    counts = map(sys.getrefcount, cells.values())  # nothing else here may refer to a cell
    return tuple(itertools.compress(cells, map(ONLY_SEGMENT.__lt__, counts)))


held = layout.chosen("held", _held)


def _stored(cells: dict[int, Cell], live: tuple[int, ...], results: Sequence[Any]) -> dict[int, Cell]:
    """Put results into the cells of some slots, the first of them in this order; return these cells by slot."""
    saved: dict[int, Cell] = {}
    for slot, value in zip(live, results, strict=False):
        cell = saved[slot] = cells[slot]
        cell[0] = value
    return saved


stored = layout.chosen("stored", _stored)


_KEPT: dict[int, list[Any]] = {0: [None]}
_ALONE = sys.getrefcount(_KEPT[0])  # the same, where it is looked up


class Kept(NamedTuple):
    """What a run keeps besides the values that Variables hold: these are attributes of a :class:`Program`."""

    residuals: tuple[int, ...] = ()
    history: bool = False
    dead: frozenset[int] = frozenset()
    read: tuple[int, ...] = ()
    heavy: bool = False  # much of what Variables hold is not read by sweeps
    deferral: Any = None  # what has gradients that Variables hold wait until somebody looks (tape.programs.deferral)


def residuals(state: State, live: tuple[int, ...], released: frozenset[int], *, packs: bool = False, few: bool | None = False) -> Kept:
    """Work out what a sweep reads; where that is packed, what Variables hold does not stand in for it.

    Where it is to be ``few``, the forward and the sweep are two programs, between which each value costs more than in interpretation;
    where that is None, they are parts of one, and nothing is computed again.
    """
    passed, _ = _passed(state, live, released)
    if not passed:
        return Kept()
    path = state.path()
    alive = released.union(entry.depth for entry in passed)
    dead = [e.depth for e in path if e.kernel and not e.ends and e.depth not in alive and any(p.kind.requires_grad for p in e.places)]
    kept = set() if packs else set(live)
    parts: dict[int, bool] = {}

    def cheap(entry: State) -> bool:
        kernel: Any = entry.kernel
        return kernel.cheap or (kernel.picks and _of_leaves(entry, state, parts))

    needed, saved = _chosen(state, passed, kept, cheap if few is not None else lambda _: False)
    if few is not None and len(saved) > MANY and 2 * state.length.written(state) < state.depth:  # most entries are turns of loops
        needed, saved = _chosen(state, passed, kept, lambda entry: not entry.kernel.jaxpr.effects)
    elif few and len(saved) > FEW:
        needed, saved = _chosen(state, passed, kept, lambda entry: entry.kernel.brief or cheap(entry))
    if not packs:
        unread = [state.table[slot].kind.aval for slot in live if slot not in needed]
        heavy = sum(map(bytes_of, unread)) > HEAVY
        return Kept(tuple(sorted(saved)), True, frozenset(dead), heavy=heavy)
    read = saved | needed.intersection(leaf_slots(state))
    return Kept(tuple(sorted(saved.difference(live))), True, frozenset(dead), tuple(sorted(read)))


def _chosen(state: State, passed: list[State], kept: set[int], again: Callable[[Any], bool]) -> tuple[set[int], set[int]]:
    """Return the slots whose values sweeps need, and those of them to save: not what is ``kept``, nor what may be computed ``again``."""
    needed = _read_by(passed)
    saved: set[int] = set()
    for entry in backwards(state.path(), needed):
        missing = [s for s in entry.slots if s in needed and s not in kept]
        if not missing or entry.kernel is None:
            continue
        own = hasattr(entry.op, "arguments")  # a tape.Function: what is computed again would not have the user's derivative
        # A sweep that is recorded ends at a cut, and at a leaf, so it needs the value itself.
        if not own and not entry.ends and state.cut.isdisjoint(missing) and again(entry):
            needed.update(entry.inputs)
        else:
            saved.update(missing)
    return needed, saved


def _of_leaves(entry: State, state: State, parts: dict[int, bool]) -> bool:
    """Tell whether an entry picks from leaves that are there anyway, parameters and small ones; ``parts`` collects what is known by slot.

    Where a loop takes the same rows out of a parameter in each turn, its copies of them would be most of what is kept.
    """
    if not parts:
        for step in state.path():
            if step.kernel is None:
                parts.update((p.slot, p.kind.requires_grad or bytes_of(p.kind.aval) <= HEAVY) for p in step.places)
            else:
                picked = step.kernel.picks and not step.ends and all(parts[s] for s in step.inputs)
                parts.update(dict.fromkeys(step.slots, picked))
    return parts[entry.slots[0]]


def _passed(state: State, live: tuple[int, ...], released: frozenset[int]) -> tuple[list[State], set[int]]:
    """Return the entries that sweeps from some slots go through, last to first, and the slots that they reach."""
    table, cut = state.table, state.cut
    reached = {slot for slot in live if table[slot].kind.requires_grad and slot not in cut}
    return (through(state.path(), reached, table, cut, released) if reached else []), reached


def _through(path: list[State], reached: set[int], table: list[Place], cut: frozenset[int], released: frozenset[int]) -> list[State]:
    """Return the entries that sweeps from the slots ``reached`` go through, last to first; the slots that they come to are added."""
    passed: list[State] = []
    apart = reached.isdisjoint
    for entry in reversed(path):
        if not apart(entry.slots) and not entry.ends and entry.depth not in released:
            passed.append(entry)
            reached.update(s for s in entry.inputs if table[s].kind.requires_grad and s not in cut)
    return passed


through = layout.chosen("through", _through)


def _read_by(passed: list[State]) -> set[int]:
    """Return the slots that the VJPs of some entries read."""
    positions = {kernel: kernel.residuals() for kernel in {e.kernel for e in passed}}  # asked once: it depends on settings, and is not kept
    return {(*e.inputs, *e.slots)[i] for e in passed for i in positions[e.kernel]}  # no leaves


def _live(segment: Segment, run: Run) -> tuple[int, ...]:
    """Return the slots of a segment that has run from which a sweep may come: Variables hold them, or newer segments lead there."""
    live = list(held(run.saved))
    if run.boxed:
        live += [slot for slot, kept in run.saved.items() if kept.__class__ is Box and kept.held]
    if ways := segment.ways:
        live += [slot for slot in held(ways) if slot not in live]
    return tuple(live)


def entries_of(segment: Segment) -> int:
    """Return how many entries of a segment are pending, or could still be swept."""
    with segment.lock:
        live = swept(segment)
        return segment.state.depth if live is None else len(live)


def swept(segment: Segment) -> frozenset[int] | None:
    """Return the first slots of the entries of a segment that could still be swept; None where it is pending, and all of them."""
    with segment.lock:
        run = segment.run
        if run is None:
            return None
        return _read(segment, run, _live(segment, run)).entries if segment.leaves else frozenset()


STATS.entries_of = entries_of


def forget(segment: Segment, *, origins: bool = False) -> None:
    """Drop all that a segment which has run keeps for sweeps; with ``origins``, sweeps to a leaf behind it find that it was released."""
    segment.leaves = []
    if not origins:
        segment.origins = {slot: end for slot, end in segment.origins.items() if slot in segment.state.cut}  # sweeps end there as before
    run = segment.run
    # What failed still says why, and what waits is still there for who looks.
    segment.run = NOTHING if run is None or not (run.failed or run.deferred) else Run({}, run.failed, deferred=run.deferred)
    segment.functions = {}
    segment.hooks = {slot: {} for slot in segment.hooks}  # those of a Variable that is still held are with it, if a sweep ends there


def thin(segment: Segment, slots: Iterable[int]) -> None:
    """Drop some of the values that a segment keeps, unless somebody else holds them: a later sweep that reads them computes them again."""
    with segment.lock:
        run = segment.run
        if run is None or run.failed or segment.trace is not None or _acts(segment.state):
            return
        saved = run.saved
        if any(kept.__class__ is Box for kept in (*segment.leaves, *saved.values())):  # not all can be computed again
            return
        for slot in slots:
            if slot in saved and sys.getrefcount(saved[slot]) <= _ALONE:
                del saved[slot]


def _acts(state: State) -> bool:
    """Tell whether an entry has side effects, so that it must not run again."""
    return state.cached("acts", lambda: any(step.kernel is not None and bool(step.kernel.jaxpr.effects) for step in state.path()))


def note(segment: Segment, *, heavy: bool) -> None:
    """Have one of the next runs look whether Variables of this segment were dropped while others are held; a ``heavy`` one is the next."""
    (_HEAVY if heavy else _SHARED).append((weakref.ref(segment), None))


def trim_one() -> None:
    """Trim one of the segments that were noted."""
    noted = _HEAVY or _SHARED
    if not noted:
        return
    try:
        ref, before = noted.popleft()
    except IndexError:  # another thread took it
        return
    segment = ref()
    if segment is None or not segment.lock.acquire(blocking=False):
        return
    try:
        run = segment.run
        if run is not None and run.saved:
            live = _live(segment, run)
            held = live, segment.released
            if held == before or _let_go(segment, run, live):
                _SHARED.append((ref, held))
    finally:
        segment.lock.release()


# With what a sweep could come from and go through when it was trimmed last: as long as that is so, there is nothing more to let go.
_Noted = deque[tuple[weakref.ref["Segment"], tuple[tuple[int, ...], frozenset[int]] | None]]
_SHARED: _Noted = deque()
_HEAVY: _Noted = deque()  # those noted since the last run


def noted() -> dict[str, _Noted]:
    """Return where the recorder in C notes segments as :func:`note` does."""
    return {"shared": _SHARED, "heavy": _HEAVY}


def trim(segment: Segment) -> int:
    """Let a segment that has run (its lock is held) go of what no sweep from held Variables reads; return how many entries one passes."""
    run, released = segment.run, segment.released
    if run is None:
        return int(segment.state.depth)
    if not segment.functions and segment.state.cached(("spent", released), lambda: spent(segment.state, released)):
        forget(segment, origins=True)
        return 0
    return _let_go(segment, run, _live(segment, run))


def trimmed(segment: Segment) -> None:
    """:func:`trim` a segment whose lock is not held."""
    if not forgot(segment):
        with segment.lock:
            trim(segment)


forgot = layout.chosen("forgot")  # what :func:`trim` does where it is known that a segment is spent; it tells whether it did


def spent(state: State, released: frozenset[int]) -> bool:
    """Tell whether no sweep goes through a structure any more, from wherever, once these entries are released."""
    left = [step for step in state.path() if step.places and not step.ends and step.depth not in released]
    return not any(place.kind.requires_grad and place.slot not in state.cut for step in left for place in step.places)


def _let_go(segment: Segment, run: Run, live: tuple[int, ...]) -> int:
    """:func:`trim` a segment to which sweeps come by the slots that are ``live``."""
    while True:
        still = _read(segment, run, live)
        unreached = segment.functions and segment.functions.keys() - still.entries
        if not unreached:
            break
        for slot in unreached:  # what these saved may be what holds others, and have finalizers, which may sweep this segment
            segment.functions.pop(slot, None)
        if segment.run is not run:
            return trim(segment)
        live = _live(segment, run)
    if not still.entries:
        forget(segment, origins=True)
    elif segment.trace is None and not run.failed:
        saved, read = run.saved, still.slots
        if not read.issuperset(saved):
            segment.run = run._replace(saved={slot: kept for slot, kept in saved.items() if slot in read})
        if still.unread:
            leaves = list(segment.leaves)
            for i in still.unread:
                leaves[i] = UNREAD
            segment.leaves = leaves
    return len(still.entries)


class _Read(NamedTuple):
    """What sweeps still need.

    These are the entries that they could go through, by their first slots, the slots whose values they read or begin at, and the positions
    of the leaves that they neither read nor end at: what made the others is told by their cells that sweeps lead there.
    """

    entries: frozenset[int]
    slots: frozenset[int]
    unread: tuple[int, ...]


def _read(segment: Segment, run: Run, live: tuple[int, ...]) -> _Read:
    """Work out what sweeps from some slots need, where the values that are kept are there and the others are computed again."""
    released, kept = segment.released, run.kept
    return segment.state.cached(("read", live, released, kept), lambda: _traced(segment, live, released, kept))


def _traced(segment: Segment, live: tuple[int, ...], released: frozenset[int], kept: tuple[int, ...]) -> _Read:
    with applying(segment.configuration):  # what a VJP reads is seen in its trace
        return _walked(segment.state, live, released, kept)


def _walked(state: State, live: tuple[int, ...], released: frozenset[int], kept: tuple[int, ...]) -> _Read:
    passed, reached = _passed(state, live, released)
    if not passed:
        return _Read(frozenset(), frozenset(), ())
    needed, there = _read_by(passed), set(kept)
    for entry in backwards(state.path(), needed):
        if not there.issuperset(needed.intersection(entry.slots)):
            needed.update(entry.inputs)
    read = frozenset(needed).union(state.cut, live)
    ends = reached | read
    unread = tuple([i for i, slot in enumerate(leaf_slots(state)) if slot not in ends])
    return _Read(frozenset([entry.slots[0] for entry in passed]), read, unread)


def leaf_slots(state: State) -> Sequence[int]:
    """Return the slots of the leaves that entered a segment, in their order."""
    return state.cached("leaf slots", lambda: [place.slot for step in state.path() if step.kernel is None for place in step.places])
