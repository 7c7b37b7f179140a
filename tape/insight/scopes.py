"""Scopes: the function, class or module of the user's in which a line stands."""

from __future__ import annotations

import ast
import functools
import linecache
from pathlib import Path

from tape.insight.entries import Entry

KINDS = ("function", "class", "module")


def scope_of(entry: Entry, kind: str) -> str:
    """Return what an entry is grouped by: its ``jax.named_scope``, or else the function, class or module of its line; "" for none."""
    return entry.scope or scope_of_line(entry.where, kind)


def scope_of_line(where: tuple[str, int] | None, kind: str) -> str:
    """Return the function, class or module of a line; "" for none."""
    if where is None:
        return ""
    file, line = where
    if kind == "module":
        return Path(file).stem
    names = _defined(file)
    around = [(first, name, what) for first, last, name, what in names if first <= line <= last and (kind == "function" or what == "class")]
    return max(around)[1] if around else ""


@functools.lru_cache(maxsize=256)
def _defined(file: str) -> tuple[tuple[int, int, str, str], ...]:
    """Return the functions and classes of a file: first and last line, qualified name, and which it is."""
    definitions: list[tuple[int, int, str, str]] = []

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = f"{prefix}{child.name}"
                what = "class" if isinstance(child, ast.ClassDef) else "function"
                definitions.append((child.lineno, child.end_lineno or child.lineno, name, what))
                walk(child, f"{name}.")
            else:
                walk(child, prefix)

    try:
        walk(ast.parse("".join(linecache.getlines(file))), "")
    except (SyntaxError, ValueError):  # a notebook's magics
        return ()
    return tuple(definitions)
