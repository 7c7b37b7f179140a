"""Tables of what hooks found, for the terminal (100 columns at most) and for notebooks."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tape.hooking.observing import SeenOp

__all__ = ["Table", "label", "size"]

WIDTH = 100


class Table:
    """What a hook found, as rows of text; subclasses say which."""

    def _table(self) -> tuple[str, list[str], list[list[str]]]:
        """Return a title, the heads of the columns, and the rows; the first column is text, the others are numbers."""
        raise NotImplementedError

    def __repr__(self) -> str:
        title, heads, rows = self._table()
        if not rows:
            return f"{title}: nothing so far"
        widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
        widths[0] = min(widths[0], WIDTH - sum(widths[1:]) - 2 * (len(widths) - 1))
        lines = [_line(heads, widths), "-" * (sum(widths) + 2 * (len(widths) - 1)), *[_line(row, widths) for row in rows]]
        return "\n".join([title, *lines])

    def _repr_html_(self) -> str:
        title, heads, rows = self._table()
        head = "".join(f"<th>{html.escape(h)}</th>" for h in heads)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(x)}</td>" for x in row) + "</tr>" for row in rows)
        return f"<table><caption>{html.escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first = cells[0] if len(cells[0]) <= widths[0] else cells[0][: widths[0] - 3] + "..."
    return "  ".join([first.ljust(widths[0]), *[c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True)]]).rstrip()


def label(op: SeenOp, by: str) -> str:
    """Return what an op is counted under: its name, with its line where ``by`` is ``"line"``."""
    if by == "op" or op.where is None:
        return op.name
    return f"{op.name} ({Path(op.where[0]).name}:{op.where[1]})"


def size(count: float) -> str:
    """Return a number of bytes in words."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
