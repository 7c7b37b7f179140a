"""Naming: what an entry is called in compiled programs, so that JAX's own profiler shows the tape's op and the user's line.

XLA keeps the name with each operation that it makes of an entry (``op_name`` of its metadata), through fusions too.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from tape.bounded import Bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tape.graph.trie import Step
    from tape.ops.kernel import Kernel

# What was named, so that the parts of a program can be told apart again: the op and the line.
_NAMED: Bounded[str, tuple[str, tuple[str, int]]] = Bounded("names in programs", 1 << 14)


def name_of(entry: Step) -> str:
    """Return what an entry is called: ``tanh (train.py:12)``; the one of a sweep has the line of that which it is the VJP of."""
    op: str = (entry.kernel if entry.op is None else entry.op).name.replace("/", ".")
    if entry.where is None:
        return op
    name = f"{op} ({Path(entry.where[0]).name}:{entry.where[1]})"
    _NAMED[name] = op, entry.where
    return name


def named_by(name_stack: object) -> tuple[str, tuple[str, int]] | None:
    """Return the op and the line of the innermost entry in JAX's stack of names; None where there is none."""
    for name in reversed(str(name_stack).split("/")):
        found = _NAMED.get(name)
        if found is not None:
            return found
    return None


def inline(entry: Step, kernel: Kernel | None = None) -> Callable[..., Sequence[Any]]:
    """Return what evaluates an entry's kernel, or another one in its place, as a part of a program, under its name."""
    name, run = name_of(entry), (entry.kernel if kernel is None else kernel).inline

    def named(*operands: Any) -> Sequence[Any]:
        with jax.named_scope(name):
            return run(*operands)

    return named
