"""Blocks: runs of entries that recur within a tape, or from tape to tape where whole structures do not: a tree's cell, a step of a loop.

A tape that is interpreted is cut where its entries begin to repeat.  A block is known by its kernels and by how they feed each other, not
by where it stands, and one that recurs often enough is compiled, in the background, and runs as one kernel from a later run on.  Which run
that is depends on the runs alone, so that results are the same from run to run.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import jax

from tape import jaxapi
from tape.bounded import Bounded
from tape.configuration import applying, configuration
from tape.graph.trie import CLOCK
from tape.programs import background
from tape.statistics import STATS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterator, Sequence

__all__ = ["Block", "block_of", "cut"]

# Entries of a block. Few are not worth the effort; many rarely recur.
LEAST, MOST = 4, 16

# A block is compiled once it would have saved so many calls, times the square of its number among all compiled: the first ones come
# cheap, and a tail of rare ones does not keep the compiler busy.
PRICE = 8

_NEVER = 1 << 60

# Runs between the order to compile a block and its first use.
DELIVERY = 48


class Block:
    """One form of a block, its entries in order."""

    __slots__ = ("_due", "_executable", "_first", "_job", "_saved")

    def __init__(self) -> None:
        self._first = CLOCK.now
        self._saved = 0  # calls that it would have saved
        self._due = 0
        self._job: background.Job | None = None
        self._executable: Callable[..., Sequence[Any]] | None = None

    def executable(self, size: int) -> Callable[..., Sequence[Any]] | None:
        """Return the compiled block, if there is one by now, and count one more meeting."""
        if self._job is None:
            if self._executable is None:
                self._saved += size - 1
            return self._executable
        if CLOCK.now < self._due:
            return None
        job, self._job = self._job, None
        try:
            job.wait()
        except Exception:  # noqa: BLE001 - its entries may well run one by one
            self._executable, self._first = None, _NEVER
        else:
            STATS.compiled(job.seconds)
        return self._executable

    @property
    def bought(self) -> bool:
        """Whether it is compiled, or will be."""
        return self._executable is not None

    def worthwhile(self) -> bool:
        """Tell whether it is time to compile the block."""
        return self._job is None and self._executable is None and self._first < CLOCK.now and self._saved >= PRICE * (1 + len(_BOUGHT)) ** 2

    def compile(self, entries: Sequence[Any], sources: Sequence[int], results: Sequence[int], operands: Sequence[Any]) -> None:
        """Order a function from the slots ``sources`` to the slots ``results``, for arguments like ``operands``."""
        _BOUGHT.append(None)

        def block(*arrays: Any) -> list[Any]:
            values = dict(zip(sources, arrays, strict=True))
            for entry in entries:
                values.update(zip(entry.slots, entry.kernel.inline(*[values[s] for s in entry.inputs]), strict=True))
            return [values[s] for s in results]

        executable = jax.jit(block)
        described = [jaxapi.described(x) for x in operands]
        settings = configuration()

        def compiled() -> None:
            with applying(settings):
                executable.lower(*described).compile()

        self._due = CLOCK.now + DELIVERY
        self._executable = executable
        self._job = background.submit(compiled)


_BLOCKS: Bounded[Hashable, Block] = Bounded("blocks", 4096)
_BOUGHT: list[None] = []


def block_of(entries: Sequence[Any], last: dict[int, int], end: int) -> tuple[Block, list[int], list[int]]:
    """Return the block of these entries, the slots that it reads, and those of its results that are read later.

    Args:
        entries: the entries, in order.
        last: for each slot, the number of the last entry that reads it.
        end: the number of the entry after the block.

    """
    sources: list[int] = []
    results: list[int] = []
    numbers: dict[int, int] = {}  # slot -> what it is called within the block
    form: list[Any] = []
    for entry in entries:
        form.append(entry.kernel)
        for s in entry.inputs:
            number = numbers.get(s)
            if number is None:
                number = numbers[s] = len(numbers)
                sources.append(s)
            form.append(number)
        for s in entry.slots:
            numbers[s] = len(numbers)
            if last.get(s, -1) >= end:
                results.append(s)
                form.append(-1 - numbers[s])  # which one it is: an entry may have several
    key = (configuration(), *form)
    block = _BLOCKS[key] = _BLOCKS.get(key) or Block()  # the newest again
    return block, sources, results


def cut(entries: Sequence[Any], weights: Collection[int]) -> Iterator[tuple[int, int]]:
    """Cut entries where they begin to repeat.

    Args:
        entries: the entries, in order.
        weights: slots that tell entries of one kernel and line apart: differentiable leaves.

    Yields:
        The number of a block's first entry and of the one after its last, block after block.

    """
    marks = [(e.kernel, e.where, *[s for s in e.inputs if s in weights]) for e in entries]
    counts = Counter(marks)
    start, n = 0, len(entries)
    while start < n:
        end = start + 1
        if counts[marks[start]] > 1 and not entries[start].kernel.pinned:
            while end < n and end - start < MOST:
                mark = marks[end]
                if counts[mark] == 1 or entries[end].kernel.pinned or (mark == marks[start] and end - start >= LEAST):
                    break
                end += 1
        yield start, end
        start = end
