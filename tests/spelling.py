"""Tables of spelling: a page's tables whose second column is headed ``jax-tape`` are one program in two libraries, row after row.

``python tests/spelling.py docs/guides/from_pytorch.md`` runs the left column alone, in an environment with that library (and NumPy).
"""

import ast
import re
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Row(NamedTuple):
    """A row: code of the other library, ours, what the last line of either gives (empty: nothing is said), and its line in the page."""

    theirs: str
    ours: str
    gives: str
    line: int


def rows(text):
    """Return the rows of a page; a cell's code is what stands in backticks, line by line (``<br>``)."""
    found, inside = [], False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("|"):
            inside = False
        elif re.fullmatch(r"\|[^|]+\| jax-tape \| gives \|", line):
            inside = True
        elif inside and not re.fullmatch(r"[| -]+", line):
            cells = [re.findall(r"(`+)(.+?)\1", cell.replace("\\|", "|")) for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            found.append(Row(*["\n".join(code for _, code in cell) for cell in cells], number))
    return found


def run(code, namespace, line, page):
    """Run a row's code, and return the value of its last line, if that has one."""
    tree = ast.parse("\n" * (line - 1) + code, str(page))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(page), "exec"), namespace)  # noqa: S102 - our own text
    return None if last is None else eval(compile(ast.Expression(last.value), str(page), "eval"), namespace)  # noqa: S307 - as above


def show(value):
    """Write a value of any of the libraries in the same way."""
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(show, value))})"
    if value is None or isinstance(value, (str, bool, int)):
        return str(value)
    for name in ("detach", "array", "numpy"):  # PyTorch and the tape, Chainer, TensorFlow too
        if callable(getattr(value, name, None)):
            value = getattr(value, name)()
        elif name == "array" and hasattr(value, "array"):
            value = value.array
    array = np.asarray(value)
    if array.dtype == object:
        return str(value)
    if array.dtype.kind in "fc":
        array = array + 0.0  # without negative zeros
    if array.ndim == 0 and array.dtype.kind == "f":
        return str(round(float(array), 4))
    return " ".join(np.array2string(array, precision=4, suppress_small=True, separator=", ", floatmode="maxprec").split())


def wrong(page, column):
    """Return which rows of a page give something else than they say; ``column`` is ``"theirs"`` or ``"ours"``."""
    found, namespace = [], {"__name__": "page"}
    for row in rows(page.read_text(encoding="utf-8")):
        code = getattr(row, column)
        try:
            value = run(code, namespace, row.line, page)
            got = show(value) if row.gives else ""
        except Exception as error:  # noqa: BLE001 - all rows are looked at
            got = repr(error)
        if got != row.gives:
            found.append(f"{page.name}:{row.line}: {code}: {got} for {row.gives}")
    return found


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print("\n".join(wrong(Path(path), "theirs")))
