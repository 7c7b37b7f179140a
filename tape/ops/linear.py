"""A jaxpr as a flat list of lines: calls inlined, variables numbered.

A jaxpr is a Wengert list already; flattening ``jit`` calls into one list of numbered slots lets one loop sweep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from tape import jaxapi
from tape.rules import parameters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tape.jaxapi import ClosedJaxpr, Jaxpr, JaxprEqn, Primitive

__all__ = ["Constant", "Line", "LineList", "equations_in", "flatten"]


class Constant:
    """An input of a line that is known when the list is made: a literal, or a constant of the jaxpr."""

    __slots__ = ("aval", "value")

    def __init__(self, value: Any, aval: Any) -> None:
        self.value = value
        self.aval = aval


class Line:
    """One primitive with its parameters; ``inputs`` are slots or constants, ``outputs`` are slots."""

    __slots__ = ("eqn", "inputs", "outputs", "params", "primitive")

    def __init__(self, eqn: JaxprEqn, inputs: tuple[int | Constant, ...], outputs: tuple[int, ...]) -> None:
        self.primitive: Primitive = eqn.primitive
        self.params: dict[str, Any] = parameters.assumed(eqn.primitive, eqn.params)
        self.eqn = eqn
        self.inputs = inputs
        self.outputs = outputs


class LineList:
    """``lines`` in order; slots ``0 .. n_inputs - 1`` are the inputs; ``avals[slot]`` is a slot's shape and dtype."""

    __slots__ = ("avals", "lines", "n_inputs", "outputs")

    def __init__(self, n_inputs: int, avals: list[Any]) -> None:
        self.n_inputs = n_inputs
        self.avals = avals
        self.lines: list[Line] = []
        self.outputs: tuple[int | Constant, ...] = ()


def flatten(closed: ClosedJaxpr) -> LineList:
    """Inline every plain call of ``closed`` (``jit``, ``closed_call``) and number its variables.

    Calls with a derivative of their own (``custom_jvp_call``, ``custom_vjp_call``, ``remat``) and control flow stay single lines.
    """
    listed = LineList(len(closed.jaxpr.invars), [v.aval for v in closed.jaxpr.invars])
    listed.outputs = _inline(closed, tuple(range(listed.n_inputs)), listed)
    return listed


def _inline(closed: ClosedJaxpr, inputs: tuple[int | Constant, ...], into: LineList) -> tuple[int | Constant, ...]:
    env: dict[Any, int | Constant] = dict(zip(closed.jaxpr.invars, inputs, strict=True))
    env.update((v, Constant(c, v.aval)) for v, c in zip(closed.jaxpr.constvars, closed.consts, strict=True))

    def read(atom: Any) -> int | Constant:
        return Constant(atom.val, atom.aval) if isinstance(atom, jaxapi.Literal) else env[atom]

    for eqn in closed.jaxpr.eqns:
        operands = tuple(map(read, eqn.invars))
        key = jaxapi.CALL_JAXPR_PARAMS.get(eqn.primitive)
        if key is not None:
            results = _inline(jaxapi.closed(eqn.params[key]), operands, into)
            env.update(zip(eqn.outvars, results, strict=True))
            continue
        first = len(into.avals)
        into.avals.extend(v.aval for v in eqn.outvars)
        slots = tuple(range(first, len(into.avals)))
        into.lines.append(Line(eqn, operands, slots))
        env.update(zip(eqn.outvars, slots, strict=True))
    return tuple(map(read, closed.jaxpr.outvars))


def equations_in(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Return the equations of a jaxpr, and those inside of them."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jax.tree.leaves(list(eqn.params.values())):  # jaxprs are leaves
            if isinstance(inner, (jaxapi.Jaxpr, jaxapi.ClosedJaxpr)):
                yield from equations_in(jaxapi.closed(inner).jaxpr)
