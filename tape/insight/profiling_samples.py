"""Samples: at which lines of the user's a thread is while nothing else takes its time, asked some hundred times a second.

What Python takes has no begin and no end that anybody could note without slowing each line down.  So a thread of its own looks where the
measured ones are; a sample counts for Python unless a program, a compilation or a wait turns out to have run then.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType

from tape.accounts.records import Line
from tape.graph.lines import STANDARD, is_foreign
from tape.locks import holding

INTERVAL = 0.002  # seconds
_KEPT = 4096  # samples that a span which ends later may take back


class Samples:
    """The samples of one thread."""

    def __init__(self, ident: int) -> None:
        self.ident = ident
        self.lines: Counter[Line] = Counter()
        self._recent: list[tuple[float, Line]] = []

    def take(self, now: float, frame: FrameType | None) -> None:
        """Note where the thread is."""
        while frame is not None and (not is_foreign(file := frame.f_code.co_filename) or file == "<string>" or is_standard(file)):
            frame = frame.f_back
        if frame is not None:
            recent = self._recent
            recent.append((now, (frame.f_code.co_filename, frame.f_lineno)))
            if len(recent) > _KEPT:
                self.lines.update(line for _, line in recent[: _KEPT // 2])
                del recent[: _KEPT // 2]

    def drop_since(self, start: float) -> None:
        """Take back what was sampled since then: something else ran."""
        recent = self._recent
        while recent and recent[-1][0] >= start:
            recent.pop()

    def counts(self) -> Counter[Line]:
        """Return how many samples there are of each line."""
        return self.lines + Counter(line for _, line in list(self._recent))


@functools.lru_cache(maxsize=4096)
def is_standard(file: str) -> bool:
    """Tell whether some code is of Python's library, which does what it does for whoever calls it."""
    return file.startswith(STANDARD) and "site-packages" not in file


_LOCK = threading.Lock()
_TAKING: list[Samples] = []
_RUNNING: list[None] = []  # there is a thread that takes them


def begin(samples: Samples) -> None:
    """Begin to take samples of a thread."""
    holding(_LOCK, _begin, samples)


def _begin(samples: Samples) -> None:
    if not _RUNNING:
        threading.Thread(target=_take, args=(time.perf_counter,), name="tape-samples", daemon=True).start()
        _RUNNING.append(None)  # it asks under the lock whether it is over
    _TAKING.append(samples)


def end(samples: Samples) -> None:
    """Take no more samples of a thread."""
    if samples in _TAKING:
        _TAKING.remove(samples)


def _over() -> bool:
    if not _TAKING:
        _RUNNING.clear()
    return not _RUNNING


def _take(clock: Callable[[], float]) -> None:
    while True:
        time.sleep(INTERVAL)
        if not _TAKING and holding(_LOCK, _over):
            return
        frames = sys._current_frames()
        now = clock()
        for samples in _TAKING:
            samples.take(now, frames.get(samples.ident))
        del frames
