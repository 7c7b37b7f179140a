"""Explanations: what was found out about a gradient, as text and as a picture."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, NamedTuple

from tape.insight.entries import Entry, signature, typed
from tape.insight.picture import Picture
from tape.insight.scopes import source_of
from tape.terminal import coloured, columns, is_terminal, painted, placed
from tape.terminal.markup import html_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tape.insight.causes import Cause
    from tape.insight.listing import Tape


_PAGE = 88  # characters of a line in a notebook
_SHARED = "ops that were recorded before have the lines of then, also of an equal function; in a tape.Tape() they have this time's"


class Step(NamedTuple):
    """One entry of the path from the output to the input.

    Attributes:
        entry: the entry.
        value: the Euclidean norm of its result; None where values are not known.
        gradient: that of the gradient that arrives at its result; None where none does, or values are not known.

    """

    entry: Entry
    value: float | None
    gradient: float | None


class Explanation:
    """What :func:`explain` found; ``print`` shows it.

    Attributes:
        verdict: ``"None"``, ``"zero"``, ``"tiny"``, ``"huge"``, ``"NaN"``, ``"inf"`` or ``"fine"``; ``"error"`` where the backward of a
            ``tape.Function`` raises; ``"connected"`` where values are not known and the structure lets a gradient flow.
        causes: what it suffers from, the most likely first: objects with ``kind``, ``entry``, ``what`` and ``repair``.
        path: the entries from the output back to the input, with norms: along it flows most, or would flow.
        norm: the Euclidean norm of the gradient; None where there is none, or values are not known.

    """

    def __init__(
        self, tape: Tape, names: tuple[str, str], verdict: str, found: Sequence[Cause], path: Sequence[Step], norm: float | None, note: str
    ) -> None:
        self._tape = tape
        self._names = names
        self.verdict = verdict
        self.causes = tuple(found)
        self.path = tuple(path)
        self.norm = norm
        self._note = note

    def __repr__(self) -> str:
        kinds = ", ".join(c.kind for c in self.causes)
        return f"<explanation: the gradient is {self.verdict}{f' ({kinds})' if kinds else ''}>"

    def __str__(self) -> str:
        return self._text(columns(), color=coloured()) if is_terminal() or coloured() else self._text()

    def _text(self, width: int | None = None, *, color: bool = False) -> str:
        """Return what was found, in lines that are no longer than ``width`` but for the path's."""
        output, given = self._names
        lines = [
            f"The gradient of {output} with respect to {given} is {'an error' if self.verdict == 'error' else self.verdict}"
            + ("" if self.norm is None else f" (norm {self.norm:.4g})")
            + "."
        ]
        for cause in self.causes:
            at = ""
            if cause.entry is not None:
                entry = self._tape[cause.entry]
                at = f" at {signature(entry)}" + ("" if entry.where is None else f", {placed(entry.where)}")
            lines += [f"  cause: {cause.kind}{at}", f"         {cause.what}"]
            if cause.entry is not None:
                here = self._tape[cause.entry].where
                if cause.where is not None and cause.where != here:
                    lines[-1] += f", {placed(cause.where)}"
                if text := source_of(cause.where or here):
                    lines.append(f"         > {text}")
            lines.append(f"  repair: {cause.repair}")
        if self._note:
            lines.append(f"  note: {self._note}")
        shown = {*[c.entry for c in self.causes], *[s.entry.number for s in self.path]}
        if not shown.isdisjoint(self._tape._reading().shared):
            lines.append(f"  note: {_SHARED}")
        if width is not None:
            lines = [part for line in lines for part in _fitted(line, width, color)]
        if self.path:
            lines.append("  path, from the output back:")
            lines += _path_lines(self.path)
        return "\n".join(lines)

    def draw(self) -> Picture:
        """Return a picture of what leads from the input to the output, with the norms of gradients."""
        flow = {s.entry.number: s.gradient for s in self.path if s.gradient is not None}
        return Picture(self._tape.entries, "function", fold=True, flow=flow)

    def _repr_html_(self) -> str:
        return html_table(self._text(_PAGE, color=True)) + self.draw()._repr_html_()


def _fitted(line: str, width: int, color: bool) -> list[str]:
    """Return a line in parts that a terminal shows, with its first word in colour."""
    start = len(line) - len(line.lstrip())
    parts = textwrap.wrap(line, width, subsequent_indent=" " * (start + 2), break_long_words=False, break_on_hyphens=False) or [""]
    for word, code in (("cause:", "1;31"), ("repair:", "1;32"), ("note:", "1;33"), (">", "2")):
        if parts[0].lstrip().startswith(f"{word} "):
            parts[0] = parts[0].replace(word, painted(word, code, color), 1)
    return parts


def _path_lines(path: Sequence[Step]) -> list[str]:
    rows = [
        (
            f"%{s.entry.number}",
            s.entry.op,
            " ".join(dict.fromkeys(typed(v) for v in s.entry.outputs)),
            "" if s.value is None else f"|value| {s.value:.3g}",
            "no gradient" if s.gradient is None else f"|gradient| {s.gradient:.3g}",
            "" if s.entry.where is None else placed(s.entry.where).rsplit("/", 1)[-1],
        )
        for s in path
    ]
    shown = rows if len(rows) <= 24 else [*rows[:12], ("...", f"{len(rows) - 24} more", "", "", "", ""), *rows[-12:]]
    widths = [max(len(r[i]) for r in shown) for i in range(6)]
    return ["    " + "  ".join(cell.ljust(w) for cell, w in zip(r, widths, strict=True)).rstrip() for r in shown]
