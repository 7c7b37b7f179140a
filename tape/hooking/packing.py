"""Packing: what becomes of the values that a segment keeps for sweeps, where :func:`tape.saved_value_hooks` leaves that to its user.

A segment of such a context runs like any other.  Then each value that a sweep would read is handed to ``pack``, and what comes back takes
its place: a :class:`Packed` where a cell was, which a sweep opens.  Slots, kinds and origins stay, so the value keeps its place in the graph.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.errors import TapeTypeError, TapeValueError
from tape.graph.boxes import Box
from tape.graph.scope import LOCAL, parked
from tape.graph.segment import Cell, Handle, LeafNode, Segment
from tape.graph.trie import CONSTANT
from tape.graph.watcher import NOBODY
from tape.programs.failures import naming
from tape.programs.program import look, run_pending
from tape.programs.retention import leaf_slots
from tape.recording import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tape.graph.trie import State

__all__ = ["Packed", "Packing", "packable", "recording", "run_segments"]


class Packing:
    """The hooks of one context, as its segments know them.

    Args:
        pack: makes of a constant Variable what is to be kept.
        unpack: makes an array or a Variable of that again.

    """

    __slots__ = ("_trace", "hooks", "pack", "unpack")

    def __init__(self, pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> None:
        self.pack = pack
        self.unpack = unpack
        self.hooks = (*_identity(pack), *_identity(unpack))
        self._trace = jaxapi.current_trace()

    def applies(self) -> bool:
        """Tell whether what is recorded now belongs to the context: it is in the JAX transformation in which that was entered."""
        return jaxapi.current_trace() is self._trace

    def packed(self, value: Any) -> Packed:
        """Pack a value; one that the same hooks have packed before is not packed again while that is kept."""
        key = (id(value), *self.hooks)
        found = _KNOWN.get(key)
        if found is None or not found.holds(self, value):
            found = _KNOWN[key] = Packed(self, value)
        return found

    def call(self, concrete: bool, function: Callable[[Any], Any], given: Any) -> Any:
        """Call one of the hooks, apart from what is being recorded; return a Variable's value, run, and anything else as it is."""
        trace = NOBODY if concrete or not LOCAL.scope.trace.capturing else LOCAL.scope.trace
        with parked(mode=CONSTANT, unseen=True, staged=[], packing=None, trace=trace), self._place(concrete):
            made = function(given)
            run_segments(recording())  # nothing that pack returned waits for the value that it was given
            return made

    @contextlib.contextmanager
    def _place(self, concrete: bool) -> Iterator[None]:
        """Where hooks run: outside of any JAX transformation for concrete values, otherwise in that of the values."""
        if not concrete:
            with jaxapi.within(self._trace):
                yield
        elif jaxapi.in_trace():
            with jaxapi.ensure_compile_time_eval():
                yield
        else:
            yield

    def take(self, segment: Segment, live: Iterable[int], read: Sequence[int]) -> None:
        """Put what ``pack`` returns in the place of the values that a segment keeps (with its lock held): of all of them, or of none.

        Args:
            segment: it has run, and keeps values as any segment does.
            live: slots that Variables hold.
            read: slots whose values a sweep reads, leaves among them, ascending.

        """
        state = segment.state
        path = state.path()
        leaves = leaf_slots(state)
        cells = {**dict(zip(leaves, segment.leaves, strict=True)), **segment.saved}
        own = {slot for step in path if step.ends for slot in step.slots if isinstance(segment.origins.get(slot), LeafNode)}
        kept: dict[int, Any] = {}
        for slot in read:
            value = cells[slot][0]
            if slot not in own and packable(value):
                with naming(state, slot, "pack, which was given a value of"):
                    kept[slot] = self.packed(value)
        saved = [found for slot, context in segment.functions.items() for found in self._saved(context, state, slot)]
        boxes = {slot: Box(content) for slot, content in kept.items()}
        for slot in live:
            if state.table[slot].kind.requires_grad:
                boxes[slot] = Box(kept.get(slot), value=cells[slot][0])
        inputs: list[Any] = []
        for slot in leaves:
            origin = segment.origins.get(slot)
            way = origin[0].ways.setdefault(origin[1], [None]) if isinstance(origin, tuple) else None
            if slot in kept or (slot not in own and slot not in read and packable(cells[slot][0])):
                inputs.append(Box(kept.get(slot), way=way))
            else:
                inputs.append(cells[slot])
        segment.leaves = inputs
        segment.saved = {slot: boxes.get(slot, cells[slot]) for slot in segment.saved if slot in read or slot in boxes}
        for tree, values in saved:
            tree.leaves = values

    def _saved(self, context: Any, state: State, slot: int) -> Sequence[tuple[Any, list[Any]]]:
        """Pack what a ``tape.Function`` saved for its backward, whose entry gives ``slot``."""
        with naming(state, slot, "pack, which was given what was saved by"):
            return context._packed(self)  # type: ignore[no-any-return]

    def take_context(self, segment: Segment, context: Any, slot: int) -> None:
        """:meth:`take` for what a ``tape.Function`` saved, where its entry has run already."""
        for tree, values in self._saved(context, segment.state, slot):
            tree.leaves = values

    def take_entry(self, segment: Segment) -> None:
        """:meth:`take` for a segment of one entry that ran at once, whose results somebody holds."""
        state = segment.state
        forward = (*state.inputs, *state.slots)
        assert state.kernel is not None
        self.take(segment, state.slots, sorted({forward[i] for i in state.kernel.residuals()}))


def _identity(function: Any) -> tuple[int, int]:
    """Tell functions apart, while they are there; each access to a method makes a new object of the same."""
    return (id(getattr(function, "__self__", None)), id(getattr(function, "__func__", function)))


def packable(value: Any) -> bool:
    """Tell whether a value is an array that a hook can do something with: neither a number of Python nor a typed PRNG key."""
    return isinstance(value, jax.Array) and not jnp.issubdtype(value.dtype, jax.dtypes.extended)


class Packed:
    """What is kept of one value: what ``pack`` returned for it, in the place of a cell."""

    __slots__ = ("__weakref__", "_aval", "_concrete", "_content", "_packing", "_source")

    def __init__(self, packing: Packing, value: Any) -> None:
        self._packing = packing
        self._aval = jax.typeof(value)
        self._concrete = not isinstance(value, jaxapi.Tracer)
        self._source = weakref.ref(value)
        self._content = packing.call(self._concrete, packing.pack, record.leaf(value))

    def holds(self, packing: Packing, value: Any) -> bool:
        """Tell whether it is what these hooks made of this value."""
        return self._packing.hooks == packing.hooks and self._source() is value

    def opened(self) -> Cell:
        """Return a cell with the value again.

        Raises:
            TapeTypeError: ``unpack`` returned no array, or one of another dtype.
            TapeValueError: it returned one of another shape.

        """
        found = self._packing.call(self._concrete, lambda content: _array(self._packing.unpack(content)), self._content)
        aval = self._aval
        what = f"of a saved value of shape {aval.shape}, dtype {aval.dtype}"
        if not isinstance(found, jax.Array):
            msg = f"saved_value_hooks: unpack made {type(found).__name__} {what}; return a Variable or an array of that shape and dtype"
            raise TapeTypeError(msg)
        if found.shape != aval.shape:
            msg = f"saved_value_hooks: unpack made shape {found.shape} {what}; have pack keep the shape, and .reshape(shape) in unpack"
            raise TapeValueError(msg)
        if found.dtype != aval.dtype:
            msg = f"saved_value_hooks: unpack made dtype {found.dtype} {what}; have pack keep the dtype, and .astype(dtype) in unpack"
            raise TapeTypeError(msg)
        cell = [found]
        LOCAL.scope.trace.adopt(cell)
        return cell

    def arrays(self) -> list[Any]:
        """The arrays in what is kept."""
        leaves = jax.tree.leaves(self._content, is_leaf=lambda x: isinstance(x, Handle))
        return [x._cell[0] if isinstance(x, Handle) else x for x in leaves]


# What is kept, by the ids of the value and of the hooks; a value that several segments read is packed once.
_KNOWN: weakref.WeakValueDictionary[tuple[int, ...], Packed] = weakref.WeakValueDictionary()


def _array(value: Any) -> Any:
    """Return the array that unpack made; one of NumPy is copied, for its owner may change it."""
    if isinstance(value, Handle):
        return look(value)
    return jnp.array(value) if isinstance(value, (np.ndarray, np.generic)) else value


def recording() -> list[Segment]:
    """Return the segments in which this thread records now."""
    return [segment for ref in (LOCAL.segment, *LOCAL.scope.staged) if (segment := ref()) is not None]


def run_segments(segments: Iterable[Segment]) -> None:
    """Run what is pending in some segments."""
    for segment in segments:
        run_pending(segment, "saved values")
