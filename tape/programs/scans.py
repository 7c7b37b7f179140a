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
from tape.graph.trie import Step
from tape.programs.columns import Ahead, Column
from tape.programs.loops import Carried, Flow, Ints, Loop, Outside, Result, Same
from tape.programs.naming import inline
from tape.programs.rows import puts_together, takes_apart
from tape.programs.totals import totals


class Writing:
    """A function while JAX traces it: the values so far, and the arrays whose rows are values."""

    def __init__(self, flow: Flow, values: dict[int, Any]) -> None:
        self._entries = flow.entries
        self._values = values
        self._avals: dict[int, Any] = {}
        self._stacks: list[Any] = []
        self._stack = np.full(flow.size, -1, np.int64)  # by slot: the stack that has its value, and the row
        self._row = np.zeros(flow.size, np.int64)
        self._ahead = Ahead()

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
        value = self._values.get(slot)
        if value is None:
            row = lax.index_in_dim(self._stacks[self._stack[slot]], int(self._row[slot]), keepdims=False)
            value = self._values[slot] = fitted(row, self._avals[slot])
        return value

    def whole(self, loops: Sequence[Loop], keep: Sequence[int]) -> list[Any]:
        """Write all entries, loops as loops, and return the values of some slots."""
        done = 0
        for loop in loops:
            self.straight(done, loop.start)
            self.loop(loop)
            done = loop.end
        self.straight(done, len(self._entries))
        return [self.value(slot) for slot in keep]

    def straight(self, start: int, end: int) -> None:
        """Write entries one after the other."""
        for entry in self._entries[start:end]:
            results = entry.kernel.out_avals
            if takes_apart(entry):
                rows = lax.reshape(self.value(entry.inputs[0]), (len(results), *results[0].shape))
                self.stack(rows, entry.slots, dict(zip(entry.slots, results, strict=True)))
            elif puts_together(entry):
                rows = self._together(entry.inputs, entry.kernel.in_avals[0])
                self._values[entry.slots[0]] = fitted(lax.reshape(rows, results[0].shape), results[0])
            else:
                self._values.update(zip(entry.slots, inline(entry)(*[self.value(s) for s in entry.inputs]), strict=True))

    def loop(self, loop: Loop) -> None:
        """Write a loop."""
        turn = self._entries[loop.start : loop.start + loop.period]
        gathered: dict[tuple[int, ...], int] = {}  # numbers in the list of what has a row for each turn
        given: list[Any] = []
        columns: dict[tuple[int, ...], Column] = {}
        registers: dict[Carried, int] = {}  # numbers in the list of what is carried
        held: list[tuple[Any, ...]] = []
        added = {total.source: total for total in totals(turn, loop)}
        for entry, sources in zip(turn, loop.reads, strict=True):
            for source, aval in zip(sources, entry.kernel.in_avals, strict=True):
                if source in added:
                    continue
                if isinstance(source, Carried) and source not in registers:
                    kind = _aval(turn, source.result)
                    registers[source] = len(held)
                    held.append(tuple([fitted(self.value(s), kind) for s in source.initial]))
                elif isinstance(source, Outside) and len(source.slots) == 1:
                    self.value(source.slots[0])
                elif isinstance(source, Outside) and source.slots not in columns and source.slots not in gathered:
                    there = self._rows(source.slots)
                    if there is None:
                        gathered[source.slots] = len(given)
                        given.append(self._together(source.slots, aval))
                    else:
                        columns[source.slots] = there
        values = self._values

        def column(slots: tuple[int, ...]) -> Column:
            return columns[slots] if slots in columns else Column(given[gathered[slots]], 0, 1)

        parts = self._ahead.parts(turn, loop.reads, loop.count, column, values)
        newest = {source.result: i for source, i in registers.items()}
        multiplied = dict.fromkeys(source for total in added.values() for source in total.operands)
        each = dict.fromkeys([*loop.each, *[r for r in loop.last if r not in newest and not _numeric(_aval(turn, r))]])
        each |= dict.fromkeys(source.result for source in multiplied if isinstance(source, Same))
        before = [source for source in multiplied if isinstance(source, Carried)]
        sums = {total.result for total in added.values()}
        last = [r for r in loop.last if r not in newest and r not in each and r not in sums]
        blank = [lax.full((a := _aval(turn, r)).shape, 0, a.dtype) for r in last]

        def body(carry: Any, given: list[Any]) -> Any:
            number, held, _ = carry
            results: list[Sequence[Any]] = []

            def read(source: Same | Carried | Outside, aval: Any) -> Any:
                if isinstance(source, Same):
                    return results[source.result[0]][source.result[1]]
                if source in added:  # nobody reads what is made of it
                    return fitted(lax.full(aval.shape, 0, aval.dtype), aval)
                if isinstance(source, Carried):
                    return held[registers[source]][0]
                if len(source.slots) == 1:
                    return values[source.slots[0]]
                if source.slots in gathered:
                    return fitted(given[gathered[source.slots]], aval)
                return fitted(columns[source.slots].row(number), aval)

            def result(of: Result) -> Any:
                return fitted(results[of[0]][of[1]], _aval(turn, of))

            for entry, sources, (run, ahead) in zip(turn, loop.reads, parts, strict=True):
                known = [fitted(c.row(number), aval) for c, aval in ahead]
                results.append(inline(entry, run)(*[read(s, a) for s, a in zip(sources, entry.kernel.in_avals, strict=True)], *known))
            further = [(*register[1:], result(source.result)) for source, register in zip(registers, held, strict=True)]
            finals = [fitted(result(r), jax.typeof(b)) for r, b in zip(last, blank, strict=True)]
            return (number + 1, further, finals), ([result(r) for r in each], [held[registers[source]][0] for source in before])

        (_, further, finals), (stacks, carried) = lax.scan(body, (jnp.int32(0), held, blank), given, length=loop.count)
        arrays = dict(zip(each, stacks, strict=True))
        for r, array in arrays.items():
            if r in loop.each:
                self.stack(array, loop.each[r], dict.fromkeys(loop.each[r], _aval(turn, r)))
            elif r in loop.last:
                values[loop.last[r]] = lax.index_in_dim(array, loop.count - 1, keepdims=False)
        for r, slot in loop.last.items():
            if r in newest:
                values[slot] = further[newest[r]][-1]
            elif r in last:
                values[slot] = fitted(finals[last.index(r)], _aval(turn, r))

        def rows(source: Same | Carried | Outside) -> Any:
            if isinstance(source, Same):
                return arrays[source.result]
            return column(source.slots).whole(loop.count) if isinstance(source, Outside) else carried[before.index(source)]

        for source, total in added.items():
            aval = _aval(turn, total.result)
            start = fitted(self.value(source.initial[0]), aval)
            value = inline(total.step, total.of)(start, [rows(operand) for operand in total.operands])
            values[loop.last[total.result]] = fitted(value, aval)

    def _together(self, slots: Sequence[int], aval: Any) -> Any:
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

    def _rows(self, slots: tuple[int, ...]) -> Column | None:
        """Return the array whose rows are the values of slots, the first row and the distance to the next; None where there is none."""
        stacks, rows = self._stack[list(slots)], self._row[list(slots)]
        step = int(rows[1] - rows[0])
        if stacks[0] < 0 or (stacks != stacks[0]).any() or not step or (np.diff(rows) != step).any():
            return None
        return Column(self._stacks[stacks[0]], int(rows[0]), step)


def _chosen_rows(array: Any, rows: Ints) -> Any:
    """Return an array of some rows of another one."""
    step = int(rows[1] - rows[0])
    if isinstance(array, np.ndarray) or abs(step) != 1 or (np.diff(rows) != step).any() or not _numeric(array):
        return array[rows]
    part = lax.slice_in_dim(array, int(rows.min()), int(rows.max()) + 1)
    return part if step > 0 else lax.rev(part, (0,))


def _aval(turn: Sequence[Step], result: Result) -> Any:
    return turn[result[0]].kernel.out_avals[result[1]]


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
