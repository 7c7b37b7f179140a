"""Execution: how the entries of a structure run, from its leaves to the values that are kept.

A structure met for the first time is interpreted, kernel by kernel.  One that comes back soon is compiled whole, in the background, and
runs compiled from the meeting after that on.  So nothing waits for the compiler that is met once, and which meeting runs how depends on
the meetings alone: results are the same from run to run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from tape import background, jaxapi
from tape.configuration import applying, checks_results, configuration
from tape.failures import StoppedError
from tape.statistics import STATS
from tape.trie import Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tape.trie import State

__all__ = ["Execution"]

# A structure is compiled when it comes back within so many runs, or for the so-manieth time.
SOON = 16
OFTEN = 8


class Execution:
    """How the entries that lead to some slots of a structure run."""

    __slots__ = ("_compiles", "_compiling", "_executable", "_last", "_met", "_size", "keep")

    def __init__(self, state: State, keep: tuple[int, ...]) -> None:
        self.keep = keep
        self._met = int(state.seen > 0)
        self._last = state.seen  # the number of the run that met it last
        self._size = 0  # entries that a run computes
        self._compiles = True  # as far as is known
        self._executable: Callable[..., Sequence[Any]] | None = None
        self._compiling: tuple[background.Job, Callable[..., Sequence[Any]]] | None = None

    def run(self, state: State, leaves: Sequence[Any]) -> Sequence[Any]:
        """Return the values kept, for the values of all leaves; ``state`` is the structure, which is not held: it holds its executions."""
        executable = self._executable
        if executable is not None and not jaxapi.in_trace():
            STATS.executed += self._size
            STATS.hits += 1
            return executable(*leaves)
        with jaxapi.ensure_compile_time_eval():  # inside a JAX transformation, what is concrete runs concretely
            return self._run(state, leaves)

    def _run(self, state: State, leaves: Sequence[Any]) -> Sequence[Any]:
        self._met += 1
        Clock.now += 1
        soon = Clock.now - self._last <= SOON
        self._last = Clock.now
        if checks_results():  # one program for all would show what is wrong with its results only
            return self._interpret(state, leaves)
        compiling = self._compiling
        if compiling is not None:
            job, executable = compiling
            try:
                job.wait()
            except Exception:  # noqa: BLE001 - the compiler refuses the whole: each entry on its own may well run
                self._compiles = False
            else:
                self._executable = executable
                STATS.compiled(job.seconds)
            finally:  # after Ctrl-C it is compiled anew
                self._compiling = None
        if self._executable is not None:
            STATS.executed += self._size
            STATS.hits += 1
            return self._executable(*leaves)
        if self._compiles and self._met > 1 and (soon or self._met >= OFTEN):
            self._compile(state, leaves)
        return self._interpret(state, leaves)

    def _interpret(self, state: State, leaves: Sequence[Any]) -> list[Any]:
        """Run kernel by kernel, each compiled on its own and shared by all structures."""
        entries, slots = needed_entries(state, self.keep)
        values: list[Any] = [None] * state.n_slots
        for slot, value in zip(slots, leaves, strict=True):
            values[slot] = value
        for step, dropped in zip(entries, _last_uses(entries, self.keep), strict=True):
            try:
                results = step.kernel.executable(*[values[s] for s in step.inputs])
            except Exception as error:
                raise StoppedError(entries.index(step), values) from error
            start = step.slots[0]
            if len(results) == 1:
                values[start] = results[0]
            else:
                values[start : start + len(results)] = results
            for s in dropped:
                values[s] = None
        self._size = len(entries)
        STATS.executed += self._size
        STATS.interpreted += self._size
        return [values[s] for s in self.keep]

    def _compile(self, state: State, leaves: Sequence[Any]) -> None:
        """Begin to make one compiled function of the whole."""
        entries, slots = needed_entries(state, self.keep)
        n_slots, keep = state.n_slots, self.keep

        def segment(*leaves: Any) -> list[Any]:
            values: list[Any] = [None] * n_slots
            for slot, value in zip(slots, leaves, strict=True):
                values[slot] = value
            for step in entries:
                for slot, result in zip(step.slots, step.kernel.inline(*[values[s] for s in step.inputs]), strict=True):
                    values[slot] = result
            return [values[s] for s in keep]

        executable = jax.jit(segment)
        described = [jaxapi.described(x) for x in leaves]
        settings = configuration()

        def compiled() -> None:
            with applying(settings):
                executable.lower(*described).compile()  # a call finds what was compiled before for the same shapes, dtypes and devices

        self._compiling = background.submit(compiled), executable


def needed_entries(state: State, keep: tuple[int, ...]) -> tuple[list[Any], list[int]]:
    """Return the entries that ``keep`` depends on, in order, and the slots of all leaves."""
    wanted = set(keep)
    chosen = []
    leaves = []
    for step in reversed(state.path()):
        if step.kernel is None:
            leaves.extend(step.slots)
        elif not wanted.isdisjoint(step.slots):
            wanted.update(step.inputs)
            chosen.append(step)
    return chosen[::-1], leaves[::-1]


def _last_uses(entries: list[Any], keep: tuple[int, ...]) -> list[Sequence[int]]:
    """Return for each entry the slots that nothing after it reads, so that big values are freed as they would be by plain Python."""
    later = set(keep)
    found: list[Sequence[int]] = []
    for step in reversed(entries):
        dropped = [s for s in (*step.inputs, *step.slots) if s not in later]
        later.update(dropped)
        found.append(dropped)
    found.reverse()
    return found
