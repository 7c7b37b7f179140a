"""Renewal: a bound step takes the arrays that places hold now, where nothing else has changed since it was bound.

A step whose state is arrays in attributes or trees, which it replaces at each call, would be bound anew at each call for them: to find
everything else again, and to lay it out, costs several times what the rest of the call does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tape.graph.kinds import Place
from tape.jitting.binding import Binding
from tape.jitting.places import arrays_in, edges_to
from tape.recording import record
from tape.recording.record import handle


def renewed(binding: Binding, given: Sequence[Any]) -> bool:
    """Have a step take the arrays that its places hold now, if it can run for these Variables then; tell whether it can."""
    if not binding.renewable or not binding.suits(given, binding.renewable):
        return False
    arrays = arrays_in(binding.kept.values())
    if any(x is None for x in arrays):
        return False
    variables = [record.constant(x) for x in arrays]  # new ones: what was recorded may hold those from before
    if any(v._place.kind is not binding.step.kinds[i] for i, v in zip(binding.kept, variables, strict=True)):
        return False
    _put(binding, variables, edges_to(binding.kept.values(), arrays))
    return binding.fits(given)


def emptied(binding: Binding) -> bool:
    """Have a binding whose arrays have been replaced let go of them until it is renewed, if it can be; tell whether."""
    kinds = [binding.step.kinds[i] for i in binding.kept]
    edges = [(_never, None, None, True)] * binding.renewable
    _put(binding, [handle(None, Place(-1, kind), [None]) for kind in kinds], edges)
    return bool(edges)


def _never(_: object, __: object) -> bool:
    return False


def _put(binding: Binding, variables: Sequence[Any], edges: Sequence[tuple[Any, ...]]) -> None:
    sources = binding.sources
    for i, v in zip(binding.kept, variables, strict=True):
        sources[i] = v
    binding._values[:] = [sources[i] for i in binding.step.values if i >= binding._given]
    binding._variables[:] = [sources[i] for i in binding._matter]
    binding._edges[: binding.renewable] = edges
