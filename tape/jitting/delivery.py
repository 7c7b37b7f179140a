"""Deliveries: where the results of a compiled step go, on the Variables that one call of it concerns.

Usually a leaf gets a new value and stays what it is: that is told beforehand, so that it costs one assignment.
"""

from __future__ import annotations

import sys
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from tape.graph.scope import LOCAL
from tape.graph.segment import Extra, extra_of, outside
from tape.jitting.outcome import ARRAY, GRADIENT, MADE, ONE, PLAIN, SAME, Tree
from tape.mirrored.detachment import detach
from tape.programs.program import look, run_pending
from tape.recording.record import handle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tape.jitting.outcome import Change, Made, Slot
    from tape.jitting.tracing import Step

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
        self._replaced: list[tuple[Any, Change]] = []
        self._cleared: list[Extra] = []
        self._accumulated: list[tuple[Extra, int]] = []
        for change in self._outcome.changes:
            v = variables[change.source]
            if change.value is not None:
                new = made[change.value]
                if new.segment is None and new.live < 0 and new.place.kind is step.kinds[change.source] and not change.anew:
                    simple.append((v, new.result))
                else:
                    self._replaced.append((v, change))
            if change.grad is not None and change.grad < 0:
                self._cleared.append(extra_of(v))
            elif change.grad is not None:
                self._accumulated.append((extra_of(v), change.grad))
        self._written = [v for v, _ in simple]
        self._new_values = taking([n for _, n in simple])
        trees = [self._outcome.returned, *[s.content for s in slots]]
        wanted = {n for tree in trees for kind, n in tree.leaves if kind == MADE}
        wanted |= {n for _, n in self._accumulated} | {c.value for _, c in self._replaced if c.value is not None}
        self._needed = [(n, made[n]) for n in sorted(_reachable(made, wanted))]
        self._makings = [(n, m.segment, m.place, m.result) for n, m in self._needed]
        self._named = [(n, m.name) for n, m in self._needed if m.name is not None]
        self._with_grads = [(n, m.grad) for n, m in self._needed if m.grad >= 0]
        self._rarely = bool(self._named or self._with_grads or self._accumulated or self._replaced or slots)
        self._class = type(handle(None, made[0].place, [None])) if made else None
        self.normal = False

    def normalize(self) -> None:
        """Take the Variables that will be written to out of their segments, so that from then on only their cells change."""
        for v in self._written:
            if v._segment is not None or v._place.slot != -1:
                v._segment, v._place = None, outside(v._place, v._segment)
        self.normal = True

    def deliver(self, results: Sequence[Any]) -> Any:
        """Put the results of a run where they belong, and return what the step returns."""
        for v, x in zip(self._written, self._new_values(results)):  # noqa: B905 - as many, and quicker not to ask
            v._cell = [x]
        made: list[Any] = [None] * len(self._outcome.made)
        kind: Any = self._class
        for number, segment, place, result in self._makings:
            v = made[number] = _new(kind)  # as record.handle does it, whose call would cost half as much again
            v._segment = segment
            v._place = place
            v._cell = [results[result]]
            v._extra = None
        for extra in self._cleared:
            extra.grad, extra.assigned = None, False
        if self._rarely:
            self._settle(made, results)
        return self._built(self._outcome.returned, made, results)

    def deliver_recorded(self, recorded: Sequence[Any]) -> Any:
        """The same for a step that was recorded as one op: ``recorded`` are its results, as Variables, pending where they may be."""
        made: list[Any] = [None] * len(self._outcome.made)
        results = list(recorded)
        at_once = self._needs_values()
        if at_once:
            segment = LOCAL.segment()
            if segment is not None:
                run_pending(segment, "jit")
            results = [look(v) for v in recorded]
            self.normalize()
            for v, x in zip(self._written, self._new_values(results)):  # noqa: B905 - as many, and quicker not to ask
                v._cell = [x]
        for number, spec in self._needed:
            if spec.live >= 0:
                made[number] = recorded[spec.result]
            elif at_once:
                made[number] = handle(spec.segment, spec.place, [results[spec.result]])
            else:
                made[number] = _constant(recorded[spec.result], spec)
        for extra in self._cleared:
            extra.grad, extra.assigned = None, False
        self._settle(made, results)
        return self._built(self._outcome.returned, made, results)

    def _needs_values(self) -> bool:
        """Tell whether the recorded step must run at once: something that it leaves behind cannot be pending."""
        outcome = self._outcome
        if outcome.changes or self._slots or any(m.segment is not None or m.place.kind.unrecorded for m in outcome.made):
            return True
        return any(kind == ARRAY for kind, _ in outcome.returned.leaves)

    def _settle(self, made: Sequence[Any], results: Sequence[Any]) -> None:
        """Make the changes that are not mere values, and fill places."""
        for number, name in self._named:
            made[number].name = name
        for number, grad in self._with_grads:
            extra_of(made[number]).grad = made[grad]
        for extra, number in self._accumulated:
            extra.grad, extra.assigned = made[number], False
        for v, change in self._replaced:
            assert change.value is not None
            new = made[change.value]
            v._segment, v._place, v._cell = new._segment, new._place, new._cell
            if change.anew:
                known_as = None if v._extra is None else v._extra.name
                v._extra = None
                if known_as is not None:
                    v._extra = Extra()
                    v._extra.name = known_as
            self.normal = False
        for slot in self._slots:
            slot.holder.place.put(slot.key, self._built(slot.content, made, results))

    def _built(self, tree: Tree, made: Sequence[Any], results: Sequence[Any]) -> Any:
        if tree.structure is ONE:
            kind, x = tree.leaves[0]
            return made[x] if kind == MADE else self._leaf(kind, x, results)
        return tree.structure.unflatten([made[x] if kind == MADE else self._leaf(kind, x, results) for kind, x in tree.leaves])

    def _leaf(self, kind: int, x: Any, results: Sequence[Any]) -> Any:
        if kind == ARRAY:
            return results[x]
        if kind == PLAIN:
            return x
        if kind == SAME:
            return self._sources[x]
        assert kind == GRADIENT
        return self._sources[x]._extra.grad


def taking(numbers: list[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function that takes some items of a sequence."""
    if not numbers:
        return lambda _: ()
    if len(numbers) == 1:
        return lambda results: (results[numbers[0]],)
    return itemgetter(*numbers)


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
