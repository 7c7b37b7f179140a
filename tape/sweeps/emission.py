"""Emission: writing a planned sweep onto the tape.

A plan without Python in between is replayed in one step of the trie once it was written at the same point before; otherwise its
instructions are recorded one by one, with hooks and ``tape.Function`` backwards called where they stand.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp

from tape import layout
from tape.graph.boxes import Box
from tape.graph.kinds import Place, varying
from tape.graph.length import NUMBER_LIMIT, SEGMENT_LIMIT
from tape.graph.lines import lines_of, user_line
from tape.graph.scope import LOCAL, within
from tape.graph.segment import Extra, Handle, LeafNode, Segment, SegmentClosedError, TracerMetError
from tape.graph.trie import SWEEP, State, link
from tape.graph.watcher import NOBODY
from tape.graph.writing import swept
from tape.hooking.handles import calling, replacement
from tape.hooking.observing import Observer
from tape.ops.kernel import Op, intern_op
from tape.programs.failures import naming
from tape.programs.program import run_pending
from tape.programs.retention import leaf_slots
from tape.recording import entering, record, staging
from tape.recording.record import handle
from tape.rules.cotangents import full
from tape.sweeps.plan import ADD, Instruction, Plan
from tape.sweeps.written import Written


def add(a: Handle | None, b: Handle | None, write: Callable[[Any, Sequence[Any]], Any] = record.record) -> Any:
    """Record the sum of two cotangents; None is zero."""
    if a is None:
        return b
    return a if b is None else write(ADD, (a, b))


def share(variable: Handle) -> Any:
    """A handle of its own for the same value, so that no two owners hold one handle; a leaf's gradient still goes to the leaf."""
    own = handle(variable._segment, variable._place, variable._cell)
    return _at_leaf(own, record.node_of(variable)) if variable._segment is None and variable._place.kind.requires_grad else own


def zeros_like(aval: Any) -> Any:
    """Record a zero cotangent of the given shape and dtype."""
    return record.record(_filled(aval, 0), ())


def ones_like(aval: Any) -> Any:
    """Record a cotangent of ones of the given shape and dtype."""
    return record.record(_filled(aval, 1), ())


def _filled(aval: Any, value: int) -> Op:
    key = (full, aval.shape, aval.dtype, value, varying(aval))
    return intern_op(key, lambda: Op("ones" if value else "zeros", functools.partial(full, aval, value)))


def is_seed(op: object) -> bool:
    """Tell whether an op gives the cotangents that a sweep begins with by default."""
    return getattr(getattr(op, "fun", None), "func", None) is full


def forward_handle(segment: Segment, state: State, slot: int, leaf_index: dict[int, int]) -> Any:
    """Return a Variable for a forward slot of ``segment``, pending or run (with its lock held)."""
    place, leaf = state.table[slot], leaf_index.get(slot)
    run = segment.run
    if run is None:  # the cell is known to the segment, so that it gets its value should a traced cotangent make us look at it
        return handle(segment, place, segment.cells.setdefault(slot, [None]) if leaf is None else segment.leaves[leaf])
    if leaf is None:
        kept = run.saved[slot]
        return handle(segment, place, kept.source() if kept.__class__ is Box else kept)
    origin, cell = segment.origins.get(slot), segment.leaves[leaf]
    if isinstance(origin, tuple):
        return handle(origin[0], Place(origin[1], place.kind), cell)
    return handle(None, place, cell) if origin is None else _at_leaf(handle(None, place, cell), origin)


def _at_leaf(variable: Handle, node: LeafNode) -> Handle:
    """Have the gradients of a Variable go to a leaf."""
    variable._extra = Extra()
    variable._extra.node = node
    return variable


def leaf_indices(state: State) -> dict[int, int]:
    """Map each leaf slot of a structure to its position among the leaves."""
    return state.cached("leaves", lambda: {slot: i for i, slot in enumerate(leaf_slots(state))})


def emit(
    plan: Plan, segment: Segment, state: State, seeds: Sequence[Any], batch: int | None = None, observer: Observer | None = None
) -> dict[int, Any]:
    """Write ``plan`` for ``segment`` of structure ``state`` onto this thread's tape; return the cotangents of its output slots.

    The seeds are the values ``plan.given``, None where a Python backward before a piece left one out.  With ``batch``, cotangents have a
    further first axis of that length.  SegmentClosedError: another thread has run ``segment`` or this thread's pending one; nothing was
    written.
    """
    if not plan.instructions:
        values = dict(zip(plan.given, seeds, strict=True))
        return {slot: share(values[value]) for slot, value in plan.outputs}
    pending = LOCAL.segment()
    if pending is not None and pending is not segment:
        if segment.packing is not None:
            run_pending(pending, "saved values")  # it gives back what was unpacked for it, before more is
        elif (
            pending.state.depth + len(plan.instructions) > 2 * SEGMENT_LIMIT
            or pending.state.length.numbers + state.length.numbers > NUMBER_LIMIT
        ):
            run_pending(pending, "length")  # so that every segment of a long tape is swept from the same empty state
    if batch is None and plan.straight and not plan.pending and LOCAL.scope.notes is None and not LOCAL.scope.eager:
        again = emitted(plan, segment, state, leaf_indices(state), seeds)
        if again is not None:
            return again  # type: ignore[no-any-return]
    sources = None if plan.pending else _sources(plan, segment, state)
    target, slots = segment, None
    if plan.straight and (not LOCAL.scope.eager or LOCAL.scope.trace.pends) and all(seed is not None for seed in seeds):
        target, slots = _entered(plan, segment, state, sources, seeds)
    if slots is not None:
        start = target.state
        key = (plan, batch, *slots)
        written: Written | None = start.next.get(key)
        if written is None and batch is None and start.mode == SWEEP:
            numbers = plan.given if target is segment else (*plan.externals, *plan.given)
            written = link(start, key, _written(plan, start, dict(zip(numbers, slots, strict=True))))
        if written is not None:
            results = written.again(target, start)
            if results is None:
                raise SegmentClosedError
            if LOCAL.scope.notes is not None:
                LOCAL.scope.notes.replayed(plan.instructions, segment, target, start)
            return {slot: result for (slot, _), result in zip(written.results, results, strict=True)}
    if sources is None:
        sources = _sources(plan, segment, state)
    values = dict(zip((*plan.externals, *plan.given), (*sources, *seeds), strict=True))
    if (
        plan.straight
        or segment.trace is not None
        or LOCAL.scope.notes is not None
        or LOCAL.scope.eager
        or (batch, observer) != (None, None)
    ):
        _write(plan, values, segment, target, batch, observer)
    else:
        _write_parts(plan, values, segment, state)
    # Each output gets a handle of its own: two leaves may share one cotangent.
    outputs = {slot: share(cotangent) for slot, value in plan.outputs if (cotangent := values.get(value)) is not None}
    again = slots is not None and target.pending and target.state.known and staging.recording(target)
    if again and all(v._segment is target for v in outputs.values()):
        link(start, key, Written(target.state, [(slot, v._place) for slot, v in outputs.items()]))
    return outputs


emitted = layout.chosen("emitted")  # what :func:`emit` does where a plan was written before


def _entered(
    plan: Plan, segment: Segment, state: State, sources: Sequence[Any] | None, seeds: Sequence[Any]
) -> tuple[Segment, list[int] | None]:
    """Enter what a plan reads in the segment to write it on: this thread's, or that of the JAX transformation it belongs to."""
    staged = segment.trace is not None or LOCAL.scope.trace.pends
    for current in (staging.current,) if staged else (record.current, staging.current):
        target = current()
        if target is not None:
            # The forward slots of the pending segment are part of the plan; those of one that has run enter as leaves.
            read = seeds if target is segment else (*(_sources(plan, segment, state) if sources is None else sources), *seeds)
            place_in = entering.place_in if target.trace is None else staging.place_in
            try:
                return target, [place_in(target, v) for v in read]
            except TracerMetError:
                continue
    return segment, None


def _sources(plan: Plan, segment: Segment, state: State) -> Sequence[Any]:
    """Return Variables for the forward values that a plan reads."""
    return opened(held(plan, segment, state), plan.externals, state)


def _written(plan: Plan, start: State, slots: dict[int | None, int]) -> Written:
    """Write a plan as one state after ``start``; ``slots`` maps its values to slots there, and those it lacks are forward slots."""
    state = swept(start, plan.instructions, slots)
    return Written(state, [(slot, state.table[slots.get(value, value)]) for slot, value in plan.outputs])


def held(plan: Plan, segment: Segment, state: State) -> list[Any]:
    """Variables for the forward values that a plan reads; what was packed is not unpacked yet.

    SegmentClosedError: another sweep has run, released or thinned out the segment since the plan was made, which no longer fits.
    """
    if not plan.entries:  # a part of one, to which what it reads is given
        return []
    leaf_index = leaf_indices(state)
    with segment.lock:
        if segment.pending != plan.pending or not plan.entries.isdisjoint(segment.released):
            raise SegmentClosedError
        try:
            return [forward_handle(segment, state, slot, leaf_index) for slot in plan.externals]
        except KeyError:
            raise SegmentClosedError from None


def opened(sources: Sequence[Any], slots: Iterable[int], state: State) -> Sequence[Any]:
    """Return Variables for some slots, now that what was packed of them is unpacked: so this is done once per sweep."""
    for slot, source in zip(slots, sources, strict=True):
        if source is not None and source._cell.__class__ is not list:
            with naming(state, slot, "unpack, which was to give a value of"):
                source._cell = source._cell.opened()
    return sources


def _write(
    plan: Plan, values: dict[int, Any], segment: Segment, target: Segment, batch: int | None = None, observer: Observer | None = None
) -> None:
    """Record the instructions of ``plan`` one by one, in the JAX transformation that ``target`` belongs to, if it does to one.

    They read from ``values`` and add to them; cotangents that are used up go at once.
    """
    record_one = record.record if target.trace is None else staging.record_staged
    steps, n_forward, kept = plan.instructions, plan.n_forward, {value for _, value in plan.outputs}
    last = {operand: i for i, step in enumerate(steps) for operand in step.operands if operand is not None}
    notes = LOCAL.scope.notes
    asked = where = user_line()
    traced = LOCAL.scope.trace is not NOBODY  # by tape.jit: an entry has the line of that whose derivative it is
    path = segment.state.path() if traced and segment.lines else ()
    lines = {e.depth: segment.lines[e.slots[0]] for e in path if e.kernel is not None and e.slots and e.slots[0] in segment.lines}
    with within(writing=True):
        for i, step in enumerate(steps):
            operands = [None if o is None else values.get(o) for o in step.operands]
            where = (lines.get(step.depth) or step.where or asked) if traced else asked  # noqa: F841 - see lines_of
            if step.calls is not None:
                results = _call_python(step, segment, operands, batch, observer)
            elif step.op is ADD:
                results = (add(operands[0], operands[1], record_one),)
            else:
                results = _call_kernel(step, operands, n_forward, batch, record_one)
            values.update((number, value) for number, value in zip(step.results, results, strict=True) if number is not None)
            if notes is not None:
                notes.wrote(step, segment, results)
            for o in step.operands:
                if o is not None and last[o] == i and o >= n_forward and o not in kept:
                    values.pop(o, None)


lines_of(_write.__code__)


def _write_parts(plan: Plan, values: dict[int, Any], segment: Segment, state: State) -> None:
    """Do what :func:`_write` does with a plan that calls Python: what is between two calls is a plan of its own, written as before."""
    with within(writing=True):
        for part in _parts(plan):
            if isinstance(part, Instruction):
                results = _call_python(part, segment, [None if o is None else values.get(o) for o in part.operands], None, None)
                values.update((number, value) for number, value in zip(part.results, results, strict=True) if number is not None)
                continue
            seeds = [values.get(value) for value in part.given]
            while True:
                with contextlib.suppress(SegmentClosedError):  # nothing was written
                    values.update(emit(part, segment, state, seeds))
                    break


def _parts(plan: Plan) -> list[Instruction | Plan]:
    """Return the calls of a plan, and as plans the instructions between them; what these read of the forward is given to them."""
    parts: list[Instruction | Plan] | None = plan.pieces.get("calls")
    if parts is None:
        parts = []
        later = {value for _, value in plan.outputs}
        for calls, steps in [(c, list(g)) for c, g in itertools.groupby(plan.instructions, lambda step: step.calls is not None)][::-1]:
            results = {value for step in steps for value in step.slots}
            read = {value for step in steps for value in step.inputs}
            parts += steps[::-1] if calls else [plan.part(steps, sorted(read - results), sorted(results & later))]
            later |= read
        parts.reverse()
        plan.pieces["calls"] = parts
    return parts


def _call_python(step: Instruction, segment: Segment, operands: list[Any], batch: int | None, observer: Observer | None) -> Sequence[Any]:
    """Call what stands there in the sweep: hooks, the backward of a ``tape.Function``, op hooks."""
    if step.calls == "hooks":
        assert step.slot is not None
        hooks = segment.hooks[step.slot]
        with naming(segment.state, step.slot, "a hook on a result of"):
            return rows(batch, operands, lambda cts: (run_hooks(hooks, cts[0]),))
    entry = step.entry
    assert entry is not None
    operands = [None if v is None else share(v) for v in operands]  # others may read what it writes into
    if step.calls == "function":
        with naming(segment.state, entry.slots[0], "the backward of"):
            return _call_function(step, segment, operands, batch)
    assert observer is not None
    see = observer.before if step.calls == "before" else observer.after
    return rows(batch, operands, lambda cts: see(entry, segment, cts))


def _call_kernel(
    step: Instruction, operands: list[Any], n_forward: int, batch: int | None, write: Callable[[Any, Sequence[Any]], Any]
) -> Sequence[Any]:
    """Record a VJP kernel; a cotangent that a Python backward left out is zero."""
    kernel = step.op
    cotangent = tuple(o is not None and o >= n_forward for o in step.operands)
    if batch is not None and True in cotangent:
        kernel = kernel.batched(cotangent, batch)
    if any(v is None for v in operands):
        if all(v is None for v, c in zip(operands, cotangent, strict=True) if c):
            return (None,) * len(step.results)
        operands = [zeros_like(a) if v is None else v for v, a in zip(operands, kernel.in_avals, strict=True)]
    results = write(kernel, operands)
    return (results,) if kernel.single else results


def rows(batch: int | None, cotangents: Sequence[Any], fun: Callable[[Sequence[Any]], Sequence[Any]]) -> Sequence[Any]:
    """Call Python that expects one cotangent at a time for each row of batched ones."""
    if batch is None:
        return fun(cotangents)
    each = [fun([None if ct is None else record.record(_row(i), (ct,)) for ct in cotangents]) for i in range(batch)]
    stacked = []
    for column in zip(*each, strict=True):
        like = next((v for v in column if v is not None), None)
        full = [zeros_like(like._place.kind.aval) if v is None else v for v in column] if like is not None else None
        stacked.append(None if full is None else record.record(_STACK, full))
    return stacked


_STACK = Op("stack", lambda *rows: jnp.stack(rows))


def _row(i: int) -> Op:
    return intern_op(("row", i), lambda: Op("row", lambda x: x[i]))


def _call_function(step: Instruction, segment: Segment, cotangents: list[Any], batch: int | None) -> Sequence[Any]:
    """Call the backward of a ``tape.Function``, for all rows of batched cotangents at once if it can be traced."""
    assert step.entry is not None
    context = segment.functions[step.entry.places[0].slot]
    if all(ct is None for ct in cotangents):
        return (None,) * len(step.results)
    gradients = LOCAL.scope.trace.swept(segment, [p.slot for p in step.entry.places], context._sweep(segment, cotangents, batch))
    given = len(gradients)  # what the forward computed of them gets none
    return [gradients[i] if i < given else None for i, wanted in enumerate(step.wanted) if wanted]


def run_hooks(hooks: dict[int, Callable[..., Any]], gradient: Handle | None) -> Any:
    """Call hooks in the order registered; each may replace the gradient by one of the same shape and dtype, or write into it."""
    if gradient is None:
        return None
    for key in list(hooks):
        hook = hooks.get(key)  # it may have been removed by an earlier one
        if hook is None:
            continue
        who = f"hook {getattr(hook, '__name__', hook)!r}"
        own = share(gradient)
        with calling(who, own):
            given = hook(own)
            if given is not None or own._cell is not gradient._cell:
                gradient = replacement(who, gradient, own if given is None else given)
    return gradient
