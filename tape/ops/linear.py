"""A jaxpr as a Wengert list: calls inlined, variables numbered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax

from tape import jaxapi
from tape.graph.wengert import Constant, Source, WengertList
from tape.jaxapi import ClosedJaxpr, Jaxpr, JaxprEqn, Primitive
from tape.ops import references
from tape.rules import parameters

BACKWARD = "tape.backward_of_"  # and the number of cotangents: the name of the call that a backward of the user's is (tape.ops.apart)


class Equation:
    """An entry of a jaxpr's list: one primitive with its parameters, as rules may assume them."""

    __slots__ = ("eqn", "inputs", "params", "primitive", "slots")

    def __init__(self, eqn: JaxprEqn, inputs: tuple[Source, ...], slots: tuple[int, ...]) -> None:
        self.primitive: Primitive = eqn.primitive
        self.params: dict[str, Any] = parameters.assumed(eqn.primitive, eqn.params)
        self.eqn = eqn
        self.inputs = inputs
        self.slots = slots


def flatten(closed: ClosedJaxpr, *, wholly: bool = True) -> WengertList[Equation]:
    """Inline every plain call of ``closed`` (``jit``, ``closed_call``) and number its variables; not ``wholly``: but for users' backwards.

    Calls with a derivative of their own (``custom_jvp_call``, ``custom_vjp_call``, ``remat``) and control flow stay single entries; arrays
    that are changed in place become values.
    """
    if references.changes_in_place(closed):
        closed = references.without(closed)
    listed: WengertList[Equation] = WengertList([v.aval for v in closed.jaxpr.invars])
    listed.outputs = _inline(closed, tuple(range(listed.n_inputs)), listed, wholly)
    return listed


def _inline(closed: ClosedJaxpr, inputs: tuple[Source, ...], into: WengertList[Equation], wholly: bool) -> tuple[Source, ...]:
    env: dict[Any, Source] = dict(zip(closed.jaxpr.invars, inputs, strict=True))
    env.update((v, Constant(c, v.aval)) for v, c in zip(closed.jaxpr.constvars, closed.consts, strict=True))

    def read(atom: jaxapi.Var | jaxapi.Literal) -> Source:
        return Constant(atom.val, atom.aval) if isinstance(atom, jaxapi.Literal) else env[atom]

    for eqn in closed.jaxpr.eqns:
        operands = tuple(map(read, eqn.invars))
        key = jaxapi.CALL_JAXPR_PARAMS.get(eqn.primitive)
        if key is not None and (wholly or not cotangents_of(eqn)):
            results = _inline(jaxapi.closed(eqn.params[key]), operands, into, wholly)
            env.update(zip(eqn.outvars, results, strict=True))
            continue
        first = len(into.avals)
        into.avals.extend(v.aval for v in eqn.outvars)
        slots = tuple(range(first, len(into.avals)))
        into.entries.append(Equation(eqn, operands, slots))
        env.update(zip(eqn.outvars, slots, strict=True))
    return tuple(map(read, closed.jaxpr.outvars))


def cotangents_of(eqn: JaxprEqn) -> int:
    """Return how many cotangents the backward of the user's has that an equation is, its last operands; 0 for any other equation."""
    name = str(eqn.params.get("name"))
    return int(name.removeprefix(BACKWARD)) if name.startswith(BACKWARD) else 0


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
    held = [inner for inner in leaves if isinstance(inner, (jaxapi.Jaxpr, jaxapi.ClosedJaxpr))]
    return [inner.jaxpr if isinstance(inner, jaxapi.ClosedJaxpr) else inner for inner in held]  # an open one may have constants
