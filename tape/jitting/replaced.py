"""Replaced objects: a step may look at what objects and containers hold that lead to no Variable, such as options in options.

Another one may come in their place, or in that of what has them: then what the step looked at is to be in it as it was.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tape import layout
from tape.callables.objects import MISSING, writables
from tape.callables.reach import Edge, Reach

_MANY = 256  # looks below one object
_STEPS = 8
ALL = object()  # in place of a key: all of a container


class Look(NamedTuple):
    """What was seen under a key of an object or container: ``check(content, expected)`` tells whether something is no other."""

    key: Any
    check: Callable[[Any, Any], bool]
    expected: Any

    def holds(self, value: object) -> bool:
        """Tell whether an object or container has it."""
        if self.key is ALL:
            return self.check(value, self.expected)
        contents = (place.at_key(self.key) for place in writables(value))
        return self.check(next((x for x in contents if x is not MISSING), MISSING), self.expected)


class _Step(NamedTuple):
    """The way to what an object or container holds, and the class that this is of."""

    read: Callable[[Any, Any], object]
    key: Any
    kind: type


def replaced(reached: Reach, looks: Mapping[int, Sequence[Look]], watched: Collection[object]) -> Iterator[tuple[Hashable, Edge]]:
    """Yield by what it is seen that nothing else stands where objects are of which a step ``looks`` at something, by their nodes.

    Places (by container and key) that are ``watched`` hold what they held.
    """
    below: dict[int, list[tuple[tuple[_Step, ...], Look]]] = {node: [((), look) for look in found] for node, found in looks.items()}
    for node in range(len(reached.nodes) - 1, -1, -1):  # what holds something was found before that
        told = tuple(below.pop(node, ()))
        into = [e for e in reached.into(node) if (id(e.holder), e.key) not in watched] if told else []
        for e in into:
            if e.get is not None:
                yield (reached.path(node), e.path, "replaced"), Edge(leads_on, e, (_is_alike, told), (), -1, True)
        if into and into[0] is reached.into(node)[0] and (step := _step(into[0], reached)) is not None:
            further = [((step, *steps), look) for steps, look in told if len(steps) < _STEPS]
            if len(further) <= _MANY:
                below.setdefault(into[0].source, []).extend(further)


def _step(edge: Edge, reached: Reach) -> _Step | None:
    """Return how what stands at an edge is read of another object than that which it leaves; None where that is code."""
    value = None if edge.source < 0 else reached.nodes[edge.source]
    if value is None or isinstance(value, (types.FunctionType, types.MethodType, types.CellType)):
        return None
    if isinstance(value, tuple):
        return _Step(operator.getitem, edge.key, type(edge.content))
    if edge.get is None:
        return None
    return _Step(edge.get if edge.holder is value else _attribute, edge.key, type(edge.content))


def _attribute(value: Any, name: str) -> object:
    return vars(value)[name]


def _leads_on(edge: Edge, other: tuple[Callable[[Any, Any, Any], bool], object]) -> bool:
    """Tell whether an edge leads to what it led to, or what stands there now will do as well: what tells that gets both, and one more."""
    content, (will_do, told) = edge.get(edge.holder, edge.key), other  # type: ignore[misc]
    return content is edge.content or will_do(content, edge.content, told)


leads_on = layout.chosen("leads_on", _leads_on)  # which every call asks


def _is_alike(content: object, before: object, told: Sequence[tuple[Sequence[_Step], Look]]) -> bool:
    """Tell whether an object is of the kind of the one before, and everything looked at is in it as it was."""
    if type(content) is not type(before) or isinstance(content, types.FunctionType):
        return False
    return all(_is_seen(content, steps, look) for steps, look in told)


def _is_seen(value: Any, steps: Sequence[_Step], look: Look) -> bool:
    for read, key, kind in steps:
        value = read(value, key)
        if type(value) is not kind:
            return False
    return look.holds(value)
