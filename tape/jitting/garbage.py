"""Garbage: Python's collector, where much is made that is not to go yet.

It looks through all objects there are whenever there are a quarter more of them, and through those of some time more often.  Where a step
of 200 000 entries is traced, that takes as long as all the rest, and finds nothing: all of it is still needed.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_NEVER = 1 << 30


@contextlib.contextmanager
def only_young() -> Iterator[None]:
    """Have Python look for garbage among what was just made only, as long as this lasts, on all threads."""
    threshold = gc.get_threshold()
    gc.set_threshold(threshold[0], _NEVER, _NEVER)
    try:
        yield
    finally:
        if gc.get_threshold()[2] == _NEVER:  # otherwise somebody has set it meanwhile, or another thread, which came first, has left first
            gc.set_threshold(*threshold)
