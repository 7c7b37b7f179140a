"""Traces known: a callable whose trace would write the same program as an earlier one is not traced again.

A call is known by its snapshot (:mod:`tape.callables.snapshot`).  A trace is kept only if it left everything that the snapshot covers as
it was, so that leaving it out next time leaves out no effect.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax

from tape import jaxapi
from tape.bounded import Bounded
from tape.callables.purity import fields_of
from tape.callables.snapshot import RefusedError, Snapshot
from tape.configuration import configuration
from tape.graph.scope import LOCAL
from tape.graph.watcher import NOBODY
from tape.ops.kernel import Op

_BYTES_LIMIT = 1 << 16  # of the arrays that one trace made


class _KnownTrace(NamedTuple):
    """What a trace found: the op, and where its inputs are in a snapshot."""

    op: Op
    constants: list[Any]  # Variables that the trace made, or positions of arrays
    captured: list[int]  # positions of Variables
    arrays: list[weakref.ref[Any]]  # the snapshot's, which it knows by their ids: as long as they live


_KNOWN: Bounded[Hashable, _KnownTrace] = Bounded("traces of callables", 512)


class TracedCall:
    """One call of a function that takes callables: ``head`` is compared by value, ``values`` (callables and others) are walked through."""

    def __init__(self, head: tuple[Hashable, ...], tree: jax.tree_util.PyTreeDef, values: Sequence[object]) -> None:
        self._head = (
            *head,
            tree,
            LOCAL.scope.mode,
            configuration(),
            jax.sharding.get_abstract_mesh(),
        )  # by which JAX shards what it traces
        self._fields = None if LOCAL.scope.trace is not NOBODY or jaxapi.in_trace() else fields_of(tree)
        self._values = values
        self._key, self._snapshot = self._walk()

    def _walk(self) -> tuple[Hashable, Snapshot | None]:
        try:
            if self._fields is not None:
                snapshot = Snapshot(self._values, self._fields)
                key = (self._head, tuple(snapshot.key))
                hash(key)
                return key, snapshot
        except (RefusedError, TypeError, RuntimeError):  # static data that cannot be hashed; too deep, or changed by another thread
            pass
        return None, None

    def known(self, constant: Callable[[Any], Any]) -> tuple[Op, list[Any], list[Any]] | None:
        """Return the op of an earlier call, and the inputs before and after the arguments of this one; None where there is none."""
        snapshot = self._snapshot
        known = None if snapshot is None else _KNOWN.get(self._key)
        if snapshot is None or known is None or not all(ref() is not None for ref in known.arrays):
            return None
        constants = [constant(snapshot.arrays[c]) if type(c) is int else c for c in known.constants]
        return known.op, constants, [snapshot.variables[i] for i in known.captured]

    def learn(self, op: Op, arrays: Sequence[Any], constants: Sequence[Any], captured: Sequence[Any]) -> None:
        """Keep what the trace of this call found, if nothing changed by it: the constants of the program as arrays, and as Variables."""
        snapshot = self._snapshot
        if snapshot is None or not all(id(v._cell) in snapshot.cells for v in captured):
            return
        key, after = self._walk()
        if after is None or key != self._key or list(after.cells) != list(snapshot.cells):
            return
        if any(a is not b for a, b in zip(after.variables, snapshot.variables, strict=True)):
            return
        positions = {id(a): i for i, a in enumerate(snapshot.arrays)}
        if sum(getattr(a, "nbytes", 0) for a in arrays if id(a) not in positions) > _BYTES_LIMIT:
            return
        given = [positions.get(id(a), made_constant) for a, made_constant in zip(arrays, constants, strict=True)]
        _KNOWN[key] = _KnownTrace(op, given, [snapshot.cells[id(v._cell)] for v in captured], [weakref.ref(a) for a in snapshot.arrays])
