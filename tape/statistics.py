"""Counters of what ran, why, and how often it was compiled (:func:`tape.stats`)."""

from __future__ import annotations

from collections import Counter

__all__ = ["STATS", "Stats", "stats"]


class Stats:
    """Counts since import or the last :meth:`reset`."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Set every counter to zero."""
        self.executed = 0
        self.interpreted = 0
        self.flushes: Counter[str] = Counter()
        self.programs = 0
        self.hits = 0
        self.compiles = 0
        self.compile_seconds = 0.0

    def flushed(self, reason: str) -> None:
        """Count one run of a pending segment."""
        self.flushes[reason] += 1

    def compiled(self, seconds: float) -> None:
        """Count one compilation of a whole segment."""
        self.compiles += 1
        self.compile_seconds += seconds

    def __repr__(self) -> str:
        rows = {
            "executed": self.executed,
            "interpreted": self.interpreted,
            "flushes": dict(self.flushes),
            "programs": self.programs,
            "hits": self.hits,
            "compiles": self.compiles,
            "compile_seconds": round(self.compile_seconds, 3),
        }
        return "\n".join(f"{name:>16}  {value}" for name, value in rows.items())


STATS = Stats()


def stats() -> Stats:
    """Return the counters: entries executed and interpreted, flushes by reason, programs, hits, compiles and their seconds.

    Example:
        >>> import tape
        >>> tape.stats().reset()
        >>> tape.stats().compiles
        0

    """
    return STATS
