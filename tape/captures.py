"""Captures: the Variables that a callable uses without being given them, found while it is traced.

Inside the trace a captured Variable stands for an input of the trace.  Which ones are captured is first guessed from what the callable
closes over; where the trace meets another one that somebody outside holds, it is made again with that one among the inputs.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax, random

from tape import record
from tape.errors import LeakedTracerError, TapeRuntimeError
from tape.jaxapi import Tracer, trace
from tape.record import handle
from tape.segment import LOCAL, Cell, Extra, Handle, no_segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tape.jaxapi import ClosedJaxpr

__all__ = ["Captures", "Trace", "trace_capturing"]

_ATTEMPTS = 5
_GUESS_LIMIT = 2000  # objects looked through for a guess
_PYTHON_SCALARS = frozenset({bool, int, float, complex})


class Captures:
    """One trace of a callable; a context manager, in which every op on Variables is evaluated in the trace.

    Args:
        known: Variables expected to be captured.

    """

    def __init__(self, known: Sequence[Any]) -> None:
        self.known = list(known)
        self.used: list[int] = []  # positions of the known Variables that were met, once the trace has ended
        self.unknown: dict[int, Any] = {}  # id(cell) -> Variable that was met unexpectedly
        self._before = [(v, v._segment, v._place, v._cell) for v in known]
        self._expected = {id(v._cell): i for i, v in enumerate(known)}
        self._inputs: Sequence[Any] = ()
        self._own: dict[int, Cell] = {}  # cells made in this trace; kept, so that their ids stay theirs
        self._stand_ins: dict[int, Cell] = {}  # id(captured cell) -> cell of the traced value
        self._standing: set[int] = set()  # ids of those
        self._hooks: list[tuple[dict[int, Any], Any]] = []  # registered in this trace and not called so far
        self._old: Any = None

    def __enter__(self) -> None:
        self._old = (LOCAL.captures, LOCAL.eager, LOCAL.segment, LOCAL.lifting)
        LOCAL.captures, LOCAL.eager, LOCAL.lifting = self, True, None
        LOCAL.segment = no_segment  # what is pending outside stays so

    def __exit__(self, kind: object, *_: object) -> None:
        LOCAL.captures, LOCAL.eager, parked, LOCAL.lifting = self._old
        segment = parked()
        LOCAL.segment = parked if segment is not None and segment.pending else no_segment
        leaked = None
        for v, origin, place, cell in self._before:
            if v._cell is not cell and isinstance(v._cell[0], Tracer) and not isinstance(cell[0], Tracer):
                v._segment, v._place, v._cell = origin, place, cell
                leaked = v
        self.used = [i for key, i in self._expected.items() if key in self._stand_ins]
        self._before.clear()
        self._own.clear()
        self._stand_ins.clear()
        self._inputs = ()
        waiting = next((hook for hooks, hook in self._hooks if any(h is hook for h in hooks.values())), None)
        self._hooks.clear()
        if waiting is not None and kind is None:
            msg = (
                f"hook {getattr(waiting, '__name__', waiting)!r} was registered on a Variable inside a traced function, where no sweep comes by: it goes "
                "through the function as one entry; register it outside, on an argument or a result of the function"
            )
            raise TapeRuntimeError(msg)
        if leaked is not None:
            aval = leaked._place.kind.aval
            msg = (
                f"a traced function assigned to a Variable that it captures (shape {aval.shape}, dtype {aval.dtype}); the new value exists "
                "only while the function is traced: return it, and assign it outside"
            )
            raise LeakedTracerError(msg)

    def begin(self, inputs: Sequence[Any]) -> None:
        """Take the traced values of the known Variables."""
        self._inputs = inputs

    def adopt(self, cell: Cell) -> None:
        """Note a cell that was made in this trace."""
        self._own[id(cell)] = cell

    def watched(self, variable: Any, hooks: dict[int, Any], hook: Callable[..., Any]) -> Callable[..., Any]:
        """Return a hook for ``variable`` of which this trace sees whether a sweep inside it comes by."""
        if id(variable._cell) not in self._own:
            return hook

        @functools.wraps(hook, updated=())
        def watching(gradient: Any) -> Any:
            self._hooks = [known for known in self._hooks if known[1] is not watching]
            return hook(gradient)

        self._hooks.append((hooks, watching))
        return watching

    @contextlib.contextmanager
    def part(self) -> Iterator[None]:
        """While JAX traces one callable: the cells made in it are forgotten with it."""
        outer, self._own = self._own, dict(self._own)
        try:
            yield
        finally:
            self._own = outer

    def leaf(self, value: Any, *, requires_grad: bool) -> Any:
        """Make a Variable of this trace."""
        made = record.leaf(value, requires_grad=requires_grad)
        self.adopt(made._cell)
        return made

    def inside(self, variable: Any) -> Any:
        """Return the Variable as this trace knows it: one of its own as it is, for a captured one its stand-in."""
        cell = variable._cell
        key = id(cell)
        if key in self._own or key in self._standing or type(cell[0]) in _PYTHON_SCALARS:
            return variable
        stand_in = self._stand_ins.get(key)
        if stand_in is None:
            position = self._expected.get(key)
            if position is not None:
                value = self._inputs[position]
            else:
                self.unknown[key] = variable
                self._before.append((variable, variable._segment, variable._place, cell))
                value = _placeholder(variable._place.kind.aval) if cell[0] is None else cell[0]
            stand_in = [value]
            if cell[0] is None and position is None:
                self.adopt(stand_in)  # a placeholder belongs to the part of the trace that meets it
            else:
                self._stand_ins[key] = stand_in
                self._standing.add(id(stand_in))
        made = handle(variable._segment, variable._place, stand_in)
        if variable._segment is None and variable._place.kind.requires_grad:  # a sweep inside finds the leaf itself
            made._extra = Extra()
            made._extra.node = record.node_of(variable)
        return made

    def missed(self) -> list[Any]:
        """Unknown Variables that are pending, or that require grad and are held outside the trace (which has ended).

        Other constants can stay constants: the trace is made anew at every call.
        """
        cells = {key: v._cell for key, v in self.unknown.items()}
        held = [n > _ALONE[0] for n in map(sys.getrefcount, self.unknown.values())]
        shared = [n > _ALONE[1] for n in map(sys.getrefcount, cells.values())]
        flags = zip(self.unknown.values(), held, shared, strict=True)
        return [v for v, h, s in flags if v._cell[0] is None or (v._place.kind.requires_grad and (h or s))]


def _alone() -> tuple[int, int]:
    """Reference counts of a Variable and its cell that nobody but ``unknown`` holds, as :meth:`Captures.missed` sees them."""
    unknown: dict[int, Any] = {0: record.leaf(jnp.zeros(()))}
    cells = {0: unknown[0]._cell}
    return next(iter(list(map(sys.getrefcount, unknown.values())))), next(iter(list(map(sys.getrefcount, cells.values()))))


_ALONE = (0, 0)


def _calibrate() -> None:
    global _ALONE  # noqa: PLW0603 - set at the first trace, since it makes an array
    if _ALONE == (0, 0):
        _ALONE = _alone()


def _placeholder(aval: Any) -> Any:
    """Return a traced value of this shape and dtype, for a trace that will be made again."""
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return lax.broadcast(random.key(0), aval.shape)
    return lax.broadcast(lax.convert_element_type(0, aval.dtype), aval.shape)


class Trace:
    """A traced callable: its jaxpr, the tree of its results, and the captured Variables, which follow its own inputs."""

    def __init__(self, jaxpr: ClosedJaxpr, shapes: Any, captured: list[Any], used: list[int]) -> None:
        self.jaxpr = jaxpr
        self.shapes = shapes
        self.captured = captured
        self.used = used


def trace_capturing(fun: Callable[..., Any], avals: Sequence[Any], callables: Sequence[Any]) -> Trace:
    """Trace ``fun`` on inputs of the given shapes and dtypes, and find which Variables it captures.

    Args:
        fun: a function of arrays, which calls ``callables``.
        avals: shapes and dtypes of its arguments.
        callables: the user's functions, in which to look for captured Variables first.

    Raises:
        LeakedTracerError: the callable assigned to a captured Variable.
        TapeRuntimeError: it captured other Variables at every trace.

    """
    _calibrate()
    known = list({id(v._cell): v for v in _guess(callables)}.values())
    for attempt in range(_ATTEMPTS):
        captures = Captures(known)

        def run(*arrays: Any, captures: Captures = captures) -> Any:
            with captures:
                captures.begin(arrays[len(avals) :])
                return fun(*arrays[: len(avals)])

        jaxpr, shapes = trace(run, *avals, *[v._place.kind.aval for v in known])
        used = captures.used
        missed = captures.missed()
        if attempt:  # a Variable that is made anew at every trace belongs to none
            missed = [v for v in missed if v._cell[0] is None or v._extra is None or not v._extra.inside]
        if not missed:
            return Trace(jaxpr, shapes, [known[i] for i in used], [*range(len(avals)), *[len(avals) + i for i in used]])
        known = [*[known[i] for i in used], *missed]
    msg = f"the function captured other Variables at each of {_ATTEMPTS} traces; make them outside of it, and pass them or capture the same ones"
    raise TapeRuntimeError(msg)


def _guess(callables: Sequence[Any]) -> Iterator[Any]:
    """Find Variables that callables close over, hold, or name as globals."""
    stack = list(callables)
    seen: set[int] = set()
    while stack and len(seen) < _GUESS_LIMIT:
        value = stack.pop()
        if isinstance(value, Handle):
            yield value
            continue
        if id(value) in seen or isinstance(value, (type, types.ModuleType, str, bytes, int, float)):
            continue
        seen.add(id(value))
        stack.extend(_contents(value))


def _contents(value: Any) -> list[Any]:
    """What a function, container or object holds."""
    if isinstance(value, types.FunctionType):
        names = _global_names(value.__code__)
        found = [value.__globals__[n] for n in names if n in value.__globals__]
        found = [v for v in found if isinstance(v, (Handle, list, tuple, dict, types.FunctionType)) or _is_plain_object(v)]
        for cell in value.__closure__ or ():
            try:
                found.append(cell.cell_contents)
            except ValueError:  # not yet filled
                continue
        return [*found, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    if _is_plain_object(value):
        call = getattr(type(value), "__call__", None)  # noqa: B004 - its closure is wanted
        return [*vars(value).values(), *([call] if isinstance(call, types.FunctionType) else [])]
    return []


def _is_plain_object(value: Any) -> bool:
    return (
        hasattr(value, "__dict__")
        and not isinstance(value, (type, types.ModuleType))
        and not type(value).__module__.startswith(("jax", "numpy"))
    )


@functools.lru_cache(maxsize=4096)
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.update(_global_names(constant))
    return tuple(sorted(names))
