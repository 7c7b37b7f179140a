"""The tape as text: a table as wide as the terminal, in colours where it is one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from tape.insight.entries import typed
from tape.insight.folding import Block, folded
from tape.terminal import clipped, named, painted, short_files, size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tape.insight.entries import Entry, Value
    from tape.insight.folding import Item

_COLOURS = {
    "number": "2",
    "op": "1;36",
    "type": "33",
    "bytes": "2",
    "line": "2",
    "note": "35",
    "sweep": "1;34",
    "leaf": "32",
    "fold": "1;33",
}
_LEAST = 8  # characters of a column that gives way
_LIMIT = 1000  # lines shown
_DTYPES = {"bfloat": "bf", "float": "f", "complex": "c", "uint": "u", "int": "i"}
_DTYPE = re.compile(r"\b(bfloat|float|complex|uint|int)(\d+)")
_PAINT = re.compile("\x1b\\[[0-9;]*m")


class TextRow:
    """One line of the table: cells by their column, after an indentation."""

    __slots__ = ("cells", "depth", "style", "whole")

    def __init__(self, depth: int, cells: dict[str, str], whole: str | None = None, style: str = "") -> None:
        self.depth = depth
        self.cells = cells
        self.whole = whole  # a line that has no columns
        self.style = style  # of the whole line, or of its op


ORDER = ("number", "op", "inputs", "type", "bytes", "note", "line")
_RIGHT = frozenset({"number", "bytes"})


def table(
    entries: Sequence[Entry],
    leaves: Sequence[Value],
    sweeps: Sequence[tuple[str, int] | None],
    *,
    width: int,
    color: bool,
    fold: bool,
    inner: bool,
) -> str:
    """Return the tape as a table."""
    names = short_files([e.where[0] for e in entries if e.where is not None])
    rows = [_leaf(value) for value in leaves]
    shows = Shows(sweeps, names, inner, any(e.requires_grad and not e.released for e in entries))
    rows += _rows(folded(entries) if fold else entries, shows)
    cut = 0
    if len(rows) > _LIMIT:
        cut = len(rows) - _LIMIT
        half = _LIMIT // 2
        rows = [*rows[:half], TextRow(0, {}, f"... {cut} lines left out: t.entries has them ...", style="fold"), *rows[-half:]]
    return "\n".join(_laid_out(rows, width, color))


def _leaf(value: Value) -> TextRow:
    note = "requires grad" if value.requires_grad else ""
    return TextRow(0, {"op": value.name, "type": typed(value), "bytes": size(value.nbytes), "note": note}, style="leaf")


class Shows(NamedTuple):
    """What of entries is shown."""

    sweeps: Sequence[tuple[str, int] | None]
    names: dict[str, str]  # of files, in short
    inner: bool
    released: bool  # not where all are


def _rows(items: Sequence[Item], shows: Shows, depth: int = 0) -> Iterator[TextRow]:
    sweep: int | None = None
    for item in items:
        of = _sweep_of(item)
        if of != sweep and of is not None and depth == 0:
            at = shows.sweeps[of - 1] if of <= len(shows.sweeps) else None
            yield TextRow(0, {}, f"sweep {of}" + ("" if at is None else f", asked for at {named(at, shows.names)}"), style="sweep")
        sweep = of
        if isinstance(item, Block):
            said = f"{item.times} times the like, entries {item.first} to {item.last}:"
            yield TextRow(depth, {}, said, style="fold")
            yield from _rows(item.items, shows, depth + 1)
        else:
            yield _entry(item, shows, depth)
            if shows.inner and item.weight > 1:
                yield from _rows(item.inner, shows._replace(inner=item.weight > len(item.inner)), depth + 1)


def _sweep_of(item: Item) -> int | None:
    while isinstance(item, Block):
        item = item.items[0]
    return item.sweep


def _entry(entry: Entry, shows: Shows, depth: int) -> TextRow:
    notes = []
    if entry.of is not None:
        notes.append(f"of %{entry.of}")
    if entry.inside is not None:
        notes.append(f"in {entry.inside}")
    if entry.no_grad:
        notes.append("no grad")
    if entry.released and entry.requires_grad and shows.released:
        notes.append("released")
    if entry.weight >= 8 and any(e.weight > 1 for e in entry.inner):
        notes.append(f"{entry.weight} inside")
    if entry.scope:
        notes.append(entry.scope)
    where = named(entry.where, shows.names)
    types = " ".join(dict.fromkeys(typed(v) for v in entry.outputs))
    if len(entry.outputs) > 1 and " " not in types:
        types = f"{len(entry.outputs)} x {types}"
    inputs = " ".join(map(str, entry.inputs))
    cells = {
        "number": f"%{entry.number}",
        "op": entry.op,
        "inputs": inputs,
        "type": types,
        "bytes": size(entry.nbytes) if entry.outputs else "",
    }
    return TextRow(depth, {**cells, "note": ", ".join(notes), "line": where})


def _wide(rows: Sequence[TextRow], column: str) -> int:
    """Return how many characters a column wants; what a leaf says last may go on to the end of the line."""
    said = [r for r in rows if column != "note" or r.cells.get("line")] or rows
    return max((len(r.cells.get(column, "")) + (2 * r.depth if column == "number" else 0) for r in said), default=0)


def _laid_out(rows: Sequence[TextRow], width: int, color: bool) -> Iterator[str]:
    widths = {c: _wide(rows, c) for c in ORDER}
    shown = [c for c in ORDER if any(r.cells.get(c) for r in rows)]
    for giving, least in (
        ("inputs", 16),
        ("op", 14),
        ("note", 13),
        ("line", 14),
        ("brief", 0),
        ("inputs", _LEAST),
        ("type", 12),
        ("op", _LEAST),
        ("note", 10),
    ):
        over = sum(widths[c] for c in shown) + 2 * (len(shown) - 1) - width
        if over > 0 and giving == "brief":
            for row in rows:
                row.cells["type"] = _DTYPE.sub(
                    lambda match: _DTYPES[match[1]] + match[2], row.cells.get("type", "")
                )  # as JAX writes them in short: f32[3]
            widths["type"] = _wide(rows, "type")
        elif over > 0 and giving in shown:
            widths[giving] = max(min(widths[giving], least), widths[giving] - over)
    for left_out in ("bytes", "note"):
        if sum(widths[c] for c in shown) + 2 * (len(shown) - 1) > width and left_out in shown:
            shown.remove(left_out)
    over = sum(widths[c] for c in shown) + 2 * (len(shown) - 1) - width
    for giving in ("line", "inputs", "type", "op"):
        if over > 0 and giving in shown:
            less = min(over, max(widths[giving] - 4, 0))
            widths[giving] -= less
            over -= less
    deepest = max((row.depth for row in rows if row.cells), default=0)
    for row in rows:
        if row.whole is not None:
            yield painted("  " * row.depth + clipped(row.whole, width - 2 * row.depth), _COLOURS[row.style], color)
            continue
        cells: list[str] = []
        for column in shown:
            text = row.cells.get(column, "")
            if column == "number":
                text = ("  " * row.depth + text.rjust(widths[column] - 2 * deepest)) if text else ""
                text = text.ljust(widths[column])
            elif column == "line":
                text = clipped(text, widths[column], end=False)
            elif column == "note" and not row.cells.get("line"):
                text = clipped(text, width - sum(map(_length, cells)) - 2 * len(cells))
            else:
                text = clipped(text, widths[column])
                text = text.rjust(widths[column]) if column in _RIGHT else text.ljust(widths[column])
            cells.append(painted(text, _COLOURS.get(row.style if column == "op" and row.style else column, ""), color))
        yield "  ".join(cells).rstrip()


def _length(cell: str) -> int:
    return len(_PAINT.sub("", cell))
