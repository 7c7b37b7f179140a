"""Looks: arrays in places that a step may have looked at while it was traced (``float(self.rate)``, ``if self.done``).

Nobody sees such a look.  So when an array that a step does not compute with has been replaced, the step is traced with that place as an
input.  Where that works, it depends on no more than shape and dtype; where it does not, each array that comes there is another step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tape.callables.reach import Reach
from tape.errors import ConcretizationError
from tape.graph.segment import Handle
from tape.jitting import identities
from tape.jitting.garbage import only_young
from tape.jitting.numbers import leave_behind
from tape.jitting.places import KeptArray, arrays_in, is_fixed, names_of
from tape.jitting.results import NEW
from tape.jitting.surroundings import surroundings
from tape.jitting.tracing import TracedStep, trace_step

_FEW, _MANY = 8, 64  # places that are tried one by one, and at once

_ATTEMPTS = 4

_Traced = Callable[[Sequence[KeptArray]], TracedStep]


def trace_anew(
    name: str,
    call: Callable[[Sequence[Any]], Any],
    avals: Sequence[Any],
    given: Sequence[Handle],
    reached: Reach,
    others: Sequence[TracedStep],
    *,
    anew: bool = False,
) -> TracedStep:
    """Trace a step that was traced before, as the ``others``: where arrays were replaced, these are inputs, if it does not look at them."""
    looked = {place for other in others for place in other.looked_at}
    inputs = _now([(k, None) for other in others for k in other.kept.values()], reached)
    read = [(k, x) for other in others for k, x in other.read]
    replaced = [k for k in _now([*read, *[(k, x()) for other in others for k, x in other.suspects]], reached) if _name(k) not in looked]
    others_there = {k.place for k in (*inputs, *replaced)}
    replaced = [k for k in replaced if k.place not in {i.place for i in inputs}]
    # Arrays that are a part of other steps stay one, unless nobody knows where they were read, since others stand in such places now.
    moved = {k.place for k in replaced}
    constant = {id(x) for _, x in read} - {id(x) for k, x in read if k.place in moved}
    there = surroundings(reached, reached.every(), identities.names_read(reached), (), ())[1] if others else ()
    unchanged = [k for k, x in there if k.place not in others_there and id(x) not in constant and is_fixed(x) and _name(k) not in looked]

    def traced(places: Sequence[KeptArray]) -> TracedStep:
        those = {k.place for k in places} - {k.place for k in inputs}
        return trace_step(name, call, avals, given, reached, places, unless_read=those, anew=anew)

    step, seen = _told_apart(traced, inputs, replaced, unchanged)
    step.unread.update(place for other in others for place in other.unread)
    step.looked_at = looked.union(names_of(seen, reached))
    return step


def _name(kept: KeptArray) -> tuple[object, object]:
    return kept.holder.key, kept.key


@only_young()  # what is made while a step is traced is needed until that ends
def settled(trace: Callable[[Reach, bool], TracedStep], fun: object, reached: Reach) -> tuple[TracedStep, Reach]:
    """Trace a step until it makes no more leaves that stay, such as a model where there was none: these are state like any other then.

    What it puts beside them (``model.average = ...``) each call is to put there. Where it does not do that again, since the model is
    there, it is traced from the beginning, so that each call is to make all of it.
    """
    start, beside, anew = reached, set[object](), False
    for last in (*[False] * (_ATTEMPTS - 1), True):
        try:
            step = trace(reached, anew)
        except Exception:
            if last or not beside:
                raise
            step = None
        if step is None or not beside <= {(s.holder.key, s.key) for s in step.outcome.slots}:
            for holder in start.holders:
                holder.place.fill(holder.before)
            reached, beside, anew = start, set(), True
            continue
        leave_behind(step, reached)
        if not step.stayed:
            break
        slots = [] if anew else [s for s in step.outcome.slots if s.held in ("None", "missing") and s.key is not NEW]
        reached, beside, anew = Reach([fun]), {(s.holder.key, s.key) for s in slots}, False
    assert step is not None, "the last attempt returns or raises"
    return step, reached


def _now(places: Sequence[tuple[KeptArray, Any]], reached: Reach) -> list[KeptArray]:
    """Return the places that hold other arrays than those, now."""
    holders = {h.key: h for h in reached.holders}
    there = [(k._replace(holder=holders[k.holder.key]), x) for k, x in places if k.holder.key in holders]
    there = [(k, x) for k, x in there if is_fixed(k.holder.place.at_key(k.key))]
    arrays = arrays_in([k for k, _ in there])
    return list({k.place: k for (k, x), now in zip(there, arrays, strict=True) if now is not None and now is not x}.values())


def _told_apart(
    traced: _Traced, inputs: Sequence[KeptArray], replaced: Sequence[KeptArray], unchanged: Sequence[KeptArray]
) -> tuple[TracedStep, list[KeptArray]]:
    """Return a step to which as many places as possible are inputs, and those among the replaced ones at which it looks."""
    tried = [[*replaced, *unchanged]] if 0 < len(unchanged) <= _MANY else []
    if replaced:
        tried.append([*replaced])
    for places in tried:
        if (step := _tried(traced, [*inputs, *places])) is not None:
            return step, []
    accepted: list[KeptArray] = []
    for k in replaced if 1 < len(replaced) <= _FEW else ():
        if _tried(traced, [*inputs, *accepted, k]) is not None:
            accepted.append(k)
    try:
        step = traced([*inputs, *accepted])
    except ConcretizationError:
        if not inputs:
            raise
        step, accepted = traced(()), []
    return step, [k for k in replaced if not any(k is each for each in accepted)]


def _tried(traced: _Traced, places: Sequence[KeptArray]) -> TracedStep | None:
    """Return a step to which these places are inputs; None where it does with one of them what only a value allows."""
    try:
        return traced(places)
    except Exception:  # noqa: BLE001 - what looks at an array may do anything with what it sees
        return None
