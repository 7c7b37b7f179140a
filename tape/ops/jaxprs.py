"""Jaxprs: the equations in one, and going through them one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from tape.jaxapi import ClosedJaxpr, Jaxpr, JaxprEqn, Literal


def equations_in(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Return the equations of a jaxpr, and those inside of them."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in held_by(eqn):
            yield from equations_in(inner)


def calls_back(closed: ClosedJaxpr) -> bool:
    """Tell whether a jaxpr calls Python, or other code of the user's, which may fail when it runs."""
    return any("callback" in eqn.primitive.name or eqn.primitive.name == "ffi_call" for eqn in equations_in(closed.jaxpr))


def held_by(eqn: JaxprEqn) -> list[Jaxpr]:
    """Return the jaxprs that an equation holds."""
    leaves = jax.tree.leaves(list(eqn.params.values()))  # jaxprs are leaves
    held = [inner for inner in leaves if isinstance(inner, (Jaxpr, ClosedJaxpr))]
    return [inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner for inner in held]  # an open one may have constants


def evaluated(
    jaxpr: Jaxpr,
    consts: Sequence[Any],
    inputs: Sequence[Any],
    apply: Callable[[JaxprEqn, list[Any]], Sequence[Any]],
    literal: Callable[[Literal], Any] = lambda atom: atom.val,
) -> list[Any]:
    """Return the results of a jaxpr whose equations give what ``apply`` makes of what they read, in which ``literal`` gives the numbers."""
    values: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *inputs), strict=True))

    def read(atom: Any) -> Any:
        return literal(atom) if isinstance(atom, Literal) else values[atom]

    for eqn in jaxpr.eqns:
        values.update(zip(eqn.outvars, apply(eqn, list(map(read, eqn.invars))), strict=True))
    return list(map(read, jaxpr.outvars))
