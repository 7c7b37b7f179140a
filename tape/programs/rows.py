"""Rows: entries that put values together into an array, row by row, or take one apart: loops hand such arrays on as they are."""

from __future__ import annotations

from typing import Any

from tape.graph.trie import Step
from tape.jaxapi import Jaxpr, JaxprEqn

LEAST = 3  # rows
_EXPANDING = {"broadcast_in_dim", "reshape", "expand_dims"}
_SQUEEZING = {"squeeze", "reshape"}


def _makers(jaxpr: Jaxpr) -> dict[Any, JaxprEqn]:
    """Return for each variable the equation that gives it."""
    return {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}


def puts_together(entry: Step) -> bool:
    """Tell whether the result of an entry is the array whose rows are its inputs, as of ``stack(values)``."""
    if len(entry.inputs) < LEAST or len(entry.slots) != 1:
        return False
    jaxpr = entry.kernel.jaxpr.jaxpr
    shapes = {v.aval.shape for v in jaxpr.invars}
    (out,) = jaxpr.outvars
    if len(shapes) > 1 or out.aval.shape != (len(jaxpr.invars), *min(shapes)):
        return False
    makers = _makers(jaxpr)
    last = makers.get(out)
    if last is None or last.params.get("axis", last.params.get("dimension")) != 0:
        return False
    if last.primitive.name == "stack":
        return list(last.invars) == list(jaxpr.invars)
    one = (1, *min(shapes))

    def expanded(v: Any) -> Any:
        """Return what a row of the result was before it became one."""
        eqn = makers.get(v)
        if eqn is None or eqn.primitive.name not in _EXPANDING or v.aval.shape != one:
            return None
        axes = eqn.params.get("broadcast_dimensions")
        return eqn.invars[0] if axes is None or axes == tuple(range(1, len(one))) else None

    return last.primitive.name == "concatenate" and list(map(expanded, last.invars)) == list(jaxpr.invars)


def takes_apart(entry: Step) -> bool:
    """Tell whether the results of an entry are the rows of its only input, as those of the VJP of ``stack`` are."""
    if len(entry.slots) < LEAST or len(entry.inputs) != 1:
        return False
    jaxpr = entry.kernel.jaxpr.jaxpr
    (array,) = jaxpr.invars
    count, *shape = array.aval.shape or (0,)
    makers = _makers(jaxpr)

    def is_row(number: int, v: Any) -> bool:
        eqn = makers.get(v)
        part = None if eqn is None or eqn.primitive.name not in _SQUEEZING else makers.get(eqn.invars[0])
        if part is None or part.primitive.name != "slice" or part.invars[0] is not array or v.aval.shape != tuple(shape):
            return False
        start, end = (number, *[0] * len(shape)), (number + 1, *shape)
        return (part.params["start_indices"], part.params["limit_indices"]) == (start, end)

    return count == len(jaxpr.outvars) and all(is_row(i, v) for i, v in enumerate(jaxpr.outvars))
