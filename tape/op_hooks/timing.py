"""Counters of what ops take: how many bytes each makes, and how long it takes, forward and backward."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from tape.errors import TapeValueError
from tape.hooking.observing import SeenOp
from tape.op_hooks.showing import Nesting, Results, Table, wait
from tape.terminal import named, size


class _Counting(Table, Results):
    """Counts something by op, or by op and line."""

    def __init__(self, *, by: str = "op") -> None:
        if by not in ("op", "line"):
            msg = f"{type(self).__name__}: by must be 'op' or 'line', got {by!r}"
            raise TapeValueError(msg)
        self.by = by
        self.reset()

    def reset(self) -> None:
        """Forget what was counted."""
        raise NotImplementedError

    def _label(self, op: SeenOp) -> str:
        """Return what an op is counted under: its name, with its line where that is asked for."""
        return op.name if self.by == "op" or op.where is None else f"{op.name} ({named(op.where)})"


class MemoryRow(NamedTuple):
    """One row of a :class:`MemoryCounter`."""

    op: str
    forward_calls: int
    output_bytes: int
    backward_calls: int
    cotangent_bytes: int


class MemoryCounter(_Counting):
    """Counts the bytes of the outputs of each op, and of the cotangents that its VJP makes.

    It adds up what ops make, not what is there at one time: a program keeps few of these values.  Nothing is run or looked at.

    Args:
        by: ``"op"`` for a row per op, ``"line"`` for one per op and line of the user's code.

    Raises:
        TapeValueError: ``by`` is neither.

    Example:
        >>> import tape
        >>> x = tape.Variable([1.0, 2.0])
        >>> with tape.op_hooks.MemoryCounter() as memory:
        ...     (x * x).sum().backward()
        >>> memory
        bytes per op
        op        calls  outputs  backward calls  cotangents
        ----------------------------------------------------
        multiply      1      8 B               1        16 B
        sum           1      4 B               1         8 B

    """

    def reset(self) -> None:
        """Forget what was counted."""
        self._counts: dict[str, list[int]] = {}

    def rows(self) -> list[MemoryRow]:
        """Return a row for each op, the one that made most bytes first."""
        rows = [MemoryRow(op, *counts) for op, counts in self._counts.items()]
        return sorted(rows, key=lambda row: -(row.output_bytes + row.cotangent_bytes))

    def _on_results(self, op: SeenOp, results: Sequence[Any], *, backward: bool) -> None:
        at = 2 if backward else 0
        counts = self._counts.setdefault(self._label(op), [0, 0, 0, 0])
        counts[at] += 1
        counts[at + 1] += sum(int(v.nbytes) for v in results if v is not None)

    def _table(self) -> tuple[str, list[str], list[list[str]]]:
        heads = ["op", "calls", "outputs", "backward calls", "cotangents"]
        rows = [[r.op, str(r.forward_calls), size(r.output_bytes), str(r.backward_calls), size(r.cotangent_bytes)] for r in self.rows()]
        return "bytes per op", heads, rows


class TimerRow(NamedTuple):
    """One row of a :class:`Timer`; times are in seconds, the medians those of the calls after the first."""

    op: str
    forward_calls: int
    forward_seconds: float
    forward_median: float
    backward_calls: int
    backward_seconds: float
    backward_median: float

    @property
    def typical(self) -> float:
        """What all calls would take, were each the median one: compilation does not count."""
        return self.forward_calls * self.forward_median + self.backward_calls * self.backward_median


class Timer(_Counting):
    """Times each op, forward and backward: everything before an op is waited for, and so is the op itself.

    Each op runs on its own, so that the sum is more than a step takes without the timer; the shares are what counts.  Compilation is in the
    totals, and neither in the medians nor in the shares.  The time of a ``tape.Function`` does not hold that of the ops in its forward.  A
    function made by ``tape.jit`` runs uncompiled; in one that ``jax.jit`` traces nothing can be timed, and ``traced`` counts what was left
    out.

    Args:
        by: ``"op"`` for a row per op, ``"line"`` for one per op and line of the user's code.

    Attributes:
        traced: how many calls were left out because their values were traced.

    Raises:
        TapeValueError: ``by`` is neither.

    Example:
        >>> import tape
        >>> x = tape.Variable([1.0, 2.0])
        >>> with tape.op_hooks.Timer() as timer:
        ...     (x * x).sum().backward()
        >>> [(row.op, row.forward_calls, row.backward_calls) for row in sorted(timer.rows())]
        [('multiply', 1, 1), ('sum', 1, 1)]

    """

    def reset(self) -> None:
        """Forget what was timed."""
        self._running = Nesting()
        self._times: dict[str, tuple[list[float], list[float]]] = {}  # seconds per call, forward and backward
        self.traced = 0

    def rows(self) -> list[TimerRow]:
        """Return a row for each op, the one that takes longest first."""
        rows = [TimerRow(op, *_side(f), *_side(b)) for op, (f, b) in self._times.items()]
        return sorted(rows, key=lambda row: -row.typical)

    def forward_preprocess(self, op: SeenOp, inputs: tuple[Any, ...]) -> None:
        """Wait for the inputs and begin."""
        self._begin(op, inputs)

    def backward_preprocess(self, op: SeenOp, output_grads: tuple[Any, ...]) -> None:
        """Wait for the cotangents and begin."""
        self._begin(op, output_grads)

    def _begin(self, op: SeenOp, before: Sequence[Any]) -> None:
        started = time.perf_counter() if wait(before) else None
        self._running.stack.append([self._label(op), started, 0.0])  # the time of those inside it

    def _on_results(self, op: SeenOp, results: Sequence[Any], *, backward: bool) -> None:
        there = wait(results)
        now = time.perf_counter()
        name = self._label(op)
        noted = self._running.leave(name)
        if noted is None:
            return
        _, started, inside = noted
        if started is None or not there:
            self.traced += 1
            return
        if self._running.stack:
            self._running.stack[-1][2] += now - started
        self._times.setdefault(name, ([], []))[backward].append(now - started - inside)

    def _table(self) -> tuple[str, list[str], list[list[str]]]:
        total = sum(row.typical for row in self.rows()) or 1.0
        heads = ["op", "calls", "total ms", "median us", "backward calls", "total ms", "median us", "share"]
        rows = []
        for row in self.rows():
            sides = []
            for calls, seconds, median in (row[1:4], row[4:7]):
                sides += [str(calls), f"{1e3 * seconds:.3f}", f"{1e6 * median:.1f}"] if calls else ["0", "", ""]
            rows.append([row.op, *sides, f"{100 * row.typical / total:.0f}%"])
        left_out = f"; {self.traced} calls in traced functions left out" if self.traced else ""
        return f"time per op (compilation is in the totals only{left_out})", heads, rows


def _side(times: Sequence[float]) -> tuple[int, float, float]:
    """Return the number of calls, their sum, and the median of those after the first, which holds compilation."""
    return len(times), sum(times), statistics.median(times[1:] or times or [0.0])
