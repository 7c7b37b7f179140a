"""Markup: what a terminal shows, in a notebook, in its colours."""

from __future__ import annotations

import html
import re

_STYLES = {
    "1": "font-weight:bold",
    "2": "opacity:.6",
    "31": "color:#c92a2a",
    "32": "color:#2b8a3e",
    "33": "color:#b3720a",
    "34": "color:#1c7ed6",
}
_STYLES |= {"35": "color:#9c36b5", "36": "color:#0b7285"}
_WHOLE = "line-height:1.25;overflow-x:auto;white-space:pre;font-family:ui-monospace,Menlo,Consolas,monospace"  # pages have other fonts
_PART = re.compile("\x1b\\[([0-9;]+)m(.*?)\x1b\\[0m", re.DOTALL)


def html_table(text: str) -> str:
    """Return text with the colours of a terminal as HTML."""

    def styled(match: re.Match[str]) -> str:
        style = ";".join(_STYLES[code] for code in match[1].split(";") if code in _STYLES)
        return f'<span style="{style}">{match[2]}</span>'

    return f'<pre style="{_WHOLE}">{_PART.sub(styled, html.escape(text))}</pre>'
