"""Flags: by what the code of a step decides, besides numbers: truth values, names, members of enumerations, functions, classes, and sets.

They are looked at where code names them.  A number is a part of the step, as in ``jax.jit``.
"""

from __future__ import annotations

import functools
import itertools
import operator
import types
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any

import jax
import numpy as np

from tape import layout
from tape.callables.objects import MISSING, in_slot, is_plain_object, of_a_library
from tape.callables.reach import Edge, Reach, Stored
from tape.graph.lines import is_installed
from tape.graph.segment import Handle

FEW = 64
_LISTING = frozenset({"__dict__", "vars", "dir", "getmembers", "fields", "asdict"})  # by which code gets at all attributes of an object
_COMPUTING = _LISTING | {"getattr", "attrgetter"}  # by which it does at those whose names it computes
SWITCHES = (bool, Enum, str)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial, type)


def is_computing(holder: Stored, names: frozenset[str]) -> bool:
    """Tell whether code with these names may get at attributes that it does not name."""
    return len(holder.before) <= FEW and not names.isdisjoint(_COMPUTING)


def is_listing(names: frozenset[str]) -> bool:
    """Tell whether code with these names may ask which attributes there are."""
    return not names.isdisjoint(_LISTING)


def is_container(holder: Stored) -> bool:
    """Tell whether a place is the items of a container."""
    return isinstance(holder.place.at, (list, deque)) or holder.place.spelled.startswith("[")


def is_flag(x: Any) -> bool:
    """Tell whether something is a flag, or a tuple of such."""
    if isinstance(x, (tuple, frozenset)):
        return all(map(is_flag, x))
    return isinstance(x, (*SWITCHES, np.dtype)) or is_function(x)


def is_function(x: Any) -> bool:
    """Tell whether something is a function or class, be it an object of a library's that is called."""
    return isinstance(x, _FUNCTIONS) or (callable(x) and of_a_library(type(x).__module__))


def is_of_numbers(kind: type) -> bool:
    """Tell whether a class is one of numbers."""
    return issubclass(kind, _OF_KINDS)


def is_of_a_kind(x: object) -> bool:
    """Tell whether something is a number, NumPy's array or an object, of which the class is looked at."""
    return not is_flag(x) and (isinstance(x, _OF_KINDS) or is_plain_object(x))


_OF_KINDS = (int, float, complex, np.ndarray, np.generic)


def flags(
    holder: Stored, reached: Reach, watched: Collection[object], names: frozenset[str], doubted: frozenset[str]
) -> Iterator[tuple[tuple[Hashable, ...], Edge]]:
    """Yield by what it is seen that a place holds the flags that it held, and numbers and objects of the classes that it did.

    It has no attributes of ``doubted`` names that it had not.
    """
    place, before, into = holder.place, holder.before, reached.into(holder.node)
    if isinstance(place.at, set):
        if len(before) <= FEW and all(map(_is_plain, before.values())):
            members = frozenset(before.values())
            for e in [e for e in into if _is_named(e, reached, names)]:
                yield (holder.key, e.path, "set"), Edge(_leads_to, e, members, (), -1, True)
        return
    if is_looked_into(holder, reached, names) and _is_record(holder):
        yield (holder.key, "record"), Edge(has_no_state, place.at, None, (), -1, True)
        return
    wanted = [*_wanted(holder, reached, names)]
    told = tuple([(k, before[k]) for k in wanted if is_flag(before[k])])
    for k, x in told:
        yield (holder.key, k, "flag"), Edge(place.get, place.at, k, (), -1, x)
    if kinds := tuple([(k, type(before[k])) for k in wanted if is_of_a_kind(before[k]) and (id(place.at), k) not in watched]):
        yield (holder.key, "kinds"), Edge(_are_of_kinds, (place.get, place.at), kinds, (), -1, True)
    if place.spelled == ".{}" and isinstance(place.at, dict) and len(before) <= FEW:
        if doubted and not before:
            yield holder.key, Edge(operator.length_hint, place.at, 0, (), -1, 0)
        for k in doubted - before.keys() if before else ():
            yield (holder.key, k, "missing"), Edge(dict.get, place.at, k, (), -1, None)
    elif place.spelled == ".{}" and not isinstance(place.at, (dict, type)):  # slots
        for k in doubted.intersection(place.names or ()) - before.keys():
            yield (holder.key, k, "missing"), Edge(in_slot, place.at, k, (), -1, MISSING)


def is_looked_into(holder: Stored, reached: Reach, names: frozenset[str]) -> bool:
    """Tell whether a place is the items of a container that has few, at which code gets."""
    few = is_container(holder) and len(holder.before) <= FEW and holder.path[-1:] != (".__dict__",)
    return few and any(_is_named(e, reached, names) for e in reached.into(holder.node))


def _is_record(holder: Stored) -> bool:
    """Tell whether a list is one of numbers, which is no state for as long as no Variable comes there."""
    numbers = all(isinstance(x, _OF_KINDS) and type(x) is not bool for x in holder.before.values())
    return bool(holder.before) and numbers and isinstance(holder.place.at, (list, deque))


def has_no_state(listed: Iterable[object], _: object) -> bool:
    """Tell whether no Variable or array is among the first of what is listed."""
    kinds = {*map(type, itertools.islice(listed, FEW))} - _PLAIN_KINDS
    return not any(issubclass(kind, (Handle, jax.Array)) for kind in kinds)


_PLAIN_KINDS = frozenset({int, float, complex})


def _wanted(holder: Stored, reached: Reach, names: frozenset[str]) -> Iterator[Any]:
    """Yield the keys in a place by which code finds something."""
    before = holder.before
    if is_container(holder):
        yield from before if is_looked_into(holder, reached, names) else ()
        return
    if holder.place.spelled == ".{}":
        yield from before if is_computing(holder, names) else [k for k in before if k in names]
        return
    function = reached.nodes[holder.node]
    foreign = isinstance(function, types.FunctionType) and not is_installed(function)
    yield from [k for k, x in before.items() if foreign or isinstance(x, SWITCHES)]


def _is_named(edge: Edge, reached: Reach, names: frozenset[str]) -> bool:
    """Tell whether code gets at a container: by the name of an attribute, or as one of a few items."""
    if edge.source >= 0 and reached.path(edge.source)[-1:] == (".__dict__",):  # of a namespace, whose attributes are seen otherwise
        return False
    if isinstance(edge.path[-1], str) and edge.path[-1].startswith("."):
        return edge.key in names
    return not isinstance(edge.holder, (list, dict, deque)) or len(edge.holder) <= FEW


def kind_of(x: object) -> object:
    """Return what tells objects apart that hold the same: their class, the code of functions, the length of tuples."""
    if isinstance(x, types.FunctionType):
        return x.__code__
    return (type(x), len(x)) if isinstance(x, tuple) else type(x)


def _is_plain(x: object) -> bool:
    return x is None or isinstance(x, (str, int, Enum)) or (isinstance(x, tuple) and all(map(_is_plain, x)))


def _leads_to(edge: Edge, members: frozenset[object]) -> bool:
    content = edge.content if edge.get is None else edge.get(edge.holder, edge.key)
    return isinstance(content, (set, frozenset)) and content == members


def has_kind(value: object, told: tuple[str, type]) -> bool:
    """Tell whether what an object or its class has for an attribute is of a class."""
    return type(getattr(value, told[0], None)) is told[1]


def _all_of_kinds(of: tuple[Callable[[Any, Any], object], Any], told: Sequence[tuple[object, type]]) -> bool:
    """Tell whether what is read at some keys of a place is of the classes that are told."""
    get, at = of
    return all(type(get(at, key)) is kind for key, kind in told)


_are_of_kinds = layout.chosen("are_of_kinds", _all_of_kinds)  # which every call asks


def is_inert(x: tuple[Any, ...]) -> bool:
    """Tell whether nothing but None, flags and numbers is in a tuple."""
    return all(is_inert(y) if isinstance(y, tuple) else y is None or is_flag(y) or isinstance(y, _OF_KINDS) for y in x)


def form_of(x: object) -> object:
    """Return what tells such a tuple from others, but for the values of numbers."""
    if isinstance(x, tuple):
        return type(x), *map(form_of, x)
    return x if x is None or is_flag(x) else (np.number, type(x))


def has_form(x: object, form: object) -> bool:
    """Tell whether something is such a tuple that is no other one."""
    return isinstance(x, tuple) and is_inert(x) and form_of(x) == form


def is_one(x: object, kind: type) -> bool:
    """Tell whether something is of just that class."""
    return type(x) is kind


def is_same(x: object, flag: object) -> bool:
    """Tell whether something is a flag, or equal to it where that decides."""
    return x is flag or (type(x) is type(flag) and isinstance(flag, (str, tuple, frozenset)) and x == flag)
