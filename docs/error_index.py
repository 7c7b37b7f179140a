"""Write docs/errors/index.md, the table of all error classes, from what they say of themselves: ``python docs/error_index.py``."""

from __future__ import annotations

import re
from pathlib import Path

from tape import errors

FOLDER = Path(__file__).parent / "errors"
HEAD = """# Errors

Every error that this library raises on purpose is a `tape.errors.TapeError` and the builtin that you would expect. Its message says what
happened, with which value, and what to do; the page of its class has the cause, an example and the repair, both executed by the tests.

A traceback ends with the command that shows the page where you are, without a network (`python -m tape error SeedError`; without a name it lists
the classes). That line is a note of the error (PEP 678): `str(error)` is the message alone. Doctests compare notes too;
`tape.errors.PAGES = None` switches the line off, and the address of a site in its place (`"https://.../{}.html"`) leads there.

This table is written by `python docs/error_index.py`.
"""


def classes() -> list[type[Warning | errors.TapeError]]:
    """Return every class that has a page, general ones before those that derive from them."""
    found = [thing for name in errors.__all__ if isinstance(thing := getattr(errors, name), type)]
    return sorted(found, key=lambda c: (not issubclass(c, errors.TapeError), len(c.__mro__), c.__name__))


def page() -> str:
    """Return the page."""
    rows = []
    for cls in classes():
        bases = [f"`{b.__name__}`" for b in cls.__mro__[1:] if b.__module__ == "builtins" and b not in (Exception, BaseException, object)]
        said = re.sub(r"``(.+?)``", r"`\1`", (cls.__doc__ or "").splitlines()[0])
        also = f" Also caught as {' and '.join(bases)}." if bases else ""
        rows.append(f"| [{cls.__name__}](../../tape/command/errors/{cls.__name__}.md) | {said}{also} |")
    names = "\n".join(f"../generated/errors/{cls.__name__}" for cls in classes())
    table = "\n".join(["| class | what happened |", "| --- | --- |", *rows])
    return f"{HEAD}\n{table}\n\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"


if __name__ == "__main__":
    (FOLDER / "index.md").write_text(page(), encoding="utf-8")
