"""Reach: the Variables that a callable can get at without being given them, and the places in which it finds them.

A callable reaches what it closes over, names as globals, and is a method of, and what that holds: attributes, items of lists, tuples and
dicts, bound arguments.  Each step on the way is an edge; edges that can be rebound are what a compiled function has to check.
"""

from __future__ import annotations

import contextvars
import functools
import operator
import sys
import types
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from tape.callables.objects import slots
from tape.graph.segment import Handle, itself

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = ["MISSING", "Edge", "Holder", "Reach", "globals_that_hold", "reach"]

_LIMIT = 100_000  # objects looked through
_LIBRARIES = frozenset({"jax", "jaxlib", "numpy", "tape"})  # whose own objects and globals hold no Variable of a user's

_HOLDERS: tuple[type, ...] = (
    *(
        Handle,
        list,
        tuple,
        dict,
        deque,
        set,
        frozenset,
        type,
        types.MappingProxyType,
        types.FunctionType,
        types.MethodType,
        types.BuiltinMethodType,
    ),
    *(functools.partial, weakref.ref, contextvars.ContextVar),
)

MISSING = type("Missing", (), {"__repr__": lambda _: "nothing"})()  # what an empty place holds


class Edge(NamedTuple):
    """One step from an object to what it holds.

    ``get(holder, key)`` reads it anew; ``get`` is None where it cannot be rebound.  ``path`` names it from the callable on.
    """

    get: Callable[[Any, Any], Any] | None
    holder: Any
    key: Any
    path: tuple[Any, ...]
    source: int  # the node that it leaves
    content: Any


class Holder(NamedTuple):
    """Something that can be written to: a dict (of attributes or globals, too), a list or a closure's cell, as it was."""

    place: Any
    path: tuple[Any, ...]
    node: int
    names: tuple[Any, ...] | None  # the only keys that matter, where there are many
    before: dict[Any, Any]

    def now(self) -> dict[Any, Any]:
        """Return what it holds, by key."""
        return _held(self.place, self.names)

    def put(self, key: Any, content: Any) -> None:
        """Store ``content``."""
        if isinstance(self.place, types.CellType):
            self.place.cell_contents = content
        else:
            self.place[key] = content

    def fill(self, contents: dict[Any, Any]) -> None:
        """Make it hold just that."""
        now = self.now()
        if len(now) == len(contents) and all(contents.get(k, MISSING) is x for k, x in now.items()):
            return
        if isinstance(self.place, list):
            self.place[:] = contents.values()
        elif isinstance(self.place, deque):
            self.place.clear()
            self.place.extend(contents.values())
        elif isinstance(self.place, types.CellType):
            if contents:
                self.place.cell_contents = contents["cell_contents"]
            else:
                del self.place.cell_contents
        else:
            for key in [k for k in now if k not in contents]:
                del self.place[key]
            self.place.update(contents)


def _held(place: Any, names: tuple[Any, ...] | None) -> dict[Any, Any]:
    if isinstance(place, types.CellType):
        try:
            return {"cell_contents": place.cell_contents}
        except ValueError:  # not yet filled
            return {}
    if isinstance(place, (list, deque)):
        return dict(enumerate(place))
    return dict(place) if names is None else {n: place[n] for n in names if n in place}


class Reach:
    """What some callables reach.

    Attributes:
        variables: every Variable, nearest first, with the path by which it was found first.
        edges: for each Variable, by its id, all edges that lead to it.
        holders: everything that was looked through and can be written to.

    """

    def __init__(self) -> None:
        self.variables: dict[int, tuple[Any, tuple[Any, ...]]] = {}
        self.edges: dict[int, list[Edge]] = {}
        self.holders: list[Holder] = []
        self._incoming: list[list[Edge]] = []  # by node

    def way(self, variables: Iterable[Any]) -> list[Edge]:
        """Return all edges that can be rebound on the ways to some of the Variables."""
        found: dict[tuple[int, Any], Edge] = {}
        nodes: set[int] = set()
        stack = [e for v in variables for e in self.edges.get(id(v), ())]
        while stack:
            edge = stack.pop()
            if edge.get is not None:
                found[id(edge.holder), edge.key] = edge
            if edge.source >= 0 and edge.source not in nodes:
                nodes.add(edge.source)
                stack.extend(self._incoming[edge.source])
        return list(found.values())

    def by_path(self) -> dict[tuple[Any, ...], Any]:
        """Return the Variables by every path to them."""
        return {e.path: e.content for edges in self.edges.values() for e in edges}

    def paths(self, variable: Any) -> list[tuple[Any, ...]]:
        """Return every path to a Variable."""
        return [e.path for e in self.edges.get(id(variable), ())]


def reach(callables: Sequence[Any]) -> Reach:
    """Look through what callables close over, hold, or name as globals."""
    found = Reach()
    nodes: dict[int, int] = {}
    queue = deque(Edge(None, None, None, (i,), -1, c) for i, c in enumerate(callables))
    kept: list[Any] = []  # so that ids stay theirs
    while queue:
        edge = queue.popleft()
        value = edge.content
        if isinstance(value, Handle):
            variable = itself(value)
            found.variables.setdefault(id(variable), (variable, edge.path))
            found.edges.setdefault(id(variable), []).append(edge)
            continue
        if isinstance(value, (types.ModuleType, str, bytes, int, float)) or value is None:
            continue
        node = nodes.get(id(value))
        if node is not None:
            found._incoming[node].append(edge)
            continue
        if len(nodes) >= _LIMIT:
            break
        node = nodes[id(value)] = len(nodes)
        kept.append(value)
        found._incoming.append([edge])
        queue.extend(_contents(found, value, edge.path, node))
    return found


def _contents(found: Reach, value: Any, path: tuple[Any, ...], node: int) -> Iterator[Edge]:
    """Yield the edges that leave a function, container or object."""

    def fixed(*pairs: tuple[str, Any]) -> Iterator[Edge]:
        for step, content in pairs:
            yield Edge(None, None, None, (*path, step), node, content)

    def rebindable(place: Any, names: tuple[Any, ...] | None, step: str) -> Iterator[Edge]:
        before = _held(place, names)
        found.holders.append(Holder(place, path, node, names, before))
        get = getattr if isinstance(place, types.CellType) else operator.getitem
        for key, content in before.items():
            if names is None or isinstance(content, _HOLDERS) or is_plain_object(content) or _wraps(content):
                yield Edge(get, place, key, (*path, step.format(key)), node, content)

    if isinstance(value, types.FunctionType):
        if not _of_a_library(value.__globals__.get("__name__")):  # what it closes over may still be the user's
            names = global_names(value.__code__)
            yield from rebindable(value.__globals__, names, "{}")
            for module in _modules(value.__globals__, names):
                yield from rebindable(vars(module), names, f"{module.__name__}.{{}}")
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield from rebindable(cell, None, name)
        yield from fixed(*[("default", d) for d in value.__defaults__ or ()])
        yield from rebindable(value.__kwdefaults__ or {}, None, "{}")
        yield from rebindable(vars(value), None, ".{}")
    elif isinstance(value, types.MethodType):
        yield from fixed(("self", value.__self__), ("function", value.__func__))
    elif isinstance(value, types.BuiltinMethodType):
        yield from fixed(("self", value.__self__))
    elif isinstance(value, functools.partial):
        yield from fixed(("function", value.func), *[(str(i), a) for i, a in enumerate(value.args)], *value.keywords.items())
    elif _wraps(value):
        yield from fixed(("function", value.__wrapped__))
    elif isinstance(value, contextvars.ContextVar):
        current = _Current(value)
        yield Edge(getattr, current, "value", (*path, ".get()"), node, current.value)
    elif isinstance(value, weakref.ref):
        yield from fixed(("()", value()))
    elif isinstance(value, type):
        for attribute in _of_the_class(value):
            yield Edge(getattr, value, attribute, (*path, f".{attribute}"), node, getattr(value, attribute, None))
    elif isinstance(value, (dict, list, deque)):
        yield from rebindable(value, None, "[{!r}]")
    elif isinstance(value, types.MappingProxyType):
        for key, content in value.items():
            yield Edge(operator.getitem, value, key, (*path, f"[{key!r}]"), node, content)
    elif isinstance(value, tuple):
        fields = getattr(value, "_fields", None)
        yield from fixed(*[(f".{fields[i]}" if fields else f"[{i}]", x) for i, x in enumerate(value)])
    elif isinstance(value, (set, frozenset)):
        yield from fixed(*[(f"{{{i}}}", x) for i, x in enumerate(value)])
    elif is_plain_object(value):
        if hasattr(value, "__dict__"):
            yield from rebindable(vars(value), None, ".{}")
        kind: Any = type(value)
        for name in (*slots(kind), *_of_the_class(kind)):
            content = getattr(value, name, None)
            yield Edge(getattr, value, name, (*path, f".{name}"), node, content)
        call = getattr(type(value), "__call__", None)  # noqa: B004 - its closure is wanted
        if isinstance(call, types.FunctionType):
            yield from fixed(("__call__", call))


class _Current:
    """What a context variable holds, as an attribute."""

    def __init__(self, variable: contextvars.ContextVar[Any]) -> None:
        self._variable = variable

    @property
    def value(self) -> Any:
        return self._variable.get(MISSING)


def globals_that_hold(variable: Any) -> list[Edge]:
    """Return the places among the globals of all modules in which a Variable is found: a function got at it by a way of its own."""
    places = [vars(m) for m in [*sys.modules.values()] if isinstance(m, types.ModuleType)]
    return [Edge(operator.getitem, p, name, (name,), -1, variable) for p in places for name, content in [*p.items()] if content is variable]


def is_plain_object(value: Any) -> bool:
    """Tell whether a value is an object whose attributes may hold Variables."""
    kind: Any = type(value)
    return (
        (hasattr(value, "__dict__") or bool(slots(kind)))
        and not isinstance(value, (type, types.ModuleType))
        and not _of_a_library(kind.__module__)
    )


def _wraps(value: Any) -> bool:
    """Tell whether a value is a function of ours, or of JAX's, around another one."""
    return type(value).__module__.partition(".")[0] in {"tape", "jaxlib", "functools"} and callable(getattr(value, "__wrapped__", None))


def _of_a_library(module: str | None) -> bool:
    return module is not None and (module.partition(".")[0] in _LIBRARIES or module == "interop.lift")


def _of_the_class(kind: type) -> Iterator[str]:
    """Yield the names of what objects of a class share."""
    for base in kind.__mro__:
        if not _of_a_library(base.__module__):
            yield from [n for n, x in vars(base).items() if isinstance(x, (Handle, list, tuple, dict, deque)) and not n.startswith("__")]


def _modules(place: dict[str, Any], names: Sequence[str]) -> list[types.ModuleType]:
    """Return the modules that are named in a dict, and the modules named in those."""
    found: dict[int, types.ModuleType] = {}
    stack = [place]
    while stack:
        held = stack.pop()
        for module in [held[n] for n in names if isinstance(held.get(n), types.ModuleType)]:
            if id(module) not in found and not _of_a_library(module.__name__):
                found[id(module)] = module
                stack.append(vars(module))
    return list(found.values())


@functools.lru_cache(maxsize=4096)
def global_names(code: types.CodeType) -> tuple[str, ...]:
    """Return the names of globals (and of attributes) that a function uses, also in the functions inside it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.update(global_names(constant))
    return tuple(sorted(names))


def spelled(path: Sequence[Any]) -> str:
    """Return a path as a user would write it: ``self.layers[0].w``."""
    steps = [s for s in path if isinstance(s, str) and s not in {"function", "__call__", "default"}]
    return "".join(s if not i or s.startswith((".", "[", "{")) else f" > {s}" for i, s in enumerate(steps)) or "a default argument"
