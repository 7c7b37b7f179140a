"""Deferral: gradients that an optimizer's step has used are no results of its program, as long as nobody looks at them.

Most programs never read them: the next step drops them.  Each as a result costs 2 us, which is a quarter of the step of a small model with
SGD, and keeps XLA from fusing it into the update.  So the program of a step that ran often gets a second one without them, in the
background.  From then on gradients have no values after a step; the segment keeps the values that it ran on, and who looks has the first
program run on these.  That program is then the one that runs, until four times as many steps have passed.

What a segment keeps for that is small, and gone when the same step runs again: gradients that somebody still holds get their values then.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tape import jaxapi
from tape.accounts.records import Change
from tape.configuration import applying
from tape.errors import ExecutionError, OutOfMemoryError
from tape.graph.boxes import Cell
from tape.graph.segment import NOTHING, Segment
from tape.graph.trie import SWEEP, State
from tape.layout import Choice
from tape.ops.building import JaxprBuilder
from tape.programs import numbers
from tape.programs.devices import settling, there_are_several
from tape.programs.foresight import Part
from tape.programs.retention import forget, held, stored
from tape.statistics import STATS

FEW = 16  # steps, before the second program is compiled,
DEARER = 4  # and times as many after each look, before it runs again
BYTES = 1 << 22  # of what a segment keeps
GRADIENTS = "gradients"  # under which a structure that ends with an optimizer's update knows the slots of the gradients that this reads


# What a segment that has run keeps of gradients without values: the program that has them, what it ran on, and their cells by slot.
Deferred = tuple["Choice", "list[Cell]", "dict[int, Cell]"]


def deferring(program: Choice, state: State, part: Part | None) -> Deferral | None:
    """Return what has gradients of a compiled program wait; None where it has none, or somebody else sees what it computes."""
    slots = state.known_of(GRADIENTS)
    if slots is None or part is None or part.jaxpr.effects or program.kept.history or there_are_several():
        return None
    later = slots.intersection(program.live)
    if not later or state.path()[0].mode == SWEEP:  # a look parts such a step into two programs, see tape.programs.foresight
        return None
    return Deferral(program, part, later)


class Deferral:
    """Whether the gradients of a program are among its results: decided as each run ends, for the next one."""

    def __init__(self, program: Choice, part: Part, later: frozenset[int]) -> None:
        live = program.live
        self._part = part
        self.later = tuple([slot for slot in live if slot in later])
        self.others = tuple([slot for slot in live if slot not in later])
        self._calls, self._due, self._wanted = 0, FEW, FEW
        self._further: numbers.Further | None = None
        self._whole = program.executable  # with all results: known from the beginning, as several threads may change over at once
        self._brief: Callable[..., Sequence[Any]] | None = None
        self.before: Callable[[], Segment | None] = lambda: None  # the segment whose gradients wait

    def stored(self, segment: Segment, program: Choice, results: Sequence[Any]) -> bool:
        """Store the results of a run without gradients in its segment; return False, with nothing done, where all results are there."""
        if len(results) == len(program.live):
            self._calls += 1
            if self._calls >= self._due:
                self._advance(program, [cell[0] for cell in segment.leaves])
            return False
        before, self.before = self.before(), weakref.ref(segment)
        if before is not None:
            _drop(before)
        cells = segment.cells
        stored(cells, self.others, results)
        waits: Deferred = program, segment.leaves, {slot: cells[slot] for slot in self.later}
        segment.ran(NOTHING._replace(deferred=waits))
        forget(segment, origins=program.roots > 0)
        return True

    def _advance(self, program: Choice, values: Sequence[Any]) -> None:
        """Have the program without gradients compiled, or run from now on."""
        if self._further is None:
            self._due = self._calls + self._part.work.calls
            self._begin(program.live, values)
        elif self._brief is None and (made := self._further.made()) is not None:
            self._brief = settling(numbers.reading(self._further.run, self._part.used, len(values))) if made else None
            self._due = self._due if made else sys.maxsize
        if self._brief is not None:
            program.executable = self._brief

    def _begin(self, live: tuple[int, ...], values: Sequence[Any]) -> None:
        part = self._part
        if sum([getattr(x, "nbytes", 0) for x in values]) > BYTES:
            self._due = sys.maxsize
            return
        joined = JaxprBuilder(once=True)
        results = joined.inline(part.jaxpr, [joined.input(v.aval) for v in part.jaxpr.jaxpr.invars])
        closed = joined.closed([results[live.index(slot)] for slot in self.others])
        compiling = numbers.compiling(closed, [values[i] for i in part.used], part.settings, part.work)
        change = Change("deferred", "gradients that nobody looks at are results no longer")
        self._further = numbers.Further(*compiling, part.work, change, "gradients that nobody looks at")

    def compute(self, deferred: Deferred) -> None:
        """Give gradients their values, and have the program with all results run again for a while."""
        program, leaves, cells = deferred
        whole = self._whole
        assert whole is not None, "a gradient waits only where there is another program"
        with jaxapi.ensure_compile_time_eval() if jaxapi.in_trace() else contextlib.nullcontext():
            try:
                results = whole(*[cell[0] for cell in leaves])
            except Exception as error:
                msg = (
                    f"a gradient had no value, as an optimizer's step had used it and nobody had looked, and could not be computed again "
                    f"({error}); look at gradients before the step, or do not delete arrays that the step read"
                )
                raise (OutOfMemoryError if "RESOURCE_EXHAUSTED" in str(error) else ExecutionError)(msg) from error
        STATS.executed += program.size
        stored(cells, self.later, [results[program.live.index(slot)] for slot in self.later])
        if program.executable is self._brief:
            self._wanted *= DEARER
            self._due = self._calls + self._wanted
            program.executable = whole


def fetch(segment: Segment) -> None:
    """Compute the gradients that wait in a segment that has run, if there are any."""
    with segment.lock:
        run = segment.run
        if run is not None and run.deferred is not None:
            with applying(segment.configuration):
                run.deferred[0].kept.deferral.compute(run.deferred)
            segment.run = run._replace(deferred=None)


def _drop(segment: Segment) -> None:
    """Have the gradients of a segment that has run wait no longer; those that somebody holds are computed."""
    if not segment.lock.acquire(blocking=False):  # somebody is about to look
        return
    try:
        run = segment.run
        if run is not None and run.deferred is not None:
            if held(run.deferred[2]):
                with contextlib.suppress(ExecutionError, OutOfMemoryError):  # whoever looks at them is told, not the step that comes now
                    fetch(segment)
            else:
                segment.run = run._replace(deferred=None)
    finally:
        segment.lock.release()
