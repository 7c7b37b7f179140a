"""What a ``tape.Function`` keeps for its backward: pytrees, whose Variables are kept without a reference to them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tape.functions.arguments import is_variable, paths
from tape.graph.kinds import Place
from tape.graph.segment import Extra, Handle, Segment
from tape.hooking.packing import packable
from tape.recording import record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tape.graph.boxes import Cell
    from tape.hooking.packing import Packed, Packing


class Kept:
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

    def packed(self, packing: Packing) -> Kept:
        """Return what is kept once its value is packed; a leaf that requires grad is left alone: its Variable holds the value anyway."""
        value = self.cell[0] if self.cell.__class__ is list else None
        if self.node is not None or self.leaf or not packable(value):
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


class Tree:
    """A pytree as it was when it was saved, with copies of its NumPy arrays; ``tree`` is None for a tuple of Variables."""

    __slots__ = ("leaves", "tree")

    def __init__(self, value: object) -> None:
        self.tree: Any = None
        if value.__class__ is tuple and all(isinstance(x, Handle) for x in value):
            self.leaves: list[Any] = list(value)
        else:
            leaves, self.tree = jax.tree.flatten(value, is_leaf=is_variable)
            self.leaves = [_copied(x) if isinstance(x, np.ndarray) else x for x in leaves]

    def keep(self, segment: Segment, results: Mapping[int, Handle]) -> bool:
        """Let go of the Variables, and tell whether there were any; those in ``results``, by the id of their cell, stand for others."""
        leaves, any_kept = self.leaves, False
        for i, x in enumerate(leaves):
            if isinstance(x, Handle):
                leaves[i] = Kept(results.get(id(x._cell), x), segment)
                any_kept = True
        return any_kept

    def packed(self, packing: Packing) -> list[object]:
        """Return the leaves as they are kept once the Variables and JAX arrays among them are packed."""
        return [x.packed(packing) if x.__class__ is Kept else packing.packed(x) if packable(x) else x for x in self.leaves]

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
