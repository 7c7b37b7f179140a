"""The peak of the memory that the tape takes: when it was reached, and what made it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tape.graph.length import bytes_of
from tape.graph.wengert import last_uses
from tape.jaxapi import DropVar, Literal
from tape.programs.interpretation import needed_entries
from tape.programs.naming import named_by
from tape.statistics import STATS
from tape.terminal import named, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tape.accounts.records import Line
    from tape.graph.segment import Segment
    from tape.insight.profiling_lines import Known
    from tape.jaxapi import Jaxpr
    from tape.jitting.tracing import TracedStep
    from tape.programs.execution import Program
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


class _Inside(NamedTuple):
    """The worst moment of a program: bytes, and which of its results are alive then, as (op, line, bytes)."""

    nbytes: int
    op: str
    where: Line | None
    slot: int
    alive: tuple[tuple[int, str, Line | None, int], ...]


class Peaks:
    """Notes the peak of what the tape holds, for the programs that one thread runs."""

    def __init__(self) -> None:
        self.peak = Peak()  # so far
        self._inside: dict[Any, tuple[Any, _Inside]] = {}  # with what the key is about, so that its id stays its own
        self._began = time.perf_counter()
        self._spent = 0.0

    def flush(self, segment: Segment, program: Program, known: Known, site: Line | None) -> None:
        """Look before a program of pending entries runs."""
        key = (id(segment.state), program.keep)
        layout = self._inside.get(key)
        if layout is None:
            layout = self._inside[key] = segment.state, _of_entries(needed_entries(segment.state, program.keep)[0], program.keep)
        self._look(layout[1], known, site)

    def step(self, step: TracedStep, site: Line | None) -> None:
        """Look before a step of ``tape.jit`` runs."""
        layout = self._inside.get(id(step))
        if layout is None:
            layout = self._inside[id(step)] = step, _of_jaxpr(step.jaxpr.jaxpr, step.name, site)
        self._look(layout[1], {}, site)

    def forget(self) -> None:
        """Let go of the structures that were looked at."""
        self._inside.clear()

    def end(self) -> None:
        """Look when the block is left."""
        held = STATS.live_bytes
        if held > self.peak.nbytes:
            self.peak = Peak(held, held)

    def _look(self, inside: _Inside, known: Known, site: Line | None) -> None:
        start = time.perf_counter()
        if len(STATS.segments) > _FEW and self._spent > _SHARE * (start - self._began):
            return
        held = STATS.live_bytes
        if held + inside.nbytes > self.peak.nbytes:
            rows: dict[tuple[str, Line | None], list[int]] = {}
            for slot, op, where, nbytes in inside.alive:
                row = rows.setdefault((op, _line(known, slot, where)), [0, 0])
                row[0] += 1
                row[1] += nbytes
            alive = sorted((Alive(op, at, *row) for (op, at), row in rows.items()), key=lambda a: -a.nbytes)
            where = _line(known, inside.slot, inside.where)
            self.peak = Peak(held + inside.nbytes, held, inside.nbytes, inside.op, where, site, tuple(alive))
        self._spent += time.perf_counter() - start


def _line(known: Known, slot: int, where: Line | None) -> Line | None:
    seen = known.get(slot)
    return where if seen is None or seen.where is None else seen.where


def _of_entries(entries: Sequence[Any], keep: Sequence[int]) -> _Inside:
    """Return the worst moment of entries that run one by one."""
    rows = [
        ((e.kernel if e.op is None else e.op).name, e.where, list(zip(e.slots, e.slots, e.kernel.out_avals, strict=True)), e.inputs)
        for e in entries
    ]
    return _worst(rows, {**last_uses(entries), **dict.fromkeys(keep, len(entries))})


def _of_jaxpr(jaxpr: Jaxpr, name: str, site: Line | None) -> _Inside:
    """Return the worst moment of equations that run one by one."""
    rows = []
    last: dict[Any, int] = {}
    for i, eqn in enumerate(jaxpr.eqns):
        read = [v for v in eqn.invars if not isinstance(v, Literal)]
        last.update(dict.fromkeys(read, i))
        op, where = named_by(eqn.source_info.name_stack) or (name, site)
        rows.append((op, where, [(v, -1, v.aval) for v in eqn.outvars if not isinstance(v, DropVar)], read))
    return _worst(rows, {**last, **{v: len(rows) for v in jaxpr.outvars if not isinstance(v, Literal)}})


def _worst(rows: Iterable[tuple[str, Line | None, Sequence[tuple[Any, int, Any]], Iterable[Any]]], last: dict[Any, int]) -> _Inside:
    """Return the worst moment of rows: op, line, results (with slots and avals), and what they read; ``last`` tells where it is last."""
    alive: dict[Any, tuple[int, str, Line | None, int]] = {}
    worst = _Inside(0, "", None, -1, ())
    total = 0
    for i, (op, where, results, read) in enumerate(rows):
        for result, slot, aval in results:
            alive[result] = (slot, op, where, bytes_of(aval))
            total += alive[result][3]
        if total > worst.nbytes:
            worst = _Inside(total, op, where, results[0][1] if results else -1, tuple(alive.values()))
        for value in dict.fromkeys((*read, *[result for result, *_ in results])):
            if last.get(value, i) <= i and value in alive:
                total -= alive.pop(value)[3]
    return worst
