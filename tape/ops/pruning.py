"""Pruning: a jaxpr without what no result needs, inside loops, branches and checkpoints too.

A sweep is traced with every forward value at hand, whether its rules look at it or not.  What they did not look at goes here, so that it
is neither kept nor computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tape.graph.wengert import backwards, needed
from tape.jaxapi import ClosedJaxpr, Jaxpr, JaxprEqn, Var
from tape.rules import parameters, registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["prune", "pruned", "reads", "select_outputs", "with_inputs"]


def prune(closed: ClosedJaxpr) -> tuple[ClosedJaxpr, tuple[int, ...]]:
    """Drop the equations that no output needs, and the inputs that none of the rest reads.

    Returns:
        The smaller jaxpr and the positions of the inputs that it kept.

    """
    smaller, read = pruned(closed, [True] * len(closed.jaxpr.outvars))
    sources = tuple(i for i, flag in enumerate(read) if flag)
    return with_inputs(smaller, read), sources


def select_outputs(closed: ClosedJaxpr, used: Sequence[bool]) -> ClosedJaxpr:
    """Drop the outputs that are not ``used`` and what only they need; inputs and effects stay."""
    return pruned(closed, used, effects=True)[0]


def with_inputs(closed: ClosedJaxpr, kept: Sequence[bool]) -> ClosedJaxpr:
    """Drop the inputs that are not ``kept``, which nothing reads."""
    jaxpr = closed.jaxpr
    return _rebuilt(closed, _chosen(jaxpr.invars, kept), jaxpr.outvars, jaxpr.eqns)


def _rebuilt(closed: ClosedJaxpr, inputs: Sequence[Any], outputs: Sequence[Any], eqns: Sequence[JaxprEqn]) -> ClosedJaxpr:
    """Return a jaxpr with other inputs, outputs and equations, and of its constants those that are still read."""
    jaxpr = closed.jaxpr
    read = _variables((*outputs, *(v for eqn in eqns for v in eqn.invars)))
    constants = [(v, c) for v, c in zip(jaxpr.constvars, closed.consts, strict=True) if v in read]
    info = jaxpr.debug_info
    info = info.with_unknown_names() if hasattr(info, "with_unknown_names") else info
    rebuilt = Jaxpr([v for v, _ in constants], list(inputs), list(outputs), list(eqns), jaxpr.effects, info)
    return ClosedJaxpr(rebuilt, [c for _, c in constants])


def _chosen(values: Sequence[Any], flags: Sequence[bool]) -> list[Any]:
    return [v for v, flag in zip(values, flags, strict=True) if flag]


def _variables(atoms: Iterable[Any]) -> set[Any]:
    return {v for v in atoms if isinstance(v, Var)}


class _Named(NamedTuple):
    """An equation as an entry of a Wengert list whose slots are the jaxpr's variables, so that it can be put back as it is."""

    eqn: JaxprEqn
    inputs: Any
    slots: Any


_EFFECT: Any = object()  # stands for the effects of an equation


def _entries(jaxpr: Jaxpr) -> list[_Named]:
    return [_Named(eqn, _variables(eqn.invars), [*eqn.outvars, _EFFECT] if eqn.effects else eqn.outvars) for eqn in jaxpr.eqns]


def pruned(closed: ClosedJaxpr, used: Sequence[bool], *, effects: bool = False) -> tuple[ClosedJaxpr, list[bool]]:
    """Drop unused outputs and what only they need; tell which inputs are still read.

    Without ``effects``, equations are dropped whatever they do besides: in a sweep, a forward value is printed (say) for the second time.
    """
    jaxpr = closed.jaxpr
    outputs = _chosen(jaxpr.outvars, used)
    read = _variables(outputs)
    if effects:
        read.add(_EFFECT)
    kept = []
    for entry in backwards(_entries(jaxpr), read):
        eqn = entry.eqn
        flags = [v in read for v in eqn.outvars]
        rule = registry.lookup(eqn.primitive)
        if rule is not None and rule.prune is not None and not all(flags) and not (effects and eqn.effects):
            params, takes, gives = rule.prune(parameters.assumed(eqn.primitive, eqn.params), flags)
            make: Any = eqn
            params = parameters.native(eqn.primitive, params)
            eqn = make.replace(invars=_chosen(eqn.invars, takes), outvars=_chosen(eqn.outvars, gives), params=params)
        kept.append(eqn)
        read.update(_variables(eqn.invars))
    return _rebuilt(closed, jaxpr.invars, outputs, kept[::-1]), [v in read for v in jaxpr.invars]


def reads(closed: ClosedJaxpr, used: Sequence[bool]) -> list[bool]:
    """Tell for every input of a jaxpr whether the used outputs depend on it, every equation taken as a whole."""
    found = _variables(_chosen(closed.jaxpr.outvars, used))
    needed(_entries(closed.jaxpr), found)
    return [v in found for v in closed.jaxpr.invars]
