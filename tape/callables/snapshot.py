"""Snapshots: what the trace of a callable depends on, as a key that is equal where another trace would write the same program.

A walk follows what the callable's code names: functions into their code, closures, defaults and globals; containers and objects into what
they hold; numbers and strings by value; JAX arrays, which do not change, by identity.  Variables count by shape, dtype and flags, for the
program has them as inputs.  Whatever the walk does not understand (files, clocks, generators, code that assigns attributes) refuses the
key, so that the callable is traced at every call.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import reprlib
import types
from abc import ABCMeta
from typing import Any

from tape.callables.names import names_of
from tape.callables.objects import MISSING, category, contents, held_by_class, in_slot, is_enumeration, is_plain_tuple, words
from tape.callables.purity import ATTRIBUTES, is_library, is_pure
from tape.recording import boundary
from tape.recording.segment import Handle

__all__ = ["RefusedError", "Snapshot"]

_LIMIT = 4000  # parts of a key
_BYTES_LIMIT = 1 << 12  # of an array of NumPy, which may change and so is compared by value
_NUMBERS = frozenset({bool, int, float, complex})
_FOLLOWED = object()
# Methods that run when objects are made, copied, written or destroyed: not while a function is traced, unless it names them.
_SELDOM = words(
    "__init__ __new__ __post_init__ __init_subclass__ __class_getitem__ __subclasshook__ __reduce__ __reduce_ex__ "
    "__getstate__ __setstate__ __getnewargs__ __copy__ __deepcopy__ __setattr__ __delattr__ __del__ __dir__ __sizeof__ __replace__ "
    "__annotate__ __annotate_func__"
)


_GENERATED = tuple([str(m.__file__) for m in (dataclasses, enum, reprlib)])


class RefusedError(Exception):
    """The walk met what it does not understand: nothing is known of the next trace."""


class Snapshot:
    """One walk.

    Args:
        fields: names of attributes that the callable's arguments have.

    Attributes:
        variables: the Variables met.
        arrays: the JAX arrays met, whose ids are in the key.

    """

    def __init__(self, fields: frozenset[str] = frozenset()) -> None:
        self.variables: list[Any] = []
        self.arrays: list[Any] = []
        self.cells: dict[int, int] = {}  # id of a cell -> position of its Variable
        self._key: list[Any] = []
        self._fields = fields
        self._met: dict[Any, int] = {}
        self._alive: list[Any] = []  # what was made on the way, so that ids stay theirs
        self._loose: list[frozenset[str]] = []  # attributes of values that no path leads to
        self._classes: dict[type, list[Any]] = {}  # classes whose objects are passed around -> those objects
        self._strange = False  # an attribute is named that values of the libraries do not have

    def add_called(self, value: Any) -> None:
        """Add a callable, which is called and not looked at otherwise."""
        if category(value) == "object":
            self._path(value, ("__call__",))
        else:
            self.add(value)

    def add(self, value: Any) -> None:
        """Add a value with whatever it holds.

        Raises:
            RefusedError: something cannot be followed.

        """
        _WAYS[category(value)](self, value)
        if len(self._key) > _LIMIT:
            raise RefusedError

    def key(self) -> tuple[Any, ...]:
        """Return what was met, in order.

        Raises:
            RefusedError: some code takes an attribute of a value that the walk has not seen.

        """
        if self._classes or self._strange:
            self._follow_classes()
        return tuple(self._key)

    # Values, by category.

    def _atom(self, value: Any) -> None:
        self._key += (type(value), value)

    def _float(self, value: Any) -> None:
        self._key += (float, value or repr(value))  # 0.0 and -0.0 are equal, and not the same

    def _complex(self, value: Any) -> None:
        self._key += (complex, repr(value))

    def _variable(self, value: Any) -> None:
        cell = value._cell
        number = self.cells.get(id(cell))
        if number is not None:
            self._key += (Handle, number)
            return
        if boundary.is_traced(value):
            raise RefusedError
        self.cells[id(cell)] = len(self.variables)
        self._alive.append(cell)
        self.variables.append(value)
        self._key += (value._place.kind, value._segment is None)
        if type(cell[0]) in _NUMBERS:  # it is part of the program, not an input
            self.add(cell[0])

    def _array(self, value: Any) -> None:
        self.arrays.append(value)
        self._key += (id, id(value))

    def _numpy(self, value: Any) -> None:
        if value.dtype.hasobject or value.nbytes > _BYTES_LIMIT:
            raise RefusedError
        self._key += (type(value), value.shape, value.dtype, value.tobytes())

    def _items(self, value: Any) -> None:
        if self._numbered(id(value), value):
            return
        items = list(value)
        self._key += (type(value), len(items))
        for item in items:
            self.add(item)

    def _named_tuple(self, value: Any) -> None:
        self._fields = self._fields.union(type(value)._fields)
        self._items(value)

    def _dict(self, value: Any) -> None:
        if self._numbered(id(value), value):
            return
        items = list(value.items())
        self._key += (dict, len(items))
        for name, item in items:
            self.add(name)
            self.add(item)

    def _range(self, value: Any) -> None:
        self._key.append(type(value))
        for item in (value.start, value.stop, value.step):
            self.add(item)

    def _partial(self, value: Any) -> None:
        self._key.append(functools.partial)
        for item in (value.func, value.args, value.keywords, vars(value)):
            self.add(item)

    def _library(self, value: Any) -> None:
        if not is_pure(value):
            raise RefusedError
        self._key += (is_pure, id(value))

    def _type(self, value: Any) -> None:
        if not is_pure(value):
            if not is_plain_tuple(value):
                raise RefusedError
            self._fields = self._fields.union(value._fields)
            self._key += (type, value)
            return
        self._key += (is_pure, id(value))

    def _member(self, value: Any) -> None:
        """Add a member of an enumeration."""
        self._key += (type(value), value.name)
        if not is_pure(value):
            self._class(value)
            self.add(value.value)

    def _method(self, value: Any) -> None:
        if not isinstance(value.__func__, types.FunctionType):
            raise RefusedError
        self._bound(value.__func__, value.__self__)

    def _function(self, value: Any) -> None:
        if is_pure(value):
            self._key += (is_pure, id(value))
        else:
            self._bound(value, MISSING)

    def _object(self, value: Any) -> None:
        """Add an object that is passed around: all it holds, and any of its methods may be called."""
        if not self._numbered(id(value), value):
            self._held(value)
            self._class(value)

    def _own(self, value: Any) -> None:
        if not self._numbered(id(value), value):
            self._held(value)

    def _held(self, value: Any) -> None:
        held = contents(value)
        self._key += (type(value), len(held))
        for name, item in held.items():
            self._key.append(name)
            self.add(item)

    def _refuse(self, _: Any) -> None:
        raise RefusedError

    def _numbered(self, mark: Any, *values: Any) -> bool:
        """Tell whether ``values`` were met before; then their number is added."""
        number = self._met.get(mark)
        if number is None:
            self._met[mark] = len(self._met)
            self._alive += values
            return False
        self._key += (MISSING, number)
        return True

    # Code.

    def _bound(self, function: types.FunctionType, first: Any) -> None:
        """Add a function; of a method, with its object, of which the code may name attributes."""
        if self._numbered((id(function), id(first)), function, first):
            return
        code = function.__code__
        names = names_of(code)
        self._key.append(names)
        for default in function.__defaults__ or ():
            self.add(default)
        if function.__kwdefaults__:
            self.add(function.__kwdefaults__)
        for name, item in vars(function).items():
            if name != "__wrapped__":
                self._key.append(name)
                self.add(item)
        if is_library(code.co_filename):
            self._made_by_library(function)
            return
        if names.refused or (names.rebinds and first is not MISSING):
            raise RefusedError
        if names.free:
            cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
            for name, chain in names.free:
                self._path(_in_cell(cells[name]), chain)
        around, builtin = function.__globals__, getattr(function, "__builtins__")  # noqa: B009 - not every mypy knows this attribute
        for name, chain in names.globals:
            self._path(around[name] if name in around else builtin.get(name, MISSING), chain)
        self._named(names.unbound if first is MISSING else names.loose)
        if first is not MISSING:
            for chain in names.first:
                self._path(first, chain)

    def _made_by_library(self, function: types.FunctionType) -> None:
        """Add what a function made by JAX or the tape closes over: its own code is known to be pure."""
        if function.__closure__ is None:
            raise RefusedError
        for cell in function.__closure__:
            self.add(_in_cell(cell))

    def _path(self, value: Any, chain: tuple[str, ...]) -> None:
        """Add what a name, and the attributes taken from it, lead to."""
        for i, name in enumerate(chain):
            if isinstance(value, types.ModuleType):
                value = vars(value).get(name, MISSING)
            elif is_enumeration(value) and name in value.__members__:
                value = value.__members__[name]
            elif category(value) == "object" or (isinstance(value, type) and not is_pure(value)):
                value = self._attribute(value, name)
            else:
                self._named(frozenset(chain[i:]))
                break
            if value is _FOLLOWED:
                self._named(frozenset(chain[i + 1 :]))
                return
        if value is MISSING:
            raise RefusedError
        self.add(value)

    def _attribute(self, value: Any, name: str) -> Any:
        """Return an attribute of an object or a class; ``_FOLLOWED`` where it is a method, whose code is added."""
        of_class = isinstance(value, type)
        kind = value if of_class else type(value)
        found = held_by_class(kind, name)
        if of_class and type(kind) not in (type, ABCMeta, enum.EnumMeta):
            return MISSING
        if not of_class:
            if kind.__getattribute__ is not object.__getattribute__:
                return MISSING
            if isinstance(found, types.MemberDescriptorType):
                return in_slot(found, value)
            if isinstance(found, property):
                if not isinstance(found.fget, types.FunctionType):
                    return MISSING
                self._bound(found.fget, value)
                return _FOLLOWED
            held = getattr(value, "__dict__", {})
            if name in held and not hasattr(type(found), "__set__"):
                return held[name]
            if isinstance(found, types.FunctionType):
                self._bound(found, value)
                return _FOLLOWED
        if isinstance(found, classmethod) and isinstance(found.__func__, types.FunctionType):
            self._bound(found.__func__, kind)
            return _FOLLOWED
        if isinstance(found, staticmethod):
            return found.__func__
        return MISSING if hasattr(type(found), "__get__") and not isinstance(found, types.FunctionType) else found

    def _named(self, attributes: frozenset[str]) -> None:
        """Note attributes of values that no path leads to."""
        self._loose.append(attributes)
        self._strange = self._strange or not attributes <= ATTRIBUTES

    # Classes of objects that are passed around: code may call any method that it names, and operators.

    def _class(self, value: Any) -> None:
        self._classes.setdefault(type(value), []).append(value)

    def _follow_classes(self) -> None:
        followed: set[tuple[int, str]] = set()
        while True:
            named = frozenset().union(*self._loose)
            known = set(ATTRIBUTES | self._fields)
            waiting = []
            for kind, values in self._classes.items():
                names = {name for cls in kind.__mro__[:-1] for name in vars(cls)}
                known.update(names, *[contents(value) for value in values])
                called = sorted([n for n in names if n in named or (n.startswith("__") and n not in _SELDOM)])
                waiting += [(v, n) for v in values for n in called if (id(v), n) not in followed]
            if not waiting:
                break
            for value, name in waiting:
                followed.add((id(value), name))
                self._follow(value, name)
        if not named <= known:
            raise RefusedError

    def _follow(self, value: Any, name: str) -> None:
        """Add what an object's class has under a name."""
        found = held_by_class(type(value), name)
        if isinstance(found, types.FunctionType):
            if not found.__code__.co_filename.startswith(_GENERATED):
                self._bound(found, value)
        elif isinstance(found, (classmethod, property)):
            if self._attribute(value, name) is not _FOLLOWED:
                raise RefusedError
        elif isinstance(found, staticmethod):
            self.add(found.__func__)
        elif name.startswith("__"):
            if callable(found) and not isinstance(found, (type, types.WrapperDescriptorType, types.BuiltinFunctionType)):
                raise RefusedError
        elif not isinstance(found, types.MemberDescriptorType):  # what is in slots was added with the object
            if hasattr(type(found), "__get__"):
                raise RefusedError
            self.add(found)


def _in_cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet filled
        raise RefusedError from None


_WAYS = {
    "array": Snapshot._array,
    "atom": Snapshot._atom,
    "complex": Snapshot._complex,
    "dict": Snapshot._dict,
    "float": Snapshot._float,
    "function": Snapshot._function,
    "items": Snapshot._items,
    "library": Snapshot._library,
    "member": Snapshot._member,
    "method": Snapshot._method,
    "module": Snapshot._refuse,
    "named tuple": Snapshot._named_tuple,
    "numpy": Snapshot._numpy,
    "object": Snapshot._object,
    "own": Snapshot._own,
    "partial": Snapshot._partial,
    "range": Snapshot._range,
    "type": Snapshot._type,
    "unknown": Snapshot._refuse,
    "variable": Snapshot._variable,
}
