"""What a ``tape.Function`` keeps for its backward: pytrees, whose Variables are kept without a reference to them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from tape.functions.tracking import is_variable
from tape.graph.kinds import Place
from tape.graph.segment import Extra, Handle, Segment
from tape.hooking.packing import packable
from tape.recording import record

__all__ = ["Kept", "Tree"]


class Kept:
    """A saved Variable, kept without a reference to the Variable or to the function's own segment (which keeps the context).

    Where hooks for saved values apply, its ``cell`` gives way to what they made of the value.
    """

    __slots__ = ("cell", "leaf", "node", "own", "place", "segment")

    cell: Any

    def __init__(self, variable: Handle, own: Segment) -> None:
        place = variable._place
        self.cell = variable._cell
        self.leaf = place.segment is own  # a leaf that waits for it
        self.place = Place(place.slot, place.kind) if self.leaf else place
        self.own = variable._segment is own
        self.segment = None if self.own else variable._segment
        self.node = record.node_of(variable) if variable._segment is None and place.kind.requires_grad else None

    def packed(self, packing: Any) -> Kept:
        """Return what is kept once its value is packed; a leaf that requires grad is left alone, for its Variable holds the value anyway."""
        value = self.cell[0] if self.cell.__class__ is list else None
        if self.node is not None or self.leaf or not packable(value):
            return self
        made = object.__new__(Kept)
        made.leaf, made.place, made.own, made.segment, made.node = self.leaf, self.place, self.own, self.segment, None
        made.cell = packing.packed(value)
        return made

    def variable(self, own: Segment | None, cell: Any) -> Any:
        """Make the Variable again, with a cell that has its value or waits for it."""
        place = self.place
        if self.leaf and own is not None and own.pending:
            place = own.leaf_place(place.slot, place.kind)
        made = record.handle(own if self.own else self.segment, place, cell)
        if self.node is not None:
            made._extra = Extra()
            made._extra.node = self.node
        return made


class Tree:
    """A pytree as it was when it was saved, with copies of its NumPy arrays; ``tree`` is None for a tuple of Variables."""

    __slots__ = ("leaves", "tree")

    def __init__(self, value: Any) -> None:
        self.tree: Any = None
        if value.__class__ is tuple and all(isinstance(x, Handle) for x in value):
            self.leaves: list[Any] = list(value)
        else:
            leaves, self.tree = jax.tree.flatten(value, is_leaf=is_variable)
            self.leaves = [_copied(x) if isinstance(x, np.ndarray) else x for x in leaves]

    def keep(self, segment: Segment, results: dict[int, Any]) -> bool:
        """Let go of the Variables, and tell whether there were any."""
        leaves = self.leaves
        found = False
        for i, x in enumerate(leaves):
            if isinstance(x, Handle):
                leaves[i] = Kept(results.get(id(x._cell), x), segment)
                found = True
        return found

    def packed(self, packing: Any) -> list[Any]:
        """Return the leaves as they are kept once the Variables and JAX arrays among them are packed."""
        return [x.packed(packing) if x.__class__ is Kept else packing.packed(x) if packable(x) else x for x in self.leaves]

    def value(self) -> Any:
        """Return the tree."""
        return tuple(self.leaves) if self.tree is None else jax.tree.unflatten(self.tree, self.leaves)

    def path(self, position: int) -> str:
        """Say where in the tree a leaf is."""
        if self.tree is None:
            return f"[{position}]"
        paths = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(self.tree, range(len(self.leaves))))[0]
        return jax.tree_util.keystr(paths[position][0])


def _copied(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    copy = x.copy()
    copy.flags.writeable = False  # every sweep finds what the forward saved
    return copy
