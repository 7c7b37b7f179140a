"""Building jaxprs of those that there are, and of the entries of lists, without tracing anything again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from jax import lax

from tape.graph.kinds import cotangent_aval
from tape.graph.wengert import Constant, Source, WengertList
from tape.jaxapi import (
    ClosedJaxpr,
    DropVar,
    JaxprEqn,
    Literal,
    ShapedArray,
    Var,
    assembled,
    call,
    names,
    no_origin,
    trace_quickly,
)
from tape.ops.linear import Equation
from tape.rules import parameters
from tape.rules.cotangents import zeros

Atom = Var | Literal


class JaxprBuilder:
    """Puts jaxprs together into one, by copying their equations; ``once``: of equal ones that are inlined only the first."""

    def __init__(self, *, once: bool = False) -> None:
        self._once = once
        self._known: dict[Hashable, list[Any]] = {}  # results by what computes them
        self._inputs: list[Var] = []
        self._eqns: list[JaxprEqn] = []
        self._constants: dict[int, tuple[Var, Any]] = {}  # by id, with the value, so that it stays there

    def input(self, aval: ShapedArray) -> Var:
        """Add an input."""
        variable = Var(aval)
        self._inputs.append(variable)
        return variable

    def constant(self, value: object, aval: ShapedArray) -> Atom:
        """Return what stands for a number or array in an equation."""
        if is_number(value):
            return literal(value, aval)
        return self._constants.setdefault(id(value), (Var(aval), value))[0]

    def copy(self, listed: WengertList[Equation], atoms: dict[Source, Any]) -> None:
        """Add the entries of a list; ``atoms`` holds its inputs, and gets the results."""
        add = self._eqns.append
        for entry in listed.entries:
            ins = [self.constant(s.value, s.aval) if isinstance(s, Constant) else atoms[s] for s in entry.inputs]
            outs = [Var(listed.avals[s]) for s in entry.slots]
            atoms.update(zip(entry.slots, outs, strict=True))
            add(entry.eqn.replace(invars=ins, outvars=outs, params=parameters.native(entry.primitive, entry.params)))

    def inline(
        self,
        closed: ClosedJaxpr,
        inputs: Sequence[Atom],
        *,
        name: str | None = None,
        instead: Callable[[JaxprEqn], ClosedJaxpr | None] = lambda _: None,
    ) -> list[Atom]:
        """Add the equations of a jaxpr on the given inputs, under a ``name`` that profilers show, and return its results.

        Where ``instead`` returns a jaxpr for an equation, it takes the equation's place.
        """
        jaxpr = closed.jaxpr
        atoms: dict[Any, Any] = dict(zip(jaxpr.invars, inputs, strict=True))
        for v, value in zip(jaxpr.constvars, closed.consts, strict=True):
            atoms[v] = self.constant(value, v.aval)
        add = self._eqns.append
        for eqn in jaxpr.eqns:
            ins = [v if isinstance(v, Literal) else atoms[v] for v in eqn.invars]
            other = instead(eqn)
            if other is not None:
                atoms.update(zip(eqn.outvars, self.inline(other, ins, name=name), strict=True))
                continue
            key = _computed(eqn, ins) if self._once else None
            if key is not None and key in self._known:
                atoms.update(zip(eqn.outvars, self._known[key], strict=True))
                continue
            outs = [v if key is None and isinstance(v, DropVar) else Var(v.aval) for v in eqn.outvars]
            if key is not None:
                self._known[key] = outs
            atoms.update(zip(eqn.outvars, outs, strict=True))
            copied = eqn.replace(invars=ins, outvars=outs)
            add(copied if name is None else _named(copied, name))
        return [v if isinstance(v, Literal) else atoms[v] for v in jaxpr.outvars]

    def add(self, total: Atom, term: Atom) -> Atom:
        """Add the sum of two cotangents."""
        aval: Any = term.aval
        return self.inline(_sum(cotangent_aval(aval)), [total, term])[0]

    def closed(self, outputs: Sequence[Any]) -> ClosedJaxpr:
        """Return the whole."""
        constants = list(self._constants.values())
        effects = frozenset().union(*[eqn.effects for eqn in self._eqns])
        jaxpr = assembled([v for v, _ in constants], self._inputs, list(outputs), self._eqns, effects, no_origin())
        return ClosedJaxpr(jaxpr, [value for _, value in constants])

    def call(self, name: str, outputs: Sequence[Any], inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Call the whole under the running JAX transformation; constants may be values of it."""
        constants = list(self._constants.values())
        jaxpr = assembled([], [*[v for v, _ in constants], *self._inputs], list(outputs), self._eqns, frozenset(), no_origin())
        return call(name, ClosedJaxpr(jaxpr, []), [*[value for _, value in constants], *inputs])


def alone(eqn: JaxprEqn) -> ClosedJaxpr:
    """Return an equation as a jaxpr of its operands."""
    ins: list[Any] = [Var(v.aval) for v in eqn.invars]
    return ClosedJaxpr(assembled([], ins, eqn.outvars, [eqn.replace(invars=ins)], eqn.effects, no_origin()), [])


_EACH_TIME = frozenset({"optimization_barrier", "rng_uniform"})  # it keeps a checkpoint's second run apart; it gives other numbers


def number_key(literal: Literal) -> Hashable:
    """Return what tells a number in a jaxpr from others: its bytes, as 0 and -0 differ, and texts of arrays leave digits out."""
    return literal.aval, np.asarray(literal.val).tobytes()


def _computed(eqn: JaxprEqn, ins: Sequence[Atom]) -> Hashable:
    """Return what an equation computes, as a key; None where it is to be computed each time."""
    if eqn.effects or eqn.primitive.name in _EACH_TIME:
        return None
    read = tuple([number_key(v) if isinstance(v, Literal) else v for v in ins])
    key = (eqn.primitive, read, tuple(eqn.params.items()), eqn.ctx, tuple([v.aval for v in eqn.outvars]))
    try:
        hash(key)
    except TypeError:  # a parameter that is not hashed, such as a list
        return None
    return key


def _named(eqn: JaxprEqn, name: str) -> JaxprEqn:
    """Return an equation under a name, as ``jax.named_scope`` gives it to those that are traced."""
    info: Any = eqn.source_info
    renamed: JaxprEqn = eqn.replace(source_info=info.replace(name_stack=names.new_name_stack(name) + info.name_stack))
    return renamed


def rebuilt(listed: WengertList[Equation], outputs: Sequence[Source | ShapedArray], inputs: Iterable[int] | None = None) -> ClosedJaxpr:
    """Make a jaxpr of a list's entries with other outputs, among which shapes stand for zeros, and of its inputs only some."""
    into = JaxprBuilder()
    atoms: dict[Any, Any] = {i: into.input(listed.avals[i]) for i in (range(listed.n_inputs) if inputs is None else inputs)}
    into.copy(listed, atoms)
    for source in outputs:
        if isinstance(source, Constant):
            atoms[source] = into.constant(source.value, source.aval)
        elif isinstance(source, ShapedArray):
            atoms[source] = into.inline(trace_quickly(functools.partial(zeros, source))[0], ())[0]
    return into.closed([atoms[source] for source in outputs])


@functools.lru_cache(maxsize=1024)
def _sum(aval: ShapedArray) -> ClosedJaxpr:
    return trace_quickly(lax.add, aval, aval)[0]


_NUMBERS = (bool, int, float, complex, np.generic)


def literal(number: object, aval: ShapedArray) -> Literal:
    """Return what stands for a number in an equation itself."""
    array = np.asarray(number, aval.dtype)  # of the dtypes that are not NumPy's, JAX lowers arrays only
    return Literal(array[()] if aval.dtype.isbuiltin == 1 else array, aval)


def is_number(value: object) -> bool:
    """Tell whether a constant is a number that stands in the equation itself."""
    return isinstance(value, _NUMBERS) or (isinstance(value, np.ndarray) and not value.shape)
