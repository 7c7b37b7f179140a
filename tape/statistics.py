"""Counters of what ran, why, and how often it was compiled (:func:`tape.stats`)."""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Callable
from numbers import Integral
from typing import Any

from tape import layout
from tape.accounts.records import Compilation, Limited
from tape.accounts.words import told
from tape.terminal import html_table

_SITES = 512  # lines from which runs come, by reason
_COMPILATIONS = 256  # that are told, the latest

_COUNTS = ("recorded", "executed", "interpreted", "flushes", "programs", "hits", "compiles", "compile_seconds", "traces", "reasons")


def bytes_held(value: object) -> int:
    """Return the bytes of a value; 0 where it has none, or as many as lengths tell that are symbolic (``jax.export``)."""
    size = getattr(value, "nbytes", 0)
    return int(size) if isinstance(size, Integral) else 0


class Stats(layout.Counts):
    """Counts since import or the last :meth:`reset`; ``print`` tells them in words.

    Attributes:
        executed: entries run.
        interpreted: those of them that ran one by one, because their structure is new, or is still being compiled.
        programs: structures run so far (with what was kept of them).
        hits: runs of a program compiled before.
        compiles: programs compiled.
        compile_seconds: time spent on that, in seconds.
        traces: runs of callables of control flow, checkpoints and others that look for their program; none where the last one still holds.
        reasons: why programs were compiled: a new structure, or what differs from the last program of the same ops (shapes, settings, a
            function or parameter, the results that are held).
        compilations: the latest of all compilations, also of ops on their own and of ``tape.jit``: objects with ``line``, ``ops``,
            ``change`` (``kind``, ``what``, ``told`` and ``repair``), ``seconds`` and ``background``.

    """

    def __init__(self) -> None:
        self.entries_of: Callable[[Any], int]  # of one segment: set by what knows what sweeps need of it (tape.programs.retention)
        self.segments: dict[int, Callable[[], Any]] = {}  # by id, weakly; a WeakSet costs more than the rest of a segment
        self._kept: dict[str, list[Callable[[], Any]]] = {}
        self.entries_ended = 0  # recorded in segments that are freed
        self._start = 0
        self.sites = Limited(_SITES)
        self._compilations: deque[Compilation] = deque(maxlen=_COMPILATIONS)
        self.reset()

    def reset(self) -> None:
        """Set every counter to zero."""
        self.executed = 0
        self.interpreted = 0
        self.programs = 0
        self.hits = 0
        self.compiles = 0
        self.compile_seconds = 0.0
        self.traces = 0
        self.reasons: Counter[str] = Counter()
        self.sites.reset()
        self._compilations.clear()
        self._start = self._total()

    @property
    def flushes(self) -> Counter[str]:
        """Runs of pending segments, by reason (``look``, ``backward``, ``step``, ``length`` ...)."""
        counts = Counter(self.sites.gone)
        for (reason, _), site in list(self.sites.items()):
            counts[reason] += site.count
        return +counts

    @property
    def flushes_by_line(self) -> dict[tuple[str, tuple[str, int] | None], int]:
        """The same by reason and your file and line, from which most runs come first; some hundred lines at most."""
        counts = Counter({key: site.count for key, site in list(self.sites.items())})
        return dict(counts.most_common())

    @property
    def compilations(self) -> tuple[Compilation, ...]:
        """The latest compilations, in the order in which they began."""
        return tuple(self._compilations)

    @property
    def recorded(self) -> int:
        """Entries recorded, those of sweeps included."""
        return self._total() - self._start

    @property
    def live_entries(self) -> int:
        """Entries that are pending, or through which a sweep from a Variable that somebody holds could still go."""
        return sum(self.entries_of(s) for s in self._alive())

    @property
    def live_bytes(self) -> int:
        """Bytes of the arrays that the tape keeps: inputs of pending entries, and residuals."""
        kept = [c for s in self._alive() for c in (*s.leaves, *(() if s.run is None else s.run.cells))]
        arrays = {id(a): a for c in kept for a in (c if c.__class__ is list else c.arrays())}
        return sum(map(bytes_held, arrays.values()))

    @property
    def caches(self) -> dict[str, int]:
        """How many items the caches of the library hold, by what these are."""
        return {name: sum(len(held) for ref in refs if (held := ref()) is not None) for name, refs in self._kept.items()}

    def keep(self, name: str, held: Any) -> None:
        """Have what is ``held`` (weakly) be among the :attr:`caches`."""
        self._kept[name] = [*[ref for ref in self._kept.get(name, ()) if ref() is not None], weakref.ref(held)]

    def _total(self) -> int:
        return self.entries_ended + sum(int(s.state.depth) for s in self._alive())

    def _alive(self) -> list[Any]:
        return [s for ref in list(self.segments.values()) if (s := ref()) is not None]

    def ended(self, segment: Any) -> None:
        """Count the entries of a segment that is freed."""
        if self.segments.pop(id(segment), None) is not None:  # Ctrl-C may have come before it was counted
            self.entries_ended += segment.state.depth

    def compiled(self, seconds: float) -> None:
        """Count one compilation of a whole segment."""
        self.compiles += 1
        self.compile_seconds += seconds

    def tell(self, compilation: Compilation) -> None:
        """Note a compilation that begins."""
        self._compilations.append(compilation)

    def __str__(self) -> str:
        return told(self)

    def _repr_html_(self) -> str:
        return html_table(told(self, color=True))

    def __repr__(self) -> str:
        rows = {name: getattr(self, name) for name in (*_COUNTS, "live_entries", "live_bytes")}
        rows |= {"flushes": dict(self.flushes), "reasons": dict(self.reasons), "compile_seconds": round(self.compile_seconds, 3)}
        return "\n".join(f"{name:>16}  {value}" for name, value in rows.items())


STATS = Stats()


def stats() -> Stats:
    """Return the counters; ``print`` tells in words from which lines the tape was run, what was compiled, why, and what would avoid it.

    Example:
        >>> import tape
        >>> tape.stats().reset()
        >>> tape.stats().compiles
        0
        >>> x = tape.Variable([2.0] * 7)
        >>> float((x * x).sum())
        28.0
        >>> print(tape.stats())  # doctest: +ELLIPSIS
        1 run of what was pending: 2 entries ran, one by one; no program compiled...

    """
    return STATS
