"""A report as HTML: the table, and for each failure its numbers side by side as a picture."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tape.testing.report import ArgumentReport, Report

CELLS = 48  # of a picture's side; larger arrays are thinned out
SIDE = 168  # of a picture, in pixels
COLORS = {"pass": "#1a7f37", "fail": "#cf222e", "inaccurate": "#bc4c00", "inconclusive": "#9a6700"}


def page(report: Report) -> str:
    """Return the report as an HTML fragment.

    Args:
        report: what a check returned.

    Returns:
        A table, and an embedded SVG for each array that fails: expected, got, and their difference.

    """
    rows = "".join(_row(a) for a in report.arguments)
    head = "".join(
        f"<th style='text-align:left'>{h}</th>" for h in ("argument", "verdict", "worst element", "expected", "got", "diagnosis")
    )
    pictures = "".join(_pictures(a) for a in report.failures)
    notes = "".join(f"<p><small>{html.escape(note)}</small></p>" for note in report.notes)
    title = f"gradient of {html.escape(report.function)}: {_verdict(report.verdict)}"
    return f"<div><p>{title}</p><table><tr>{head}</tr>{rows}</table>{pictures}{notes}</div>"


def _verdict(verdict: str) -> str:
    return f"<b style='color:{COLORS[verdict]}'>{verdict}</b>"


def _row(a: ArgumentReport) -> str:
    numbers = ["" if x is None else f"{complex(x):.6g}" if np.iscomplexobj(x) else f"{float(x):.6g}" for x in (a.expected, a.got)]
    index = "" if a.expected is None else str(list(a.index))
    said = "; ".join(
        part for part in (a.diagnosis, f"seen at {a.where}" if a.where else "", f"blame: {a.blame}" if a.blame else "") if part
    )
    cells = [html.escape(a.name), _verdict(a.verdict), html.escape(index), *numbers, html.escape(said)]
    return "<tr>" + "".join(f"<td style='text-align:left'>{c}</td>" for c in cells) + "</tr>"


def _pictures(a: ArgumentReport) -> str:
    if a.expected_array is None or a.got_array is None or np.shape(a.expected_array) != np.shape(a.got_array):
        return ""
    expected, got = _flat(a.expected_array), _flat(a.got_array)
    if not expected.size:
        return ""
    with np.errstate(invalid="ignore"):
        panels = [("expected", expected), ("got", got), ("difference", got - expected)]
    limit = max((float(np.max(np.abs(p[np.isfinite(p)]), initial=0)) for _, p in panels[:2]), default=0.0)
    far = float(np.max(np.abs(panels[2][1][np.isfinite(panels[2][1])]), initial=0))
    drawn = [_panel(name, p, (far if name == "difference" else limit) or 1.0, i) for i, (name, p) in enumerate(panels)]
    width, height = 3 * (SIDE + 16), SIDE + 34
    return (
        f"<p>{html.escape(a.name)}</p><svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' "
        f"font-family='sans-serif' font-size='11'>{''.join(drawn)}</svg>"
    )


def _flat(x: object) -> np.ndarray:
    """Return an array as a matrix of real numbers that fits a picture."""
    x = np.asarray(x)
    x = np.abs(x) if np.iscomplexobj(x) else x
    if x.ndim < 2:
        side = int(np.ceil(np.sqrt(x.size))) if x.size > CELLS else max(x.size, 1)
        x = np.pad(x.ravel().astype(float), (0, -x.size % side), constant_values=np.nan).reshape(-1, side)
    x = x.reshape(-1, x.shape[-1])
    return np.asarray(x[:: -(-x.shape[0] // CELLS) or 1, :: -(-x.shape[1] // CELLS) or 1], float)


def _panel(name: str, values: np.ndarray, limit: float, position: int) -> str:
    rows, columns = values.shape
    cell = SIDE / max(rows, columns)
    left = position * (SIDE + 16)
    parts = [f"<text x='{left}' y='12'>{name} (±{limit:.3g})</text>"]
    for i in range(rows):
        for j in range(columns):
            x, y = left + j * cell, 18 + i * cell
            parts.append(f"<rect x='{x:.1f}' y='{y:.1f}' width='{cell:.1f}' height='{cell:.1f}' fill='{_color(values[i, j], limit)}'/>")
    return "".join(parts)


def _color(value: float, limit: float) -> str:
    """Blue below zero, white at zero, red above, black where there is no number."""
    if not np.isfinite(value):
        return "#000"
    share = round(255 * (1 - min(abs(value) / limit, 1.0)))
    return f"rgb(255,{share},{share})" if value > 0 else f"rgb({share},{share},255)"
