"""Records: what a step makes and leaves behind that JAX takes for a leaf, or keeps in another order, as trees.

Every call makes objects of dataclasses anew, with what they hold then, those of other classes of the user's where that is traced, and
sets, deques and dicts of any class; a dict keeps its order, and may have Variables as keys.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any, NamedTuple

import jax

from tape.callables.objects import attributes, is_composed, slots
from tape.graph import boundary
from tape.graph.segment import Handle, is_variable
from tape.jaxapi import Tracer

_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))  # JAX warns of them, which nobody has passed to it


class Record(NamedTuple):
    """An object of a class, as a tree: ``held`` by ``names``, which are leaves as well where some are Variables, or without any."""

    kind: Any
    option: Any
    names: tuple[Any, ...]
    held: tuple[Any, ...]

    def taken_apart(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return what it holds, and what else it is."""
        if any(isinstance(name, Handle) for name in self.names):
            return (*self.names, *self.held), (self.kind, self.option, None)
        return self.held, (self.kind, self.option, self.names)

    @classmethod
    def made(cls, what: tuple[Any, ...], held: Iterable[Any]) -> Any:
        """Return an object that holds this."""
        kind, option, names = what
        if kind is dict and names is not None:
            return dict(zip(names, held, strict=True))
        held = [*held]
        if issubclass(kind, deque):
            return kind(held, option)
        if issubclass(kind, (set, frozenset)):
            return kind(held)
        if names is None:
            names, held = held[: len(held) // 2], held[len(held) // 2 :]
        new = kind.__new__(kind)
        if isinstance(new, defaultdict):
            new.default_factory = option
        into = new if isinstance(new, dict) else getattr(new, "__dict__", {})
        for name, content in zip(names, held, strict=True):
            if isinstance(new, dict) or name not in slots(kind):
                dict.__setitem__(into, name, content)
            else:
                slots(kind)[name].__set__(new, content)
        return new


jax.tree_util.register_pytree_node(Record, Record.taken_apart, Record.made)


def flatten(tree: object, known: Collection[int] | None = None) -> tuple[list[Any], Any]:
    """Return the leaves of what may stand in a place, and the structure that they stand in.

    Objects, sets and deques are leaves where nothing is said of what is ``known``, and so is anything with such an id but for tuples.
    """
    return jax.tree.flatten(_as_tree(tree, known, ()), is_leaf=_leaf(known, _is_leaf))


def taken_apart(tree: object) -> tuple[list[Any], Hashable]:
    """Return the leaves of :func:`flatten`, and the form that they are in: where it is equal, they and Variables are in the same places.

    What Python's own containers hold is found without JAX, for a tenth of the time.
    """
    leaves: list[Any] = []
    form: list[Hashable] = []
    _take_apart(tree, leaves, form)
    return leaves, tuple(form)


def _take_apart(tree: Any, leaves: list[Any], form: list[Hashable]) -> None:
    kind = type(tree)
    if isinstance(tree, jax.Array):
        leaves.append(tree)
    elif isinstance(tree, Handle):
        form.append((Handle, len(leaves)))
        leaves.append(tree)
    elif kind in (list, tuple):
        form.append((kind, len(leaves), len(tree)))
        for x in tree:
            _take_apart(x, leaves, form)
    elif kind in _DICTS and not any(isinstance(k, Handle) for k in tree):  # in their own order
        form.append((kind, len(leaves), *tree))
        for x in tree.values():
            _take_apart(x, leaves, form)
    else:
        found, structure = flatten(tree)
        form.append((structure, len(leaves), *[i for i, x in enumerate(found) if isinstance(x, Handle)]))
        leaves += found


def standing_often(trees: Iterable[object], known: Collection[int]) -> dict[int, object]:
    """Return by id what a step has made and put into several trees, or several times into one: no tuples, nothing that holds itself."""
    met: dict[int, object] = {}
    often: dict[int, object] = {}
    cyclic: set[int] = set()
    ahead: list[tuple[Any, tuple[int, ...]]] = [(tree, ()) for tree in trees]
    for x, within in ahead:
        if id(x) in within:
            cyclic.update(within[within.index(id(x)) :])
        if x is None or _is_leaf(x) or _is_known(x, known) or id(x) in within or (is_composed(x) and not _is_made(x, known)):
            continue
        if (contents := _contents(x)) is None:
            continue
        if id(x) in met and not isinstance(x, tuple):
            often[id(x)] = x
        else:
            met[id(x)] = x
            ahead += [(content, (*within, id(x))) for content in contents]
    return {key: x for key, x in often.items() if key not in cyclic}


def in_order_of(given: Any, tree: Any) -> Any:
    """Return a tree with its dicts in the order of those in another one, which has the same structure for JAX."""
    if type(given) in _DICTS:
        items = {k: in_order_of(given[k], tree[k]) for k in given}
        return items if type(given) is dict else defaultdict(given.default_factory, items)
    structure: Any
    leaves, structure = jax.tree.flatten(given, is_leaf=_is_opened)
    if len(leaves) == 1 and leaves[0] is given:
        return tree
    return structure.unflatten([in_order_of(x, y) for x, y in zip(leaves, structure.flatten_up_to(tree), strict=True)])


def _as_tree(tree: object, known: Collection[int] | None, within: tuple[int, ...]) -> object:
    """Return a tree in which JAX finds everything that it is to find, in order."""
    structure: Any
    leaves, structure = jax.tree.flatten(tree, is_leaf=_leaf(known, _is_opened))
    found = [_opened(x, known, within) for x in leaves]
    return tree if all(x is y for x, y in zip(leaves, found, strict=True)) else structure.unflatten(found)


def _opened(x: Any, known: Collection[int] | None, within: tuple[int, ...]) -> object:
    """Return what one leaf is as a tree."""
    kind, own = type(x), (*within, id(x))
    if known is not None and _is_known(x, known):
        return x
    if kind in _DICTS:
        held = {k: _as_tree(v, known, own) for k, v in x.items()}
        if _is_sorted(x):
            return x if all(held[k] is x[k] for k in held) else held if kind is dict else defaultdict(x.default_factory, held)
        return Record(kind, getattr(x, "default_factory", None), (*held,), (*held.values(),))
    if known is None or id(x) in within:
        return x
    if isinstance(x, (deque, set, frozenset)):
        return Record(kind, getattr(x, "maxlen", None), (), tuple([_as_tree(v, known, own) for v in x]))
    if is_composed(x) and _is_made(x, known):
        contents: Mapping[Any, Any] = attributes(x)
    elif isinstance(x, dict) and not isinstance(x, OrderedDict) and not attributes(x):
        contents = dict(x)
    else:
        return x
    return Record(kind, None, (*contents,), tuple([_as_tree(v, known, own) for v in contents.values()]))


def _contents(x: Any) -> Collection[Any] | None:
    """Return what stands in something; None where it is a leaf."""
    if isinstance(x, dict):
        return x.values()
    if isinstance(x, (list, tuple, deque, set, frozenset)):
        return x
    if is_composed(x):
        return attributes(x).values()
    leaves = jax.tree.leaves(x, is_leaf=lambda y: y is not x)
    return None if len(leaves) == 1 and leaves[0] is x else leaves


def _is_made(x: object, known: Collection[int]) -> bool:
    """Tell whether an object is to be made at every call: it is one of a dataclass, or something in it is traced."""
    ahead, met = [x], {id(x)}
    for y in () if dataclasses.is_dataclass(x) else ahead:
        if y is None or _is_known(y, known):
            continue
        if isinstance(y, Tracer) or (isinstance(y, Handle) and boundary.is_traced(y)):
            return True
        if _is_leaf(y) or (contents := _contents(y)) is None:
            continue
        ahead += [z for z in contents if id(z) not in met]
        met.update(map(id, contents))
    return dataclasses.is_dataclass(x)


_DICTS = (dict, defaultdict)


def _is_sorted(keys: Iterable[Any]) -> bool:
    """Tell whether JAX keeps keys in their order."""
    try:
        return not any(isinstance(k, Handle) for k in keys) and [*keys] == sorted(keys)
    except Exception:  # noqa: BLE001 - of keys that cannot be compared
        return False


def _is_leaf(value: object) -> bool:
    return is_variable(value) or isinstance(value, _VIEWS)


def _leaf(known: Collection[int] | None, rule: Callable[[object], bool]) -> Callable[[object], bool]:
    """Return a rule by which what is known is a leaf as well."""
    return rule if known is None else lambda x: _is_known(x, known) or rule(x)


def _is_known(x: object, known: Collection[int]) -> bool:
    return id(x) in known and not isinstance(x, tuple)


def _is_opened(value: object) -> bool:
    return type(value) in _DICTS or _is_leaf(value)
