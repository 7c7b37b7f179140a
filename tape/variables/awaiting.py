"""Awaiting: who looks at what a program is about to compute asks for it a while, before it waits.

Who waits is put to sleep and woken, which takes longer than a small program runs, and lets go of the interpreter's lock, which a thread
that compiles may keep for milliseconds.
"""

from __future__ import annotations

import jax

ASKED = 300  # times, in 40 us
RESTS = 16  # looks that do not ask after one that did so in vain: what takes longer is likely to take longer again


class Awaiting:
    """Asks for arrays; threads may share it, as nothing depends on what it counts but time."""

    def __init__(self) -> None:
        self._rests = 0

    def __call__(self, array: jax.Array) -> jax.Array:
        """Return the array when it is there, or has been asked for long enough."""
        if self._rests:
            self._rests -= 1
            return array
        ready = array.is_ready  # type: ignore[attr-defined]
        for _ in range(ASKED):
            if ready():
                return array
        self._rests = RESTS
        return array


awaited = Awaiting()
