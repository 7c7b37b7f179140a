"""Runs: what ran, from where, how often and for how long; and their parts, with what each does and is predicted to take of its time."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from tape.graph.lines import is_foreign
from tape.graph.trie import SWEEP
from tape.insight.profiling_samples import is_standard
from tape.ops.costs import predicted
from tape.ops.linear import held_by
from tape.ops.work import bytes_moved, flops, flops_of
from tape.programs.interpretation import needed_entries
from tape.programs.naming import named_by
from tape.sweeps.plan import ADD
from tape.terminal import named

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import FrameType

    from tape.accounts.records import Line
    from tape.insight.profiling_lines import Known
    from tape.jaxapi import Jaxpr


_FRAMES = 6  # of the user's, by which places are told apart


class Site(NamedTuple):
    """Where something ran: lines of the user's, the innermost first."""

    lines: tuple[Line, ...]

    @property
    def line(self) -> Line | None:
        """The innermost line."""
        return self.lines[0] if self.lines else None


def site() -> Site:
    """Return where the user is."""
    frames: list[Line] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and len(frames) < _FRAMES:
        file = frame.f_code.co_filename
        if is_foreign(file) and not is_standard(file):
            frames.append((file, frame.f_lineno))
        frame = frame.f_back
    return Site(tuple(frames))


class Runs:
    """The runs of one thing: a structure of pending entries, a single entry, or a step of ``tape.jit``.

    Attributes:
        kind: ``"flush"``, ``"entry"`` or ``"step"``.
        what: (structure, slots that are kept), the entry, or the traced step; None where that was let go.
        reason: why it ran: ``"look"``, ``"backward"`` ...
        site: from where.
        compiled: whether it ran as one program.
        count: how often it ran.
        name: what it is called: why it ran, or what it is, and the line.
        seconds: how long, without what follows.
        compiling: seconds that this thread compiled for it.
        known: the lines of its entries, as they were when they were recorded this time; empty or None where nobody saw that.

    """

    __slots__ = ("compiled", "compiling", "count", "failed", "kind", "known", "name", "parts", "reason", "seconds", "site", "what")

    def __init__(self, kind: str, what: Any, reason: str, site: Site, *, compiled: bool) -> None:
        self.kind, self.what, self.reason, self.site, self.compiled = kind, what, reason, site, compiled
        called: str = what.name if kind == "step" else what.kernel.name if kind == "entry" else reason
        self.name = called if site.line is None else f"{called} ({named(site.line)})"
        self.count = self.failed = 0
        self.seconds = self.compiling = 0.0
        self.known: Known | None = None
        self.parts: tuple[Any, list[Any]] | None = None  # its entries (tape.insight.profiling_parts), and for what they were found out


_LEAST = 1e-9  # seconds that the smallest part of a program is taken for


class Share(NamedTuple):
    """A part of what runs at once: its op and line, whether a sweep wrote it, and what it does and is predicted to take."""

    op: str
    where: Line | None
    swept: bool
    weight: float
    flops: float
    nbytes: int
    entries: int = 1
    compiling: float = 1.0  # its share of what it takes to compile the whole


def parts_of(runs: Runs) -> list[Share]:
    """Return the entries that one run runs."""
    if runs.kind == "rest" or runs.what is None:
        return [] if runs.parts is None else runs.parts[1]
    key = runs.compiled, bool(runs.known)
    if runs.parts is None or runs.parts[0] != key:
        runs.parts = key, _found_out(runs)
    return runs.parts[1]


def shared(runs: Runs, parts: Sequence[Share]) -> Iterator[tuple[Share, float, float]]:
    """Yield the parts of some runs, each with its seconds of all that these took to run, and to compile."""
    run, compiled = sum(p.weight for p in parts) or 1.0, sum(p.compiling for p in parts) or 1.0
    for p in parts:
        yield p, runs.seconds * p.weight / run, runs.compiling * p.compiling / compiled


def _found_out(runs: Runs) -> list[Share]:
    if runs.kind == "step":
        return list(_inside(runs.what.jaxpr.jaxpr, runs.what.name, runs.site.line, swept=False))
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
        where = runs.site.line
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
    totals: dict[tuple[str, Line | None, bool], list[Any]] = {}
    met: Counter[tuple[str, Line | None, bool]] = Counter()

    def walk(eqns: Iterable[Any], around: tuple[str, Line | None, bool], times: float) -> None:
        before = None
        for eqn in eqns:
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
                    walk(inner.eqns, key, times)
                continue
            total = totals.setdefault(key, [0.0, 0.0, 0, 0.0])
            part, run = predicted(eqn)
            total[0] += times * run
            total[1] += times * flops(eqn)
            total[2] += int(times) * bytes_moved([v.aval for v in (*eqn.invars, *eqn.outvars)])
            total[3] += part

    walk(jaxpr.eqns, (name, where, swept), 1.0)
    if not totals:
        yield Share(name, where, swept, _LEAST, 0.0, 0)
    for (op, line, of_sweep), (run, counted, moved, part) in totals.items():
        yield Share(op, line, of_sweep, max(run, _LEAST), counted, moved, met[op, line, of_sweep] or 1, max(part, _LEAST))


class Rest:
    """What is noted of structures that were let go, by op and line."""

    __slots__ = ("_runs", "_totals")

    def __init__(self) -> None:
        self._runs = Runs("rest", 0, "others", Site(()), compiled=False)
        self._totals: dict[tuple[str, Line | None, bool], list[Any]] = {}

    def add(self, runs: Runs, parts: Sequence[Share]) -> None:
        """Take over what is noted of some runs."""
        whole = self._runs
        whole.what += runs.count
        whole.count = 1  # of what all of them come to
        whole.seconds += runs.seconds
        whole.compiling += runs.compiling
        for p, seconds, compiling in shared(runs, parts):
            known = self._totals.setdefault((p.op, p.where, p.swept), [0.0, 0.0, 0, 0, 0.0])
            known[0] += seconds
            known[1] += p.flops * runs.count
            known[2] += p.nbytes * runs.count
            known[3] += p.entries * runs.count
            known[4] += compiling

    def runs(self) -> list[Runs]:
        """Return them as one run, if there are any."""
        parts = [Share(*key, *known) for key, known in self._totals.items()]
        self._runs.parts = None, parts
        return [self._runs] if parts else []
