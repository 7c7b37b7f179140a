"""Structures: what torch functions take and return, with Variables in place of tensors: pytrees, dataclasses, outputs of models."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def mapped(fun: Callable[[Any], Any], tree: Any) -> Any:
    """Return ``tree`` with ``fun`` of each leaf, always in the same order.

    Tuples (named ones too), lists, mappings and dataclasses are taken apart; anything else is a leaf.
    """
    if isinstance(tree, (list, tuple)):
        items = [mapped(fun, x) for x in tree]
        if all(new is old for new, old in zip(items, tree, strict=True)):
            return tree
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    if isinstance(tree, Mapping):
        items_by_key = {key: mapped(fun, x) for key, x in tree.items()}
        if all(items_by_key[key] is x for key, x in tree.items()):
            return tree
        if type(tree) is dict:
            return items_by_key
        if isinstance(tree, MutableMapping):
            copied: Any = copy.copy(tree)
            for key, x in items_by_key.items():
                copied[key] = x
            return copied
        return type(tree)(items_by_key)  # type: ignore[call-arg]
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        changed = {
            f.name: mapped(fun, x) for f in dataclasses.fields(tree) if hasattr(tree, f.name) and (x := getattr(tree, f.name)) is not None
        }
        if all(x is getattr(tree, name) for name, x in changed.items()):
            return tree
        copied = copy.copy(tree)
        for name, x in changed.items():
            object.__setattr__(copied, name, x)
        return copied
    return fun(tree)


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Return the tensors in a structure, in the order of :func:`mapped`."""
    tensors: list[torch.Tensor] = []

    def note(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            tensors.append(x)
        return x

    mapped(note, tree)
    return tensors
