"""Classes: the methods that a step may call, and the objects whose they are.

A method may be put in place of another, in its class, a class before that, or an object (``model.forward = ...``); and an object may become
one of another class.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Any

from tape import layout
from tape.callables.methods import lookups
from tape.callables.objects import Itself, of_a_library
from tape.callables.reach import Edge, Path, Reach
from tape.graph.lines import is_of_python

_LOOKS = 1024  # at objects: of more, those are looked at that lead to what a step reads

_METHODS = (types.FunctionType, staticmethod, classmethod)  # which an object's own attributes hide


def methods_in(reached: Reach, names: frozenset[str]) -> Iterator[tuple[Hashable, Edge]]:
    """Yield by what it is seen that classes have the methods that they had, of those that code with these names may call."""
    for kind, (path, _) in reached.kinds.items():
        for base, name, get, at, x in lookups(kind, names):
            yield (path, name, Itself(base)), Edge(get, at, name, (), -1, x)


def objects_in(reached: Reach, through: Collection[int], names: frozenset[str]) -> tuple[frozenset[Path], list[Edge]]:
    """Return where objects have something in place of methods, and by what it is seen that no others have, and which classes all are of."""
    hideable = {kind: _hideable(kind, names) for kind in reached.kinds if _is_of_a_user(kind)}
    nodes = [n for n, x in enumerate(reached.nodes) if type(x) in hideable]
    nodes = nodes if len(nodes) <= _LOOKS else [n for n in nodes if n in through]
    objects = [reached.nodes[n] for n in nodes]
    own = [d if isinstance(d := getattr(x, "__dict__", None), dict) else {} for x in objects]
    hidden = [(*reached.path(n), f".{k}") for n, x, d in zip(nodes, objects, own, strict=True) for k in hideable[type(x)] if k in d]
    rows = tuple([(x, type(x), d, tuple([k for k in hideable[type(x)] if k not in d])) for x, d in zip(objects, own, strict=True)])
    return frozenset(hidden), [Edge(_are_alike, rows, None, (), -1, True)] if rows else []


def _is_of_a_user(kind: type) -> bool:
    return not (issubclass(kind, type) or of_a_library(kind.__module__) or is_of_python(kind))


def _hideable(kind: type, names: frozenset[str]) -> Sequence[str]:
    """Return the names of methods of a class that its objects may have something else for."""
    found = dict.fromkeys([name for _, name, *_ in lookups(kind, names) if not name.startswith("__")])
    return [name for name in found if isinstance(inspect.getattr_static(kind, name), _METHODS)]


def _are_all_alike(rows: Sequence[tuple[Any, type, dict[str, Any], Sequence[str]]], _: object) -> bool:
    """Tell whether objects are of classes, and there is nothing under some names in dicts."""
    return all(type(x) is kind and not any(name in own for name in names) for x, kind, own, names in rows)


_are_alike = layout.chosen("are_alike", _are_all_alike)  # which every call asks
