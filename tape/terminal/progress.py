"""Progress: a bar for work that takes long, by rich or tqdm where one of them is installed, and nothing where there is no terminal."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from tape.terminal import is_terminal

Item = TypeVar("Item")
PATIENCE = 1.0  # seconds of stages that nobody asks about


def progress(items: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]:
    """Yield items beside a bar on the standard error output, which goes when all are done.

    The bar is drawn between items, and by no thread of its own, so that what is timed is not disturbed.  Lines that are printed meanwhile
    stand above it.

    Args:
        items: what is worked on.
        description: what is done, in a word or two.
        total: how many items there are, where they have no ``len``.

    Returns:
        An iterator over ``items``.

    Example:
        >>> from tape.terminal.progress import progress
        >>> [2 * i for i in progress(range(3), "doubling")]
        [0, 2, 4]

    """
    count = len(items) if total is None and isinstance(items, Sized) else total
    with _shown(description, count) as bar:
        for item in items:
            yield item
            if bar is not None:
                bar.advance(1)


@contextlib.contextmanager
def stages(description: str, total: int | None = None) -> Iterator[Callable[[str], None]]:
    """Give out what is to be called as each stage of some work begins, with what it is; the bar is shown if the work takes a second.

    Example:
        >>> from tape.terminal.progress import stages
        >>> with stages("baking", 2) as begin:
        ...     begin("kneading")
        ...     begin("waiting")

    """
    began = time.perf_counter()
    number = -1  # stages that are over
    bar: _Bar | None = None
    with contextlib.ExitStack() as stack:

        def begin(what: str) -> None:
            nonlocal bar, number
            number += 1
            if bar is not None:
                bar.advance(1)
            elif time.perf_counter() - began >= PATIENCE and (bar := stack.enter_context(_shown(description, total))) is not None:
                bar.advance(number)
            if bar is not None:
                bar.say(f"{description}: {what}" if what else description)

        yield begin


def working_on(what: str) -> None:
    """Say beside the bar that is shown, if there is one, what its present item works on."""
    if _ACTIVE:
        bar, description = _ACTIVE[-1]
        bar.say(f"{description}: {what}")


class _Bar(NamedTuple):
    """A bar that is shown: what counts what is done, has another description stand beside it, and takes it away."""

    advance: Callable[[int], object]
    say: Callable[[str], object]
    close: Callable[[], object]


_ACTIVE: list[tuple[_Bar, str]] = []  # a bar is shown: one inside of it is not


@contextlib.contextmanager
def _shown(description: str, total: int | None) -> Iterator[_Bar | None]:
    """Show a bar, by the first library that is installed; None where nothing is to be shown."""
    drawn = ((draw, module) for name, draw in _LIBRARIES if (module := _imported(name)) is not None)
    draw, module = next(drawn, (None, None)) if shows() and not _ACTIVE else (None, None)
    if draw is None:
        yield None
        return
    bar = draw(module, description, total)
    _ACTIVE.append((bar, description))
    try:
        yield bar
    finally:
        _ACTIVE.clear()
        bar.close()


def shows() -> bool:
    """Tell whether the standard error output is a terminal on which a line can be drawn again."""
    return is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb"


def _imported(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _by_rich(library: Any, description: str, total: int | None) -> _Bar:
    console = importlib.import_module("rich.console").Console(stderr=True)
    columns = [
        library.TextColumn("{task.description}", markup=False),
        library.BarColumn(bar_width=24),
        library.MofNCompleteColumn(),
        library.TimeElapsedColumn(),
    ]
    if total is not None:
        columns += [library.TextColumn("left"), library.TimeRemainingColumn()]
    # What is printed meanwhile goes by the console, unless it goes to a file or a pipe.
    drawn = library.Progress(*columns, console=console, transient=True, auto_refresh=False, redirect_stdout=is_terminal())
    task = drawn.add_task(description, total=total)
    drawn.start()
    drawn.refresh()

    def update(**changes: Any) -> None:
        drawn.update(task, refresh=True, **changes)

    return _Bar(lambda count: update(advance=count), lambda text: update(description=text), drawn.stop)


def _by_tqdm(library: Any, description: str, total: int | None) -> _Bar:
    drawn = library.tqdm(total=total, desc=description, leave=False, file=sys.stderr, mininterval=0)
    return _Bar(drawn.update, drawn.set_description, drawn.close)


_LIBRARIES = ("rich.progress", _by_rich), ("tqdm", _by_tqdm)
