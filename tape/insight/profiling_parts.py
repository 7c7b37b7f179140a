"""Runs: what ran, from where, how often and for how long; and their parts, with what each does and is predicted to take of its time."""

from __future__ import annotations

import operator
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

from tape.accounts.records import Line
from tape.graph.lines import is_foreign
from tape.graph.trie import SWEEP
from tape.insight.profiling_lines import Known
from tape.insight.profiling_samples import is_standard
from tape.jaxapi import Jaxpr
from tape.ops.costs import predicted
from tape.ops.jaxprs import held_by
from tape.ops.work import bytes_moved, flops, flops_of
from tape.programs.interpretation import needed_entries
from tape.programs.naming import named_by
from tape.sweeps.plan import ADD

_FRAMES = 6  # of the user's, by which places are told apart


Site = tuple["Line", ...]


def site() -> Site:
    """Return the lines at which the user is, the innermost first."""
    frames: list[Line] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and len(frames) < _FRAMES:
        file = frame.f_code.co_filename
        if is_foreign(file) and not is_standard(file):
            frames.append((file, frame.f_lineno))
        frame = frame.f_back
    return tuple(frames)


@dataclass(slots=True, eq=False)
class Runs:
    """The runs of one thing: a structure of pending entries, a single entry, or a step of ``tape.jit``.

    Attributes:
        kind: ``"flush"``, ``"entry"`` or ``"step"``; ``"rest"`` for those of which only ops and lines are told apart.
        what: (structure, slots that are kept), the entry, or the traced step; of the rest, how many runs; None where that was let go.
        name: what it is called: why it ran, or what it is, and the line.
        line: the user's, from which it ran.
        compiled: whether it ran as one program.
        count: how often it ran.
        seconds: how long, without what follows.
        compiling: seconds that this thread compiled for it.
        known: the lines of its entries, as they were when they were recorded this time; empty or None where nobody saw that.
        parts: its entries, and for what they were found out.

    """

    kind: str
    what: Any
    name: str
    line: Line | None
    compiled: bool = False
    count: int = 0
    seconds: float = 0.0
    compiling: float = 0.0
    known: Known | None = None
    parts: tuple[Any, list[Share]] | None = None


_LEAST = 1e-9  # seconds that the smallest part of a program is taken for


class Share(NamedTuple):
    """A part of what runs at once: its op and line, whether a sweep wrote it, and what it does and is predicted to take."""

    op: str
    where: Line | None
    swept: bool
    weight: float = 0.0
    flops: float = 0.0
    nbytes: int = 0
    entries: int = 1
    compiling: float = 1.0  # its share of what it takes to compile the whole


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


def parts_of(runs: Runs) -> list[Share]:
    """Return the entries that one run runs."""
    if runs.kind == "rest" or runs.what is None:
        return [] if runs.parts is None else runs.parts[1]
    key = runs.compiled, bool(runs.known)
    if runs.parts is None or runs.parts[0] != key:
        runs.parts = key, _found_out(runs)
    return runs.parts[1]


def shared(runs: Runs) -> Iterator[tuple[Share, Side, float]]:
    """Yield the parts of some runs, each with what it did in all of them, and its seconds of what these took to compile."""
    parts, n = parts_of(runs), runs.count
    run, compiled = sum(p.weight for p in parts) or 1.0, sum(p.compiling for p in parts) or 1.0
    for p in parts:
        side = Side(p.entries * n, runs.seconds * p.weight / run, p.flops * n, p.nbytes * n)
        yield p, side, runs.compiling * p.compiling / compiled


def let_go(rest: Runs, gone: Sequence[Runs]) -> None:
    """Add some runs to the rest, of which only ops and lines are told apart."""
    each = [(p, s, compiling) for runs in (rest, *gone) for p, s, compiling in shared(runs)]
    rest.parts = None, _added_up([Share(*p[:3], s.seconds, s.flops, s.nbytes, s.count, compiling) for p, s, compiling in each])
    rest.count = 1  # of what all of them come to
    for runs in gone:
        rest.what += runs.count
        rest.seconds += runs.seconds
        rest.compiling += runs.compiling
        runs.what, runs.parts = None, (None, [])


def _added_up(shares: Iterable[Share]) -> list[Share]:
    """Return parts of which those of one op, line and side are one."""
    totals: dict[Any, Share] = {}
    for share in shares:
        known = totals.get(share[:3])
        totals[share[:3]] = share if known is None else Share(*share[:3], *map(operator.add, known[3:], share[3:]))
    return list(totals.values())


def _found_out(runs: Runs) -> list[Share]:
    if runs.kind == "step":
        return list(_inside(runs.what.jaxpr.jaxpr, runs.what.name, runs.line, swept=False))
    if runs.kind == "entry":
        return list(_of_entry(runs.what, runs, compiled=False))
    state, keep = runs.what
    entries, _ = needed_entries(state, keep)
    return [part for entry in entries for part in _of_entry(entry, runs, compiled=runs.compiled)]


def _of_entry(entry: Any, runs: Runs, *, compiled: bool) -> Iterator[Share]:
    kernel = entry.kernel
    seen = runs.known.get(entry.slots[0]) if runs.known and entry.slots else None
    name: str = (kernel if entry.op is None else entry.op).name
    where = entry.where if seen is None or seen.where is None else seen.where
    if seen is None and runs.known and entry.mode == SWEEP:  # a seed, or a sum of cotangents, which nobody sees recorded
        where = runs.line
    swept = seen.swept if seen is not None else entry.mode == SWEEP or not hasattr(entry.op, "kernel_of")
    if name.startswith("vjp_"):
        name, swept = name.removeprefix("vjp_"), True
    jaxpr = kernel.jaxpr.jaxpr
    if any(named_by(eqn.source_info.name_stack) for eqn in jaxpr.eqns):  # a step of tape.jit through which gradients flow
        yield from _inside(jaxpr, name, where, swept=swept)
        return
    weight = max(kernel.cost.work, _LEAST) if compiled else kernel.rent
    yield Share(name, where, swept, weight, flops_of(jaxpr), bytes_moved((*kernel.in_avals, *kernel.out_avals)), 1, kernel.cost.part)


def _inside(jaxpr: Jaxpr, name: str, where: Line | None, *, swept: bool) -> Iterator[Share]:
    """Return the entries that were traced to a jaxpr; what belongs to none is the whole's."""
    met: Counter[tuple[str, Line | None, bool]] = Counter()

    def walk(eqns: Iterable[Any], around: tuple[str, Line | None, bool]) -> Iterator[Share]:
        before = None
        for eqn in eqns:
            if eqn.primitive.name == "stop_gradient":  # of a value that leaves the tape: nothing runs
                continue
            said = named_by(eqn.source_info.name_stack)
            key = around
            if said is not None:
                op, line = said
                key = op.removeprefix("vjp_"), line, swept or op.startswith("vjp_") or op == ADD.name
            if key not in (before, around):
                met[key] += 1
            before = key
            held = held_by(eqn)
            if held and eqn.primitive.name in ("jit", "pjit", "closed_call", "core_call"):
                for inner in held:
                    yield from walk(inner.eqns, key)
                continue
            part, run = predicted(eqn)
            moved = bytes_moved([v.aval for v in (*eqn.invars, *eqn.outvars)])
            yield Share(*key, run, flops(eqn), moved, 0, part)

    for s in _added_up(walk(jaxpr.eqns, (name, where, swept))) or [Share(name, where, swept)]:
        yield s._replace(weight=max(s.weight, _LEAST), entries=met[s[:3]] or 1, compiling=max(s.compiling, _LEAST))
