"""Totals: what a loop only adds up, turn by turn, added up behind it at once.

The gradient of the weights that all turns share is a sum of products, one a turn, ``total + x.T @ ct``.  In the loop, each is a small
product, and the total goes through the memory with each; of what the turns have multiplied, row by row, the sum is one large product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tape import jaxapi
from tape.graph.length import bytes_of
from tape.graph.trie import Step
from tape.jaxapi import JaxprEqn
from tape.ops.building import alone
from tape.programs.columns import MOST
from tape.programs.loops import Carried, Loop, PerTurn, Result, Same, Shared, Source

LEAST = 3  # times as large as what of each turn has to be kept for it is a sum that is worth that
_ADDING = {"add", "add_any"}
_LINEAR = {"transpose", "reshape", "broadcast_in_dim", "squeeze", "expand_dims", "neg"}

Row = Same | Carried | PerTurn  # what is read in each turn anew


class Total(NamedTuple):
    """A result that is what was there before the loop, and the sum of all turns' products, or of what linear equations make of it."""

    result: Result
    source: Carried  # what reads it in the next turn
    product: JaxprEqn
    operands: tuple[Row, Row]
    further: Sequence[JaxprEqn]
    step: Step  # the entry with the product

    def of(self, before: Any, rows: Sequence[Any]) -> Any:
        """Return it, where ``rows`` are the operands of the product in all turns."""
        (lhs, rhs), batch = self.product.params["dimension_numbers"]
        numbers = tuple([(0, *[axis + 1 for axis in axes]) for axes in (lhs, rhs)]), batch
        (value,) = jaxapi.bind(self.product.primitive, {**self.product.params, "dimension_numbers": numbers}, rows)
        for eqn in self.further:
            (value,) = jaxapi.jaxpr_as_fun(alone(eqn))(value)
        return before + value


def totals(loop: Loop) -> list[Total]:
    """Return what a loop only adds up, where that is much beside the rows that are kept for it and for nothing else."""
    read = loop.sources
    found = []
    for source in dict.fromkeys(s for s in read if isinstance(s, Carried) and s.turns == 1):
        others = [s for s in read if isinstance(s, Same | Carried) and s.result == source.result]
        if others == [source] and source.result in loop.last:
            total = _Turn(loop).total(source)
            if total is not None:
                found.append(total)
    worthwhile: list[Total] = []
    kept: set[Source] = {Same(result) for result in loop.each}
    for total in sorted(found, key=lambda total: -bytes_of(total.product.outvars[0].aval)):
        rows = {s: bytes_of(v.aval) for v, s in zip(total.product.invars, total.operands, strict=True)}
        new = sum([size for s, size in rows.items() if not isinstance(s, PerTurn) and s not in kept])
        if new * LEAST <= bytes_of(total.product.outvars[0].aval) and new * loop.count <= MOST:
            worthwhile.append(total)
            kept.update(rows)
    return worthwhile


class _Turn:
    """The equations of a turn."""

    def __init__(self, loop: Loop) -> None:
        self._turn, self._reads = loop.turn, loop.reads

    def _source(self, place: int, v: Any) -> Source | None:
        """Return what an entry gets as an input; None for what is none, a number among them."""
        inputs: Sequence[Any] = self._turn[place].kernel.jaxpr.jaxpr.invars
        return self._reads[place][inputs.index(v)] if v in inputs else None

    def _made(self, place: int, v: Any) -> tuple[int, JaxprEqn] | None:
        """Return the equation that makes what an entry has as a variable, with the entry's place."""
        source = self._source(place, v)
        while isinstance(source, Same):
            place, v = source.result[0], self._turn[source.result[0]].kernel.jaxpr.jaxpr.outvars[source.result[1]]
            source = self._source(place, v)
        makers = [eqn for eqn in self._turn[place].kernel.jaxpr.jaxpr.eqns if v in eqn.outvars]
        return (place, makers[0]) if source is None and makers else None

    def total(self, source: Carried) -> Total | None:
        """Return the total that is read as the result of the turn before; None where it is none."""
        place, number = source.result
        out = self._turn[place].kernel.jaxpr.jaxpr.outvars[number]
        made = self._made(place, out)
        if made is None or made[1].primitive.name not in _ADDING:
            return None
        adding, at = made[1], made[0]
        before, term = sorted(adding.invars, key=lambda v: self._source(at, v) != source)
        if at != place or self._source(at, before) != source:
            return None
        jaxpr = self._turn[at].kernel.jaxpr.jaxpr
        read = [*[v for eqn in jaxpr.eqns for v in eqn.invars], *jaxpr.outvars]
        if sum(v is before for v in read) != 1 or sum(v is out for v in read) != 1:  # in the loop, neither is what it stands for
            return None
        further: list[JaxprEqn] = []
        made = self._made(at, term)
        while made is not None and made[1].primitive.name in _LINEAR:
            further.insert(0, made[1])
            made = self._made(made[0], made[1].invars[0])
        if made is None or made[1].primitive.name != "dot_general":
            return None
        at, product = made
        first, second = (self._source(at, v) for v in product.invars)
        if first is None or second is None or isinstance(first, Shared) or isinstance(second, Shared):
            return None
        if product.params["dimension_numbers"][1] != ((), ()):  # one for each of a batch
            return None
        return Total(source.result, source, product, (first, second), further, self._turn[at])
