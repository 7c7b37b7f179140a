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
    """Tell whether the result of an entry is its inputs, all of one shape, one behind the other: ``stack`` or ``concatenate`` of values."""
    if len(entry.inputs) < LEAST or len(entry.slots) != 1:
        return False
    jaxpr = entry.kernel.jaxpr.jaxpr
    shapes = {v.aval.shape for v in jaxpr.invars}
    makers = _makers(jaxpr)
    one = (1, *min(shapes))

    def joined(v: Any) -> list[Any]:
        """Return what stands one behind the other in a value: older releases of JAX join many in tiers."""
        eqn = makers.get(v)
        if eqn is None:
            return [v]
        name, params = eqn.primitive.name, eqn.params
        if name == "stack" and params["axis"] == 0:
            return list(eqn.invars)
        if name == "concatenate" and params["dimension"] == 0:
            return [part for each in eqn.invars for part in joined(each)]
        axes = params.get("broadcast_dimensions")
        is_row = name in _EXPANDING and v.aval.shape == one and (axes is None or axes == tuple(range(1, len(one))))
        return [eqn.invars[0] if is_row else v]

    return len(shapes) == 1 and joined(jaxpr.outvars[0]) == list(jaxpr.invars)


def takes_apart(entry: Step) -> bool:
    """Tell whether the results of an entry are parts of its only input, all of one shape, in order: ``split``, or the VJP of ``stack``."""
    if len(entry.slots) < LEAST or len(entry.inputs) != 1:
        return False
    jaxpr = entry.kernel.jaxpr.jaxpr
    (array,), results = jaxpr.invars, jaxpr.outvars
    if not array.aval.shape or len({v.aval.shape for v in results}) > 1 or array.aval.shape[0] % len(results):
        return False
    size, rest = array.aval.shape[0] // len(results), array.aval.shape[1:]
    if results[0].aval.shape != (size, *rest) and (results[0].aval.shape != rest or size != 1):
        return False
    makers = _makers(jaxpr)

    def is_part(number: int, v: Any) -> bool:
        eqn = makers.get(v)
        if eqn is not None and eqn.primitive.name in _SQUEEZING:
            v = eqn.invars[0]
            eqn = makers.get(v)
        if eqn is None or eqn.invars[0] is not array:
            return False
        if eqn.primitive.name == "unstack":
            return eqn.params["axis"] == 0 and eqn.outvars[number] is v
        if eqn.primitive.name == "split":
            return eqn.params["axis"] == 0 and eqn.outvars[number] is v
        start, end = (number * size, *[0] * len(rest)), ((number + 1) * size, *rest)
        return eqn.primitive.name == "slice" and (eqn.params["start_indices"], eqn.params["limit_indices"]) == (start, end)

    return all(is_part(i, v) for i, v in enumerate(results))
