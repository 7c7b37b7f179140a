"""Backwards: the entry of a ``tape.Function``, an identity on what Python computed, and how sweeps call the Python that is its VJP.

In the batched sweep of a Jacobian that Python is traced for one row, as callables of control flow are, under ``jax.vmap``, with what the
context holds among the inputs; the traced program is recorded as one entry.  A backward that looks at values cannot be traced, and is
called for each row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from tape import jaxapi
from tape.callables.captures import trace_capturing
from tape.callables.fingerprints import intern
from tape.functions.arguments import ARRAYS, Definition
from tape.functions.checks import checked_gradients, checked_tangents
from tape.functions.context import Context, SavedTree, SweepCall, unrecorded
from tape.graph import boundary
from tape.graph.kinds import differentiable
from tape.graph.scope import LOCAL, in_scope, within
from tape.graph.segment import Handle, Segment
from tape.graph.trees import mapped
from tape.graph.trie import RECORD, SWEEP
from tape.hooking.packing import Packing
from tape.mirrored.detachment import detach
from tape.ops.kernel import Op
from tape.programs.program import look
from tape.recording import record
from tape.sweeps import emission
from tape.sweeps.plan import FunctionOp

if TYPE_CHECKING:
    Values = Sequence[Handle | None]
    Sweep = Callable[[Values], Values]


def record_entry(function: Definition, name: str, inputs: Sequence[Handle], results: Sequence[Handle]) -> Sequence[Handle]:
    """Record an entry of ``results`` that Python computed of ``inputs``; return its own."""
    given, count = len(inputs), len(results)
    key = (name, given, count)
    op = function._entry_ops.get(key)
    if op is None:
        identity = Op(name, (lambda *arrays: arrays[given]) if count == 1 else (lambda *arrays: arrays[given:]))
        op = function._entry_ops[key] = FunctionOp(name, identity, given)
    entry = record.record(op, [*inputs, *results])
    return (entry,) if isinstance(entry, Handle) else entry


class Backward:
    """What a segment keeps for the entry of a ``tape.Function``, or for that of a sweep of one: there ``push`` is the user's jvp."""

    __slots__ = ("_context", "_push", "_segment")

    def __init__(self, context: Context, push: Sweep | None = None, segment: Segment | None = None) -> None:
        self._context = context
        self._push = push
        self._segment = segment  # that of the Function's own entry; None for the one that keeps this

    def _packed(self, packing: Packing) -> Sequence[tuple[SavedTree, list[object]]]:
        """Return what is saved, and what hooks for saved values make of it."""
        trees = self._context._kept.values() if self._push is None else ()  # what is saved is the other entry's
        return [(tree, tree.packed(packing)) for tree in trees]

    def _sweep(self, segment: Segment, cotangents: Values, batch: int | None = None) -> Values:
        """Call the user's backward; return one gradient (or None) per array argument, or what the user's jvp gives."""
        sweep = self._push or functools.partial(_pulled, self._context)
        return _swept(self._context, self._segment or segment, sweep, cotangents, batch)


def _pulled(context: Context, cotangents: Values) -> Values:
    """Call the user's backward; where a sweep is differentiated by its seeds only, it depends on them by the user's jvp, transposed."""
    function = context._function
    assert context._call is not None, "a sweep calls"
    if not (
        context._call.linear and function.jvp is not None and any(ct is not None and ct._place.kind.requires_grad for ct in cotangents)
    ):
        return pull(context, cotangents)
    gradients = pull(context, [None if ct is None else _constant(ct) for ct in cotangents])
    present = [i for i, ct in enumerate(cotangents) if ct is not None]
    returned = [i for i, g in enumerate(gradients) if g is not None]

    def pushed(cotangents: Values) -> Values:
        """Return a tangent (or None) for each cotangent that there was, and hand on the tangents given."""
        tangents: list[Handle | None] = [None] * len(context._avals)
        for i, t in zip(returned, cotangents, strict=True):
            tangents[i] = t
        given = push(context, tangents)
        return [*[given[i] for i in present], *cotangents]

    if returned:
        seeds, values = [ct for ct in cotangents if ct is not None], [g for g in gradients if g is not None]
        results = record_entry(function, f"{function.__name__}.backward", seeds, values)
        target = results[0]._segment
        assert target is not None
        own = context._call.segment
        target.functions[results[0]._place.slot] = Backward(context, pushed, None if target is own else own)
        for i, g in zip(returned, results, strict=True):
            gradients[i] = g
    return gradients


def pull(context: Context, cotangents: Values) -> list[Handle | None]:
    """Call the user's backward with what it asked for."""
    cts = list(cotangents)
    if len(cts) < len(context._outputs):
        cts = [None] * len(context._outputs)
        for i, ct in zip(context._places, cotangents, strict=True):
            cts[i] = ct
    if context._materialize:
        cts = [emission.zeros_like(aval) if ct is None else ct for ct, aval in zip(cts, context._outputs, strict=True)]
    return checked_gradients(context._function, context._function.backward(context, *cts), context._avals, context._layout)


def push(context: Context, tangents: Values) -> list[Handle | None]:
    """Call the user's jvp; return one tangent (or None) per result of the entry."""
    if context._materialize:
        tangents = [emission.zeros_like(aval) if t is None else t for t, aval in zip(tangents, context._avals, strict=True)]
    assert context._function.jvp is not None
    pushed = checked_tangents(context._function, context._function.jvp(context, *tangents), context._outputs)
    return [pushed[i] for i in context._places]


def swept_once(context: Context, backward: Callable[..., object], gradients: Sequence[object]) -> object:
    """Call a backward that is not to be differentiated."""
    mode = LOCAL.scope.mode
    with within(mode=SWEEP if mode == RECORD else mode):
        returned = backward(context, *gradients)
    name = f"{context._function.__name__}.backward"
    reason = (
        f"{name} is once_differentiable, so a second derivative through it would be lost; compute it by means of tape.numpy and take the "
        "decorator away, or .detach() the gradient to use it as a constant"
    )

    def mark(x: object) -> object:
        if isinstance(x, (*ARRAYS, np.generic)) and (context._caller.looked or context._traced):
            x = record.constant(x)
        if not isinstance(x, Handle):
            return x
        kind = x._place.kind
        if not (kind.requires_grad or kind.unrecorded or context._traced):
            return x  # a constant
        # What JAX traces, it may differentiate, whatever the mode of the sweep.
        return unrecorded(x, reason) if mode == RECORD or LOCAL.scope.trace.capturing or boundary.is_traced(x) else x

    return mapped(mark, returned)


def _constant(variable: Handle) -> Handle:
    """Return a constant of the same value, by which a JAX transformation that is running may still differentiate."""
    trace = LOCAL.scope.trace
    if not trace.capturing and not boundary.is_traced(variable):
        return detach(variable)  # type: ignore[no-any-return]
    constant: Handle = record.leaf(look(variable))
    trace.adopt(constant._cell)
    return constant


def _swept(context: Context, segment: Segment, sweep: Sweep, cotangents: Values, batch: int | None) -> Values:
    """Return ``sweep(cotangents)``, which calls the user's Python, for a sweep of ``segment``; of batched ones, that of each row."""
    before, scope = context._call, LOCAL.scope
    context._call = SweepCall(segment, scope.linear, {} if before is None else before.opened)
    caller = context._caller
    if not (context._traced or boundary.recorded()):
        caller = boundary.Unrecorded(caller)
    inside = scope.but(caller=caller, linear=False)
    try:
        if batch is None:
            return in_scope(inside, sweep, cotangents)  # type: ignore[no-any-return]
        return in_scope(inside, _for_rows, context, sweep, cotangents, batch)  # type: ignore[no-any-return]
    finally:
        context._call = before
        if context.__dict__:  # a Variable of the sweep that was put there would keep this segment by way of its own
            context._freeze(segment, {})


def _for_rows(context: Context, sweep: Sweep, cotangents: Values, batch: int) -> Values:
    """Sweep stacked cotangents: for all rows at once, or where they must be seen one by one, for each."""
    assert context._call is not None, "a sweep calls"
    held = context._held()
    marks = LOCAL.scope.mode == RECORD and any(v._place.kind.unrecorded for v in held)  # the entry of all rows would lose why
    if not (context._call.linear or marks):
        before = dict(context.__dict__), dict(context._kept)
        gradients = _traced_rows(context, sweep, held, cotangents)
        if gradients is not None and all(map(_same, before, (context.__dict__, context._kept))):
            return gradients
        context.__dict__.clear()  # what it keeps from one row for the next
        context.__dict__.update(before[0])
        context._kept = before[1]
    return emission.rows(batch, cotangents, sweep)


def _same(before: dict[str, object], after: dict[str, object]) -> bool:
    return before.keys() == after.keys() and all(before[key] is after[key] for key in after)


class _MarkedError(Exception):
    """A gradient that has no derivative would be recorded without that mark."""


def _traced_rows(context: Context, sweep: Sweep, held: Sequence[Handle], cotangents: Values) -> Values | None:
    """Return what ``sweep``, which may read the Variables ``held``, makes of each row, stacked; None where it cannot be traced."""
    present = [ct for ct in cotangents if ct is not None]
    flows: list[bool] = []

    def row(*arrays: jax.Array) -> list[jax.Array]:
        scope = LOCAL.scope
        recorded = scope.mode == RECORD
        with scope.trace.part():
            seeds = iter([record.leaf(x, requires_grad=recorded and differentiable(x)) for x in arrays])
            gradients = sweep([None if ct is None else next(seeds) for ct in cotangents])
            flows[:] = [g is not None for g in gradients]
            if recorded and (context._caller.looked or any(g is not None and g._place.kind.unrecorded for g in gradients)):
                raise _MarkedError
            return [look(g) for g in gradients if g is not None]

    try:
        traced = trace_capturing(jax.vmap(row), [ct._place.kind.aval for ct in present], [lambda: held])
    except Exception:  # noqa: BLE001 - what is wrong with it besides is found out row by row
        return None
    if traced.jaxpr.effects:
        return None
    constants = [record.constant(c) for c in traced.jaxpr.consts]
    op = intern(f"{context._function.__name__}.backward", jaxapi.hoist(traced.jaxpr, traced.used), jax.tree.structure(traced.shapes))
    results = iter(record.record(op, [*constants, *present, *traced.captured]) if True in flows else ())
    return [next(results) if flag else None for flag in flows]
