"""Locks that are let go of whatever line is interrupted.

Where a ``with`` statement spans lines, Python comes by its first one again when it leaves, before it lets go of the lock.  What raises
there (a debugger that stops the program, a test that interrupts every line) leaves the lock held, and the next to ask for it waits for
ever.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

T = TypeVar("T")


def holding(lock: AbstractContextManager[Any], call: Callable[..., T], *args: object) -> T:
    """Return ``call(*args)``, made with ``lock`` held."""
    with lock: return call(*args)  # fmt: skip  # noqa: E701 - see above: it is left on the line on which it is entered
