"""Pruning: a jaxpr without what no result needs, inside loops, branches and checkpoints too.

A sweep is traced with every forward value at hand, whether its rules look at it or not.  What they did not look at goes here, so that it
is neither kept nor computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tape import jaxapi
from tape.jaxapi import ClosedJaxpr, Jaxpr, JaxprEqn, Var
from tape.rules import parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Kept", "prune", "trim"]


@dataclass(frozen=True, slots=True, weakref_slot=True)  # JAX keeps traces by weak references to their parameters
class Kept:
    """The policy of a checkpoint of which values inside are outputs besides; ``kept`` tells of which outputs the policy lets be kept."""

    policy: Callable[..., Any]
    kept: tuple[bool, ...]

    def __call__(self, *args: Any, **params: Any) -> Any:
        """Answer as the policy."""
        return self.policy(*args, **params)


def prune(closed: ClosedJaxpr) -> tuple[ClosedJaxpr, tuple[int, ...]]:
    """Drop the equations that no output needs, and the inputs that none of the rest reads.

    Returns:
        The smaller jaxpr and the positions of the inputs that it kept.

    """
    smaller, read = _pruned(closed, [True] * len(closed.jaxpr.outvars))
    sources = tuple(i for i, flag in enumerate(read) if flag)
    return _with_inputs(smaller, read), sources


def trim(closed: ClosedJaxpr, used: Sequence[bool]) -> ClosedJaxpr:
    """Drop the outputs that are not ``used`` and what only they need; inputs and effects stay."""
    return _pruned(closed, used, effects=True)[0]


def _rebuilt(closed: ClosedJaxpr, inputs: Sequence[Any], outputs: Sequence[Any], eqns: Sequence[JaxprEqn]) -> ClosedJaxpr:
    """Return a jaxpr with other inputs, outputs and equations, and of its constants those that are still read."""
    jaxpr = closed.jaxpr
    read = {v for v in (*outputs, *(v for eqn in eqns for v in eqn.invars)) if isinstance(v, Var)}
    constants = [(v, c) for v, c in zip(jaxpr.constvars, closed.consts, strict=True) if v in read]
    info = jaxpr.debug_info
    info = info.with_unknown_names() if hasattr(info, "with_unknown_names") else info
    rebuilt = Jaxpr([v for v, _ in constants], list(inputs), list(outputs), list(eqns), jaxpr.effects, info)
    return ClosedJaxpr(rebuilt, [c for _, c in constants])


def _with_inputs(closed: ClosedJaxpr, kept: Sequence[bool]) -> ClosedJaxpr:
    """Drop the inputs that are not ``kept``, which nothing reads."""
    jaxpr = closed.jaxpr
    return _rebuilt(closed, _chosen(jaxpr.invars, kept), jaxpr.outvars, jaxpr.eqns)


def _chosen(values: Sequence[Any], flags: Sequence[bool]) -> list[Any]:
    return [v for v, flag in zip(values, flags, strict=True) if flag]


def _pruned(closed: ClosedJaxpr, used: Sequence[bool], *, effects: bool = False) -> tuple[ClosedJaxpr, list[bool]]:
    """Drop unused outputs and what only they need; tell which inputs are still read.

    Without ``effects``, equations are dropped whatever they do besides: in a sweep, a forward value is printed (say) for the second time.
    """
    jaxpr = closed.jaxpr
    outputs = _chosen(jaxpr.outvars, used)
    needed = {v for v in outputs if isinstance(v, Var)}
    kept = []
    for eqn in reversed(jaxpr.eqns):
        flags = [v in needed for v in eqn.outvars]
        stays = effects and bool(eqn.effects)
        if not (stays or any(flags)):
            continue
        inside = _INSIDE.get(eqn.primitive)
        if not all(flags) and inside is not None and not stays:
            eqn = inside(eqn, flags)  # noqa: PLW2901 - it takes the place of the larger one
        kept.append(eqn)
        needed.update(v for v in eqn.invars if isinstance(v, Var))
    return _rebuilt(closed, jaxpr.invars, outputs, kept[::-1]), [v in needed for v in jaxpr.invars]


def _reached(jaxpr: Jaxpr, used: Sequence[bool]) -> set[Any]:
    """Variables that the used outputs depend on, every equation taken as a whole."""
    needed = {v for v in _chosen(jaxpr.outvars, used) if isinstance(v, Var)}
    for eqn in reversed(jaxpr.eqns):
        if any(v in needed for v in eqn.outvars):
            needed.update(v for v in eqn.invars if isinstance(v, Var))
    return needed


def _replaced(eqn: JaxprEqn, read: Sequence[bool], used: Sequence[bool], params: dict[str, Any]) -> JaxprEqn:
    """Return an equation with some of its inputs and outputs."""
    make: Any = eqn
    params = parameters.native(eqn.primitive, params)
    return make.replace(invars=_chosen(eqn.invars, read), outvars=_chosen(eqn.outvars, used), params=params)  # type: ignore[no-any-return]


def _scan(eqn: JaxprEqn, used: list[bool]) -> JaxprEqn:
    """Drop from a loop the stacked outputs that nothing reads, and the carries that feed nothing else."""
    given = parameters.assumed(eqn.primitive, eqn.params)
    body, n_consts, n_carry = (given[k] for k in ("jaxpr", "num_consts", "num_carry"))
    first_x = n_consts + n_carry
    carried = list(used[:n_carry])
    while True:
        reads = _reached(body.jaxpr, [*carried, *used[n_carry:]])
        grown = [a or v in reads for a, v in zip(carried, body.jaxpr.invars[n_consts:first_x], strict=True)]
        if grown == carried:
            break
        carried = grown
    smaller, read = _pruned(body, [*carried, *used[n_carry:]])
    kept = [*read[:n_consts], *carried, *read[first_x:]]
    params = {**given, "jaxpr": _with_inputs(smaller, kept), "num_consts": sum(read[:n_consts]), "num_carry": sum(carried)}
    return _replaced(eqn, kept, [*carried, *used[n_carry:]], params)


def _cond(eqn: JaxprEqn, used: list[bool]) -> JaxprEqn:
    """Drop from every branch the outputs that nothing reads, and the operands that no branch reads then."""
    found = [_pruned(branch, used) for branch in eqn.params["branches"]]
    read = [any(flags) for flags in zip(*(flags for _, flags in found), strict=True)]
    params = {**eqn.params, "branches": tuple(_with_inputs(branch, read) for branch, _ in found)}
    return _replaced(eqn, [True, *read], used, params)


def _remat(eqn: JaxprEqn, used: list[bool]) -> JaxprEqn:
    """Drop the outputs of a checkpoint that nothing reads; its inputs stay."""
    smaller, _ = _pruned(jaxapi.closed(eqn.params["jaxpr"]), used)
    params = {**eqn.params, "jaxpr": smaller.jaxpr}
    policy = eqn.params["policy"]
    if isinstance(policy, Kept) and len(policy.kept) == len(used):
        params["policy"] = Kept(policy.policy, tuple(_chosen(policy.kept, used)))
    return _replaced(eqn, [True] * len(eqn.invars), used, params)


_INSIDE: dict[Any, Callable[[JaxprEqn, list[bool]], JaxprEqn]] = {
    found: rule for name, rule in {"scan": _scan, "cond": _cond, "remat": _remat}.items() if (found := jaxapi.primitive(name)) is not None
}
