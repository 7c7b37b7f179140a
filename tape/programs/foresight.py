"""Foresight: where a sweep has followed each look at a value, one program runs both, and what the sweep will ask for waits for it.

Whoever looks at a loss before ``backward()`` has two programs run in each step: the look waits for the first one, and the second one reads
what the first one kept.  Where the second has followed the first several times, and read the same of it, the two are one program from then
on.  It runs at the look; the results of the second half wait until that is run, on the very arrays that were foreseen.  All that users see
is recorded, written and handed out as before, whatever they do between: only where results come from differs.  Where something else is run,
or on other arrays, what waits is dropped and the second program runs as ever.

What waits is small, goes with the segment that was looked at, and is never more than that of one look in a thread.  After a wrong guess
it takes four times as many steps that could have been foreseen until the next guess, so that they cost less and less.
"""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tape.accounts.records import Change
from tape.configuration import Configuration
from tape.graph.meters import METERS
from tape.graph.scope import LOCAL
from tape.graph.segment import Segment
from tape.graph.trie import SWEEP, State
from tape.jaxapi import ClosedJaxpr
from tape.ops.building import JaxprBuilder
from tape.programs import numbers
from tape.programs.devices import there_are_several

FEW = 4  # steps in which the second program followed the first likewise, before that is foreseen for the first time,
DEARER = 4  # and times as many after each wrong guess
HOPELESS = 64  # steps in a row in which nothing could have been foreseen: nothing is tried in the next ones,
REST, NEVER = 1 << 10, -1  # so many, or none ever again
BYTES = 1 << 20  # of the results of both

# Where an argument of the second program comes from: the n-th argument or result of the first, the n-th result of the second when it ran
# last (the state of an optimizer), or the argument that it had there then.
LEAF, RESULT, AGAIN, SAME = range(4)
Source = tuple[int, int]


class Part(NamedTuple):
    """What a program computes from the arguments that it reads, which are those in the positions ``used``."""

    jaxpr: ClosedJaxpr
    used: tuple[int, ...]
    work: numbers.Work
    settings: Configuration


def watched(program: Callable[..., Sequence[Any]], part: Part | None, state: State, *, history: bool) -> Callable[..., Sequence[Any]]:
    """Return a compiled program of a structure as one that may be foreseen, or foresee another, where it is of that kind."""
    if part is None or part.jaxpr.effects or there_are_several():
        return program
    if history:  # sweeps may follow
        return Leading(program, part)
    path = state.path()
    return Following(program, part) if path and path[0].mode == SWEEP else program


class _Waiting(NamedTuple):
    """What a look leaves for the run that follows: what is ``known`` by where it comes from, or the results that were foreseen.

    Attributes:
        leader: what ran at the look.
        known: its arguments and results, in the order of their sources; weakly, as they may be large, and nobody may ask.
        follower: the program that is to run next.
        expected: the arguments for which these are its results.
        further: its results.

    """

    leader: Leading
    known: dict[Source, Callable[[], Any]]
    follower: Following | None = None
    expected: Sequence[Any] = ()
    further: Sequence[Any] = ()


class _Last(threading.local):
    """The segment at which a thread has looked last, if nothing that follows has run since."""

    ref: weakref.ref[Segment] | None = None


_LAST = _Last()
_WAITING: dict[weakref.ref[Segment], _Waiting] = {}


def _gone(ref: weakref.ref[Segment]) -> None:
    _WAITING.pop(ref, None)


def _taken() -> _Waiting | None:
    """Return what waits in this thread, which waits no longer."""
    ref = _LAST.ref
    if ref is None:
        return None
    _LAST.ref = None
    return _WAITING.pop(ref, None)


def interpreted() -> None:
    """Note that a program runs that is not compiled so far, and may be what is to be foreseen when it is."""
    waiting = _taken()
    if waiting is not None:
        waiting.leader.ignore(foreseen=waiting.follower is not None)


class Following:
    """A program that sweeps what has run: it may have been foreseen."""

    __slots__ = ("__weakref__", "_run", "asked", "before", "part")

    def __init__(self, run: Callable[..., Sequence[Any]], part: Part) -> None:
        self._run = run
        self.part = part
        self.asked: frozenset[Source] | None = None  # which of its last arguments and results are to be known; None: all
        self.before: dict[Source, Callable[[], Any]] = {}

    def __call__(self, *given: Any) -> Sequence[Any]:
        """Return the results, which may be there."""
        waiting, results = _taken(), None
        if waiting is not None:
            if waiting.follower is self and all(map(operator.is_, given, waiting.expected)):
                results = waiting.further
                waiting.leader.right()
            else:
                waiting.leader.learn(self, given, waiting)
        if results is None:
            results = self._run(*given)
        if waiting is not None and (self.asked is None or self.asked):
            self._note(given, results)
        return results

    def _note(self, given: Sequence[Any], results: Sequence[Any]) -> None:
        asked, own = self.asked, {SAME: given, AGAIN: results}
        if asked is None:
            asked = frozenset([(kind, n) for kind, values in own.items() for n in range(len(values))])
        self.before = {(kind, n): _held(own[kind][n]) for kind, n in asked}


def _held(value: Any) -> Callable[[], Any]:
    """Return what gives a value as long as it is there: nobody is to hold an array because it may come again."""
    try:
        return weakref.ref(value)
    except TypeError:  # a number
        return lambda: value


class Leading:
    """A program whose results may be swept: it foresees that."""

    def __init__(self, run: Callable[..., Sequence[Any]], part: Part) -> None:
        self._run = run
        self._part = part
        self._open = False  # nothing has followed so far
        self._streak, self._needed = 0, FEW
        self._vain = 0  # steps in a row in which nothing could have been foreseen
        self._rests = 0  # calls in which nothing is tried
        self._due = 0
        self._follower: Callable[[], Following | None] = lambda: None
        self._sources: list[Source] | None = None  # of its arguments
        # What both are given as one: the own arguments, and what else the second one reads; by position there which of these the program
        # takes (None: all), and, with the own results behind them, what the second program is given.
        self._extra: list[Source] = []
        self._reads: list[int] | None = None
        self._expected: list[int] = []
        self._own = len(part.jaxpr.jaxpr.outvars)
        self._further: numbers.Further | None = None
        self._joint: Callable[..., Sequence[Any]] | None = None

    def __call__(self, *given: Any) -> Sequence[Any]:
        """Return the results, and have those of what follows wait."""
        if self._rests:
            self._rests -= 1
            return self._run(*given)
        _taken()
        if self._open:
            self._missed()
        segment = LOCAL.segment()
        if segment is None or METERS:  # what is measured is measured where it is asked for
            return self._run(*given)
        ahead = self._ahead(given) if self._joint is not None and self._streak >= self._needed else None
        if ahead is None:
            results = self._run(*given)
            known = {(LEAF, n): _held(x) for n, x in enumerate(given)}
            waiting = _Waiting(self, known | {(RESULT, n): _held(x) for n, x in enumerate(results)})
        else:
            waiting, results = ahead
        self._open = True
        _LAST.ref = ref = weakref.ref(segment, _gone)
        _WAITING[ref] = waiting
        return results

    def _ahead(self, given: Sequence[Any]) -> tuple[_Waiting, Sequence[Any]] | None:
        """Run both programs as one; return what waits then, and the own results; None where that is not possible."""
        follower, joint = self._follower(), self._joint
        if follower is None or joint is None:
            return None
        try:
            there = (*given, *[follower.before[source]() for source in self._extra]) if self._extra else given
            results = joint(*there) if self._reads is None else joint(*[there[i] for i in self._reads])
            own, further = results[: self._own], results[self._own :]
            there = (*there, *own)
            expected = [there[i] for i in self._expected]
        except Exception:  # noqa: BLE001 - whatever it is, it is no concern of who looks: each program on its own may well run
            self._rests = NEVER
            return None
        return _Waiting(self, {}, follower, expected, further), own

    def right(self) -> None:
        """Note that what was foreseen was asked for."""
        self._open, self._vain = False, 0

    def ignore(self, *, foreseen: bool) -> None:
        """Learn nothing from what followed, unless something else was ``foreseen``."""
        if foreseen:
            self._missed()
        self._open = False

    def _missed(self) -> None:
        """Note that something else followed than what was foreseen, or could have been."""
        if self._joint is not None and self._streak >= self._needed:
            self._needed *= DEARER
        self._open, self._streak = False, 0
        self._vain += 1
        if self._vain >= HOPELESS:
            self._vain, self._rests = 0, REST

    def learn(self, follower: Following, given: Sequence[Any], waiting: _Waiting) -> None:
        """Note which program has followed, and what it was given."""
        sources = None if waiting.follower is not None else _sources(given, waiting, follower)
        expected = self._follower()
        if sources is None or follower is not expected or sources != self._sources:
            self._missed()
            if expected is None or (self._further is None and self._joint is None):  # there is never more than one program of both
                self._follower, self._sources, self._further, self._joint = weakref.ref(follower), sources, None, None
            return
        self._open, self._vain = False, 0
        self._streak += 1
        if self._joint is None and self._streak >= FEW:
            if self._further is None:
                self._begin(follower, dict(zip(sources, given, strict=True)), waiting.known)
            elif self._streak >= self._due and (made := self._further.made()) is not None:
                self._rests = 0 if made else NEVER
                if made:
                    self._take(self._further, follower)

    def _take(self, further: numbers.Further, follower: Following) -> None:
        self._joint, self._further = further.run, None
        follower.asked = frozenset(self._extra)

    def _begin(self, follower: Following, asked: dict[Source, Any], known: dict[Source, Callable[[], Any]]) -> None:
        """Have both compiled as one, of arguments like those for which the second one was ``asked``, and those of the first one."""
        part, then, sources = self._part, follower.part, self._sources
        assert sources is not None
        size = sum([a.size * a.dtype.itemsize for a in (*part.jaxpr.out_avals, *then.jaxpr.out_avals)])
        if size > BYTES or part.settings is not then.settings:
            self._rests = NEVER
            return
        self._extra = [source for source in asked if source[0] in (AGAIN, SAME)]
        there = [source for source in known if source[0] == LEAF] + self._extra
        whole, reads = _joined(part, then, sources)
        place = {source: i for i, source in enumerate(there + [(RESULT, n) for n in range(self._own)])}
        self._expected = [place[source] for source in sources]
        self._reads = None if reads == there else [place[source] for source in reads]
        work = numbers.Work((*part.work.names, *then.work.names), part.work.line, part.work.run + then.work.run)
        given = [asked[source] if source in asked else known[source]() for source in reads]
        if any(x is None for x in given):  # nobody holds it any more
            self._rests = NEVER
            return
        change = Change("foreseen", "a look and the sweep that follows became one program")
        self._further = numbers.Further(*numbers.compiling(whole, given, part.settings, work), work, change, "a sweep that follows a look")
        self._due = self._streak + work.calls


def _sources(given: Sequence[Any], waiting: _Waiting, follower: Following) -> list[Source] | None:
    """Return where the arguments of a program come from that follows; None where one was not there when the first one ran."""
    there = {**{s: v for s, v in follower.before.items() if s[0] == AGAIN}, **dict(reversed(waiting.known.items()))}
    known = {id(value()): source for source, value in there.items()}  # what is gone is None, which no argument is
    sources = []
    for n, x in enumerate(given):
        source = known.get(id(x), (SAME, n))
        before = follower.before.get(source)
        if source[0] == SAME and (before is None or before() is not x):
            return None
        sources.append(source)
    return sources


def _joined(first: Part, second: Part, sources: Sequence[Source]) -> tuple[ClosedJaxpr, list[Source]]:
    """Return two programs as one, and where its arguments come from."""
    joined = JaxprBuilder(once=True)
    atoms: dict[Source, Any] = {}

    def atom(source: Source, aval: Any) -> Any:
        if source not in atoms:
            atoms[source] = joined.input(aval)
        return atoms[source]

    ins = [atom((LEAF, n), v.aval) for n, v in zip(first.used, first.jaxpr.jaxpr.invars, strict=True)]
    own = joined.inline(first.jaxpr, ins)
    reads = list(atoms)
    atoms.update({(RESULT, n): x for n, x in enumerate(own)})
    ins = [atom(sources[n], v.aval) for n, v in zip(second.used, second.jaxpr.jaxpr.invars, strict=True)]
    reads += [source for source in atoms if source[0] != RESULT and source not in reads]
    further = joined.inline(second.jaxpr, ins)
    return joined.closed([*own, *further]), reads
