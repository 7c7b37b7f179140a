"""Tracing of steps: a Python function that reads and writes Variables becomes one program, and what it does around that program.

The function is traced with the Variables that it reaches as inputs.  Where it meets another one that somebody outside holds, it is traced
again with that one among them.  Gradients of what it returns are the tape's own sweep, traced together with it: hooks, custom functions,
``no_grad`` and assignments mean what they mean without compilation.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from tape import jaxapi
from tape.callables.fingerprints import fingerprint
from tape.callables.reach import Reach
from tape.errors import ConcretizationError, LeakedTracerError
from tape.graph.scope import LOCAL
from tape.graph.segment import Handle, hooks_at, is_leaf
from tape.jaxapi import ClosedJaxpr
from tape.jitting import identities
from tape.jitting.absence import without
from tape.jitting.effects import Effects
from tape.jitting.outcome import Outcome
from tape.jitting.places import KeptArray, arrays_in, names_of, read_in, shared_in, stand_in
from tape.jitting.relations import Relations
from tape.jitting.results import kept_in
from tape.ops.kernel import Kernel
from tape.ops.pullback import pullback
from tape.programs.equations import ops_of, written
from tape.programs.program import look
from tape.recording import record
from tape.sweeps.sweep import Sweep, Target, past, target_of

_ATTEMPTS = 5


class _Pull(NamedTuple):
    """The sweep of a step: it reads some inputs, outputs or constants, seeds, and which are given, and gives gradients of inputs."""

    jaxpr: ClosedJaxpr
    read: list[tuple[str, Any]]
    live: list[int]  # the results that have seeds
    reached: list[int]  # the inputs whose gradients it gives
    sources: list[list[int]]  # for each, the results that lead there: where none of them has a seed, it has no gradient
    hooked: bool  # hooks are called in it
    within: dict[int, list[int]]  # for each result that others are computed of, these


class StepKernel(Kernel):
    """The program of a step through which gradients flow; its VJP is the sweep that was traced with it.

    Its outputs are the step's results, then what else that sweep reads, which nobody sees.  It is ``transparent`` if op hooks saw what is
    in it when it was traced, and so are not to see the whole.
    """

    __slots__ = ("hooked", "sweep", "transparent", "within")

    def __init__(self, name: str, jaxpr: ClosedJaxpr, visible: int, pull: _Pull) -> None:
        super().__init__(name, jaxpr, jax.tree.structure([0] * visible), visible=visible)
        self.sweep = pull
        self.hooked = pull.hooked
        self.within = pull.within
        self.transparent = LOCAL.scope.observer is not None

    def augmented(self) -> Kernel:
        """Return the kernel itself: what its VJP reads is among its outputs."""
        return self

    def pull(self, inputs: Sequence[Any], outputs: Sequence[Any], cotangents: Sequence[Any], wanted: Sequence[bool]) -> Sequence[Any]:
        """Sweep as the step was swept; cotangents of the residuals (in second derivatives) take the general way."""
        grads: list[Any] = [None] * len(inputs)
        visible = cotangents[: self.visible]
        hidden = [*[None] * self.visible, *cotangents[self.visible :]]
        pull = self.sweep
        if any(visible[i] is not None for i in pull.live):
            places = {"input": inputs, "output": outputs}
            read = [x if kind == "constant" else places[kind][x] for kind, x in pull.read]
            seeds = [lax.full_like(outputs[i], 0) if visible[i] is None else visible[i] for i in pull.live]
            given = [visible[i] is not None for i in pull.live]
            jaxpr, gone = pull.jaxpr, [False] * len(pull.reached)
            if not all(given):
                flags = dict(enumerate(given, len(read) + len(seeds)))
                jaxpr, gone = without(jaxpr, [*[False] * len(read), *[not flag for flag in given], *[False] * len(given)], flags)
            swept = jaxapi.jaxpr_as_fun(jaxpr)(*read, *seeds, *map(np.asarray, given))
            for i, sources, grad, vanishes in zip(pull.reached, pull.sources, swept, gone, strict=True):
                if wanted[i] and not vanishes and any(visible[n] is not None for n in sources):
                    grads[i] = grad
        if any(ct is not None for ct in hidden):
            for i, grad in enumerate(pullback(self.jaxpr, inputs, hidden, wanted, outputs)):
                if grad is not None:
                    grads[i] = grad if grads[i] is None else lax.add(grads[i], grad)
        return grads


class TracedStep:
    """A traced step."""

    def __init__(self, name: str, jaxpr: ClosedJaxpr, effects: Effects, outcome: Outcome, pull: _Pull | None) -> None:
        count, arrays = len(effects.sources), len(jaxpr.jaxpr.invars) - len(effects.known)
        positions = [*range(arrays), *[arrays + i for i, read in enumerate(effects.was_read) if read]]
        self.name = name
        self.ops = ops_of(jaxpr)
        # Of the arrays among the arguments, then what it reads of the sources; its results are those of ``outcome``.
        self.jaxpr = written(jaxapi.restrict(jaxpr, positions), final=pull is None)
        self.outcome = outcome
        self.kernel: StepKernel | None = None  # the op that is recorded where gradients flow through the step
        if pull is not None:
            read = [(kind, positions.index(x) if kind == "input" else x) for kind, x in pull.read]
            reached = [positions.index(arrays + i) for i in pull.reached]
            pull = pull._replace(jaxpr=written(pull.jaxpr, final=False), read=read, reached=reached)
            self.kernel = StepKernel(name, self.jaxpr, len(outcome.values), pull)
        self.entry: Kernel | None = None  # the op that an open tape sees where none do
        # The Variables among the arguments, then those that it captured; later only those that nothing leads to.
        self.sources: list[Any] = effects.sources
        self.values = [i for i in range(count) if effects.was_read[i]]  # sources whose values are inputs
        holders = [i for i, g in enumerate(effects.grads) if g is not None]
        self.grads = [i for n, i in enumerate(holders) if effects.was_read[count + n]]  # whose gradients are, after those
        self.kept: dict[int, KeptArray] = {}  # sources that are arrays in places
        self.read: list[tuple[KeptArray, Any]] = []  # arrays in places that are a part of it
        self.stayed = False  # whether a leaf that was made in the trace outlives it
        # Places (a holder's key and theirs) whose arrays it does not read, or looks at; and those of which nobody knows, with the arrays.
        self.unread: set[tuple[Any, Any]] = set()
        self.looked_at: set[tuple[Any, Any]] = set()
        self.suspects: list[tuple[KeptArray, weakref.ref[jax.Array]]] = []
        # Sources on whose having a gradient it depends, and those that matter at all.
        self.looked = sorted({*self.grads, *[i for i, v in enumerate(self.sources) if id(v) in effects.looked_at]})
        # Those whose gradient it clears first, so that it does not matter.
        self.cleared = [i for i, v in enumerate(self.sources) if id(v) in effects.cleared]
        asked = {i: effects.asked[id(v)] for i, v in enumerate(self.sources) if id(v) in effects.asked}
        asked.update({c.source: True for c in outcome.changes if c.grad is not None and c.grad >= 0})  # it gathers there, not behind it
        self.leaves = {i: is_leaf(self.sources[i]) for i, leaf in asked.items() if leaf}  # those for which it matters whether they are
        # In several places: it may be put from one into another one, which is seen only where that holds something else.
        shared = [i for i, v in enumerate(self.sources) if effects.places[id(v)] > 1]
        self.relations = Relations.of(effects)
        related, changed = self.relations.sources(), [c.source for c in outcome.changes]
        self.relevant = sorted({*self.values, *self.looked, *asked, *outcome.referred, *shared, *related, *changed})
        self.kinds = [v._place.kind for v in self.sources]
        self.hooks = [hooks_of(v) for v in self.sources]
        self.grad_kinds = [None if g is None else g._place.kind for g in effects.grads]

    def constants(self) -> list[Any]:
        """Return the arrays that are a part of it."""
        sweep = None if self.kernel is None else self.kernel.sweep
        swept = [] if sweep is None else [x for kind, x in sweep.read if kind == "constant"]
        return [*self.jaxpr.consts, *swept]

    def told(self) -> object:
        """Return what it computes of which sources, how that is swept, and what it leaves where, to be compared with another one."""
        pull = () if self.kernel is None else tuple(self.kernel.sweep)
        sources = (self.values, self.grads, self.looked, self.cleared, self.leaves, self.relations)
        return self.outcome.told(), sources, fingerprint((self.jaxpr, pull))


def hooks_of(variable: Handle) -> tuple[Any, ...]:
    """Return the hooks that a sweep which ends at a Variable calls."""
    extra = variable._extra
    if variable._segment is not None:
        return tuple(hooks_at(variable).values())
    if extra is None:
        return ()
    return (*(() if extra.node is None else extra.node.hooks.values()), None, *extra.post_hooks.values())


def trace_step(
    name: str,
    call: Callable[[Sequence[Any]], Any],
    avals: Sequence[Any],
    given: Sequence[Handle],
    reached: Reach,
    replaced: Sequence[KeptArray] = (),
    *,
    unless_read: Collection[object] = (),
    apart: bool = True,
    anew: bool = False,
) -> TracedStep:
    """Trace a step; arrays in the places that are ``replaced`` are other ones at each call, and it must not look at their values.

    They are its inputs, but for those places (``unless_read``) of which it reads nothing.  An array that is in several places is another
    one in each (``apart``), so that it is seen when one of them is put into another.  Objects that it makes are made at every call
    (``anew``), or only those that hold what is traced.
    """
    sources = list({id(v): v for v in (*given, *[v for v, _ in reached.variables.values()])}.values())
    passed = {id(v) for v in given} - reached.variables.keys()
    met = {id(v) for v in given} - passed  # whether an argument is what a place holds is a part of the step: it may be stored there
    shared = shared_in(reached.holders, {k.place for k in replaced}) if apart and not identities.asked(reached) else []
    kept: list[KeptArray] = [*replaced, *shared]
    for attempt in range(_ATTEMPTS):
        _unshare(sources)
        effects = Effects([*sources, *map(record.constant, arrays_in(kept))], reached)
        effects.asked.update(dict.fromkeys(met, False))
        effects.anew = anew
        try:
            traced = _trace(effects, call, avals, kept, passed)
        except ConcretizationError:
            if not shared:
                raise
            return trace_step(name, call, avals, given, reached, replaced, unless_read=unless_read, apart=False, anew=anew)
        unused = _unused(traced, len(avals))
        needless = {*unless_read, *[k.place for k in shared]}
        idle = [i for i, k in enumerate(kept, len(sources)) if i in unused and k.place in needless]
        for i in idle:
            effects.was_read[i] = False
        step = TracedStep(name, *traced)
        step.kept = {i: k for i, k in enumerate(kept, len(sources)) if i not in idle}
        effects.escaped()
        step.stayed = effects.stayed()
        missed = effects.missed()
        if attempt:  # what was not met at the trace before is made anew at every trace
            missed = [v for v in missed if id(v) in effects.waiting]
        known = {k.place for k in kept}
        further = {k.place: k for s in step.outcome.slots for k in kept_in(s) if k.place not in known}
        if not missed and not further:
            step.unread = names_of([kept[i - len(sources)] for i in idle], reached)
            step.read = [(k, x) for k, x in read_in(reached.holders, step.constants()) if k.place not in known]
            return step
        kept += further.values()
        sources = [*sources, *missed]
    msg = f"jit: {name} met other Variables at each of {_ATTEMPTS} traces; make them outside of it"
    raise LeakedTracerError(msg)


def _unused(traced: tuple[ClosedJaxpr, Effects, Outcome, _Pull | None], count: int) -> set[int]:
    """Return the sources whose values are inputs of a traced step that nothing reads."""
    closed, _, _, pull = traced
    read = {*map(id, closed.jaxpr.outvars)}.union(id(x) for eqn in closed.jaxpr.eqns for x in eqn.invars)
    swept = set() if pull is None else {x for kind, x in pull.read if kind == "input"}
    inputs = closed.jaxpr.invars
    return {n - count for n in range(count, len(inputs)) if id(inputs[n]) not in read and n not in swept}


def _unshare(sources: Sequence[Handle]) -> None:
    """Give Variables that share a cell one of their own: they may hold different values at the next call."""
    met: set[int] = set()
    for v in sources:
        for held in (v, None if v._extra is None else v._extra.grad):
            if held is None:
                continue
            cell = held._cell
            if id(cell) in met and cell[0] is not None and (held._segment is None or not held._place.kind.requires_grad):
                held._cell = cell = list(cell)
            met.add(id(cell))


def _trace(
    effects: Effects, call: Callable[[Sequence[Any]], object], avals: Sequence[Any], kept: Sequence[KeptArray], passed: Collection[int]
) -> tuple[ClosedJaxpr, Effects, Outcome, _Pull | None]:
    """Trace the step, and the sweep of what it returns."""
    outcome: Any = None
    pull: _Pull | None = None

    def run(*arrays: Any) -> list[Any]:
        nonlocal outcome, pull
        with effects, effects.tracing():
            effects.begin(arrays[len(avals) :])
            stand_ins = [effects.read(source)._cell[0] for source in effects.sources[len(effects.sources) - len(kept) :]]
            effects.stood.update(stand_in(kept, stand_ins))
            outcome = Outcome(effects, call(arrays[: len(avals)]), passed)
            results = list(outcome.values)
            if outcome.live:
                pull = outcome.sweeping(lambda: _sweep(effects, outcome, arrays, results))
            outcome.drop_traced()
            return results

    try:
        jaxpr, _ = jaxapi.trace(run, *avals, *[v._place.kind.aval for v in effects.known])
    except ConcretizationError:
        raise
    except jaxapi.CONCRETE_ERRORS as e:
        msg = f"jit: the function looks at a value that only a run will know: {e}"
        raise ConcretizationError(msg) from e
    except jax.errors.UnexpectedTracerError as e:
        msg = f"jit: a value from inside of a JAX transformation in the function would be stored in a Variable or returned: {e}"
        raise LeakedTracerError(msg) from e
    return jaxpr, effects, outcome, pull


def _sweep(effects: Effects, outcome: Outcome, inputs: Sequence[Any], results: list[Any]) -> _Pull:
    """Trace the sweep of the Variables through which gradients flow; what it reads besides inputs and results joins these."""
    wanted = effects.ends()
    reached: list[int] = []
    sources: list[list[int]] = []
    hooked = False
    within: dict[int, list[int]] = {}
    live = [next(m.result for m in outcome.made if m.live == i) for i in range(len(outcome.live))]

    def pull(*arrays: Any) -> list[Any]:
        nonlocal reached, sources, hooked, within
        seeds, given = arrays[: len(outcome.live)], arrays[len(outcome.live) :]
        with effects.part(), effects.tracing(), effects.arrivals.seeding(outcome.live, given):
            sweep = Sweep(wanted, (), create_graph=False)
            sweep.run(outcome.live, [record.leaf(s) for s in seeds], leaf_hooks=False)
            gradients = {t: g for t, g in sweep.gradients.items() if t in wanted}  # others retain theirs, in the trace
            reached, hooked = [wanted[t] for t in gradients], sweep.hooked
            behind = [past([target_of(v)]) for v in outcome.live] if len(live) > 1 else []
            sources = [[n for n, passed in zip(live, behind, strict=False) if t in passed] or live for t in gradients]
            keys = [target_of(v) for v in outcome.live]
            within = {n: others for n, key in zip(live, keys, strict=True) if (others := _computed_of(key, live, keys, behind))}
            return [look(g) for g in gradients.values()]

    avals = [jaxapi.ShapedArray(v._place.kind.aval.shape, v._place.kind.aval.dtype) for v in outcome.live]
    jaxpr, _ = jaxapi.trace(pull, *avals, *[jaxapi.ShapedArray((), np.dtype(bool))] * len(avals))
    read: list[tuple[str, Any]] = []
    for x in jaxpr.consts:
        if isinstance(x, jaxapi.Tracer) and not any(x is y for y in (*inputs, *results)):
            results.append(x)
        places = (("input", inputs), ("output", results))
        read.append(next(((kind, i) for kind, listed in places for i, y in enumerate(listed) if y is x), ("constant", x)))
    return _Pull(jaxapi.hoist(jaxpr, range(len(jaxpr.jaxpr.invars))), read, live, reached, sources, hooked, within)


def _computed_of(key: Target, results: Sequence[int], keys: Sequence[Target], behind: Sequence[set[Target]]) -> list[int]:
    """Return the results that something is behind which is a result itself."""
    return [n for n, other, passed in zip(results, keys, behind, strict=False) if other != key and key in passed]
