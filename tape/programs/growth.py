"""Growth: a loop whose tape becomes longer with each turn, of which no sweep will ever go back through the turns before.

``params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)`` and ``total = total + loss`` are such loops: what they carry over depends on all
that came before it.  That alone is what unrolled loops do on purpose.  Here, though, each turn has a sign that nobody goes back: an entry through
which every sweep is refused, because it uses a gradient that was taken without recording, or what was swept and released; or a sweep that was
asked for the gradient of what is carried over, and ended there.  When many turns with signs lie behind each other, the user is told.  A sweep with
``create_graph`` is a lesser sign: an outer one may yet come through it, as in MAML.  Segments count on the way how many signs there could be, which costs
nothing where there is none.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

from tape.errors import warn
from tape.graph.segment import SIGN

if TYPE_CHECKING:
    from tape.graph.segment import Segment

__all__ = ["LIMIT", "look_into"]

LIMIT = 64 * SIGN


def look_into(segment: Segment) -> None:
    """Warn if as many entries that no sweep can pass lie behind each other, on the way back from a segment."""
    doubts, looked = segment.doubts
    if doubts < 2 * looked:
        return
    segment.doubts = doubts, doubts
    found = _found(segment)
    if found is None:
        return
    name, where, why = found
    at = "" if where is None else f" at {where[0]}:{where[1]}"
    warn(
        f"a tape that grows: {name}{at} depends on what the same loop made in the turns before, {LIMIT // SIGN} or more, all of which is kept, though "
        f"{why}",
        where,
    )


_PARAMETER = (
    "update a parameter in place, `with tape.no_grad(): p -= 0.1 * g`, or cut the new one off, `(p - 0.1 * g).detach().requires_grad_()`"
)
_HAZARD = f"no sweep can go back through it: it uses a gradient that was taken without recording; {_PARAMETER}"
_RELEASED = "no sweep can go back through it: it uses what a sweep released; carry over the value, as in `total = total + loss.detach()`"
_ENDED = f"sweeps were asked for the gradient of each, and went no further; {_PARAMETER} (should you differentiate through all of them later, ignore this)"

_Entry = tuple[str, tuple[str, int] | None, str]  # its op, its line, and why nobody goes back
_Way = tuple[
    int, _Entry | None, int
]  # the signs on a way back, the entry with the first of them, and the sweep that the last of them is of
_NOTHING: _Way = (0, None, -1)


def _found(segment: Segment) -> _Entry | None:
    """Return the latest of so many entries that no sweep can pass, one behind the other."""
    begin: dict[int, _Way] = {place.slot: _NOTHING for place in segment.state.table[: segment.state.n_slots]}
    waiting = {segment: begin}
    heap = [(-segment.serial, segment)]
    released: dict[Segment, frozenset[int]] = {}
    while heap:
        _, segment = heapq.heappop(heap)
        reached = waiting.pop(segment)
        so_far = max(reached.values(), key=_number)
        beside = None  # a dead end that is not on the way itself: sweeps come to it all the same
        state, table = segment.state, segment.state.table
        for step in reversed(state.path()):
            if step.kernel is None or step.ends or step.depth in segment.released or not state.cut.isdisjoint(step.slots):
                continue
            found = max([reached[s] for s in step.slots if s in reached], key=_number, default=None)
            if found is None or not any(place.kind.requires_grad for place in step.places):
                continue
            inputs = [s for s in step.inputs if table[s].kind.requires_grad]
            n, first, last = found
            weight, sweep = max([segment.asked.get(s, (0, last)) for s in step.slots])
            why = _ENDED if weight and sweep != last else None
            if step.hazard is not None:
                weight, why = SIGN, _HAZARD
            elif any(_is_released(segment, s, released) for s in inputs):
                weight, why = SIGN, _RELEASED
            if why is not None:
                found = n, first, _ = n + weight, first or (step.kernel.name, step.where, why), sweep
                if why is not _ENDED:
                    beside = beside or first
            for s in inputs:
                reached[s] = max(found, reached.get(s, _NOTHING), key=_number)
        ahead = (so_far[0] + SIGN, so_far[1] or beside, so_far[2]) if beside is not None else so_far
        for slot, origin in segment.origins.items():
            if slot in reached:
                found = max(reached[slot], ahead, key=_number)
                if found[0] >= LIMIT:
                    return found[1]
                if isinstance(origin, tuple) and origin[1] not in origin[0].state.cut:
                    if origin[0] not in waiting:
                        waiting[origin[0]] = {}
                        heapq.heappush(heap, (-origin[0].serial, origin[0]))
                    further = waiting[origin[0]]
                    further[origin[1]] = max(found, further.get(origin[1], _NOTHING), key=_number)
    return None


def _number(way: _Way) -> int:
    return way[0]


def _is_released(segment: Segment, slot: int, known: dict[Segment, frozenset[int]]) -> bool:
    """Tell whether what a slot was computed by was swept and released."""
    origin: Any = segment.origins.get(slot)
    if isinstance(origin, tuple):
        segment, slot = origin
    if not segment.released:
        return False
    if segment not in known:
        steps = [step for step in segment.state.path() if step.kernel is not None and step.depth in segment.released]
        known[segment] = frozenset(s for step in steps for s in step.slots)
    return slot in known[segment]
