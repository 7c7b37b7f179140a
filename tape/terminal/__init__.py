"""What is shown on a terminal: how wide it is, colours where it has some, the same in a notebook, and bars of progress."""

from __future__ import annotations

import html
import linecache
import os
import re
import shutil
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tape.errors import TapeTypeError, check_flag

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def coloured() -> bool:
    """Tell whether the standard output is a terminal that is to have colours (``NO_COLOR`` and ``FORCE_COLOR`` are heeded)."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return is_terminal() and os.environ.get("TERM") != "dumb"


def is_terminal(stream: Any = None) -> bool:
    """Tell whether a stream (the standard output) is a terminal."""
    return bool(getattr(sys.stdout if stream is None else stream, "isatty", lambda: False)())


def columns() -> int:
    """Return how many characters a line may have."""
    return max(40, shutil.get_terminal_size((100, 24)).columns)


def painted(text: str, code: str, color: bool) -> str:
    """Return text in a colour, by its number for terminals, where there are to be some."""
    return f"\x1b[{code}m{text}\x1b[0m" if color and code and text.strip() else text


def clipped(text: str, width: int, *, end: bool = True) -> str:
    """Return text that is no longer than ``width``: its beginning, or, not at its ``end``, what comes last."""
    if len(text) <= width:
        return text
    if width <= 1:
        return text[:width]
    return f"{text[: width - 1]}…" if end else f"…{text[1 - width :]}"


def counted(n: int, one: str, several: str = "") -> str:
    """Return a number of things in words: ``3 runs``."""
    return f"{n:,} {one if n == 1 else several or one + 's'}"


def size(count: float) -> str:
    """Return a number of bytes in words."""
    power = min(max(int(count).bit_length() - 1, 0) // 10, 3)
    return f"{count / 1024**power:.{1 if power else 0}f} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def duration(value: float) -> str:
    """Return a time in words of three digits."""
    return _scaled(value, {"s": 1.0, "ms": 1e-3, "us": 1e-6})


def number(value: float) -> str:
    """Return a number in words: 1.23 M."""
    return f"{value:.0f}" if value < 1000 else _scaled(value, {"P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3})


def _scaled(value: float, units: Mapping[str, float]) -> str:
    """Return a number of three digits in the first of some units in which it is 1 or more, or in the last."""
    unit = next((unit for unit, scale in units.items() if value / scale >= 0.9995), [*units][-1])
    scaled = value / units[unit]
    return f"{scaled:.{0 if scaled >= 99.95 else 1 if scaled >= 9.995 else 2}f} {unit}"


def excess(widths: Mapping[Any, int], width: int) -> int:
    """Return by how much columns, two spaces apart, are wider than a line."""
    return sum(widths.values()) + 2 * (len(widths) - 1) - width


def narrowed(widths: dict[Any, int], width: int, giving: Iterable[tuple[Any, int]]) -> None:
    """Have columns of a table give way, one after the other and each down to its least width, until a line holds them."""
    for column, least in giving:
        if column in widths and (over := excess(widths, width)) > 0:
            widths[column] = max(min(widths[column], least), widths[column] - over)


def aligned(text: str, width: int, code: str = "", color: bool = False, *, right: bool = False, end: bool = True) -> str:
    """Return what stands in a column of this width, at its left or right; what is too long loses its end or its beginning."""
    text = clipped(text, width, end=end)
    return painted(text.rjust(width) if right else text.ljust(width), code, color)


def short_files(files: Iterable[str]) -> dict[str, str]:
    """Return the shortest endings of paths that tell them apart."""
    known = list(dict.fromkeys(files))
    short = {}
    for file in known:
        parts = Path(file).parts
        endings = ["/".join(parts[-count:]) for count in range(1, len(parts) + 1)]
        apart = (e for e in endings if not any(other != file and other.endswith(f"/{e}") for other in known))
        short[file] = _cell(file) or next(apart, "/".join(parts)) or file
    return short


def placed(line: tuple[str, int]) -> str:
    """Return a file and line; a cell of a notebook by its number."""
    return f"{_cell(line[0]) or line[0]}:{line[1]}"


def named(line: tuple[str, int] | None, short: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a file by its ``short`` name, or by its own without its folder (a notebook's cell by its number), and the line; or ""."""
    return "" if line is None else f"{short.get(line[0]) or _cell(line[0]) or Path(line[0]).name}:{line[1]}"


def source_of(line: tuple[str, int] | None) -> str:
    """Return the text of a line; "" where it is not to be had."""
    return "" if line is None else linecache.getline(*line).strip()


def _cell(file: str) -> str:
    """Return what IPython calls the cell that a file stands for; empty where it is none."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    named = getattr(getattr(shell, "compile", None), "format_code_name", lambda _: None)(file)
    return str(named[1]) if named else ""


_STYLES = {"1": "font-weight:bold", "2": "opacity:.6"}
_STYLES |= {"31": "color:#c92a2a", "32": "color:#2b8a3e", "33": "color:#b3720a"}
_STYLES |= {"34": "color:#1c7ed6", "35": "color:#9c36b5", "36": "color:#0b7285"}
_WHOLE = "line-height:1.25;overflow-x:auto;white-space:pre;font-family:ui-monospace,Menlo,Consolas,monospace"  # pages have other fonts
_PART = re.compile("\x1b\\[([0-9;]+)m(.*?)\x1b\\[0m", re.DOTALL)


def html_table(text: str) -> str:
    """Return text with the colours of a terminal as HTML."""

    def styled(match: re.Match[str]) -> str:
        style = ";".join(_STYLES[code] for code in match[1].split(";") if code in _STYLES)
        return f'<span style="{style}">{match[2]}</span>'

    return f'<pre style="{_WHOLE}">{_PART.sub(styled, html.escape(text))}</pre>'


class Shown:
    """What has a ``text(width=..., color=...)``: as wide as the terminal where it is printed, and coloured in a notebook."""

    __slots__ = ()

    text: Any

    def __str__(self) -> str:
        return self.text()  # type: ignore[no-any-return]

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": self.text(width=100, color=False), "text/html": html_table(self.text(width=140, color=True))}


def dressed(function: str, width: int | None, color: bool | None, *, least: int = 60, **counts: int) -> tuple[int, bool]:
    """Return how wide a text is to be (at the ``least``), and if it has colours, given what its function was; ``counts`` are checked.

    Raises:
        TapeTypeError: an option is of another type.

    """
    for name, value in {"width": width, **counts}.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            msg = f"{function}: {name} must be a positive integer, got {value!r}"
            raise TapeTypeError(msg)
    if color is not None:
        check_flag(function, "color", color)
    return columns() if width is None else max(width, least), coloured() if color is None else color
