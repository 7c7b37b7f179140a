"""The peak of the memory that the tape takes: when it was reached, and what made it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tape.accounts.records import Line
from tape.graph.length import bytes_of
from tape.graph.segment import Segment
from tape.graph.wengert import last_uses
from tape.insight.profiling_lines import Known
from tape.jaxapi import DropVar, Jaxpr, Literal
from tape.jitting.tracing import TracedStep
from tape.programs.execution import Program
from tape.programs.interpretation import needed_entries
from tape.programs.naming import named_by
from tape.statistics import STATS
from tape.terminal import named, size

_SHARE = 0.1  # of the time that passes may go into looking, where the tape has many segments
_FEW = 64


@dataclass(frozen=True, slots=True)
class Alive:
    """What an op made at a line, and is alive at the peak.

    Attributes:
        op: the op.
        where: the line.
        count: how many values.
        nbytes: their size in bytes.

    """

    op: str
    where: Line | None
    count: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The most bytes that the tape held at one time.

    Attributes:
        nbytes: ``held`` and ``made`` together.
        held: bytes that the tape kept when a program began: its inputs, and residuals (``tape.stats().live_bytes``).
        made: bytes of results that are alive in the program at its worst entry, as if its entries ran one by one: XLA may need fewer.
        op: that entry's op; "" where nothing ran.
        where: its line.
        site: the line that made the program run.
        alive: what these results are, the most bytes first.

    """

    nbytes: int = 0
    held: int = 0
    made: int = 0
    op: str = ""
    where: Line | None = None
    site: Line | None = None
    alive: tuple[Alive, ...] = ()

    def __str__(self) -> str:
        if not self.op:
            return f"{size(self.nbytes)} kept by the tape"
        said = f"{size(self.nbytes)}: {size(self.held)} kept by the tape, {size(self.made)} made by programs, at {self.op}"
        return said if self.where is None else f"{said} ({named(self.where)})"


class _Result(NamedTuple):
    """What an entry gives: the op and line by which it goes, its size, and its slot, -1 where it has none."""

    op: str
    where: Line | None
    nbytes: int
    slot: int = -1

    def place(self, known: Known) -> tuple[str, Line | None]:
        """Return the op, and its line as it was this time, where that is known."""
        seen = known.get(self.slot)
        return self.op, self.where if seen is None or seen.where is None else seen.where


_Moment = tuple[int, _Result, tuple[_Result, ...]]  # bytes, the first result of the entry then, and which results are alive


class Peaks:
    """Notes the peak of what the tape holds, for the programs that one thread runs."""

    def __init__(self) -> None:
        self.peak = Peak()  # so far
        self._worst: dict[Any, tuple[Any, _Moment]] = {}  # of programs, with what the key is about, so that its id stays its own
        self._began = time.perf_counter()
        self._spent = 0.0

    def flush(self, segment: Segment, program: Program, known: Known, site: Line | None) -> None:
        """Look before a program of pending entries runs."""
        state, keep = segment.state, program.keep
        self._look(state, (id(state), keep), lambda: _of_entries(needed_entries(state, keep)[0], keep), known, site)

    def step(self, step: TracedStep, site: Line | None) -> None:
        """Look before a step of ``tape.jit`` runs."""
        self._look(step, id(step), lambda: _of_jaxpr(step.jaxpr.jaxpr, step.name, site), {}, site)

    def forget(self) -> None:
        """Let go of the structures that were looked at."""
        self._worst.clear()

    def end(self) -> None:
        """Look when the block is left."""
        held = STATS.live_bytes
        if held > self.peak.nbytes:
            self.peak = Peak(held, held)

    def _look(self, what: object, key: object, inside: Callable[[], _Moment], known: Known, site: Line | None) -> None:
        layout = self._worst.get(key)
        if layout is None:
            layout = self._worst[key] = what, inside()
        start = time.perf_counter()
        if len(STATS.segments) > _FEW and self._spent > _SHARE * (start - self._began):
            return
        held, (made, at, results) = STATS.live_bytes, layout[1]
        if held + made > self.peak.nbytes:
            counts, sizes = Counter([result.place(known) for result in results]), Counter[tuple[str, "Line | None"]]()
            for result in results:
                sizes[result.place(known)] += result.nbytes
            alive = sorted([Alive(*place, count, sizes[place]) for place, count in counts.items()], key=lambda a: -a.nbytes)
            self.peak = Peak(held + made, held, made, *at.place(known), site, tuple(alive))
        self._spent += time.perf_counter() - start


def _of_entries(entries: Sequence[Any], keep: Sequence[int]) -> _Moment:
    """Return the worst moment of entries that run one by one."""
    rows = []
    for e in entries:
        op, given = (e.kernel if e.op is None else e.op).name, zip(e.slots, e.kernel.out_avals, strict=True)
        rows.append(({slot: _Result(op, e.where, bytes_of(aval), slot) for slot, aval in given}, e.inputs))
    return _worst(rows, {**last_uses(entries), **dict.fromkeys(keep, len(entries))})


def _of_jaxpr(jaxpr: Jaxpr, name: str, site: Line | None) -> _Moment:
    """Return the worst moment of equations that run one by one."""
    rows = []
    last: dict[Any, int] = {}
    for i, eqn in enumerate(jaxpr.eqns):
        read = [v for v in eqn.invars if not isinstance(v, Literal)]
        last.update(dict.fromkeys(read, i))
        said = named_by(eqn.source_info.name_stack) or (name, site)
        rows.append(({v: _Result(*said, bytes_of(v.aval)) for v in eqn.outvars if not isinstance(v, DropVar)}, read))
    return _worst(rows, {**last, **{v: len(rows) for v in jaxpr.outvars if not isinstance(v, Literal)}})


def _worst(rows: Iterable[tuple[dict[Any, _Result], Iterable[Any]]], last: dict[Any, int]) -> _Moment:
    """Return the worst moment of rows: results, and what they read; ``last`` tells which row reads something last."""
    alive: dict[Any, _Result] = {}
    worst: _Moment = 0, _Result("", None, 0), ()
    total = 0
    for i, (results, read) in enumerate(rows):
        alive.update(results)
        total += sum(result.nbytes for result in results.values())
        if total > worst[0]:
            worst = total, next(iter(results.values())), tuple(alive.values())
        for value in {*read, *results}:
            if last.get(value, i) <= i and value in alive:
                total -= alive.pop(value).nbytes
    return worst
