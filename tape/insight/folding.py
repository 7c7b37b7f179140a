"""Folding: blocks of entries that come several times in a row are shown once, with their count."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, TypeAlias, Union

from tape.insight.entries import Entry

_LONGEST = 4096  # entries in a block


class Block(NamedTuple):
    """``times`` times the same ``items``, of which the first ones are shown; ``first`` and ``last`` number the entries of all."""

    times: int
    items: tuple[Item, ...]
    first: int
    last: int


Item: TypeAlias = Union[Entry, "Block"]


def folded(entries: Sequence[Entry]) -> list[Item]:
    """Return entries, with blocks in the places of those that come again at once; blocks stand in blocks where loops stand in loops.

    Entries are alike where op, line, shapes and dtypes are, and both or none belong to a sweep: what they read is another iteration's.
    """
    items: list[Item] = list(entries)
    symbols: list[Hashable] = [symbol(entry) for entry in entries]
    while True:
        repeats = _repeats(symbols)
        if not repeats:
            return items
        new_items: list[Item] = []
        new_symbols: list[Hashable] = []
        at = 0
        for start, period, times in repeats:
            new_items += items[at:start]
            new_symbols += symbols[at:start]
            body = tuple(items[start : start + period])
            at = start + period * times
            new_items.append(Block(times, body, _numbers(body[0])[0], _numbers(items[at - 1])[1]))
            new_symbols.append((times, tuple(symbols[start : start + period])))
        items = new_items + items[at:]
        symbols = new_symbols + symbols[at:]


def symbol(entry: Entry) -> Hashable:
    """Return what entries are alike by."""
    results = tuple((v.shape, v.dtype) for v in entry.outputs)
    return entry.op, entry.where, results, entry.sweep is None, entry.no_grad, entry.inside


def _numbers(item: Item) -> tuple[int, int]:
    return (item.first, item.last) if isinstance(item, Block) else (item.number, item.number)


def _repeats(symbols: Sequence[Hashable]) -> list[tuple[int, int, int]]:
    """Return starts, periods and counts of repeats that do not overlap: from each place, the shortest period that saves two lines."""
    numbers: dict[Hashable, int] = {}
    line = [numbers.setdefault(s, len(numbers)) for s in symbols]
    following: list[int] = [len(line)] * len(line)  # where each comes again
    met: dict[int, int] = {}
    for i in range(len(line) - 1, -1, -1):
        following[i] = met.get(line[i], len(line))
        met[line[i]] = i
    disjoint = []
    i = 0
    while i < len(line):
        at, period, times = following[i], 1, 1
        while at < len(line) and at - i <= min(_LONGEST, (len(line) - i) // 2):
            period = at - i
            end = at
            while end < len(line) and line[end] == line[end - period]:
                end += 1
            times = (end - i) // period
            if times >= 2 and (times - 1) * period >= 2:
                disjoint.append((i, period, times))
                break
            at, period, times = following[at], 1, 1
        i += period * times
    return disjoint
