"""Telling: from which of the user's lines a run comes is noted for :func:`tape.stats`, and so are compilations.

These are logged as they happen (:func:`tape.log_compiles`), and warned of.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from tape.accounts.records import Change, Compilation, Line, Site
from tape.accounts.words import at, described
from tape.bounded import Bounded
from tape.errors import warn
from tape.graph.lines import user_frame
from tape.graph.trie import CLOCK
from tape.modes import Mode
from tape.programs.background import Job
from tape.statistics import STATS

LOGGER = logging.getLogger("tape.compiles")
VARIABLE = "TAPE_LOG_COMPILES"


class _Logging(threading.local):
    """Whether one thread logs compilations."""

    on = False


_LOCAL = _Logging()
_EVERYWHERE = [os.environ.get(VARIABLE, "") not in {"", "0"}]


class log_compiles(Mode):  # noqa: N801 - a context manager, named as in JAX
    """Log each compilation that is asked for in a ``with`` block or a decorated function.

    A message says from which of your lines the tape ran, how many ops were compiled, what differs from the nearest structure
    compiled before (a shape, a dtype, a parameter, a number, the turns of a loop, which results are held), what would avoid it, how long it
    took, and whether that was in the background.  It comes when the compilation is over; of one in the background, that may be after the
    block.

    The messages go to the logger ``tape.compiles`` of the standard library, as warnings, which Python shows where nothing else was set up;
    without :func:`log_compiles` they are there on level ``DEBUG``.  As a mode it holds for its thread; :meth:`start` switches it on for the
    process, and so do the environment variable ``TAPE_LOG_COMPILES=1`` and JAX's own ``jax_log_compiles``, which has JAX say what it
    compiles as well.

    Raises:
        TapeTypeError: a class is decorated, or a function without parentheses.
        TapeRuntimeError: it is left in a thread that did not enter it.

    Example:
        >>> import logging, tape
        >>> said = logging.Handler()
        >>> said.emit = lambda record: print(record.getMessage().split(": ", 1)[1])
        >>> logging.getLogger("tape.compiles").addHandler(said)
        >>> double = tape.jit(lambda x: x * 2)
        >>> with tape.log_compiles():
        ...     y = double(tape.constant([1.0, 2.0]))  # doctest: +ELLIPSIS
        compiled a step of 1 op (multiply), ... s; first call
        >>> logging.getLogger("tape.compiles").removeHandler(said)

    """

    def _present(self) -> bool:
        return _LOCAL.on

    def _leave(self, old: bool) -> None:
        _LOCAL.on = old

    def start(self) -> None:
        """Log the compilations of all threads, from now on.

        Example:
            >>> import tape
            >>> log = tape.log_compiles()
            >>> log.start()
            >>> log.stop()

        """
        _EVERYWHERE[0] = True

    def stop(self) -> None:
        """Stop logging, except where a thread is in a block or ``jax_log_compiles`` is set; see :meth:`start`."""
        _EVERYWHERE[0] = False


def loud() -> bool:
    """Tell whether compilations that this thread asks for are to be seen."""
    return _LOCAL.on or _EVERYWHERE[0] or bool(jax.config.jax_log_compiles)  # type: ignore[attr-defined]


_getframe = sys._getframe


def flushed(reason: str, site: Site | None) -> Site:
    """Count a run of what is pending; return the site that it comes from, which is ``site`` where that is the one.

    A run costs some microseconds, and to go up the frames would be a part of that.  So each program keeps its last site, with how many
    frames above the user's one is; that one is asked for at once, and tells by its code and instruction whether the run comes from there
    again.
    """
    if site is not None and site.reason is reason:
        try:
            frame = _getframe(site.depth)
        except ValueError:  # there are not so many frames
            return _located(reason)
        if frame.f_code is site.code and frame.f_lasti == site.instruction:
            site.count += 1
            return site
    return _located(reason)


def _located(reason: str) -> Site:
    """Look for the user's frame; count the run."""
    frame, depth = user_frame(_getframe(1))
    site = STATS.sites.of(reason, None if frame is None else (frame.f_code.co_filename, frame.f_lineno))
    if frame is not None:
        site.code, site.instruction, site.depth = frame.f_code, frame.f_lasti, depth
    site.count += 1
    return site


def begun(what: str, site: Site | None, ops: Sequence[str], change: Change, *, line: Line | None = None, number: int = 0) -> Compilation:
    """Note that something is about to be compiled, for a site (in its run ``number``; 0: the present one), or a line."""
    compilation = Compilation(what, line if site is None else site.line, "" if site is None else site.reason or "", ops, change)
    compilation.loud = loud()
    STATS.tell(compilation)
    if site is not None:
        site.compiled(number or site.count, compilation, CLOCK.now - site.count)
    return compilation


def ended(compilation: Compilation, seconds: float, *, background: bool = False, failed: BaseException | None = None) -> None:
    """Note that it is compiled, and log it."""
    compilation.background = background
    compilation.failed = "" if failed is None else f"{type(failed).__name__}: {failed}".splitlines()[0]
    compilation.seconds = seconds
    level = logging.WARNING if compilation.loud else logging.DEBUG
    if LOGGER.isEnabledFor(level):
        with contextlib.suppress(Exception):  # a handler's or filter's own trouble must not end the thread of the compiler
            LOGGER.log(level, "%s: %s", at(compilation.line), described(compilation))


def told(job: Job, compilation: Compilation) -> None:
    """Have it noted when a job has compiled something for this thread."""
    asked = threading.get_ident()
    job.then(lambda job: ended(compilation, job.seconds, background=job.thread != asked, failed=job.error))


@contextlib.contextmanager
def timed(compilation: Compilation, started: float | None = None) -> Iterator[None]:
    """Note how long a block takes, or has taken since, in which something is compiled."""
    started = time.perf_counter() if started is None else started
    try:
        yield
    except Exception as error:
        ended(compilation, time.perf_counter() - started, failed=error)
        raise
    ended(compilation, time.perf_counter() - started)


_ANEW = {"traces": "traces its ops anew, and compiles those that are not small,", "trace": "traces its function anew"}
# What was said of a line, so that it is said in the same words again: Python's filters for warnings go by them.
_SAID: Bounded[Any, str] = Bounded("lines that compile at every step", 512)


def warn_of(site: Site) -> None:
    """Warn of a line at which a loop compiles at every step."""
    compilation, site.due = site.due, None
    if compilation is None:
        return
    change = compilation.change
    key = (site.line, change.kind, change.what)
    message = _SAID.cached(
        key,
        lambda: (
            f"{at(site.line)} {_ANEW.get(compilation.what, 'compiles')} at every step, {site.streak} times by now: from step to step "
            f"{change.what} changes{f' ({change.told})' if change.told else ''}; {change.repair}; "
            f"{'its .explain()' if compilation.what == 'trace' else 'tape.log_compiles()'} tells of each"
        ),
    )
    warn(message, site.line)
