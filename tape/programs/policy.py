"""Rent or buy: when a structure is compiled whole, and how long a run may wait for that.

To interpret a structure is to rent, to compile it whole is to buy: whether it comes back, and how often, nobody knows.  Three rules, each
of which costs a bounded multiple of the better choice in hindsight:

- *At once.* A structure many of whose kernels were never compiled, or a few large ones (a loop or a model of another library, and its
  VJP), is compiled whole at its first meeting where that costs no more than these kernels would, one by one, as in the first step of a
  process.  Should it not come back, its kernels were tried in vain: the next structure with the same ones counts them no more, so that it
  is interpreted, and they are compiled.  As every kernel stands in for one such program at most, programs that never come back cost no
  more, all in all, than their kernels: never more than two and a half times what interpretation alone would have.  So is one that takes
  less than interpreting it once would; and one that comes back at once, where it takes less than a few such runs: on the second step of a
  loop of large arrays, or of many turns.
- *In the background.* A structure that comes back soon, or often, is compiled while the program goes on interpreting it, a big one only
  when it has cost a share of that already (a process that ends waits for its compiler).
- *The change.* Which meeting is the first to run compiled follows from the prediction: that by which all that ran meanwhile is predicted
  to have taken as long as the compiler does, but for what one run may wait, ``STALL``; of a small program, when a third of its
  compilation has passed; at the latest when interpreting the structure has cost as much meanwhile, as big ones wait for each other, and
  what runs compiled by then hardly counts.  So it depends on what was met before, not on the clock, and results are the same from run to
  run.  Should the compiler be later than that, a run waits for it, but never longer than ``LIMIT``, only one in ``GAP`` seconds, whatever
  the structure, and no structure more than ``STALLS`` times; else it is interpreted until the program is there.  Only then does the clock
  decide.

What runs on several devices is compiled at its first meeting where many of its kernels are new to them, else at its second one, and here:
processes that share devices decide alike, and so little is gained by interpretation there that nothing is foreseen.

Predictions are those of :mod:`tape.programs.costs`, and so is the time: seconds that all that ran so far was predicted to take.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from tape.graph.trie import CLOCK
from tape.ops.costs import PROGRAM
from tape.ops.kernel import Kernel

# A structure is compiled when it comes back within SOON runs, times the square of its meetings; or at the OFTEN-th meeting.
SOON = 1
OFTEN = 16
LOOP = 6  # a loop meets a structure every so many runs at most, and may wait for its program
PATIENCE = 32  # what comes back less often may wait for it only so many runs after the compiler began

LEAST = 6  # kernels: fewer are compiled on their own, as what is tried out at a prompt next has some in common with it,
HEAVY = 0.25  # but two or more that take so many seconds, predicted: models of other libraries, whose training steps are few entries;
LARGE = 0.07  # or two that take so many seconds each: a loop of JAX's, and its VJP
WORTH = 1.5  # times what its new kernels would cost alone is not too much for a program that a loop will need
CLEAR = 1 / 3  # what compiles within this part of one run's interpretation is compiled at once (costs are good to a factor of two),
AHEAD = 12  # and what compiles within so many runs where it comes back at once, though it is waited for
STALL = 0.15  # seconds, predicted, that one run may wait for the compiler,
PART = 2 / 3  # and the part of the compilation: a loop that ends before does not wait
LIMIT = 0.2  # seconds by the clock, where that was foreseen wrongly
STALLS = 5
GAP = 1.0  # seconds by the clock between two such waits: a step may be many runs
BIG = 1.0  # seconds: what takes longer to compile is begun when interpretation has cost a share of them, and after the big ones before it
SHARE = 25
RUN = 5e-5  # seconds that a run of any kind takes


class _Time:
    """The seconds that all runs of this process were predicted to take, and when the background will be idle."""

    __slots__ = ("_waited", "idle", "spent")

    def __init__(self) -> None:
        self.spent = 0.0
        self.idle = 0.0
        self._waited = -GAP  # when a run has waited for the compiler last, by the clock

    @property
    def now(self) -> float:
        return self.spent + CLOCK.now * RUN

    def waits(self) -> bool:
        """Tell whether a run may wait for the compiler now; if so, it does."""
        now = time.monotonic()
        if now - self._waited < GAP:
            return False
        self._waited = now
        return True


TIME = _Time()


def new_kernels(kernels: Iterable[Kernel], whole: Callable[[], float], *, returned: bool) -> Sequence[Kernel]:
    """Return those of some kernels on whose account the program of all is compiled before they are; none where it is not to be."""
    counted = [kernel for kernel in kernels if kernel.cold and (returned or not kernel.tried)]
    alone = sum([kernel.cost.alone for kernel in counted])
    heavy = alone >= HEAVY or sum([kernel.cost.alone >= LARGE for kernel in counted]) > 1
    if len(counted) < (2 if heavy else LEAST) or whole() > WORTH * alone:
        return ()
    return () if any(kernel.apart for kernel in kernels) else counted


def new_to_several(kernels: Iterable[Kernel]) -> bool:
    """Tell whether the program of some kernels, which run on several devices, is compiled before they are, one by one.

    Each counts for one such program only, as in :func:`new_kernels`.
    """
    new = [kernel for kernel in kernels if not kernel.spread]
    for kernel in new:
        kernel.spread = True
    return len(new) >= LEAST and not any(kernel.apart for kernel in kernels)


class Meetings:
    """The meetings of one structure: how it comes back, and what that says about its compilation."""

    __slots__ = ("_begun", "_distance", "_done", "_due", "_enough", "_last", "_rent", "_waits", "compiled", "times")

    def __init__(self, seen: int) -> None:
        self.times = int(seen > 0)
        self._last = seen  # the number of the run that met it last
        self._distance = 0
        self._rent = 0.0  # what interpreting it has cost so far
        self._begun = 0  # the number of the run that had it compiled
        self._done = 0.0  # when it is compiled
        self._due = 0.0  # when a run waits for that,
        self._enough = 0.0  # and what interpreting it may have cost until then
        self._waits = 0
        self.compiled = False  # a run has changed over to its program

    def count(self) -> None:
        """Note a meeting."""
        self.times += 1
        self._distance = CLOCK.now - self._last
        self._last = CLOCK.now

    def pay(self, seconds: float) -> None:
        """Note that it was interpreted."""
        self._rent += seconds
        TIME.spent += seconds

    @property
    def soon(self) -> bool:
        """Whether it comes back soon, or often."""
        return self.times > 1 and (self._distance <= SOON * self.times**2 or self.times >= OFTEN)

    def worthwhile(self, seconds: float) -> bool:
        """Tell whether it is time to begin with a program that takes so long to compile."""
        return self.soon and (seconds <= BIG or self._rent * SHARE >= seconds)

    def at_once(self, rent: float, price: Callable[[], float]) -> bool:
        """Tell whether to wait for its program now, rather than to pay so many seconds for interpreting it."""
        bid = rent * (AHEAD if self.times == 2 and self.soon else CLEAR)
        return bid > PROGRAM and price() <= bid

    def begin(self, seconds: float) -> None:
        """Note that the background compiles it from now on."""
        self._begun, self._waits = CLOCK.now, 0
        self._done = TIME.now + seconds
        if seconds > BIG:
            self._done = TIME.idle = max(TIME.idle, TIME.now) + seconds
        self._due = self._done - min(STALL, PART * seconds)
        self._enough = self._rent + seconds

    def patience(self) -> tuple[float, bool]:
        """Return how many seconds to wait for the background now, and whether its program is due then."""
        if self.compiled:
            return 0.0, True
        if self._distance > LOOP and CLOCK.now - self._begun < PATIENCE:
            return 0.0, False
        if TIME.now < self._due and self._rent < self._enough:
            return 0.0, False
        waits = self._waits < STALLS and TIME.waits()
        self._waits += waits
        return (LIMIT if waits else 0.0), True

    def change(self, seconds: float) -> None:
        """Note that it runs compiled from now on, so that at least the time that this takes has passed."""
        if not self.compiled:
            self.compiled = True
            TIME.spent += max(self._done - TIME.now, 0.0) if self._begun else seconds
