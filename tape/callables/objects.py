"""Objects: what each kind of value holds, found without running its code, for the walks over what callables reach and depend on."""

from __future__ import annotations

import contextvars
import dis
import enum
import functools
import operator
import re
import types
import weakref
from abc import ABCMeta
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from tape.bounded import Bounded
from tape.callables.purity import words
from tape.graph.segment import Handle
from tape.jaxapi import Tracer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = [
    "CATEGORIES",
    "COMPOSED",
    "MISSING",
    "Writable",
    "attributes",
    "category",
    "fields_of",
    "in_cell",
    "is_followed",
    "is_plain_tuple",
    "names_of",
    "parts",
    "writables",
]

MISSING = type("Missing", (), {"__repr__": lambda _: "nothing"})()  # what an empty place holds

# -- code -----------------------------------------------------------------------------------------------------------------

# What changes the world outside, or depends on more of it than names say.
_REFUSED = re.compile(
    "STORE_GLOBAL|DELETE_GLOBAL|STORE_ATTR|DELETE_ATTR|DELETE_DEREF|IMPORT_.*|LOAD_BUILD_CLASS|LOAD_NAME|STORE_NAME|LOAD_LOCALS|LOAD_CLASSDEREF"
    "|LOAD_FROM_DICT_OR_.*|LOAD_SUPER_ATTR|MATCH_CLASS|GET_AWAITABLE|GET_AITER|GET_ANEXT"
)
_TAKING = {"LOAD_ATTR", "LOAD_METHOD"}


class Names:
    """What one code object, with the code inside it, names."""

    def __init__(self, code: types.CodeType) -> None:
        self._code = [code]  # kept alive, since it is known by its id
        chains: dict[str, dict[tuple[str, ...], None]] = {"LOAD_GLOBAL": {}, "LOAD_DEREF": {}, "": {}}
        self.refused = False  # whether snapshots cannot follow what the code does
        for inner in self._code:
            self._code += [c for c in inner.co_consts if isinstance(c, types.CodeType)]
            origin, chain = "", [""]  # the instruction that a chain of attributes begins with, and its names
            jumped_to = False  # what is jumped to takes attributes of something else as well
            for step in dis.get_instructions(inner):
                jumped_to = jumped_to or step.is_jump_target
                if step.opname == "EXTENDED_ARG":
                    continue
                if origin and step.opname in _TAKING and not jumped_to:
                    chain.append(step.argval)
                else:
                    chains[origin][tuple(chain)] = None
                    origin, chain = (step.opname if step.opname in chains else ""), [step.argval]
                    if step.opname in _TAKING:
                        chains[""]["", step.argval] = None
                    self.refused = self.refused or _REFUSED.fullmatch(step.opname) is not None
                jumped_to = False
        self.every = tuple(sorted({name for inner in self._code for name in inner.co_names}))  # of globals and attributes
        # Names of globals and of enclosing functions, each with the attributes taken from it at once (``numpy.linalg.norm``).
        self.globals, self.free = tuple(chains["LOAD_GLOBAL"]), tuple(chains["LOAD_DEREF"])
        # Attributes taken of all values but globals.
        self.attributes = tuple(dict.fromkeys([name for kind in ("", "LOAD_DEREF") for _, *taken in chains[kind] for name in taken]))


_NAMES: Bounded[int, Names] = Bounded("names in code", 4096)


def names_of(code: types.CodeType) -> Names:
    """Return what a code object names, found once."""
    return _NAMES.cached(id(code), lambda: Names(code))


# -- what is held -----------------------------------------------------------------------------------------------------


class Writable(NamedTuple):
    """Something that can be written to: a dict (of attributes or globals, too), a list, a deque or a closure's cell.

    ``spelled`` is how its keys are in paths; ``names`` are the only keys that matter, where there are many.
    """

    at: Any
    spelled: str
    names: Sequence[str] | None = None

    def contents(self) -> dict[Any, Any]:
        """Return what it holds, by key."""
        if isinstance(self.at, types.CellType):
            content = in_cell(self.at)
            return {} if content is MISSING else {"cell_contents": content}
        if isinstance(self.at, (list, deque)):
            return dict(enumerate(self.at))
        return dict(self.at) if self.names is None else {n: self.at[n] for n in self.names if n in self.at}

    def put(self, key: Any, content: object) -> None:
        """Store ``content``."""
        if isinstance(self.at, types.CellType):
            self.at.cell_contents = content
        else:
            self.at[key] = content

    def fill(self, contents: dict[Any, Any]) -> None:
        """Make it hold just that."""
        now = self.contents()
        if len(now) == len(contents) and all(contents.get(k, MISSING) is x for k, x in now.items()):
            return
        if isinstance(self.at, (list, deque)):
            self.at.clear()
            self.at.extend(contents.values())
            return
        for key in [k for k in now if k not in contents]:
            if isinstance(self.at, types.CellType):
                del self.at.cell_contents
            else:
                del self.at[key]
        for key, content in contents.items():
            self.put(key, content)


def in_cell(cell: types.CellType) -> object:
    """Return what a closure's cell holds; MISSING if it is not yet filled."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def writables(value: Any) -> Iterator[Writable]:
    """Yield what can be written to of a function, container or object."""
    if isinstance(value, types.FunctionType):
        if not _of_a_library(value.__globals__.get("__name__")):  # what it closes over may still be the user's
            names = names_of(value.__code__).every
            yield Writable(value.__globals__, "{}", names)
            for module in _modules(value.__globals__, names):
                yield Writable(vars(module), f"{module.__name__}.{{}}", names)
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield Writable(cell, name)
        yield Writable(value.__kwdefaults__ or {}, "{}")
        yield Writable(vars(value), ".{}")
    elif isinstance(value, (dict, list, deque)):
        yield Writable(value, "[{!r}]")
    elif _is_plain_object(value) and hasattr(value, "__dict__"):
        yield Writable(vars(value), ".{}")


def parts(value: Any) -> Iterator[tuple[object, object, Callable[[Any, Any], object] | None, Any]]:
    """Yield what else something holds: its step in a path (a string if it is spelled), that, and how and by which key it is read anew."""
    composed = next((names for kind, names in _LOOKED_INTO.items() if isinstance(value, kind)), None)
    if composed is not None:
        for name in composed:
            yield "self" if name == "__self__" else (name,), getattr(value, name), getattr if name == "__defaults__" else None, name
    elif isinstance(value, (tuple, set, frozenset)):
        fields = getattr(value, "_fields", None)
        for i, x in enumerate(value):
            yield f".{fields[i]}" if fields else f"[{i}]", x, None, i
    elif isinstance(value, types.MappingProxyType):
        for key, x in value.items():
            yield f"[{key!r}]", x, operator.getitem, key
    elif isinstance(value, contextvars.ContextVar):
        yield ".get()", value.get(MISSING), contextvars.ContextVar.get, MISSING
    elif isinstance(value, weakref.ref):
        yield "()", value(), None, None
    elif type(value).__module__.partition(".")[0] in {"tape", "jaxlib", "functools"} and callable(getattr(value, "__wrapped__", None)):
        yield ("__wrapped__",), value.__wrapped__, None, None
    elif isinstance(value, type) or _is_plain_object(value):
        kind: Any = value if isinstance(value, type) else type(value)
        for name in (*([] if kind is value else _slots(kind)), *_of_the_class(kind)):
            yield f".{name}", getattr(value, name, None), getattr, name
        call = getattr(kind, "__call__", None)  # noqa: B004 - its closure is wanted
        if kind is not value and isinstance(call, types.FunctionType):
            yield ("__call__",), call, None, None


# What objects of these types are made of.
COMPOSED: dict[type, tuple[str, ...]] = {
    functools.partial: ("func", "args", "keywords", "__dict__"),
    types.MethodType: ("__self__", "__func__"),
    **dict.fromkeys((classmethod, staticmethod), ("__func__",)),
    property: ("fget",),
    **dict.fromkeys((range, slice), ("start", "stop", "step")),
}
_LOOKED_INTO = {**COMPOSED, types.FunctionType: ("__defaults__",), types.BuiltinMethodType: ("__self__",)}
_LIBRARIES = frozenset({"jax", "jaxlib", "numpy", "tape"})  # whose own objects and globals hold no Variable of a user's


def _is_plain_object(value: object) -> bool:
    """Tell whether a value is an object whose attributes may hold Variables."""
    kind: Any = type(value)
    return (hasattr(value, "__dict__") or bool(_slots(kind))) and not isinstance(value, type) and not _of_a_library(kind.__module__)


def _of_a_library(module: str | None) -> bool:
    return module is not None and (module.partition(".")[0] in _LIBRARIES or module == "interop.lift")


def _of_the_class(kind: type) -> Iterator[str]:
    """Yield the names of what objects of a class share."""
    for base in kind.__mro__:
        if not _of_a_library(base.__module__):
            yield from [n for n, x in vars(base).items() if isinstance(x, (Handle, list, tuple, dict, deque)) and not n.startswith("__")]


def _modules(place: dict[str, Any], names: Sequence[str]) -> list[types.ModuleType]:
    """Return the modules that are named in a dict, and the modules named in those."""
    modules: dict[int, types.ModuleType] = {}
    stack = [place]
    for held in stack:
        for module in [held[n] for n in names if isinstance(held.get(n), types.ModuleType)]:
            if id(module) not in modules and not _of_a_library(module.__name__):
                modules[id(module)] = module
                stack.append(vars(module))
    return list(modules.values())


def attributes(value: Any) -> dict[str, Any]:
    """Return the attributes that an object holds itself."""
    held = dict(getattr(value, "__dict__", {}))
    for name, slot in _slots(value.__class__).items():
        try:
            held[name] = slot.__get__(value)
        except AttributeError:  # empty
            continue
    return held


@functools.lru_cache(maxsize=4096)
def _slots(kind: Any) -> dict[str, Any]:
    """Return what reads the slots of a class, by their names."""
    return {name: held for cls in kind.__mro__[-2::-1] for name, held in vars(cls).items() if isinstance(held, types.MemberDescriptorType)}


# -- categories -----------------------------------------------------------------------------------------------------------

_COMPILED = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MemberDescriptorType)
_TUPLE = words(
    "__doc__ __slots__ _fields _field_defaults __new__ _make _replace __replace__ __repr__ _asdict __getnewargs__ __match_args__ __module__ "
    "__annotations__ __orig_bases__ __static_attributes__ __firstlineno__ __annotate__ __annotate_func__ __annotations_cache__"
)
CATEGORIES: Bounded[type, str] = Bounded("types", 1024)
_OF_PYTHON: dict[type, str] = {
    **dict.fromkeys((int, bool, str, bytes, type(None), type(...), type(NotImplemented)), "atom"),
    **dict.fromkeys((list, tuple, set, frozenset), "items"),
    **dict.fromkeys((float, complex), "inexact"),
    **dict.fromkeys(COMPOSED, "composed"),
    dict: "mapping",
    types.FunctionType: "function",
    types.ModuleType: "unknown",
    types.SimpleNamespace: "instance",
    np.ndarray: "numpy",
}
_POLICY: type = type(jax.checkpoint_policies.dots_saveable)


def category(value: object) -> str:
    """Return how a value becomes part of a key: the method of the snapshot that adds it.

    "_instance" is one of a class written in Python outside the libraries, "_own" one of the tape's, "_library" anything of another library.
    """
    kind = type(value)
    return CATEGORIES.cached(kind, lambda: "_" + (_OF_PYTHON.get(kind) or _categorized(kind, value)))


def _categorized(kind: type, value: object) -> str:
    if issubclass(kind, Handle):
        return "variable"
    if isinstance(value, Tracer):
        return "unknown"
    if isinstance(value, jax.Array):
        return "array"
    for base, name in ((np.generic, "numpy"), (np.dtype, "atom"), (enum.Enum, "member"), (types.ModuleType, "unknown"), (type, "type")):
        if issubclass(kind, base):
            return name
    if is_plain_tuple(kind):
        return "named_tuple"
    home = kind.__module__.split(".")[0]
    if home in {"tape", "interop"}:
        return "own" if kind.__module__ in {"tape.callables.higher_order", "tape.namespaces.factories", "tape.modes"} else "library"
    if kind.__module__ == _POLICY.__module__ != "builtins":  # what checkpoint_policies makes
        return "own"
    if home in {"jax", "jaxlib", "numpy", "builtins", "functools", "itertools", "operator"}:
        return "library"
    return "instance" if is_followed(kind) else "unknown"


def is_followed(kind: type) -> bool:
    """Tell whether a class is written in Python, without a metaclass of its own."""
    return type(kind) in (type, ABCMeta) and all(_in_python(cls) for cls in kind.__mro__[:-1])


def _in_python(cls: type) -> bool:
    slots = vars(cls).get("__slots__", ())
    names = {slots} if isinstance(slots, str) else set(slots)
    return all(name in names for name, held in vars(cls).items() if isinstance(held, _COMPILED)) and cls.__module__ != "builtins"


def is_plain_tuple(kind: Any) -> bool:
    """Tell whether a class is a named tuple without methods of its own."""
    return kind.__bases__ == (tuple,) and "_fields" in vars(kind) and _TUPLE.union(kind._fields).issuperset(vars(kind))


@functools.lru_cache(maxsize=1024)
def fields_of(tree: Any) -> frozenset[str] | None:
    """Return the names of the fields in a tree of arguments; None where it has nodes of other classes than Python's containers."""
    fields: set[str] = set()
    stack = [tree]
    while stack:
        node = stack.pop()
        data = node.node_data()
        if data is None:
            continue
        kind = data[0]
        if kind not in (tuple, list, dict, type(None)):
            if not is_plain_tuple(kind):
                return None
            fields.update(kind._fields)
        stack += node.children()
    return frozenset(fields)
