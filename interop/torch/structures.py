"""Structures: what torch functions take and return, with Variables in place of tensors: pytrees, dataclasses, outputs of models."""

from __future__ import annotations

import copy
import dataclasses
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import torch

import tape
from tape.callables.objects import COMPOSED, attributes, in_cell
from tape.errors import LostGradientError


def mapped(fun: Callable[[Any], Any], tree: Any, holders: Holders | None = None) -> Any:
    """Return ``tree`` with ``fun`` of each leaf, always in the same order.

    Tuples (named ones too), lists, mappings, dataclasses and the objects that ``holders`` says are taken apart; anything else is a leaf.
    """
    kind = type(tree)
    if kind in _LEAVES or isinstance(tree, torch.Tensor):  # most of what there is
        return fun(tree)
    if isinstance(tree, (list, tuple)):
        items = [mapped(fun, x, holders) for x in tree]
        if all(new is old for new, old in zip(items, tree, strict=True)):
            return tree
        if kind is torch.nn.utils.rnn.PackedSequence and isinstance(items[1], torch.Tensor):
            items[1] = items[1].cpu()  # sizes, which torch has on the host
        return type(tree)._make(items) if hasattr(tree, "_make") else type(tree)(items)  # not PackedSequence's own checks
    if isinstance(tree, Mapping):
        items_by_key = {key: mapped(fun, x, holders) for key, x in tree.items()}
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
            f.name: mapped(fun, x, holders)
            for f in dataclasses.fields(tree)
            if hasattr(tree, f.name) and (x := getattr(tree, f.name)) is not None
        }
        if all(x is getattr(tree, name) for name, x in changed.items()):
            return tree
        copied = copy.copy(tree)
        for name, x in changed.items():
            object.__setattr__(copied, name, x)
        return copied
    if holders is not None and holders.enter(tree):
        try:
            attributes_by_name = {name: mapped(fun, x, holders) for name, x in vars(tree).items()}
        finally:
            holders.leave(tree)
        copied = copy.copy(tree)
        vars(copied).update(attributes_by_name)
        return copied
    return fun(tree)


class Holders:
    """Objects of users' and libraries' classes (a cache of keys and values) that are taken apart by their attributes.

    Args:
        held: what one of them holds, itself or in what it holds.

    """

    def __init__(self, held: Callable[[Any], bool]) -> None:
        self._held = held
        self._entered: set[int] = set()  # what holds itself is not taken apart

    def enter(self, value: Any) -> bool:
        """Tell whether an object is taken apart; until it is left, it is not once more."""
        entered = is_plain(value) and id(value) not in self._entered and find([value], self._held) is not None
        if entered:
            self._entered.add(id(value))
        return entered

    def leave(self, value: Any) -> None:
        """Say that an object was taken apart."""
        self._entered.discard(id(value))


def is_plain(value: Any) -> bool:
    """Tell whether a value is an object that is no more than its attributes, as far as one can tell."""
    kind = type(value)
    return (
        hasattr(value, "__dict__")
        and kind.__module__.partition(".")[0] not in _THEIR_OWN
        and not isinstance(value, (*_SIMPLE, *COMPOSED, torch.Tensor, types.FunctionType, AbstractSet))
    )


def tensor_holders() -> Holders:
    """Return what takes results of torch apart."""
    return Holders(is_tensor)


def is_tensor(x: Any) -> bool:
    """Tell whether it is a tensor of torch's."""
    return isinstance(x, torch.Tensor)


def parted(tree: Any, chosen: Callable[[Any], bool] = is_tensor, holders: Holders | None = None) -> tuple[list[Any], list[Any]]:
    """Return the leaves of a structure that are chosen, and the others, in the order of :func:`mapped`."""
    leaves: list[Any] = []

    def note(x: Any) -> Any:
        leaves.append(x)
        return x

    mapped(note, tree, holders)
    return [x for x in leaves if chosen(x)], [x for x in leaves if not chosen(x)]


def check_tensors(name: str, others: Sequence[Any], *, flowing: bool) -> None:
    """Refuse results of torch, which are no tensors themselves, that hold tensors; ``flowing``: those that require grad."""
    repair = "return the tensors themselves, in tuples, lists, mappings or dataclasses"
    check_held(name, others, lambda x: isinstance(x, torch.Tensor) and (x.requires_grad or not flowing), repair)


def check_held(what: str, values: Sequence[Any], loses: Callable[[Any], bool], repair: str) -> None:
    """Refuse what holds a tensor (or Variable) that would lose its gradient: objects of other classes, sets, functions.

    Raises:
        LostGradientError: there is one.

    """
    lost = find(values, loses)
    if lost is not None:
        value, name = lost
        msg = (
            f"{what} returns an object of type {name} that holds a {type(value).__name__} (shape {tuple(value.shape)}, dtype "
            f"{value.dtype}), whose gradient would be lost; {repair}"
        )
        raise LostGradientError(msg)


def find(values: Sequence[Any], condition: Callable[[Any], bool]) -> tuple[Any, str] | None:
    """Return the first thing that one of the values is or holds and that the condition is true of, with that value's type's name."""
    queue = deque((x, type(x).__name__) for x in values if not isinstance(x, _SIMPLE))
    seen: dict[int, Any] = {}
    while queue and len(seen) < _LIMIT:
        value, name = queue.popleft()
        if id(value) in seen or isinstance(value, _SIMPLE):
            continue
        seen[id(value)] = value
        if condition(value):
            return value, name
        queue.extend((x, name) for x in _held(value))
    return None


def _held(value: Any) -> Iterable[Any]:
    """Return what a value holds."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (tuple, list, set, frozenset, deque)):
        return value
    if isinstance(value, types.FunctionType):
        return [*map(in_cell, value.__closure__ or ()), *(value.__defaults__ or ())]
    if isinstance(value, types.GeneratorType):
        return () if value.gi_frame is None else value.gi_frame.f_locals.values()
    composed = next((names for kind, names in COMPOSED.items() if isinstance(value, kind)), ())
    return [*(getattr(value, name) for name in composed), *attributes(value).values()]


_THEIR_OWN = frozenset({"torch", "jax", "jaxlib", "numpy", "tape", "builtins", "interop"})  # packages whose objects know what they hold
_LEAVES = frozenset((tape.Variable, np.ndarray, str, bool, int, float, type(None)))  # types that hold nothing
_SIMPLE = (str, bytes, int, float, complex, type(None), type, types.ModuleType, torch.nn.Module, torch.dtype, torch.device)
_LIMIT = 10_000  # objects looked through
