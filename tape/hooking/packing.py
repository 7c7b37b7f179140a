"""Packing: what becomes of the values that a segment keeps for sweeps, in contexts that leave that to the user's functions or to the host.

A segment of such a context runs like any other.  Then each value that a sweep would read is handed to ``pack``, and what comes back takes
its place: a :class:`Packed` where a cell was, which a sweep opens.  Slots, kinds and origins stay, so it keeps its place in the graph.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.errors import TapeTypeError, TapeValueError, UnrecordedGradientError, check_callable
from tape.graph.boxes import Box, Cell
from tape.graph.constants import known_array
from tape.graph.kinds import differentiable
from tape.graph.scope import LOCAL, no_segment, parked, set_scope
from tape.graph.segment import Handle, LeafNode, Run, Segment
from tape.graph.trees import leaves_of
from tape.graph.trie import CONSTANT, RECORD, State
from tape.graph.watcher import NOBODY
from tape.modes import Mode
from tape.programs.failures import naming
from tape.programs.program import look, run_pending
from tape.programs.retention import leaf_slots
from tape.recording import record


class Packing:
    """The hooks of one context, as its segments know them."""

    __slots__ = ("_trace", "hooks", "pack", "unpack")

    def __init__(self, pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> None:
        self.pack = pack
        self.unpack = unpack
        self.hooks = (*_identity(pack), *_identity(unpack))
        self._trace = jaxapi.current_trace()

    def applies(self) -> bool:
        """Tell whether what is recorded now belongs to the context: it is in the JAX transformation in which that was entered."""
        return jaxapi.current_trace() is self._trace

    def packed(self, value: jax.Array) -> Packed:
        """Pack a value; one that the same hooks have packed before is not packed again while that is kept."""
        key = (id(value), *self.hooks)
        known = _KNOWN.get(key)
        if known is None or not known.holds(value):
            known = _KNOWN[key] = Packed(self, value)
        return known

    def call(self, concrete: bool, function: Callable[[Any], Any], given: object) -> Any:
        """Call one of the hooks, apart from what is being recorded; return a Variable's value, run, and anything else as it is."""
        trace = NOBODY if concrete or not LOCAL.scope.trace.capturing else LOCAL.scope.trace
        mode = CONSTANT if concrete else RECORD  # second derivatives of JAX and of steps of tape.jit go through what hooks made
        with parked(mode=mode, unseen=True, staged=[], packing=None, trace=trace), self._place(concrete):
            result = function(given)
            for segment in _recording():  # nothing that pack returned waits for the value that it was given
                run_pending(segment, "saved values")
            return result

    def _place(self, concrete: bool) -> contextlib.AbstractContextManager[None]:
        """Where hooks run: outside of any JAX transformation for concrete values, otherwise in that of the values."""
        if not concrete:
            return jaxapi.within(self._trace)
        return jaxapi.ensure_compile_time_eval() if jaxapi.in_trace() else contextlib.nullcontext()

    def take(self, segment: Segment, live: Iterable[int], read: Sequence[int]) -> None:
        """Put what ``pack`` returns in place of the values that a segment keeps (with its lock held): of all of them, or of none.

        The segment has run; Variables hold the ``live`` slots, and a sweep reads values of those in ``read`` (ascending, leaves too).
        """
        state, run = segment.state, segment.run
        assert run is not None
        path = state.path()
        leaves = leaf_slots(state)
        cells = {**dict(zip(leaves, segment.leaves, strict=True)), **run.saved}
        own = {slot for step in path if step.ends for slot in step.slots if isinstance(segment.origins.get(slot), LeafNode)}
        kept: dict[int, Any] = {}
        for slot in read:
            value = cells[slot][0]
            if slot not in own and packable(value):
                with naming(state, slot, "pack, which was given a value of"):
                    kept[slot] = self.packed(value)
        saved = [tree for slot, context in segment.functions.items() for tree in self._saved(context, state, slot)]
        boxes = {slot: Box(content) for slot, content in kept.items()}
        for slot in live:
            if state.table[slot].kind.requires_grad and slot not in own:
                boxes[slot] = Box(kept.get(slot), value=cells[slot][0])
        inputs: list[Any] = []
        for slot in leaves:
            origin = segment.origins.get(slot)
            way = origin[0].way(origin[1]) if isinstance(origin, tuple) else None
            if slot not in own and packable(cells[slot][0]):  # also what no sweep reads
                inputs.append(Box(kept.get(slot), way=way))
            else:
                inputs.append(cells[slot])
        segment.leaves = inputs
        segment.run = Run({slot: boxes.get(slot, cells[slot]) for slot in run.saved if slot in read or slot in boxes}, boxed=True)
        for tree, values in saved:
            tree.leaves = values

    def _saved(self, context: Any, state: State, slot: int) -> Sequence[tuple[Any, list[Any]]]:
        """Pack what a ``tape.Function`` saved for its backward, whose entry gives ``slot``."""
        with naming(state, slot, "pack, which was given what was saved by"):
            return context._packed(self)  # type: ignore[no-any-return]

    def take_context(self, segment: Segment, context: object, slot: int) -> None:
        """:meth:`take` for what a ``tape.Function`` saved, where its entry has run already."""
        for tree, values in self._saved(context, segment.state, slot):
            tree.leaves = values

    def take_entry(self, segment: Segment) -> None:
        """:meth:`take` for a segment of one entry that ran at once, whose results somebody holds."""
        state = segment.state
        forward = (*state.inputs, *state.slots)
        assert state.kernel is not None
        self.take(segment, state.slots, sorted({forward[i] for i in state.kernel.residuals()}))


def _identity(function: object) -> tuple[int, int]:
    """Tell functions apart, while they are there; each access to a method makes a new object of the same."""
    return (id(getattr(function, "__self__", None)), id(getattr(function, "__func__", function)))


def packable(value: object) -> TypeGuard[jax.Array]:
    """Tell whether a value is an array that a hook can do something with: neither a number of Python nor a typed PRNG key."""
    return isinstance(value, jax.Array) and not jnp.issubdtype(value.dtype, jax.dtypes.extended)


class Packed:
    """What is kept of one value: what ``pack`` returned for it, in place of a cell."""

    __slots__ = ("__weakref__", "_aval", "_concrete", "_content", "_packing", "_source", "_tie")

    def __init__(self, packing: Packing, value: jax.Array) -> None:
        self._packing = packing
        self._aval = jax.typeof(value)
        self._concrete = not isinstance(value, jaxapi.Tracer)
        self._source = weakref.ref(value)
        self._content = packing.call(self._concrete, packing.pack, record.leaf(value))
        # Of a traced value that is kept as integers, something by which a second derivative meets it: they have no derivative.
        self._tie: Any = None
        if not self._concrete and differentiable(value) and value.size and not any(map(differentiable, self.arrays())):
            with jaxapi.within(packing._trace):
                self._tie = value.ravel()[0]

    def holds(self, value: jax.Array) -> bool:
        """Tell whether it was made of this value, and not of one that had its id before."""
        return self._source() is value

    def opened(self) -> Cell:
        """Return a cell with the value again."""
        value = self._packing.call(self._concrete, lambda content: _array(self._packing.unpack(content)), self._content)
        if self._tie is not None and isinstance(value, jax.Array):
            value = _underivable(value, self._tie)
        aval = self._aval
        what = f"of a saved value of shape {aval.shape}, dtype {aval.dtype}"
        if not isinstance(value, jax.Array):
            msg = f"saved_value_hooks: unpack made {type(value).__name__} {what}; return a Variable or an array of that shape and dtype"
            raise TapeTypeError(msg)
        if value.shape != aval.shape:
            msg = f"saved_value_hooks: unpack made shape {value.shape} {what}; have pack keep the shape, and .reshape(shape) in unpack"
            raise TapeValueError(msg)
        if value.dtype != aval.dtype:
            msg = f"saved_value_hooks: unpack made dtype {value.dtype} {what}; have pack keep the dtype, and .astype(dtype) in unpack"
            raise TapeTypeError(msg)
        cell = [value]
        LOCAL.scope.trace.adopt(cell)
        return cell

    def arrays(self) -> list[Any]:
        """The arrays in what is kept."""
        leaves = leaves_of(self._content)
        return [x._cell[0] if isinstance(x, Handle) else x for x in leaves]


# What is kept, by the ids of the value and of the hooks; a value that several segments read is packed once.
_KNOWN: weakref.WeakValueDictionary[tuple[int, ...], Packed] = weakref.WeakValueDictionary()


def _array(value: object) -> object:
    """Return the array that unpack made; one of NumPy is copied, for its owner may change it."""
    if isinstance(value, Handle):
        return look(value)
    return known_array(value, copy=True) if isinstance(value, (np.ndarray, np.generic)) else value


@jax.custom_jvp
def _underivable(value: jax.Array, tie: jax.Array) -> jax.Array:
    """Return a value that has no derivative, and is met where one by ``tie`` is asked for."""
    return jnp.where(jnp.isnan(tie), value, value)


@_underivable.defjvp
def _refuse(_primals: object, _tangents: object) -> Any:
    msg = (
        "a second derivative goes through a value that hooks for saved values have kept as integers in a JAX transformation or a step of "
        "tape.jit, and would be lost there; have pack return floating point numbers, or leave the context out"
    )
    raise UnrecordedGradientError(msg)


def _recording() -> list[Segment]:
    """Return the segments in which this thread records now."""
    return [segment for ref in (LOCAL.segment, *LOCAL.scope.staged) if (segment := ref()) is not None]


class _Context(Mode):
    """A context with hooks for saved values."""

    _field = "packing"

    def __init__(self, pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> None:
        super().__init__()
        self._pack = pack
        self._unpack = unpack

    def _enter(self) -> None:
        self._leave(Packing(self._pack, self._unpack))

    def _leave(self, old: Packing | None) -> None:
        LOCAL.segment = no_segment  # what is pending there runs when somebody looks at it
        set_scope(LOCAL.scope.but(packing=old, staged=[]))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        segments = _recording()
        super().__exit__(kind, error, trace)
        for segment in segments if kind is None else ():
            run_pending(segment, "saved values")


class saved_value_hooks(_Context):  # noqa: N801 - a context manager, as those of tape.modes
    """Have ``pack`` make what is kept of each value that a sweep will read, and ``unpack`` make the value again when one reads it.

    Which values: those of entries recorded inside the context, as far as a sweep from a Variable that is held at its end reads them, and
    the inputs of these entries, arrays and results from outside of the context, that it reads.  This does not depend on what else Variables
    hold.  Leaves that require grad (parameters) are left out, for their Variables hold them anyway, and so are Python numbers, typed PRNG
    keys and what is computed again because that is cheaper.  Values may be of any dtype (masks and indices are).  The values inside loops,
    checkpoints and lifted functions that are kept for the sweep are among them, and so are the Variables and JAX arrays that a
    ``tape.Function`` saves (with ``ctx.save_for_backward``; Variables in attributes of ``ctx`` too), which are unpacked whenever its
    backward reads ``ctx.saved``.

    When: what the context recorded runs when it ends (at the latest: somebody may look earlier), and then ``pack`` is called, in the order
    of the tape and once for a value however many entries read it; ``unpack`` is called in every sweep that reads the value.  Forward and
    reverse are programs of their own, which costs what XLA would have fused across them.  A sweep unpacks what one context has kept
    together: for least memory, enter one for each layer.  Contexts nest, and the innermost applies.  Where ``pack`` raises, the values of
    that context stay as they are, and can be swept; where ``unpack`` raises, no ``.grad`` changes.

    In JAX transformations: inside a function under ``tape.jit``, ``jax.jit`` and others (and a function given to ``tape.lax.scan`` or
    ``tape.checkpoint``) a context sees traced values, so that what the hooks compute becomes part of the program, and second derivatives
    differentiate it: a ``round`` in ``pack`` has the derivative zero there, and what was kept as integers none, which is said.  One that
    is entered around such a function does not apply inside it.

    Args:
        pack: called with a constant Variable; may return anything.
        unpack: called with what ``pack`` returned; returns a Variable or array of the value's shape and dtype.

    Raises:
        TapeTypeError: ``pack`` or ``unpack`` cannot be called; or, in a sweep, ``unpack`` returned no array or another dtype.
        TapeValueError: in a sweep, ``unpack`` returned another shape.
        UnrecordedGradientError: in a second derivative, what was kept of a traced value are integers.

    Example:
        >>> import tape, tape.numpy as tnp
        >>> w = tape.Variable([[1.0, 2.0], [3.0, 4.0]])
        >>> kept = 0
        >>> def count(value):
        ...     global kept
        ...     kept += value.nbytes
        ...     return value
        >>> with tape.saved_value_hooks(count, lambda value: value):
        ...     y = tnp.tanh(w @ tnp.ones((2, 3))).sum()
        >>> kept  # the product, from which the sweep makes the tangent again
        24
        >>> y.backward()

    """

    def __new__(cls, pack: object, unpack: object) -> Any:  # noqa: ARG004 - they are for __init__
        """Take functions as arguments, which other modes refuse."""
        return object.__new__(cls)

    def __init__(self, pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> None:
        for name, function in (("pack", pack), ("unpack", unpack)):
            check_callable("saved_value_hooks", function, f"{name} must be callable")
        super().__init__(pack, unpack)


class save_on_host(_Context):  # noqa: N801
    """Keep what a sweep will read in the memory of the host, and bring it back when one does.

    It is :class:`saved_value_hooks` with hooks that copy; which values, when and at what cost is said there.

    Example:
        >>> import tape, tape.numpy as tnp
        >>> w, x = tape.Variable([[1.0, 2.0], [3.0, 4.0]]), tnp.ones((2, 3))
        >>> for _ in range(3):
        ...     with tape.save_on_host():
        ...         x = tnp.tanh(w @ x)
        >>> x.sum().backward()

    """

    def __init__(self) -> None:
        super().__init__(lambda value: jaxapi.to_host(look(value)), jaxapi.from_host)
