"""Scans: entries as a function that JAX traces, in which loops are ``lax.scan``.

What a loop gives for every turn is one array, a row per turn, and so are the numbers among the leaves.  A later loop (the sweep of the
first one, say) reads the rows where they are, in its own order; whoever else reads one takes it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tape import jaxapi
from tape.programs.columns import Ahead, Column
from tape.programs.loops import Carried, Flow, Ints, Loop, PerTurn, Result, Same, Shared, Source
from tape.programs.naming import inline
from tape.programs.rows import puts_together, takes_apart
from tape.programs.totals import Row, totals


class Writing:
    """A function while JAX traces it: the values so far, and the arrays whose rows are values."""

    def __init__(self, flow: Flow, values: dict[int, Any]) -> None:
        self._flow = flow
        self.values = values
        self._avals: dict[int, Any] = {}
        self._stacks: list[Any] = []
        self._stack = np.full(flow.size, -1, np.int64)  # by slot: the stack that has its value, and the row
        self._row = np.zeros(flow.size, np.int64)
        self.ahead = Ahead()

    def stack(self, array: Any, slots: Sequence[int], avals: dict[int, Any]) -> None:
        """Take the rows of an array for the values of some slots."""
        known = [i for i, slot in enumerate(slots) if slot < len(self._row)]  # nobody reads the others
        own = [slots[i] for i in known]
        self._stack[own] = len(self._stacks)
        self._row[own] = known
        self._stacks.append(array)
        self._avals.update((slot, avals[slot]) for slot in own)

    def value(self, slot: int) -> Any:
        """Return the value of a slot."""
        value = self.values.get(slot)
        if value is None:
            row = lax.index_in_dim(self._stacks[self._stack[slot]], int(self._row[slot]), keepdims=False)
            value = self.values[slot] = fitted(row, self._avals[slot])
        return value

    def whole(self, loops: Sequence[Loop]) -> list[Any]:
        """Write all entries, loops as loops, and return the values that are kept."""
        for start, end, loop in self._flow.around(loops):
            self.straight(start, end)
            if loop is not None:
                _Scan(self, loop).write()
        return [self.value(slot) for slot in self._flow.keep]

    def straight(self, start: int, end: int) -> None:
        """Write entries one after the other."""
        for entry in self._flow.entries[start:end]:
            results = entry.kernel.out_avals
            if takes_apart(entry):
                rows = lax.reshape(self.value(entry.inputs[0]), (len(results), *results[0].shape))
                self.stack(rows, entry.slots, dict(zip(entry.slots, results, strict=True)))
            elif puts_together(entry):
                rows = self.together(entry.inputs, entry.kernel.in_avals[0])
                self.values[entry.slots[0]] = fitted(lax.reshape(rows, results[0].shape), results[0])
            else:
                self.values.update(zip(entry.slots, inline(entry)(*[self.value(s) for s in entry.inputs]), strict=True))

    def together(self, slots: Sequence[int], aval: Any) -> Any:
        """Return the array whose rows are the values of slots: what there is of it in other ones is taken at once."""
        stacks, rows = self._stack[list(slots)], self._row[list(slots)]
        parts = []
        start = 0
        while start < len(slots):
            end = start + 1
            while end < len(slots) and stacks[end] == stacks[start] >= 0:
                end += 1
            if end == start + 1:
                parts.append(lax.expand_dims(fitted(self.value(slots[start]), aval), (0,)))
            else:
                parts.append(fitted(_chosen_rows(self._stacks[stacks[start]], rows[start:end]), aval))
            start = end
        return parts[0] if len(parts) == 1 else lax.concatenate(parts, 0)

    def rows(self, slots: tuple[int, ...]) -> Column | None:
        """Return the array whose rows are the values of slots, the first row and the distance to the next; None where there is none."""
        stacks, rows = self._stack[list(slots)], self._row[list(slots)]
        step = int(rows[1] - rows[0])
        if stacks[0] < 0 or (stacks != stacks[0]).any() or not step or (np.diff(rows) != step).any():
            return None
        return Column(self._stacks[stacks[0]], int(rows[0]), step)


class _Scan:
    """A loop as one ``lax.scan``: what its turns are given, a row for each; what they carry; and what they leave."""

    def __init__(self, writing: Writing, loop: Loop) -> None:
        self._writing = writing
        self._loop = loop
        self._added = {total.source: total for total in totals(loop)}
        self._gathered: dict[tuple[int, ...], int] = {}  # numbers in the list of what has a row for each turn
        self._given: list[Any] = []
        self._columns: dict[tuple[int, ...], Column] = {}
        self._registers: dict[Carried, int] = {}  # numbers in the list of what is carried
        self._held: list[tuple[Any, ...]] = []
        for source, aval in loop.operands:
            self._take(source, aval)
        self._parts = writing.ahead.parts(loop, self._column, writing.values)

        self._newest = {source.result: i for source, i in self._registers.items()}
        multiplied = dict.fromkeys(source for total in self._added.values() for source in total.operands)
        self._before = [source for source in multiplied if isinstance(source, Carried)]
        alone = [r for r in loop.last if r not in self._newest]
        each = [*loop.each, *[r for r in alone if not _numeric(self._aval(r))], *[s.result for s in multiplied if isinstance(s, Same)]]
        self._each = dict.fromkeys(each)
        sums = {total.result for total in self._added.values()}
        self._last = [r for r in alone if r not in self._each and r not in sums]

    def _aval(self, result: Result) -> Any:
        return self._loop.turn[result[0]].kernel.out_avals[result[1]]

    def _take(self, source: Source, aval: Any) -> None:
        """Have what the turns read of a source from before the loop."""
        writing = self._writing
        if source in self._added or isinstance(source, Same):
            return
        if isinstance(source, Carried):
            if source not in self._registers:
                kind = self._aval(source.result)
                self._registers[source] = len(self._held)
                self._held.append(tuple([fitted(writing.value(s), kind) for s in source.initial]))
        elif isinstance(source, Shared):
            writing.value(source.slot)
        elif source.slots not in self._columns and source.slots not in self._gathered:
            there = writing.rows(source.slots)
            if there is None:
                self._gathered[source.slots] = len(self._given)
                self._given.append(writing.together(source.slots, aval))
            else:
                self._columns[source.slots] = there

    def _column(self, slots: tuple[int, ...]) -> Column:
        return self._columns[slots] if slots in self._columns else Column(self._given[self._gathered[slots]], 0, 1)

    def write(self) -> None:
        """Write the loop, and hand out what it leaves."""
        blank = [lax.full((aval := self._aval(r)).shape, 0, aval.dtype) for r in self._last]
        start = (jnp.int32(0), self._held, blank)
        (_, held, finals), (stacks, carried) = lax.scan(self._body, start, self._given, length=self._loop.count)
        arrays = dict(zip(self._each, stacks, strict=True))
        self._hand_out(arrays, held, finals)
        self._add(arrays, carried)

    def _body(self, carry: Any, given: list[Any]) -> Any:
        """One turn."""
        number, held, blank = carry
        results: list[Sequence[Any]] = []

        def read(source: Source, aval: Any) -> Any:
            if isinstance(source, Same):
                return results[source.result[0]][source.result[1]]
            if source in self._added:  # nobody reads what is made of it
                return fitted(lax.full(aval.shape, 0, aval.dtype), aval)
            if isinstance(source, Carried):
                return held[self._registers[source]][0]
            if isinstance(source, Shared):
                return self._writing.values[source.slot]
            if source.slots in self._gathered:
                return fitted(given[self._gathered[source.slots]], aval)
            return fitted(self._columns[source.slots].row(number), aval)

        def result(of: Result) -> Any:
            return fitted(results[of[0]][of[1]], self._aval(of))

        for entry, sources, (run, ahead) in zip(self._loop.turn, self._loop.reads, self._parts, strict=True):
            known = [fitted(column.row(number), aval) for column, aval in ahead]
            results.append(inline(entry, run)(*[read(s, a) for s, a in zip(sources, entry.kernel.in_avals, strict=True)], *known))
        further = [(*register[1:], result(source.result)) for source, register in zip(self._registers, held, strict=True)]
        finals = [fitted(result(r), jax.typeof(x)) for r, x in zip(self._last, blank, strict=True)]
        rows = [result(r) for r in self._each], [held[self._registers[source]][0] for source in self._before]
        return (number + 1, further, finals), rows

    def _hand_out(self, arrays: dict[Result, Any], held: list[tuple[Any, ...]], finals: list[Any]) -> None:
        """Give the slots behind the loop their values: the rows of arrays, and what the last turn left."""
        writing, loop = self._writing, self._loop
        for result, array in arrays.items():
            if result in loop.each:
                writing.stack(array, loop.each[result], dict.fromkeys(loop.each[result], self._aval(result)))
            elif result in loop.last:
                writing.values[loop.last[result]] = lax.index_in_dim(array, loop.count - 1, keepdims=False)
        for result, slot in loop.last.items():
            if result in self._newest:
                writing.values[slot] = held[self._newest[result]][-1]
            elif result in self._last:
                writing.values[slot] = fitted(finals[self._last.index(result)], self._aval(result))

    def _add(self, arrays: dict[Result, Any], carried: list[Any]) -> None:
        """Add up what the turns only add up."""
        writing, loop = self._writing, self._loop

        def rows(source: Row) -> Any:
            if isinstance(source, Same):
                return arrays[source.result]
            return self._column(source.slots).whole(loop.count) if isinstance(source, PerTurn) else carried[self._before.index(source)]

        for source, total in self._added.items():
            aval = self._aval(total.result)
            start = fitted(writing.value(source.initial[0]), aval)
            value = inline(total.step, total.of)(start, [rows(operand) for operand in total.operands])
            writing.values[loop.last[total.result]] = fitted(value, aval)


def _chosen_rows(array: Any, rows: Ints) -> Any:
    """Return an array of some rows of another one."""
    step = int(rows[1] - rows[0])
    if isinstance(array, np.ndarray) or abs(step) != 1 or (np.diff(rows) != step).any() or not _numeric(array):
        return array[rows]
    part = lax.slice_in_dim(array, int(rows.min()), int(rows.max()) + 1)
    return part if step > 0 else lax.rev(part, (0,))


def _numeric(aval: Any) -> bool:
    return isinstance(aval.dtype, np.dtype) and aval.dtype != jaxapi.float0


def fitted(value: Any, aval: Any) -> Any:
    """Return a value with the weak type of ``aval`` or without one, as that is: JAX wants the same at each turn."""
    if jax.typeof(value).weak_type == aval.weak_type:
        return value
    return _weakened(value, weak=aval.weak_type)


def _weakened(value: Any, *, weak: bool) -> Any:
    """Return an array as one of a weak type, as Python's numbers have, or of none."""
    convert = jaxapi.primitive("convert_element_type")
    assert convert is not None
    return jaxapi.bind(convert, {"new_dtype": value.dtype, "weak_type": weak, "sharding": None}, [value])[0]
