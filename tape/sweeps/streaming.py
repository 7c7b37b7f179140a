"""Streams: gradients handed out one by one, each as soon as nothing that is still to be swept adds to it.

A stream sweeps like :mod:`tape.sweeps.sweep`, with plans cut into pieces where gradients become final.  A piece is recorded in a segment of
its own, apart from what the user records meanwhile, and has been dispatched when its gradients are handed out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from tape.configuration import sixty_four_bits
from tape.errors import UnconnectedError
from tape.graph import boundary
from tape.graph.scope import LOCAL, parked
from tape.graph.segment import Handle, LeafNode, Segment, SegmentClosedError, V
from tape.graph.trie import SWEEP
from tape.graph.wengert import leading, producers
from tape.hooking.handles import finish
from tape.jaxapi import X64
from tape.programs.failures import check_slots
from tape.programs.program import run_pending
from tape.programs.retention import thin
from tape.sweeps import emission
from tape.sweeps.plan import Plan
from tape.sweeps.seeds import describe, require_grad, seeds_of, variables, variables_of_tree, wide
from tape.sweeps.sweep import Sweep, Target, resolved, target_of

T = TypeVar("T")

_AS_IT_IS = contextlib.nullcontext()


def stream_gradients(outputs: V | Sequence[V], grad_outputs: object = None, *, inputs: object = None) -> Iterator[tuple[V, V]]:
    """Iterate over the leaves and their gradients, each as soon as its gradient is final; no ``.grad`` is touched.

    What was used last comes first.  When a leaf comes, everything that uses it has been swept and its gradient is being computed, while
    nothing that only others need has begun: so its value may be replaced, or its gradient sent away, while the sweep goes on.  The
    arguments are checked, and what is pending is run, at the call.  At its end the iterator releases what was swept, as :func:`backward`
    does.  One that is dropped or closed before, or that raised, releases nothing: a later sweep gives the same gradients, and computes
    again what this one had no more use for and let go.

    Args:
        outputs: the roots: a Variable or a sequence of them, of any shapes.
        grad_outputs: one seed per root, as for :func:`backward`.
        inputs: the Variables wanted, leaves or not; None for all leaves that require grad.

    Returns:
        An iterator of pairs: the Variable itself, and its gradient, a Variable of the same shape and dtype.

    Raises:
        UnconnectedError: no differentiable path leads to one of ``inputs``; while iterating, where a ``tape.Function`` left out
            its gradient.
        SeedError, SeedDtypeError, TapeValueError, ReleasedTapeError, UnrecordedGradientError: as for :func:`backward`.

    Example:
        >>> import tape
        >>> w, v = tape.Variable(2.0, name="w"), tape.Variable(3.0, name="v")
        >>> for leaf, gradient in tape.stream_gradients((w * 5.0) * v):
        ...     leaf.value = leaf.value - 0.1 * gradient.value
        ...     print(leaf.name, float(gradient), float(leaf))
        v 10.0 2.0
        w 15.0 0.5

    """
    roots = variables("stream_gradients", "outputs", outputs)
    with wide(roots):
        seeds, _ = seeds_of("stream_gradients", roots, grad_outputs)
        wanted = None if inputs is None else variables_of_tree("stream_gradients", "inputs", inputs)[0]
        for v in wanted or ():
            require_grad("stream_gradients", "inputs", v)
        stream = _Stream(roots, [None if s is None else emission.share(s) for s in seeds], wanted, X64.value)
    return stream.gradients()


class _Stream:
    """One sweep, step by step."""

    __slots__ = ("_gathered", "_order", "_receivers", "_roots", "_seeds", "_sweep", "_wide")

    def __init__(self, roots: Sequence[Any], seeds: Sequence[Any], wanted: Sequence[Any] | None, wide: bool) -> None:
        self._receivers: dict[Target, list[Any]] | None = None if wanted is None else {}
        for v in {id(v): v for v in wanted or ()}.values():
            self._receivers.setdefault(target_of(v), []).append(v)  # type: ignore[union-attr]
        if self._receivers:
            LOCAL.scope.trace.aim(roots, [*self._receivers])
        self._sweep = Sweep(self._receivers, (), create_graph=False)
        self._roots = roots
        self._seeds = seeds
        self._wide = wide  # cotangents have dtypes that JAX's configuration does not allow now
        self._gathered: dict[Any, Any] = {}  # for hooks over several Variables
        self._order = self._sweep.foresee(roots)
        reached = {target for _, targets in self._order for target in targets}
        for v in wanted or ():
            if target_of(v) not in reached:
                raise UnconnectedError(_unconnected(v))

    def gradients(self) -> Iterator[tuple[Any, Any]]:
        """Return the iterator that the user sees."""
        steps = self._steps()
        while (final := self._apart(steps)) is not None:
            ready = [(variable, emission.share(gradient)) for target, gradient in reversed(final) for variable in self._variables(target)]
            final.clear()
            while ready:
                yield ready.pop()  # not bound to a name here: a gradient that the user drops is free
        with self._sweep.releasing():
            pass

    def _apart(self, steps: Iterator[T]) -> T | None:
        """Take the next step in a segment of its own: what the user has pending stays so."""
        with parked(mode=SWEEP, unseen=True, gathered=self._gathered):
            return next(steps, None)

    def _variables(self, target: Target) -> list[Any]:
        if self._receivers is not None:
            return self._receivers[target]
        assert isinstance(target, LeafNode)
        variable = target.ref()
        if variable is None:
            return []
        LOCAL.scope.trace.receive(variable)
        return [variable]

    def _steps(self) -> Iterator[list[tuple[Target, Any]]]:
        """Sweep to the next point where gradients are final, and give these; begin anew from there."""
        with self._step():
            self._sweep.arrive_at(self._roots, self._seeds)
        for segment, targets in self._order:
            begun = None
            if segment is not None:
                self._wide = self._wide or bool(segment.configuration[0])
                with self._step():
                    begun = self._sweep.begin(segment)
            if segment is not None and begun is not None:
                yield from self._pieces(segment, *begun, targets)
            elif targets:
                with self._step():
                    final = self._final(targets, {})
                yield final
        with self._step():
            finish(self._gathered)

    def _pieces(
        self, segment: Segment, plan: Plan, values: dict[int, Any], targets: Sequence[Target]
    ) -> Iterator[list[tuple[Target, Any]]]:
        """Sweep one segment, with the given plan on the given values."""
        ends: dict[Target, list[int]] = {}
        for slot, value in plan.outputs:
            ends.setdefault(resolved(segment.origins.get(slot, (segment, slot))), []).append(value)
        wanted = [target for target in targets if target in ends]
        pieces = pieces_of(plan, tuple([tuple(ends[target]) for target in wanted]))
        for piece in pieces:
            with self._step():
                self._sweep.part(piece.plan, segment)
                read = piece.plan.given
                given = emission.opened([values.get(value) for value in read], read, segment.state)
                while True:
                    with contextlib.suppress(SegmentClosedError):  # nothing was written
                        values.update(emission.emit(piece.plan, segment, segment.state, given, observer=self._sweep.observer))
                        break
                del given
                final = [wanted[i] for i in piece.finals]
                if piece is pieces[0]:
                    final += [target for target in targets if target not in wanted]  # a Python backward left them out
                terms = {target: [values.get(value) for value in ends.pop(target, ())] for target in final}
                if piece is pieces[-1]:
                    for target, others in ends.items():
                        if isinstance(target, LeafNode) or target[0] is not segment:
                            self._pass_on(target, [values.get(value) for value in others])
                used = [value for value in values if value not in piece.later]
                for value in used:
                    del values[value]
                handed_out = self._final(final, terms)
                thin(segment, used)
            if handed_out:
                yield handed_out

    def _pass_on(self, target: Target, terms: Sequence[Any]) -> None:
        """Hand cotangents to what is swept later."""
        for term in terms:
            if term is not None:
                self._sweep.arrive(target, emission.share(term))

    def _final(self, targets: Sequence[Target], terms: dict[Target, list[Any]]) -> list[tuple[Target, Any]]:
        """Return what is handed out for targets to which some last terms are added, now that hooks have seen it; it is being computed."""
        final = []
        for target in targets:
            gradient = self._sweep.gradients.pop(target, None)
            for term in terms.pop(target, ()):
                gradient = emission.add(gradient, term)
            if gradient is not None:
                gradient = emission.share(gradient)  # what is still to be swept may read the same value
                final.append((target, emission.run_hooks(target.hooks, gradient) if isinstance(target, LeafNode) else gradient))
            elif self._receivers is not None:
                raise UnconnectedError(_unconnected(self._receivers[target][0]))
        if LOCAL.scope.notes is not None:
            LOCAL.scope.notes.grew()
        for _, gradient in final:
            if gradient._cell[0] is None:
                segment = boundary.awaited(gradient._cell, gradient._segment, gradient._place)
                run_pending(segment, "stream")
                check_slots(segment, (gradient._place.slot,))
        return final

    def _step(self) -> contextlib.AbstractContextManager[None]:
        """Have JAX's settings be those that the cotangents need, until gradients are handed out."""
        return sixty_four_bits() if self._wide and not X64.value else _AS_IT_IS


class Piece(NamedTuple):
    """A part of a plan, with the numbers of the groups of values that are final then, and the values that later pieces read."""

    plan: Plan
    finals: tuple[int, ...]
    later: frozenset[int]


def pieces_of(plan: Plan, groups: tuple[tuple[int, ...], ...]) -> Sequence[Piece]:
    """Cut a plan (for a segment that has run) wherever the values of one or more groups of its outputs are final, as early as can be."""
    pieces: Sequence[Piece] | None = plan.pieces.get(groups)
    if pieces is None:
        pieces = plan.pieces[groups] = _cut(plan, groups)
    return pieces


def _cut(plan: Plan, groups: Sequence[Sequence[int]]) -> list[Piece]:
    again = [step for step in plan.instructions if any(value < plan.n_forward for value in step.slots)]  # forward entries, once more
    steps = plan.instructions[len(again) :]
    known_after = {value: i + 1 for i, step in enumerate(steps) for value in step.slots}
    ends = [max(known_after.get(value, 0) for value in group) for group in groups]
    cuts = sorted({*ends, len(steps)})
    makers = producers(again)
    known: set[int] = set()
    parts = []
    for start, end in zip([0, *cuts[:-1]], cuts, strict=True):
        part = steps[start:end]
        before, _ = leading({value for step in part for value in step.inputs}, makers, known)  # those that the pieces so far did not need
        known.update(value for step in before for value in step.slots)
        parts.append([*before, *part])
    pieces: list[Piece] = []
    later: set[int] = {value for _, value in plan.outputs}.difference(*groups)  # they are passed on at the end
    for part, end in zip(parts[::-1], cuts[::-1], strict=True):
        finals = tuple([i for i, e in enumerate(ends) if e == end])
        results = {value for step in part for value in step.slots}
        read = {value for step in part for value in step.inputs} - results
        wanted = later.union(*[groups[i] for i in finals])
        piece = plan.part(part, sorted(read), sorted(results & wanted))
        pieces.append(Piece(piece, finals, frozenset(later) if pieces else frozenset()))
        later = wanted - results | read
    return pieces[::-1]


def _unconnected(variable: Handle) -> str:
    return (
        f"stream_gradients: an input ({describe(variable)}) is not connected to any of the outputs by differentiable operations; use it in "
        "the computation, or leave it out"
    )
