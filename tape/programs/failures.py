"""Failures: what becomes of a segment when one of its entries fails while it runs, and what is not there any more.

Entries run later than they are recorded, many at once.  When such a run fails, the entries are gone through one by one: those that do not
depend on a failing one get their values, and whoever looks at the others is told which op failed and on which line it was recorded.
What no entry is to blame for (Ctrl-C, memory used up) leaves the segment pending, to be run again.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import jax

from tape.errors import ExecutionError, NonFiniteError, OutOfMemoryError, ReleasedTapeError, TapeError
from tape.graph.boundary import DELETED, is_deleted
from tape.graph.segment import LeafNode, Run, Segment
from tape.graph.trie import State, Step


class Failure:
    """Why an entry has no value: the entry that failed, and the error it raised (None where it is one of several suspects)."""

    __slots__ = ("cause", "certain", "lost", "name", "shapes", "where")

    def __init__(self, entry: Step, cause: Exception, *, certain: bool = True, lost: str | None = None) -> None:
        self.name: str = entry.kernel.name
        self.where: tuple[str, int] | None = entry.where
        self.shapes = ", ".join(f"shape {a.shape}, dtype {a.dtype}" for a in entry.kernel.out_avals[:3])
        self.cause = cause
        self.certain = certain
        self.lost = lost  # what its input was, if that is why

    def error(self) -> TapeError:
        """Return a new error that says so."""
        recorded = "" if self.where is None else f", first recorded at {self.where[0]}:{self.where[1]},"
        reason = _reason(self.cause)
        if self.lost is not None:
            what, repair = (
                f"{self.name}{recorded} failed when it ran ({self.shapes}): the array of {self.lost} {DELETED}",
                "then record it again",
            )
        elif self.certain and isinstance(self.cause, FloatingPointError):  # JAX has a paragraph on functions that it ran again
            infinite = re.findall(r"\b(?:nan|inf)\b", reason)[:1] == ["inf"]
            made = "an infinity, which jax_debug_infs forbids" if infinite else "a NaN, which jax_debug_nans forbids"
            what = f"{self.name}{recorded} made {made} ({self.shapes})"
            repair = "keep what leads there in the domain of the op (a clip, a where around its input), or look at its inputs"
        elif self.certain:
            what = f"{self.name}{recorded} failed when it ran ({self.shapes}): {reason}"
            repair = "what does not depend on it has its values; correct the op or its inputs, and record it again"
        else:
            what = f"{self.name}{recorded} was part of a program that failed when it ran ({self.shapes}): {reason}"
            repair = "it has side effects, so it is not run a second time; record it again"
        msg = f"{what}; {repair}"
        return (NonFiniteError if isinstance(self.cause, FloatingPointError) else ExecutionError)(msg)


class StoppedError(Exception):
    """An entry failed while entries ran one by one, after so many; its cause is the error, ``values`` are those there are."""

    def __init__(self, done: int, values: dict[int, Any]) -> None:
        super().__init__()
        self.done = done
        self.values = values


@contextlib.contextmanager
def naming(state: State, slot: int, what: str) -> Iterator[None]:
    """Add to an error that a user's function raises in a sweep which entry (the one that made ``slot``) it was called for, and its line."""
    try:
        yield
    except Exception as error:
        entry = next(e for e in state.path() if slot in e.slots)
        name = "a leaf" if entry.kernel is None else entry.kernel.name
        at = "" if entry.where is None else f", first recorded at {entry.where[0]}:{entry.where[1]}"
        error.add_note(f"raised by {what} {name}{at}")
        raise


def failed_entry(segment: Segment, entry: Step, error: Exception, operands: Sequence[Any]) -> BaseException:
    """Return what to raise for an entry that failed when it ran on its own."""
    return _nobody_to_blame(error, [entry]) or Failure(entry, error, lost=_deleted(segment, entry, operands)).error()


def _deleted(segment: Segment, entry: Step, operands: Sequence[Any]) -> str | None:
    """Say which operand of an entry was deleted; None where all are there."""
    for i, (slot, operand) in enumerate(zip(entry.inputs, operands, strict=True)):
        if is_deleted(operand):
            end = segment.origins.get(slot)
            variable = end.ref() if isinstance(end, LeafNode) else None
            name = variable._extra.name if variable is not None and variable._extra is not None else None
            return f"its input {i} ({'' if name is None else f'{name!r}, '}shape {operand.shape}, dtype {operand.dtype})"
    return None


def check_slots(segment: Segment, slots: Sequence[int]) -> None:
    """Raise the error of the first slot that has no value because an entry failed."""
    run = segment.run
    if run is not None and run.failed:
        for slot in slots:
            failure = run.failed.get(slot)
            if failure is not None:
                raise failure.error() from failure.cause


def check_kept(segment: Segment, entries: Collection[int]) -> None:
    """Refuse to go through entries, by their depths, that were released."""
    if segment.released.isdisjoint(entries):
        return
    last = next(s for s in reversed(segment.state.path()) if s.kernel is not None and s.depth in segment.released and s.depth in entries)
    msg = (
        f"the sweep reached a part of the tape that an earlier sweep released, {named(last)}; pass retain_graph=True to the first "
        "backward() or gradients() call, compute the outputs again, or .detach() what was computed before and is a constant"
    )
    raise ReleasedTapeError(msg)


def named(entry: Step) -> str:
    """Say which op an entry is, and where it was recorded."""
    return entry.kernel.name if entry.where is None else f"{entry.kernel.name} ({entry.where[0]}:{entry.where[1]})"


def salvage(segment: Segment, entries: Sequence[Step], leaf_slots: Sequence[int], error: Exception) -> None:
    """Run the entries of a segment whose run failed one by one, and hand out what can be computed; the segment is no longer pending.

    Entries with side effects may have run already, and are not run again.  Where no entry is to blame the segment stays as it was.
    """
    stopped = error if isinstance(error, StoppedError) else None
    cause = error.__cause__ if stopped else error
    assert isinstance(cause, Exception)
    values = stopped.values if stopped else dict(zip(leaf_slots, [cell[0] for cell in segment.leaves], strict=True))
    done = stopped.done if stopped else 0
    interruption = _nobody_to_blame(cause, entries[done : done + 1] if stopped else entries)
    if interruption is not None:
        raise interruption from cause
    failed: dict[int, Failure] = {}
    for i, entry in enumerate(entries[done:]):
        failure = next((failed[s] for s in entry.inputs if s in failed), None)
        lost = None if failure is not None else _deleted(segment, entry, [values[s] for s in entry.inputs])
        if (stopped and i == 0) or lost is not None:
            failure = Failure(entry, cause, lost=lost)
        elif failure is None and not stopped and entry.kernel.jaxpr.effects:
            failure = Failure(entry, cause, certain=False)
        if failure is None:
            results = _attempt(entry, [values[s] for s in entry.inputs])
            if not isinstance(results, Failure):
                values.update(zip(entry.slots, results, strict=True))
                continue
            failure = results
        failed.update(dict.fromkeys(entry.slots, failure))
    _hand_out(segment, values, failed, set(leaf_slots))


def _attempt(entry: Step, operands: list[Any]) -> Sequence[Any] | Failure:
    """Run one entry; a failure keeps nothing alive but its operands."""
    try:
        return jax.block_until_ready(entry.kernel.executable(*operands))  # type: ignore[no-any-return]
    except Exception as error:
        interruption = _nobody_to_blame(error, [entry])
        if interruption is not None:
            raise interruption from error
        return Failure(entry, error)


def _hand_out(segment: Segment, values: dict[int, Any], failed: dict[int, Failure], leaf_slots: set[int]) -> None:
    """Keep every value there is: a sweep that fails releases nothing, and another one may follow."""
    cells = segment.cells
    saved: dict[int, Any] = {}
    for slot, value in values.items():
        if slot not in leaf_slots or slot in cells:  # a cotangent that a sweep hands on is the seed that entered
            cell = saved[slot] = cells.get(slot) or [None]
            cell[0] = value
    segment.ran(Run(saved, failed))


def _nobody_to_blame(error: Exception, entries: Sequence[Step]) -> BaseException | None:
    """Return what to raise where running the same again may well succeed; None where an entry failed."""
    reason = _reason(error)
    if reason.startswith("KeyboardInterrupt"):  # inside a callback, and XLA makes an error of its own of it
        return KeyboardInterrupt(reason)
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        lines = [f"{e.where[0]}:{e.where[1]}" for e in entries if e.where is not None]
        where = "" if not lines else f" at {lines[0]}" if len(set(lines)) == 1 else f" from {lines[0]} to {lines[-1]}"
        names = entries[0].kernel.name if len(entries) == 1 else f"a program of {len(entries)} ops"
        msg = f"{names}, recorded{where}, ran out of memory: {reason}; free some (drop Variables, smaller batches), and look again"
        return OutOfMemoryError(msg)
    return None


def _reason(error: BaseException) -> str:
    """Return the line of an error's message that says what happened: the last one of a traceback (of a callback), else the first."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1 if "Traceback" in text else 0] if lines else type(error).__name__
