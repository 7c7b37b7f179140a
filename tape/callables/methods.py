"""Methods: the functions of a user's that a class holds, and which of them may be called without being named."""

from __future__ import annotations

import inspect
import operator
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

from tape.bounded import Bounded
from tape.callables.objects import is_shared, of_a_library
from tape.graph.lines import is_foreign, is_installed


class Method(NamedTuple):
    """A function of the user's in a class: its name, whether it is called without being named, itself, and which base has it."""

    name: str
    unnamed: bool
    function: types.FunctionType
    base: type


def methods(kind: type) -> Sequence[Method]:
    """Return the functions of the user's in a class.

    Called without being named are special methods, and any in a class that is derived from a library's, which knows their names.
    """
    contents = [x for base in kind.__mro__ for x in vars(base).values()]
    known = _METHODS.get(kind)
    if known is None or len(known[0]) != len(contents) or not all(map(operator.is_, known[0], contents)):  # a method was put there
        known = _METHODS[kind] = contents, _methods(kind)
    return known[1]


_METHODS: Bounded[type, tuple[list[Any], Sequence[Method]]] = Bounded("methods of classes", 4096)


def lookups(kind: type, names: Collection[str]) -> Iterator[tuple[type, str, Callable[[Any, Any], object], Any, object]]:
    """Yield how the methods of a class are read that may be called, by code with these names: base, name, what reads it, of what, and it.

    The nearest is read of the class itself, so that one which comes before it is seen.
    """
    unnamed = {m.name for m in methods(kind) if m.unnamed}
    bases: dict[str, list[type]] = {}
    for base in kind.__mro__:
        if not (of_a_library(base.__module__) or is_installed(base)):
            for name, held in vars(base).items():
                if (name in unnamed or (name in names and not name.startswith("__"))) and _is_method(name, held):
                    bases.setdefault(name, []).append(base)
    for name, (nearest, *others) in bases.items():
        held = vars(nearest)[name]
        function = getattr(held, "__func__", held)
        if isinstance(held, (types.FunctionType, staticmethod, property)) and getattr(kind, name, None) is function:
            yield kind, name, getattr, kind, function
        else:
            yield nearest, name, operator.getitem, vars(nearest), held
        yield from [(base, name, operator.getitem, vars(base), vars(base)[name]) for base in others]


def _is_method(name: str, held: object) -> bool:
    """Tell whether what a class has under a name is called, or says what its objects have there."""
    slot = isinstance(held, (types.MemberDescriptorType, types.GetSetDescriptorType))
    return not (slot or is_shared(name, held)) and (callable(held) or hasattr(type(held), "__get__"))


def _methods(kind: type) -> Sequence[Method]:
    foreign = any(of_a_library(base.__module__) or is_installed(base) for base in kind.__mro__ if base.__module__ not in _BARE)
    functions: list[Method] = []
    for base in () if of_a_library(kind.__module__) else kind.__mro__:
        for name, held in vars(base).items():
            for x in (held, *[getattr(held, part, None) for part in ("fget", "fset", "func")]):
                function = getattr(x, "__func__", x)
                inner = inspect.unwrap(function) if isinstance(function, types.FunctionType) else getattr(function, "__wrapped__", None)
                if not isinstance(inner, types.FunctionType) or is_installed(inner) or not is_foreign(inner.__code__.co_filename):
                    continue
                special = name.startswith("__")
                if not (special and inner.__code__.co_filename == "<string>"):  # which a dataclass has written
                    functions.append(Method(name, foreign or special, function, base))
    return functions


_BARE = frozenset({"builtins", "abc", "typing", "enum", "collections"})  # classes of which call special methods at most
