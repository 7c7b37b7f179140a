"""A profile as files that other programs show: Chrome's trace events (Perfetto, ``chrome://tracing``) and Speedscope's format.

References: the Trace Event Format (Chromium project), complete events ``"X"`` and metadata ``"M"``; Speedscope's file format, evented
profiles (https://www.speedscope.app/file-format-schema.json).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tape.insight.profiling_meter import Ledger
from tape.insight.profiling_parts import Share, parts_of
from tape.terminal import named

_SLICES = 50_000  # of entries that a file shows
SCHEMA = "https://www.speedscope.app/file-format-schema.json"


class _Slice(NamedTuple):
    """A span with those in it: seconds from the beginning."""

    name: str
    kind: str
    start: float
    end: float
    where: tuple[str, int] | None
    args: dict[str, Any]


@dataclass
class Traced:
    """What a profile's files say."""

    _ledgers: Sequence[Ledger]
    _background: Sequence[tuple[float, float, str]]
    _left: int = _SLICES

    def chrome(self) -> dict[str, Any]:
        """Return Chrome's trace events."""
        pid = os.getpid()
        events: list[dict[str, Any]] = [{"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": "tape.profile"}}]
        for tid, (name, slices) in enumerate(self._threads(), 1):
            whose = {"pid": pid, "tid": tid}
            events.append({"name": "thread_name", "ph": "M", **whose, "args": {"name": name}})
            events.append({"name": "thread_sort_index", "ph": "M", **whose, "args": {"sort_index": tid}})
            for one, start, end in _apart(slices):
                args = one.args if one.where is None else {**one.args, "line": f"{one.where[0]}:{one.where[1]}"}
                event = {"name": one.name, "cat": one.kind, "ph": "X", "ts": start / 1000, "dur": (end - start) / 1000, **whose}
                events.append({**event, "args": args} if args else event)
        dropped = sum(ledger.dropped for ledger in self._ledgers)
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"exporter": "jax-tape", "events_left_out": str(dropped)}}

    def speedscope(self, name: str) -> dict[str, Any]:
        """Return Speedscope's file."""
        frames: dict[tuple[str, Any], int] = {}
        profiles = []
        for thread, slices in self._threads():
            events = list(_balanced(slices, frames))
            start, end = (events[0]["at"], events[-1]["at"]) if events else (0.0, 0.0)
            said = {"type": "evented", "name": thread, "unit": "seconds", "startValue": start, "endValue": end, "events": events}
            profiles.append(said)
        described = [{"name": n} if at is None else {"name": n, "file": at[0], "line": at[1]} for n, at in frames]
        whole = {"$schema": SCHEMA, "shared": {"frames": described}, "profiles": profiles}
        return {**whole, "name": name, "activeProfileIndex": 0, "exporter": "jax-tape"}

    def _threads(self) -> Iterator[tuple[str, list[_Slice]]]:
        self._left = _SLICES
        threads = [(ledger.thread, self._slices(ledger)) for ledger in self._ledgers]
        behind = [_Slice(name or "compiling", "compiling", at, at + seconds, None, {}) for at, seconds, name in self._background]
        for name, slices in (*threads, *([("compiling in the background", behind)] if behind else [])):
            yield name, sorted(slices, key=lambda s: (s.start, -s.end))

    def _slices(self, ledger: Ledger) -> Iterator[_Slice]:
        now = ledger.since
        intervals = [*ledger.intervals, *([] if now is None else [(now, now + max(ledger.wall, 0.0))])]
        for start, end in intervals:
            yield _Slice("Python", "Python", start - ledger.began, end - ledger.began, None, {})
        ends = [event.start + event.seconds for event in ledger.events]
        for number, event in enumerate(ledger.events):
            runs, end = event.runs, ends[number]
            if runs is None:
                yield _Slice(f"{event.kind}: {event.name}" if event.name else event.kind, event.kind, event.start, end, None, {})
                continue
            parts = parts_of(runs)
            said = {"runs": runs.count, "entries": len(parts), "how": "compiled" if runs.compiled else "entry by entry"}
            yield _Slice(runs.name, event.kind, event.start, end, runs.line, said)
            inside = number and ends[number - 1] > event.start  # what was compiled in it stands there
            if not inside and len(parts) > 1 and self._left >= len(parts):
                self._left -= len(parts)
                yield from _shared_out(parts, event.start, end)


def _shared_out(parts: Sequence[Share], start: float, end: float) -> Iterator[_Slice]:
    """Yield what the entries of a program are predicted to take of its time, one after the other."""
    total = sum(part.weight for part in parts)
    at, passed = start, 0.0
    for part in parts:
        passed += part.weight
        until = start + (end - start) * min(passed / total, 1.0)
        name = f"vjp_{part.op}" if part.swept else part.op
        if part.where is not None:
            name = f"{name} ({named(part.where)})"
        yield _Slice(name, "entry", at, until, part.where, {"predicted": True, "flops": part.flops, "bytes": part.nbytes})
        at = until


def _apart(slices: Sequence[_Slice]) -> Iterator[tuple[_Slice, int, int]]:
    """Yield spans with their begin and end in nanoseconds, no two of them the same: viewers tell by these alone what holds what.

    A span ends at least one nanosecond before the one that holds it, and before the next one begins, so that no rounding makes them
    overlap; what has no room goes.
    """
    stack: list[tuple[float, int]] = []
    last = -1
    for one in slices:
        while stack and stack[-1][0] <= one.start:
            last = max(last, stack.pop()[1])
        start = max(round(1e9 * one.start), last + 1)
        end = max(round(1e9 * one.end), start)
        if stack:
            end = min(end, stack[-1][1] - 1)
        if start <= end:
            yield one, start, end
            stack.append((one.end, end))
            last = start


def _balanced(slices: Sequence[_Slice], frames: dict[tuple[str, Any], int]) -> Iterator[dict[str, Any]]:
    """Yield what opens and what closes, in the order of time, each inside of what holds it."""
    stack: list[tuple[int, int]] = []
    for one, start, end in (*_apart(slices), (None, sys.maxsize, 0)):
        while stack and stack[-1][1] < start:
            frame, at = stack.pop()
            yield {"type": "C", "at": at / 1e9, "frame": frame}
        if one is not None:
            frame = frames.setdefault((one.name, one.where), len(frames))
            yield {"type": "O", "at": start / 1e9, "frame": frame}
            stack.append((frame, end))
