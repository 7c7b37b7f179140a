"""Flags: by what the code of a step decides, besides numbers: truth values, names, members of enumerations, functions, classes, and sets.

They are looked at where code names them.  A number is a part of the step, as in ``jax.jit``.
"""

from __future__ import annotations

import functools
import operator
import types
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from enum import Enum
from typing import Any

import numpy as np

from tape import layout
from tape.callables.objects import is_plain_object, of_a_library, writables
from tape.callables.reach import Edge, Reach, Stored
from tape.graph.lines import is_installed

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
    if told and not isinstance(reached.nodes[holder.node], types.FunctionType):  # whose globals stay
        for e in [e for e in into if e.get is not None and (id(e.holder), e.key) not in watched]:
            yield (holder.key, e.path, "flags"), Edge(leads_on, e, (_has_flags, told), (), -1, True)


def _wanted(holder: Stored, reached: Reach, names: frozenset[str]) -> Iterator[Any]:
    """Yield the keys in a place by which code finds something."""
    before, few = holder.before, len(holder.before) <= FEW
    if is_container(holder):
        if few and holder.path[-1:] != (".__dict__",) and any(_is_named(e, reached, names) for e in reached.into(holder.node)):
            plain = isinstance(holder.place.at, dict) or not all(isinstance(x, _OF_KINDS) and type(x) is not bool for x in before.values())
            yield from before if plain else ()  # a record of numbers is no state
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


def _leads_on(edge: Edge, other: tuple[Callable[[Any, Any, Any], bool], object]) -> bool:
    """Tell whether an edge leads to what it led to, or what stands there now will do as well: what tells that gets both, and one more."""
    content, (will_do, told) = edge.get(edge.holder, edge.key), other  # type: ignore[misc]
    return content is edge.content or will_do(content, edge.content, told)


leads_on = layout.chosen("leads_on", _leads_on)


def _has_flags(content: object, before: object, told: Sequence[tuple[object, object]]) -> bool:
    """Tell whether an object is of the kind of the one before, with the same flags that are looked at."""
    places = [*writables(content)] if type(content) is type(before) else []
    return bool(places) and all(any(_is_same(place.at_key(key), flag) for place in places) for key, flag in told)


def _is_same(x: object, flag: object) -> bool:
    return x is flag or (type(x) is type(flag) and isinstance(flag, (str, tuple, frozenset)) and x == flag)
