"""Progress: a bar for work that takes long, by rich or tqdm where one of them is installed, and nothing where there is no terminal."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sized
from typing import TYPE_CHECKING, Any, TypeVar

from tape.terminal import is_terminal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

Item = TypeVar("Item")


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
    if shows() and not _ACTIVE:
        for name, bar in (("rich.progress", _by_rich), ("tqdm", _by_tqdm)):
            library = _imported(name)
            if library is not None:
                return _alone(bar(library, items, description, count))
    return iter(items)


_ACTIVE: list[None] = []  # a bar is shown: one inside of it is not


def _alone(bar: Iterator[Item]) -> Iterator[Item]:
    _ACTIVE.append(None)
    try:
        yield from bar
    finally:
        _ACTIVE.clear()


def shows() -> bool:
    """Tell whether the standard error output is a terminal on which a line can be drawn again."""
    return is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb"


def _imported(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _by_rich(library: Any, items: Iterable[Item], description: str, total: int | None) -> Iterator[Item]:
    console = importlib.import_module("rich.console").Console(stderr=True)
    columns = [
        library.TextColumn("{task.description}"),
        library.BarColumn(bar_width=24),
        library.MofNCompleteColumn(),
        library.TimeElapsedColumn(),
    ]
    if total is not None:
        columns += [library.TextColumn("left"), library.TimeRemainingColumn()]
    # What is printed meanwhile goes by the console, unless it goes to a file or a pipe.
    both = is_terminal()
    with library.Progress(*columns, console=console, transient=True, auto_refresh=False, redirect_stdout=both) as bar:
        task = bar.add_task(description, total=total)
        bar.refresh()
        for item in items:
            yield item
            bar.advance(task)
            bar.refresh()


def _by_tqdm(library: Any, items: Iterable[Item], description: str, total: int | None) -> Iterator[Item]:
    bar = library.tqdm(total=total, desc=description, leave=False, file=sys.stderr, mininterval=0)
    try:
        for item in items:
            yield item
            bar.update()
    finally:
        bar.close()
