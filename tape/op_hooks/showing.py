"""What hooks show: values, traced or there, what ops are called, and tables for the terminal (100 columns at most) and for notebooks."""

from __future__ import annotations

import html
import threading
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from tape.jaxapi import Tracer
from tape.programs.program import look
from tape.variables.conversion import as_array

if TYPE_CHECKING:
    from collections.abc import Sequence


class Nesting(threading.local):
    """What a hook noted of the ops that a thread is in, innermost last, each after the op's name."""

    def __init__(self) -> None:
        self.stack: list[list[Any]] = []

    def leave(self, name: str) -> list[Any] | None:
        """Return what was noted of the op that ends; None where it did not begin."""
        stack = self.stack
        while stack and stack[-1][0] != name:  # an op that failed began and did not end
            stack.pop()
        return stack.pop() if stack else None


def values_of(variables: Sequence[Any]) -> list[Any]:
    """Return the arrays of Variables, None for None; what is pending runs."""
    return [None if v is None else as_array(look(v)) for v in variables]


def has_values(values: Sequence[Any]) -> bool:
    """Tell whether none of the arrays is traced."""
    return not any(isinstance(value, Tracer) for value in values)


def wait(variables: Sequence[Any]) -> bool:
    """Wait until the values of Variables are there; return False where they are traced."""
    values = values_of(variables)
    if not has_values(values):
        return False
    jax.block_until_ready(values)
    return True


def norm(value: jax.Array) -> jax.Array | None:
    """Return the Euclidean norm of an array, or None where it is not made of numbers."""
    if not (jnp.issubdtype(value.dtype, jnp.number) or value.dtype == bool):
        return None
    wide = jnp.abs(value).astype(jnp.promote_types(jnp.float32, jnp.abs(value).dtype if value.dtype != bool else jnp.float32))
    return jnp.sqrt(jnp.sum(wide * wide))


def described(variable: Any) -> str:
    """Return the dtype and shape of a Variable in short: ``float32(3, 4)``."""
    return "None" if variable is None else f"{variable.dtype}{variable.shape}"


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


def size(count: float) -> str:
    """Return a number of bytes in words."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
