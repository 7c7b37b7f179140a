"""``python -m tape error NAME``: the page of an error class, which comes with the package: its cause, an example, the repair."""

from __future__ import annotations

import argparse
import difflib
import re
import textwrap
from pathlib import Path
from typing import Any

from tape import errors
from tape.errors import TapeValueError
from tape.terminal import coloured, columns, is_terminal, painted

FOLDER = Path(__file__).parent / "errors"
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")
_FENCE = re.compile(r"```\w*")


def add(commands: Any) -> None:
    """Enter the command."""
    parser = commands.add_parser(
        "error",
        help="the page of an error class: cause, example, repair",
        description="Show the page of an error class, or list the classes.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="as a traceback has it: SeedError, tape.errors.SeedError")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> bool:
    """Print a page, or what each class says of itself; nothing is wrong with that."""
    if options.name is None:
        width = max(map(len, names()))
        for name in names():
            said = f"{name:{width}}  {(getattr(errors, name).__doc__ or '').splitlines()[0].replace('``', '')}"
            print("\n".join(textwrap.wrap(said, columns(), subsequent_indent=" " * (width + 2))) if is_terminal() else said)
    else:
        print(page(options.name, color=coloured()))
    return False


def names() -> list[str]:
    """Return the names of all error classes."""
    return [name for name in errors.__all__ if isinstance(getattr(errors, name), type)]


def page(name: str, *, color: bool = False) -> str:
    """Return the page of a class as it is read on a terminal: code is indented, links are their text.

    Args:
        name: of the class, with or without its module.
        color: whether headings are coloured.

    Raises:
        tape.errors.TapeValueError: there is no such class.

    """
    short = name.rpartition(".")[2]
    if short not in names():
        near = difflib.get_close_matches(short, names(), n=1)
        msg = f"there is no error class {name!r}; " + (f"did you mean {near[0]}?" if near else "without a name all are listed")
        raise TapeValueError(msg)
    shown: list[str] = []
    paragraph: list[str] = []
    code, wide = False, columns() if is_terminal() else 140
    for line in [*(FOLDER / f"{short}.md").read_text(encoding="utf-8").splitlines(), ""]:
        fence, heading = _FENCE.fullmatch(line), line.startswith("#") and not code
        if paragraph and (fence or heading or not line):
            shown += textwrap.wrap(" ".join(paragraph), wide)
            paragraph = []
        if fence:
            code = not code
        elif code:
            shown.append(f"    {line}".rstrip())
        elif heading:
            shown.append(painted(line.lstrip("# "), "1", color))
        elif line:
            paragraph.append(_LINK.sub(r"\1", line).replace("`", ""))
        else:
            shown.append("")
    return "\n".join(shown).rstrip()
