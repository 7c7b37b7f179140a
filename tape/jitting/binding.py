"""Bindings: a traced step on the Variables that one call of it concerns, ready to run.

Checking that everything is as it was when the step was traced, handing arrays to the program, and putting its results where they belong is
all the Python that a call costs; so what can be looked up once is looked up here, once, in flat lists.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Collection, Sequence
from itertools import starmap
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from tape import layout
from tape.callables.captures import held
from tape.configuration import configuration
from tape.errors import ExecutionError
from tape.graph.kinds import Place, kind_of
from tape.graph.meters import METERS, measured
from tape.graph.scope import LOCAL, in_scope
from tape.graph.segment import Handle, extra_of, is_leaf
from tape.graph.trie import RECORD
from tape.hooking.handles import CHANGES as HOOKS
from tape.jaxapi import Tracer, in_trace
from tape.jitting.delivery import Delivery
from tape.jitting.following import Setting
from tape.jitting.noted import noted
from tape.jitting.places import arrays_in, edges_to
from tape.jitting.results import Slot
from tape.jitting.tracing import TracedStep, hooks_of
from tape.ops.running import Waiting, fails_late
from tape.programs.devices import settled, there_are_several
from tape.programs.program import look, run_pending
from tape.recording import record
from tape.recording.record import handle

STATE = threading.RLock()  # held while a step is traced, since Variables that it writes to hold traced values then


class TracedError(Exception):
    """JAX is tracing what calls the step, and has taken the call for a part of that; nothing was changed."""


class Binding(Delivery):
    """A step, bound to Variables; what the recorder in C reads of it, which runs it again where it can, stands in :mod:`tape.layout`."""

    def __init__(
        self,
        step: TracedStep,
        run: Callable[..., Sequence[Any]],
        variables: Sequence[Any],
        given: int,
        setting: Setting,
        donated: Sequence[int],
        met: Collection[int],
    ) -> None:
        self.step = step
        self.executable = run
        self._waits, self._late = there_are_several(), fails_late([step.jaxpr])
        self.unrepeatable = bool(step.jaxpr.effects) or bool(donated)
        outcome = step.outcome
        changed = {c.source for c in outcome.changes}
        self.met = {i for i in met if i < given}
        self._there: Sequence[Any] | None = None  # results that are delivered
        self.called = True  # since another one has followed
        self.forget: Callable[[], None]  # has the others let go of what this one has seen replaced
        # Arguments that are only read may be others at every call, but for those that the function may have met by itself as well.
        self._read = [i for i in step.values if i < given]
        self._swept = [i for i in self._read if any(i in swept and {*ends} != {i} for swept, ends in step.relations.aims)]
        pinned = self.met.union(i for i in step.relevant if i < given and i in {*changed, *outcome.referred, *step.looked})
        self._pinned = [(i, variables[i]) for i in sorted(pinned)]
        matter = [i for i in step.relevant if i >= given or i in pinned]
        self._matter, self._given = matter, given
        self._captured = [i for i in step.relevant if i >= given and i not in setting.kept]
        # Those among the arguments that must be leaves for the recorder in C, or the step be left to Python (-1).
        self._asked = [(i, leaf) for i, leaf in step.leaves.items() if i not in matter]
        self._leaves = [*self._swept, *[i if leaf else -1 for i, leaf in self._asked], *[-1 for _ in step.relations.one]]
        self._kinds = [step.kinds[i] for i in matter]
        self._hooks = [step.hooks[i] or (None,) for i in matter]
        first = len(step.jaxpr.jaxpr.invars) - len(step.values) - len(step.grads)
        self._donated = [i for i in donated if i >= first]  # but for arrays among the arguments
        state = [(i - first, i - first - len(step.values)) for i in self._donated]
        self._donating = [step.values[n] for n, m in state if m < 0], [step.grads[m] for _, m in state if m >= 0]
        self._plainly = step.kernel is None and not (self._waits or self._late)
        sources = [v if i >= given or i in pinned else None for i, v in enumerate(variables)]
        self._hold(sources, setting)
        self._plan_delivery(step)

    def _hold(self, sources: list[Any], setting: Setting) -> None:
        """Take these for what the step concerns from now on; whatever happens meanwhile, it does not run on some of them."""
        step, kept = self.step, setting.kept
        self._edges: list[Any] = [_NEVER]
        self.sources, self.setting = sources, setting
        self._variables = [sources[i] for i in self._matter]
        self._known = [(sources[i], step.leaves[i]) for i in self._matter if i in step.leaves]
        self._hooks_seen: int = -1
        self._places: list[Place] = []  # of those, when last seen to be of these kinds
        self._strangers = {*setting.strangers, *[id(sources[i]) for i in self._captured]} or None
        self._values = [sources[i] for i in step.values if i >= self._given]
        self._looked: list[Any] = [(v, extra_of(v), step.grad_kinds[i]) for i in step.looked for v in [sources[i]]]
        self._looked += [(v, extra_of(v), ...) for i in step.cleared for v in [sources[i]]]
        self._grads = [extra_of(sources[i]) for i in step.grads]
        values, grads = self._donating
        self._donors, self._donor_extras = [sources[i] for i in values], [extra_of(sources[i]) for i in grads]
        self._aim(step)
        held = [*edges_to(kept.values(), [sources[i]._cell[0] for i in kept])]
        self.renewable = len(held)  # so many, the first ones, see whether arrays are others
        held += [edge for edge in setting.edges if edge[0] is not None]
        held += setting.conditions
        seen = {k.place[:2] for k in kept.values()}  # whose forms are looked at
        held += [(Slot.holds, slot, None, slot.held) for slot in setting.slots if (id(slot.holder.place.at), slot.key) not in seen]
        self._edges = held

    # -- is it still so? --------------------------------------------------------------------------------------------

    def in_place(self, first: int = 0) -> bool:
        """Tell whether every Variable and array is still where it was found, by the edges from the ``first`` on."""
        try:
            for get, holder, key, content in self._edges[first:] if first else self._edges:
                if get(holder, key) is not content:
                    return False
        except (LookupError, AttributeError, ValueError):
            return False
        return True

    def suits(self, given: Sequence[Any]) -> bool:
        """Tell whether the step can run for these Variables among the arguments, all else being as it is."""
        for i, v in self._pinned:
            if given[i] is not v:
                return False
        if given and self._strangers is not None and not self._strangers.isdisjoint(map(id, given)):
            return False
        return self.in_place() and self.fits(given)

    def fits(self, given: Sequence[Any]) -> bool:
        """Tell whether every Variable is of the kind that it was, and has a gradient where it had one."""
        related = self.step.relations
        if not self._is_as_it_was():
            return False
        if self._asked and any(is_leaf(given[i]) is not leaf for i, leaf in self._asked):
            return False
        changeable = related and (related.one or not self._places or any(given[i]._segment is not None for i in self._swept))
        if changeable and not related.hold([*given, *self.sources[len(given) :]]):
            return False
        for v, extra, grad_kind in self._looked:
            grad = extra.grad
            if v._extra is not extra or (grad_kind is not ... and (None if grad is None else grad._place.kind) is not grad_kind):
                return False
        return True

    def _is_as_it_was(self) -> bool:
        """Tell whether Variables are of the kinds that they were, and have the hooks."""
        if [v._place for v in self._variables] != self._places:
            if [v._place.kind for v in self._variables] != self._kinds or any(is_leaf(v) is not leaf for v, leaf in self._known):
                return False
            self._places = [v._place for v in self._variables]
            if self.step.relations and any(v._segment is not None and v._place.kind.requires_grad for v in self._variables):
                self._places = []  # to be looked at every time
        if HOOKS.count != self._hooks_seen:
            count = HOOKS.count
            if [hooks_of(v) or (None,) for v in self._variables] != self._hooks:
                return False
            self._hooks_seen = count
        return True

    # -- what has been replaced -----------------------------------------------------------------------------------------

    def follow(self) -> bool:
        """Take what is now in the places of what has been replaced, where it is of the same form; tell whether that is so."""
        followed = self.setting.followed()
        if followed is None:
            return False
        there, setting = followed
        arrays = arrays_in(setting.kept.values())
        if (there and self.met) or any(x is None for x in arrays):
            return False
        sources = [*self.sources[: self._given], *map(there.of, self.sources[self._given :])]
        for i, x in zip(setting.kept, arrays, strict=True):
            sources[i] = record.constant(x)  # a new one: what was recorded may hold that from before
        captured = {id(sources[i]) for i in self._captured}
        if [sources[i]._place.kind for i in self._matter] != self._kinds or len(captured) < len(self._captured):
            return False
        self._hold(sources, setting)
        return self._is_as_it_was()

    def let_go(self) -> bool:
        """Hold no arrays that have been replaced, where all else is in its place, until the step follows; tell whether that is so."""
        if not self.renewable or not self.in_place(self.renewable):
            return False
        edges = self._edges
        for i in self.setting.kept:
            self.sources[i] = handle(None, Place(-1, self.step.kinds[i]), [None])
        self._hold(self.sources, self.setting)
        self._edges = [_NEVER] * self.renewable + edges[self.renewable :]
        return True

    # -- running ------------------------------------------------------------------------------------------------------

    def inputs(self, arrays: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        """Return what the program takes: ``arrays``, and the present values of Variables and gradients."""
        inputs = [*arrays, *[given[i]._cell[0] for i in self._read], *[v._cell[0] for v in self._values]]
        if self._grads:
            inputs += [e.grad._cell[0] for e in self._grads]
        return inputs

    def complete(self, inputs: list[Any], arrays: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        """Return the inputs once the pending ones have run."""
        if any(x is None for x in inputs):
            for v in (*[given[i] for i in self._read], *self._values, *[e.grad for e in self._grads]):
                look(v)
            inputs = self.inputs(arrays, given)
        return inputs

    def run(self, inputs: list[Any], arrays: Sequence[Any], given: Sequence[Handle]) -> Any:
        """Run the step on ``inputs`` (or record it, where gradients flow through it) and return its result."""
        if self.step.kernel is not None:
            return self._record(arrays, given)
        if LOCAL.scope.notes is not None and LOCAL.scope.notes.records and not in_trace():
            with STATE:
                return noted(self, arrays, given)
        if self._donated and any(self._shared(inputs)):
            inputs = self.complete(inputs, arrays, given)
            shared = self._shared(inputs)
            for i, of_buffer, of_cell in zip(self._donated, shared, shared[len(self._donated) :], strict=False):
                if of_buffer or of_cell:
                    inputs[i] = jnp.array(inputs[i])
        run = self.executable if not self._late else Waiting(self.executable)
        if METERS:
            run = functools.partial(measured, "step", self, run)
        ran: list[Any] = []  # the results, from the moment on at which donated inputs are gone: Ctrl-C would come between two lines
        try:
            try:
                try:
                    ran.extend(starmap(run, (inputs,)))
                except Exception:
                    if not any(x is None for x in inputs):  # then it was not that some were pending
                        raise
                    ran.extend(starmap(run, (self.complete(inputs, arrays, given),)))
            except jax.errors.JaxRuntimeError as e:
                self.failed(e)
            (results,) = ran
            _check_known(results)
            if self._waits:
                settled(results)
            with STATE:
                return self._deliver(results)
        except (TracedError, jax.errors.JaxRuntimeError):
            raise
        except BaseException:
            if ran and self._donated:
                with STATE:
                    self._deliver(ran[0])
            raise

    def failed(self, error: Exception) -> NoReturn:
        """Say that the program has failed, and why."""
        msg = f"jit: {self.step.name} could not be compiled or run, and nothing was assigned: {error}"
        raise ExecutionError(msg) from error

    def _shared(self, inputs: list[Any]) -> list[bool]:
        """Tell which donated buffers, and then which cells that they are in, somebody else could still reach."""
        cells = [v._cell for v in self._donors] + [e.grad._cell for e in self._donor_extras]
        return held([inputs[i] for i in self._donated], by=2) + held(cells, by=1)  # in its cell, and among the inputs

    def _deliver(self, results: Sequence[Any], recorded: Sequence[Any] | None = None) -> object:
        """Put the results where they belong, and go along with what that has replaced; ``recorded`` are the same as Variables."""
        if results is self._there:  # Ctrl-C came after that
            return None
        result = self._delivered(results, recorded)
        if self.setting.slots:
            self._there = results
            if self.follow():
                self.forget()
            self._there = None
        return result

    # -- recording ------------------------------------------------------------------------------------------------------

    def _record(self, arrays: Sequence[Any], given: Sequence[Handle]) -> object:
        """Record the step as one op, so that gradients flow through it."""
        kernel = self.step.kernel
        assert kernel is not None
        inputs = [record.operand(x) for x in arrays]
        sources = [*[given[i] for i in self._read], *self._values, *[e.grad for e in self._grads]]
        inputs += [_input(v, reached=len(inputs) + n in kernel.sweep.reached) for n, v in enumerate(sources)]
        scope = LOCAL.scope if LOCAL.scope.mode == RECORD else LOCAL.scope.but(mode=RECORD)  # enable_grad() may be in it
        recorded = in_scope(scope, record.record, kernel, inputs)
        if not self._at_once:
            return self._deliver(recorded, recorded)
        segment = LOCAL.segment()
        if segment is not None:
            run_pending(segment, "jit")
        return self._deliver([look(v) for v in recorded], recorded)


def _never(_: object, __: object) -> bool:
    return False


_NEVER = (_never, None, None, True)


def _check_known(results: Sequence[Any]) -> None:
    """Refuse results that are a part of what JAX traces."""
    if results and isinstance(results[0], Tracer):
        raise TracedError


def _input(v: Handle, *, reached: bool) -> Handle:
    """Return a Variable as an input of the op: one that requires grad where a gradient ends, a constant for a gradient."""
    kind = v._place.kind
    if (kind.requires_grad or not reached) and not kind.unrecorded:
        return v
    variable: Handle = handle(None, Place(-1, kind_of(kind.aval, requires_grad=reached)), [look(v)])
    if reached:  # the step itself sets the flag
        extra_of(variable).node = record.node_of(v)
    return variable


if layout.NATIVE is not None:
    layout.NATIVE.stepping(
        STATE, HOOKS, configuration, jax.errors.JaxRuntimeError, operator.getitem, operator.length_hint, dict.get, getattr
    )
