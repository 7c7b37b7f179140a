"""Handles of registered hooks."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RemovableHandle"]

_numbers = itertools.count()


class RemovableHandle:
    """What registering a hook returns; ``remove()`` takes the hook away, also during a sweep, and twice does no harm."""

    __slots__ = ("_hooks", "_number")

    def __init__(self, hooks: dict[int, Callable[..., Any]], hook: Callable[..., Any]) -> None:
        self._hooks = hooks
        self._number = next(_numbers)
        hooks[self._number] = hook

    def remove(self) -> None:
        """Take the hook away."""
        self._hooks.pop(self._number, None)
