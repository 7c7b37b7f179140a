"""Interning: an op that is made anew under a key is the one that was made first, so that it does not make a new structure."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from tape.bounded import Bounded
from tape.ops.kernel import Op

_BY_KEY: Bounded[Hashable, Op] = Bounded("ops", 1 << 14)


def intern_op(key: Hashable, make: Callable[[], Op], ops: Bounded[Hashable, Op] = _BY_KEY) -> Op:
    """Return the op known under ``key``, made at the first meeting."""
    op = ops[key] = ops.get(key) or make()  # the newest, also if it is known
    return op
