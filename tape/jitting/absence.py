"""Absence: of several results that a step returns some have no seed, and nothing comes from them.

The sweep of a step is traced with a seed for each. Zeros in place of those that are not given would not do: zero times an infinite slope
is no zero. So what is linear in them goes out of the sweep.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tape import jaxapi
from tape.graph.wengert import Constant, Source, WengertList, closure
from tape.jaxapi import ClosedJaxpr
from tape.ops.building import JaxprBuilder, is_number
from tape.ops.linear import Equation, cotangents_of, flatten
from tape.rules.cotangents import zeros

# Whether the results of a primitive vanish, of whether each operand does, and of whether it does or is the number zero.
_Rule = Callable[[Sequence[bool], Sequence[bool]], bool]
_FIRST = (
    "neg convert_element_type reshape transpose broadcast_in_dim squeeze expand_dims reduce_sum cumsum slice split rev copy real imag conj "
    "reduce_precision dynamic_slice gather div fft reduce_window_sum scatter-mul"
)
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(_FIRST.split(), lambda gone, _: gone[0]),
    **dict.fromkeys(("mul", "dot_general", "conv_general_dilated"), lambda gone, _: any(gone)),
    **dict.fromkeys(("add", "add_any", "sub", "concatenate", "stack", "complex", "pad"), lambda _, null: all(null)),
    **dict.fromkeys(("dynamic_update_slice", "select_and_scatter_add"), lambda _, null: all(null[:2])),
    **dict.fromkeys(("scatter-add", "scatter"), lambda _, null: null[0] and null[2]),
    "select_n": lambda _, null: all(null[1:]),
    **dict.fromkeys(("triangular_solve", "custom_linear_solve"), lambda gone, _: gone[-1]),  # the right-hand side
}
_BODIES = {"scan": "jaxpr", "cond": "branches", "checkpoint": "jaxpr", "remat": "jaxpr", "remat2": "jaxpr"}


def without(closed: ClosedJaxpr, absent: Sequence[bool], flags: Mapping[int, bool]) -> tuple[ClosedJaxpr, list[bool]]:
    """Return a jaxpr of the same inputs, of which the absent ones are zeros, and the ``flags`` are known; and which results vanish."""
    listed = flatten(closed, wholly=False)
    walk, into = _Walk(absent, flags), JaxprBuilder()
    atoms: dict[Source, Any] = {i: into.input(aval) for i, aval in enumerate(listed.avals[: listed.n_inputs])}

    def atom(source: Source) -> Any:
        if isinstance(source, Constant):
            return into.constant(source.value, source.aval)
        if source not in atoms:
            same = walk.same.get(source)
            zero = functools.partial(zeros, listed.avals[source])
            atoms[source] = into.inline(jaxapi.trace(zero)[0], ())[0] if same is None else atom(same)
        return atoms[source]

    for entry in listed.entries:
        if walk.take(entry):
            atoms.update((source, atom(source)) for source in entry.inputs if isinstance(source, int))
            into.copy(_listed(listed, walk.inside(entry)), atoms)
    return into.closed([atom(source) for source in listed.outputs]), list(map(walk.vanishes, listed.outputs))


def _vanishing(closed: ClosedJaxpr, absent: Sequence[bool], flags: Mapping[int, bool]) -> list[bool]:
    """Tell for every output of a jaxpr whether it is zero where the ``absent`` inputs are, and the ``flags`` are known."""
    listed, walk = flatten(closed, wholly=False), _Walk(absent, flags)
    for entry in listed.entries:
        walk.take(entry)
    return list(map(walk.vanishes, listed.outputs))


def _listed(whole: WengertList[Equation], entry: Equation) -> WengertList[Equation]:
    alone: WengertList[Equation] = WengertList(whole.avals)
    alone.entries.append(entry)
    return alone


class _Walk:
    """What is known on the way through a list: the slots that are zero, flags, and slots that are the same as others."""

    def __init__(self, absent: Sequence[bool], flags: Mapping[int, bool]) -> None:
        self._zeros = {i for i, flag in enumerate(absent) if flag}
        self._null: set[Source] = set()  # those that are the number zero, or NaN
        self._flags: dict[Source, bool] = dict(flags.items())
        self.same: dict[int, Source] = {}

    def vanishes(self, source: Source) -> bool:
        """Tell whether a value is zero for want of a seed."""
        return source in self._zeros

    def take(self, entry: Equation) -> bool:
        """Note what an entry gives, and tell whether it is to be computed."""
        name, inputs, slot = entry.primitive.name, entry.inputs, entry.slots[0] if entry.slots else -1
        if name == "select_n" and (chosen := self._flags.get(inputs[0])) is not None:
            self.same[slot] = inputs[1 + chosen]
            if self._is_null(inputs[1 + chosen]):
                self._zeros.add(slot)
            return False
        known = [self._flags.get(source) for source in inputs]
        if known and None not in known and name in {"or", "broadcast_in_dim"}:
            self._flags[slot] = any(known)
        if name in {"select_n", "convert_element_type", "broadcast_in_dim"} and all(map(self._is_null, inputs[name == "select_n" :])):
            self._null.add(slot)
        gone = self._results(entry)
        self._zeros.update(slot for slot, flag in zip(entry.slots, gone, strict=True) if flag)
        return not (gone and all(gone))

    def _is_null(self, source: Source) -> bool:
        """Tell whether a value is zero, for whatever reason, or the NaN by which a rule says that its input was one."""
        if isinstance(source, Constant):
            return is_number(source.value) and (not source.value or source.value != source.value)
        return source in self._null or source in self._zeros

    def _results(self, entry: Equation) -> list[bool]:
        """Tell which results of an entry are zero."""
        name, gone = entry.primitive.name, list(map(self.vanishes, entry.inputs))
        if True not in gone:
            return [False] * len(entry.slots)
        if cotangents := cotangents_of(entry.eqn):
            return [all(gone[-cotangents:])] * len(entry.slots)
        if name in _RULES:
            return [_RULES[name](gone, list(map(self._is_null, entry.inputs)))] * len(entry.slots)
        if name == "optimization_barrier":
            return gone
        if name in _BODIES:
            bodies, gone, flags = _bodies(entry), self._of_bodies(entry), self._flags_of_bodies(entry)
            each = [_vanishing(body, gone, flags) for body in bodies]
            return [all(results) for results in zip(*each, strict=True)]
        return [False] * len(entry.slots)

    def _of_bodies(self, entry: Equation) -> list[bool]:
        """Tell which inputs of the jaxprs that an entry holds are zero."""
        gone = list(map(self.vanishes, entry.inputs))
        if entry.primitive.name == "cond":
            return gone[1:]
        if entry.primitive.name != "scan":
            return gone
        consts, first = entry.params["num_consts"], entry.params["num_consts"] + entry.params["num_carry"]
        (body,), flags = _bodies(entry), self._flags_of_bodies(entry)
        started = list(map(self._is_null, entry.inputs[consts:first]))

        def grow(carried: list[bool]) -> list[bool]:
            given = [*gone[:consts], *[not flag for flag in carried], *gone[first:]]
            return [not flag for flag in _vanishing(body, given, flags)[: first - consts]]

        return [*gone[:consts], *[not flag for flag in closure([not flag for flag in started], grow)], *gone[first:]]

    def _flags_of_bodies(self, entry: Equation) -> dict[int, bool]:
        """Return the flags among their inputs: in a loop, those that are the same in each turn."""
        name = entry.primitive.name
        inputs = entry.inputs[: entry.params["num_consts"]] if name == "scan" else entry.inputs[name == "cond" :]
        return {i: self._flags[source] for i, source in enumerate(inputs) if source in self._flags}

    def inside(self, entry: Equation) -> Equation:
        """Return an entry without what is zero inside of it."""
        key = _BODIES.get(entry.primitive.name)
        if key is None or not any(map(self.vanishes, entry.inputs)):
            return entry
        absent, flags = self._of_bodies(entry), self._flags_of_bodies(entry)
        bodies = [without(body, absent, flags)[0] for body in _bodies(entry)]
        if any(body.consts for body in bodies):
            return entry
        held = entry.params[key]
        new = tuple(bodies) if isinstance(held, tuple) else bodies[0] if isinstance(held, ClosedJaxpr) else bodies[0].jaxpr
        return Equation(entry.eqn.replace(params={**entry.eqn.params, key: new}), entry.inputs, entry.slots)


def _bodies(entry: Equation) -> list[ClosedJaxpr]:
    held = entry.params[_BODIES[entry.primitive.name]]
    return list(map(jaxapi.closed, held if isinstance(held, tuple) else [held]))
