"""Columns: what each turn of a loop computes of rows that are there before, and of nothing else, computed of all rows at once.

A turn of a sweep asks for ``cos(x)`` of an x of which the loop forwards left a row for each of its turns.  In the loop, XLA computes it
for every fused part of the turn that reads it, in the sweep and in the sweep of the sweep: 63 times a turn in place of 4, in a
Runge-Kutta method that is differentiated twice.  Of the whole array it is computed once, for all loops that read the same rows; so is a
product of matrices, ``x @ w`` with the x of each turn and the w of all, as one large product.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax

from tape import jaxapi
from tape.graph.length import bytes_of
from tape.graph.trie import Step
from tape.jaxapi import ClosedJaxpr, JaxprEqn, Literal
from tape.ops.building import alone, number_key
from tape.programs.loops import Loop, PerTurn, Result, Same, Shared
from tape.programs.naming import inline
from tape.rules import table
from tape.rules.registry import Cost

MOST = 1 << 26  # bytes of such an array: of large ones, memory is worth more
_PRODUCT = jaxapi.primitive("dot_general")
FEW = 2  # an array with over so many times as many rows as are read is not computed as a whole


class Column(NamedTuple):
    """An array whose rows are read in turn: the first one, and the distance to the next."""

    array: Any
    first: int
    step: int

    def row(self, number: Any) -> Any:
        """Return what the turn of a number reads."""
        return lax.dynamic_index_in_dim(self.array, self.first + self.step * number, keepdims=False)

    def whole(self, count: int) -> Any:
        """Return what so many turns read, in their order."""
        low, high = sorted((self.first, self.first + self.step * (count - 1)))
        rows = lax.slice_in_dim(self.array, low, high + 1, abs(self.step))
        return rows if self.step > 0 else lax.rev(rows, (0,))


class Lazy(NamedTuple):
    """A column that is computed when it is asked for; equal keys stand for equal arrays."""

    make: Callable[[], Any]
    key: Hashable
    rows: int  # of the array
    first: int
    step: int

    def column(self) -> Column:
        """Return the column itself."""
        return Column(self.make(), self.first, self.step)


class Part(NamedTuple):
    """What is left of an entry in a turn: a function with further inputs, which are rows of columns."""

    run: Callable[..., Sequence[Any]]
    further: Sequence[tuple[Column, Any]]  # each with the aval of a row


class Ahead:
    """The columns that were computed so far, for all loops of a program."""

    def __init__(self) -> None:
        self._arrays: dict[Hashable, Any] = {}
        self._read: list[Any] = []  # what keys name by its id, so that it stays

    def parts(self, loop: Loop, column: Callable[[tuple[int, ...]], Column], values: Mapping[int, Any]) -> list[Part]:
        """Return what is left of each entry of a loop's turn; it reads a ``column``, or one of ``values``, by slots outside."""
        parts: list[Part] = []
        given: dict[Result, Any] = {}
        for place, (entry, sources) in enumerate(zip(loop.turn, loop.reads, strict=True)):
            closed = entry.kernel.jaxpr
            known: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
            for v, source in zip(closed.jaxpr.invars, sources, strict=True):
                if isinstance(source, Same) and source.result in given:
                    known[v] = given[source.result]
                elif isinstance(source, PerTurn):
                    known[v] = self._there(column(source.slots), loop.count)
                elif isinstance(source, Shared):
                    known[v] = values[source.slot]
            dear = [eqn for eqn in closed.jaxpr.eqns if self._enter(eqn, known, entry)]
            given.update({(place, n): known[v] for n, v in enumerate(closed.jaxpr.outvars) if not isinstance(v, Literal) and v in known})
            further = [(known[v].column(), v.aval) for eqn in dear for v in eqn.outvars]
            parts.append(Part(jaxapi.jaxpr_as_fun(_without(closed, dear)) if dear else entry.kernel.inline, further))
        return parts

    def _there(self, column: Column, count: int) -> Lazy:
        """Return a column that a loop of so many turns reads; where it reads few of its rows, what it reads of it."""
        array, first, step = column
        self._read.append(array)
        low, high = sorted((first, first + step * (count - 1)))
        if len(range(low, high + 1, abs(step))) * FEW >= array.shape[0]:
            return Lazy(lambda: array, id(array), array.shape[0], first, step)
        key = id(array), low, high, step
        make = functools.partial(lax.slice_in_dim, array, low, high + 1, abs(step))
        return Lazy(make, key, count, 0 if step > 0 else count - 1, 1 if step > 0 else -1)

    def _enter(self, eqn: JaxprEqn, known: dict[Any, Any], entry: Step) -> bool:
        """Note the result of an equation where it is one of columns alone; tell whether it costs more to compute than to read."""
        rule = table.lookup(eqn.primitive)
        operands: list[Any] = [v if isinstance(v, Literal) else known.get(v) for v in eqn.invars]
        columns = [x for x in operands if isinstance(x, Lazy)]
        if rule is None or len(eqn.outvars) != 1 or eqn.effects or not columns or any(x is None for x in operands):
            return False
        product = eqn.primitive is _PRODUCT
        row: Any = eqn.outvars[0].aval
        key = (eqn.primitive, tuple(eqn.params.items()), eqn.ctx, tuple(map(self._key, operands)))
        if (
            not (rule.elementwise or rule.cost is Cost.FREE or product)
            or not row.shape
            or len({(c.first, c.step, c.rows) for c in columns}) > 1
            or not _is_hashed(key)
        ):
            return False
        known[eqn.outvars[0]] = columns[0]._replace(make=lambda: self._computed(key, eqn, operands, entry), key=key)
        return (product or rule.cost is Cost.LOOPED) and columns[0].rows * bytes_of(row) <= MOST

    def _key(self, operand: Any) -> Hashable:
        if isinstance(operand, Lazy):
            return operand.key
        if isinstance(operand, Literal):
            return number_key(operand)
        self._read.append(operand)
        return id(operand)

    def _computed(self, key: Hashable, eqn: JaxprEqn, operands: Sequence[Any], entry: Step) -> Any:
        array = self._arrays.get(key)
        if array is None:
            values = [x.make() if isinstance(x, Lazy) else x.val if isinstance(x, Literal) else x for x in operands]
            mapped = jax.vmap(inline(entry, jaxapi.jaxpr_as_fun(alone(eqn))), [0 if isinstance(x, Lazy) else None for x in operands])
            (array,) = mapped(*values)
            self._arrays[key] = array
        return array


def _is_hashed(key: Hashable) -> bool:
    try:
        hash(key)
    except TypeError:  # a parameter is a list
        return False
    return True


def _without(closed: ClosedJaxpr, eqns: Sequence[JaxprEqn]) -> ClosedJaxpr:
    """Return a jaxpr to which the results of some equations are given."""
    jaxpr, gone = closed.jaxpr, {id(eqn) for eqn in eqns}
    rest = [eqn for eqn in jaxpr.eqns if id(eqn) not in gone]
    inputs = [*jaxpr.invars, *[eqn.outvars[0] for eqn in eqns]]
    return ClosedJaxpr(jaxapi.assembled(jaxpr.constvars, inputs, jaxpr.outvars, rest, jaxpr.effects, jaxapi.no_origin()), closed.consts)
