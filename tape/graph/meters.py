"""Meters: who measures what a thread runs; nobody, as a rule, and then whoever runs something finds so by one look at an empty dict.

``if METERS`` stands before each call of :func:`measured`, in the place where a program, an entry or a step runs, or where somebody waits.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Meter(Protocol):
    """What measures the calls of a thread."""

    def measure(self, kind: str, what: Any, call: Callable[..., Any], *args: Any) -> Any:
        """Return ``call(*args)``.

        ``kind`` and ``what``: ``"flush"`` of (segment, program, reason), an ``"entry"`` that runs at once (its state), a ``"step"`` of
        :func:`tape.jit` (its binding), or a ``"wait"`` for the compiler (None).
        """


METERS: dict[int, Meter] = {}  # by the ident of the thread


def measured(kind: str, what: Any, call: Callable[..., T], *args: Any) -> T:
    """Return ``call(*args)``, measured if somebody does so in this thread."""
    meter = METERS.get(threading.get_ident())
    return call(*args) if meter is None else meter.measure(kind, what, call, *args)
