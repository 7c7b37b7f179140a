"""Surroundings: what a step was traced with besides Variables, arrays and modes: the lengths of containers, and what was not there.

A list of layers that has got one more, or its first one, and an attribute that holds something where there was None, bring Variables that
no trace has met.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Collection, Hashable, Sequence

from tape.callables.reach import Edge, Reach, Stored

_SMALL = 256  # up to here, equal numbers are one object


def surroundings(reached: Reach, way: Sequence[Edge], names: Collection[str]) -> dict[Hashable, Edge]:
    """Return by what is seen: lengths of containers on the ``way`` to what a step reads, attributes of these ``names`` that are None.

    Nothing leads through an empty container, so that nobody knows whether the step reads it: any is looked at until it gets something.
    """
    ours = {id(edge.holder) for edge in way}
    found: dict[Hashable, Edge] = {}
    for holder in reached.holders:
        at, before = holder.place.at, holder.before
        if holder.place.spelled == ".{}":
            empty = [name for name in names if at.get(name, _SMALL) is None]
            found.update(((holder.key, n), Edge(operator.getitem, at, n, (), -1, None)) for n in empty)
        elif (id(at) in ours or not before) and _is_container(holder) and len(at) == len(before):
            found[holder.key] = _of_length(at, len(at))
    return found


def _is_container(holder: Stored) -> bool:
    return isinstance(holder.place.at, (list, deque)) or holder.place.spelled.startswith("[")


def _of_length(at: object, n: int) -> Edge:
    if n <= _SMALL:
        return Edge(operator.length_hint, at, 0, (), -1, n)
    return Edge(lambda at, n: len(at) == n, at, n, (), -1, True)
