"""Relations: what a step's program depends on between Variables from outside, besides what each is by itself.

Handles of one result (``copy.copy(y)``, a gradient that was handed on) are one input of the program, which may be two values at the next
call.  And a sweep in a step ends at what was computed outside, so that it would leave out what leads to another one there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from tape.graph.segment import Handle, LeafNode
from tape.jitting.effects import Effects
from tape.sweeps.sweep import past, target_of

_Pair = tuple[tuple[int, bool], tuple[int, bool]]  # each a source, and whether it is its gradient


class Relations(NamedTuple):
    """``aims`` are the sources that a sweep reached, and those at which it was to end; ``one`` are pairs that were one result."""

    aims: list[tuple[list[int], list[int]]]
    one: list[_Pair]

    @classmethod
    def of(cls, effects: Effects) -> Relations:
        """Return those on which a trace depends."""
        aims = [(sorted(swept), sorted(ends)) for swept, ends in effects.aims if len({*swept, *ends}) > 1]
        holders = [i for i, g in enumerate(effects.grads) if g is not None]
        known = [*[(i, False) for i in range(len(effects.sources))], *[(i, True) for i in holders]]
        first: dict[int, int] = {}
        pairs = [(first.setdefault(id(cell), n), n) for n, cell in enumerate(effects._cells)]
        return cls(aims, [(known[k], known[n]) for k, n in pairs if effects.known[k] is not effects.known[n] and effects.was_read[k]])

    def __bool__(self) -> bool:
        """Tell whether there are any."""
        return bool(self.aims or self.one)

    def sources(self) -> Collection[int]:
        """Return the sources that are in any."""
        return {*[i for pair in self.one for i, _ in pair], *[i for aim in self.aims for part in aim for i in part]}

    def hold(self, variables: Sequence[Any]) -> bool:
        """Tell whether the Variables of a call, by source, are to each other what others were where the step was traced."""
        return self._are_one(variables) and not self._astray(variables)

    def _are_one(self, variables: Sequence[Any]) -> bool:
        return all(_cell(variables, a) is _cell(variables, b) for a, b in self.one)

    def _astray(self, variables: Sequence[Any]) -> bool:
        """Tell whether a sweep in the step would leave out what flows through others that depend on Variables at which it is to end."""
        for swept, ends in self.aims:
            nodes = {i: target_of(variables[i]) for i in (*swept, *ends)}
            targets = {nodes[i] for i in ends}
            if any(not (targets - {x}).isdisjoint(past([x])) for x in map(nodes.__getitem__, swept) if not isinstance(x, LeafNode)):
                return True
            if any(i != k and nodes[i] == nodes[k] for i in swept for k in ends):
                return True
        return False


def _cell(variables: Sequence[Any], member: tuple[int, bool]) -> object:
    i, of_gradient = member
    v: Handle | None = variables[i]
    if of_gradient and v is not None:
        v = None if v._extra is None else v._extra.grad
    return None if v is None else v._cell
