"""Rolling: a list of entries as a function whose loops are loops of XLA's, so that it does not grow with the number of their turns.

Which loops become such ones, which are called turn by turn (:mod:`tape.programs.turns`), and which are written out, follows from costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from tape.graph.kinds import is_scalar
from tape.graph.repeats import fused, repeats, written_out
from tape.graph.trie import Step
from tape.programs.costs import TURN, Costs, branches, over_layers, to_compile
from tape.programs.interpretation import on_one_device
from tape.programs.loops import Flow, Loop, PerTurn, find
from tape.programs.scans import Writing
from tape.programs.turns import Call, Calls, turns_of

MANY = 600  # entries,
LONG = 1.5  # or seconds to compile them; what is shorter than both is written out, and XLA fuses across turns,
FEW = 100  # unless it would compute the same over and over for that
UNROLLED = 2000  # entries outside of loops, beyond which each loop becomes one whatever it costs,
_EQUATIONS = 4  # of a jaxpr, for each entry where the loop is one over layers
_SHARE = 0.6  # of a turn that a loop of XLA's may cost besides,
_RUNS = 5_000  # or so many runs until what it costs besides comes to what it takes longer to compile its turns
_LONG = 8  # times as long as its call is a turn that is called
# Seconds to compile an equation that is like no other, and one where there are others like it, whose kernel XLA has;
_KERNEL, _AGAIN = 0.011, 0.001
LEAST = 0.3  # and those that loops must save where the user waits


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
        return writing.whole(self._loops)

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
    numbers = [slot for slot, leaf in zip(slots, leaves, strict=True) if is_scalar(leaf)]
    scans, called = _chosen(flow, find(flow), numbers, together=all(map(on_one_device, leaves)))
    if not called:
        return Calls([Rolled(flow, scans, slots, leaves).call(slots)], slots, keep, flow) if scans else None
    parts: list[Call] = []
    values = dict(zip(slots, leaves, strict=True))
    for start, end, loop in flow.around(called):
        if part := entries[start:end]:
            given = {s for e in part for s in e.slots}
            needed = flow.needed_after(end)
            read = list(dict.fromkeys([s for e in part for s in e.inputs if s not in given]))
            inside = [replace(loop, start=loop.start - start) for loop in scans if start <= loop.start < end]
            own = Flow(part, sorted(s for s in given if needed[s]))
            parts.append(Rolled(own, inside, read, [values.get(s) for s in read]).call(read))
        parts += () if loop is None else turns_of(flow, loop, values)
    return Calls(parts, slots, keep, flow)


def rolled_inside(entries: Sequence[Step], slots: Sequence[int], keep: Sequence[int], leaves: Sequence[Any]) -> Rolled | None:
    """Return what :func:`rolled` does for values of a JAX transformation, in which it is ``called``; None where nothing is a loop."""
    if equations(entries) < FEW:
        return None
    flow = Flow(entries, keep)
    scans = chosen_inside(flow, [slot for slot, leaf in zip(slots, leaves, strict=True) if is_scalar(leaf)])
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


def chosen_inside(flow: Flow, numbers: Sequence[int]) -> list[Loop]:
    """Return the loops that become XLA's in a program for which the user waits: none where they save little; ``numbers`` are slots."""
    loops = find(flow)
    return _chosen(flow, loops, numbers, together=False, waits=True)[0] if _saved(flow, loops, numbers) >= LEAST else []


def _saved(flow: Flow, loops: Sequence[Loop], numbers: Sequence[int]) -> float:
    """Return the seconds of compilation that loops save: those of their turns, but for the rows that are taken out of what they give."""
    seconds, costs, known = 0.0, Costs(flow, loops, ()), set(numbers)
    for loop in loops:
        count = equations(loop.turn)
        others = sum(any(isinstance(s, PerTurn) and s.slots[0] in known for s in sources) for sources in loop.reads)
        seconds += (loop.count - 1) * (others * _KERNEL + (count - others) * _AGAIN) - costs.taken_out(loop) * _KERNEL
    return seconds


def equations(entries: Sequence[Step]) -> int:
    """Return how many equations some entries have."""
    return sum([len(kernel.jaxpr.eqns) * times for kernel, times in Counter([entry.kernel for entry in entries]).items()])


def _chosen(
    flow: Flow, loops: Sequence[Loop], numbers: Sequence[int], *, together: bool, waits: bool = False
) -> tuple[list[Loop], list[Loop]]:
    """Return the loops that become XLA's, and those whose turns are called; ``waits``: the user does until it is compiled."""
    costs = Costs(flow, loops, numbers)
    size: Callable[[Sequence[Step]], int] = equations if waits else len
    many = waits or _is_long(flow.entries)
    free = 2 * TURN if waits else TURN
    scans, called, left = [], [], []
    whole = size(flow.entries)
    layers = over_layers(flow, loops) if many and whole <= (_EQUATIONS if waits else 1) * UNROLLED else ()
    if any(branches(loop, lambda kernel: kernel.passes) for loop in layers):
        layers = ()  # 24 layers with gates and a sum of three took 10 s to compile
    for loop in loops:
        turn, scan, call = costs.of_turns(loop)
        if together and call < scan and call * _LONG < turn and many:
            called.append(loop)
        elif branches(loop) or (many and loop not in layers and _pays(loop, scan, max(free, turn * _SHARE, _longer(loop) / _RUNS))):
            scans.append(loop)
            costs.stacked(loop)
        else:
            left.append(loop)
    _join(flow, scans, left)
    saved = {loop.start: (loop.count - 1) * size(flow.entries[loop.start : loop.start + loop.period]) for loop in loops}
    outside = whole - sum(saved[loop.start] for loop in (*scans, *called))
    for loop in sorted(left, key=lambda loop: -saved[loop.start]):
        if outside > UNROLLED and loop not in layers:
            scans.append(loop)
            outside -= saved[loop.start]
    return sorted(scans, key=lambda loop: loop.start), called


def _pays(loop: Loop, scan: float, least: float) -> bool:
    """Tell whether it pays to make a loop one of XLA's, which costs so many seconds a turn, and saves at least so many."""
    turn = [entry.kernel for entry in loop.turn]
    if fused(turn):
        return not written_out(turn, loop.count)
    return scan <= least


def _join(flow: Flow, scans: list[Loop], left: list[Loop]) -> None:
    """Have loops whose rows one of XLA's reads, as a sweep does, be such ones as well.

    Rows to be stacked first XLA would compute anew for each stack, from the first turn on: 300 turns of three entries took it 84 s.
    """
    for loop in left[::-1]:
        given = {slot for entry in flow.entries[loop.start : loop.end] for slot in entry.slots}
        if any(isinstance(s, PerTurn) and not given.isdisjoint(s.slots) for reader in scans for s in reader.sources):
            left.remove(loop)
            scans.append(loop)


def _is_long(entries: Sequence[Step]) -> bool:
    return len(entries) >= MANY or to_compile([entry.kernel for entry in entries]) >= LONG


def _longer(loop: Loop) -> float:
    """Return the seconds per turn by which a loop takes longer to compile where its turns are written out."""
    return float(sum([entry.kernel.cost.part for entry in loop.turn])) * (loop.count - 1) / loop.count
