"""Rolling: a list of entries as a function whose loops are loops of XLA's, so that it does not grow with the number of their turns.

What a loop gives for every turn is one array, a row per turn, and so are the numbers among the leaves.  A later loop (the sweep of the
first one, say) reads the rows where they are, in its own order; whoever else reads one takes it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tape import jaxapi
from tape.graph.kinds import is_scalar
from tape.graph.repeats import fused, repeats, written_out
from tape.graph.trie import Step
from tape.programs.columns import Ahead, Column
from tape.programs.costs import TURN, Costs, branches, over_layers, to_compile
from tape.programs.interpretation import on_one_device
from tape.programs.loops import Carried, Flow, Ints, Loop, Outside, Result, Same, find
from tape.programs.naming import inline
from tape.programs.rows import puts_together, takes_apart
from tape.programs.turns import Call, Calls, turns_of

MANY = 600  # entries,
LONG = 1.5  # or seconds to compile them; what is shorter than both is written out, and XLA fuses across turns,
FEW = 100  # unless it would compute the same over and over for that
UNROLLED = 2000  # entries outside of loops, beyond which each loop becomes one whatever it costs,
_EQUATIONS = 4  # and for each of them so many of a jaxpr, where the loop is one over layers
_SHARE = 0.6  # of a turn that a loop of XLA's may cost besides,
_RUNS = 5_000  # or so many runs until what it costs besides comes to what it takes longer to compile its turns
_LONG = 8  # times as long as its call is a turn that is called


class Rolled:
    """Entries with loops: ``run`` is the function to compile, of the arguments that :meth:`arguments` makes of all inputs."""

    def __init__(self, flow: Flow, loops: Sequence[Loop], slots: Sequence[int], inputs: Sequence[Any]) -> None:
        self._flow = flow
        self._loops = loops
        packed: dict[Any, list[int]] = {}
        for i, given in enumerate(inputs):
            if is_scalar(given):
                packed.setdefault(jax.typeof(given).dtype, []).append(i)
        self._packed = list(packed.items())
        alone = {i for positions in packed.values() for i in positions}
        self._rest = [i for i in range(len(inputs)) if i not in alone]
        self._slots = slots
        self._numbers = {slots[i]: jax.typeof(inputs[i]) for i in alone}

    def arguments(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the arguments for some inputs: of the numbers among them, one array for each dtype."""
        with np.errstate(all="ignore"):  # a number that its dtype does not hold becomes infinite, as in JAX
            arrays: list[Any] = [np.array([inputs[i] for i in positions], dtype) for dtype, positions in self._packed]
        arrays += [inputs[i] for i in self._rest]
        return arrays

    def run(self, *arguments: Any) -> list[Any]:
        """Return the values that are kept."""
        packs = len(self._packed)
        rest = dict(zip([self._slots[i] for i in self._rest], arguments[packs:], strict=True))
        writing = Writing(self._flow, rest)
        for (_, positions), array in zip(self._packed, arguments[:packs], strict=True):
            writing.stack(array, [self._slots[i] for i in positions], self._numbers)
        return writing.whole(self._loops, self._flow.keep)

    def called(self, name: str, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the values that are kept for inputs of a JAX transformation, which takes it as one call."""

        def whole(*arguments: Any) -> Sequence[Any]:
            return self.run(*arguments)

        whole.__name__ = name
        return jax.jit(whole)(*self.arguments(inputs))  # type: ignore[no-any-return]

    def call(self, inputs: Sequence[int]) -> Call:
        """Return the call of it, compiled, on some slots."""
        compiled, arguments = jax.jit(self.run), self.arguments
        return Call(compiled, lambda *given: compiled(*arguments(given)), inputs, self._flow.keep, arguments)


def rolled(entries: Sequence[Step], slots: Sequence[int], keep: Sequence[int], leaves: Sequence[Any]) -> Calls | None:
    """Return a list of entries, from leaves of some slots to the values kept, as a program with loops; None where it has none."""
    if len(entries) < FEW:
        return None
    flow = Flow(entries, keep)
    scans, called = chosen(flow, find(flow), dict(zip(slots, leaves, strict=True)))
    if not called:
        return Calls([Rolled(flow, scans, slots, leaves).call(slots)], slots, keep, flow) if scans else None
    parts: list[Call] = []
    values = dict(zip(slots, leaves, strict=True))

    def between(start: int, end: int) -> None:
        """Add the part between two loops that are called."""
        part = entries[start:end]
        if part:
            given = {s for e in part for s in e.slots}
            needed = flow.needed_after(end)
            read = list(dict.fromkeys([s for e in part for s in e.inputs if s not in given]))
            inside = [replace(loop, start=loop.start - start) for loop in scans if start <= loop.start < end]
            own = Flow(part, sorted(s for s in given if needed[s]))
            parts.append(Rolled(own, inside, read, [values.get(s) for s in read]).call(read))

    done = 0
    for loop in called:
        between(done, loop.start)
        parts += turns_of(flow, loop, values)
        done = loop.end
    between(done, len(entries))
    return Calls(parts, slots, keep, flow)


def rolled_inside(entries: Sequence[Step], slots: Sequence[int], keep: Sequence[int], leaves: Sequence[Any]) -> Rolled | None:
    """Return what :func:`rolled` does for values of a JAX transformation, in which it is ``called``; None where nothing is a loop."""
    if len(entries) < FEW:
        return None
    flow = Flow(entries, keep)
    scans, _ = chosen(flow, find(flow), dict(zip(slots, leaves, strict=True)), calls=False)
    return Rolled(flow, scans, slots, leaves) if scans else None


def written(entries: Sequence[Step]) -> list[Step]:
    """Return about the entries that the program of some is made of: of what repeats, one turn."""
    kept = list(entries)
    if _is_long(kept):
        kernels = [entry.kernel for entry in entries]
        for repeat in reversed(repeats(kernels)):
            second = repeat.start + repeat.period
            if not written_out(kernels[repeat.start : second], repeat.turns):
                del kept[second : repeat.end]
    return kept


def chosen(
    flow: Flow, loops: Sequence[Loop], leaves: dict[int, Any], *, calls: bool = True, waits: bool = False
) -> tuple[list[Loop], list[Loop]]:
    """Return the loops that become XLA's, and those whose turns are called; ``waits``: the user does until it is compiled."""
    costs = Costs(flow, loops, [slot for slot, leaf in leaves.items() if is_scalar(leaf)])
    together = calls and all(on_one_device(leaf) for leaf in leaves.values())
    many = waits or _is_long(flow.entries)
    free = 2 * TURN if waits else TURN
    scans, called, left = [], [], []
    layers = over_layers(flow, loops) if many and len(flow.entries) <= (_EQUATIONS if waits else 1) * UNROLLED else ()
    if any(branches(flow.entries[loop.start : loop.end], loop, lambda kernel: kernel.passes) for loop in layers):
        layers = ()  # 24 layers with gates and a sum of three took 10 s to compile
    for loop in loops:
        turn, scan, call = costs.of_turns(loop)
        if together and call < scan and call * _LONG < turn and many:
            called.append(loop)
        elif branches(flow.entries[loop.start : loop.end], loop) or (
            many and loop not in layers and _pays(flow, loop, scan, max(free, turn * _SHARE, _longer(flow, loop) / _RUNS))
        ):
            scans.append(loop)
            costs.stacked(loop)
        else:
            left.append(loop)
    _join(flow, scans, left)
    size = len(flow.entries) - sum(loop.saved for loop in (*scans, *called))
    for loop in sorted(left, key=lambda loop: -loop.saved):
        if size > UNROLLED and loop not in layers:
            scans.append(loop)
            size -= loop.saved
    return sorted(scans, key=lambda loop: loop.start), called


def _pays(flow: Flow, loop: Loop, scan: float, least: float) -> bool:
    """Tell whether it pays to make a loop one of XLA's, which costs so many seconds a turn, and saves at least so many."""
    turn = [entry.kernel for entry in flow.entries[loop.start : loop.start + loop.period]]
    if fused(turn):
        return not written_out(turn, loop.count)
    return scan <= least


def _join(flow: Flow, scans: list[Loop], left: list[Loop]) -> None:
    """Have loops whose rows one of XLA's reads, as a sweep does, be such ones as well.

    Rows to be stacked first XLA would compute anew for each stack, from the first turn on: 300 turns of three entries took it 84 s.
    """
    for loop in left[::-1]:
        given = {slot for entry in flow.entries[loop.start : loop.end] for slot in entry.slots}
        if any(
            len(source.slots) > 1 and not given.isdisjoint(source.slots)
            for reader in scans
            for sources in reader.reads
            for source in sources
            if isinstance(source, Outside)
        ):
            left.remove(loop)
            scans.append(loop)


def _is_long(entries: Sequence[Step]) -> bool:
    return len(entries) >= MANY or to_compile([entry.kernel for entry in entries]) >= LONG


def _longer(flow: Flow, loop: Loop) -> float:
    """Return the seconds per turn by which a loop takes longer to compile where its turns are written out."""
    turn = flow.entries[loop.start : loop.start + loop.period]
    return float(sum([entry.kernel.cost.part for entry in turn])) * (loop.count - 1) / loop.count


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
        for entry, sources in zip(turn, loop.reads, strict=True):
            for source, aval in zip(sources, entry.kernel.in_avals, strict=True):
                if isinstance(source, Carried) and source not in registers:
                    carried = _aval(turn, source.result)
                    registers[source] = len(held)
                    held.append(tuple([fitted(self.value(s), carried) for s in source.initial]))
                elif isinstance(source, Outside) and len(source.slots) == 1:
                    self.value(source.slots[0])
                elif isinstance(source, Outside) and source.slots not in columns and source.slots not in gathered:
                    rows = self._rows(source.slots)
                    if rows is None:
                        gathered[source.slots] = len(given)
                        given.append(self._together(source.slots, aval))
                    else:
                        columns[source.slots] = rows
        values = self._values

        def column(slots: tuple[int, ...]) -> Column:
            return columns[slots] if slots in columns else Column(given[gathered[slots]], 0, 1)

        parts = self._ahead.parts(turn, loop.reads, loop.count, column, values)
        newest = {source.result: i for source, i in registers.items()}
        each = [*loop.each, *[r for r in loop.last if r not in newest and not _numeric(_aval(turn, r))]]
        last = [r for r in loop.last if r not in newest and r not in each]
        blank = [lax.full((a := _aval(turn, r)).shape, 0, a.dtype) for r in last]

        def body(carry: Any, given: list[Any]) -> Any:
            number, held, _ = carry
            results: list[Sequence[Any]] = []

            def read(source: Same | Carried | Outside, aval: Any) -> Any:
                if isinstance(source, Same):
                    return results[source.result[0]][source.result[1]]
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
                rows = [fitted(column.row(number), aval) for column, aval in ahead]
                results.append(inline(entry, run)(*[read(s, a) for s, a in zip(sources, entry.kernel.in_avals, strict=True)], *rows))
            further = [(*register[1:], result(source.result)) for source, register in zip(registers, held, strict=True)]
            finals = [fitted(result(r), jax.typeof(b)) for r, b in zip(last, blank, strict=True)]
            return (number + 1, further, finals), [result(r) for r in each]

        start = (jnp.int32(0), held, blank)
        (_, further, finals), stacks = lax.scan(body, start, given, length=loop.count)
        for r, array in zip(each, stacks, strict=True):
            if r in loop.each:
                self.stack(array, loop.each[r], dict.fromkeys(loop.each[r], _aval(turn, r)))
            else:
                values[loop.last[r]] = lax.index_in_dim(array, loop.count - 1, keepdims=False)
        for r, slot in loop.last.items():
            if r in newest:
                values[slot] = further[newest[r]][-1]
            elif r in last:
                values[slot] = fitted(finals[last.index(r)], _aval(turn, r))

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
