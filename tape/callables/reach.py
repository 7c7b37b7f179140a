"""Reach: the Variables that a callable can get at without being given them, and the places in which it finds them.

A callable reaches what it closes over, names as globals, and is a method of, and what that holds: attributes, items of lists, tuples and
dicts, bound arguments.  Each step on the way is an edge; edges that can be rebound are what a compiled function has to check.
"""

from __future__ import annotations

import functools
import logging
import operator
import sys
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tape.callables.code import all_names
from tape.callables.methods import methods
from tape.callables.objects import Writable, is_of_a_library, parts, steps_to, writables
from tape.graph.segment import Handle, itself

_LIMIT = 300_000  # objects looked through, which takes some seconds
_KEYED = (dict, set, frozenset)
_CONTAINERS = (*_KEYED, list, tuple, deque)
_SKIPPED = (types.ModuleType, str, bytes, int, float, type(None), np.generic, jax.Array, logging.Logger)  # which leads to all others


@functools.lru_cache(maxsize=4096)
def _is_skipped(kind: Any) -> bool:
    """Tell whether values of a type lead nowhere."""
    return kind is np.ndarray or issubclass(kind, _SKIPPED)


def _leads_nowhere(value: Any) -> bool:
    """Tell whether a value holds no Variable by what it is: a number, an array, or a tuple of such, as data sets are made of."""
    return all(_is_skipped(x.__class__) for x in value) if value.__class__ is tuple else _is_skipped(value.__class__)


def _hooks_of(variable: Any) -> list[Any]:
    """Return the hooks of a leaf, which a sweep in what reaches it calls."""
    extra = variable._extra
    return [] if extra is None else [*(() if extra.node is None else extra.node.hooks.values()), *extra.post_hooks.values()]


# The attribute by which an object of a bridge's says in which mode it is (``model.eval()``); it is one object for equal modes.
MODE = "__tape_mode__"

Path = tuple[object, ...]


class Edge(NamedTuple):
    """One step from an object to what it holds.

    ``get(holder, key)`` reads it anew; ``get`` is None where it cannot be rebound.  ``path`` names it from the callable on.
    """

    get: Callable[[Any, Any], object] | None
    holder: Any
    key: Any
    path: Path
    source: int  # the node that it leaves
    content: Any


class Stored(NamedTuple):
    """Something that can be written to, as it was."""

    place: Writable
    path: Path
    before: dict[Any, Any]
    node: int  # what has it

    @property
    def key(self) -> tuple[object, ...]:
        """By which it is found again: the path leads to a function, whose cells, globals and attributes are places of their own."""
        return self.path, self.place.spelled, self.place.names is None


class Reach:
    """What some callables reach."""

    def __init__(self, callables: Iterable[object]) -> None:
        self.variables: dict[int, tuple[Any, Path]] = {}  # by id, nearest first, with the path by which it was found first
        self.edges: dict[int, list[Edge]] = {}  # those that lead to each of them
        self.holders: list[Stored] = []
        self.modes: list[Edge] = []  # to what objects say of themselves that what they compute depends on
        self.whole = True  # whether that is all
        self.keys: dict[int, list[Any]] = {}  # by the node of a dict or set: the Variables and integers by which it finds something
        self._incoming: list[list[Edge]] = []  # by node
        nodes: dict[int, int] = {}
        self.nodes: list[object] = []  # what is not a Variable, so that ids stay theirs
        self.kinds: dict[type, tuple[Path, int]] = {}  # of the user's: where one was met first, or an object of it
        self._names: set[str] = set()  # in the code that is reached
        queue = deque(Edge(None, None, None, (i,), -1, c) for i, c in enumerate(callables) if not _leads_nowhere(c))
        while queue or (queue := deque(self._methods(nodes))):
            if len(nodes) >= _LIMIT:
                self.whole = False
                break
            edge = queue.popleft()
            value = edge.content
            if isinstance(value, Handle):
                variable = itself(value)
                if id(variable) not in self.variables:
                    hooks = enumerate(_hooks_of(variable))
                    queue.extend(Edge(None, None, None, (*edge.path, f".hooks[{i}]"), -1, hook) for i, hook in hooks)
                self.variables.setdefault(id(variable), (variable, edge.path))
                self.edges.setdefault(id(variable), []).append(edge)
            elif id(value) in nodes:
                self._incoming[nodes[id(value)]].append(edge)
            else:
                node = nodes[id(value)] = len(nodes)
                self.nodes.append(value)
                self._incoming.append([edge])
                if isinstance(value, _KEYED) and (keys := [k for k in [*value] if isinstance(k, Handle) or type(k) is int]):
                    self.keys[node] = keys
                queue.extend(self._leaving(value, edge.path, node))

    def _methods(self, nodes: Mapping[int, int]) -> list[Edge]:
        """Return the edges to methods that may be called and have not been met."""
        kinds = self.kinds.items()
        callable_methods = [
            (f, (*path, f".{name}"), node, own or name in self._names) for kind, (path, node) in kinds for name, own, f, _ in methods(kind)
        ]
        return [Edge(None, None, None, path, node, f) for f, path, node, called in callable_methods if called and id(f) not in nodes]

    def _leaving(self, value: object, path: Path, node: int) -> Iterator[Edge]:
        """Yield the edges that leave a function, container or object."""
        if isinstance(value, types.FunctionType):
            self._names.update(all_names(value.__code__))
        for kind in (value, type(value)) if isinstance(value, type) else (type(value),):
            self.kinds.setdefault(kind, (path, node))
        for place in writables(value):
            before = place.contents()
            self.holders.append(Stored(place, path, before, node))
            for key, content in before.items():
                if not _leads_nowhere(content):
                    yield Edge(place.get, place.at, key, (*path, *steps_to(place.spelled, key)), node, content)
        if hasattr(type(value), MODE):
            self.modes.append(Edge(getattr, value, MODE, (*path, MODE), node, getattr(value, MODE)))
        for step, content, read, key in parts(value):
            if not _leads_nowhere(content):
                yield Edge(read, value, key, (*path, step), node, content)

    def way(self, variables: Iterable[object], nodes: Iterable[int]) -> tuple[list[Edge], list[Edge], set[int]]:
        """Return all edges that can be rebound on the ways to some of the Variables and nodes, those that cannot, and all nodes there."""
        edges: dict[tuple[int, object], Edge] = {}
        fixed: list[Edge] = []
        nodes = {*nodes}
        stack = [e for v in variables for e in self.edges.get(id(v), ())]
        stack += [e for n in nodes for e in self._incoming[n]]
        while stack:
            edge = stack.pop()
            if edge.get is not None:
                edges[id(edge.holder), edge.key] = edge
            elif edge.source >= 0:
                fixed.append(edge)
            if edge.source >= 0 and edge.source not in nodes:
                nodes.add(edge.source)
                stack.extend(self._incoming[edge.source])
        return list(edges.values()), fixed, nodes

    def every(self) -> list[Edge]:
        """Return all edges."""
        return [edge for edges in (*self._incoming, *self.edges.values()) for edge in edges]

    def aliases(self, way: Iterable[Edge]) -> dict[Path, Path]:
        """Return the paths of edges to what was found by another path first, with that one."""
        nodes = {id(x): n for n, x in enumerate(self.nodes)}
        first_paths = [(e.path, self.path(nodes[id(e.content)])) for e in way if id(e.content) in nodes]
        return {path: first for path, first in first_paths if path != first}

    def into(self, node: int) -> list[Edge]:
        """Return the edges that lead to a node."""
        return self._incoming[node]

    def path(self, node: int) -> Path:
        """Return the path by which a node was found first."""
        return self._incoming[node][0].path

    def caches(self) -> set[int]:
        """Return the nodes of libraries' functions, and of containers that only these have: what they keep is nobody's state."""
        caches: set[int] = set()
        for node, x in enumerate(self.nodes):
            kept = self._incoming[node][0].source in caches and isinstance(x, _CONTAINERS)
            if kept or (isinstance(x, types.FunctionType) and is_of_a_library(x)):
                caches.add(node)
        return caches

    def nodes_at(self, paths: Collection[Path]) -> dict[Path, int] | None:
        """Return the nodes that were found first by some paths, by those; None where there is none."""
        first_nodes = {self.path(n): n for n in range(len(self.nodes))} if paths else {}
        return {path: first_nodes[path] for path in paths} if first_nodes.keys() >= {*paths} else None

    def by_path(self) -> dict[Path, Any]:
        """Return the Variables by every path to them."""
        return {e.path: e.content for edges in self.edges.values() for e in edges}


def modes_of(reached: Reach) -> dict[Path, Any]:
    """Return the modes of the objects that are reached, by their paths."""
    return {edge.path: edge.content for edge in reached.modes}


def globals_that_hold(variable: object) -> list[Edge]:
    """Return the places among the globals of all modules in which a Variable is found: a function got at it by a way of its own."""
    modules = [vars(m) for m in [*sys.modules.values()] if isinstance(m, types.ModuleType)]
    return [
        Edge(operator.getitem, m, name, (name,), -1, variable) for m in modules for name, content in [*m.items()] if content is variable
    ]


def spelled(path: Sequence[object]) -> str:
    """Return a path as a user would write it: ``self.layers[0].w``."""
    steps = [s for s in path if isinstance(s, str) and s]
    return "".join(s if not i or s.startswith((".", "[", "{")) else f" > {s}" for i, s in enumerate(steps)) or "a default argument"
