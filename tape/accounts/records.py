"""Records: from which of the user's lines the tape was run, and what was compiled there, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple

Line = tuple[str, int]

STREAK = 8  # compilations at as many runs of a line, for one kind of reason, and it is said to compile at every step
APART = 2  # runs from one of them to the next
_OF_ARRAYS = frozenset({"shape", "dtype"})  # what the arrays of one step may differ in: its parameters, one after the other


class Change(NamedTuple):
    """Why something was compiled, by comparison with the nearest that was compiled before.

    Attributes:
        kind: ``"new"``, ``"shape"``, ``"dtype"``, ``"static"`` (a parameter or number that is part of the program), ``"function"`` (made
            anew), ``"loop"`` (another number of turns), ``"ops"``, ``"results"`` (which Variables are held), ``"settings"`` (of JAX),
            ``"constants"`` (numbers that stay the same became part of a program), ``"foreseen"`` (a look and the sweep that follows became
            one), ``"deferred"`` (gradients that nobody looks at are results no longer), ``"arguments"`` and ``"state"`` (of a ``tape.jit``:
            what it is called with, and what its code looks at).
        what: what is another one, and where.
        told: the old and the new one.

    """

    kind: str
    what: str = ""
    told: str = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.what, self.told))) or "nothing like it was compiled before"

    @property
    def repair(self) -> str:
        """What would avoid the compilation; empty where nothing is to be avoided."""
        return REPAIRS.get(self.kind, "")


# What avoids a compilation, by the kind of its reason.
REPAIRS = {
    "shape": "pad arrays to one shape, or to a few, and mask the rest",
    "dtype": "convert to one dtype before, x.astype('float32')",
    "static": "give what changes as an array or a Variable, not as a Python number that is part of the program",
    "function": "define the function once, outside of the loop, and give what changes to it as an argument",
    "loop": "pad sequences to a few lengths, or write the loop as tape.lax.scan over padded ones",
    "results": "have each step hold the same Variables",
    "settings": "change JAX's settings once, before the loop",
    "arguments": "give what changes as an array or a Variable of one shape",
    "state": "read outside of the function what changes at each call, a name to log, say, or give it as an argument",
}


@dataclass(slots=True, eq=False)
class Site:
    """A line of the user's at which what is pending is run for one reason; programs remember theirs, so that a run does not look for it."""

    reason: str | None  # None tells programs that it is not counted any more
    line: Line | None
    code: CodeType | None = None  # with ``instruction``, where the user's frame stood
    instruction: int = 0
    depth: int = 0  # of that frame: how many are below it
    count: int = 0  # runs
    last: int = 0  # the run that compiled last
    streak: int = 0  # such runs that followed each other
    streak_of: tuple[str, str] = ("", "")
    halves: int = 0  # of steps that these are
    others: int = 0  # runs of all other lines, when it compiled last
    due: Compilation | None = None  # of which the user is to be warned
    alone: int = 0  # runs whose entries ran one by one
    alone_entries: int = 0
    new: int = 0  # of these, runs of structures that were not met before
    met: Any = None  # some of them (tape.programs.reasons), each twice as late as the one before
    differs: Change | None = None  # in what the last two of these do

    def compiled(self, number: int, compilation: Compilation, others: int) -> None:
        """Note that run ``number`` compiled something; should each step do so for one kind of reason, the user is to know.

        Looks with no run of another line since (``others`` as before) may be at the next array of the same step: these count half.
        """
        change = compilation.change
        if not change.repair:
            return
        key = (change.kind, change.what)
        if number != self.last:
            if key != self.streak_of or number - self.last > APART:
                self.streak = self.halves = 0
            half = self.reason == "look" and change.kind in _OF_ARRAYS and others == self.others
            self.streak, self.halves = self.streak + 1, self.halves + 2 - half
            self.last, self.streak_of, self.others = number, key, others
            if self.halves % (2 * STREAK) < 2 - half:
                self.due = compilation


@dataclass(slots=True, eq=False, repr=False)
class Compilation:
    """One compilation.

    Attributes:
        what: ``"program"`` (all that was pending), ``"ops"`` (some on their own), ``"step"`` (of a ``tape.jit``), ``"turn"`` (of a loop).
        line: your file and line that had it compiled; None where that is not known.
        cause: why the tape ran there: ``"look"``, ``"backward"``, ``"step"`` ..., ``"call"`` of a ``tape.jit``.
        ops: the names of the ops, in order.
        change: why, see :class:`Change`.
        seconds: how long it took; None as long as that is not over.
        background: whether another thread did it while the loop went on.
        failed: what the compiler said where it refused; the ops run one by one then.

    """

    what: str
    line: Line | None
    cause: str
    ops: Sequence[str]
    change: Change
    seconds: float | None = None
    background: bool = False
    failed: str = ""
    loud: bool = False  # :func:`tape.log_compiles` was on where it was asked for

    def __post_init__(self) -> None:
        self.ops = tuple(self.ops)

    def __repr__(self) -> str:
        at = "" if self.line is None else f" at {self.line[0]}:{self.line[1]}"
        return f"<compilation of {len(self.ops)} ops{at}: {self.change}>"


class Limited(dict["tuple[str, Line | None]", Site]):
    """Sites by reason and line, so many at most; the counts of the ones that go are kept by their reasons."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.gone: dict[str, int] = {}

    def of(self, reason: str, line: Line | None) -> Site:
        """Return the site of a line, made at its first run."""
        site = self.get((reason, line))
        if site is None:
            site = self.setdefault((reason, line), Site(reason, line))
            while len(self) > self.limit:
                self._drop(next(iter(self)))
        return site

    def _drop(self, key: tuple[str, Line | None]) -> None:
        site = self.pop(key, None)
        if site is not None:
            site.reason = None
            self.gone[key[0]] = self.gone.get(key[0], 0) + site.count

    def reset(self) -> None:
        """Forget all."""
        for key in list(self):
            self._drop(key)
        self.gone = {}
