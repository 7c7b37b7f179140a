"""Surroundings: what a step was traced with besides Variables, arrays and modes: the lengths of containers, and what was not there.

A list of layers that has got one more, or its first one, and a name that stands for something where there was None, bring Variables that
no trace has met; and so does one where there was an array that the step did no more than look at (``if self.mask.shape == x.shape``).
"""

from __future__ import annotations

import contextlib
import operator
import types
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from tape import layout
from tape.callables.objects import MISSING, Writable, parts
from tape.callables.reach import Edge, Reach, Stored
from tape.graph.segment import Handle
from tape.jitting import identities
from tape.jitting.classes import methods_in
from tape.jitting.flags import (
    FEW,
    flags,
    form_of,
    has_form,
    has_kind,
    has_no_state,
    is_computing,
    is_container,
    is_flag,
    is_inert,
    is_listing,
    is_looked_into,
    is_of_a_kind,
    is_of_numbers,
    is_one,
    is_same,
)
from tape.jitting.places import KeptArray, arrays_at, has_arrays
from tape.jitting.replaced import ALL, Look, replaced

_SMALL = 256  # up to here, equal numbers are one object
_LOOKS = 1024  # for an attribute that is not there, at all objects: beyond, at those that lead to what a step reads
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)


def surroundings(
    reached: Reach,
    way: Sequence[Edge],
    names: frozenset[str],
    known: Collection[object],
    unread: Collection[object],
    read: Collection[KeptArray] = (),
) -> tuple[dict[Hashable, Edge], list[tuple[KeptArray, jax.Array]]]:
    """Return by what is seen: lengths of containers on the ``way`` to what a step reads, and the places in code that hold nothing so far.

    Lengths are those of containers of arrays that it has ``read`` as constants, too, and of those of which code asks for it.  The places
    are its names, and attributes and items of these ``names``, with None or (but for those in slots and classes) an empty container
    or arrays that are not ``known`` (by container and key) to be read or written to.  Nothing leads through one, so that nobody knows
    whether the step reads it: it is looked at until it gets something, or another array (of another kind, where it is known to be
    ``unread``), or stands in another object.  Return also the places of arrays of which nobody knows whether the step looks at them.
    """
    suspects: list[tuple[KeptArray, jax.Array]] = []
    ours, watched = {id(edge.holder) for edge in way}, {(id(edge.holder), edge.key) for edge in way}
    counted = identities.counted(reached)
    constant = {id(k.holder.place.at) for k in read}
    found: dict[Hashable, Edge] = {}
    looks: dict[int, list[Look]] = {}
    doubted = identities.doubted(reached)
    many = len(doubted) * len(reached.holders) > _LOOKS
    for holder in reached.holders:
        at, before = holder.place.at, holder.before
        by_name, computed = holder.place.spelled == ".{}", is_computing(holder, names)
        contains = is_container(holder)
        seen: dict[Any, Edge] = dict(
            flags(holder, reached, {*watched, *known}, names, frozenset() if many and id(at) not in ours else doubted)
        )
        found.update(seen)
        listed = contains or (by_name and isinstance(at, dict) and is_listing(names))
        counts = any(key[-1] == "flag" for key in seen) or _has_objects(seen) or str(holder.path[-1]).lstrip(".") in counted
        if listed and len(at) == len(before) and (counts or id(at) in ours or id(at) in constant or not before):
            found[holder.key] = _of_length(at, len(at))
            if counts and contains:
                looks.setdefault(holder.node, []).append(Look(ALL, _is_of_length, len(at)))
        if contains:
            if len(before) > _SMALL:  # data, rather than state
                continue
            by_name = id(at) not in ours
        inner = id(at) not in ours and is_container(holder) and str(holder.path[-1]).startswith("[")
        wanted = () if inner else names if by_name and (contains or not computed) else None
        nothing = dict(_of_nothing(holder, wanted, known, unread, every=is_looked_into(holder, reached, names)))
        if id(at) in ours and len(before) <= FEW:
            found.update(((holder.key, key, "numbers"), edge) for key, edge in _of_numbers(holder))
        found.update(((holder.key, key), edge) for key, edge in nothing.items())
        arrays = [key for key, edge in nothing.items() if has_arrays(edge.content)]
        for key in arrays:
            suspects += [(k, x) for k, x in arrays_at(holder, key) if x.size]
        if arrays:  # these may stand in another object
            found.update(((holder.key, e.path), e) for e in reached.into(holder.node) if e.get is not None)
        if those := [*_looks(seen, nothing, foreign=isinstance(reached.nodes[holder.node], types.FunctionType))]:
            looks.setdefault(holder.node, []).extend(those)
    for node, value in enumerate(reached.nodes):
        found.update(((reached.path(node), name), edge) for name, edge in _of_no_attribute(value, names))
    found.update(replaced(reached, looks, watched))
    found.update(methods_in(reached, names))
    return found, suspects


def _has_objects(seen: Mapping[Any, Edge]) -> bool:
    """Tell whether a place holds objects that are looked at, other than numbers."""
    return any(key[-1] == "kinds" and not all(map(is_of_numbers, [kind for _, kind in edge.key])) for key, edge in seen.items())


def _of_length(at: object, n: int) -> Edge:
    if n <= _SMALL:
        return Edge(operator.length_hint, at, 0, (), -1, n)
    return Edge(lambda at, n: len(at) == n, at, n, (), -1, True)


def _is_of_length(content: Any, n: int) -> bool:
    return len(content) == n


def _of_nothing(
    holder: Stored, names: Collection[str] | None, known: Collection[object], unread: Collection[object], *, every: bool
) -> Iterator[tuple[object, Edge]]:
    """Yield the keys, of these ``names``, under which nothing is held after a trace, with what tells whether that is so.

    Under ``every`` other key only None and what is empty are looked for.
    """
    place = holder.place
    for key, content in holder.before.items():
        named = names is None or key in names or (is_container(holder) and isinstance(content, jax.Array) and content.size == 1)
        if not (named or every):
            continue
        if place.at_key(key) is None:
            yield key, Edge(place.get, place.at, key, (), -1, None)
        elif _is_empty_at(place, key):
            yield key, Edge(is_empty_in, (place.get, place.at), (key, _CONTAINERS), (), -1, True)
        elif isinstance(content, tuple) and any(x is None for x in content) and is_inert(content):
            yield key, Edge(place.get, place.at, key, (), -1, content)
        elif named and (id(place.at), key) not in known and has_arrays(now := place.at_key(key)):
            if (holder.key, key) not in unread:
                yield key, Edge(place.get, place.at, key, (), -1, now)
            elif isinstance(now, jax.Array):
                yield key, Edge(_is_array_at, place, (key, now.shape, now.dtype), (), -1, True)


def _of_numbers(holder: Stored) -> Iterator[tuple[object, Edge]]:
    """Yield the keys of tuples with Variables and numbers, by which these may be sorted, with what tells whether they are the same."""
    for key, content in holder.before.items():
        if isinstance(content, tuple) and any(isinstance(x, Handle) for x in content) and (numbers := _numbers_in(content)):
            yield key, Edge(_has_numbers, holder.place, (key, numbers), (), -1, True)


def _numbers_in(content: tuple[object, ...]) -> tuple[object, ...]:
    return tuple([x for x in content if type(x) in _NUMBERS])


def _has_numbers(place: Writable, told: tuple[object, tuple[object, ...]]) -> bool:
    content = place.at_key(told[0])
    return isinstance(content, tuple) and _numbers_in(content) == told[1]


_NUMBERS = frozenset({bool, int, float, complex, str})


def _of_no_attribute(value: object, names: Collection[str]) -> Iterator[tuple[object, Edge]]:
    """Yield the attributes of these ``names`` in slots and in classes that are None, flags, or objects of classes."""
    for _, content, read, name in parts(value):
        if read is None or not (name is MISSING or name in names):  # the former is asked of a context variable
            continue
        if content is None or content is MISSING or is_flag(content):
            with contextlib.suppress(AttributeError):  # a slot that is empty
                if read(value, name) is content:
                    yield name, Edge(read, value, name, (), -1, content)
        elif read is getattr and isinstance(content, jax.Array) and name not in (own := getattr(value, "__dict__", {})):
            yield (name, "own"), Edge(dict.get, own, name, (), -1, None)
        elif read is getattr and is_of_a_kind(content):
            yield name, Edge(has_kind, value, (name, type(content)), (), -1, True)


def _is_empty_at(place: Writable, key: object) -> bool:
    return _is_empty(place.at_key(key), _CONTAINERS)


def _is_empty(content: Any, containers: tuple[type[Collection[Any]], ...]) -> bool:
    return isinstance(content, containers) and not len(content)


def _is_empty_in(of: tuple[Callable[[Any, Any], object], Any], told: tuple[object, tuple[type[Collection[Any]], ...]]) -> bool:
    """Tell whether what is read at the key of a place is one of some containers, and empty."""
    get, at = of
    return _is_empty(get(at, told[0]), told[1])


is_empty_in = layout.chosen("is_empty_in", _is_empty_in)  # which calls ask


def _looks(seen: Mapping[Any, Edge], nothing: Mapping[Any, Edge], *, foreign: bool) -> Iterator[Look]:
    """Yield what was seen in one place, to be looked for in another one; of flags not in that of a function, whose globals stay."""
    for key, edge in seen.items() if not foreign else ():
        if key[-1] == "flag":
            yield Look(key[1], is_same, edge.content)
        elif key[-1] == "kinds":
            yield from [Look(k, is_one, kind) for k, kind in edge.key]
        elif key[-1] == "record":
            yield Look(ALL, has_no_state, None)
    for key, edge in nothing.items():
        if edge.content is None or edge.get is is_empty_in:
            yield Look(key, _is_nothing, None)
        elif isinstance(edge.content, tuple) and is_inert(edge.content):
            yield Look(key, has_form, form_of(edge.content))


def _is_nothing(content: object, _: object) -> bool:
    return content is None or content is MISSING or _is_empty(content, _CONTAINERS)


def _is_array_at(place: Writable, told: tuple[object, tuple[int, ...], np.dtype]) -> bool:
    key, shape, dtype = told
    content = place.at_key(key)
    return isinstance(content, jax.Array) and (content.shape, content.dtype) == (shape, dtype)
