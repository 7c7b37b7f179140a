"""Ledgers: what a profile notes of one thread, and the meter that notes it.

What takes time are spans, which end child first where one holds another: a program that is compiled when it is called, a wait for the
compiler in it.  A span's own time is what it takes but for the spans in it; own times add up to the time that all take, and what is left
of the thread's time is Python's.  So the parts sum to the whole by construction.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax

from tape import jaxapi
from tape.accounts.records import Line
from tape.graph.meters import METERS
from tape.graph.scope import LOCAL
from tape.graph.segment import Segment
from tape.graph.trie import State
from tape.insight import profiling_samples
from tape.insight.profiling_lines import Known, Lines, Seen
from tape.insight.profiling_parts import Runs, Site, let_go, site
from tape.insight.profiling_peak import Peaks
from tape.insight.profiling_samples import Samples
from tape.programs.execution import Program
from tape.programs.interpretation import needed_entries, one_by_one
from tape.statistics import STATS
from tape.terminal import named

clock = time.perf_counter
PARTS = ("programs", "compiling", "waiting")  # what takes time but Python
EVENTS = 100_000  # that a trace holds
_STRUCTURES = 2048  # that a thread keeps apart
_TOGETHER = 1024  # spans that one which ends later may hold
_COMPILING = "/jax/core/compile/"


class Event(NamedTuple):
    """One span, for a trace: of which kind, seconds from the beginning of the profile, and what ran or what it is called."""

    kind: str
    start: float
    seconds: float
    runs: Runs | None
    name: str


class Ledger:
    """What a profile notes of one thread."""

    def __init__(
        self, began: float, behind: Callable[[float, str], None], *, wait: bool, entries: bool, memory: bool, python: bool
    ) -> None:
        self.thread = threading.current_thread().name
        self.ident = threading.get_ident()
        self.began = began  # when the profile was opened first
        self._behind = behind
        self.wait = wait
        self.entries = entries
        self.peaks = Peaks() if memory else None
        self.samples = Samples(self.ident) if python else None
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.runs: dict[Any, Runs] = {}
        self.rest = Runs("rest", 0, "others", None)
        self.events: list[Event] = []
        self.dropped = 0
        self.open: list[tuple[float, Runs | None]] = []  # what runs now, the innermost last: since when, and what
        self.intervals: list[tuple[float, float]] = []  # when the thread was measured
        self.since: float | None = None
        self._done: list[tuple[float, float]] = []  # spans that no other one holds so far

    @property
    def wall(self) -> float:
        """Seconds for which the thread was measured."""
        since = self.since
        return sum(end - start for start, end in self.intervals) + (0.0 if since is None else clock() - since)

    def start(self) -> None:
        """Begin to measure."""
        self._done.clear()
        BEHIND.append(self._behind)
        if self.samples is not None:
            profiling_samples.begin(self.samples)
        self.since = clock()

    def stop(self) -> None:
        """Measure no more."""
        since, self.since = self.since, None
        if since is not None:
            if self.samples is not None:
                profiling_samples.end(self.samples)
            if self.peaks is not None:
                self.peaks.end()
            self.intervals.append((since, clock()))
            self.open.clear()
            BEHIND.remove(self._behind)

    def span(self, kind: str, start: float, end: float, runs: Runs | None, name: str = "") -> float:
        """Note that something ran; return the time that it took itself."""
        floor = self.open[-1][0] if self.open else self.since if self.since is not None else end
        start = min(max(start, floor), end)  # the clock of who tells of it may be another one
        if self.samples is not None:
            self.samples.drop_since(start)
        done, inside = self._done, 0.0
        while done and done[-1][1] > start:
            first, last = done.pop()
            if first < start:
                done.append((first, last))
                start = last
                break
            inside += last - first
        done.append((start, end))
        if len(done) > _TOGETHER:
            del done[: _TOGETHER // 2]
        own = end - start - inside
        self.seconds[kind] += own
        if len(self.events) < EVENTS:
            self.events.append(Event(kind, start - self.began, end - start, runs, name))
        else:
            self.dropped += 1
        return own

    def compiled(self, seconds: float, name: str) -> None:
        """Note that this thread traced or compiled something until now."""
        end = clock()
        own = self.span("compiling", end - seconds, end, None, name)
        if self.open and self.open[-1][1] is not None:
            self.open[-1][1].compiling += own

    def runs_of(self, kind: str, what: Any, called: str, site: Sequence[Line], *key: Hashable, compiled: bool = False) -> Runs:
        """Return what is noted of something that runs, by the ``key`` of what it is."""
        runs = self.runs.get((kind, *key))
        if runs is None:
            if len(self.runs) >= _STRUCTURES:
                self._fold()
            line = site[0] if site else None
            name = called if line is None else f"{called} ({named(line)})"
            runs = self.runs[kind, *key] = Runs(kind, what, name, line, compiled)
        return runs

    def _fold(self) -> None:
        """Let go of the structures met first: of programs that are never the same again, only ops and lines are told apart."""
        running = {id(runs) for _, runs in self.open}
        oldest = [key for key, runs in list(self.runs.items())[: _STRUCTURES // 2] if id(runs) not in running]
        let_go(self.rest, [self.runs.pop(key) for key in oldest])
        if self.peaks is not None:
            self.peaks.forget()


class ThreadMeter:
    """Notes what a thread runs for the profiles that are open in it, the outermost first."""

    __slots__ = ("ledgers", "lines")

    def __init__(self, ledgers: tuple[Ledger, ...], lines: Lines) -> None:
        self.ledgers = ledgers
        self.lines = lines

    def measure(self, kind: str, what: Any, call: Callable[..., Any], *args: Any) -> Any:
        """Return ``call(*args)``, and note how long that took (:class:`tape.graph.meters.Meter`)."""
        if kind == "wait":
            return self._timed([None for _ in self.ledgers], call, *args)
        where = site()
        if kind == "flush":
            return self._flush(what, where, call, *args)
        if kind == "entry":
            return self._timed([self._entry(ledger, what, where, None) for ledger in self.ledgers], call, *args)
        step = what.step
        for peaks in self._peaks():
            peaks.step(step, where[0] if where else None)
        every = [ledger.runs_of("step", step, step.name, where, id(step), where, compiled=True) for ledger in self.ledgers]
        return self._timed(every, call, *args)

    def _peaks(self) -> list[Peaks]:
        return [ledger.peaks for ledger in self.ledgers if ledger.peaks is not None]

    def _flush(self, what: tuple[Segment, Program, str], where: Site, call: Callable[..., Any], state: State, leaves: Sequence[Any]) -> Any:
        segment, program, reason = what
        alone = any(ledger.entries for ledger in self.ledgers)
        known = self.lines.known(segment, program.keep, where, always=alone)
        for peaks in self._peaks():
            peaks.flush(segment, program, known, where[0] if where else None)
        if alone:
            return self._one_by_one(program, where, known, state, leaves)
        interpreted = STATS.interpreted
        compiled = program.compiled
        key = (id(state), program.keep, where, compiled, id(known))
        every = [ledger.runs_of("flush", (state, program.keep), reason, where, *key, compiled=compiled) for ledger in self.ledgers]
        results = self._timed(every, call, state, leaves)
        for runs in every:
            runs.known = known
            runs.compiled |= STATS.interpreted == interpreted  # it was bought just now
        return results

    def _one_by_one(self, program: Program, where: Site, known: Known, state: State, leaves: Sequence[Any]) -> Any:
        """Run the entries of a structure one by one, and wait for each."""
        entries, slots = needed_entries(state, program.keep)

        def executable(entry: Any) -> Callable[..., Any]:
            run = entry.kernel.executable
            every = [self._entry(ledger, entry, where, known) for ledger in self.ledgers]
            return lambda *operands: self._timed(every, run, *operands)

        if jaxapi.in_trace():
            with jaxapi.ensure_compile_time_eval():
                return one_by_one(entries, slots, program.keep, leaves, executable)
        STATS.executed += len(entries)
        STATS.interpreted += len(entries)
        return one_by_one(entries, slots, program.keep, leaves, executable)

    def _entry(self, ledger: Ledger, entry: Any, where: Site, known: Known | None) -> Runs:
        """Return what is noted of an entry that runs alone."""
        seen = None if known is None or not entry.slots else known.get(entry.slots[0])
        if known is None and where:  # it runs where it is recorded
            seen = Seen(where[0], LOCAL.scope.writing)
        key = (id(entry.kernel), entry.op and id(entry.op), seen or entry.where)
        runs = ledger.runs_of("entry", entry, entry.kernel.name, where, *key)
        runs.known = None if seen is None else {entry.slots[0] if entry.slots else -1: seen}
        return runs

    def _timed(self, every: Sequence[Runs | None], call: Callable[..., Any], *args: Any) -> Any:
        """Return ``call(*args)``, in the time of some runs; of None it is a wait."""
        pairs = list(zip(self.ledgers, every, strict=True))
        start = clock()
        for ledger, runs in pairs:
            ledger.open.append((start, runs))
        first, finished = every[0], False
        try:
            if first is None:
                return call(*args)
            with jax.profiler.TraceAnnotation(first.name):  # so that JAX's own profiler shows it too
                results = call(*args)
            traced = bool(results) and any(isinstance(r, jaxapi.Tracer) for r in results)
            if not traced and any(ledger.wait for ledger in self.ledgers):
                jax.block_until_ready(results)
            finished = not traced
            return results
        finally:
            end = clock()
            for ledger, runs in pairs:
                if ledger.open:
                    ledger.open.pop()
                    if runs is None:
                        ledger.span("waiting", start, end, None, "the compiler")
                    elif finished:
                        runs.seconds += ledger.span("programs", start, end, runs)
                        runs.count += 1


def heard(event: str, duration_secs: float, **kwargs: str | int) -> None:
    """Take what JAX tells of having traced, lowered or compiled something."""
    if not event.startswith(_COMPILING):
        return
    meter = METERS.get(threading.get_ident())
    if isinstance(meter, ThreadMeter):
        what = f"{event[len(_COMPILING) :].removesuffix('_duration')} {kwargs.get('fun_name', '')}".rstrip()
        for ledger in meter.ledgers:
            ledger.compiled(duration_secs, what)
    elif threading.current_thread().name == "tape-compile":
        for behind in dict.fromkeys(BEHIND):  # several threads may be measured by one profile
            behind(duration_secs, str(kwargs.get("fun_name", "")))


BEHIND: list[Callable[[float, str], None]] = []  # of the ledgers that measure now: who is told of what the background compiles
