"""Building jaxprs: those of several ops are put together into one, without tracing anything again."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import lax

from tape.jaxapi import ClosedJaxpr, DropVar, Jaxpr, JaxprEqn, Literal, ShapedArray, Var, call, no_origin, trace
from tape.rules import parameters

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["JaxprBuilder", "is_number"]


class JaxprBuilder:
    """Puts jaxprs together into one, by copying their equations."""

    def __init__(self) -> None:
        self._inputs: list[Var] = []
        self._eqns: list[JaxprEqn] = []
        self._constants: dict[int, tuple[Var, Any]] = {}  # by id, with the value, so that it stays there

    def input(self, aval: Any) -> Var:
        """Add an input."""
        made = Var(aval)
        self._inputs.append(made)
        return made

    def constant(self, value: Any, aval: Any) -> Any:
        """Return what stands for a number or array in an equation."""
        if is_number(value):
            return Literal(np.asarray(value, aval.dtype)[()], aval)
        found = self._constants.get(id(value))
        if found is None:
            found = self._constants[id(value)] = Var(aval), value
        return found[0]

    def equation(self, eqn: JaxprEqn, params: dict[str, Any], inputs: Sequence[Any], avals: Sequence[Any]) -> list[Any]:
        """Add an equation like ``eqn`` with other parameters (as rules may assume them), on the given inputs; return its results, of the given avals."""
        made = [Var(aval) for aval in avals]
        self._eqns.append(eqn.replace(invars=list(inputs), outvars=made, params=parameters.native(eqn.primitive, params)))
        return made

    def inline(self, closed: ClosedJaxpr, inputs: Sequence[Any]) -> list[Any]:
        """Add the equations of a jaxpr on the given inputs, and return its results."""
        jaxpr = closed.jaxpr
        atoms: dict[Any, Any] = dict(zip(jaxpr.invars, inputs, strict=True))
        for v, value in zip(jaxpr.constvars, closed.consts, strict=True):
            atoms[v] = self.constant(value, v.aval)
        add = self._eqns.append
        for eqn in jaxpr.eqns:
            ins = [v if isinstance(v, Literal) else atoms[v] for v in eqn.invars]
            outs = []
            for v in eqn.outvars:
                if isinstance(v, DropVar):
                    outs.append(v)
                else:
                    made = atoms[v] = Var(v.aval)
                    outs.append(made)
            add(eqn.replace(invars=ins, outvars=outs))
        return [v if isinstance(v, Literal) else atoms[v] for v in jaxpr.outvars]

    def add(self, total: Any, term: Any) -> Any:
        """Add the sum of two cotangents."""
        return self.inline(_sum(ShapedArray(term.aval.shape, term.aval.dtype)), [total, term])[0]

    def closed(self, outputs: Sequence[Any]) -> ClosedJaxpr:
        """Return the whole."""
        constants = list(self._constants.values())
        effects = frozenset().union(*[eqn.effects for eqn in self._eqns])
        jaxpr = Jaxpr([v for v, _ in constants], self._inputs, list(outputs), self._eqns, effects, no_origin())
        return ClosedJaxpr(jaxpr, [value for _, value in constants])

    def call(self, name: str, outputs: Sequence[Any], inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Call the whole under the running JAX transformation; constants may be values of it."""
        constants = list(self._constants.values())
        jaxpr = Jaxpr([], [*[v for v, _ in constants], *self._inputs], list(outputs), self._eqns, frozenset(), no_origin())
        return call(name, ClosedJaxpr(jaxpr, []), [*[value for _, value in constants], *inputs])


@functools.lru_cache(maxsize=1024)
def _sum(aval: Any) -> ClosedJaxpr:
    return trace(lax.add, aval, aval)[0]


_NUMBERS = (bool, int, float, complex, np.generic)


def is_number(value: Any) -> bool:
    """Tell whether a constant is a number that stands in the equation itself."""
    return isinstance(value, _NUMBERS) or (isinstance(value, np.ndarray) and not value.shape)
