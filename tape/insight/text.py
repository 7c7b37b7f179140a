"""The tape as text: a table as wide as the terminal, in colours where it is one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tape.insight.entries import Entry, Value, typed, types
from tape.insight.folding import Block, Item, folded
from tape.terminal import aligned, clipped, excess, named, narrowed, painted, short_files, size

_COLOURS = {"number": "2", "op": "1;36", "type": "33", "bytes": "2", "line": "2"}
_COLOURS |= {"note": "35", "sweep": "1;34", "leaf": "32", "fold": "1;33"}
_ORDER = ("number", "op", "inputs", "type", "bytes", "note", "line")
_LIMIT = 1000  # lines shown
_DTYPES = {"bfloat": "bf", "float": "f", "complex": "c", "uint": "u", "int": "i"}
_DTYPE = re.compile(r"\b(bfloat|float|complex|uint|int)(\d+)")


class TextRow(NamedTuple):
    """One line of the table: cells by their column, after an indentation, or a ``whole`` line; ``style`` is of that, or of the op."""

    depth: int
    cells: dict[str, str]
    whole: str = ""
    style: str = ""


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
    if len(rows) > _LIMIT:
        half = _LIMIT // 2
        left_out = f"... {len(rows) - _LIMIT} lines left out: t.entries has them ..."
        rows = [*rows[:half], TextRow(0, {}, left_out, "fold"), *rows[-half:]]
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
    released = entry.released and entry.requires_grad and shows.released
    inside = entry.weight if entry.weight >= 8 and any(e.weight > 1 for e in entry.inner) else 0
    notes = {
        f"of %{entry.of}": entry.of is not None,
        f"in {entry.inside}": entry.inside is not None,
        "no grad": entry.no_grad,
        "released": released,
        f"{inside} inside": inside,
        entry.scope: entry.scope,
    }
    said = types(entry)
    cells = {
        "number": f"%{entry.number}",
        "op": entry.op,
        "inputs": " ".join(map(str, entry.inputs)),
        "type": f"{len(entry.outputs)} x {said}" if len(entry.outputs) > 1 and " " not in said else said,
        "bytes": size(entry.nbytes) if entry.outputs else "",
        "note": ", ".join(note for note, told in notes.items() if told),
        "line": named(entry.where, shows.names),
    }
    return TextRow(depth, cells)


def _wide(rows: Sequence[TextRow], column: str) -> int:
    """Return how many characters a column wants; what a leaf says last may go on to the end of the line."""
    said = [r for r in rows if column != "note" or r.cells.get("line")] or rows
    return max((len(r.cells.get(column, "")) + (2 * r.depth if column == "number" else 0) for r in said), default=0)


def _laid_out(rows: Sequence[TextRow], width: int, color: bool) -> Iterator[str]:
    widths = {c: _wide(rows, c) for c in _ORDER if any(r.cells.get(c) for r in rows)}
    narrowed(widths, width, [("inputs", 16), ("op", 14), ("note", 13), ("line", 14)])
    if excess(widths, width) > 0 and "type" in widths:
        for row in rows:  # as JAX writes them in short: f32[3]
            row.cells["type"] = _DTYPE.sub(lambda match: _DTYPES[match[1]] + match[2], row.cells.get("type", ""))
        widths["type"] = _wide(rows, "type")
    narrowed(widths, width, [("inputs", 8), ("type", 12), ("op", 8), ("note", 10)])
    for column in ("bytes", "note"):
        if excess(widths, width) > 0:
            widths.pop(column, None)
    narrowed(widths, width, [(column, 4) for column in ("line", "inputs", "type", "op")])
    deepest = max((row.depth for row in rows if row.cells), default=0)
    for row in rows:
        if row.whole:
            yield painted("  " * row.depth + clipped(row.whole, width - 2 * row.depth), _COLOURS[row.style], color)
            continue
        cells: list[str] = []
        left = width
        for column, wide in widths.items():
            text, code = row.cells.get(column, ""), _COLOURS.get(row.style if column == "op" and row.style else column, "")
            if column == "number" and text:
                text = "  " * row.depth + text.rjust(wide - 2 * deepest)
            if column == "line":
                cells.append(painted(clipped(text, wide, end=False), code, color))
            elif column == "note" and not row.cells.get("line"):
                cells.append(painted(clipped(text, left), code, color))
            else:
                cells.append(aligned(text, wide, code, color, right=column == "bytes"))
            left -= wide + 2
        yield "  ".join(cells).rstrip()
