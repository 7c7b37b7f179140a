"""Contexts: what the forward of a ``tape.Function`` leaves for its backward.

A context refers to no Variable and to no segment that keeps it, so that dropping Variables frees it.  What the forward computed is not
recorded: differentiating a backward through what it saved raises, unless it is an input or an output.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tape.bounded import Bounded
from tape.errors import TapeAttributeError, TapeTypeError, UnrecordedGradientError, check_flag
from tape.functions.arguments import Definition, Layout, paths
from tape.graph import boundary
from tape.graph.boxes import Cell
from tape.graph.kinds import Place
from tape.graph.scope import LOCAL
from tape.graph.segment import Extra, Handle, Segment
from tape.graph.trees import flatten
from tape.graph.trie import RECORD
from tape.hooking.packing import Packed, Packing, packable
from tape.jaxapi import ShapedArray
from tape.mirrored.detachment import detach
from tape.ops.kernel import Op
from tape.recording import record


class SavedVariable:
    """A saved Variable, kept without a reference to the Variable or to the function's own segment (which keeps the context).

    Where hooks for saved values apply, its ``cell`` gives way to what they made of the value.
    """

    __slots__ = ("cell", "leaf", "node", "own", "place", "segment")

    cell: Cell | Packed

    def __init__(self, variable: Handle, own: Segment) -> None:
        place = variable._place
        self.cell = variable._cell
        self.leaf = place.segment is own  # a leaf that waits for it
        self.place = Place(place.slot, place.kind) if self.leaf else place
        self.own = variable._segment is own
        self.segment = None if self.own else variable._segment
        self.node = record.node_of(variable) if variable._segment is None and place.kind.requires_grad else None

    def packed(self, packing: Packing) -> SavedVariable:
        """Return what is kept once its value is packed; a leaf that requires grad is left alone: its Variable holds the value anyway."""
        value = self.cell[0] if self.cell.__class__ is list else None
        if self.node is not None or not packable(value):
            return self
        packed = copy.copy(self)
        packed.cell = packing.packed(value)
        return packed

    def variable(self, own: Segment | None, cell: Cell) -> Handle:
        """Make the Variable again, with a cell that has its value or waits for it."""
        place = self.place
        if self.leaf and own is not None and own.pending:
            place = own.leaf_place(place.slot, place.kind)
        variable: Handle = record.handle(own if self.own else self.segment, place, cell)
        if self.node is not None:
            variable._extra = Extra()
            variable._extra.node = self.node
        return variable


class SavedTree:
    """A pytree as it was when it was saved, with copies of its NumPy arrays; ``tree`` is None for a tuple of Variables."""

    __slots__ = ("leaves", "tree")

    def __init__(self, value: object) -> None:
        self.tree: Any = None
        if value.__class__ is tuple and all(isinstance(x, Handle) for x in value):
            self.leaves: list[Any] = list(value)
        else:
            leaves, self.tree = flatten(value)
            self.leaves = [_copied(x) if isinstance(x, np.ndarray) else x for x in leaves]

    def keep(self, segment: Segment, results: Mapping[int, Handle]) -> bool:
        """Let go of the Variables, and tell whether there were any; those in ``results``, by the id of their cell, stand for others."""
        leaves, any_kept = self.leaves, False
        for i, x in enumerate(leaves):
            if isinstance(x, Handle):
                leaves[i] = SavedVariable(results.get(id(x._cell), x), segment)
                any_kept = True
        return any_kept

    def packed(self, packing: Packing) -> list[object]:
        """Return the leaves as they are kept once the Variables and JAX arrays among them are packed."""
        return [x.packed(packing) if x.__class__ is SavedVariable else packing.packed(x) if packable(x) else x for x in self.leaves]

    def value(self, leaves: list[Any]) -> Any:
        """Return the tree with other leaves."""
        return tuple(leaves) if self.tree is None else jax.tree.unflatten(self.tree, leaves)

    def path(self, position: int) -> str:
        """Say where in the tree a leaf is."""
        return f"[{position}]" if self.tree is None else paths(self.tree, len(self.leaves))[position]


def _copied(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    copy = x.copy()
    copy.flags.writeable = False  # every sweep finds what the forward saved
    return copy


_LOOKED = (
    "{0} computed it of the value of a Variable outside the tape (by .value, raw jax.numpy or NumPy), so a second derivative through "
    "it would be lost; compute it with tape.numpy in {0}.backward, or say by tape.constant(...) that it is a constant"
)


class SweepCall(NamedTuple):
    """A call by a sweep."""

    segment: Segment
    linear: bool  # it is differentiated by its seeds only
    opened: dict[int, Cell]  # what was unpacked, by the id of what it was packed in


class Context:
    """What a forward leaves for its backward; besides :meth:`save_for_backward` it takes free attributes.

    Names without an underscore, but for those here, are the user's.

    Attributes:
        needs_input_grad: for each array argument, positional ones in order, then those of keywords, whether its gradient is wanted.  Under
            ``jax.jit`` and ``tape.jit`` it is whether JAX differentiates by the argument while it traces.

    """

    __slots__ = (
        "__dict__",
        "__weakref__",
        "_avals",
        "_call",
        "_caller",
        "_constants",
        "_function",
        "_kept",
        "_layout",
        "_materialize",
        "_outputs",
        "_places",
        "_traced",
        "needs_input_grad",
    )

    def __init__(
        self,
        function: Definition,
        layout: Layout,
        avals: tuple[ShapedArray, ...],
        needs_input_grad: tuple[bool, ...],
        *,
        traced: bool = False,
    ) -> None:
        self._function = function
        self._layout = layout  # of the arguments
        self._avals = avals  # of the arrays among them
        self._outputs: tuple[ShapedArray, ...] = ()
        self._places: Sequence[int] = ()  # which of the outputs are results of the entry
        self._kept: dict[str, SavedTree] = {}  # "saved", and free attributes with Variables
        self._constants: list[Handle] = []  # outputs that are no results of the entry
        self._materialize = False
        self._traced = traced  # JAX differentiates what this context computes
        self._call: SweepCall | None = None  # while a sweep calls
        self._caller = boundary.Caller(_LOOKED, function.__name__, rebinds_names=True)
        self.needs_input_grad = needs_input_grad

    # -- for the forward ----------------------------------------------------------------------------------------------

    def save_for_backward(self, *values: Any) -> None:
        """Keep values for the backward, where :attr:`saved` returns them.

        Args:
            values: Variables, arrays (NumPy's are copied), anything else, and pytrees of them.  Inputs and outputs can be differentiated in
                the backward; what the forward computed on the way is not recorded, and is a constant there.

        """
        self._kept["saved"] = SavedTree(values)

    def set_materialize_grads(self, value: bool) -> None:
        """Have the backward see zeros instead of None for outputs without a gradient (and a ``jvp`` for inputs without a tangent).

        Raises:
            TapeTypeError: ``value`` is not a bool.

        """
        check_flag("set_materialize_grads", "value", value)
        self._materialize = value

    def mark_non_differentiable(self, *outputs: Any) -> None:
        """Have outputs be constants: they do not require grad, and the backward sees None for them.

        Raises:
            TapeTypeError: an output is not a Variable.

        """
        for i, x in enumerate(outputs):
            if not isinstance(x, Handle):
                msg = f"mark_non_differentiable: output {i} must be a Variable that forward returns, got {type(x).__name__}"
                raise TapeTypeError(msg)
        self._constants.extend(outputs)

    # -- for the backward ---------------------------------------------------------------------------------------------

    @property
    def saved(self) -> tuple[Any, ...]:
        """What :meth:`save_for_backward` kept."""
        tree = self._kept.get("saved")
        return () if tree is None else self._restored(tree, "ctx.saved")

    def __getattr__(self, name: str) -> Any:
        if name in _SLOTS:  # of a copy that is being made
            raise AttributeError(name)
        tree = self._kept.get(name)
        if tree is None:
            msg = (
                f"the context of {self._function.__name__} has no attribute {name!r}; set it in forward, or use ctx.save_for_backward and "
                "ctx.saved"
            )
            raise TapeAttributeError(msg)
        return self._restored(tree, f"ctx.{name}")

    def _restored(self, tree: SavedTree, what: str) -> Any:
        call = self._call
        segment = None if call is None else call.segment
        leaves = [
            x.variable(segment, self._cell(x.cell)) if x.__class__ is SavedVariable else self._cell(x)[0] if x.__class__ is Packed else x
            for x in tree.leaves
        ]
        if LOCAL.scope.mode == RECORD and call is not None:
            for i, x in enumerate(leaves):
                if not (isinstance(x, Handle) and x._place.kind.unrecorded):
                    continue
                name = self._function.__name__
                reason = (
                    f"{what}{tree.path(i)} of {name} was computed in {name}.forward, which does not record, so a second derivative through "
                    "it would be lost; save the inputs and compute it again in backward, or return it from forward as a further output "
                    "and save that"
                )
                leaves[i] = detach(x) if call.linear else unrecorded(x, reason)
        return tree.value(leaves)

    def _cell(self, kept: Cell | Packed) -> Cell:
        """Return a cell as it was kept; what hooks packed in its place is unpacked once while a sweep calls."""
        if kept.__class__ is list:
            return kept
        assert isinstance(kept, Packed)
        opened = {} if self._call is None else self._call.opened
        cell = opened.get(id(kept))
        if cell is None:
            cell = opened[id(kept)] = kept.opened()
        return cell

    # -- keeping ------------------------------------------------------------------------------------------------------

    def _give(self, outputs: Sequence[Handle]) -> None:
        """Note what the forward returned, and let go of what was marked in it."""
        self._outputs = tuple([v._place.kind.aval for v in outputs])
        self._places = range(len(outputs))
        if self._constants:
            marked = {id(v._cell) for v in self._constants}
            self._places = [i for i in self._places if id(outputs[i]._cell) not in marked]
            self._constants = []

    def _freeze(self, segment: Segment, results: Mapping[int, Handle]) -> None:
        """Give up references to Variables and to the segment that will hold this context, so that dropping its Variables frees it.

        Saved outputs (``results`` by the id of their cell) become the function's results, so that second derivatives reach them.
        """
        for tree in self._kept.values():
            tree.keep(segment, results)
        if self.__dict__:
            for name, value in list(self.__dict__.items()):
                tree = SavedTree(value)
                if tree.keep(segment, results):
                    self._kept[name] = tree
                    del self.__dict__[name]

    def _held(self) -> list[Handle]:
        """Return the Variables that are kept here."""
        segment = None if self._call is None else self._call.segment
        return [
            x.variable(segment, self._cell(x.cell)) for tree in self._kept.values() for x in tree.leaves if x.__class__ is SavedVariable
        ]


_SLOTS = frozenset(Context.__slots__)


class _Cut(Op):
    """An identity whose result has no derivative; ``unrecorded`` says why, on the tape and to JAX."""

    __slots__ = ("unrecorded",)

    transparent = True  # op hooks do not see it

    def __init__(self, reason: str) -> None:
        @jax.custom_jvp
        def identity(x: jax.Array) -> jax.Array:
            return x

        @identity.defjvp
        def refuse(_primals: object, _tangents: object) -> Any:
            raise UnrecordedGradientError(reason)

        super().__init__("unrecorded", identity)
        self.unrecorded = reason


_CUTS: Bounded[str, _Cut] = Bounded("cuts", 1024)


def unrecorded(variable: Handle, reason: str) -> Handle:
    """Return the same value with a mark: differentiating through it raises ``reason``."""
    return record.record(_CUTS.cached(reason, lambda: _Cut(reason)), (variable,))  # type: ignore[no-any-return]
