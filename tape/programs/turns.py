"""Turns: a loop whose body is a program of its own, called once for each turn; and programs as several calls, one after the other.

That is how loops run whose turns are long and read arrays of their own (the weights of layers): to make one array of these, and to take
it apart again, would cost more than the calls.  The body is compiled once, whatever the number of turns, and found again by any program
whose loop does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
from jax.stages import Wrapped

from tape import jaxapi
from tape.bounded import Bounded
from tape.configuration import configuration
from tape.graph.trie import Step
from tape.programs import numbers
from tape.programs.interpretation import evaluate
from tape.programs.loops import Carried, Flow, Loop, PerTurn, Result, Same, Shared
from tape.programs.naming import inline


class Call(NamedTuple):
    """One call: the function that is compiled, what calls it, and what it reads and gives, as an entry of a Wengert list."""

    compiled: Wrapped
    run: Callable[..., Sequence[Any]]
    inputs: Sequence[int]
    slots: Sequence[int]
    arguments: Callable[[Sequence[Any]], Sequence[Any]] = list  # of the compiled function, for some inputs
    entry: bool = False  # it is one entry of the tape


class Calls:
    """The calls of a program, from the leaves of some slots to the values of others."""

    def __init__(self, calls: Sequence[Call], slots: Sequence[int], keep: Sequence[int], flow: Flow) -> None:
        self._calls = calls
        self._slots = slots
        self._keep = keep
        self._flow = flow

    @property
    def count(self) -> int:
        """How many calls there are."""
        return len(self._calls)

    @property
    def alone(self) -> int:
        """How many calls are single entries."""
        return sum(call.entry for call in self._calls)

    def compiling(self, leaves: Sequence[Any]) -> list[tuple[Wrapped, Sequence[Any]]]:
        """Return the functions to compile, each once, with arguments like those of their calls."""
        known = described(dict(zip(self._slots, leaves, strict=True)), self._flow.entries if len(self._calls) > 1 else ())
        met: dict[int, tuple[Wrapped, Sequence[Any]]] = {}
        for call in self._calls:
            if id(call.compiled) not in met:
                arguments = call.arguments([known[s] for s in call.inputs])
                met[id(call.compiled)] = call.compiled, [jaxapi.described(x) for x in arguments]
        return list(met.values())

    def __call__(self, *leaves: Any) -> Sequence[Any]:
        """Return the values that are kept."""
        if len(self._calls) == 1:
            return self._calls[0].run(*leaves)
        return evaluate(self._calls, dict(zip(self._slots, leaves, strict=True)), self._keep, lambda call: call.run)


def described(leaves: dict[int, Any], entries: Sequence[Step]) -> dict[int, Any]:
    """Return by slot what a function is compiled for that is given some leaves, and what entries make of these."""
    known = {slot: jaxapi.described(leaf) for slot, leaf in leaves.items()}
    place = next((x.sharding for x in known.values() if isinstance(x, jax.ShapeDtypeStruct) and x.sharding is not None), None)
    for entry in entries:
        for slot, aval in zip(entry.slots, entry.kernel.out_avals, strict=True):
            known[slot] = jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=place, weak_type=aval.weak_type)
    return known


class Body:
    """The body of a loop, a compiled function; the same one for an equal loop."""

    __slots__ = ("begun", "compiled", "job", "read", "results", "turns")

    def __init__(self, compiled: Wrapped) -> None:
        self.compiled = compiled
        self.turns = 0  # of the last loop with this body
        self.job: Any = None  # compiles it, for loops that are not compiled themselves (tape.programs.variations)
        self.begun = 0


# By kernels, wiring and results; the kernels are in the key, so that none is another one's number.
_BODIES: Bounded[Hashable, Body] = Bounded("bodies of loops", 512)


def turns_of(flow: Flow, loop: Loop, leaves: dict[int, Any]) -> list[Call]:
    """Return the calls of a loop's body, one for each turn."""
    read, results = _interface(loop)
    body = body_of(loop).compiled

    def slot(result: Result, number: int) -> int:
        return int(flow.entries[loop.start + number * loop.period + result[0]].slots[result[1]])

    def source_slot(source: Carried | Shared | PerTurn, number: int) -> int:
        if isinstance(source, Shared):
            return source.slot
        if isinstance(source, PerTurn):
            return source.slots[number]
        return source.initial[number] if number < source.turns else slot(source.result, number - source.turns)

    run = numbers.on_device(body, [leaves.get(source_slot(source, 0)) for source in read], configuration())
    turns = range(loop.count)
    return [Call(body, run, [source_slot(source, n) for source in read], [slot(result, n) for result in results]) for n in turns]


def _interface(loop: Loop) -> tuple[dict[Carried | Shared | PerTurn, int], list[Result]]:
    """Return what a turn reads, each with its number, and what it gives."""
    outside = dict.fromkeys(source for source in loop.sources if not isinstance(source, Same))
    read = {source: number for number, source in enumerate(outside)}
    carried = {source.result for source in read if isinstance(source, Carried)}
    return read, sorted({*loop.each, *loop.last, *carried})


def body_of(loop: Loop) -> Body:
    """Return the body of a loop."""
    read, results = _interface(loop)
    kernels = tuple([entry.kernel for entry in loop.turn])
    wiring = tuple([tuple([s.result if isinstance(s, Same) else read[s] for s in sources]) for sources in loop.reads])

    def made_body() -> Body:
        runs = [inline(entry) for entry in loop.turn]  # which hold no entry

        def body(*given: Any) -> list[Any]:
            computed: list[Sequence[Any]] = []
            for run, sources in zip(runs, wiring, strict=True):
                computed.append(run(*[given[s] if isinstance(s, int) else computed[s[0]][s[1]] for s in sources]))
            return [computed[place][number] for place, number in results]

        return Body(jax.jit(body))

    return _BODIES.cached((kernels, wiring, tuple(results), configuration()), made_body)
