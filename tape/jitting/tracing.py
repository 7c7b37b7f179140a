"""Tracing of steps: a Python function that reads and writes Variables becomes one program, and what it does around that program.

The function is traced with the Variables that it reaches as inputs.  Where it meets another one that somebody outside holds, it is traced
again with that one among them.  Gradients of what it returns are the tape's own sweep, traced together with it: hooks, custom functions,
``no_grad`` and assignments mean what they mean without compilation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
from jax import lax

from tape import jaxapi
from tape.errors import ConcretizationError, LeakedTracerError
from tape.graph.scope import LOCAL
from tape.jitting.effects import Effects
from tape.jitting.outcome import GRADIENT, SAME, Outcome
from tape.ops.kernel import Kernel
from tape.ops.pullback import pullback
from tape.programs.program import look
from tape.recording import record
from tape.sweeps.sweep import Sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tape.callables.reach import Reach
    from tape.jaxapi import ClosedJaxpr

__all__ = ["Step", "StepKernel", "hooks_of", "trace_step"]

_ATTEMPTS = 5


class _Pull(NamedTuple):
    """The sweep of a step: what it reads (of the inputs, the outputs, or constants), then seeds; it gives gradients of inputs."""

    jaxpr: ClosedJaxpr
    read: list[tuple[str, Any]]
    live: list[int]  # the results that have seeds
    reached: list[int]  # the inputs whose gradients it gives
    hooked: bool  # hooks are called in it


class StepKernel(Kernel):
    """The program of a step through which gradients flow; its VJP is the sweep that was traced with it.

    Its outputs are the step's results, then what else that sweep reads, which nobody sees.  It is ``transparent`` if op hooks saw what is in it
    when it was traced, and so are not to see the whole.
    """

    __slots__ = ("_pull", "transparent")

    def __init__(self, name: str, jaxpr: ClosedJaxpr, visible: int, pull: _Pull) -> None:
        super().__init__(name, jaxpr, jax.tree.structure([0] * visible), visible=visible)
        self._pull = pull
        self.transparent = LOCAL.scope.observer is not None

    @property
    def reached(self) -> list[int]:
        """The inputs to which gradients flow."""
        return self._pull.reached

    @property
    def hooked(self) -> bool:
        """Whether its sweep calls hooks, of which its program says nothing."""
        return self._pull.hooked

    def augmented(self) -> Kernel:
        """Return the kernel itself: what its VJP reads is among its outputs."""
        return self

    def pull(self, inputs: Sequence[Any], outputs: Sequence[Any], cotangents: Sequence[Any], wanted: Sequence[bool]) -> Sequence[Any]:
        """Sweep as the step was swept; cotangents of the residuals (in second derivatives) take the general way."""
        grads: list[Any] = [None] * len(inputs)
        hidden = list(cotangents)
        visible = cotangents[: self.visible]
        hidden[: self.visible] = [None] * self.visible
        pull = self._pull
        if any(visible[i] is not None for i in pull.live):
            places = {"input": inputs, "output": outputs}
            read = [x if kind == "constant" else places[kind][x] for kind, x in pull.read]
            seeds = [lax.full_like(outputs[i], 0) if visible[i] is None else visible[i] for i in pull.live]
            found = jaxapi.jaxpr_as_fun(pull.jaxpr)(*read, *seeds)
            for i, grad in zip(pull.reached, found, strict=True):
                if wanted[i]:
                    grads[i] = grad
        if any(ct is not None for ct in hidden):
            for i, grad in enumerate(pullback(self.jaxpr, inputs, hidden, wanted, outputs)):
                if grad is not None:
                    grads[i] = grad if grads[i] is None else lax.add(grads[i], grad)
        return grads


class Step:
    """A traced step.

    Attributes:
        name: what it is called.
        jaxpr: its program: inputs are the arrays among the arguments, then what it reads of the sources; results are those of ``outcome``.
        outcome: what it leaves behind.
        kernel: the op that is recorded where gradients flow through the step, else None.
        sources: the Variables it was traced with: those among the arguments, then those that it captured; later only those that nothing leads to.
        values: which sources' values are inputs, in order.
        grads: which sources' gradients are inputs, after those.
        looked: which sources it depends on for whether they have a gradient.
        relevant: which sources matter at all.

    """

    def __init__(self, name: str, jaxpr: ClosedJaxpr, effects: Effects, outcome: Outcome) -> None:
        self.name = name
        self.jaxpr = jaxpr
        self.outcome = outcome
        self.kernel: StepKernel | None = None
        self.sources = effects.sources
        count = len(self.sources)
        self.values = [i for i in range(count) if effects.was_read[i]]
        holders = [i for i, g in enumerate(effects.grads) if g is not None]
        self.grads = [i for n, i in enumerate(holders) if effects.was_read[count + n]]
        self.looked = sorted({*self.grads, *[i for i, v in enumerate(self.sources) if id(v) in effects.looked_at]})
        referred = {n for kind, n in _leaves(outcome) if kind in (SAME, GRADIENT)}
        self.relevant = sorted({*self.values, *self.looked, *referred, *[c.source for c in outcome.changes]})
        self.kinds = [v._place.kind for v in self.sources]
        self.hooks = [hooks_of(v) for v in self.sources]
        self.grad_kinds = [None if g is None else g._place.kind for g in effects.grads]


def hooks_of(variable: Any) -> tuple[Any, ...]:
    """Return the hooks that a sweep to a leaf calls."""
    extra = variable._extra
    if extra is None:
        return ()
    return (*(() if extra.node is None else extra.node.hooks.values()), None, *extra.post_hooks.values())


def _leaves(outcome: Outcome) -> list[tuple[int, Any]]:
    return [leaf for tree in (outcome.returned, *[s.content for s in outcome.slots]) for leaf in tree.leaves]


def trace_step(name: str, call: Callable[[Sequence[Any]], Any], avals: Sequence[Any], given: Sequence[Any], reached: Reach) -> Step:
    """Trace a step.

    Args:
        name: what it is called.
        call: the function of the traced arrays among its arguments.
        avals: shapes and dtypes of those.
        given: the Variables among its arguments.
        reached: what the function reaches.

    Raises:
        ConcretizationError: the function looks at a value that only a run will know.
        LeakedTracerError: a traced value would outlive the trace where no call could put it.

    """
    sources = list({id(v): v for v in (*given, *[v for v, _ in reached.variables.values()])}.values())
    for attempt in range(_ATTEMPTS):
        _unshare(sources)
        effects = Effects(sources, reached.holders)
        known: list[Any] = []
        jaxpr = _trace(effects, call, avals, known)
        step = _finished(name, jaxpr, effects, known, len(avals))
        effects.escaped()
        missed = effects.missed()
        if attempt:  # what was not met at the trace before is made anew at every trace
            missed = [v for v in missed if id(v) in effects.waiting]
        if not missed:
            return step
        mine = {id(g) for g in effects.grads}
        sources = [*sources, *[v for v in missed if id(v) not in mine]]
    msg = f"jit: {name} met other Variables at each of {_ATTEMPTS} traces; make them outside of it"
    raise LeakedTracerError(msg)


def _unshare(sources: Sequence[Any]) -> None:
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


def _trace(effects: Effects, call: Callable[[Sequence[Any]], Any], avals: Sequence[Any], known: list[Any]) -> ClosedJaxpr:
    """Trace the step, and the sweep of what it returns; ``known`` becomes the outcome, the sweep, and which inputs it reaches."""

    def run(*arrays: Any) -> list[Any]:
        with effects:
            effects.begin(arrays[len(avals) :])
            outcome = Outcome(effects, call(arrays[: len(avals)]))
            pull = None
            targets: list[int] = []
            hooked = False
            sources: list[tuple[str, Any]] = []
            hidden: list[Any] = []
            if outcome.live:
                pull, targets, hooked = _sweep(effects, outcome)
                sources = [_source(x, arrays, outcome.values, hidden) for x in pull.consts]
            known[:] = [outcome, pull and jaxapi.hoist(pull, range(len(pull.jaxpr.invars))), targets, sources, hooked]
            results = [*outcome.values, *hidden]
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
    return jaxpr


def _source(x: Any, inputs: Sequence[Any], results: Sequence[Any], hidden: list[Any]) -> tuple[str, Any]:
    """Say where the sweep will find a value that it reads: among the inputs or outputs, or in the program itself."""
    if not isinstance(x, jaxapi.Tracer):
        return ("constant", x)
    for name, listed in (("input", inputs), ("output", [*results, *hidden])):
        for i, y in enumerate(listed):
            if y is x:
                return (name, i)
    hidden.append(x)
    return ("output", len(results) + len(hidden) - 1)


def _sweep(effects: Effects, outcome: Outcome) -> tuple[ClosedJaxpr, list[int], bool]:
    """Trace the sweep of the Variables through which gradients flow.

    Returns it, the known Variables whose gradients it gives, and whether it calls hooks.
    """
    wanted = effects.ends()
    reached: list[int] = []
    hooked: list[bool] = []

    def pull(*seeds: Any) -> list[Any]:
        with effects.part():
            sweep = Sweep(wanted, (), create_graph=False)
            sweep.run(outcome.live, [record.leaf(s) for s in seeds], leaf_hooks=False)
            reached[:] = [wanted[t] for t in sweep.gradients]
            hooked[:] = [sweep.hooked]
            return [look(g) for g in sweep.gradients.values()]

    jaxpr, _ = jaxapi.trace(pull, *[jaxapi.ShapedArray(v._place.kind.aval.shape, v._place.kind.aval.dtype) for v in outcome.live])
    return jaxpr, list(reached), hooked[0]


def _finished(name: str, jaxpr: ClosedJaxpr, effects: Effects, known: list[Any], n_arrays: int) -> Step:
    """Keep the inputs that are read, and make the op where gradients flow."""
    outcome, pull, targets, sources, hooked = known
    positions = [i for i, read in enumerate(effects.was_read) if read]
    inputs = [*range(n_arrays), *[n_arrays + i for i in positions]]
    step = Step(name, jaxapi.restrict(jaxpr, inputs), effects, outcome)
    if pull is not None:
        live = [next(m.result for m in outcome.made if m.live == i) for i in range(len(outcome.live))]
        reached = [n_arrays + positions.index(i) for i in targets]
        read = [(kind, inputs.index(x) if kind == "input" else x) for kind, x in sources]
        step.kernel = StepKernel(name, step.jaxpr, len(outcome.values), _Pull(pull, read, live, reached, hooked))
    return step
