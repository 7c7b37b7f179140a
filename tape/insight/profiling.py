"""``tape.profile``: what takes the time, by op, by line, and by function, class or module of the user's."""

from __future__ import annotations

import contextlib
import json
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

import jax

from tape.accounts.records import Line
from tape.errors import TapeValueError, check_flag
from tape.graph.meters import METERS
from tape.insight import profiling_rows as rows
from tape.insight.profiling_lines import Lines
from tape.insight.profiling_meter import PARTS, Ledger, ThreadMeter, clock, heard
from tape.insight.profiling_parts import Runs
from tape.insight.profiling_peak import Peak
from tape.insight.profiling_rows import Row
from tape.insight.profiling_trace import Traced
from tape.insight.scopes import KINDS
from tape.locks import holding
from tape.modes import Mode
from tape.terminal import Shown, clipped, counted, dressed, duration, number, painted

F = TypeVar("F", bound="Callable[..., Any]")
_LISTENING = threading.Lock()
_MOST = 20  # rows of a table


def _install(ledgers: tuple[Ledger, ...]) -> None:
    """Have the meter of this thread note for some ledgers, and for no others."""
    ident = threading.get_ident()
    meter = METERS.get(ident)
    before = meter.ledgers if isinstance(meter, ThreadMeter) else ()
    lines = meter.lines if isinstance(meter, ThreadMeter) else Lines()
    if ledgers:
        if not before:
            holding(_LISTENING, _listen, 1)
            lines.begin()
        METERS[ident] = ThreadMeter(ledgers, lines)
    elif before:
        METERS.pop(ident, None)
        lines.end()
        holding(_LISTENING, _listen, -1)
    for ledger in before:
        if ledger not in ledgers:
            ledger.stop()
    for ledger in ledgers:
        if ledger.since is None:
            ledger.start()


_threads = 0


def _listen(change: int) -> None:
    """Hear from JAX what it compiles, as long as a thread is measured."""
    global _threads
    before, _threads = _threads, _threads + change
    if not before:
        jax.monitoring.register_event_duration_secs_listener(heard)
    elif not _threads:
        with contextlib.suppress(AssertionError, ValueError):  # somebody has cleared all listeners
            jax.monitoring.unregister_event_duration_listener(heard)


class profile(Mode, Shown):  # noqa: N801 - a context manager, named as in PyTorch
    """Measure what takes the time in a ``with`` block, or in the calls of a decorated function.

    ``print(p)`` shows tables by op, by line of yours and by function of yours, as wide as the terminal: how often, how long, how many
    floating-point operations and bytes, forward entries and sweeps apart.  Above them stands where the time of the thread went: in Python
    (yours, and the tape's recording), in programs, in compiling (tracing and lowering, too), and in waiting for the compiler.  These parts
    sum to the time in the block, and the times of the rows of each table to that of programs.  What the background compiles meanwhile is
    told apart.

    What runs is what runs without it.  A compiled program has one time; it is shared out to its entries in proportion to what each is
    predicted to take, and such times are marked by ``~``.  With ``entries=True`` every entry runs alone and is waited for: then each has a
    time of its own, and there is no fusion, so that the sum is more than a program takes.  A step of ``tape.jit`` is one program in either
    case, and its entries are those that were traced.  Bytes are those of inputs and results, as if each entry read and wrote memory.

    A profile measures the thread that opens it (each one, where several do).  It may be nested in others and in itself, entered again (it
    adds up then), and read while it is open.  Each run costs it some microseconds, which count as Python; the first runs from each place
    and some at random after that are recorded in a slower way to see their lines, as with :class:`tape.Tape`.  Where functions of equal ops
    take turns on the same Variables, their shares are an estimate from those.  No value is kept alive.

    Args:
        entries: run entry by entry.
        wait: wait for each program, so that its time is its own.  With False it is that of the call, and what is left belongs to whoever
            looks at a value: to Python.
        memory: note the peak of the memory that the tape takes, for :attr:`peak`.
        python: share the time of Python out to lines, functions and modules of yours, by samples of where the thread is (some hundred a
            second): what a line takes is what the tape does for it too, such as recording its op.  These are estimates.

    Raises:
        TapeTypeError: an option is no bool, or it decorates without parentheses.
        TapeRuntimeError: it is left in another thread.

    Example:
        >>> import tape, tape.numpy as tnp
        >>> x = tape.Variable([[1.0, 2.0], [3.0, 4.0]])
        >>> with tape.profile() as p:
        ...     for _ in range(3):
        ...         tnp.tanh(x @ x).sum().backward()
        >>> counts = {row.name: (row.forward.count, row.sweep.count) for row in p.by_op}
        >>> counts["matmul"], counts["tanh"]
        ((3, 3), (3, 3))
        >>> abs(p.python + p.programs + p.compiling + p.waiting - p.seconds) < 1e-6
        True

    """

    def __init__(self, *, entries: bool = False, wait: bool = True, memory: bool = True, python: bool = False) -> None:
        self._options = {"entries": entries, "wait": wait, "memory": memory, "python": python}
        for name, value in self._options.items():
            check_flag("profile", name, value)
        self._began: float | None = None
        self._ledgers: dict[int, Ledger] = {}  # by the idents of threads
        self._background: list[tuple[float, float, str]] = []

    def _ledger(self) -> Ledger:
        """Return what is noted of this thread."""
        ident = threading.get_ident()
        if self._began is None:
            self._began = clock()
        ledger = self._ledgers.get(ident)
        if ledger is None:
            ledger = self._ledgers[ident] = Ledger(self._began, self._behind, **self._options)
        return ledger

    def _behind(self, seconds: float, name: str) -> None:
        if self._began is not None:
            self._background.append((clock() - seconds - self._began, seconds, name))

    # -- the block --------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:  # type: ignore[override]
        super().__enter__()
        return self

    def _present(self) -> tuple[Ledger, ...]:
        meter = METERS.get(threading.get_ident())
        return meter.ledgers if isinstance(meter, ThreadMeter) else ()

    def _enter(self) -> None:
        present, ledger = self._present(), self._ledger()
        self._leave(present if ledger in present else (*present, ledger))

    def _leave(self, old: tuple[Ledger, ...]) -> None:
        try:
            _install(old)
        finally:
            if self._present() != old:  # Ctrl-C
                _install(old)

    # -- where the time went ----------------------------------------------------------------------------------------

    def _all(self) -> list[Ledger]:
        return list(self._ledgers.values())

    def _sum(self, part: str) -> float:
        return sum(ledger.seconds[part] for ledger in self._all())

    @property
    def seconds(self) -> float:
        """Seconds in the block: the sum over threads, where several were measured."""
        return sum(ledger.wall for ledger in self._all())

    @property
    def python(self) -> float:
        """Seconds of Python: yours, and what the tape takes to record and to sweep."""
        return self.seconds - sum(map(self._sum, PARTS))

    @property
    def programs(self) -> float:
        """Seconds in which entries ran, in programs or one by one."""
        return self._sum("programs")

    @property
    def compiling(self) -> float:
        """Seconds that the measured threads traced, lowered and compiled."""
        return self._sum("compiling")

    @property
    def waiting(self) -> float:
        """Seconds of waiting for what the background compiles."""
        return self._sum("waiting")

    @property
    def background(self) -> float:
        """Seconds of compiling in the background meanwhile, which are no part of :attr:`seconds`."""
        return sum(seconds for _, seconds, _ in list(self._background))

    @property
    def peak(self) -> Peak:
        """The most memory that the tape held at one time, and what made it: a :class:`tape.insight.profiling_peak.Peak`.

        Raises:
            TapeValueError: the profile was made with ``memory=False``.

        """
        if not self._options["memory"]:
            msg = "profile: this one notes no memory; make it by tape.profile(memory=True)"
            raise TapeValueError(msg)
        peaks = [ledger.peaks.peak for ledger in self._all() if ledger.peaks is not None]
        return max(peaks, key=lambda peak: peak.nbytes, default=Peak())

    # -- by what ----------------------------------------------------------------------------------------------------

    def _runs(self) -> list[Runs]:
        return [runs for ledger in self._all() for runs in (*list(ledger.runs.values()), ledger.rest) if runs.count]

    def _python(self) -> dict[Line, float]:
        """Return the seconds of Python by line, as far as samples tell."""
        by_line: dict[Line, float] = {}
        for ledger in self._all():
            counts = {} if ledger.samples is None else ledger.samples.counts()
            each = max(ledger.wall - sum(ledger.seconds.values()), 0.0) / max(sum(counts.values()), 1)
            for line, count in counts.items():
                by_line[line] = by_line.get(line, 0.0) + each * count
        return by_line

    @property
    def by_op(self) -> list[Row]:
        """A :class:`tape.insight.profiling_rows.Row` for each op, the one that took longest first; an op's VJPs are its sweep."""
        return rows.rows_by(self._runs(), rows.by_op)

    @property
    def by_line(self) -> list[Row]:
        """A row for each line of yours."""
        return rows.rows_by(self._runs(), rows.by_line, self._python())

    @property
    def by_scope(self) -> list[Row]:
        """A row for each function of yours; a module of another library that was lifted goes by its class."""
        return self.by("function")

    @property
    def by_program(self) -> list[Row]:
        """A row for each thing that ran as a whole, from the line that made it run; these times are measured."""
        return rows.of_programs(self._runs())

    def by(self, what: str) -> list[Row]:
        """Return rows by ``"op"``, ``"line"``, ``"function"``, ``"class"``, ``"module"`` or ``"program"``.

        Raises:
            TapeValueError: it is none of these.

        Example:
            >>> import tape
            >>> with tape.profile() as p:
            ...     _ = float(tape.Variable(2.0) * 3.0)
            >>> [(row.name, row.count) for row in p.by("op")]
            [('multiply', 1)]

        """
        if what in KINDS:
            return rows.rows_by(self._runs(), rows.by_scope(what), self._python())
        if what not in ("op", "line", "program"):
            msg = f"profile: by must be 'op', 'line', 'function', 'class', 'module' or 'program', got {what!r}"
            raise TapeValueError(msg)
        return {"op": self.by_op, "line": self.by_line, "program": self.by_program}[what]

    # -- as text ----------------------------------------------------------------------------------------------------

    def text(self, *by: str, width: int | None = None, color: bool | None = None, most: int = _MOST) -> str:
        """Return tables, with what sums them up above.

        Args:
            by: what of: ``"op"``, ``"line"``, ``"function"``, ``"class"``, ``"module"``, ``"program"``; op, line, function and program
                where nothing is said.
            width: characters of a line; None for the terminal's (100 where there is none).
            color: whether to use colours; None where the standard output is a terminal.
            most: rows of a table.

        Raises:
            TapeTypeError: an option is of another type.
            TapeValueError: ``by`` is none of these.

        Example:
            >>> import tape
            >>> with tape.profile() as p:
            ...     _ = float(tape.Variable(2.0) * 3.0)
            >>> "multiply" in p.text("op", width=80, color=False)
            True

        """
        wide, colour = dressed("profile.text", width, color, most=most)
        lines = [painted(clipped(self._summary(), wide), "1", colour), ""]
        times = {"Python": self.python, "programs": self.programs, "compiling": self.compiling, "waiting": self.waiting}
        lines += rows.parts(times, self.seconds, width=wide, color=colour)
        predicted = False
        for what in by or ("op", "line", "function", "program"):
            selected = self.by(what)
            if selected:
                predicted = predicted or (what != "program" and any(row.predicted for row in selected))
                lines += ["", *rows.table(what, selected, self.programs, width=wide, color=colour, most=most)]
        notes = []
        if self.background >= 5e-4:
            notes.append(f"{duration(self.background)} of compiling in the background besides")
        if self._options["memory"] and self.peak.nbytes:
            notes.append(f"peak of the tape's memory {self.peak}")
        if self._options["python"]:
            notes.append("Python: by samples of where the thread was, besides the time of programs")
        if predicted:
            notes.append("~ measured of whole programs, and shared out by predicted cost; tape.profile(entries=True) measures each entry")
        said = [part for note in notes for part in textwrap.wrap(note, wide, break_long_words=False, break_on_hyphens=False)]
        return "\n".join([*lines, *([""] if notes else []), *[painted(part, "2", colour) for part in said]])

    def _summary(self) -> str:
        ledgers = self._all()
        runs = sum(row.runs for row in self.by_program)
        said = f"Profile: {duration(self.seconds)}, {counted(runs, 'run')}"
        if len(ledgers) > 1:
            said += f" in {len(ledgers)} threads"
        done = sum(row.flops for row in self.by_op)
        if done:
            said += f", {number(done)} FLOPs"
        said += ", entry by entry" if self._options["entries"] else ""
        return said + ("; open" if any(ledger.since is not None for ledger in ledgers) else "")

    def __repr__(self) -> str:
        return f"<{self._summary()}>"

    # -- as files ---------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> tuple[Path, ...]:
        """Write the profile as files that other programs show, and return their paths.

        ``trace.json`` is for Perfetto (https://ui.perfetto.dev) and ``chrome://tracing``; beside it ``trace.speedscope.json`` is written,
        for https://www.speedscope.app.  A path that ends in ``.speedscope.json`` is that file alone.  The first 100 000 spans are kept, and
        up to 50 000 entries are shown in them, where each has its predicted part of the program's time.

        Args:
            path: a file whose name ends in ``.json``.

        Raises:
            TapeValueError: it does not.

        Example:
            >>> import tape, tempfile, pathlib
            >>> with tape.profile() as p:
            ...     _ = float(tape.Variable(2.0) * 3.0)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     [file.name for file in p.save(pathlib.Path(folder) / "trace.json")]
            ['trace.json', 'trace.speedscope.json']

        """
        path = Path(path)
        if path.suffix != ".json":
            msg = f"profile.save: the name of the file must end in .json, got {path.name!r}; write p.save('trace.json')"
            raise TapeValueError(msg)
        traced = Traced(self._all(), list(self._background))
        name = path.name.removesuffix(".json").removesuffix(".speedscope")
        speedscope = path.with_name(f"{name}.speedscope.json")
        if path != speedscope:
            path.write_text(json.dumps(traced.chrome()))
        speedscope.write_text(json.dumps(traced.speedscope(name)))
        return (path,) if path == speedscope else (path, speedscope)
