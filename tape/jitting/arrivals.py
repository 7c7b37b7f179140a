"""Arrivals: of several results that a step returns some are swept, and hooks and backwards on the way of the others give nothing."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp

from tape.graph.segment import Handle, LeafNode, Segment
from tape.ops.kernel import Op
from tape.recording import record
from tape.recording.record import handle
from tape.sweeps.emission import zeros_like
from tape.sweeps.sweep import Target, past, resolved, target_of

_ARRIVED = Op("arrived", jnp.where)


class Arrivals:
    """To which Variables the sweep of a step's results comes, given which of these have a seed: known only when it runs."""

    def __init__(self) -> None:
        self._given: Sequence[Any] = ()  # for each result whether it has a seed, while their sweep is traced
        self._results: Sequence[Handle] = ()
        self._behind: list[set[Hashable]] | None = None  # what is behind each, where somebody has asked
        self._flags: dict[tuple[int, ...], Any] = {}  # by those of the results, whether one of some has a seed

    @contextlib.contextmanager
    def seeding(self, results: Sequence[Handle], given: Sequence[Any]) -> Iterator[None]:
        """While the sweep of ``results`` is traced, with zeros for those that are not ``given``."""
        self._given, self._results, self._behind, self._flags = given, results, None, {}
        try:
            yield
        finally:
            self._given, self._results, self._behind, self._flags = (), (), None, {}

    def gated(self, variable: Handle, hook: Callable[..., Any]) -> Callable[..., Any]:
        """Return a hook on a Variable whose result counts only where the sweep comes there: from zeros it may make anything."""
        segment = variable._segment
        key = _key(record.node_of(variable) if segment is None else resolved((segment, variable._place.slot)))

        def called(gradient: Handle) -> Any:
            old: Handle = handle(gradient._segment, gradient._place, gradient._cell)
            result = hook(gradient)
            new = gradient if result is None else result
            arrives = self._arrives([key])
            if arrives is None or not hasattr(new, "shape") or (new is gradient and gradient._cell is old._cell):
                return result
            new = new if isinstance(new, Handle) else record.constant(new)
            made, kind = new._place.kind.aval, old._place.kind.aval
            if (made.shape, made.dtype) != (kind.shape, kind.dtype):
                return result  # which the sweep refuses
            return record.record(_ARRIVED, (arrives, new, old))

        functools.update_wrapper(called, hook)
        called.__name__ = getattr(hook, "__name__", None) or repr(hook)  # in messages
        return called

    def counted(self, segment: Segment, slots: Sequence[int], gradients: Sequence[Any]) -> Sequence[Any]:
        """Return the gradients of a user's backward where the sweep comes to what is in one of its slots, and zeros otherwise."""
        arrives = self._arrives([_key(resolved((segment, slot))) for slot in slots])
        if arrives is None:
            return gradients
        return [g if g is None else record.record(_ARRIVED, (arrives, g, zeros_like(g._place.kind.aval))) for g in gradients]

    def _arrives(self, keys: Collection[Hashable]) -> Handle | None:
        """Return whether the sweep comes to one of some; None: this is another sweep, or it comes there whatever has a seed."""
        if self._behind is None:
            self._behind = [set(map(_key, past([target_of(v)]))) for v in self._results]
        some = tuple([i for i, passed in enumerate(self._behind) if not passed.isdisjoint(keys)])
        if not 0 < len(some) < len(self._given):
            return None
        if some not in self._flags:  # one value, so that it is the same in each turn of a loop
            self._flags[some] = functools.reduce(operator.or_, [self._given[i] for i in some])
        arrives: Handle = record.leaf(self._flags[some])
        return arrives


def _key(target: Target) -> Hashable:
    """Return what tells a leaf or a slot from others as long as they are there, and does not keep it."""
    return id(target) if isinstance(target, LeafNode) else (id(target[0]), target[1])
