"""Objects: what each kind of value holds, found without running its code, for the walks over what callables reach and depend on."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import gc
import operator
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from enum import Enum
from typing import Any, NamedTuple

import jax
import numpy as np

from tape.callables.code import all_names, imported
from tape.graph.lines import is_installed, is_of_python, is_standard
from tape.graph.segment import Handle

MISSING = type("Missing", (), {"__repr__": lambda _: "nothing"})()  # what an empty place holds


class Writable(NamedTuple):
    """Something that can be written to: a dict (of attributes or globals, too), a list, deque or set, a closure's cell, slots, or a class.

    ``spelled`` is how its keys are in paths; ``names`` are the only keys that matter, where there are many.
    """

    at: Any
    spelled: str
    names: Sequence[str] | None = None

    @property
    def get(self) -> Callable[[Any, Any], object]:
        """What reads a key of it."""
        return operator.getitem if isinstance(self.at, (dict, list, deque)) else _of_set if isinstance(self.at, set) else getattr

    def contents(self) -> dict[Any, Any]:
        """Return what it holds, by key."""
        if isinstance(self.at, (list, deque, set)):
            return dict(enumerate(self.at))
        if isinstance(self.at, dict):
            return dict(self.at) if self.names is None else {n: self.at[n] for n in self.names if n in self.at}
        if isinstance(self.at, type):
            return {n: x for n, x in vars(self.at).items() if is_shared(n, x)}
        names = ["cell_contents"] if isinstance(self.at, types.CellType) else self.names or ()
        return {n: x for n in names if (x := self.at_key(n)) is not MISSING}

    def at_key(self, key: Any) -> object:
        """Return what it holds there; MISSING if there is nothing."""
        if isinstance(self.at, types.CellType):
            return in_cell(self.at)
        if isinstance(self.at, (list, deque)):
            return self.at[key] if key < len(self.at) else MISSING
        if isinstance(self.at, set):
            return _of_set(self.at, key) if key < len(self.at) else MISSING
        if isinstance(self.at, dict):
            return self.at.get(key, MISSING)
        return vars(self.at).get(key, MISSING) if isinstance(self.at, type) else in_slot(self.at, key)

    def put(self, key: Any, content: object) -> None:
        """Store ``content``."""
        if isinstance(self.at, (dict, list, deque)):
            self.at[key] = content
        elif isinstance(self.at, (type, types.CellType)):
            setattr(self.at, key, content)
        else:
            slots(self.at.__class__)[key].__set__(self.at, content)

    def drop(self, key: Any) -> None:
        """Have it hold nothing there."""
        if isinstance(self.at, dict):
            del self.at[key]
        elif isinstance(self.at, (type, types.CellType)):
            delattr(self.at, key)
        else:
            slots(self.at.__class__)[key].__delete__(self.at)

    def fill(self, contents: dict[Any, Any]) -> None:
        """Make it hold just that."""
        now = self.contents()
        if len(now) == len(contents) and all(contents.get(k, MISSING) is x for k, x in now.items()):
            if self.has_order():
                reorder(self.at, contents)
            return
        if isinstance(self.at, (list, deque)):
            self.at.clear()
            self.at.extend(contents.values())
            return
        if isinstance(self.at, set):
            self.at.clear()
            self.at.update(contents.values())
            return
        for key in [k for k in now if k not in contents]:
            self.drop(key)
        for key, content in contents.items():
            self.put(key, content)
        if self.has_order():
            reorder(self.at, contents)

    def has_order(self) -> bool:
        """Tell whether it is a dict of a user's, who may go through its items."""
        return isinstance(self.at, dict) and self.spelled.startswith("[")


def _of_set(at: set[Any], number: int) -> object:
    """Return a member by its number, which it has for as long as the set has the same members."""
    return [*at][number]


def in_order(keys: Collection[Any], others: Collection[Any]) -> bool:
    """Tell whether keys are the same in the same order."""
    return len(keys) == len(others) and all(a is b or (_is_plain_key(a) and a == b) for a, b in zip(keys, others, strict=True))


def reorder(at: dict[Any, Any], keys: Collection[Any]) -> None:
    """Bring the items of a dict into the order of ``keys``."""
    if not in_order(at, keys):
        for key in [k for k in keys if k in at]:
            at[key] = at.pop(key)


class Itself:
    """An object that is equal to nothing but itself: as a step in a path, not kept alive where it need not be, unless it is ``kept``."""

    __slots__ = ("_get", "_hash")

    def __init__(self, key: object, *, kept: bool = False) -> None:
        self._hash = id(key)
        self._get: Callable[[], object] = lambda: key
        if not kept:
            with contextlib.suppress(TypeError):
                self._get = weakref.ref(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and self._hash == other._hash and (key := self._get()) is other._get() and self._hash == id(key)


def steps_to(spelling: str, key: object) -> tuple[object, ...]:
    """Return the steps of a path to what stands under a key; where its ``repr`` may look at a value, that is not asked for."""
    if _is_plain_key(key):
        return (spelling.format(key),)
    return spelling.format(type(key)), Itself(key)


def _is_plain_key(key: object) -> bool:
    return all(map(_is_plain_key, key)) if type(key) is tuple else type(key) in _PLAIN_KEYS


_PLAIN_KEYS = frozenset({str, int, float, bool, bytes, type(None), type})


def in_cell(cell: types.CellType) -> object:
    """Return what a closure's cell holds; MISSING if it is not yet filled."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def in_slot(value: Any, name: str) -> object:
    """Return what a slot of an object holds; MISSING if it is not yet filled."""
    try:
        content: object = slots(value.__class__)[name].__get__(value)
    except AttributeError:
        return MISSING
    return content


def writables(value: Any) -> Iterator[Writable]:
    """Yield what can be written to of a function, container or object."""
    if isinstance(value, types.FunctionType):
        if not (is_of_a_library(value, bridges=True) or is_standard(value)):  # what it closes over may still be the user's
            names = all_names(value.__code__)
            yield Writable(value.__globals__, "{}", names)
            inside = imported(value.__code__)
            there = {name: sys.modules.get(name) for name in inside} if inside and not is_installed(value) else {}
            for cell_name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                if isinstance(module := in_cell(cell), types.ModuleType):
                    there[cell_name] = module
            for module in _modules({**there, **value.__globals__} if there else value.__globals__, (*names, *there)):
                yield Writable(vars(module), f"{module.__name__}.{{}}", names)
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield Writable(cell, name)
        yield Writable(value.__kwdefaults__ or {}, "{}")
        yield Writable(vars(value), ".{}")
    elif isinstance(value, (dict, list, deque, set)):
        yield Writable(value, "[{!r}]")
    elif isinstance(value, type):
        if not of_a_library(value.__module__):
            yield Writable(value, ".{}")
    elif is_plain_object(value):
        if hasattr(value, "__dict__"):
            yield Writable(vars(value), ".{}")
        if names := tuple(_declared(value.__class__)):
            yield Writable(value, ".{}", names)


def parts(value: Any) -> Iterator[tuple[object, object, Callable[[Any, Any], object] | None, Any]]:
    """Yield what else something holds: its step in a path (a string if it is spelled), that, and how and by which key it is read anew."""
    composed = next((names for kind, names in _LOOKED_INTO.items() if isinstance(value, kind)), None)
    if composed is not None:
        for name in composed:
            yield "self" if name == "__self__" else (name,), getattr(value, name), getattr if name == "__defaults__" else None, name
    elif isinstance(value, (tuple, frozenset)):
        fields = getattr(value, "_fields", None)
        for i, x in enumerate(value):
            yield f".{fields[i]}" if fields else f"[{i}]", x, None, i
    elif isinstance(value, types.MappingProxyType):
        for key, x in value.items():
            steps = steps_to("[{!r}]", key)
            yield steps[0] if len(steps) == 1 else steps, x, operator.getitem, key
    elif isinstance(value, contextvars.ContextVar):
        yield ".get()", value.get(MISSING), contextvars.ContextVar.get, MISSING
    elif isinstance(value, weakref.ref):
        yield "()", value(), None, None
    elif type(value).__module__.partition(".")[0] in {"tape", "jaxlib", "functools"} and callable(getattr(value, "__wrapped__", None)):
        yield ("__wrapped__",), value.__wrapped__, None, None
        if isinstance(value, _CACHE) and not is_installed(value) and value.cache_info().currsize <= _MANY:
            yield from [(steps_to("({!r})", key), x, _cached, key) for key, x in _results(value).items()]
    elif isinstance(value, type) or is_plain_object(value):
        kind: Any = value if isinstance(value, type) else type(value)
        shared = [*_of_the_class(kind)]
        fixed = [] if kind is value else slots(kind).keys() - _declared(kind)
        for name in dict.fromkeys((*sorted(fixed), *shared)):
            if kind is not value or name not in vars(kind):  # its own are in a place
                yield f".{name}", getattr(value, name, None), getattr, name
        for name, descriptor in _descriptors(kind):  # what they hold is each object's
            yield (name,), descriptor, None, None
        call = getattr(kind, "__call__", None)  # noqa: B004 - its closure is wanted
        if kind is not value and isinstance(call, types.FunctionType):
            yield ("__call__",), call, None, None
        if kind is not value and shared:
            yield ("__class__",), kind, None, None


_CACHE = type(functools.lru_cache(len))
_MANY = 64  # results of a cache are data, rather than state: each would be looked at among all of them


def _cached(cache: Any, key: object) -> object:
    """Return a result that a cache of functools keeps."""
    return _results(cache).get(key, MISSING)


def _results(cache: Any) -> dict[Any, object]:
    """Return all of them, by their keys: where only the latest ones are kept, the dict leads to links, and what is in those follows."""
    inside = gc.get_referents(cache)
    table: dict[Any, object] = next((x for x in inside if type(x) is dict and x is not vars(cache)), {})
    if not table or cache.cache_parameters()["maxsize"] is None:
        return table
    link = type(next(iter(table.values())))
    return {inside[i - 2]: inside[i - 1] for i, x in enumerate(inside) if x is link and inside[i - 2] in table}


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


def is_plain_object(value: object) -> bool:
    """Tell whether a value is an object whose attributes may hold Variables."""
    kind: Any = type(value)
    return (hasattr(value, "__dict__") or bool(slots(kind))) and not isinstance(value, type) and not of_a_library(kind.__module__)


def is_of_a_library(function: types.FunctionType, *, bridges: bool = False) -> bool:
    """Tell whether a function is one of JAX's, NumPy's or the tape's own, or of its bridges', whose globals lead to another library's."""
    module = function.__globals__.get("__name__")
    return of_a_library(module) or (bridges and str(module).startswith("interop."))


def of_a_library(module: str | None) -> bool:
    """Tell whether a module of this name is a part of JAX, NumPy or the tape."""
    return module is not None and (module.partition(".")[0] in _LIBRARIES or module == "interop.lift")


_SHARED = (
    *(Handle, jax.Array, list, tuple, dict, deque, set, frozenset, types.NoneType, int, float, complex, str, np.generic, np.dtype, Enum),
    types.SimpleNamespace,
)


def is_shared(name: str, x: Any) -> bool:
    """Tell whether what a class has under a name is state, rather than a method or another descriptor."""
    if name.startswith("__"):
        return False
    own = (isinstance(x, type) and not of_a_library(x.__module__)) or (is_plain_object(x) and not is_of_python(type(x)))
    return isinstance(x, _SHARED) or (own and not hasattr(type(x), "__get__"))


def _of_the_class(kind: type) -> Iterator[str]:
    """Yield the names of what objects of a class share."""
    for base in kind.__mro__:
        if not of_a_library(base.__module__):
            yield from [n for n, x in vars(base).items() if is_shared(n, x)]


def _descriptors(kind: Any) -> Iterator[tuple[str, object]]:
    """Yield the objects of a user's that say what attributes of a class are, with the names of these."""
    for base in kind.__mro__:
        if not of_a_library(base.__module__):
            kinds: dict[str, Any] = {n: type(x) for n, x in vars(base).items()}
            yield from [(n, vars(base)[n]) for n, own in kinds.items() if _is_descriptor(own)]


@functools.lru_cache(maxsize=4096)
def _is_descriptor(kind: Any) -> bool:
    return hasattr(kind, "__get__") and not (of_a_library(kind.__module__) or is_installed(kind))


def _modules(place: dict[str, Any], names: Sequence[str]) -> list[types.ModuleType]:
    """Return the modules that are named in a dict, and the modules named in those."""
    modules: dict[int, types.ModuleType] = {}
    stack = [place]
    for held in stack:
        for module in [held[n] for n in names if isinstance(held.get(n), types.ModuleType)]:
            if id(module) not in modules and not of_a_library(module.__name__):
                modules[id(module)] = module
                stack.append(vars(module))
    return list(modules.values())


def is_composed(value: Any) -> bool:
    """Tell whether an object is its attributes and no more, as one of a dataclass is, or of a user's class that says nothing else."""
    kind: Any = type(value)
    own = kind is types.SimpleNamespace or (kind.__new__ is object.__new__ and not is_of_python(kind))
    return is_plain_object(value) and (own or dataclasses.is_dataclass(value))


def attributes(value: Any) -> dict[str, Any]:
    """Return the attributes that an object holds itself."""
    inside = {name: x for name in slots(value.__class__) if name != "__dict__" and (x := in_slot(value, name)) is not MISSING}
    return {**getattr(value, "__dict__", {}), **inside}


@functools.lru_cache(maxsize=4096)
def slots(kind: Any) -> dict[str, Any]:
    """Return what reads the slots of a class, by their names."""
    return {name: held for cls in kind.__mro__[-2::-1] for name, held in vars(cls).items() if isinstance(held, types.MemberDescriptorType)}


@functools.lru_cache(maxsize=4096)
def _declared(kind: Any) -> Sequence[str]:
    """Return the slots that a class of Python's declares: others may be read-only."""
    return [name for name, slot in slots(kind).items() if "__slots__" in vars(slot.__objclass__)]
