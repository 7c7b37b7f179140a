"""Compiling in the background: one thread that compiles what a loop will soon need, while the loop goes on."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from jax.stages import Wrapped

from tape.configuration import applying, configuration
from tape.graph.meters import METERS, measured
from tape.locks import holding

YIELDING = 5e-4  # seconds after which the background hands on Python's lock: a step of a loop takes it often, and JAX traces for 10 ms


class Job:
    """A call that one thread makes: the one in the background, or the first that waits for it."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call: Callable[[], object] | None = call
        self._further: list[Callable[[Job], None]] = []  # called when the call was made, and not interrupted
        self._lock = threading.Lock()
        self.error: BaseException | None = None
        self._made = threading.Event()
        self._process = os.getpid()
        self.seconds = 0.0
        self.thread = 0  # the one that made it

    def run(self) -> None:
        """Return when the call was made, here if nobody else has begun with it."""
        if METERS and self._call is None and not self.made:  # another thread is at it
            measured("wait", None, holding, self._lock, self._run)
        else:
            holding(self._lock, self._run)
        self._tell()

    def _run(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            started = time.perf_counter()
            self.thread = threading.get_ident()
            try:
                call()
            except BaseException as e:  # noqa: BLE001 - raised where somebody waits for it
                self.error = e
            finally:
                self.seconds = time.perf_counter() - started
                self._made.set()

    def then(self, further: Callable[[Job], None]) -> None:
        """Have somebody told when the call was made, by the thread that makes it, or here where that is over."""
        self._further.append(further)
        if self.made:
            self._tell()

    def _tell(self) -> None:
        with contextlib.suppress(IndexError):  # two threads may both come by
            while self.error is None or isinstance(self.error, Exception):
                self._further.pop()(self)

    def wait(self) -> None:
        """Return when the call was made, or raise what it raised."""
        self.run()
        if self.error is not None:
            raise self.error

    def made_within(self, seconds: float) -> bool:
        """Wait so long at most for the background to make the call, as the next one; tell whether it has."""
        if not seconds:
            return self.made
        if self._call is not None:  # others would be made before, while somebody waits for this one
            hastened(self)
        return self._made.wait(seconds) if not METERS else measured("wait", None, self._made.wait, seconds)

    @property
    def made(self) -> bool:
        """Whether the call was made."""
        return self._made.is_set()

    @property
    def lost(self) -> bool:
        """Whether the call is not made: it was interrupted, or it was submitted in the process of which this one was forked."""
        if self.made:
            return self.error is not None and not isinstance(self.error, Exception)
        return self._process != os.getpid()


_QUEUE: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
_FIRST: deque[Job] = deque()  # of those in the queue
_THREAD: list[threading.Thread] = []
_STARTING = threading.Lock()


def submit(call: Callable[[], object]) -> Job:
    """Have ``call`` made in the background, after those submitted before."""
    job = Job(call)
    _hasten()
    _QUEUE.put(job)
    holding(_STARTING, _start)
    return job


def hastened(job: Job) -> Job:
    """Have a job that was submitted made before all others that wait; return it."""
    _FIRST.append(job)
    return job


def compiling(function: Wrapped, arguments: Sequence[object]) -> Job:
    """Have a function of ``jax.jit`` compiled, under the present settings, for arguments like these, so that a call finds its program."""
    return compiling_all([(function, arguments)])


def compiling_all(functions: Sequence[tuple[Wrapped, Sequence[object]]]) -> Job:
    """Have several functions compiled, one after the other."""
    settings = configuration()

    def call() -> None:
        with applying(settings):
            for function, arguments in functions:
                function.lower(*arguments).compile()

    return submit(call)


def _start() -> None:
    if not _THREAD:
        thread = threading.Thread(target=_work, name="tape-compile", daemon=True)
        thread.start()
        _THREAD.append(thread)


_BEFORE: list[float] = []  # the interval that was there, while the background has something to do


def _hasten() -> None:
    """Have threads hand on Python's lock sooner, also such as begin to wait for it when the background wakes up."""
    before = sys.getswitchinterval()
    if before > YIELDING:
        sys.setswitchinterval(YIELDING)
        _BEFORE[:] = [before]  # only now, and taken out before it is set again: two threads may be at it


def _rest() -> None:
    """Have them hand it on as before, unless the user has said how soon meanwhile."""
    before = _BEFORE.pop() if _BEFORE else 0.0
    if before and sys.getswitchinterval() <= YIELDING:
        sys.setswitchinterval(before)


def _work() -> None:
    while (job := _QUEUE.get()) is not None:
        _hasten()
        with contextlib.suppress(IndexError):  # nothing is left, or the interpreter ends
            while True:
                _FIRST.popleft().run()
        job.run()
        del job  # what it refers to must not live until the next one comes
        if _QUEUE.empty():
            _rest()


def _stop() -> None:
    """Let the interpreter end: a thread inside the compiler must not meet its remains."""
    _FIRST.clear()
    with contextlib.suppress(queue.Empty):
        while True:
            _QUEUE.get_nowait()
    _QUEUE.put(None)
    for thread in _THREAD:
        thread.join()


def _forked() -> None:
    """In a child process there is no such thread; whoever waits for a job runs it."""
    global _QUEUE, _STARTING
    _rest()
    _THREAD.clear()
    _FIRST.clear()
    _QUEUE, _STARTING = queue.SimpleQueue(), threading.Lock()


atexit.register(_stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
