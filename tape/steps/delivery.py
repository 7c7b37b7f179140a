"""Deliveries: where the results of a compiled step go, on the Variables that one call of it concerns.

Usually a leaf gets a new value and stays what it is, a gradient is new, and what is returned are new Variables: those are told apart
beforehand, so that each costs a few assignments.
"""

from __future__ import annotations

import sys
from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any

import jax

from tape.mirrored.detachment import detach
from tape.programs.program import look, run_pending
from tape.recording.record import handle
from tape.recording.scope import LOCAL
from tape.recording.segment import Extra, extra_of, outside
from tape.steps.outcome import ARRAY, GRADIENT, MADE, PLAIN, SAME, Tree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tape.steps.outcome import Change, Made, Slot
    from tape.steps.tracing import Step

__all__ = ["ONCE", "Delivery", "counts_below", "taking"]


def counts_below(objects: Sequence[Any], limit: int) -> bool:
    """Tell whether none of some objects has more than ``limit`` references."""
    return max(map(sys.getrefcount, objects), default=0) <= limit


def _once() -> int:
    """References to an object that only a sequence holds, as :func:`counts_below` sees them."""
    return max(map(sys.getrefcount, [object()]), default=0)


ONCE = _once()


_new = object.__new__


class Delivery:
    """What to do with the results of a step.

    Args:
        step: the traced step.
        variables: one for each source of it.
        slots: places to be filled.

    Attributes:
        normal: whether every Variable to be written to is outside any segment, so that only its cell changes.

    """

    def __init__(self, step: Step, variables: Sequence[Any], slots: Sequence[Slot]) -> None:
        self._outcome = step.outcome
        self._sources = variables
        self._slots = slots
        made = self._outcome.made
        simple: list[tuple[Any, int]] = []
        self._others: list[tuple[Any, Change]] = []
        self._cleared: list[Extra] = []
        self._accumulated: list[tuple[Extra, int]] = []
        for change in self._outcome.changes:
            v = variables[change.source]
            if change.value is not None:
                new = made[change.value]
                if new.segment is None and new.live < 0 and new.place.kind is step.kinds[change.source] and not change.anew:
                    simple.append((v, new.result))
                else:
                    self._others.append((v, change))
            if change.grad is not None and change.grad < 0:
                self._cleared.append(extra_of(v))
            elif change.grad is not None:
                self._accumulated.append((extra_of(v), change.grad))
        self._written = [v for v, _ in simple]
        self._new_values = taking([n for _, n in simple])
        self._plan_results()
        self.normal = False  # whether every Variable to be written is outside any segment, so that only its cell changes

    def _plan_results(self) -> None:
        """Set apart the gradients that nothing else refers to, and a result that is one plain Variable: both can be made at once."""
        outcome = self._outcome
        returned = outcome.returned
        trees = [returned, *[s.content for s in self._slots]]
        shared = {n for tree in trees for kind, n in tree.leaves if kind == MADE}
        shared |= {m.grad for m in outcome.made} | {c.value for _, c in self._others}
        own = [(e, outcome.made[n]) for e, n in self._accumulated if n not in shared and _is_plain(outcome.made[n])]
        self._gathering = [e for e, _ in own]
        self._grad_places = [m.place for _, m in own]
        self._gathered: list[Any] = []  # those of the last run
        self._nothing_more = [None] * len(own)
        self._new_grads = taking([m.result for _, m in own])
        self._accumulated = [(e, n) for e, n in self._accumulated if e not in self._gathering]
        self._needed = [(n, outcome.made[n]) for n in sorted(_reachable(outcome.made, {*shared, *[n for _, n in self._accumulated]}))]
        numbers = [n for kind, n in returned.leaves if kind == MADE]
        only_new = len(numbers) == len(returned.leaves) == len(set(numbers)) and all(
            _is_plain(outcome.made[n], stopped=True) for n in numbers
        )
        self._quickly = only_new and not self._accumulated and not self._others and not self._slots
        self._returned = [(outcome.made[n].segment, outcome.made[n].place) for n in numbers] if self._quickly else []
        self._returned_values = taking([outcome.made[n].result for n in numbers] if self._quickly else [])
        self._structure: Any = None if returned.structure == _ONE else returned.structure
        self._first = outcome.made[numbers[0]].result if self._quickly and numbers else 0
        self._sample: Any = handle(None, outcome.made[0].place, [None]) if outcome.made else None

    def normalize(self) -> None:
        """Take the Variables that will be written to out of their segments, so that from then on only their cells change."""
        for v in self._written:
            if v._segment is not None or v._place.slot != -1:
                v._segment, v._place = None, outside(v._place, v._segment)
        self.normal = True

    def deliver(self, results: Sequence[Any]) -> Any:
        """Put the results of a run where they belong, and return what the step returns."""
        for v, x in zip(self._written, self._new_values(results), strict=True):
            v._cell = [x]
        if self._gathering:
            self._gather(results)
        if not self._quickly:
            made: list[Any] = [None] * len(self._outcome.made)
            for number, spec in self._needed:
                made[number] = self._make(spec, results)
            return self._settle(made, results)
        for extra in self._cleared:
            extra.grad = None
            extra.assigned = False
        if self._structure is None:
            segment, place = self._returned[0]
            return handle(segment, place, [results[self._first]])
        kind = type(self._sample)
        found = []
        for (segment, place), x in zip(self._returned, self._returned_values(results), strict=True):
            v = _new(kind)  # as record.handle does it, whose call would cost half as much again
            v._segment = segment
            v._place = place
            v._cell = [x]
            v._extra = None
            found.append(v)
        return self._structure.unflatten(found)

    def _gather(self, results: Sequence[Any]) -> None:
        """Set the gradients that nothing else refers to."""
        arrays = self._new_grads(results)
        gradients = self._gathered
        if (
            gradients
            and all(map(is_, [e.grad for e in self._gathering], gradients))
            and counts_below(gradients, ONCE + 1)
            and [g._place for g in gradients] == self._grad_places
            and [g._extra for g in gradients] == self._nothing_more
        ):  # nobody else has seen the old ones: a new cell makes them new ones
            for gradient, x in zip(gradients, arrays, strict=True):
                gradient._cell = [x]
            return
        gradients.clear()
        for extra, place, x in zip(self._gathering, self._grad_places, arrays, strict=True):
            extra.grad = made = handle(None, place, [x])
            extra.assigned = False
            gradients.append(made)

    def deliver_recorded(self, recorded: Sequence[Any]) -> Any:
        """The same for a step that was recorded as one op: ``recorded`` are its results, as Variables, pending where they may be."""
        outcome = self._outcome
        made: list[Any] = [None] * len(outcome.made)
        if self._needs_values():
            segment = LOCAL.segment()
            if segment is not None:
                run_pending(segment, "jit")
            results = [look(v) for v in recorded]
            for number, spec in self._needed:
                made[number] = recorded[spec.result] if spec.live >= 0 else self._make(spec, results)
            self.normalize()
            for v, x in zip(self._written, self._new_values(results), strict=True):
                v._cell = [x]
            self._gather(results)
        else:
            results = list(recorded)
            for number, spec in self._needed:
                made[number] = recorded[spec.result] if spec.live >= 0 else _constant(recorded[spec.result], spec)
        for number, spec in self._needed:
            if spec.name is not None:
                made[number].name = spec.name
        return self._settle(made, results)

    def _needs_values(self) -> bool:
        """Tell whether the recorded step must run at once: something that it leaves behind cannot be pending."""
        outcome = self._outcome
        if outcome.changes or self._slots or any(m.segment is not None or m.place.kind.unrecorded for m in outcome.made):
            return True
        return any(kind == ARRAY for kind, _ in outcome.returned.leaves)

    def _make(self, spec: Made, results: Sequence[Any]) -> Any:
        made = handle(spec.segment, spec.place, [results[spec.result]])
        if spec.name is not None:
            made.name = spec.name
        return made

    def _settle(self, made: Sequence[Any], results: Sequence[Any]) -> Any:
        """Make the changes that are not mere values, fill places, and build what the step returns."""
        for number, spec in self._needed:
            if spec.grad >= 0:
                extra_of(made[number]).grad = made[spec.grad]
        for extra in self._cleared:
            extra.grad, extra.assigned = None, False
        for extra, number in self._accumulated:
            extra.grad, extra.assigned = made[number], False
        for v, change in self._others:
            assert change.value is not None
            new = made[change.value]
            v._segment, v._place, v._cell = new._segment, new._place, new._cell
            if change.anew:
                name = None if v._extra is None else v._extra.name
                v._extra = None
                if name is not None:
                    v._extra = Extra()
                    v._extra.name = name
            self.normal = False
        for slot in self._slots:
            slot.holder.put(slot.key, self._built(slot.content, made, results))
        return self._built(self._outcome.returned, made, results)

    def _built(self, tree: Tree, made: Sequence[Any], results: Sequence[Any]) -> Any:
        leaves = []
        for kind, x in tree.leaves:
            if kind == MADE:
                leaves.append(made[x])
            elif kind == ARRAY:
                leaves.append(results[x])
            elif kind == PLAIN:
                leaves.append(x)
            elif kind == SAME:
                leaves.append(self._sources[x])
            else:
                assert kind == GRADIENT
                leaves.append(self._sources[x]._extra.grad)
        return jax.tree.unflatten(tree.structure, leaves)


_ONE = jax.tree.structure(0)


def taking(numbers: list[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function that takes some items of a sequence."""
    if not numbers:
        return lambda _: ()
    if len(numbers) == 1:
        return lambda results: (results[numbers[0]],)
    return itemgetter(*numbers)


def _is_plain(made: Made, *, stopped: bool = False) -> bool:
    """Tell whether a Variable is but a value (``stopped``: perhaps with a graph that no sweep goes through)."""
    return (made.segment is None or stopped) and made.live < 0 and made.grad < 0 and made.name is None


def _reachable(made: Sequence[Made], numbers: set[int]) -> set[int]:
    """Return the Variables to make if those of some numbers are: their gradients, too."""
    found: set[int] = set()
    stack = [n for n in numbers if n is not None]
    while stack:
        n = stack.pop()
        if n >= 0 and n not in found:
            found.add(n)
            stack.append(made[n].grad)
    return found


def _constant(result: Any, spec: Any) -> Any:
    """Return a result through which no gradient flows, still pending."""
    made = detach(result)
    if spec.place.kind.requires_grad:  # a leaf that the step made
        return handle(None, spec.place, [look(made)])
    return made
