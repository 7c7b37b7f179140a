"""Bounded mappings: what is found once and kept, up to a limit; then the oldest goes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

from tape.statistics import STATS

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")


class Bounded(dict[K, V]):
    """A dict of at most ``limit`` items: one more, and the oldest eighth goes.

    Looking something up is that of a dict, in speed too.  What is put in again is the newest.  Threads may use it at the same time: each
    step is one of a dict, and what another thread took away in between is not missed.  :func:`tape.stats` names it by its ``name``.
    """

    __slots__ = ("__weakref__", "limit")

    def __init__(self, name: str, limit: int) -> None:
        super().__init__()
        self.limit = limit
        STATS.keep(name, self)

    def __setitem__(self, key: K, value: V) -> None:
        self.pop(key, None)
        super().__setitem__(key, value)
        if len(self) > self.limit:
            for old in list(self)[: max(self.limit // 8, len(self) - self.limit)]:
                self.pop(old, None)

    def cached(self, key: K, make: Callable[[], V]) -> V:
        """Return what is kept under ``key``, made at the first meeting."""
        known = self.get(key)
        if known is None:
            known = self[key] = make()
        return known
