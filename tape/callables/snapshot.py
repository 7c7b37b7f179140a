"""Snapshots: what the trace of a callable depends on, as a key that is equal where another trace would write the same program.

A walk follows functions into their defaults, closures and the globals that they name; containers into what they hold; objects and their
classes into those attributes whose names the code takes, of whatever values.  Numbers and strings count by value, JAX arrays, which do not
change, by identity, Variables by shape, dtype and flags, for the program has them as inputs.  Whatever the walk does not understand (files,
clocks, generators, code that assigns attributes) refuses the key, so that the callable is traced at every call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import reprlib
import types
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from tape.callables.code import names_of
from tape.callables.objects import COMPOSED, MISSING, attributes, in_cell
from tape.callables.purity import ATTRIBUTES, CATEGORIES, category, is_followed, is_plain_tuple, is_pure
from tape.graph import boundary
from tape.graph.lines import LIBRARIES
from tape.graph.segment import Handle
from tape.jaxapi import words

_LIMIT = 4000  # parts of a key
_BYTES_LIMIT = 1 << 12  # of an array of NumPy, which may change and so is compared by value
_NUMBERS = frozenset({bool, int, float, complex})
_TAKEN_BY_LIBRARIES = ("shape", "dtype", "ndim", "size")  # of whatever they are given
_OF_VARIABLES = words("grad name")  # attributes of Variables that kinds do not tell
# Methods that run when objects are made, copied, written or destroyed: not while a function is traced, unless it names them.
_MAKING = words("__init__ __new__ __post_init__")
_SELDOM = _MAKING | words(
    "__init_subclass__ __class_getitem__ __subclasshook__ __reduce__ __reduce_ex__ __getstate__ __setstate__ __getnewargs__ __copy__ "
    "__deepcopy__ __setattr__ __delattr__ __del__ __dir__ __sizeof__ __replace__ __annotate__ __annotate_func__"
)
_GENERATED = tuple([str(m.__file__) for m in (dataclasses, enum, reprlib)])


class RefusedError(Exception):
    """The walk met what it does not understand: nothing is known of the next trace."""


class Snapshot:
    """One walk."""

    def __init__(self, values: Iterable[object], fields: frozenset[str], numbers: list[Any] | None = None) -> None:
        self.key: list[Any] = []  # what was met, in order
        self.numbers: list[Any] = [] if numbers is None else numbers  # and arrays, of NumPy
        self.variables: list[Any] = []
        self.arrays: list[Any] = []  # whose ids are in the key
        self.cells: dict[int, int] = {}  # id(cell of a Variable) -> the position of that
        self._met: dict[Any, int] = {}
        self._alive: list[Any] = []  # what was made on the way, so that ids stay theirs
        self._names: dict[str, None] = dict.fromkeys(_TAKEN_BY_LIBRARIES)  # attributes that code takes
        self._known = set(fields)  # and those that something is known to have: at first the arguments
        self._holders: list[Any] = []  # objects and classes, of which attributes with these names count
        for value in values:
            self._add(value)
        self._follow_names()

    def _add(self, value: object) -> None:
        getattr(self, CATEGORIES.get(type(value)) or category(value))(value)
        if len(self.key) > _LIMIT:
            raise RefusedError

    # Values, by category.

    def _atom(self, value: object) -> None:
        self.key += (type(value), value)

    def _inexact(self, value: object) -> None:
        self.key += (type(value), repr(value))  # 0.0 and -0.0 are equal, and not the same

    def _variable(self, value: Handle) -> None:
        cell = value._cell
        number = self.cells.get(id(cell))
        if number is not None:
            self.key += (Handle, number)
            return
        if boundary.is_traced(value):
            raise RefusedError
        self.cells[id(cell)] = len(self.variables)
        self._alive.append(cell)
        self.variables.append(value)
        self.key += (value._place.kind, value._segment is None)
        if type(cell[0]) in _NUMBERS:  # it is part of the program, not an input
            self._add(cell[0])

    def _array(self, value: jax.Array) -> None:
        self.arrays.append(value)
        self.key += (id, id(value))

    def _numpy(self, value: np.ndarray[Any, Any] | np.generic) -> None:
        self.numbers.append(value)
        if value.dtype.hasobject or value.nbytes > _BYTES_LIMIT:
            raise RefusedError
        self.key += (type(value), value.shape, value.dtype, value.tobytes())

    def _items(self, value: Collection[object]) -> None:
        if not self._numbered(value):
            items = list(value)
            self.key += (type(value), len(items))
            for item in items:
                self._add(item)

    def _named_tuple(self, value: tuple[object, ...]) -> None:
        self._known.update(getattr(value, "_fields"))  # noqa: B009
        self._items(value)

    def _mapping(self, value: dict[object, object]) -> None:
        if not self._numbered(value):
            self._pairs(dict, value)

    def _pairs(self, kind: type, pairs: Mapping[Any, object]) -> None:
        self.key += (kind, len(pairs))
        for name, item in list(pairs.items()):
            self._add(name)
            self._add(item)

    def _composed(self, value: object) -> None:
        self.key.append(type(value))
        for name in COMPOSED[type(value)]:
            self._add(getattr(value, name))

    def _library(self, value: object) -> None:
        if not is_pure(value):
            raise RefusedError
        self.key += (is_pure, id(value))

    def _type(self, value: Any) -> None:
        if is_pure(value):
            self.key += (is_pure, id(value))
        elif is_plain_tuple(value):
            self._known.update(value._fields)
            self.key += (type, value)
        elif isinstance(value, enum.EnumMeta):
            self._known.update(value.__members__)
            self._class(value)
            self._pairs(enum.EnumMeta, value.__members__)
        elif is_followed(value):  # it may be called
            self._class(value)
            for name in sorted(_MAKING):
                self._add(next((vars(cls)[name] for cls in value.__mro__[:-1] if name in vars(cls)), None))
        else:
            raise RefusedError

    def _member(self, value: enum.Enum) -> None:
        """Add a member of an enumeration."""
        self.key += (type(value), value.name)
        if not is_pure(value) and not self._numbered(value):
            self._class(type(value))
            self._add(value.value)
            self._holders.append(value)

    def _own(self, value: object) -> None:
        if not self._numbered(value):
            self._pairs(type(value), attributes(value))

    def _instance(self, value: object) -> None:
        if self._numbered(value):
            return
        kind = type(value)
        self._class(kind)
        if dataclasses.is_dataclass(kind):  # its generated methods read what no code names
            held = attributes(value)
            self._known.update(held)
            self._pairs(kind, held)
            return
        if not jax.tree_util.all_leaves((value,)):  # JAX calls this by itself
            self._names["tree_flatten"] = None
        self._holders.append(value)

    def _unknown(self, _: object) -> None:
        raise RefusedError

    def _numbered(self, value: object) -> bool:
        """Tell whether a value was met before; then its number is added."""
        number = self._met.get(id(value))
        if number is None:
            self._met[id(value)] = len(self._met)
            self._alive.append(value)
            return False
        self.key += (MISSING, number)
        return True

    # Code.

    def _function(self, value: types.FunctionType) -> None:
        if is_pure(value):
            self.key += (is_pure, id(value))
            return
        if self._numbered(value):
            return
        code = value.__code__
        names = names_of(code)
        trusted = code.co_filename.startswith(LIBRARIES)  # what it closes over matters: its own code is known to be pure
        if not code.co_freevars if trusted else names.refused:
            raise RefusedError
        self.key.append(names)
        for part in (value.__defaults__, value.__kwdefaults__):
            if part:
                self._add(part)
        for name, content in vars(value).items():
            if name != "__wrapped__":
                self._known.add(name)
                self.key.append(name)
                self._add(content)
        closure = dict(zip(code.co_freevars, map(in_cell, value.__closure__ or ()), strict=True))
        for content in closure.values():
            if trusted or not _by_names(content):  # also where code only stores there: whoever reads it is to find that done
                self._add(content)
        if trusted:
            return
        self._names.update(dict.fromkeys(names.attributes))
        for name, *chain in names.free:
            if _by_names(closure.get(name)):
                self._known.update(chain)
                self._path(closure[name], chain)
        around, builtin = value.__globals__, getattr(value, "__builtins__")  # noqa: B009 - not every mypy knows this attribute
        for name, *chain in names.globals:
            self._path(around[name] if name in around else builtin.get(name, MISSING), chain)

    def _path(self, value: object, chain: list[str]) -> None:
        """Add what a name leads to: of a module, or an object that makes attributes up, what is taken from it."""
        while _by_names(value):
            name = chain.pop(0) if chain else ""
            of_class = not isinstance(value, types.ModuleType) and hasattr(type(value), name)
            value = MISSING if of_class else vars(value).get(name, MISSING)
            if not _by_names(value):
                chain.append(name)  # NumPy's functions call methods of their name
                self._known.add(name)
        self._add(value)  # refused where there is none
        if chain:
            self._names.update(dict.fromkeys(chain))

    # Attributes of objects and classes.

    def _class(self, kind: type) -> None:
        if kind is not types.SimpleNamespace and not self._numbered(kind):
            if any("__getattr__" in vars(cls) or "__getattribute__" in vars(cls) for cls in kind.__mro__[:-1]):
                raise RefusedError
            self.key.append(kind)
            self._holders.append(kind)

    def _follow_names(self) -> None:
        """Add what objects and classes hold under the names that code takes, until no code that is met so names more."""
        asked: list[int] = []  # for each of them, how many of the names
        while len(asked) < len(self._holders) or (asked and min(asked) < len(self._names)):
            names = list(self._names)
            asked += [0] * (len(self._holders) - len(asked))
            for i, start in enumerate(asked):
                self._take(self._holders[i], names[start:], first=start == 0)
                asked[i] = len(names)
        if not self._names.keys() - ATTRIBUTES <= self._known:
            raise RefusedError
        if not _OF_VARIABLES.isdisjoint(self._names):
            for v in self.variables:
                self.key += (v.name, v.grad is None)

    def _take(self, holder: object, names: list[str], *, first: bool) -> None:
        """Add what an object holds under some names, or a class and its bases."""
        owners = [vars(cls) for cls in holder.__mro__[:-1]] if isinstance(holder, type) else [attributes(holder)]
        for held in owners:
            there = [name for name in names if name in held]
            self._known.update(there)
            if first and isinstance(holder, type):  # operators and other syntax call methods by themselves
                there += [n for n in list(held) if n.startswith("__") and n not in _SELDOM and n not in names]
            self.key.append(len(there))
            for name in there:
                self.key.append(name)
                if not isinstance(holder, type) or _counts(name, held[name]):
                    self._add(held[name])


def numbers_in(values: Iterable[object]) -> list[Any]:
    """Return the numbers and arrays of NumPy that values hold, as far as that can be followed."""
    numbers: list[Any] = []
    with contextlib.suppress(RefusedError, TypeError, RuntimeError):
        Snapshot(values, frozenset(), numbers)
    return numbers


def _by_names(value: object) -> bool:
    """Tell whether what counts of a value is what code takes from it by name.

    Of a module that is so for its size; of an object with a ``__getattr__``, since nobody can tell what other names would lead to.
    """
    kind = type(value)
    return isinstance(value, types.ModuleType) or (
        category(value) == "_instance" and hasattr(kind, "__getattr__") and kind.__getattribute__ is object.__getattribute__
    )


def _counts(name: str, held: object) -> bool:
    """Tell whether what a class holds matters, as far as it can be followed."""
    if isinstance(held, types.FunctionType):
        return not held.__code__.co_filename.startswith(_GENERATED)
    if type(held) in COMPOSED:
        return True
    if name.startswith("__"):
        if callable(held) and not isinstance(held, (type, types.WrapperDescriptorType, types.BuiltinFunctionType)):
            raise RefusedError
        return False
    if isinstance(held, types.MemberDescriptorType):  # what is in slots is the object's
        return False
    if hasattr(type(held), "__get__"):
        raise RefusedError
    return True
