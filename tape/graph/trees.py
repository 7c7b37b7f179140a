"""Pytrees of users: their leaves are Variables, and what JAX takes for leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from tape.graph.segment import Handle, is_variable

if TYPE_CHECKING:
    from collections.abc import Callable


def flatten(tree: object) -> tuple[list[Any], Any]:
    """Return the leaves, and the structure that they stand in."""
    return jax.tree.flatten(tree, is_leaf=is_variable)


def leaves_of(tree: object) -> list[Any]:
    """Return the leaves."""
    return jax.tree.leaves(tree, is_leaf=is_variable)


def variables_in(tree: object) -> list[Any]:
    """Return the Variables among the leaves."""
    return [x for x in leaves_of(tree) if isinstance(x, Handle)]


def mapped(change: Callable[[Any], Any], tree: object) -> Any:
    """Return the tree of what ``change`` makes of each leaf."""
    return jax.tree.map(change, tree, is_leaf=is_variable)
