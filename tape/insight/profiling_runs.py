"""Runs: what ran, from where, how often and for how long."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from tape.graph.lines import is_foreign
from tape.insight.profiling_samples import is_standard
from tape.terminal import named

if TYPE_CHECKING:
    from types import FrameType

    from tape.insight.profiling_lines import Known

_FRAMES = 6  # of the user's, by which places are told apart

Line = tuple[str, int]


class Site(NamedTuple):
    """Where something ran: lines of the user's, the innermost first."""

    lines: tuple[Line, ...]

    @property
    def line(self) -> Line | None:
        """The innermost line."""
        return self.lines[0] if self.lines else None


def site() -> Site:
    """Return where the user is."""
    found: list[Line] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and len(found) < _FRAMES:
        file = frame.f_code.co_filename
        if is_foreign(file) and not is_standard(file):
            found.append((file, frame.f_lineno))
        frame = frame.f_back
    return Site(tuple(found))


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
