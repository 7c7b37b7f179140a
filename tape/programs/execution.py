"""Execution: how the entries of a structure run, from its leaves to the values that are kept.

A structure met for the first time is interpreted, kernel by kernel, or compiled whole at once where its kernels would cost as much.  One
that comes back is compiled whole in the background, and runs compiled when that is done.  When which of these happens is the business of
:mod:`tape.programs.policy`.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import jax

from tape import jaxapi, layout
from tape.accounts.records import Site
from tape.bounded import Bounded
from tape.configuration import checks_results, configuration
from tape.graph.borders import follows
from tape.graph.trie import CLOCK, State, Step
from tape.ops.building import JaxprBuilder
from tape.ops.kernel import Kernel
from tape.ops.running import Waiting, fails_late
from tape.programs import background, numbers, variations
from tape.programs.costs import to_compile, to_interpret
from tape.programs.deferral import deferring
from tape.programs.devices import settling, several
from tape.programs.foresight import Part, interpreted, watched
from tape.programs.handing import foresee
from tape.programs.interpretation import at_home, interpret, needed_entries
from tape.programs.naming import copy
from tape.programs.policy import Meetings, new_kernels, new_to_several
from tape.programs.reasons import ran_alone, why, why_alone
from tape.programs.retention import Kept
from tape.programs.rolling import rolled, written
from tape.programs.telling import begun, timed, told
from tape.statistics import STATS

LARGE = 1 << 30  # bytes of an entry's results: memory may run out


class Bought(NamedTuple):
    """A program that is being compiled, and what runs it; ``part`` where it may become a part of another one."""

    job: background.Job
    run: Callable[..., Sequence[Any]]
    part: Part | None = None


class Program(layout.Choice):
    """What a segment computes for one choice of results: the slots ``live`` that Variables hold, and what is kept besides.

    ``roots`` tells how many Variables that are held require grad, ``site`` from which line it runs; ``whole`` that it is compiled at its
    first meeting and never changes (``tape.reproducible``); ``packs`` that a function of the user's sees also what is kept besides.
    """

    executable: Callable[..., Sequence[Any]] | None
    kept: Kept
    live: tuple[int, ...]
    roots: int
    site: Site | None
    size: int

    def __init__(self, state: State, live: tuple[int, ...], kept: Kept, roots: int, *, whole: bool = False, packs: bool = False) -> None:
        self.live = live
        self.whole = whole
        self.kept = kept
        self.keep = live + kept.residuals
        self._shown = len(self.keep if packs else live)
        self.roots = roots
        self._seen = state.seen  # the number of the run that met the structure last
        self.size = 0  # entries that a run computes
        self._used: list[int] = []  # positions of the leaves that they read
        self._renting = 0.0  # seconds that it is predicted to take to interpret it
        self._buying: float | None = None  # and to compile it, when somebody has asked
        self._meetings: Meetings | None = None  # None before the first run
        self._compiles = True  # as far as is known
        self._several = False  # it runs on several devices
        self.executable = None
        self._compiling: Bought | None = None
        self.site = None

    @property
    def compiled(self) -> bool:
        """Whether it runs as one compiled program by now."""
        return self.executable is not None

    def run(self, state: State, leaves: Sequence[Any], inner: int | None = None) -> Sequence[Any]:
        """Return the values kept, for the values of all leaves; ``state`` is the structure, which is not held: it holds its programs.

        What a sweep has written from the slot ``inner`` on, nobody has seen yet but that sweep.
        """
        if jaxapi.in_trace():  # what is concrete runs concretely
            with jaxapi.ensure_compile_time_eval():
                return self._run(state, leaves, inner)
        executable = self.executable
        if executable is None:
            return self._run(state, leaves, inner)
        STATS.executed += self.size
        STATS.hits += 1
        return executable(*leaves)

    def _run(self, state: State, leaves: Sequence[Any], inner: int | None) -> Sequence[Any]:
        interpreted()
        entries, slots = needed_entries(state, self.keep)
        listed = [e.kernel for e in entries]
        kernels = set(listed)
        unmet = {kernel for kernel in kernels if kernel.unmet}  # before anybody asks how they run
        home = at_home(leaves)
        hidden = set(self.keep[self._shown :])
        if inner is not None:
            hidden.update([slot for slot in self.keep if slot >= inner])
        if not checks_results():  # one program for all would show what is wrong with its results only
            bought = self._meet(state, leaves, entries, listed, hidden)
            if self.executable is not None:
                STATS.hits += not bought
                STATS.executed += self.size
                return self.executable(*leaves)
            by_turns = variations.known(entries, kernels, slots, self.keep, leaves, self.site, home=home)
            if by_turns is not None:
                if self._meetings is not None:
                    self._meetings.pay(self._renting * by_turns.count / len(entries))
                self.size = len(entries)
                STATS.interpreted += by_turns.alone
                STATS.executed += self.size
                return by_turns(*leaves)
        if self._meetings is not None:
            self._meetings.pay(self._renting)
        new = [e for e in entries if e.kernel in unmet] if unmet else []
        cold = [e for e in entries if e.kernel.cold] if any(kernel.cold for kernel in kernels if not kernel.light) else []
        change = why_alone(new or cold) if new or cold else None
        noting: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if change is not None and (cold or change.repair):
            noting = timed(begun("ops" if cold else "traces", self.site, [e.kernel.name for e in cold or new], change))
        with noting:
            results = interpret(entries, slots, state.table, self.keep, leaves, hidden, home=home)
        self.size = len(entries)
        STATS.interpreted += self.size
        STATS.executed += self.size
        if self.site is not None:
            ran_alone(self.site, entries, new=self._meetings is not None and self._meetings.times == 1)
        return results

    def _meet(self, state: State, leaves: Sequence[Any], entries: Sequence[Step], listed: Sequence[Kernel], hidden: Container[int]) -> bool:
        """Take the compiled program where it is due, or else have it compiled where that is worthwhile; tell whether it was at once."""
        if self.executable is not None:
            return False
        kernels = self._first(state, leaves, listed) if self._meetings is None else ()
        meetings = self._meetings
        assert meetings is not None
        meetings.count()
        if self._compiling is not None and self._compiling.job.lost:
            self._compiling = None
        if self.whole or self._several:
            return self._meet_for_sure(state, leaves, meetings, kernels)
        if self._compiling is not None:
            seconds, due = meetings.patience()
            if self._compiling.job.made_within(seconds) and due:
                self._take(state, meetings, len(leaves))
            return False
        if not self._compiles:
            return False
        new = new_kernels(kernels, lambda: self._price(state), returned=meetings.times > 1)
        pays = bool(new) or (meetings.at_once(self._renting, lambda: self._price(state)) and not any(e.kernel.apart for e in entries))
        if pays and not jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            for kernel in new:
                kernel.tried = meetings.times == 1
            self._buy(state, leaves, meetings)
            self._take(state, meetings, len(leaves))
            return True
        if meetings.soon and meetings.worthwhile(price := self._price(state)):
            if at_home(leaves):
                made = {slot for entry in entries for slot in entry.slots}
                foresee([state.table[slot].kind.aval for slot in self.keep if slot in made and slot not in hidden])
            self._buy(state, leaves, meetings)
            meetings.begin(price)
        return False

    def _meet_for_sure(self, state: State, leaves: Sequence[Any], meetings: Meetings, kernels: Iterable[Kernel]) -> bool:
        """:meth:`_meet` where nothing depends on the clock: in any case, or on several devices."""
        bought = self._compiling is None
        if bought:
            due = self.whole or new_to_several(kernels) or meetings.times > 1
            if not (self._compiles and due) or jax.config.jax_disable_jit:  # type: ignore[attr-defined]
                return False
            self._buy(state, leaves, meetings)
        self._take(state, meetings, len(leaves))
        return bought

    def _first(self, state: State, leaves: Sequence[Any], kernels: Sequence[Kernel]) -> Iterable[Kernel]:
        """Begin to count meetings, or go on with those of a structure that computes the same; return its ``kernels``, each once."""
        counted = Counter(kernels)
        self.size = len(kernels)
        self._several = several(leaves)
        self._renting = to_interpret(counted)
        near, seen = hash(tuple(kernels)), self._seen  # equal computations have the first number in common
        met, _MET[near] = near in _MET, CLOCK.now
        if met:
            self._used, key = _computation(state, self.keep, self.whole)
            known = _PROGRAMS.get(key)
            if known is not None:
                self._meetings, self._compiling = known
                for kernel in counted:
                    kernel.tried = False
                return counted
            number = hash(key)
            seen = seen or _MET.get(number, 0)
            _MET[number] = CLOCK.now
        if not seen and not self.whole:
            follows(state)
        self._meetings = Meetings(seen)
        return counted

    def _price(self, state: State) -> float:
        """Return the seconds that it is predicted to take to compile it."""
        if self._buying is None:
            self._buying = to_compile([entry.kernel for entry in written(needed_entries(state, self.keep)[0])])
        return self._buying

    def _buy(self, state: State, leaves: Sequence[Any], meetings: Meetings) -> None:
        """Begin to compile it, for all structures that compute the same."""
        self._used, key = _computation(state, self.keep, self.whole)
        self._compile(state, leaves)
        if self._compiling is not None and not any(kernel.apart for kernel, *_ in key.steps):
            _PROGRAMS[key] = meetings, self._compiling

    def _take(self, state: State, meetings: Meetings, leaves: int) -> None:
        """Have the program that was being compiled run from now on; it is compiled here unless the background has begun with it."""
        if self._compiling is None:  # another thread was quicker
            return
        job, executable, part = self._compiling
        if part is not None:  # another structure that computes the same may have had it compiled, with leaves of its own
            part = part._replace(used=tuple(self._used))
        try:
            job.wait()
        except Exception:  # noqa: BLE001 - the compiler refuses the whole: each entry on its own may well run
            self._compiles = False
        else:
            program = settling(numbers.reading(executable, self._used, leaves))
            kernels = {entry.kernel for entry in needed_entries(state, self.keep)[0]}
            waits = any(kernel.bytes > LARGE for kernel in kernels) or fails_late([kernel.jaxpr for kernel in kernels])
            self.executable = Waiting(program) if waits else watched(program, part, state, history=self.kept.history)
            self.kept = self.kept._replace(deferral=None if waits else deferring(self, state, part))
            if not meetings.compiled:
                STATS.compiled(job.seconds)
            meetings.change(self._price(state))
        finally:
            if job.made:  # also by Ctrl-C: then it is compiled anew
                self._compiling = None

    def _compile(self, state: State, leaves: Sequence[Any]) -> None:
        """Begin to make one compiled function of the whole, on the leaves that it reads."""
        entries, slots = needed_entries(state, self.keep)
        slots, leaves = [slots[i] for i in self._used], [leaves[i] for i in self._used]
        keep = self.keep
        settings = configuration()
        reason, change = why(entries, [jax.typeof(x) for x in leaves], None if self.site is None else self.site.line)
        STATS.reasons[reason] += 1
        compilation = begun("program", self.site, [e.kernel.name for e in entries], change)
        with_loops = rolled(entries, slots, keep, leaves)
        if with_loops is not None:
            self._compiling = Bought(background.compiling_all(with_loops.compiling(leaves)), with_loops)
            told(self._compiling.job, compilation)
            return

        # XLA would see too late that a VJP computes anew what its entry did: it has changed one of them by then.  What has no sweep stays
        # as it is, so that an optimizer's update gives the numbers that it gives JAX.
        joined = JaxprBuilder(once=any(entry.kernel.name.startswith("vjp_") for entry in entries))
        atoms: dict[int, Any] = {slot: joined.input(jax.typeof(x)) for slot, x in zip(slots, leaves, strict=True)}
        for entry in entries:
            copy(entry, joined, atoms)
        closed, work = joined.closed([atoms[slot] for slot in keep]), None if self.whole else numbers.Work.of(entries)
        part = None if work is None else Part(closed, tuple(self._used), work, settings)
        self._compiling = Bought(*numbers.compiling(closed, leaves, settings, work), part)
        told(self._compiling.job, compilation)


# Two structures may differ in what nobody reads, and the trie keeps nothing of what was met once: so programs are also known by what they
# compute.  A number stands for what was met: should it stand for two, one of them is only compiled sooner.
_PROGRAMS: Bounded[Hashable, tuple[Meetings, Bought]] = Bounded("programs", 128)
_MET: Bounded[int, int] = Bounded("computations met", 1 << 14)


class _Computation(NamedTuple):
    """What a run computes, whatever else stands on the tape: entries and results, by the numbers of what they read."""

    settings: int
    whole: bool
    leaves: int
    steps: tuple[Any, ...]
    results: tuple[int, ...]


def _computation(state: State, keep: tuple[int, ...], whole: bool) -> tuple[list[int], _Computation]:
    """Return the positions of the leaves on which ``keep`` depends, and what is computed from them."""
    entries, slots = needed_entries(state, keep)
    read = {slot for entry in entries for slot in entry.inputs}.union(keep)
    used = [i for i, slot in enumerate(slots) if slot in read]
    numbers = {slots[i]: n for n, i in enumerate(used)}
    for entry in entries:
        for slot in entry.slots:
            numbers[slot] = len(numbers)
    steps = tuple([(entry.kernel, *[numbers[s] for s in entry.inputs]) for entry in entries])
    return used, _Computation(id(configuration()), whole, len(used), steps, tuple([numbers[s] for s in keep]))
