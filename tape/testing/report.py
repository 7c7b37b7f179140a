"""What a check found: a verdict per argument, the votes behind it, the worst element, and what kind of wrong it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tape.terminal import clipped, columns, is_terminal
from tape.testing.picture import page

WIDTH = 100  # of a line, at most
VERDICTS = ("fail", "inaccurate", "inconclusive", "pass")  # the gravest first


@dataclasses.dataclass(frozen=True, slots=True)
class ArgumentReport:
    """What was found for one array.

    Attributes:
        name: what the user calls it (``"x"``, ``"params['w']"``); ``"the function"`` for what belongs to no single argument.
        verdict: ``"pass"``, ``"fail"``, ``"inaccurate"`` (right, but for digits that its formula loses to rounding) or ``"inconclusive"``.
        kind: where it shows: ``first``, ``second``, ``numeric``, ``forward``, ``vmap``, ``variant`` (for other arguments), ``native``,
            ``repeat``, ``structure``, ``value`` or ``raises``; empty for a pass.
        diagnosis: what kind of wrong, in words.
        where: at which point, with which cotangent.
        blame: the rule inside the function that is wrong, with its line, where there are several.
        votes: what each independent derivative says of the one under test.
        odd_one_out: which vote disagrees with the others; empty where none does.
        index: position of the worst element.
        expected: the derivative there, as the others have it.
        got: the derivative under test there.
        expected_array: all elements of ``expected``.
        got_array: all elements of ``got``.

    """

    name: str
    verdict: str
    kind: str = ""
    diagnosis: str = ""
    where: str = ""
    blame: str = ""
    votes: dict[str, str] = dataclasses.field(default_factory=dict)
    odd_one_out: str = ""
    index: tuple[int, ...] = ()
    expected: Any = None
    got: Any = None
    expected_array: Any = dataclasses.field(default=None, repr=False)
    got_array: Any = dataclasses.field(default=None, repr=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """The result of a check; printed, it is a table.

    Attributes:
        function: name of the function.
        arguments: one entry per differentiated array, and one for the whole function where something belongs to no single array.
        notes: what could not be checked.

    """

    function: str
    arguments: tuple[ArgumentReport, ...]
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """The gravest of ``"fail"``, ``"inaccurate"``, ``"inconclusive"`` and ``"pass"`` that any array has."""
        return min((a.verdict for a in self.arguments), key=VERDICTS.index, default="pass")

    @property
    def failures(self) -> tuple[ArgumentReport, ...]:
        """The entries that fail."""
        return tuple(a for a in self.arguments if a.verdict == "fail")

    def __repr__(self) -> str:
        each = ", ".join(f"{a.name} {a.verdict}" for a in self.arguments)
        return clipped(f"<Report on {self.function}: {self.verdict}; {each}", 78) + ">"

    def _repr_html_(self) -> str:
        """Show the table and pictures in a notebook."""
        return page(self)

    def __str__(self) -> str:
        """Return the table, no line of which is longer than 100 columns, or than the terminal's."""
        width = min(WIDTH, columns()) if is_terminal() else WIDTH
        header = ("argument", "verdict", "worst element", "expected", "got", "diagnosis")
        rows = [(a.name, a.verdict, _index(a), _number(a.expected), _number(a.got), a.diagnosis) for a in self.arguments]
        widths = [min(max(len(r[i]) for r in [header, *rows]), 24) for i in range(5)]
        room = max(width - sum(widths) - 2 * 5, 24)
        lines = [f"gradient of {self.function}: {self.verdict}"]
        for row in [header, *rows]:
            parts = _wrapped(row[5], room)
            cells = [_cut(c, w).ljust(w) for c, w in zip(row[:5], widths, strict=True)]
            lines.append("  ".join([*cells, parts[0]]).rstrip())
            lines += [" " * (sum(widths) + 10) + part for part in parts[1:]]
        for a in self.arguments:
            if a.verdict != "pass":
                said = "; ".join(f"{who}: {what}" for who, what in a.votes.items())
                details = [
                    f"seen at {a.where}" if a.where else "",
                    f"odd one out: {a.odd_one_out}" if a.odd_one_out else "",
                    f"blame: {a.blame}" if a.blame else "",
                    said,
                ]
                lines += _wrapped(f"{a.name}: " + "; ".join(d for d in details if d), width) if any(details) else []
        for note in self.notes:
            lines += _wrapped(f"note: {note}", width)
        return "\n".join(lines)


def _index(a: ArgumentReport) -> str:
    if a.expected is None:
        return ""
    return "[" + ", ".join(map(str, a.index)) + "]" if a.index else "()"


def _number(x: Any) -> str:
    if x is None:
        return ""
    return f"{complex(x):.5g}" if np.iscomplexobj(x) else f"{float(x):.6g}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _wrapped(text: str, width: int) -> Sequence[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
