"""Boundaries: where a value would leave the tape, or the JAX transformation that it belongs to, without its gradient."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import jax

from tape import jaxapi
from tape.bounded import Bounded
from tape.errors import LeakedTracerError
from tape.graph.kinds import differentiable
from tape.graph.scope import LOCAL, within
from tape.graph.segment import Handle, Segment, extra_of
from tape.graph.trie import RECORD
from tape.graph.watcher import NOBODY, Watcher

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tape.graph.boxes import Cell
    from tape.graph.kinds import Place

CUT = (
    "it came out of a JAX transformation (jax.jit, jax.vmap ...) of what requires grad, which cuts the tape; call the function without it, "
    "or with tape.jit or tape.vmap in its place, or make the transformed function an op by interop.lift, or .detach() the result to use it "
    "as a constant"
)


def allowing_captures() -> within:
    """While a function of the tape runs inside a raw JAX function: Variables are looked at as usual."""
    trace = LOCAL.scope.trace
    return within(trace=trace if trace.capturing or trace.guards else NOBODY)


class Caller(Watcher):
    """Whose Python runs: what it brings as an array may depend, unrecorded, on the values that it looked at.

    ``reason`` says why such an array has no derivative, with ``{0}`` for who it is.
    """

    __slots__ = ("_reason", "_recorded", "_who", "looked", "rebinds_names", "writes")

    def __init__(
        self, reason: str, who: str = "", *, rebinds_names: bool = False, recorded: bool = True, writes: Sequence[Handle] = ()
    ) -> None:
        self._reason = reason
        self._recorded = recorded  # the sweep that calls: otherwise what is recorded in it is its own, to which values are constants
        self._who = who
        self.rebinds_names = rebinds_names
        self.writes = writes
        self.looked = False  # at a value through which a gradient flows

    def take(self, variable: Handle) -> None:
        """Note that a Variable's value leaves the tape as an array."""
        if variable._place.kind.requires_grad or variable._place.kind.unrecorded:
            self.looked = True

    def bring(self, value: object) -> bool | str:
        """Return why an array that is brought onto the tape has no derivative there; False where it is a constant."""
        if not self.looked or not differentiable(value) or (not self._recorded and LOCAL.scope.mode == RECORD):
            return False
        return self._reason.format(self._who) if LOCAL.scope.mode == RECORD else True  # otherwise nothing around it is recorded either


class Unrecorded(Caller):
    """A caller in a sweep that is not recorded."""

    __slots__ = ("_caller",)

    def __init__(self, caller: Caller) -> None:
        super().__init__(caller._reason, caller._who, rebinds_names=caller.rebinds_names, recorded=False, writes=caller.writes)
        self._caller = caller
        self.looked = caller.looked

    def take(self, variable: Handle) -> None:
        """Note it for sweeps to come as well."""
        super().take(variable)
        self._caller.take(variable)


def recorded() -> bool:
    """Tell whether the sweep that is being written may be differentiated, by the tape or by JAX."""
    scope = LOCAL.scope
    return scope.mode == RECORD or scope.linear or scope.trace.capturing or bool(scope.staged)


def made_of_looked_at(number: object) -> bool:
    """Tell whether a number of NumPy may be made of a value that was looked at, in what is differentiated: then it counts as an array."""
    scope = LOCAL.scope
    return scope.caller is not NOBODY and scope.mode == RECORD and bool(scope.caller.bring(number))


def made(leaf: Handle) -> None:
    """Have a leaf, the forward of a ``tape.Function`` and whoever traces what is running know that the leaf was made in it."""
    if jaxapi.in_trace():
        met()
        extra = extra_of(leaf)
        if extra.inside is None:
            extra.inside = True
    scope = LOCAL.scope
    scope.forward.make(leaf._cell)
    if scope.trace is not NOBODY and isinstance(leaf._cell[0], jaxapi.Tracer):
        scope.trace.adopt(leaf._cell)


_GONE: Bounded[int, tuple[Cell, Callable[[], str]]] = Bounded(
    "leaked", 1024
)  # by id of the cell: the cell (so that its id stays its own), and what to say, found out when it has to be said


def gone(cell: Cell, what: Callable[[], str]) -> None:
    """Empty the cell of a Variable that outlives the trace in which it was made."""
    cell[0] = None
    _GONE[id(cell)] = (cell, what)


def awaited(cell: Cell, segment: Segment | None, place: Place) -> Segment:
    """Return the segment that an empty cell waits for, given where its Variable says it belongs, or say that this was a trace."""
    lost = _GONE.get(id(cell))
    if lost is not None:
        raise LeakedTracerError(lost[1]())
    waiting = segment or place.segment
    assert waiting is not None, "a leaf without a value"
    return waiting


def is_abstract(value: object) -> bool:
    """Tell whether a Variable holds no value: the shape and dtype that ``jax.eval_shape`` returns, or a tree function's placeholder."""
    return not isinstance(value, (jax.Array, bool, int, float, complex)) and (
        isinstance(value, jax.ShapeDtypeStruct) or not hasattr(value, "__array__")
    )


DELETED = (
    "was deleted, as jax.jit deletes an array that is donated to it (donate_argnums); give the Variable another one (v.value = array), or "
    "donate a copy (jnp.copy(v.value))"
)


def is_deleted(value: object) -> bool:
    """Tell whether a value is an array whose memory was given up."""
    return isinstance(value, jax.Array) and not isinstance(value, jaxapi.Tracer) and value.is_deleted()


def no_value(held: object) -> str:
    """Say that a Variable holds no value."""
    return (
        f"a Variable that holds {held!r} in place of a value (as jax.eval_shape returns it) cannot be computed with; "
        "use its .shape and .dtype, or call the function itself for a value"
    )


def is_traced(variable: Handle) -> bool:
    """Tell whether a Variable's value belongs to a JAX transformation, without looking at it."""
    value = variable._cell[0]
    if value is None:
        return variable._segment is not None and variable._segment.trace is not None
    return isinstance(value, jaxapi.Tracer)


# Where a thread's tape stood when it first met a JAX transformation: the pending segment, its slots, and which number segments had come to.
_MET: weakref.WeakKeyDictionary[Any, tuple[Callable[[], Segment | None], int, int]] = weakref.WeakKeyDictionary()


def met() -> None:
    """Note where the tape stands as it meets the JAX transformation that is running: what is recorded from then on is made in there."""
    trace = jaxapi.current_trace()
    if trace not in _MET:
        segment = LOCAL.segment()
        _MET[trace] = (LOCAL.segment, 0 if segment is None else segment.state.n_slots, next(Segment.serials))


def note_origin(variable: Handle) -> None:
    """Have a Variable that is about to become a leaf, or another result, know whether it was made inside of the running transformation."""
    if jaxapi.in_trace():
        around = [ref for ref in _MET.keyrefs() if made_inside(variable, ref())]
        extra_of(variable).inside = made_inside(variable) or frozenset(around)


def made_inside(variable: Handle, trace: Any = None) -> bool:
    """Tell whether a Variable without a tracer was made inside of a JAX transformation, of the innermost one that is running by default."""
    inside: Any = None if variable._extra is None else variable._extra.inside
    trace = trace or jaxapi.current_trace()
    if inside is not None:
        return inside is True or weakref.ref(trace) in inside
    segment, before = variable._segment, _MET.get(trace)
    if segment is None or before is None:
        return False
    pending, slots, serial = before
    return variable._place.slot >= slots if pending() is segment else segment.serial > serial


def may_take(variable: Handle, value: object) -> bool:
    """Tell whether a Variable may hold a value: one of a JAX transformation only if it was made inside."""
    traced = is_traced(value) if isinstance(value, Handle) else isinstance(value, jaxapi.Tracer)
    return not traced or is_traced(variable) or made_inside(variable)


def check_no_leak(function: str, variable: Handle, value: object) -> None:
    """Refuse to store a tracer (or what will be one) in a Variable from outside the running JAX transformation."""
    if LOCAL.scope.trace.write(variable) or may_take(variable, value):
        return
    aval = variable._place.kind.aval
    msg = (
        f"{function}: a value that exists only inside a JAX transformation would be stored in a Variable from outside (shape {aval.shape}, "
        f"dtype {aval.dtype}); return it from the transformed function (tape.gradients returns gradients), or pass the Variable's value in"
    )
    raise LeakedTracerError(msg)
