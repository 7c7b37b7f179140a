"""Numbers of Python and NumPy in compiled programs: as arguments, and later, where they are the same at every call, as constants.

To pass a number costs as much as recording three entries, to pass an array a sixth of that, to put a number on the device ten times
as much: so several are passed in one buffer (:mod:`tape.programs.buffers`), and of a few, one is put there once, whatever the number of its
uses; one that has changed is passed as it is until it has come often.  And XLA writes another program where it knows a number: a slice at
a place that it knows costs nothing, and its cotangent is fused with what follows.  So a loop whose numbers stay what they are gets a second
program, in the background; the first one still serves every call with others, so that nothing is ever compiled because a number changed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tape import jaxapi, layout
from tape.accounts.records import Change
from tape.bounded import Bounded
from tape.configuration import Configuration
from tape.graph.constants import known_array
from tape.graph.kinds import NUMBERS, is_scalar
from tape.graph.trie import Step
from tape.jaxapi import ClosedJaxpr
from tape.programs import background, buffers
from tape.programs.policy import LIMIT, STALLS, TIME
from tape.programs.telling import begun, told
from tape.statistics import STATS

# So many calls with the same numbers, and they become constants: as many as are predicted to take so many seconds.
FEWEST, MOST, _WATCHED = 8, 256, 0.1
_OFTEN = 8  # times that a number has come are as many as it costs to put it on the device
_REMEMBERED = 1 << 10  # numbers of one argument of a program that the recorder in C knows as arrays
MISSES = 32  # calls with other ones, at least, until those that are other ones become arguments again

# What is predicted, in seconds, so that the second program takes over at the same call in every run: results are the same from run to run.
_COMPILE, _COMPILE_ENTRY = 0.05, 3e-3
_RUN_ENTRY, _RUN_BYTE = 3e-6, 0.25e-9

# By the settings of JAX, of which each is one object (they decide on dtype and device), by type and value: an array, or how often one has
# come that is passed as it is.
_ARRAYS: Bounded[Hashable, Any] = Bounded("numbers", 1 << 14)


class Work(NamedTuple):
    """What a program does: the names of its entries, from which line it comes, and the seconds that a run is predicted to take."""

    names: tuple[str, ...]
    line: tuple[str, int] | None
    run: float

    @classmethod
    def of(cls, entries: Sequence[Step]) -> Work:
        """Return the work of some entries."""
        size = sum([a.size * a.dtype.itemsize for entry in entries for a in entry.kernel.out_avals])
        return cls(tuple([entry.kernel.name for entry in entries]), entries[-1].where, _RUN_ENTRY * len(entries) + _RUN_BYTE * size)

    @property
    def calls(self) -> int:
        """How many calls are predicted to take as long as another program of it takes to compile."""
        return int((_COMPILE + _COMPILE_ENTRY * len(self.names)) / self.run)


class Further:
    """Another program for what one does already, compiled in the background; which call takes it over does not depend on the clock.

    ``work`` is what it does, ``change`` why it is compiled, in words, and under ``reason`` it is counted.
    """

    def __init__(self, job: background.Job, run: Callable[..., Sequence[Any]], work: Work, change: Change, reason: str) -> None:
        self.run = run
        self._job, self._reason = job, reason
        self._waits = 0  # of those who asked
        told(job, begun("program", None, work.names, change, line=work.line))

    def made(self) -> bool | None:
        """Tell whether it is there; None: not yet, False: the compiler refuses it.  A step may be many calls, and waits once."""
        waits = self._waits < STALLS and TIME.waits()
        self._waits += waits
        if not self._job.made_within(LIMIT if waits else 0.0):
            return None
        try:
            self._job.wait()
        except Exception:  # noqa: BLE001 - what there is goes on
            return False
        STATS.compiled(self._job.seconds)
        STATS.reasons[self._reason] += 1
        return True


def compiling(
    closed: ClosedJaxpr, leaves: Sequence[Any], settings: Configuration, work: Work | None
) -> tuple[background.Job, Callable[..., Sequence[Any]]]:
    """Begin to compile a jaxpr for arguments like ``leaves``; return that, and what runs it (see :func:`on_device`)."""

    def segment(*leaves: Any) -> list[Any]:
        return list(jaxapi.jaxpr_as_fun(closed)(*leaves))

    executable, place = buffers.jitted(segment, leaves, [*buffers.copies(leaves), *_positions(leaves)]), everywhere(leaves)
    described = [jaxapi.described(x) for x in placed(leaves, settings, place)]
    return background.compiling(executable, described), on_device(executable, leaves, settings, work, place)


def on_device(
    program: Any, leaves: Sequence[Any], settings: Configuration, work: Work | None = None, place: Place | None = None
) -> Callable[..., Sequence[Any]]:
    """Return ``program`` (of ``jax.jit``) for arguments like ``leaves``, with the numbers among them given as arrays, or known to it.

    It is ``program`` itself where there are none, or where an array is bound to a device: that one would be copied there at each call.
    ``work`` is what it does (None: its numbers stay arguments), ``place`` is what :func:`everywhere` says of the arguments it was compiled
    for.
    """
    positions = _positions(leaves)
    if not positions or any(isinstance(x, jax.Array) and x.committed for x in leaves):
        return program if place is None else _as_arrays(program, positions, settings, place)
    segment = getattr(program, "__wrapped__", None)
    if segment is None or work is None:
        return _as_arrays(program, positions, settings)
    return Steady(segment, program, positions, settings, work)


def placed(leaves: Sequence[Any], settings: Configuration, place: Place | None) -> Sequence[Any]:
    """Return arguments as a program of :func:`on_device` is given them at this place."""
    if place is None:
        return leaves
    positions = set(_positions(leaves))
    return [_array(id(settings), x, place.sharding) if i in positions else x for i, x in enumerate(leaves)]


def _positions(leaves: Sequence[Any]) -> list[int]:
    return [i for i, x in enumerate(leaves) if is_scalar(x) and not np.iscomplexobj(x)]  # of equal complex ones a zero may be negative


class Place(NamedTuple):
    """Where numbers are put beside arrays that are spread over the devices of a mesh: that of the argument ``beside``."""

    beside: int
    sharding: jax.sharding.NamedSharding

    def holds(self, given: Sequence[Any]) -> bool:
        """Tell whether that argument is still spread over them: numbers bound to other devices than it would not do."""
        return getattr(getattr(given[self.beside], "sharding", None), "mesh", None) == self.sharding.mesh


def everywhere(leaves: Sequence[Any]) -> Place | None:
    """Return the place of numbers beside arrays that are spread over the devices of one mesh, all of this process; None elsewhere."""
    for i, x in enumerate(leaves):
        mesh = getattr(x.sharding, "mesh", None) if isinstance(x, jax.Array) and x.committed else None
        if mesh is not None and mesh.size > 1 and jax.process_count() == 1:
            auto = all(kind is jax.sharding.AxisType.Auto for kind in mesh.axis_types)  # elsewhere a place is part of the type
            return Place(i, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())) if auto else None
    return None


Met = dict[type, dict[Any, Any]]  # the arrays of the numbers that an argument was, by their type: no zeros that have a sign


def _note(met: Met, value: Any, array: Any) -> None:
    """Note a number's array."""
    known = met.setdefault(value.__class__, {})
    if array is not value and len(known) < _REMEMBERED and (value or isinstance(value, int | np.integer)):
        known[value] = array


def _as_arrays(
    program: Callable[..., Sequence[Any]],
    positions: Sequence[int],
    settings: Configuration,
    place: Place | None = None,
    met: dict[int, Met] | None = None,
) -> Callable[..., Sequence[Any]]:
    """Return a program with the numbers at these positions given as arrays, but for those that it is given in a buffer.

    Those are noted in ``met``, by position.
    """
    positions = _alone(program, positions)
    if met is not None:
        met.update({i: {} for i in positions})
    if not positions:
        return program
    number = id(settings)
    sharding = None if place is None else place.sharding
    called = False

    def run(*given: object) -> Sequence[Any]:
        nonlocal called
        if place is not None and not place.holds(given):
            return program(*given)
        arguments = list(given)
        for i in positions:
            value = arguments[i]
            if value.__class__ in NUMBERS or is_scalar(value):
                arguments[i] = array = _array(number, value, sharding, changed=called)
                if met is not None:
                    _note(met[i], value, array)
        called = True
        return program(*arguments)

    return run


def _alone(program: Any, positions: Sequence[int]) -> Sequence[int]:
    """Return those positions whose arguments a program is not given in a buffer."""
    inside = getattr(program, "inside", ())
    return [i for i in positions if i not in inside]


def _array(settings: int, value: Any, sharding: jax.sharding.NamedSharding | None = None, *, changed: bool = False) -> Any:
    """Return a number as an array; one that has changed, and has not come often, as it is.

    ``settings`` is the number of these, ``sharding`` where it is to be, if not where JAX puts it.
    """
    key = (settings, sharding, value.__class__, value or repr(value))  # 0.0 and -0.0 are equal
    known = _ARRAYS.get(key, 0)
    if known.__class__ is not int:
        return known
    if changed and sharding is None and known < _OFTEN:
        _ARRAYS[key] = known + 1
        return value
    array = _ARRAYS[key] = known_array(value) if sharding is None else jax.device_put(value, sharding)
    return array


class _Known(NamedTuple):
    """Numbers that are the same at every call: their positions among the arguments, their values, and those of them that are zeros."""

    positions: list[int]
    values: list[Any]
    zeros: list[tuple[int, Any]]

    def met(self, given: Sequence[Any]) -> bool:
        """Tell whether arguments have them."""
        if [given[i] for i in self.positions] != self.values:
            return False
        return not self.zeros or all(_same(given[i], zero) for i, zero in self.zeros)  # 0.0 equals -0.0

    def left(self, given: Sequence[Any]) -> list[int]:
        """Return the positions of those that arguments have."""
        return [i for i, value in zip(self.positions, self.values, strict=True) if _same(given[i], value)]


def _known(given: Sequence[Any], positions: list[int]) -> _Known:
    positions = [i for i in positions if is_scalar(given[i])]  # a number may come as an array, too, of the same weak type
    values = [given[i] for i in positions]
    return _Known(positions, values, [(i, value) for i, value in zip(positions, values, strict=True) if not value])


# How the recorder in C runs a program: see :class:`Steady`.
_Way = tuple[Any, tuple[Any, ...], tuple[Any, ...]]


class _Special(NamedTuple):
    """A program in which numbers are constants: these, and the positions of what it takes."""

    known: _Known
    others: list[int]
    program: Callable[..., Sequence[Any]]
    way: _Way


class Steady(layout.Numbers):
    """A program that gets another one, in which the numbers that are the same at every call are constants.

    Several threads may run it: what belongs together is replaced by one store.  ``_way`` has the recorder in C do without :meth:`run` as
    long as numbers are what they were, up to the call ``_until`` (0: for ever): a program; by argument, the number that it must be (... for
    any); and what is passed instead (None: nothing, or what comes): of a number that changes the arrays that were met.
    """

    def __init__(
        self,
        segment: Callable[..., Sequence[Any]],
        program: Any,
        positions: list[int],
        settings: Configuration,
        work: Work,
    ) -> None:
        self._segment = segment
        self._program = program
        self._met: dict[int, Met] = {}
        self._general = _as_arrays(program, positions, settings, met=self._met)
        self._settings = settings
        self._positions = positions
        self._work = work
        self._known: _Known | None = None  # numbers that were the same so far
        self._calls = self._until = 0  # that had them, or that may yet have others
        self._way: _Way | None = None
        self._further: tuple[Further, _Special] | None = None
        self._special: _Special | None = None
        self._steady = min(MOST, max(FEWEST, int(_WATCHED / work.run)))
        self._due = 2 * self._steady + work.calls  # the call that waits for it

    def run(self, *given: Any) -> Sequence[Any]:
        """Run the program that knows these numbers, or the one that takes them."""
        special = self._special
        if special is None:
            self._watch(given)
        elif special.known.met(given):
            return special.program(*[given[i] for i in special.others])
        else:
            self._miss(special.known, given)
        return self._general(*given)

    def _miss(self, known: _Known, given: Sequence[Any]) -> None:
        """Note that numbers are other ones; where they are so as often as they were the same, or more, those become arguments again."""
        self._calls -= 1
        if self._calls <= 0:
            self._known, self._calls, self._special, self._way = _known(given, known.left(given)), 0, None, None

    def _watch(self, given: Sequence[Any]) -> None:
        """Note which numbers are the same as before, and have the other program made of those that stay so."""
        known = self._known
        if known is None:
            self._known = _known(given, self._positions)
        elif not known.met(given):
            self._known, self._calls, self._further, self._way = _known(given, known.left(given)), 0, None, None
            return
        elif self._way is None:
            alone = _alone(self._program, known.positions)
            arrays = [
                _array(id(self._settings), value) if i in alone else value for i, value in zip(known.positions, known.values, strict=True)
            ]
            until = self._steady if known.positions else 0
            self._until, self._way = until, _way(self._program, len(given), known, arrays, self._met)
        if known is None or not known.positions:  # each of them has changed
            return
        self._calls += 1
        if self._calls == self._steady:
            self._further, self._until = self._compiling(known, given), self._due
        elif self._calls >= self._due and self._further is not None:
            self._take(*self._further)

    def _compiling(self, known: _Known, given: Sequence[Any]) -> tuple[Further, _Special]:
        segment, fixed = self._segment, dict(zip(known.positions, known.values, strict=True))
        others = [i for i in range(len(given)) if i not in fixed]

        def knowing(*rest: Any) -> Sequence[Any]:
            arguments = {**fixed, **dict(zip(others, rest, strict=True))}
            return segment(*[arguments[i] for i in range(len(arguments))])

        rest = [given[i] for i in others]
        changing = _positions(rest)
        program = buffers.jitted(knowing, rest, [*buffers.copies(rest), *changing])
        met: dict[int, Met] = {}
        run = _as_arrays(program, changing, self._settings, met=met)
        way = _way(program, len(given), known, None, {others[i]: arrays for i, arrays in met.items()})
        job = background.compiling(program, [jaxapi.described(x) for x in rest])
        change = Change("constants", "numbers that stay the same became part of it")
        return Further(job, run, self._work, change, "numbers that stay the same"), _Special(known, others, run, way)

    def _take(self, further: Further, special: _Special) -> None:
        made = further.made()
        if made is None:
            return
        if made:
            self._special, self._calls = special, max(self._steady, MISSES)
            self._way, self._until = special.way, 0
        else:
            self._known = _known((), [])
        self._further = None


def _way(program: Any, n: int, known: _Known, arrays: Sequence[Any] | None, met: dict[int, Met]) -> _Way:
    """Return how a program runs for arguments of which these are known, passed as ``arrays`` or not at all; others are what they met."""
    expected: list[Any] = [...] * n
    instead: list[Any] = [met.get(i) for i in range(n)]
    for number, i in enumerate(known.positions):
        expected[i], instead[i] = known.values[number], None if arrays is None else arrays[number]
    return program, tuple(expected), tuple(instead)


def reading(executable: Callable[..., Sequence[Any]], used: Sequence[int], leaves: int) -> Callable[..., Sequence[Any]]:
    """Return a program of the leaves that it reads as one of all leaves, so many."""
    return executable if len(used) == leaves else lambda *given: executable(*[given[i] for i in used])


def _same(a: object, b: object) -> bool:
    """Tell whether two numbers are one; 0.0 and -0.0 are two."""
    return a is b or (a.__class__ is b.__class__ and a == b and (bool(a) or repr(a) == repr(b)))
