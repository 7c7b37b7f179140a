"""Naming: what an entry is called in compiled programs, so that JAX's own profiler shows the tape's op and the user's line.

XLA keeps the name with each operation that it makes of an entry (``op_name`` of its metadata), through fusions too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from tape.bounded import Bounded
from tape.graph.trie import Step
from tape.ops.building import JaxprBuilder

# What was named, so that the parts of a program can be told apart again: the op and the line.
_NAMES: Bounded[tuple[str, tuple[Any, ...] | None], str] = Bounded("names of entries", 1 << 13)
_NAMED: Bounded[str, tuple[str, tuple[str, int]]] = Bounded("names in programs", 1 << 14)


def name_of(entry: Step, line: tuple[Any, ...] | None = None) -> str:
    """Return what an entry is called: ``tanh (train.py:12)``, by the ``line`` where it was recorded first if no other one is given.

    The one of a sweep has the line of that which it is the VJP of.  A line may be followed by the user's names around it.
    """
    op, where = (entry.kernel if entry.op is None else entry.op).name, line or entry.where
    name = _NAMES.get((op, where))
    return _new_name(op, where) if name is None else name


def _new_name(op: str, where: tuple[Any, ...] | None) -> str:
    name = said = op.replace("/", ".")  # one level of JAX's stack
    if where is not None:
        name = f"{said} ({Path(where[0]).name}:{where[1]})"
        _NAMED[name] = said, where[:2]
        name = "/".join((*where[2:], name))
    _NAMES[op, where] = name
    return name


def named_by(name_stack: object) -> tuple[str, tuple[str, int]] | None:
    """Return the op and the line of the innermost entry in JAX's stack of names; None where there is none."""
    for name in reversed(str(name_stack).split("/")):
        named = _NAMED.get(name)
        if named is not None:
            return named
    return None


def inline(
    entry: Step, instead: Callable[..., Sequence[Any]] | None = None, line: tuple[Any, ...] | None = None
) -> Callable[..., Sequence[Any]]:
    """Return what evaluates an entry's kernel, or what is to run ``instead``, as a part of a program, under its name."""
    name, run = name_of(entry, line), entry.kernel.inline if instead is None else instead

    def named(*operands: Any) -> Sequence[Any]:
        with jax.named_scope(name):
            return run(*operands)

    return named


def copy(entry: Step, into: JaxprBuilder, atoms: dict[int, Any], line: tuple[Any, ...] | None = None) -> None:
    """Add an entry's kernel to a jaxpr under its name; ``atoms`` holds what it reads, and gets the results."""
    results = into.inline(entry.kernel.jaxpr, [atoms[s] for s in entry.inputs], name=name_of(entry, line))
    atoms.update(zip(entry.slots, results, strict=True))
