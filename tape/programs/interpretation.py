"""Interpretation: the entries of a structure run one by one, or block by block, each kernel compiled on its own and shared by all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tape.graph.walks import last_uses, needed
from tape.programs.blocks import LEAST, block_of, cut
from tape.programs.failures import StoppedError
from tape.programs.preparation import prepare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tape.graph.trie import State

__all__ = ["interpret", "needed_entries"]

_NEVER = 1 << 60  # after the last entry


def needed_entries(state: State, keep: tuple[int, ...]) -> tuple[list[Any], list[int]]:
    """Return the entries that ``keep`` depends on, in order, and the slots of all leaves."""
    path = state.path()
    leaves = [slot for step in path if step.kernel is None for slot in step.slots]
    return [step for step in needed(path, set(keep)) if step.kernel is not None], leaves


def interpret(state: State, keep: tuple[int, ...], leaves: Sequence[Any], *, by_blocks: bool) -> tuple[list[Any], int]:
    """Run what ``keep`` depends on.

    Args:
        state: the structure.
        keep: the slots whose values are wanted.
        leaves: the values of its leaves.
        by_blocks: whether recurring runs of entries may run as one.

    Returns:
        The values of ``keep``, and how many entries ran.

    Raises:
        StoppedError: an entry failed.

    """
    entries, slots = needed_entries(state, keep)
    prepare(entries, slots, leaves)
    values: list[Any] = [None] * state.n_slots
    for slot, value in zip(slots, leaves, strict=True):
        values[slot] = value
    last = {**last_uses(entries), **dict.fromkeys(keep, _NEVER)}
    if not by_blocks or len(entries) < 2 * LEAST:
        _run(entries, 0, len(entries), values, last)
        return [values[s] for s in keep], len(entries)
    table = state.table
    weights = {s for s in slots if table[s].kind.requires_grad}
    for start, end in cut(entries, weights):
        if end - start < LEAST or not _run_block(entries[start:end], end, values, last):
            _run(entries, start, end, values, last)
    return [values[s] for s in keep], len(entries)


def _run(entries: Sequence[Any], start: int, end: int, values: list[Any], last: dict[int, int]) -> None:
    """Run some entries one by one, and drop what nothing after them reads, so that big values are freed as by plain Python."""
    for i in range(start, end):
        entry = entries[i]
        inputs = entry.inputs
        try:
            results = entry.kernel.executable(*[values[s] for s in inputs])
        except Exception as error:
            raise StoppedError(i, values) from error
        for s in inputs:
            if last[s] == i:
                values[s] = None
        for s, result in zip(entry.slots, results, strict=True):
            if s in last:
                values[s] = result


def _run_block(entries: Sequence[Any], end: int, values: list[Any], last: dict[int, int]) -> bool:
    """Run entries as one, if they are compiled by now; tell whether they are."""
    block, sources, wanted = block_of(entries, last, end)
    executable = block.executable(len(entries))
    operands = [values[s] for s in sources]
    if executable is None:
        if block.worthwhile():
            block.compile(entries, sources, wanted, operands)
        return False
    try:
        results = executable(*operands)
    except Exception:  # noqa: BLE001 - one by one, they tell which one it was
        return False
    for s in sources:
        if last[s] < end:
            values[s] = None
    for s, result in zip(wanted, results, strict=True):
        values[s] = result
    return True
