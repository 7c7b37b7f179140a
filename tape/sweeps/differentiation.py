"""What users call to sweep: :func:`backward` and :func:`gradients`.

This module hands gradients out; :mod:`tape.sweeps.seeds` checks what a sweep starts from, and the sweep itself is :mod:`tape.sweeps.sweep`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeVar, Unpack, overload

import jax
import jax.numpy as jnp

from tape import layout
from tape.configuration import sixty_four_bits
from tape.errors import TapeValueError, UnconnectedError, check_flag, taking
from tape.graph import boundary
from tape.graph.length import ends_long
from tape.graph.scope import LOCAL
from tape.graph.segment import Handle, Segment, V
from tape.graph.trie import RECORD, SWEEP, State
from tape.ops.jaxprs import calls_back
from tape.programs.program import run_pending
from tape.programs.retention import trimmed
from tape.recording import record
from tape.recording.entering import run_if_long
from tape.rules import table
from tape.sweeps import emission
from tape.sweeps.accumulation import _ASSIGNING, Addition, additions, arrived, arrived_at, assign, awaited, leaves_given, summed
from tape.sweeps.looked import looked_at
from tape.sweeps.seeds import describe, require_grad, seeds_of, variables, variables_of_tree, wide
from tape.sweeps.sweep import Sweep, target_of
from tape.sweeps.written import Written, asked, call_to, call_to_leaves

if TYPE_CHECKING:
    Connected: TypeAlias = Literal["raise", "zero"]

    class Sweeping(TypedDict, total=False):
        """The options of a sweep."""

        retain_graph: bool | None
        create_graph: bool


T = TypeVar("T")


@record.repeating(1)
@taking("backward")
def backward(
    outputs: object,
    grad_outputs: object = None,
    *,
    inputs: object = None,
    ignore: object = (),
    retain_graph: bool | None = None,
    create_graph: bool = False,
) -> None:
    """Sweep back from ``outputs`` and add the gradients to the ``.grad`` of the leaves.

    Args:
        outputs: the roots: a Variable or a sequence of them, of any shapes.
        grad_outputs: one seed per root, of its root's shape; None (as a whole or for a root) is the default: ones for a root of
            size 1, or the gradient assigned to the root's ``.grad``.
        inputs: Variables (one, a sequence or a pytree) that receive ``.grad``, leaves or not; None for all leaves that require grad.
        ignore: Variables (one, a sequence or a pytree) for which nothing is computed or propagated.
        retain_graph: keep what was swept, so that it can be swept again; None means ``create_graph``.
        create_graph: record the sweep, so that gradients can be differentiated.

    Raises:
        SeedError: a seed is missing or has the wrong shape, or their number differs from the roots'.
        SeedDtypeError: a complex seed for a real root.
        TapeValueError: a root does not require grad.
        ReleasedTapeError: an earlier sweep released a part that this one needs.
        UnrecordedGradientError: a gradient taken without ``create_graph`` would be differentiated.

    Example:
        >>> import tape
        >>> x = tape.Variable([1.0, 2.0])
        >>> tape.backward((x * x).sum())
        >>> x.grad.numpy()
        array([2., 4.], dtype=float32)

    """
    known = call = after = receivers = None
    retain = _retains("backward", retain_graph, create_graph)
    simple = ignore.__class__ is tuple and not ignore and not create_graph
    if simple and inputs is not None:
        known = asked(outputs, inputs, grad_outputs, retains=retain)
        receivers = None if known is None else leaves_given(known[0], known[1][-1], inputs)
        known = None if receivers is None else known
    elif simple:
        again = None if grad_outputs is not None or retain else replayed(outputs, table.revision())
        if again is not None:
            _accumulate(*again)
            return
        known = asked(outputs, None, grad_outputs, retains=retain)
        after = None if grad_outputs is not None or known is not None else looked_at(outputs)
    if known is not None and _accumulated_again(*known, receivers):
        return
    roots = variables("backward", "outputs", outputs)
    if known is not None:
        call = call_to_leaves(*known, roots) if receivers is None else call_to(*known)
    with wide(roots) as settings:
        seeds, consumed = seeds_of("backward", roots, grad_outputs)
        targets = None if inputs is None else variables_of_tree("backward", "inputs", inputs)[0]
        ignored = variables_of_tree("backward", "ignore", ignore)[0]
        if targets is not None:
            if not targets:
                msg = "backward: inputs is empty, so that no gradient would be computed; leave it out for all leaves"
                raise TapeValueError(msg)
            for target in targets:
                require_grad("backward", "inputs", target)
            LOCAL.scope.trace.aim(roots, list(map(target_of, targets)))
        sweep = Sweep(None if targets is None else map(target_of, targets), map(target_of, ignored), create_graph)
        sweep.run(roots, seeds, settings)
        waits = after is not None or (known is not None and not known[0].released)
        follows = call is not None and retain and _another_follows(call.segment, call.start)
        if call is not None:
            call.remember(sweep, None if targets is None else [sweep.gradients.get(target_of(v)) for v in targets], retains=retain)
        if after is not None and not retain:
            after.remember(sweep)
        with contextlib.nullcontext() if retain else sweep.releasing():
            mode = RECORD if create_graph else SWEEP
            added = summed(additions(sweep.gradients, targets), consumed, mode)
            sweep.gradients.clear()  # those of leaves that nobody holds are no results, here as where the sweep is written again
            for variable, _, _, total in added:
                boundary.check_no_leak("backward", variable, total)
            segment = LOCAL.segment()
            if segment is not None and not (waits and (follows or awaited(added))):
                run_pending(segment, "backward")
            assign(added, consumed, mode=mode)
    for variable, *_ in added:
        _call_post_hooks(variable)


def _accumulated_again(
    segment: Segment, key: tuple[object, ...], entering: Sequence[Handle], receivers: Sequence[Any] | None = None
) -> bool:
    """Do what a call of backward() did before at this point of the tape, if it was made; tell whether it was."""
    start = segment.state
    written: Written | None = start.next.get(key)
    if written is None:
        return False
    released = segment.released
    arrival = arrived(segment, written.results) if receivers is None else arrived_at(segment, written.results, receivers)
    if arrival is None:
        return False
    fresh, cells, sums, hooked = arrival
    if not written.enter(segment, start, entering, cells):
        return False
    follows = key[1] is True and _another_follows(segment, start)  # it retains what it swept
    _accumulate(segment, released, fresh, sums, hooked, follows)
    return True


def _another_follows(segment: Segment, start: State) -> bool:
    """Tell whether a sweep that retains what it swept is left pending, so that it and the one that follows are one program.

    That is the first one in a segment with room for another: who retains the graph in every step has two steps in a program.  One in which
    Python is called runs now: what that raises leaves every ``.grad`` as it was.
    """
    state = segment.state
    if ends_long(state) or start.cached("swept", lambda: any(step.mode == SWEEP for step in start.path())):
        return False
    return not state.cached("callbacks", lambda: any(step.kernel is not None and calls_back(step.kernel.jaxpr) for step in state.path()))


def _accumulate(segment: Segment, released: frozenset[int], fresh: Sequence[Addition], sums: bool, hooked: bool, waits: bool) -> None:
    """Run what was written again, unless somebody ``waits`` to update all, and add it to the leaves; undo what it released on failure."""
    try:
        added = summed(fresh) if sums else fresh
        if released or not (waits or awaited(added)):
            run_pending(segment, "backward")
        assign(added)
    except BaseException:
        if segment.leaves:  # nothing was released yet
            segment.released = released
        raise
    if hooked:
        for variable, *_ in added:
            _call_post_hooks(variable)


def _finished(segment: Segment, target: Segment | None, released: frozenset[int], fresh: Sequence[Addition], hooked: bool) -> None:
    """Run the sweep of a ``segment`` that has run, written again on the ``target`` (None: somebody waits), and do what follows."""
    try:
        if target is not None:
            run_pending(target, "backward")
        assign(fresh)
    except BaseException:
        if segment.leaves:
            segment.released = released
        raise
    trimmed(segment)
    if hooked:
        for variable, *_ in fresh:
            _call_post_hooks(variable)


def _cut(segment: Segment, before: frozenset[int]) -> None:
    """Run a segment in which several steps of a loop were swept, of which nobody looks at one, before it is too long.

    It is run where a step ends, and not in the midst of one: then the next segments have one structure, and none leads to others.
    """
    if before and ends_long(segment.state) and segment.trace is None and LOCAL.segment() is segment:
        run_if_long(segment)


# A call of :func:`backward` for one root, or of :func:`gradients`, that was made before.
replayed, regained = layout.chosen("replayed"), layout.chosen("regained")
_AGAIN = table, _ASSIGNING, assign, _accumulate, _finished, trimmed
if layout.NATIVE is not None:
    layout.NATIVE.sweeping(*_AGAIN)  # whole calls, which do not come through here then


def _call_post_hooks(variable: Any) -> None:
    hooks = variable._extra.post_hooks
    for key in list(hooks):
        if key in hooks:
            hooks[key](variable)


def _retains(function: str, retain_graph: bool | None, create_graph: bool) -> bool:
    """Check the flags; tell whether what is swept is kept."""
    if retain_graph is not None:
        check_flag(function, "retain_graph", retain_graph)
    check_flag(function, "create_graph", create_graph)
    return create_graph if retain_graph is None else retain_graph


@overload
def gradients(
    outputs: object, inputs: V, grad_outputs: object = ..., *, unconnected: Connected = ..., **options: Unpack[Sweeping]
) -> V: ...
@overload
def gradients(
    outputs: object, inputs: V, grad_outputs: object = ..., *, unconnected: Literal["none"], **options: Unpack[Sweeping]
) -> V | None: ...
@overload
def gradients(
    outputs: object,
    inputs: Sequence[V] | Iterator[V],
    grad_outputs: object = ...,
    *,
    unconnected: Connected = ...,
    **options: Unpack[Sweeping],
) -> tuple[V, ...]: ...
@overload
def gradients(
    outputs: object,
    inputs: Sequence[V] | Iterator[V],
    grad_outputs: object = ...,
    *,
    unconnected: Literal["none"],
    **options: Unpack[Sweeping],
) -> tuple[V | None, ...]: ...
@overload
def gradients(
    outputs: object, inputs: T, grad_outputs: object = ..., *, unconnected: Connected = ..., **options: Unpack[Sweeping]
) -> T: ...
@overload
def gradients(outputs: object, inputs: Any, grad_outputs: object = ..., *, unconnected: str = ..., **options: Unpack[Sweeping]) -> Any: ...
@record.repeating(2)
@taking("gradients")
def gradients(
    outputs: object,
    inputs: Any,
    grad_outputs: object = None,
    *,
    unconnected: str = "raise",
    retain_graph: bool | None = None,
    create_graph: bool = False,
) -> Any:
    """Gradients of ``outputs`` with respect to ``inputs``; no ``.grad`` is touched.

    Args:
        outputs: the roots: a Variable or a sequence of them, of any shapes.
        inputs: a Variable, a sequence or a pytree of them, leaves or not.
        grad_outputs: one seed per root, as for :func:`backward`.
        unconnected: what to do about an input on which no output depends: ``"raise"``, ``"zero"`` or ``"none"``.
        retain_graph: keep what was swept, so that it can be swept again; None means ``create_graph``.
        create_graph: record the sweep, so that the results can be differentiated.

    Returns:
        One gradient, of its input's shape and dtype, for one Variable; a tuple of them for a flat sequence (list, tuple, iterator); for any
        other pytree (a dict, nested lists, a namedtuple ...) the same tree.

    Raises:
        UnconnectedError: no differentiable path leads to an input, and ``unconnected`` is ``"raise"``.
        SeedError, SeedDtypeError, TapeValueError, ReleasedTapeError, UnrecordedGradientError: as for :func:`backward`.

    Example:
        >>> import tape
        >>> x = tape.Variable(3.0)
        >>> g = tape.gradients(x**3, x, create_graph=True)
        >>> float(g), float(tape.gradients(g, x))
        (27.0, 18.0)

    """
    if not isinstance(unconnected, str) or unconnected not in ("raise", "zero", "none"):
        msg = f"gradients: unconnected must be 'raise', 'zero' or 'none', got {unconnected!r}"
        raise TapeValueError(msg)
    retain = _retains("gradients", retain_graph, create_graph)
    call = None
    result = regained(outputs, inputs, grad_outputs, create_graph, retain, table.revision())
    if result is not None:
        return result
    known = None if inputs is None else asked(outputs, inputs, grad_outputs, create_graph=create_graph, retains=retain)
    if known is not None:
        segment, key, entering = known
        start = segment.state
        written: Written | None = start.next.get(key)
        before = segment.released
        again = None if written is None else written.again(segment, start, entering)
        if again is not None:
            if not (create_graph or retain):
                _cut(segment, before)
            return again[0] if isinstance(inputs, Handle) else tuple(again)
        call = call_to(segment, key, entering)
    pending = LOCAL.segment()
    before = frozenset() if pending is None else pending.released
    roots = variables("gradients", "outputs", outputs)
    wanted, tree = variables_of_tree("gradients", "inputs", inputs)
    with wide(roots) as settings:
        seeds, _ = seeds_of("gradients", roots, grad_outputs, required=unconnected == "raise")
        if unconnected == "raise":
            for v in wanted:
                require_grad("gradients", "inputs", v)
        targets = [target_of(v) if v._place.kind.requires_grad else None for v in wanted]
        rooted = [(r, s) for r, s in zip(roots, seeds, strict=True) if r._place.kind.requires_grad]
        LOCAL.scope.trace.aim([r for r, _ in rooted], targets)
        sweep = Sweep([target for target in targets if target is not None], (), create_graph)
        sweep.run([r for r, _ in rooted], [s for _, s in rooted], settings)
        results: list[Any] = []
        for i, (v, target) in enumerate(zip(wanted, targets, strict=True)):
            gradient = sweep.gradients.get(target)
            if gradient is not None:
                results.append(emission.share(gradient))
            elif unconnected == "raise":
                msg = (
                    f"gradients: inputs[{i}] ({describe(v)}) is not connected to any of the outputs by differentiable operations; "
                    'use it in the computation, or pass unconnected="zero" or unconnected="none"'
                )
                raise UnconnectedError(msg)
            else:
                aval = v._place.kind.aval
                with sixty_four_bits():
                    results.append(record.leaf(jnp.zeros(aval.shape, aval.dtype)) if unconnected == "zero" else None)
        if call is not None:
            call.remember(sweep, results, retains=retain)
        if not retain:
            with sweep.releasing():
                pass
            if pending is not None and not create_graph:
                _cut(pending, before)
    if tree is not None:
        return jax.tree.unflatten(tree, results)
    return results[0] if isinstance(inputs, Handle) else tuple(results)
