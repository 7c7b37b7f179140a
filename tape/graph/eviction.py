"""Eviction: dropping from the trie what was not run for the longest time, with its programs and plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable

    from tape.graph.trie import State

__all__ = ["evict"]


def evict(roots: dict[Hashable, State], oldest: int) -> int:
    """Keep the structures that ran since the run of number ``oldest``, with all that leads to them; return how many states that is.

    What is dropped still serves the segments that stand on it; it is only not found any more.
    """
    states = _reachable(roots)
    kept: set[int] = set()
    for state in states:
        if state.used >= oldest:
            step: State | None = state
            while step is not None and id(step) not in kept:
                kept.add(id(step))
                step = step.parent
    for key in [key for key, state in roots.items() if id(state) not in kept]:
        del roots[key]
    for state in states:
        if state.next and id(state) in kept:
            state.next = {key: value for key, value in list(state.next.items()) if id(_state(value)) in kept}
    return len(kept)


def _reachable(roots: dict[Hashable, State]) -> list[State]:
    found = list(roots.values())
    seen = {id(state) for state in found}
    for state in found:  # grows while it is walked
        for value in list(state.next.values()):
            target = _state(value)
            if id(target) not in seen:
                seen.add(id(target))
                found.append(target)
    return found


def _state(value: Any) -> State:
    """Return the state that an edge leads to: itself, or where a sweep written before ends."""
    found: State = getattr(value, "state", value)
    return found
