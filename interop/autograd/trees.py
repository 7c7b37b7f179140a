"""Containers of Variables as pytrees of JAX, but with dicts in their own order: programs zip the values of parameters and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from tape.graph.segment import Handle

__all__ = ["flatten", "is_variable", "leaves_like", "map_leaves", "unflatten"]


class _Ordered(dict[Any, Any]):
    """A dict on its way to JAX, which sorts keys otherwise; what is put together again is a plain one."""


jax.tree_util.register_pytree_node(
    _Ordered,
    lambda d: (tuple(d.values()), tuple(d)),
    lambda keys, values: dict(zip(keys, values, strict=True)),  # type: ignore[arg-type,return-value]
)


def is_variable(x: object) -> bool:
    """Tell whether something is a Variable."""
    return isinstance(x, Handle)


def _is_dict(x: object) -> bool:
    return type(x) is dict or isinstance(x, Handle)


def _ordered(tree: Any) -> Any:
    """Return a tree whose dicts keep their order."""
    return jax.tree.map(lambda x: _Ordered({k: _ordered(v) for k, v in x.items()}) if type(x) is dict else x, tree, is_leaf=_is_dict)


def _as(pattern: Any, tree: Any) -> Any:
    """Return a tree whose dicts have the order of those of another one."""

    def one(p: Any, x: Any) -> Any:
        same = type(p) is dict and isinstance(x, dict) and p.keys() == x.keys()
        return _Ordered({k: _as(p[k], x[k]) for k in p}) if same else x

    return jax.tree.map(one, pattern, tree, is_leaf=_is_dict)


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Return the leaves of a pytree, Variables among them, and its structure."""
    return jax.tree.flatten(_ordered(tree), is_leaf=is_variable)


def unflatten(structure: Any, leaves: Sequence[Any]) -> Any:
    """Put a tree together again."""
    return jax.tree.unflatten(structure, leaves)


def leaves_like(structure: Any, tree: Any) -> list[Any]:
    """Return the leaves of what has this structure, or at its leaves further trees; dicts may have another order.

    Raises:
        ValueError: it has another structure.

    """
    return structure.flatten_up_to(_as(unflatten(structure, range(structure.num_leaves)), tree))  # type: ignore[no-any-return]


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree of what a function makes of the leaves."""
    leaves, structure = flatten(tree)
    return unflatten(structure, [function(x) for x in leaves])
