"""Bindings: a traced step on the Variables that one call of it concerns, ready to run.

Checking that everything is as it was when the step was traced, handing arrays to the program, and putting its results where they belong is
all the Python that a call costs; so what can be looked up once is looked up here, once, in flat lists.
"""

from __future__ import annotations

import sys
import threading
from operator import getitem, is_, itemgetter
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from tape import record
from tape.kinds import Place, kind_of
from tape.methods import detach
from tape.outcome import ARRAY, GRADIENT, MADE, PLAIN, SAME, Tree
from tape.program import look, run_pending
from tape.record import handle
from tape.segment import LOCAL, Extra, Handle, extra_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tape.outcome import Change, Made, Slot
    from tape.reach import Edge
    from tape.tracing import Step

__all__ = ["STATE", "Binding"]

STATE = threading.RLock()  # held while a step is traced, since Variables that it writes to hold traced values then


class Binding:
    """A step, bound to Variables.

    Args:
        step: the traced step.
        run: its compiled program.
        variables: one for each source of the step; None where it does not matter.
        given: how many of them are arguments.
        edges: the places in which the other ones were found.
        slots: places to be filled.
        donated: inputs of the program whose buffers its results may take.

    """

    def __init__(
        self,
        step: Step,
        run: Callable[..., Sequence[Any]],
        variables: Sequence[Any],
        given: int,
        edges: Sequence[Edge],
        slots: Sequence[Slot],
        donated: Sequence[int],
    ) -> None:
        self.step = step
        self.executable = run
        self.sources = list(variables)
        self._rebindable(edges)
        self._slots = slots
        outcome = step.outcome
        changed = {c.source for c in outcome.changes}
        same = {n for tree in (outcome.returned, *[s.content for s in slots]) for kind, n in tree.leaves if kind in (SAME, GRADIENT)}
        # Arguments that are only read may be others at every call.
        self._read = [i for i in step.values if i < given]
        self._fixed = [(i, variables[i]) for i in step.relevant if i < given and (i in changed or i in same or i in step.looked)]
        fixed = {i for i, _ in self._fixed}
        matter = [i for i in step.relevant if i >= given or i in fixed]
        self._variables = [variables[i] for i in matter]
        self._kinds = [step.kinds[i] for i in matter]
        self._places: list[Place] = []  # of those, when last seen to be of these kinds
        self._strangers = {id(variables[i]) for i in step.relevant if i >= given} if outcome.changes else None
        self._values = [variables[i] for i in step.values if i >= given]
        self._looked = [variables[i] for i in step.looked]
        self._extras = [extra_of(v) for v in self._looked]
        pairs = list(zip(step.looked, self._extras, strict=True))
        self._empty = [e for i, e in pairs if step.grad_kinds[i] is None]
        self._nothing = [None] * len(self._empty)
        self._full = [e for i, e in pairs if step.grad_kinds[i] is not None]
        self._full_kinds = [step.grad_kinds[i] for i, _ in pairs if step.grad_kinds[i] is not None]
        self._grads = [extra_of(variables[i]) for i in step.grads]
        self._donated = donated
        self._plan_changes(variables)

    def _plan_changes(self, variables: Sequence[Any]) -> None:
        """Sort what happens to Variables: usually a leaf gets a new value, and stays what it is."""
        step = self.step
        made = step.outcome.made
        simple: list[tuple[Any, int]] = []
        self._others: list[tuple[Any, Change]] = []
        self._cleared: list[Extra] = []
        self._accumulated: list[tuple[Extra, int]] = []
        for change in step.outcome.changes:
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
        self._new_values = _taking([n for _, n in simple])
        self._plan_results()
        self._normal = False  # whether every Variable to be written is outside any segment, so that only its cell changes

    def _plan_results(self) -> None:
        """Set apart the gradients that nothing else refers to, and a result that is one plain Variable: both can be made at once."""
        outcome = self.step.outcome
        returned = outcome.returned
        trees = [returned, *[s.content for s in self._slots]]
        shared = {n for tree in trees for kind, n in tree.leaves if kind == MADE}
        shared |= {m.grad for m in outcome.made} | {c.value for _, c in self._others}
        own = [(e, outcome.made[n]) for e, n in self._accumulated if n not in shared and _is_plain(outcome.made[n])]
        self._gathering = [e for e, _ in own]
        self._grad_places = [m.place for _, m in own]
        self._gathered: list[Any] = []  # those of the last run
        self._nothing_more = [None] * len(own)
        self._new_grads = _taking([m.result for _, m in own])
        self._accumulated = [(e, n) for e, n in self._accumulated if e not in self._gathering]
        one = len(returned.leaves) == 1 and returned.structure == _ONE and returned.leaves[0][0] == MADE
        made = outcome.made[returned.leaves[0][1]] if one else None
        rest = self._accumulated or self._others or self._slots
        self._single = made if made is not None and not rest and made.grad < 0 and made.name is None and made.live < 0 else None

    def _rebindable(self, edges: Sequence[Edge]) -> None:
        items = [e for e in edges if e.get is getitem]
        attributes = [e for e in edges if e.get is getattr]
        by_holder: dict[int, list[Edge]] = {}
        for e in items:
            by_holder.setdefault(id(e.holder), []).append(e)
        single = [g[0] for g in by_holder.values() if len(g) == 1]
        self._item_holders = [e.holder for e in single]
        self._item_keys = [e.key for e in single]
        self._item_contents = [e.content for e in single]
        several = [g for g in by_holder.values() if len(g) > 1]
        self._groups = [(itemgetter(*[e.key for e in g]), g[0].holder, [e.content for e in g]) for g in several]
        self._holders = [e.holder for e in attributes]
        self._names = [e.key for e in attributes]
        self._contents = [e.content for e in attributes]

    # -- is it still so? --------------------------------------------------------------------------------------------

    def found(self) -> bool:
        """Tell whether every Variable is still where it was found."""
        try:
            for take, holder, contents in self._groups:
                if not all(map(is_, take(holder), contents)):
                    return False
            if self._item_holders and not all(map(is_, map(getitem, self._item_holders, self._item_keys), self._item_contents)):
                return False
            return not self._holders or all(map(is_, map(getattr, self._holders, self._names), self._contents))
        except (LookupError, AttributeError, ValueError):
            return False

    def suits(self, given: Sequence[Any]) -> bool:
        """Tell whether the step can run for these Variables among the arguments, with everything else as it is."""
        for i, v in self._fixed:
            if given[i] is not v:
                return False
        if given and self._strangers is not None and not self._strangers.isdisjoint(map(id, given)):
            return False
        return self.found() and self.fits()

    def fits(self) -> bool:
        """Tell whether every Variable is of the kind that it was, and has a gradient where it had one."""
        if [v._place for v in self._variables] != self._places:
            if [v._place.kind for v in self._variables] != self._kinds:
                return False
            self._places = [v._place for v in self._variables]
            self._normal = False
        if self._looked:
            if [v._extra for v in self._looked] != self._extras:
                return False
            if self._empty and not all(map(is_, [e.grad for e in self._empty], self._nothing)):
                return False
            if self._full:
                try:
                    return [e.grad._place.kind for e in self._full] == self._full_kinds
                except AttributeError:
                    return False
        return True

    # -- running ------------------------------------------------------------------------------------------------------

    def inputs(self, arrays: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        """Return what the program takes: ``arrays``, and the present values of Variables and gradients."""
        found = [*arrays, *[given[i]._cell[0] for i in self._read], *[v._cell[0] for v in self._values]]
        if self._grads:
            found += [e.grad._cell[0] for e in self._grads]
        return found

    def complete(self, inputs: list[Any], arrays: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        """Return the inputs once the pending ones have run."""
        if any(x is None for x in inputs):
            for v in (*[given[i] for i in self._read], *self._values, *[e.grad for e in self._grads]):
                look(v)
            inputs = self.inputs(arrays, given)
        return inputs

    def run(self, inputs: list[Any], arrays: Sequence[Any], given: Sequence[Any]) -> Any:
        """Run the step on ``inputs`` (or record it, where gradients flow through it) and return its result."""
        if self.step.kernel is not None:
            return self._record(arrays, given)
        if self._donated:
            inputs = self.complete(inputs, arrays, given)
            self._protect(inputs)
        try:
            results = self.executable(*inputs)
        except Exception:
            if not any(x is None for x in inputs):  # then it was not that some were pending
                raise
            results = self.executable(*self.complete(inputs, arrays, given))
        with STATE:
            return self._deliver(results)

    def _protect(self, inputs: list[Any]) -> None:
        """Put copies in the place of donated buffers that somebody else could still reach."""
        first = len(inputs) - len(self._values) - len(self._grads)
        holders = [*self._values, *[e.grad for e in self._grads]]
        for i in self._donated:
            if i >= first and (sys.getrefcount(inputs[i]) > _ONLY_HERE or sys.getrefcount(holders[i - first]._cell) > _ONLY_HERE):
                inputs[i] = jnp.array(inputs[i])

    def _deliver(self, results: Sequence[Any]) -> Any:
        """Put the results of a run where they belong, and return what the step returns."""
        if not self._normal:
            for v in self._written:
                if v._segment is not None or v._place.slot != -1:
                    v._segment, v._place = None, Place(-1, v._place.kind)
            self._places = [v._place for v in self._variables]
            self._normal = True
        for v, x in zip(self._written, self._new_values(results), strict=True):
            v._cell = [x]
        if self._gathering:
            self._gather(results)
        single = self._single
        if single is None:
            return self._settle([self._make(m, results) for m in self.step.outcome.made], results)
        for extra in self._cleared:
            extra.grad = None
            extra.assigned = False
        return handle(single.segment, single.place, [results[single.result]])

    def _gather(self, results: Sequence[Any]) -> None:
        """Set the gradients that nothing else refers to."""
        arrays = self._new_grads(results)
        gradients = self._gathered
        if (
            gradients
            and all(map(is_, [e.grad for e in self._gathering], gradients))
            and max(map(sys.getrefcount, gradients)) <= _ONLY_HERE
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

    def _make(self, spec: Made, results: Sequence[Any]) -> Any:
        made = handle(spec.segment, spec.place, [results[spec.result]])
        if spec.name is not None:
            made.name = spec.name
        return made

    def _settle(self, made: Sequence[Any], results: Sequence[Any]) -> Any:
        """Make the changes that are not mere values, fill places, and build what the step returns."""
        outcome = self.step.outcome
        for spec, v in zip(outcome.made, made, strict=True):
            if spec.grad >= 0:
                extra_of(v).grad = made[spec.grad]
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
            self._normal = False
        for slot in self._slots:
            slot.holder.put(slot.key, self._built(slot.content, made, results))
        return self._built(self.step.outcome.returned, made, results)

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
                leaves.append(self.sources[x])
            else:
                assert kind == GRADIENT
                leaves.append(self.sources[x]._extra.grad)
        return jax.tree.unflatten(tree.structure, leaves)

    # -- recording ------------------------------------------------------------------------------------------------------

    def _record(self, arrays: Sequence[Any], given: Sequence[Any]) -> Any:
        """Record the step as one op, so that gradients flow through it."""
        outcome = self.step.outcome
        inputs = [record.constant(x) for x in arrays]
        inputs += [_input(v) for v in (*[given[i] for i in self._read], *self._values, *[e.grad for e in self._grads])]
        recorded = record.record(self.step.kernel, inputs)
        if self._needs_values():
            segment = LOCAL.segment()
            if segment is not None:
                run_pending(segment, "jit")
            results = [look(v) for v in recorded]
            made = [recorded[m.result] if m.live >= 0 else self._make(m, results) for m in outcome.made]
            for v, x in zip(self._written, self._new_values(results), strict=True):
                v._segment, v._place, v._cell = None, Place(-1, v._place.kind), [x]
            self._gather(results)
        else:
            results = recorded
            made = [recorded[m.result] if m.live >= 0 else _constant(recorded[m.result], m) for m in outcome.made]
        for spec, v in zip(outcome.made, made, strict=True):
            if spec.name is not None:
                v.name = spec.name
        return self._settle(made, results)

    def _needs_values(self) -> bool:
        """Tell whether the recorded step must run at once: something that it leaves behind cannot be pending."""
        outcome = self.step.outcome
        if outcome.changes or self._slots or any(m.segment is not None or m.place.kind.unrecorded for m in outcome.made):
            return True
        return any(kind == ARRAY for kind, _ in outcome.returned.leaves)


_ONLY_HERE = 3  # references to what is only in the list of inputs, in its cell, and in the call that counts them


_ONE = jax.tree.structure(0)


def _taking(numbers: list[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function that takes some items of a sequence."""
    if not numbers:
        return lambda _: ()
    if len(numbers) == 1:
        return lambda results: (results[numbers[0]],)
    return itemgetter(*numbers)


def _is_plain(made: Made) -> bool:
    return made.segment is None and made.live < 0 and made.grad < 0 and made.name is None


def _input(v: Handle) -> Any:
    """Return a Variable as an input of the op: a gradient taken without recording is a constant of it."""
    kind = v._place.kind
    return handle(None, Place(-1, kind_of(kind.aval)), [look(v)]) if kind.unrecorded else v


def _constant(result: Any, spec: Any) -> Any:
    """Return a result through which no gradient flows, still pending."""
    made = detach(result)
    if spec.place.kind.requires_grad:  # a leaf that the step made
        return handle(None, spec.place, [look(made)])
    return made
