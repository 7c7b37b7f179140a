"""Rows: the backward of a ``tape.Function`` in the batched sweep of a Jacobian, called once for all rows.

It is traced for one row, as callables of control flow are, under ``jax.vmap``, with what the context holds among the inputs; the traced program
is recorded as one entry.  A backward that looks at values cannot be traced, and is called for each row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from tape import jaxapi
from tape.callables.captures import trace_capturing
from tape.graph.kinds import differentiable
from tape.graph.scope import LOCAL
from tape.graph.trie import RECORD
from tape.ops.interning import intern
from tape.programs.program import look
from tape.recording import record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tape.graph.boundary import Caller

__all__ = ["batched"]


class _MarkedError(Exception):
    """A gradient that has no derivative would be recorded without that mark."""


def batched(
    name: str, sweep: Callable[[list[Any]], Sequence[Any]], held: Sequence[Any], cotangents: Sequence[Any], caller: Caller
) -> list[Any] | None:
    """Return what ``sweep`` makes of each row of ``cotangents``, stacked; None where it cannot be traced.

    Args:
        name: what the entry is called.
        sweep: a function of one cotangent (or None) per result to one gradient (or None) per argument.
        held: Variables that it is expected to read.
        cotangents: stacked along a first axis, or None.
        caller: notes whether the user's Python looked at a value.

    """
    present = [ct for ct in cotangents if ct is not None]
    flows: list[bool] = []

    def row(*arrays: Any) -> list[Any]:
        scope = LOCAL.scope
        with scope.trace.part():
            given = iter(arrays)
            recorded = scope.mode == RECORD
            cts = [None if ct is None else record.leaf(x := next(given), requires_grad=recorded and differentiable(x)) for ct in cotangents]
            found = sweep(cts)
            flows[:] = [g is not None for g in found]
            if recorded and (caller.looked or any(g is not None and g._place.kind.unrecorded for g in found)):
                raise _MarkedError
            return [look(g) for g in found if g is not None]

    def reads() -> Sequence[Any]:
        return held

    try:
        traced = trace_capturing(jax.vmap(row), [ct._place.kind.aval for ct in present], [reads])
    except Exception:  # noqa: BLE001 - what is wrong with it besides is found out row by row
        return None
    if traced.jaxpr.effects:
        return None
    constants = [record.constant(c) for c in traced.jaxpr.consts]
    op = intern(name, jaxapi.hoist(traced.jaxpr, traced.used), jax.tree.structure(traced.shapes))
    results = iter(record.record(op, [*constants, *present, *traced.captured]) if True in flows else ())
    return [next(results) if flag else None for flag in flows]
