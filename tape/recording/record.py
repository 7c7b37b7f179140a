"""Recording: an op on Variables becomes an entry of the pending segment, and runs nothing.

A structure recorded before is found again on the trie: one look-up per entry gives its place, shape and dtype.  While op hooks watch, the
segment's epoch is never the present one between entries, so that each of them is recorded in the slow way, where the hooks are called.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import jax
import jax.errors

from tape import errors, jaxapi
from tape.configuration import CHANGES
from tape.errors import TapeError
from tape.graph import boundary, constants
from tape.graph.constants import constant, handle, leaf, no_array, scalar
from tape.graph.scalars import SMALL
from tape.graph.scope import LOCAL, close, watched
from tape.graph.segment import (
    Cell,
    Handle,
    Segment,
    SegmentClosedError,
    TracerMetError,
    end_of,
    inherit_doubts,
    made_at,
    node_of,
    still_open,
)
from tape.graph.trie import State
from tape.programs.failures import check_slots

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tape.ops.kernel import Op

__all__ = [
    "CONCRETE",
    "connect",
    "constant",
    "current",
    "handle",
    "leaf",
    "no_array",
    "node_of",
    "place_in",
    "record",
    "record_mixed",
    "record_number",
    "record_one",
    "record_two",
    "scalar",
]


_variable_type: type[Handle] = Handle
_new = object.__new__
_run_pending: Callable[[Segment, str], None]
_record_at_once: Callable[[Any, Sequence[Handle]], Any]
_record_staged: Callable[[Any, Sequence[Handle]], Any]


def connect(
    variable_type: type[Handle],
    run_pending: Callable[[Segment, str], None],
    record_at_once: Callable[[Any, Sequence[Handle]], Any],
    record_staged: Callable[[Any, Sequence[Handle]], Any],
) -> None:
    """Tell the recorder what it returns, how a pending segment is run, and who records what runs at once, and tracers (in layers above)."""
    global _variable_type, _run_pending, _record_at_once, _record_staged  # noqa: PLW0603 - set once, at import
    _variable_type = variable_type
    constants.connect(variable_type)
    _run_pending = run_pending
    _record_at_once = record_at_once
    _record_staged = record_staged


def current() -> Segment:
    """Return this thread's pending segment, a new one where there is none that fits."""
    local = LOCAL
    segment = local.segment()
    if segment is not None:
        if still_open(segment):
            if segment.state.mode != local.scope.mode:
                segment.state = segment.state.switched(local.scope.mode)
            return segment
        close(segment)  # where it is pending, it runs when somebody looks at it
    segment = Segment(local.scope.mode)
    if not local.scope.eager:
        local.segment = weakref.ref(segment)
    return segment


def place_in(segment: Segment, variable: Handle) -> int:
    """Return the variable's slot in ``segment``, entering it as a leaf where it is not part of it.

    Raises:
        TracerMetError: the variable's value is a JAX tracer (the caller then evaluates at once).
        SegmentClosedError: this thread can no longer record in ``segment`` (the caller then begins again).

    """
    if variable._segment is segment:
        return variable._place.slot
    cell = variable._cell
    slot = segment.entered.get(id(cell))
    if slot is not None:
        return slot
    return _enter(segment, variable)


CONCRETE: set[type] = set()  # types of values met that are no tracers: a look-up is quicker than isinstance


def _enter(segment: Segment, variable: Handle) -> int:
    """Enter a Variable of another segment, or of none, as a leaf."""
    cell, origin, place = variable._cell, variable._segment, variable._place  # at once: another thread may rebind it
    value = cell[0]
    if value.__class__ not in CONCRETE:
        if value is None:
            waiting = boundary.awaited(cell, origin, place)
            if waiting.trace is not None and segment.pending and LOCAL.segment() is segment:
                raise TracerMetError
            _run_pending(waiting, "used elsewhere")
            value = cell[0]
            if value is None:
                check_slots(waiting, (place.slot,))
                assert value is not None, "a cell that its segment does not know"
        if boundary.is_abstract(value):
            raise errors.ConcretizationError(boundary.no_value(value))
        if not isinstance(value, jaxapi.Tracer):
            CONCRETE.add(value.__class__)
        elif segment.pending and LOCAL.segment() is segment:
            raise TracerMetError
    kind = place.kind
    state = segment.state
    child = state.next.get(kind)
    if child is None:
        child = state.leaf(kind)
    slot: int = child.slots[0]
    if kind.requires_grad or kind.unrecorded:
        LOCAL.scope.forward.enter(segment, slot, cell, origin, place.slot)
    if kind.requires_grad:
        if origin is not None:
            end = end_of(origin, place.slot)
            segment.origins[slot] = (origin, place.slot) if end is None else end
            if origin.released or origin.asked or origin.state.hazards or origin.doubts[0]:
                inherit_doubts(segment, origin)
            if end is None and origin.serial > segment.serial:  # recorded at once, or by another thread, while this one was pending
                segment.serial = next(Segment.serials)
        else:
            extra = variable._extra
            segment.origins[slot] = extra.node if extra is not None and extra.node is not None else node_of(variable)
    elif kind.unrecorded:
        segment.taken[slot] = made_at(place, origin)
    key = id(cell)
    while segment.epoch is not CHANGES.epoch:
        if watched() or not still_open(segment):
            raise SegmentClosedError
    segment.state = child
    segment.leaves.append(cell)  # in the same breath: see Segment
    segment.entered[key] = slot
    return slot


def record(op: Any, inputs: Sequence[Handle]) -> Any:
    """Record one entry and return its result: a Variable, or the tree of Variables that the op returns.

    Args:
        op: an Op (or what has its ``kernel`` method), or a Kernel where input shapes are known to fit.
        inputs: Variables.

    Raises:
        TapeError: shapes or dtypes do not fit (with JAX's own message and the builtin class that JAX raises).

    """
    # The hot path. Everything that is not needed for a structure met before is off it, in functions of its own.
    segment = LOCAL.segment()
    if segment is None or segment.epoch is not CHANGES.epoch:
        if watched():
            return LOCAL.scope.observer.record(op, inputs)
        if LOCAL.scope.eager:
            return _record_at_once(op, inputs)
        if LOCAL.scope.staged and any(v._segment is not None and v._segment.trace is not None for v in inputs):
            return _record_staged(op, inputs)
        segment = current()
    key: list[Any] = [op]
    for v in inputs:
        if v._segment is segment:
            key.append(v._place.slot)
        else:
            slot = segment.entered.get(id(v._cell))
            if slot is None:
                try:
                    slot = _enter(segment, v)
                except TracerMetError:
                    return _record_staged(op, inputs)
                except SegmentClosedError:
                    return record(op, inputs)
            key.append(slot)
    found = tuple(key)
    child = segment.state.next.get(found)
    if child is None:
        child = first_meeting(segment, op, found)
    place = child.place
    if place is None:
        return _record_several(segment, child, op, inputs)
    made = _new(_variable_type)
    made._segment = segment
    made._place = place
    made._cell = cell = [None]
    made._extra = None
    while segment.epoch is not CHANGES.epoch:
        if not still_open(segment):
            return record(op, inputs)
    segment.state = child
    segment.cells[place.slot] = cell
    if child.full:
        run_if_long(segment)
    return made


def record_one(op: Op, a: Handle) -> Any:
    """:func:`record` for one input: the same steps without a loop, which is a third of their time."""
    segment = LOCAL.segment()
    if segment is not None and a._segment is segment:
        child = segment.state.next.get((op, a._place.slot))
        if child is not None and child.quick:
            made = _new(_variable_type)
            made._segment = segment
            made._place = place = child.place
            made._cell = cell = [None]
            made._extra = None
            if segment.epoch is CHANGES.epoch:
                segment.state = child
                segment.cells[place.slot] = cell  # in the same breath: see Segment
                return made
    return record(op, (a,))


def record_two(op: Op, a: Handle, b: Handle) -> Any:
    """:func:`record` for two inputs, one of them pending and the other pending or a leaf."""
    segment = LOCAL.segment()
    if segment is None:
        return record(op, (a, b))
    i: int | None
    j: int | None
    if a._segment is segment:
        i = a._place.slot
    else:
        i = segment.entered.get(id(a._cell))
        if i is None:
            return record(op, (a, b))
    if b._segment is segment:
        j = b._place.slot
    else:
        j = segment.entered.get(id(b._cell))
        if j is None:
            try:
                j = _enter(segment, b)
            except (TracerMetError, SegmentClosedError):
                return record(op, (a, b))
    child: Any = segment.state.next.get((op, i, j))
    if child is None:
        child = first_meeting(segment, op, (op, i, j))
    if not child.quick:
        return record(op, (a, b))
    made = _new(_variable_type)
    made._segment = segment
    made._place = place = child.place
    made._cell = cell = [None]
    made._extra = None
    if segment.epoch is CHANGES.epoch:
        segment.state = child
        segment.cells[place.slot] = cell  # in the same breath: see Segment
        return made
    return record(op, (a, b))


def record_number(op: Op, a: Handle, number: Any, *, first: bool = False) -> Any:
    """:func:`record_two` for a Variable and a number (``first``: in the opposite order), which enters in the same step."""
    segment = LOCAL.segment()
    if segment is not None:
        i = a._place.slot if a._segment is segment else segment.entered.get(id(a._cell))
        state = segment.state
        child = state.next.get(segment.scalars.get(number.__class__))
        if child is not None and i is not None and (number.__class__ is not int or -SMALL <= number < SMALL):
            child = child.next.get((op, state.n_slots, i) if first else (op, i, state.n_slots))
            if child is not None and child.quick:
                made = _new(_variable_type)
                made._segment = segment
                made._place = place = child.place
                made._cell = cell = [None]
                made._extra = None
                entering = [number]
                if segment.epoch is CHANGES.epoch:
                    segment.cells[place.slot] = cell
                    segment.state = child
                    segment.leaves.append(entering)  # in the same breath: see Segment
                    return made
    return record(op, (scalar(number), a) if first else (a, scalar(number)))


def record_mixed(op: Op, inputs: Sequence[Any]) -> Any:
    """:func:`record` for inputs of which some are numbers; these enter in the same step."""
    segment = LOCAL.segment()
    if segment is not None:
        kinds = segment.scalars
        state: Any = segment.state
        key: list[Any] = [op]
        entering = []
        for v in inputs:
            kind = kinds.get(v.__class__)
            if kind is not None:
                key.append(state.n_slots)
                state = state.next.get(kind)
                if state is None or (v.__class__ is int and not -SMALL <= v < SMALL):
                    break
                entering.append([v])
            elif not isinstance(v, Handle):  # of a type that was not met before
                break
            elif v._segment is segment:
                key.append(v._place.slot)
            else:
                slot = segment.entered.get(id(v._cell))
                if slot is None:
                    break
                key.append(slot)
        else:
            child = state.next.get(tuple(key))
            if child is not None and child.quick:
                made = _new(_variable_type)
                made._segment = segment
                made._place = place = child.place
                made._cell = cell = [None]
                made._extra = None
                if segment.epoch is CHANGES.epoch:
                    segment.cells[place.slot] = cell
                    segment.state = child
                    segment.leaves += entering  # in the same breath: see Segment
                    return made
    return record(op, [v if isinstance(v, Handle) else scalar(v) for v in inputs])


def run_if_long(segment: Segment) -> None:
    """Run a segment that has reached its limit, unless a sweep is being written (its cotangents under way would all be results)."""
    if not LOCAL.scope.writing:
        _run_pending(segment, "length")


def _record_several(segment: Segment, child: State, op: Any, inputs: Sequence[Handle]) -> Any:
    """Record an entry with several outputs: make its Variables, in the op's own tree."""
    made = []
    cells: dict[int, Cell] = {}
    for place in child.places[: child.kernel.visible]:  # type: ignore[union-attr]
        variable = _new(_variable_type)
        variable._segment, variable._place, variable._extra = segment, place, None
        variable._cell = cells[place.slot] = [None]
        made.append(variable)
    while segment.epoch is not CHANGES.epoch:
        if not still_open(segment):
            return record(op, inputs)
    segment.state = child
    segment.cells.update(cells)
    if child.full:
        run_if_long(segment)
    return jax.tree.unflatten(child.kernel.tree, made)  # type: ignore[union-attr]


def first_meeting(segment: Segment, op: Any, key: tuple[Any, ...]) -> State:
    """Make the trie state of an entry that was never recorded at this point of this tape."""
    state = segment.state
    slots = key[1:]
    if hasattr(op, "kernel_of"):
        try:
            kernel = op.kernel_of(tuple([state.table[s].kind for s in slots]))
        except TapeError:
            raise
        except jaxapi.CONCRETE_ERRORS:
            raise
        except (TypeError, ValueError, IndexError, NotImplementedError, NameError) as e:
            raise (errors.wrap(e, op.name, [state.table[s].kind.aval for s in slots]) or e) from e
    else:
        kernel = op
    return state.entry(key, op, kernel, slots)
