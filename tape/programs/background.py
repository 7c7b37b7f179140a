"""Compiling in the background: one thread that compiles what a loop will soon need, while the loop goes on."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
from typing import TYPE_CHECKING, Any

from tape.locks import holding

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Job", "submit"]


class Job:
    """A call that another thread makes."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call: Callable[[], Any] | None = call
        self._done = threading.Event()
        self._taken = threading.Lock()
        self._error: BaseException | None = None
        self.seconds = 0.0

    def run(self) -> None:
        """Make the call, unless somebody else does."""
        if not self._taken.acquire(blocking=False):
            return
        call, self._call = self._call, None
        assert call is not None
        started = time.perf_counter()
        try:
            call()
        except BaseException as e:  # noqa: BLE001 - raised where somebody waits for it
            self._error = e
        self.seconds = time.perf_counter() - started
        self._done.set()

    def wait(self) -> None:
        """Return when the call was made; if it has not begun, make it here.

        Raises:
            BaseException: what the call raised.

        """
        self.run()
        self._done.wait()
        if self._error is not None:
            raise self._error


_QUEUE: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
_THREAD: list[threading.Thread] = []
_STARTING = threading.Lock()


def submit(call: Callable[[], Any]) -> Job:
    """Have ``call`` made in the background, after those submitted before."""
    job = Job(call)
    _QUEUE.put(job)
    holding(_STARTING, _start)
    return job


def _start() -> None:
    if not _THREAD:
        thread = threading.Thread(target=_work, name="tape-compile", daemon=True)
        thread.start()
        _THREAD.append(thread)


def _work() -> None:
    while (job := _QUEUE.get()) is not None:
        job.run()
        del job  # what it refers to must not live until the next one comes


def _stop() -> None:
    """Let the interpreter end: a thread inside the compiler must not meet its remains."""
    while True:
        try:
            _QUEUE.get_nowait()
        except queue.Empty:
            break
    _QUEUE.put(None)
    for thread in _THREAD:
        thread.join()


def _forked() -> None:
    """In a child process there is no such thread; whoever waits for a job runs it."""
    global _QUEUE, _STARTING
    _THREAD.clear()
    _QUEUE, _STARTING = queue.SimpleQueue(), threading.Lock()


atexit.register(_stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
