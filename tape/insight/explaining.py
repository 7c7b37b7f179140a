"""``tape.explain``: why a gradient is None, zero, tiny, huge or NaN, as text and as a picture."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tape.errors import TapeError, TapeTypeError
from tape.graph.kinds import differentiable
from tape.graph.lines import user_frame
from tape.graph.scope import within
from tape.graph.segment import Handle, itself
from tape.insight import causes
from tape.insight.causes import Cause, norm
from tape.insight.connection import Connection
from tape.insight.entries import signature, types
from tape.insight.listing import Tape
from tape.insight.measuring import Measurement, PathStep
from tape.insight.names import name_of
from tape.insight.picture import Picture
from tape.insight.replaying import BackwardError
from tape.sweeps.seeds import describe
from tape.terminal import coloured, columns, html_table, is_terminal, painted, placed, source_of

_PAGE = 88  # characters of a line in a notebook
_SHARED = "ops that were recorded before have the lines of then, also of an equal function; in a tape.Tape() they have this time's"


@dataclass(repr=False, eq=False)
class Explanation:
    """What :func:`explain` found; ``print`` shows it.

    Attributes:
        verdict: ``"None"``, ``"zero"``, ``"tiny"``, ``"huge"``, ``"NaN"``, ``"inf"`` or ``"fine"``; ``"error"`` where the backward of a
            ``tape.Function`` raises; ``"connected"`` where values are not known and the structure lets a gradient flow.
        causes: what it suffers from, the most likely first: objects with ``kind``, ``entry``, ``what`` and ``repair``.
        path: the entries from the output back to the input, with norms: along it flows most, or would flow.
        norm: the Euclidean norm of the gradient; None where there is none, or values are not known.

    """

    _tape: Tape
    _names: tuple[str, str]
    verdict: str
    causes: tuple[Cause, ...]
    path: tuple[PathStep, ...]
    norm: float | None
    _note: str

    def __repr__(self) -> str:
        kinds = ", ".join(c.kind for c in self.causes)
        return f"<explanation: the gradient is {self.verdict}{f' ({kinds})' if kinds else ''}>"

    def __str__(self) -> str:
        return self._text(columns(), color=coloured()) if is_terminal() or coloured() else self._text()

    def _text(self, width: int | None = None, *, color: bool = False) -> str:
        """Return what was found, in lines that are no longer than ``width`` but for the path's."""
        output, given = self._names
        verdict = "an error" if self.verdict == "error" else self.verdict
        size = "" if self.norm is None else f" (norm {self.norm:.4g})"
        lines = [f"The gradient of {output} with respect to {given} is {verdict}{size}."]
        for cause in self.causes:
            entry = None if cause.entry is None else self._tape[cause.entry]
            here = None if entry is None else entry.where
            at = "" if entry is None else f" at {signature(entry)}" + ("" if here is None else f", {placed(here)}")
            inside = f", {placed(cause.where)}" if entry is not None and cause.where is not None and cause.where != here else ""
            lines += [f"  cause: {cause.kind}{at}", f"         {cause.what}{inside}"]
            if entry is not None and (text := source_of(cause.where or here)):
                lines.append(f"         > {text}")
            lines.append(f"  repair: {cause.repair}")
        shown = {*[c.entry for c in self.causes], *[s.entry.number for s in self.path]}
        lines += [f"  note: {self._note}"] if self._note else []
        lines += [] if shown.isdisjoint(self._tape._reading().shared) else [f"  note: {_SHARED}"]
        if width is not None:
            lines = [part for line in lines for part in _fitted(line, width, color)]
        if self.path:
            lines += ["  path, from the output back:", *_path_lines(self.path)]
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


def _path_lines(path: Sequence[PathStep]) -> list[str]:
    rows = []
    for e, value, gradient in path:
        line = "" if e.where is None else placed(e.where).rsplit("/", 1)[-1]
        arrives = "no gradient" if gradient is None else f"|gradient| {gradient:.3g}"
        rows.append((f"%{e.number}", e.op, types(e), "" if value is None else f"|value| {value:.3g}", arrives, line))
    shown = rows if len(rows) <= 24 else [*rows[:12], ("...", f"{len(rows) - 24} more", "", "", "", ""), *rows[-12:]]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return ["    " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in shown]


_TINY, _HUGE = 1e-7, 1e7


def explain(output: object, input: object) -> Explanation:  # noqa: A002 - the field's word
    """Explain why the gradient of one Variable with respect to another is None, zero, tiny, huge or NaN.

    It looks at what was recorded between the two, and at what was recorded without a gradient (``detach``, ``no_grad``, comparisons, casts
    to integers), computes values and gradients along the way once more, entry by entry, and names the entry at which the gradient is cut,
    killed or blown up, its line, and a repair.  No ``.grad`` changes, and nothing is released.  Where the values are gone (a sweep released
    them, and a leaf is no longer held), it explains by the structure.

    Args:
        output: the Variable that is differentiated, such as the loss.
        input: the Variable by which it is: a leaf, or a result.

    Returns:
        An :class:`tape.insight.explaining.Explanation`; ``print`` shows it, ``.draw()`` is a picture.

    Raises:
        TapeTypeError: one of them is no Variable.

    Example:
        >>> import tape, tape.numpy as tnp
        >>> x = tape.Variable([0.0, 4.0], name="x")
        >>> y = tnp.where(x > 0, tnp.sqrt(x), 0.0).sum()
        >>> why = tape.explain(y, x)
        >>> why.verdict, [c.kind for c in why.causes]
        ('NaN', ['infinity times zero'])
        >>> print(why)  # doctest: +ELLIPSIS
        The gradient of y with respect to x is NaN (norm nan).
          cause: infinity times zero at %1 = sqrt(x), ...

    """
    for name, v in (("output", output), ("input", input)):
        if not isinstance(v, Handle):
            msg = f"explain: {name} must be a tape.Variable, got {type(v).__name__}"
            raise TapeTypeError(msg)
    with within(notes=None):
        return _answer(itself(output), itself(input))  # type: ignore[arg-type]


def _answer(output: Any, given: Any) -> Explanation:
    frame, _ = user_frame(sys._getframe())
    names = (output.name or name_of(output, [frame]) or "the output", given.name or name_of(given, [frame]) or "the input")
    connection = Connection(output, given)

    def said(verdict: str, what: Sequence[Cause], path: Sequence[PathStep], size: float | None, note: str = "") -> Explanation:
        return Explanation(connection.tape, names, verdict, tuple(what), tuple(path), size, note or connection.note)

    if output is given:
        return said("fine", [], [], 1.0, "they are the same Variable")
    kind = given._place.kind
    if not differentiable(kind.aval):
        what = f"the input is of {kind.aval.dtype}, which has no gradient"
        return said("None", [Cause("integer input", None, what, "make it of a floating dtype: .astype('float32')")], [], None)
    if not connection.leads:
        return said("None", [connection.unconnected()], [], None)
    way = [PathStep(e, None, None) for e in connection.way()]
    if not connection.flows():
        first = []
        if not kind.requires_grad:
            repair = "make it by tape.Variable(...), or call .requires_grad_() before it is used"
            first = [Cause("requires_grad", None, f"the input ({describe(given)}) does not require grad", repair)]
        cuts = [c for c in connection.cuts() if not first or c.kind != "cut"]  # what does not require grad needs no cut
        return said("None", [*first, *cuts], way, None)
    try:
        measured = Measurement(connection)
    except BackwardError as raised:
        return said("error", [causes.raised_at(connection.reading.entries[raised.entry], raised.error)], way, None)
    except TapeError as error:
        note = f"values are not known ({str(error).split(';', maxsplit=1)[0]}): this is what the structure says"
        return said("connected", connection.suspects(), way, None, note)
    if measured.total is None:
        return said("None", measured.stopping(), way, None)
    size, steps = norm(measured.total), measured.steps
    if measured.total.size == 0:
        return said("fine", [], steps, size, f"the input ({describe(given)}) has no elements, and so has its gradient")
    if not np.all(np.isfinite(measured.total)):
        return said("NaN" if np.any(np.isnan(measured.total)) else "inf", measured.broken(), steps, size)
    hints = measured.shapes()
    if size == 0.0:
        return said("zero", [*measured.killed(), *hints], steps, size)
    arrives = max(1.0, next((s.gradient for s in steps if s.gradient is not None), 1.0))
    if size < _TINY * arrives:
        return said("tiny", [measured.rate(size, "vanishing"), *hints], steps, size)
    if size > _HUGE * arrives:
        return said("huge", [measured.rate(size, "exploding"), *hints], steps, size)
    return said("fine", [*measured.unfit(), *hints], steps, size)
