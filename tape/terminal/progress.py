"""Progress: a bar for work that takes long, by rich or tqdm where one of them is installed, and nothing where there is no terminal."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
from collections.abc import Sized
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tape.terminal import is_terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

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
    library = _library()
    count = len(items) if total is None and isinstance(items, Sized) else total
    return iter(items) if library is None else _beside(library, items, description, count)


def _beside(library: _Library, items: Iterable[Item], description: str, total: int | None) -> Iterator[Item]:
    with _shown(library, description, total) as bar:
        for item in items:
            yield item
            bar.advance()


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
    bar: Bar | None = None
    with contextlib.ExitStack() as stack:

        def begin(what: str) -> None:
            nonlocal bar, number
            number += 1
            if bar is None and time.perf_counter() - began >= PATIENCE:
                library = _library()
                if library is None:
                    return
                bar = stack.enter_context(_shown(library, description, total))
                bar.advance(number)
            elif bar is not None:
                bar.advance()
            if bar is not None:
                bar.say(f"{description}: {what}" if what else description)

        yield begin


def working_on(what: str) -> None:
    """Say beside the bar that is shown, if there is one, what its present item works on."""
    if _ACTIVE:
        bar, description = _ACTIVE[-1]
        bar.say(f"{description}: {what}")


class Bar(Protocol):
    """A bar that is shown."""

    def advance(self, count: int = 1) -> None:
        """Count what is done."""

    def say(self, text: str) -> None:
        """Have another description stand beside it."""

    def close(self) -> None:
        """Take it away."""


_Library = tuple["type[_Rich | _Tqdm]", "ModuleType"]
_ACTIVE: list[tuple[Bar, str]] = []  # a bar is shown: one inside of it is not


def _library() -> _Library | None:
    """Return what draws; None where nothing is to be."""
    if shows() and not _ACTIVE:
        for name, bar in (("rich.progress", _Rich), ("tqdm", _Tqdm)):
            library = _imported(name)
            if library is not None:
                return bar, library
    return None


@contextlib.contextmanager
def _shown(library: _Library, description: str, total: int | None) -> Iterator[Bar]:
    make, module = library
    bar = make(module, description, total)
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


class _Rich:
    """A bar by rich."""

    def __init__(self, library: Any, description: str, total: int | None) -> None:
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
        both = is_terminal()
        self._bar = library.Progress(*columns, console=console, transient=True, auto_refresh=False, redirect_stdout=both)
        self._task = self._bar.add_task(description, total=total)
        self._bar.start()
        self._bar.refresh()

    def advance(self, count: int = 1) -> None:
        self._bar.advance(self._task, count)
        self._bar.refresh()

    def say(self, text: str) -> None:
        self._bar.update(self._task, description=text)
        self._bar.refresh()

    def close(self) -> None:
        self._bar.stop()


class _Tqdm:
    """A bar by tqdm."""

    def __init__(self, library: Any, description: str, total: int | None) -> None:
        self._bar = library.tqdm(total=total, desc=description, leave=False, file=sys.stderr, mininterval=0)

    def advance(self, count: int = 1) -> None:
        self._bar.update(count)

    def say(self, text: str) -> None:
        self._bar.set_description(text)

    def close(self) -> None:
        self._bar.close()
