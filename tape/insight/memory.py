"""``tape.memory``: what the tape keeps in memory, by line, and who keeps it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tape.accounts.records import Line
from tape.graph.segment import LeafNode, Segment, behind
from tape.graph.trie import State
from tape.graph.wengert import producers
from tape.insight.names import Reached, reached
from tape.insight.parts import entries_of
from tape.programs.retention import leaf_slots, swept
from tape.statistics import STATS, bytes_held
from tape.terminal import Shown, aligned, clipped, counted, dressed, named, narrowed, painted, short_files, size


@dataclass(frozen=True, slots=True)
class Kept:
    """Arrays that the tape keeps, and entries that are pending or could still be swept, of one op at one line.

    Attributes:
        kind: ``"residual"`` for values that entries gave and a sweep may read, ``"leaf"`` for values that entries read and none gave,
            ``"entry"`` for entries, which take no bytes of arrays themselves.
        name: the op; of a leaf, what the Variable is called where that is known, and "" elsewhere.
        where: the line at which it was recorded; of a leaf, that at which it is read first.
        count: how many arrays, or entries.
        nbytes: their bytes.

    """

    kind: str
    name: str
    where: Line | None
    count: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Holder:
    """Variables of yours that keep a part of the tape alive.

    Attributes:
        path: how they are reached: ``losses[...]``; "?" where that was not found (an iterator, an object of another library).
        scope: the function in whose frame the path begins; "" for a module.
        op: what made them.
        where: the line that did.
        count: how many Variables.
        entries: how many entries they keep.
        nbytes: bytes of the arrays that they keep; what several holders keep counts for each.

    """

    path: str
    scope: str
    op: str
    where: Line | None
    count: int
    entries: int
    nbytes: int


@dataclass(repr=False, eq=False)
class Memory(Shown):
    """What the tape keeps: see :func:`memory`.

    Attributes:
        nbytes: bytes of all arrays; ``tape.stats().live_bytes``.
        entries: entries that are pending, or through which a sweep could go; ``tape.stats().live_entries``.
        rows: :class:`Kept`, the most bytes first.
        holders: :class:`Holder`, likewise.

    """

    nbytes: int
    entries: int
    rows: tuple[Kept, ...]
    holders: tuple[Holder, ...]

    @property
    def by_line(self) -> tuple[Kept, ...]:
        """The same by line and kind alone, the most bytes first."""
        by_place: dict[tuple[str, Line | None], list[Kept]] = {}
        for row in self.rows:
            by_place.setdefault((row.kind, row.where), []).append(row)
        lines = [
            Kept(kind, ", ".join(sorted({r.name for r in rows if r.name})), at, sum(r.count for r in rows), sum(r.nbytes for r in rows))
            for (kind, at), rows in by_place.items()
        ]
        return tuple(sorted(lines, key=lambda row: (-row.nbytes, -row.count)))

    def text(self, *, width: int | None = None, color: bool | None = None, most: int = 20) -> str:
        """Return tables of what is kept and of who keeps it.

        Args:
            width: characters of a line; None for the terminal's (100 where there is none).
            color: whether to use colours; None where the standard output is a terminal.
            most: rows of a table.

        Raises:
            TapeTypeError: an option is of another type.

        """
        return "\n".join(self._lines(*dressed("memory.text", width, color, most=most), most))

    def _lines(self, width: int, color: bool, most: int) -> Iterator[str]:
        arrays = sum(row.count for row in self.rows if row.kind != "entry")
        said = f"Memory of the tape: {size(self.nbytes)} in {counted(arrays, 'array')}, {counted(self.entries, 'entry', 'entries')}"
        yield painted(clipped(said, width), "1", color)
        files = short_files([at[0] for at in (*[r.where for r in self.rows], *[h.where for h in self.holders]) if at is not None])
        rows = [(r.kind, r.name, f"{r.count}", size(r.nbytes) if r.kind != "entry" else "", named(r.where, files)) for r in self.rows]
        yield from _table(("kept", "of", "count", "bytes", "line"), rows, width, color=color, most=most)
        holders = [
            (h.path, h.scope, f"{h.count}", f"{h.entries}", size(h.nbytes), f"{h.op} {named(h.where, files)}".strip()) for h in self.holders
        ]
        yield from _table(("held by", "in", "count", "entries", "bytes", "made by"), holders, width, color=color, most=most)

    def __repr__(self) -> str:
        kept = f"{counted(self.entries, 'entry', 'entries')}, {counted(len(self.holders), 'holder')}"
        return f"<Memory of the tape: {size(self.nbytes)}, {kept}>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, color: bool, most: int) -> Iterator[str]:
    """Yield an empty line and those of a table, if it has rows: two columns of text, numbers, and a line of the user's."""
    if not rows:
        return
    shown, last = rows[:most], len(heads) - 1
    widths = {i: max(map(len, column)) for i, column in enumerate(zip(heads, *shown, strict=True))}
    narrowed(widths, width, [(1, 14), (last, 24), (0, 20), (last, 14), (1, 6), (0, 8)])
    codes = ["1;36", "2", *[""] * (last - 3), "33", "2"]
    yield ""
    for number, row in enumerate((heads, *shown)):
        cells = [aligned(x, widths[i], codes[i] if number else "1", color, right=1 < i < last, end=i != last) for i, x in enumerate(row)]
        yield "  ".join(cells).rstrip()
    if len(rows) > most:
        yield painted(f"... {len(rows) - most} more", "2", color)


class _Array(NamedTuple):
    """What is said of one array."""

    kind: str
    name: str
    where: Line | None
    nbytes: int


def memory() -> Memory:
    """Return what the tape keeps in memory now, by op and line, and which Variables of yours keep it.

    Those are the inputs of pending entries, and what a later sweep may read (residuals and leaves).  A tape goes when the Variables go that
    lead to it, or when a sweep has released it; ``losses.append(loss)`` in a loop keeps all tapes of the loop, and is found here as
    ``losses[...]`` with its line (repair: ``losses.append(float(loss))`` or ``loss.detach()``).  Nothing is run, and nothing kept by
    looking.  A line is that of whoever was first to record the same ops up to there, unless an open tape saw it being recorded.  How much
    was kept at most is in :attr:`tape.profile.peak`.

    Returns:
        A :class:`tape.insight.memory.Memory`: ``print`` shows tables; ``nbytes``, ``entries``, ``rows``, ``by_line``, ``holders``.

    Example:
        >>> import tape, tape.numpy as tnp
        >>> x = tape.Variable([1.0, 2.0, 3.0], name="x")
        >>> losses = []
        >>> for _ in range(4):
        ...     loss = tnp.sin(x).sum()
        ...     _ = float(loss)
        ...     losses.append(loss)
        >>> kept = tape.memory()
        >>> [(h.path, h.count, h.op) for h in kept.holders if h.path.startswith("losses")]
        [('losses[...]', 4, 'sum')]

    """
    segments = STATS._alive()
    reachable = list(reached())
    names = {id(r.variable._cell): r.variable.name or r.path for r in reversed(reachable)}  # type: ignore[attr-defined]
    arrays: dict[int, _Array] = {}
    entries: Counter[tuple[str, str, Line | None]] = Counter()
    kept: dict[int, tuple[set[int], int]] = {}  # of segments, by id: ids of arrays, and how many entries
    lives = [swept(segment) for segment in segments]  # which counts references to cells, so that none may be held here
    for segment, live in zip(segments, lives, strict=True):
        steps = entries_of(segment.state)
        there = [step for step in steps if live is None or (step.slots and step.slots[0] in live)]
        entries.update([("entry", _op(step), _line(segment, step)) for step in there])
        own: dict[int, _Array] = {}
        makers, readers = producers(steps), {slot: step for step in reversed(steps) for slot in step.inputs}
        for slot, cell in () if segment.run is None else tuple(segment.run.saved.items()):
            maker = makers.get(slot)
            kind, name = ("leaf", names.get(id(cell), "")) if maker is None else ("residual", _op(maker))
            own.update({id(a): _Array(kind, name, _line(segment, maker), bytes_held(a)) for a in _arrays(cell)})
        deferred = None if segment.run is None else segment.run.deferred
        for slot, cell in zip(leaf_slots(segment.state), list(segment.leaves if deferred is None else deferred[1]), strict=False):
            where = _line(segment, readers.get(slot))
            for a in _arrays(cell):
                own.setdefault(id(a), _Array("leaf", _called(segment, slot) or names.get(id(cell), ""), where, bytes_held(a)))
        kept[id(segment)] = set(own), len(there)
        for number, array in own.items():
            if number not in arrays or (arrays[number].kind == "leaf" and array.kind == "residual"):  # what one gave, another one reads
                arrays[number] = array
    counts, sizes = Counter([array[:3] for array in arrays.values()]), Counter[Any]()
    for array in arrays.values():
        sizes[array[:3]] += array.nbytes
    rows = [Kept(*key, count, sizes[key]) for key, count in (counts + entries).items()]
    rows.sort(key=lambda r: (-r.nbytes, r.kind != "entry", -r.count, r.name))
    holders = _holders(segments, reachable, kept, arrays)
    return Memory(sum(a.nbytes for a in arrays.values()), entries.total(), tuple(rows), tuple(holders))


def _holders(
    segments: Sequence[Segment], reachable: Sequence[Any], kept: dict[int, tuple[set[int], int]], arrays: dict[int, _Array]
) -> list[Holder]:
    """Return which Variables keep segments, those of one list or line together."""
    groups: dict[tuple[str, str, str, Line | None], list[Any]] = {}
    spread: dict[tuple[str, str], set[int]] = {}  # of ways: the Variables there
    for one in reachable:
        spread.setdefault(_way(one), set()).add(id(one.variable))
    # By the way on which there are the most: that of a list, not of the name of its last one; the first of these.
    chosen: dict[int, Any] = {}
    for one in sorted(reachable, key=lambda one: -len(spread[_way(one)])):
        chosen.setdefault(id(one.variable), one)
    for one in chosen.values():
        variable = one.variable
        segment = variable._segment if variable._segment is not None else getattr(variable._place, "segment", None)
        if segment is not None and id(segment) in kept:
            slot = variable._place.slot
            step = next((s for s in segment.state.path() if s.kernel is not None and slot in s.slots), None)
            group = groups.setdefault((*_way(one), _op(step), _line(segment, step)), [0, {}, one.path])
            group[0] += 1
            list(behind([segment], group[1]))
    known = {id(s) for group in groups.values() for s in group[1].values()}
    lost = {id(segment): segment for segment in segments if id(segment) not in known and any(kept[id(segment)])}
    if lost:
        groups["?", "", "", None] = [len(lost), lost, "?"]
    holders = []
    for (path, scope, op, where), (count, past, single) in groups.items():
        keeps = [kept[key] for key in past if key in kept]
        ids: set[int] = set().union(*[own for own, _ in keeps])
        total = sum(n for _, n in keeps)
        nbytes = sum(arrays[key].nbytes for key in ids)
        if nbytes or total:
            holders.append(Holder(single if count == 1 else path, scope, op, where, count, total, nbytes))
    return sorted(holders, key=lambda h: (h.path == "?", -h.nbytes, -h.entries, h.path))


def _way(one: Reached) -> tuple[str, str]:
    """Return a path without the places in lists, and the function in which it begins."""
    return re.sub(r"\[\d+\]", "[...]", one.path), one.scope


def _called(segment: Segment, slot: int) -> str:
    """Return the name that the user gave to a leaf."""
    node = segment.origins.get(slot)
    variable: Any = node.ref() if isinstance(node, LeafNode) else None
    return (variable.name or "") if variable is not None else ""


def _op(step: State | None) -> str:
    return "" if step is None else str((step.kernel if step.op is None else step.op).name)


def _line(segment: Segment, step: State | None) -> Line | None:
    if step is None:
        return None
    noted: Line | None = segment.lines.get(step.slots[0]) if step.slots else None
    return noted or step.where


def _arrays(cell: Any) -> Sequence[Any]:
    return cell if cell.__class__ is list else cell.arrays()
