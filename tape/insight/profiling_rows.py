"""Rows: what a profile noted, by op, by line, by scope and by program.

A compiled program has one time.  That is shared out to its entries in proportion to what each is predicted to take as a part of it
(:mod:`tape.ops.costs`), and such rows say that they are ``predicted``; an entry that ran alone has its own time.  Either way the times of
the rows sum to the time that programs took.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tape.insight.profiling_parts import Part, shared
from tape.insight.scopes import scope_of_line
from tape.terminal import named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tape.accounts.records import Line
    from tape.insight.profiling_parts import Runs


@dataclass(frozen=True, slots=True)
class Side:
    """The forward entries of a row, or those of sweeps.

    Attributes:
        count: how many entries ran.
        seconds: for how long.
        flops: floating-point operations, those of all runs.
        nbytes: bytes read and written, had each entry its inputs and results in memory.

    """

    count: int = 0
    seconds: float = 0.0
    flops: float = 0.0
    nbytes: int = 0

    def __add__(self, other: Side) -> Side:
        return Side(self.count + other.count, self.seconds + other.seconds, self.flops + other.flops, self.nbytes + other.nbytes)


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
    every: Iterable[tuple[Runs, Sequence[Part]]], key: Callable[[Part], tuple[str, Line | None]], python: Mapping[Line, float] | None = None
) -> list[Row]:
    """Return a row for each value of ``key`` of the parts, and of lines that took ``python`` seconds, the one that took longest first."""
    found: dict[tuple[str, Line | None], list[Any]] = {}
    for runs, parts in every:
        for part, seconds, compiling in shared(runs, parts):
            sides = found.setdefault(key(part), [Side(), Side(), 0.0, False])
            sides[part.swept] += Side(part.entries * runs.count, seconds, part.flops * runs.count, part.nbytes * runs.count)
            sides[2] += compiling
            sides[3] = sides[3] or len(parts) > 1
    sampled: dict[tuple[str, Line | None], float] = {}
    for line, seconds in (python or {}).items():
        about = key(Part("", line, swept=False, weight=0.0, flops=0.0, nbytes=0))
        sampled[about] = sampled.get(about, 0.0) + seconds
        found.setdefault(about, [Side(), Side(), 0.0, False])
    rows = [
        Row(name, where, sides[0], sides[1], sides[2], sides[3], python=sampled.get((name, where), 0.0))
        for (name, where), sides in found.items()
    ]
    return sorted(rows, key=lambda row: (-row.seconds - row.python, -row.count, row.name))


def of_programs(every: Iterable[tuple[Runs, Sequence[Part]]]) -> list[Row]:
    """Return a row for each thing that ran."""
    found: dict[tuple[Any, ...], Row] = {}
    for runs, parts in every:
        name = runs.name
        sides = [Side(), Side()]
        for part, seconds, _ in shared(runs, parts):
            sides[part.swept] += Side(part.entries * runs.count, seconds, part.flops * runs.count, part.nbytes * runs.count)
        forward, sweep = sides
        key = (runs.kind, runs.what[0] if runs.kind == "flush" else runs.what, name, runs.site.line)
        old = found.get(key)
        times = runs.what if runs.kind == "rest" else runs.count
        interpreted = 0 if runs.compiled else times
        if old is not None:
            forward, sweep = forward + old.forward, sweep + old.sweep
        mixed = bool(forward.count and sweep.count)
        found[key] = Row(
            name,
            runs.site.line,
            forward,
            sweep,
            runs.compiling + (old.compiling if old else 0.0),
            mixed,
            times + (old.runs if old else 0),
            interpreted + (old.interpreted if old else 0),
            len(parts),
        )
    return sorted(found.values(), key=lambda row: (-row.seconds, row.name))


def by_op(part: Part) -> tuple[str, Line | None]:
    """Return the op."""
    return part.op, None


def by_line(part: Part) -> tuple[str, Line | None]:
    """Return the line."""
    return ("elsewhere", None) if part.where is None else (named(part.where), part.where)


def by_scope(kind: str) -> Callable[[Part], tuple[str, Line | None]]:
    """Return what gives the function, class or module of a part; a module of another library is the one that it is called by."""

    def key(part: Part) -> tuple[str, Line | None]:
        if part.op[:1].isupper():  # a lifted module has the name of its class
            return part.op, None
        scope = getattr(part.where, "scope", "") or scope_of_line(part.where, kind)
        return scope or (f"({named(part.where).rsplit(':', 1)[0]})" if part.where is not None else "elsewhere"), None

    return key
