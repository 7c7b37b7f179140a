"""A jaxpr as a Wengert list: calls inlined, variables numbered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tape import jaxapi
from tape.graph.wengert import Constant, Source, WengertList
from tape.jaxapi import ClosedJaxpr, JaxprEqn, Primitive
from tape.ops import references
from tape.ops.jaxprs import evaluated
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
    listed.outputs = tuple(_inline(closed, range(listed.n_inputs), listed, wholly))
    return listed


def _inline(closed: ClosedJaxpr, inputs: Sequence[Source], into: WengertList[Equation], wholly: bool) -> Sequence[Source]:
    def entered(eqn: JaxprEqn, operands: list[Source]) -> Sequence[Source]:
        key = jaxapi.CALL_JAXPR_PARAMS.get(eqn.primitive)
        if key is not None and (wholly or not cotangents_of(eqn)):
            return _inline(jaxapi.closed(eqn.params[key]), operands, into, wholly)
        first = len(into.avals)
        into.avals.extend(v.aval for v in eqn.outvars)
        slots = tuple(range(first, len(into.avals)))
        into.entries.append(Equation(eqn, tuple(operands), slots))
        return slots

    consts = [Constant(c, v.aval) for v, c in zip(closed.jaxpr.constvars, closed.consts, strict=True)]
    return evaluated(closed.jaxpr, consts, inputs, entered, lambda atom: Constant(atom.val, atom.aval))


def cotangents_of(eqn: JaxprEqn) -> int:
    """Return how many cotangents the backward of the user's has that an equation is, its last operands; 0 for any other equation."""
    name = str(eqn.params.get("name"))
    return int(name.removeprefix(BACKWARD)) if name.startswith(BACKWARD) else 0
