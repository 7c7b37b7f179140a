"""Batched sweeps through a ``tape.Function``: its backward is traced once, under ``jax.vmap``, for all rows of cotangents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from tape import jaxapi, record
from tape.captures import trace_capturing
from tape.errors import ConcretizationError
from tape.interning import intern
from tape.program import look
from tape.pullback import differentiable
from tape.segment import LOCAL
from tape.trie import RECORD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tape.segment import Segment

__all__ = ["swept_rows"]


def swept_rows(context: Any, segment: Segment, cotangents: Sequence[Any]) -> list[Any] | None:
    """Return the gradients, with the further first axis of the cotangents; None where Python looks at values and must see row by row.

    Args:
        context: the context of the entry.
        segment: where it stands.
        cotangents: Variables with a further first axis, or None.

    """
    present = [i for i, ct in enumerate(cotangents) if ct is not None]
    given: list[bool] = []

    def one(*arrays: Any) -> list[Any]:
        with LOCAL.captures.part():
            cts: list[Any] = [None] * len(cotangents)
            for i, x in zip(present, arrays, strict=True):
                cts[i] = LOCAL.captures.leaf(x, requires_grad=LOCAL.mode == RECORD and differentiable(x))
            found = context.sweep(segment, cts)
            given[:] = [g is not None for g in found]
            return [look(g) for g in found if g is not None]

    try:
        traced = trace_capturing(jax.vmap(one), [cotangents[i]._place.kind.aval for i in present], [])
    except (ConcretizationError, *jaxapi.CONCRETE_ERRORS):
        return None
    constants = [record.constant(c) for c in traced.jaxpr.consts]
    op = intern("vmap", jaxapi.hoist(traced.jaxpr, traced.used), jax.tree.structure(traced.shapes))
    found = iter(record.record(op, [*constants, *[cotangents[i] for i in present], *traced.captured]))
    return [next(found) if g else None for g in given]
