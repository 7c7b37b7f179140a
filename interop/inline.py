"""Functions of JAX taken apart: each equation of a traced function is an entry of its own, with the line and scope that it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from tape import jaxapi
from tape.callables.fingerprints import intern
from tape.graph import lines
from tape.graph.scope import LOCAL, in_scope
from tape.graph.trie import CONSTANT
from tape.ops.kernel import Op
from tape.recording import record


class _Line(tuple[str, int]):  # noqa: SLOT001 - tuples have no slots
    """File and line of a library's code, and the ``jax.named_scope`` there."""

    scope: str = ""

    @classmethod
    def of(cls, eqn: jaxapi.JaxprEqn, scope: str) -> _Line | None:
        """Return that of an equation, as far as JAX knows it."""
        known = lines.line_of(eqn)
        if known is None:
            return None
        line = cls(known)
        line.scope = scope
        return line


class _Entry(NamedTuple):
    """One equation: its op, which values it reads, which it gives, and where it comes from."""

    op: Op
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    cuts: bool  # its results are constants, as those of tape.stop_gradient: rules of other ops may count on getting no gradient there
    where: _Line | None


class Inlined:
    """The equations of a traced function, in place of one op.

    Functions that it calls (``jax.jit``) are taken apart as well; what has a derivative rule of its own, and loops, are one entry.
    """

    def __init__(self, jaxpr: jaxapi.ClosedJaxpr, tree: Any) -> None:
        self._tree = tree
        self._entries: list[_Entry] = []
        self._count = 0
        self._constants: list[tuple[int, Any]] = []
        inputs = self._numbers(len(jaxpr.jaxpr.invars))
        self._results = self._take_apart(jaxpr, inputs, "")

    def _numbers(self, n: int) -> list[int]:
        self._count += n
        return list(range(self._count - n, self._count))

    def _constant(self, value: Any) -> int:
        (number,) = self._numbers(1)
        self._constants.append((number, value))
        return number

    def _take_apart(self, closed: jaxapi.ClosedJaxpr, inputs: Sequence[int], scope: str) -> list[int]:
        """Note the equations of a jaxpr whose inputs have these numbers; return those of its outputs."""
        jaxpr = closed.jaxpr
        numbers: dict[Any, int] = dict(zip(jaxpr.invars, inputs, strict=True))
        numbers |= {v: self._constant(c) for v, c in zip(jaxpr.constvars, closed.consts, strict=True)}
        for eqn in jaxpr.eqns:
            stack = getattr(eqn.source_info, "name_stack", "")
            inner = "/".join(part for part in (scope, str(stack)) if part)
            called = eqn.params.get(jaxapi.CALL_JAXPR_PARAMS.get(eqn.primitive, ""))
            if called is not None and not eqn.effects:
                given = [self._constant(v.val) if isinstance(v, jaxapi.Literal) else numbers[v] for v in eqn.invars]
                outputs = self._take_apart(jaxapi.closed(called), given, inner)
                numbers |= dict(zip(eqn.outvars, outputs, strict=True))
                continue
            read = list(dict.fromkeys(v for v in eqn.invars if not isinstance(v, jaxapi.Literal)))
            bound = [v for v in eqn.outvars if not isinstance(v, jaxapi.DropVar)]
            alone = jaxapi.assembled([], read, bound, [eqn], eqn.effects, jaxpr.debug_info.with_unknown_names())
            op = intern(_name_of(eqn), jaxapi.ClosedJaxpr(alone, ()), jax.tree.structure([0] * len(bound)))
            outputs = self._numbers(len(bound))
            cuts = eqn.primitive.name == "stop_gradient"
            self._entries.append(_Entry(op, tuple([numbers[v] for v in read]), tuple(outputs), cuts, _Line.of(eqn, inner)))
            numbers |= dict(zip(bound, outputs, strict=True))
        return [self._constant(v.val) if isinstance(v, jaxapi.Literal) else numbers[v] for v in jaxpr.outvars]

    def record(self, inputs: Sequence[Any]) -> Any:
        """Record the entries on Variables; return the function's results."""
        values: list[Any] = [*inputs, *[None] * (self._count - len(inputs))]
        for number, constant in self._constants:
            values[number] = record.constant(constant)
        for op, read, given, cuts, where in self._entries:  # noqa: B007 - the recorder asks this frame for ``where``
            operands = [values[i] for i in read]
            results = in_scope(LOCAL.scope.but(mode=CONSTANT), record.record, op, operands) if cuts else record.record(op, operands)
            for number, variable in zip(given, results, strict=True):
                values[number] = variable
        return jax.tree.unflatten(self._tree, [values[i] for i in self._results])


lines.lines_of(Inlined.record.__code__)


def _name_of(eqn: jaxapi.JaxprEqn) -> str:
    """Return what an equation is called: the function's name for one with a derivative rule of its own, else the primitive's."""
    for key in ("call_jaxpr", "fun_jaxpr"):
        info: Any = getattr(getattr(eqn.params.get(key), "jaxpr", None), "debug_info", None)
        if info is not None and info.func_name:
            return str(info.func_name)
    return eqn.primitive.name
