"""Repeats: where a list of symbols says the same several times in a row, as the entries of a Python loop do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

Ints = np.ndarray[Any, np.dtype[np.int64]]

LEAST = 3  # times
SAVED = 24  # symbols that a repeat must save
SHORT = 8  # symbols of a turn that XLA may fuse with the next
MANY = 300  # symbols; a loop of so many compiles in half a second where XLA fuses it
_SHORTER = 6  # symbols: of periods up to it, multiples are met first
_FACTOR = 0x9E3779B97F4A7C15  # of a polynomial, modulo 2**64
_TRIES = 8


class Repeat(NamedTuple):
    """``turns`` times the same ``period`` symbols, from ``start``."""

    start: int
    period: int
    turns: int

    @property
    def end(self) -> int:
        """Where the last one ends."""
        return self.start + self.period * self.turns

    @property
    def saved(self) -> int:
        """How many symbols fewer there are where it is said once."""
        return self.period * (self.turns - 1)


def repeats(symbols: Sequence[Hashable], least: int = LEAST) -> list[Repeat]:
    """Return repeats of ``least`` times or more that do not overlap, in order, each the one that saves most of those that begin first.

    Where loops stand in a loop, that is the outer one, as long as it comes back at all.
    """
    numbers: dict[Hashable, int] = {}
    line = [numbers.setdefault(symbol, len(numbers)) for symbol in symbols]
    if len(numbers) == len(line):
        return []
    symbols_of = np.array(line, np.int64)
    _, which, times = np.unique(_windows(symbols_of), return_inverse=True, return_counts=True)
    if not len(times) or times.max() == 1:
        return []
    ends = np.cumsum(times)
    alike = np.argsort(which, kind="stable")  # those that are the same behind each other, in order
    disjoint = []
    i = 0
    while i < len(which):
        kind = which[i]
        best = _from(symbols_of, i, alike[ends[kind] - times[kind] : ends[kind]], least) if times[kind] > 1 else None
        if best is None:
            i += 1
        else:
            disjoint.append(best)
            i = best.end
    return disjoint


def fused(turn: Sequence[Any]) -> bool:
    """Tell of a loop's kernels whether XLA fuses its turns where they are written out."""
    return len(turn) <= SHORT and all(kernel.picks for kernel in turn)


def written_out(turn: Sequence[Any], turns: int) -> bool:
    """Tell of a loop's kernels whether it is best written out, not one of XLA's: its turns are fused, and there are not too many.

    Products of matrices and sums are not fused, and take the longer to compile the more there are: a recurrent network of 200 steps, five
    entries each, took 7 s, and takes 0.7 as a loop; one that divides by a norm in each of 50 steps took 17 s.
    """
    return turns * len(turn) <= MANY and fused(turn)


def _windows(line: Ints) -> Any:
    """Return a number for the ``SAVED`` symbols from each place on: a hash, so that different ones are seldom equal.

    A repeat that saves that many symbols has the same window again, one period later.
    """
    numbers = line.astype(np.uint64)
    width, by_width = 1, {1: numbers}
    while 2 * width <= SAVED:
        numbers = _followed(numbers, numbers, width)
        width *= 2
        by_width[width] = numbers
    while width < SAVED:
        part = 1 << (SAVED - width).bit_length() - 1
        numbers = _followed(numbers, by_width[part], width)
        width += part
    return numbers


def _followed(first: Any, then: Any, width: int) -> Any:
    """Return the numbers of windows of some width, each followed by another one."""
    rest = then[width:]
    return first[: len(rest)] * np.uint64(pow(_FACTOR, width, 1 << 64)) + rest[: len(first)]


def _from(line: Ints, start: int, places: Ints, least: int) -> Repeat | None:
    """Return the repeat that begins at ``start`` and saves most, if there is one; ``places`` are those where it goes on likewise."""
    best: Repeat | None = None
    at = int(np.searchsorted(places, start, "right"))
    for _ in range(_TRIES):
        if at >= len(places):
            break
        period = int(places[at]) - start
        if period > (len(line) - start) // least:
            break
        end = _end(line, start + period, period)
        repeat = Repeat(start, _shortest(line, start, period), 0)
        repeat = repeat._replace(turns=(end - start) // repeat.period)
        if repeat.turns >= least and repeat.saved >= SAVED and (best is None or repeat.saved > best.saved):
            best = repeat
        # A longer period only says more where this one ends.
        at = max(at + 1, int(np.searchsorted(places, max(start + period, end - period), "right")))
    return best


def _end(line: Ints, at: int, period: int) -> int:
    """Return where symbols end to be the same as one period before, from some place on."""
    width = SAVED
    while at < len(line):
        differ = line[at : at + width] != line[at - period : min(at + width, len(line)) - period]
        if differ.any():
            return at + int(differ.argmax())
        at, width = at + len(differ), 2 * width
    return at


def _shortest(line: Ints, start: int, period: int) -> int:
    """Return the shortest period that one period of a repeat has itself: multiples of short ones are met first."""
    body = line[start : start + period].tolist()
    for shorter in range(1, min(period // 2, _SHORTER) + 1):
        if period % shorter == 0 and body == body[:shorter] * (period // shorter):
            return shorter
    return period
