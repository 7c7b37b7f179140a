"""Boxes: what a segment that has run keeps of a value in place of its cell, where it does not keep the value itself."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

Cell = list[Any]


class Content(Protocol):
    """What makes a value again."""

    def opened(self) -> Cell:
        """Return a cell with it."""

    def arrays(self) -> Sequence[Any]:
        """Return the arrays that are kept for that."""


class Box:
    """What is kept of the value of one slot."""

    __slots__ = ("_content", "_value", "_way")

    def __init__(self, content: Content | None = None, *, value: Any = None, way: Cell | None = None) -> None:
        self._content = content  # None where no sweep reads the value
        self._value = None if value is None else weakref.ref(value)  # from which a sweep may start as long as somebody holds it
        self._way = way  # tells the segment that made the value that sweeps of this one lead there

    @property
    def held(self) -> bool:
        """Whether a sweep may start there."""
        return self._value is not None and self._value() is not None

    @property
    def readable(self) -> bool:
        """Whether the value can be made again."""
        return self._content is not None

    def source(self) -> Any:
        """Return what gives a sweep the value: the box, or a cell with what somebody holds.  KeyError: nobody does so any more."""
        if self._content is not None:
            return self
        value = None if self._value is None else self._value()
        if value is None:
            raise KeyError
        return [value]

    def opened(self) -> Cell:
        """Return a cell with the value again."""
        assert self._content is not None, "a sweep reads a value that was not kept"
        return self._content.opened()

    def arrays(self) -> Sequence[Any]:
        """Return the arrays that it keeps for that."""
        return () if self._content is None else self._content.arrays()


def lent(saved: dict[int, Any]) -> list[int]:
    """Return the slots of values that are in no box, and that somebody holds: what a sweep computed again would not lead to who does."""
    return [slot for slot, kept in saved.items() if kept.__class__ is Box and kept.held and not kept.readable]


UNREAD: Any = Box()  # stands for an input that no sweep reads
