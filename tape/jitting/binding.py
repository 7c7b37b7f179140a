"""Bindings: a traced step on the Variables that one call of it concerns, ready to run.

Checking that everything is as it was when the step was traced, handing arrays to the program, and putting its results where they belong is
all the Python that a call costs; so what can be looked up once is looked up here, once, in flat lists.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from tape.errors import ExecutionError
from tape.graph.kinds import Place, kind_of
from tape.graph.segment import Handle, extra_of
from tape.hooking.handles import CHANGES as HOOKS
from tape.jaxapi import Tracer
from tape.jitting.delivery import ONCE, Delivery, counts_below, taking
from tape.jitting.outcome import GRADIENT, SAME
from tape.jitting.tracing import Step, hooks_of
from tape.programs.program import look
from tape.recording import record
from tape.recording.record import handle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tape.callables.reach import Edge
    from tape.jitting.outcome import Slot

__all__ = ["STATE", "Binding", "TracedError"]

STATE = threading.RLock()  # held while a step is traced, since Variables that it writes to hold traced values then


class TracedError(Exception):
    """JAX is tracing what calls the step, and has taken the call for a part of that; nothing was changed."""


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
        self.unrepeatable = bool(step.jaxpr.effects) or bool(donated)
        self._edges = [(e.get, e.holder, e.key, e.content) for e in edges if e.get is not None]
        outcome = step.outcome
        changed = {c.source for c in outcome.changes}
        same = {n for tree in (outcome.returned, *[s.content for s in slots]) for kind, n in tree.leaves if kind in (SAME, GRADIENT)}
        # Arguments that are only read may be others at every call.
        self._read = [i for i in step.values if i < given]
        self._fixed = [(i, variables[i]) for i in step.relevant if i < given and (i in changed or i in same or i in step.looked)]
        fixed = {i for i, _ in self._fixed}
        self.sources: list[Any] = [v if i >= given or i in fixed else None for i, v in enumerate(variables)]
        matter = [i for i in step.relevant if i >= given or i in fixed]
        self._variables = [variables[i] for i in matter]
        self._kinds = [step.kinds[i] for i in matter]
        self._hooks = [step.hooks[i] or (None,) for i in matter]
        self._hooks_seen = -1
        self._places: list[Place] = []  # of those, when last seen to be of these kinds
        self._strangers = {id(variables[i]) for i in step.relevant if i >= given} if outcome.changes else None
        self._values = [variables[i] for i in step.values if i >= given]
        self._looked = [(v, extra_of(v), step.grad_kinds[i]) for i in step.looked for v in [variables[i]]]
        self._grads = [extra_of(variables[i]) for i in step.grads]
        self._plan_donation(donated)
        self._delivery = Delivery(step, self.sources, slots)

    def _plan_donation(self, donated: Sequence[int]) -> None:
        """Find who holds the buffers that are donated, but for arrays among the arguments."""
        step = self.step
        first = len(step.jaxpr.jaxpr.invars) - len(step.values) - len(step.grads)
        last = first + len(step.values)
        self._donated_numbers = [i for i in donated if i >= first]
        self._donated_values = taking(self._donated_numbers)
        self._donated_variables = [self.sources[step.values[i - first]] for i in donated if first <= i < last]
        self._donated_extras = [extra_of(self.sources[step.grads[i - last]]) for i in donated if i >= last]

    # -- is it still so? --------------------------------------------------------------------------------------------

    def found(self) -> bool:
        """Tell whether every Variable is still where it was found."""
        try:
            for get, holder, key, content in self._edges:
                if get(holder, key) is not content:
                    return False
        except (LookupError, AttributeError, ValueError):
            return False
        return True

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
            self._delivery.normal = False
        if HOOKS.count != self._hooks_seen:
            count = HOOKS.count
            if [hooks_of(v) or (None,) for v in self._variables] != self._hooks:
                return False
            self._hooks_seen = count
        for v, extra, grad_kind in self._looked:
            grad = extra.grad
            if v._extra is not extra or (None if grad is None else grad._place.kind) is not grad_kind:
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
        if self._donated_numbers and not self._alone(inputs):
            inputs = self.complete(inputs, arrays, given)
            self._protect(inputs)
        try:
            try:
                results = self.executable(*inputs)
            except Exception:
                if not any(x is None for x in inputs):  # then it was not that some were pending
                    raise
                results = self.executable(*self.complete(inputs, arrays, given))
        except jax.errors.JaxRuntimeError as e:
            msg = f"jit: {self.step.name} could not be compiled or run, and nothing was assigned: {e}"
            raise ExecutionError(msg) from e
        if results and isinstance(results[0], Tracer):
            raise TracedError
        with STATE:
            delivery = self._delivery
            if not delivery.normal:
                delivery.normalize()
                self._places = [v._place for v in self._variables]
            return delivery.deliver(results)

    def _alone(self, inputs: list[Any]) -> bool:
        """Tell whether nobody else can reach the buffers of Variables that are donated."""
        if not counts_below(self._donated_values(inputs), ONCE + 2):  # in its cell, and among the inputs
            return False
        cells = [v._cell for v in self._donated_variables]
        cells += [e.grad._cell for e in self._donated_extras]
        return counts_below(cells, ONCE + 1)

    def _protect(self, inputs: list[Any]) -> None:
        """Put copies in the place of donated buffers that somebody else could still reach."""
        holders = [*self._donated_variables, *[e.grad for e in self._donated_extras]]
        for n, (i, v) in enumerate(zip(self._donated_numbers, holders, strict=True)):
            if not (counts_below(self._donated_values(inputs)[n : n + 1], ONCE + 2) and counts_below([v._cell], ONCE + 1)):
                inputs[i] = jnp.array(inputs[i])

    # -- recording ------------------------------------------------------------------------------------------------------

    def _record(self, arrays: Sequence[Any], given: Sequence[Any]) -> Any:
        """Record the step as one op, so that gradients flow through it."""
        kernel = self.step.kernel
        assert kernel is not None
        inputs = [record.constant(x) for x in arrays]
        sources = [*[given[i] for i in self._read], *self._values, *[e.grad for e in self._grads]]
        inputs += [_input(v, reached=len(inputs) + n in kernel.reached) for n, v in enumerate(sources)]
        return self._delivery.deliver_recorded(record.record(kernel, inputs))


def _input(v: Handle, *, reached: bool) -> Any:
    """Return a Variable as an input of the op: one that requires grad where a gradient ends, a constant for a gradient."""
    kind = v._place.kind
    if (kind.requires_grad or not reached) and not kind.unrecorded:
        return v
    made = handle(None, Place(-1, kind_of(kind.aval, requires_grad=reached)), [look(v)])
    if reached:  # the step itself sets the flag
        extra_of(made).node = record.node_of(v)
    return made
