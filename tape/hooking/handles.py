"""Handles of registered hooks."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CHANGES", "RemovableHandle", "take_away"]

_numbers = itertools.count()


class Changes:
    """``count`` is another number after each registration or removal of a hook."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


CHANGES = Changes()


class RemovableHandle:
    """What registering a hook returns; ``remove()`` takes the hook away, also during a sweep, and twice does no harm."""

    __slots__ = ("_hooks", "_number")

    def __init__(self, hooks: dict[int, Callable[..., Any]], hook: Callable[..., Any]) -> None:
        self._hooks = hooks
        self._number = next(_numbers)
        hooks[self._number] = hook
        CHANGES.count = next(_numbers)

    def remove(self) -> None:
        """Take the hook away."""
        take_away(self._hooks, self._number)


def take_away(hooks: dict[int, Callable[..., Any]], number: int) -> None:
    """Take the hook of this number away, if it is there."""
    hooks.pop(number, None)
    CHANGES.count = next(_numbers)
