"""Rows: what a profile noted, by op, by line, by scope and by program, and as tables: as wide as the terminal, in colours where it is one.

A compiled program has one time.  That is shared out to its entries in proportion to what each is predicted to take as a part of it
(:mod:`tape.ops.costs`), and such rows say that they are ``predicted``; an entry that ran alone has its own time.  Either way the times of
the rows sum to the time that programs took.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from tape.accounts.records import Line
from tape.insight.profiling_parts import Runs, Share, Side, parts_of, shared
from tape.insight.scopes import scope_of_line
from tape.terminal import aligned, clipped, duration, named, number, painted, short_files, size, source_of


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a profile.

    Attributes:
        name: the op, the line as ``file.py:12``, the function, class or module, or what a program is called.
        where: file and line; None where several belong to the row, or none.
        forward: the :class:`Side` of what the user recorded.
        sweep: that of what sweeps wrote: the VJPs of an op count as that op.
        compiling: seconds that the thread traced and compiled for it.
        predicted: whether seconds are in it that were measured of a program and shared out.
        runs: of a program: how often it ran.
        interpreted: of a program: how many of these runs were not compiled.
        entries: of a program: how many entries it has.
        python: of a line, function, class or module: seconds of Python there, by samples; these are no part of ``seconds``.

    """

    name: str
    where: Line | None = None
    forward: Side = field(default_factory=Side)
    sweep: Side = field(default_factory=Side)
    compiling: float = 0.0
    predicted: bool = False
    runs: int = 0
    interpreted: int = 0
    entries: int = 0
    python: float = 0.0

    def __add__(self, other: Row) -> Row:
        fields = ("forward", "sweep", "compiling", "runs", "interpreted", "python")
        sums = {name: getattr(self, name) + getattr(other, name) for name in fields}
        return replace(self, predicted=self.predicted or other.predicted, **sums)

    @property
    def count(self) -> int:
        """Entries that ran."""
        return self.forward.count + self.sweep.count

    @property
    def seconds(self) -> float:
        """Seconds that they took."""
        return self.forward.seconds + self.sweep.seconds

    @property
    def flops(self) -> float:
        """Floating-point operations."""
        return self.forward.flops + self.sweep.flops

    @property
    def nbytes(self) -> int:
        """Bytes read and written."""
        return self.forward.nbytes + self.sweep.nbytes


def rows_by(
    every: Iterable[Runs], key: Callable[[Share], tuple[str, Line | None]], python: Mapping[Line, float] = MappingProxyType({})
) -> list[Row]:
    """Return a row for each value of ``key`` of the parts, and of lines that took ``python`` seconds, the one that took longest first."""
    sums: defaultdict[tuple[str, Line | None], list[Any]] = defaultdict(lambda: [Side(), Side(), 0.0, False, 0.0])
    for runs in every:
        several = len(parts_of(runs)) > 1
        for part, side, compiling in shared(runs):
            known = sums[key(part)]
            known[part.swept] += side
            known[2] += compiling
            known[3] |= several
    for line, passed in python.items():
        sums[key(Share("", line, swept=False))][4] += passed
    rows = [Row(name, where, *s[:4], python=s[4]) for (name, where), s in sums.items()]  # type: ignore[misc]
    return sorted(rows, key=lambda row: (-row.seconds - row.python, -row.count, row.name))


def of_programs(every: Iterable[Runs]) -> list[Row]:
    """Return a row for each thing that ran."""
    by_key: dict[Any, Row] = {}
    for runs in every:
        forward = sweep = Side()
        for part, side, _ in shared(runs):
            forward, sweep = (forward, sweep + side) if part.swept else (forward + side, sweep)
        times = runs.what if runs.kind == "rest" else runs.count
        mixed = bool(forward.count and sweep.count)
        alone = 0 if runs.compiled else times
        row = Row(runs.name, runs.line, forward, sweep, runs.compiling, mixed, times, alone, len(parts_of(runs)))
        key = runs.kind, runs.what[0] if runs.kind == "flush" else runs.what, runs.name, runs.line
        by_key[key] = by_key[key] + row if key in by_key else row
    return sorted(by_key.values(), key=lambda row: (-row.seconds, row.name))


def by_op(part: Share) -> tuple[str, Line | None]:
    """Return the op."""
    return part.op, None


def by_line(part: Share) -> tuple[str, Line | None]:
    """Return the line."""
    return ("elsewhere", None) if part.where is None else (named(part.where), part.where)


def by_scope(kind: str) -> Callable[[Share], tuple[str, Line | None]]:
    """Return what gives the function, class or module of a part; a module of another library is the one that it is called by."""

    def key(part: Share) -> tuple[str, Line | None]:
        if part.op[:1].isupper():  # a lifted module has the name of its class
            return part.op, None
        scope = getattr(part.where, "scope", "") or scope_of_line(part.where, kind)
        return scope or (f"({named(part.where).rsplit(':', 1)[0]})" if part.where is not None else "elsewhere"), None

    return key


_COLOURS = {"Python": "34", "programs": "32", "compiling": "33", "waiting": "35"}
_HEAD, _FIRST, _QUIET = "1", "1;36", "2"
_BAR = 24


class _Column(NamedTuple):
    """A column: its head, what stands in it, and from how many characters of a line on it is shown (0: always)."""

    head: str
    text: Callable[[Row, float], str]
    since: int = 0


def _time(of: Callable[[Row], float]) -> Callable[[Row, float], str]:
    def text(row: Row, _: float) -> str:
        value = of(row)
        return f"{'~' if row.predicted else ''}{duration(value)}" if value else ""

    return text


def _rate(row: Row, _: float) -> str:
    return f"{number(row.flops / row.seconds)}/s" if row.flops and row.seconds else ""


_COLUMNS = (
    _Column("count", lambda row, _: number(row.count)),
    _Column("time", _time(lambda row: row.seconds)),
    _Column("share", lambda row, total: f"{100 * row.seconds / total:.1f}%" if total and row.count else ""),
    _Column("Python", lambda row, _: f"~{duration(row.python)}" if row.python else ""),
    _Column("forward", _time(lambda row: row.forward.seconds)),
    _Column("count", lambda row, _: number(row.forward.count), 120),
    _Column("sweep", _time(lambda row: row.sweep.seconds)),
    _Column("count", lambda row, _: number(row.sweep.count), 120),
    _Column("FLOPs", lambda row, _: number(row.flops)),
    _Column("FLOP/s", _rate, 110),
    _Column("bytes", lambda row, _: size(row.nbytes)),
    _Column("compiling", lambda row, _: duration(row.compiling) if row.compiling else "", 130),
)
_PROGRAMS = (
    _Column("runs", lambda row, _: number(row.runs)),
    _Column("entries", lambda row, _: number(row.entries)),
    _Column("time", lambda row, _: duration(row.seconds)),
    _Column("share", lambda row, total: f"{100 * row.seconds / total:.1f}%" if total else ""),
    _Column("a run", lambda row, _: duration(row.seconds / row.runs) if row.runs else ""),
    _Column("interpreted", lambda row, _: number(row.interpreted) if row.interpreted else "", 90),
    _Column("compiling", lambda row, _: duration(row.compiling) if row.compiling else ""),
    _Column("FLOPs", lambda row, _: number(row.flops), 90),
    _Column("FLOP/s", _rate, 110),
    _Column("bytes", lambda row, _: size(row.nbytes), 120),
)

_LEFT_OUT = ("bytes", "FLOPs", "share")  # where there is no room for names, in this order
_NAME = 20  # characters that a name has at least


def table(by: str, rows: Sequence[Row], total: float, *, width: int, color: bool, most: int) -> Iterator[str]:
    """Yield the lines of a table of rows; ``total`` is the time of all of them."""
    shown = rows[:most]
    columns = [c for c in (_PROGRAMS if by == "program" else _COLUMNS) if width >= c.since and any(c.text(row, total) for row in shown)]
    names = short_files([row.where[0] for row in shown if row.where is not None])
    first = [(by == "line" and named(row.where, names)) or row.name for row in shown]
    wanted = max([len(by), *map(len, first)])
    for left_out in (None, *_LEFT_OUT):
        columns = [c for c in columns if c.head != left_out]
        cells = [[c.text(row, total) for c in columns] for row in shown]
        widths = [max(len(c.head), *(len(line[i]) for line in cells)) for i, c in enumerate(columns)]
        room = width - sum(widths) - 2 * len(widths)
        if room >= min(wanted, _NAME):
            break
    source = by == "line" and room - wanted > 17
    name = min(wanted, max(room, 8))
    yield painted("  ".join([by.ljust(name), *[c.head.rjust(w) for c, w in zip(columns, widths, strict=True)]]).rstrip(), _HEAD, color)
    for row, said, line in zip(shown, first, cells, strict=True):
        texts = [aligned(said, name, _FIRST, color, end=by != "line"), *[c.rjust(w) for c, w in zip(line, widths, strict=True)]]
        code = painted("  " + clipped(source_of(row.where), room - name - 2), _QUIET, color) if source and row.where is not None else ""
        yield f"{'  '.join(texts)}{code}".rstrip()
    if len(rows) > most:
        left = rows[most:]
        rest = f"... {len(left)} more: {duration(sum(row.seconds for row in left))}"
        yield painted(clipped(rest, width), _QUIET, color)


def parts(said: Mapping[str, float], total: float, *, width: int, color: bool) -> Iterator[str]:
    """Yield the lines that say where the time went."""
    bar = max(min(_BAR, width - 36), 0)
    for name, value in said.items():
        share = value / total if total else 0.0
        drawn = "█" * round(bar * share)
        text = f"  {name:<10} {duration(value):>9}  {100 * share:5.1f}%  "
        yield (text + painted(drawn, _COLOURS[name], color)).rstrip()
