"""Calls: a program as several compiled functions that are called one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from tape import jaxapi

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jax.stages import Wrapped

    from tape.programs.loops import Flow


class Call(NamedTuple):
    """One call: the function that is compiled, what calls it, and what it reads and gives, by slots (None: nobody needs it)."""

    compiled: Wrapped
    run: Callable[..., Sequence[Any]]
    inputs: Sequence[int]
    outputs: Sequence[int | None]
    arguments: Callable[[Sequence[Any]], Sequence[Any]] = list  # of the compiled function, for some inputs
    entry: bool = False  # it is one entry of the tape


class Calls:
    """The calls of a program, from the leaves of some slots to the values of others."""

    def __init__(self, calls: Sequence[Call], slots: Sequence[int], keep: Sequence[int], flow: Flow) -> None:
        self._calls = calls
        self._slots = slots
        self._keep = keep
        self._flow = flow
        last: dict[int | None, int] = {}
        for i, call in enumerate(calls):
            last.update(dict.fromkeys((*call.inputs, *call.outputs), i))
        for slot in (None, *keep):
            last.pop(slot, None)
        self._used_up: list[list[int]] = [[] for _ in calls]
        for slot, i in last.items():
            assert slot is not None
            self._used_up[i].append(slot)

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
        known: dict[int | None, Any] = {slot: jaxapi.described(leaf) for slot, leaf in zip(self._slots, leaves, strict=True)}
        first = next((x.sharding for x in known.values() if isinstance(x, jax.ShapeDtypeStruct) and x.sharding is not None), None)
        for entry in self._flow.entries if len(self._calls) > 1 else ():
            for slot, aval in zip(entry.slots, entry.kernel.out_avals, strict=True):
                known[slot] = jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=first, weak_type=aval.weak_type)
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
        values: dict[int | None, Any] = dict(zip(self._slots, leaves, strict=True))
        for call, used_up in zip(self._calls, self._used_up, strict=True):
            values.update(zip(call.outputs, call.run(*[values[s] for s in call.inputs]), strict=True))
            for slot in used_up:
                values.pop(slot, None)
        values.pop(None, None)
        return [values[s] for s in self._keep]
