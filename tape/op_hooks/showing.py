"""What hooks show: values, traced or there, what ops are called, and tables for the terminal (100 columns at most) and for notebooks."""

from __future__ import annotations

import html
import threading
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tape.hooking.observing import OpHook, SeenOp
from tape.jaxapi import Tracer
from tape.programs.program import look
from tape.terminal import aligned, narrowed
from tape.variables.conversion import as_array


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
    size = value.astype(jnp.float32) if value.dtype == bool else jnp.abs(value)
    wide = size.astype(jnp.promote_types(jnp.float32, size.dtype))
    return jnp.sqrt(jnp.sum(wide * wide))


def described(variable: Any) -> str:
    """Return the dtype and shape of a Variable in short: ``float32(3, 4)``."""
    return "None" if variable is None else f"{variable.dtype}{variable.shape}"


class Results(OpHook):
    """Sees what ops and their VJPs make, by one method; subclasses say what becomes of it."""

    def forward_postprocess(self, op: SeenOp, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:  # noqa: ARG002 - as the base class
        """See the outputs of an op."""
        self._on_results(op, outputs, backward=False)

    def backward_postprocess(self, op: SeenOp, input_grads: tuple[Any, ...]) -> None:
        """See what an op adds to the gradients of its inputs."""
        self._on_results(op, input_grads, backward=True)

    def _on_results(self, op: SeenOp, results: Sequence[Any], *, backward: bool) -> None:
        raise NotImplementedError


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
        widths = {i: max(map(len, column)) for i, column in enumerate(zip(heads, *rows, strict=True))}
        narrowed(widths, WIDTH, [(0, 1)])
        lines = ["  ".join(aligned(x, widths[i], right=i > 0) for i, x in enumerate(row)).rstrip() for row in (heads, *rows)]
        return "\n".join([title, lines[0], "-" * (sum(widths.values()) + 2 * (len(widths) - 1)), *lines[1:]])

    def _repr_html_(self) -> str:
        title, heads, rows = self._table()
        head, *body = [
            "".join(f"<{tag}>{html.escape(x)}</{tag}>" for x in row) for tag, row in (("th", heads), *[("td", row) for row in rows])
        ]
        lines = "".join(f"<tr>{line}</tr>" for line in body)
        return f"<table><caption>{html.escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
