"""Execution: how the entries of a structure run, from its leaves to the values that are kept.

A structure met for the first time is interpreted, kernel by kernel.  One that comes back soon is compiled whole, in the background, and
runs compiled from the next meeting on if that comes as soon as a loop's, else from one that leaves the compiler some time.  So nothing
waits for the compiler that is met once, what comes back by chance hardly does, and which meeting runs how depends on the meetings alone:
results are the same from run to run.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import jax

from tape import jaxapi
from tape.bounded import Bounded
from tape.configuration import checks_results, configuration
from tape.graph.trie import CLOCK
from tape.programs import background, numbers, variations
from tape.programs.interpretation import evaluate, interpret, needed_entries
from tape.programs.rolling import rolled
from tape.statistics import STATS

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from tape.configuration import Configuration
    from tape.graph.trie import State, Step
    from tape.ops.kernel import Kernel
    from tape.programs.retention import Kept

# A structure is compiled when it comes back within so many runs, times the square of its meetings; or for the so-manieth time.
SOON = 1
OFTEN = 16
LOOP = 6  # a loop meets a structure every so many runs at most, and waits for its program
PATIENCE = 32  # what comes back less often waits for it only so many runs after the compiler began

_inline = operator.attrgetter("kernel.inline")


class Program:
    """What a segment computes for one choice of results: the slots ``live`` that Variables hold, and what is kept besides.

    ``roots`` tells how many Variables that are held require grad.
    """

    __slots__ = ("_begun", "_compiles", "_compiling", "_executable", "_last", "_met", "_size", "keep", "kept", "live", "roots")

    def __init__(self, state: State, live: tuple[int, ...], kept: Kept, roots: int) -> None:
        self.live = live
        self.kept = kept
        self.keep = live + kept.residuals
        self.roots = roots
        self._met = int(state.seen > 0)
        self._last = state.seen  # the number of the run that met it last
        self._begun = 0  # the number of the run that had it compiled
        self._size = 0  # entries that a run computes
        self._compiles = True  # as far as is known
        self._executable: Callable[..., Sequence[Any]] | None = None
        self._compiling: tuple[background.Job, Callable[..., Sequence[Any]]] | None = None

    def run(self, state: State, leaves: Sequence[Any]) -> Sequence[Any]:
        """Return the values kept, for the values of all leaves; ``state`` is the structure, which is not held: it holds its programs."""
        if jaxapi.in_trace():  # what is concrete runs concretely
            with jaxapi.ensure_compile_time_eval():
                return self._run(state, leaves)
        executable = self._executable
        if executable is None:
            return self._run(state, leaves)
        STATS.executed += self._size
        STATS.hits += 1
        return executable(*leaves)

    def _run(self, state: State, leaves: Sequence[Any]) -> Sequence[Any]:
        self._met += 1
        distance = CLOCK.now - self._last
        self._last = CLOCK.now
        executable = None
        if not checks_results():  # one program for all would show what is wrong with its results only
            executable = self._executable or self._compiled(state, leaves, distance)
        if executable is not None:
            STATS.hits += 1
            STATS.executed += self._size
            return executable(*leaves)
        entries, slots = needed_entries(state, self.keep)
        by_turns = None if checks_results() else variations.known(entries, slots, self.keep, leaves)
        if by_turns is not None:
            self._size = len(entries)
            STATS.interpreted += by_turns.alone
            STATS.executed += self._size
            return by_turns(*leaves)
        results, self._size = interpret(state, self.keep, leaves)
        STATS.interpreted += self._size
        STATS.executed += self._size
        return results

    def _compiled(self, state: State, leaves: Sequence[Any], distance: int) -> Callable[..., Sequence[Any]] | None:
        """Return the compiled program where it is there by now, or else have it compiled where that is worthwhile."""
        if self._compiling is None:
            if self._compiles and self._met > 1 and (distance <= SOON * self._met**2 or self._met >= OFTEN):
                self._compile(state, leaves)
        elif distance <= LOOP or CLOCK.now - self._begun >= PATIENCE:
            job, executable = self._compiling
            try:
                job.wait()
            except Exception:  # noqa: BLE001 - the compiler refuses the whole: each entry on its own may well run
                self._compiles = False
            else:
                self._executable = executable
                STATS.compiled(job.seconds)
            finally:  # after Ctrl-C it is compiled anew
                self._compiling = None
        return self._executable

    def _compile(self, state: State, leaves: Sequence[Any]) -> None:
        """Begin to make one compiled function of the whole."""
        entries, slots = needed_entries(state, self.keep)
        keep = self.keep
        settings = configuration()
        STATS.reasons[_why(entries, [jax.typeof(x) for x in leaves], settings)] += 1
        self._begun = CLOCK.now
        with_loops = rolled(entries, slots, keep, leaves)
        if with_loops is not None:
            self._compiling = background.compiling_all(with_loops.compiling(leaves)), with_loops
            return

        def segment(*leaves: Any) -> list[Any]:
            return evaluate(entries, dict(zip(slots, leaves, strict=True)), keep, _inline)

        executable = jax.jit(segment)
        described = [jaxapi.described(x) for x in leaves]
        self._compiling = background.compiling(executable, described), numbers.on_device(executable, leaves, settings)


_Known = tuple[tuple[Any, ...], tuple["Kernel", ...], tuple[tuple[int, ...], ...], "Configuration"]

_COMPILED: Bounded[Hashable, _Known] = Bounded("reasons", 512)  # by the names of the entries: the last one of these names


def _why(entries: Sequence[Step], leaves: Sequence[Any], settings: Configuration) -> str:
    """Say what is new about a structure, for leaves of these shapes and dtypes, that is about to be compiled, and remember it."""
    key = tuple([e.kernel.name for e in entries])
    known = _COMPILED.get(key)
    _COMPILED[key] = tuple(leaves), tuple([e.kernel for e in entries]), tuple([e.inputs for e in entries]), settings
    if known is None or len(known[0]) != len(leaves):
        return "new structure"
    avals, kernels, inputs, before = known
    if before is not settings:
        return "other settings of JAX"
    changed = [(old, new) for old, new in zip(avals, leaves, strict=True) if old != new]
    if changed:
        return "new shape or dtype: {}, then {}".format(*map(_short, changed[0]))
    if inputs != tuple([e.inputs for e in entries]):
        return "new structure"
    for entry, kernel in zip(entries, kernels, strict=True):
        if entry.kernel is not kernel:
            at = "" if entry.where is None else f" ({entry.where[0]}:{entry.where[1]})"
            return f"another function or parameter in {entry.kernel.name}{at}"
    return "other results are held"


def _short(aval: Any) -> str:
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"
