"""Captures: the Variables that a callable uses without being given them, found while it is traced.

Inside the trace a captured Variable stands for an input of the trace.  Which ones are captured is first guessed from what the callable
closes over; where the trace meets another one that somebody outside holds, it is made again with that one among the inputs.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, random

from tape.callables.reach import Reach
from tape.errors import TapeRuntimeError
from tape.graph.boxes import Cell
from tape.graph.kinds import is_scalar
from tape.graph.scope import LOCAL, parked
from tape.graph.segment import Extra, Handle, Segment, itself
from tape.graph.watcher import NOBODY, Watcher
from tape.jaxapi import ClosedJaxpr, trace
from tape.recording import record
from tape.recording.record import handle
from tape.statistics import STATS

_ATTEMPTS = 5


class Captures(Watcher):
    """One trace of a callable; a context manager, in which every op on Variables is evaluated in the trace."""

    capturing = True
    releases = False  # a sweep inside leaves what it swept: the trace may be made again, and what it captures is not its own to release

    def __init__(self, known: Sequence[Handle]) -> None:
        self.known = list(known)
        self.used: list[int] = []  # positions of the known Variables that were met, once the trace has ended
        self.constants = False  # whether those that were met unexpectedly are to be inputs
        self.foreign = False  # constants that somebody outside holds were met unexpectedly
        self.unknown: dict[int, Handle] = {}  # id(cell) -> Variable that was met unexpectedly
        self._met = [v._cell for v in known]  # kept, so that their ids stay theirs
        self._expected = {id(cell): i for i, cell in enumerate(self._met)}
        self._inputs: Sequence[Any] = ()
        self._own: dict[int, Cell] = {}  # cells made in this trace; kept, so that their ids stay theirs
        self.stand_ins: dict[int, Cell] = {}  # type: ignore[misc]
        self._standing: set[int] = set()  # ids of those
        self._hooks: list[tuple[dict[int, Any], Any]] = []  # registered in this trace and not called so far
        self._around: parked
        self._outer: Watcher = NOBODY  # the trace around this one

    def __enter__(self) -> None:
        self._outer = LOCAL.scope.trace
        self._around = self._scope()
        self._around.__enter__()

    def _scope(self) -> parked:
        """Return the scope in which it is traced: without op hooks, as the callable is one op, and may be traced several times or never."""
        return parked(trace=self, eager=True, observer=None)

    def __exit__(self, kind: object, *_: object) -> None:
        self._around.__exit__()
        del self._around  # its scope refers to this trace, which is to go with its last reference
        self._outer = NOBODY
        self._end(failed=kind is not None)
        self._inputs = ()

    def _end(self, *, failed: bool) -> None:
        self.used = [i for key, i in self._expected.items() if key in self.stand_ins]
        self._met.clear()
        self._own.clear()
        self.stand_ins.clear()
        waiting = next((hook for hooks, hook in self._hooks if any(h is hook for h in hooks.values())), None)
        self._hooks.clear()
        if waiting is not None and not failed:
            msg = (
                f"hook {getattr(waiting, '__name__', waiting)!r} was registered on a Variable inside a traced function, where no sweep "
                "comes by: it goes through the function as one entry; register it outside, on an argument or a result of the function"
            )
            raise TapeRuntimeError(msg)

    def write(self, variable: Handle) -> bool:
        """Tell the trace around this one that a Variable is about to change."""
        self._outer.write(variable)
        return False

    def read_grad(self, variable: Handle) -> None:
        """Tell the trace around this one that a Variable's ``.grad`` is looked at."""
        self._outer.read_grad(variable)

    def ask(self, variable: Handle, *, leaf: bool = False) -> None:
        """Tell the trace around this one that somebody looks at what a Variable is."""
        self._outer.ask(variable, leaf=leaf)

    def begin(self, inputs: Sequence[Any]) -> None:
        """Take the traced values of the known Variables."""
        self._inputs = inputs

    def adopt(self, cell: Cell) -> None:
        """Note a cell that was made in this trace."""
        self._own[id(cell)] = cell

    def place(self, part: Any, inputs: Sequence[Any], trace: object) -> Sequence[Any] | None:
        """Ask the trace around this one, to which the part may belong."""
        return self._outer.place(part, inputs, trace)

    def ran(self, segment: Segment, live: Sequence[int]) -> None:
        """Tell the trace around this one, to which the segment belongs."""
        self._outer.ran(segment, live)

    def watched(self, variable: Handle, hooks: dict[int, Any], hook: Callable[..., Any]) -> Callable[..., Any]:
        """Return a hook for ``variable`` of which this trace sees whether a sweep inside it comes by."""
        if id(variable._cell) not in self._own:
            return hook

        @functools.wraps(hook, updated=())
        def watching(gradient: Handle) -> object:
            self._hooks = [known for known in self._hooks if known[1] is not watching]
            return hook(gradient)

        self._hooks.append((hooks, watching))
        return watching

    def owns(self, variable: Handle) -> bool:
        """Tell whether a Variable was made in this trace."""
        return id(variable._cell) in self._own

    @contextlib.contextmanager
    def part(self) -> Iterator[None]:
        """While JAX traces one callable: the cells made in it are forgotten with it."""
        outer, self._own = self._own, dict(self._own)
        try:
            yield
        finally:
            self._own = outer

    def read(self, variable: Handle, *, flows: bool = True) -> Handle:  # noqa: ARG002
        """Return the Variable as this trace knows it: one of its own as it is, for a captured one its stand-in."""
        variable = itself(variable)
        cell = variable._cell
        key = id(cell)
        if key in self._own or key in self._standing or is_scalar(cell[0]):
            return variable
        stand_in = self.stand_ins.get(key)
        if stand_in is None:
            position = self._expected.get(key)
            if position is not None:
                value = self._inputs[position]
            else:
                self.unknown[key] = variable
                self._met.append(cell)
                value = placeholder(variable._place.kind.aval) if cell[0] is None else cell[0]
            stand_in = [value]
            if cell[0] is None and position is None:
                self.adopt(stand_in)  # a placeholder belongs to the part of the trace that meets it
            else:
                self.stand_ins[key] = stand_in
                self._standing.add(id(stand_in))
        known_as: Handle = handle(variable._segment, variable._place, stand_in)
        if variable._segment is None and variable._place.kind.requires_grad:  # a sweep inside finds the leaf itself
            known_as._extra = Extra()
            known_as._extra.node = record.node_of(variable)
        return known_as

    def missed(self) -> list[Any]:
        """Unknown Variables that are pending, or that require grad and are held outside the trace (which has ended).

        Constants that somebody outside holds are among them where ``constants`` says so: a trace around this one, which outlives the call,
        is to meet them.  Else they can stay constants, for this call: the trace is made anew where one was met (``foreign``).
        """
        unknown, self.unknown = list(self.unknown.values()), {}
        flags = [a or b for a, b in zip(held(unknown), held([v._cell for v in unknown], by=1), strict=True)]
        self.foreign = any(flags)
        kinds = [v._place.kind for v in unknown]
        return [
            v
            for v, k, flag in zip(unknown, kinds, flags, strict=True)
            if v._cell[0] is None or (flag and (self.constants or k.requires_grad or k.unrecorded))
        ]


def held(objects: list[Any], by: int = 0) -> list[bool]:
    """Tell which objects somebody else holds, beside this list and as many known holders."""
    return [n > _ALONE + by for n in map(sys.getrefcount, objects)]


_ALONE = max(map(sys.getrefcount, [object(), object()]))


def placeholder(aval: Any) -> jax.Array:
    """Return a traced value of this shape and dtype, for a trace that will be made again."""
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return lax.broadcast(random.key(0), aval.shape)
    return lax.broadcast(lax.convert_element_type(0, aval.dtype), aval.shape)


class Trace(NamedTuple):
    """A traced callable.

    Attributes:
        jaxpr: its program.
        shapes: the tree of its results.
        captured: the captured Variables, which follow its own inputs.
        used: which inputs it was traced with those are.
        repeatable: whether it holds no values of other Variables, and has no effects.

    """

    jaxpr: ClosedJaxpr
    shapes: Any
    captured: list[Any]
    used: list[int]
    repeatable: bool


def trace_capturing(fun: Callable[..., Any], avals: Sequence[Any], callables: Sequence[Any]) -> Trace:
    """Trace ``fun`` on inputs of the given shapes and dtypes, and find which Variables it captures."""
    known = list({id(v._cell): v for v, _ in Reach(callables).variables.values()}.values())
    for attempt in range(_ATTEMPTS):
        captures = Captures(known)

        def run(*arrays: jax.Array, captures: Captures = captures) -> object:
            with captures:
                captures.begin(arrays[len(avals) :])
                return fun(*arrays[: len(avals)])

        STATS.traces += 1
        jaxpr, shapes = trace(run, *avals, *[v._place.kind.aval for v in known])
        used = captures.used
        # One that every trace makes anew stays a constant in the end.
        captures.constants = LOCAL.scope.trace is not NOBODY and attempt < _ATTEMPTS - 1
        missed = captures.missed()
        if attempt:  # a Variable that is made anew at every trace belongs to none
            missed = [v for v in missed if v._cell[0] is None or v._extra is None or v._extra.inside is not True]
        if not missed:
            repeatable = not captures.foreign and not jaxpr.effects
            return Trace(jaxpr, shapes, [known[i] for i in used], [*range(len(avals)), *[len(avals) + i for i in used]], repeatable)
        known = [*[known[i] for i in used], *missed]
    msg = (
        f"the function captured other Variables at each of {_ATTEMPTS} traces; make them outside of it, and pass them or capture the "
        "same ones"
    )
    raise TapeRuntimeError(msg)
