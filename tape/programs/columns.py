"""Columns: what each turn of a loop computes of rows that are there before, and of nothing else, computed of all rows at once.

A turn of a sweep asks for ``cos(x)`` of an x of which the loop forwards left a row for each of its turns.  In the loop, XLA computes it
for every fused part of the turn that reads it, in the sweep and in the sweep of the sweep: 63 times a turn in place of 4, in a
Runge-Kutta method that is differentiated twice.  Of the whole array it is computed once, for all loops that read the same rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from tape import jaxapi
from tape.graph.length import bytes_of
from tape.graph.trie import Step
from tape.jaxapi import ClosedJaxpr, JaxprEqn, Literal, Var
from tape.ops.building import number_key
from tape.programs.loops import Carried, Outside, Result, Same
from tape.programs.naming import inline
from tape.rules import table
from tape.rules.registry import Cost

MOST = 1 << 28  # bytes of such an array
FEW = 2  # an array with over so many times as many rows as are read is not computed as a whole


class Column(NamedTuple):
    """An array whose rows are read in turn: the first one, and the distance to the next."""

    array: Any
    first: int
    step: int

    def row(self, number: Any) -> Any:
        """Return what the turn of a number reads."""
        return lax.dynamic_index_in_dim(self.array, self.first + self.step * number, keepdims=False)


class Lazy(NamedTuple):
    """A column that is computed when it is asked for; equal keys stand for equal arrays."""

    make: Callable[[], Any]
    key: Hashable
    aval: Any  # of the array
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

    def parts(
        self,
        turn: Sequence[Step],
        reads: Sequence[Sequence[Same | Carried | Outside]],
        count: int,
        column: Callable[[tuple[int, ...]], Column],
        values: Mapping[int, Any],
    ) -> list[Part]:
        """Return what is left of each entry of a turn, of so many; it reads a ``column``, or one of ``values``, by slots outside."""
        parts: list[Part] = []
        given: dict[Result, Any] = {}
        for place, (entry, sources) in enumerate(zip(turn, reads, strict=True)):
            closed = entry.kernel.jaxpr
            known: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
            for v, source in zip(closed.jaxpr.invars, sources, strict=True):
                if isinstance(source, Same) and source.result in given:
                    known[v] = given[source.result]
                elif isinstance(source, Outside):
                    known[v] = self._there(column(source.slots), count) if len(source.slots) > 1 else values[source.slots[0]]
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
            return Lazy(lambda: array, id(array), jax.typeof(array), first, step)
        key = id(array), low, high, step
        aval = jaxapi.ShapedArray((count, *array.shape[1:]), array.dtype)
        make = functools.partial(lax.slice_in_dim, array, low, high + 1, abs(step))
        return Lazy(make, key, aval, 0 if step > 0 else count - 1, 1 if step > 0 else -1)

    def _enter(self, eqn: JaxprEqn, known: dict[Any, Any], entry: Step) -> bool:
        """Note the result of an equation where it is one of columns alone; tell whether it costs more to compute than to read."""
        rule = table.lookup(eqn.primitive)
        operands: list[Any] = [v if isinstance(v, Literal) else known.get(v) for v in eqn.invars]
        columns = [x for x in operands if isinstance(x, Lazy)]
        if rule is None or not rule.elementwise or eqn.effects or not columns or any(x is None for x in operands):
            return False
        row: Any = eqn.outvars[0].aval
        aval = jaxapi.ShapedArray((columns[0].aval.shape[0], *row.shape), row.dtype, weak_type=row.weak_type)
        alike = {(c.first, c.step, c.aval.shape) for c in columns} == {(columns[0].first, columns[0].step, aval.shape)}
        others = {np.shape(x.val if isinstance(x, Literal) else x) for x in operands if not isinstance(x, Lazy)}
        key = (eqn.primitive, tuple(eqn.params.items()), eqn.ctx, tuple(map(self._key, operands)))
        if not row.shape or not alike or not others <= {(), row.shape} or not _is_hashed(key):
            return False
        known[eqn.outvars[0]] = columns[0]._replace(make=lambda: self._computed(key, eqn, operands, aval, entry), key=key, aval=aval)
        return rule.cost is Cost.LOOPED and bytes_of(aval) <= MOST

    def _key(self, operand: Any) -> Hashable:
        if isinstance(operand, Lazy):
            return operand.key
        if isinstance(operand, Literal):
            return number_key(operand)
        self._read.append(operand)
        return id(operand)

    def _computed(self, key: Hashable, eqn: JaxprEqn, operands: Sequence[Any], aval: Any, entry: Step) -> Any:
        array = self._arrays.get(key)
        if array is None:
            values = [x.make() if isinstance(x, Lazy) else x.val if isinstance(x, Literal) else x for x in operands]
            values = [x if np.shape(x) == aval.shape else _repeated(x, v.aval, aval.shape) for x, v in zip(values, eqn.invars, strict=True)]
            ins: list[Any] = [Var(jax.typeof(x)) for x in values]
            outs = [Var(aval)]
            whole = eqn.replace(invars=ins, outvars=outs)
            alone = ClosedJaxpr(jaxapi.assembled([], ins, outs, [whole], eqn.effects, jaxapi.no_origin()), [])
            (array,) = inline(entry, jaxapi.jaxpr_as_fun(alone))(*values)
            self._arrays[key] = array
        return array


def _is_hashed(key: Hashable) -> bool:
    try:
        hash(key)
    except TypeError:  # a parameter is a list
        return False
    return True


def _repeated(value: Any, aval: Any, shape: tuple[int, ...]) -> Any:
    """Return an array whose rows are all one value."""
    axes = range(len(shape) - np.ndim(value), len(shape))
    return lax.broadcast_in_dim(lax.convert_element_type(value, aval.dtype), shape, tuple(axes))


def _without(closed: ClosedJaxpr, eqns: Sequence[JaxprEqn]) -> ClosedJaxpr:
    """Return a jaxpr to which the results of some equations are given."""
    jaxpr, gone = closed.jaxpr, {id(eqn) for eqn in eqns}
    rest = [eqn for eqn in jaxpr.eqns if id(eqn) not in gone]
    inputs = [*jaxpr.invars, *[eqn.outvars[0] for eqn in eqns]]
    return ClosedJaxpr(jaxapi.assembled(jaxpr.constvars, inputs, jaxpr.outvars, rest, jaxpr.effects, jaxapi.no_origin()), closed.consts)
