"""Identities: a step may ask which of the Variables that it reaches an argument is (``x is self.best``, ``decay[p]``, ``state[id(p)]``).

Nobody sees that while it is traced. So where its code may ask, a trace holds for arguments in the places where they were, and in those in
which another trace gave the same program.
"""

from __future__ import annotations

import dis
import functools
import itertools
import operator
import types
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence

from tape.callables.objects import Itself
from tape.callables.reach import Edge, Path, Reach
from tape.graph.lines import is_foreign, is_installed
from tape.graph.segment import Handle, itself

_IS, _CONSTANT = dis.opmap["IS_OP"], dis.opmap["LOAD_CONST"]
_ASKING = frozenset({"id", "is_", "is_not"})


def asked(reached: Reach) -> bool:
    """Tell whether what a callable reaches may ask which Variable one is: by code, or by containers that find it by its identity."""
    return any(isinstance(key, Itself) for _, key in _keys(reached)) or any(map(_asks, _codes(reached)))


def positions(variables: Sequence[Handle], reached: Reach) -> tuple[Hashable, ...]:
    """Return for each Variable the places where it is reached, also as a key."""
    keyed: dict[int, set[Hashable]] = {}
    for name, key in _keys(reached):
        keyed.setdefault(name, set()).add(key)
    return tuple([frozenset({*[e.path for e in reached.edges.get(id(v), ())], *keyed.get(id(v), ())}) for v in variables])


def finding(reached: Reach) -> tuple[list[int], list[Edge]]:
    """Return the nodes of containers that find Variables by identity, or are empty, and by what it is seen whether they hold the same."""
    nodes: list[int] = []
    edges: list[Edge] = []
    for node, x in enumerate(reached.nodes):
        if isinstance(x, (dict, set, frozenset, list, deque)) and not x:
            nodes.append(node)
            edges.append(Edge(operator.length_hint, x, 0, (), -1, 0))
        elif node in reached.keys and any(_names_one(key, reached) for key in reached.keys[node]):
            nodes.append(node)
            edges.append(Edge(_finds_by, x, _by_identity(reached.keys[node]), (), -1, True))
    return nodes, edges


def found_by(reached: Reach) -> dict[Hashable, frozenset[Hashable]]:
    """Return, by the paths of containers that find Variables by identity, the paths of those by which they find something."""
    found: dict[Hashable, frozenset[Hashable]] = {}
    for node, keys in reached.keys.items():
        ids = [id(itself(key)) if isinstance(key, Handle) else key for key in keys]
        if paths := frozenset([reached.variables[name][1] for name in ids if name in reached.variables]):
            found[reached.path(node)] = paths
    return found


def in_several_places(reached: Reach) -> frozenset[frozenset[Path]]:
    """Return the paths of each Variable to which there are several: code may ask whether what is in two places is one."""
    return frozenset([frozenset([e.path for e in edges]) for edges in reached.edges.values() if len(edges) > 1])


def _names_one(key: Handle | int, reached: Reach) -> bool:
    return isinstance(key, Handle) or key in reached.variables


def _by_identity(keys: Iterable[object]) -> set[int]:
    """Return the ids of the Variables among keys, and the integers, which may be such ids."""
    return {id(key) if isinstance(key, Handle) else key for key in keys if isinstance(key, Handle) or type(key) is int}


def _finds_by(container: Iterable[object], keys: set[int]) -> bool:
    return _by_identity([*container]) == keys


def met(reached: Reach) -> set[int]:
    """Return the ids of all Variables that are reached, also as keys."""
    return {*reached.variables, *[name for name, _ in _keys(reached)]}


def _keys(reached: Reach) -> Iterator[tuple[int, Itself | int]]:
    """Yield the ids of what containers find something by, with that itself where it is a Variable, or the id again."""
    for keys in reached.keys.values():
        for key in keys:
            if isinstance(key, Handle):
                yield id(itself(key)), Itself(itself(key))
            else:
                yield key, key


def names(reached: Reach) -> frozenset[str]:
    """Return the names of globals, attributes and items in the user's code that is reached."""
    return frozenset(name for code in _codes(reached) for name in (*code.co_names, *code.co_consts) if isinstance(name, str))


def names_read(reached: Reach) -> frozenset[str]:
    """Return those of them that the code does more with than to assign to them: what only ``__init__`` stores decides nothing."""
    return frozenset(name for code in _codes(reached) for name in _read(code))


@functools.lru_cache(maxsize=4096)
def _read(code: types.CodeType) -> tuple[str, ...]:
    taken = [step.argval for step in dis.get_instructions(code) if not step.opname.startswith(("STORE", "DELETE"))]
    named = {*code.co_names}
    return (*{name for name in taken if isinstance(name, str) and name in named}, *[x for x in code.co_consts if isinstance(x, str)])


def doubted(reached: Reach) -> frozenset[str]:
    """Return the names of attributes of which the user's own code may ask whether they are there."""
    own = (code for x, code in _codes_of(reached) if not is_installed(x))
    return frozenset(name for code in own for name in _doubted(code))


@functools.lru_cache(maxsize=4096)
def _doubted(code: types.CodeType) -> tuple[str, ...]:
    steps = [*dis.get_instructions(code)] if "AttributeError" in code.co_names else []
    spelled = code.co_consts if not _DOUBTING.isdisjoint(code.co_names) else ()
    return (*[s.argval for s in steps if s.opname in _ATTRIBUTES], *[x for x in spelled if isinstance(x, str) and x.isidentifier()])


_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"})
_DOUBTING = frozenset({"hasattr", "getattr", "AttributeError"})


def counted(reached: Reach) -> frozenset[str]:
    """Return the names of what code asks for its length, or goes through."""
    return frozenset(name for code in _codes(reached) for name in _counted(code))


@functools.lru_cache(maxsize=4096)
def _counted(code: types.CodeType) -> tuple[str, ...]:
    names: list[str] = []
    asking, last = False, None
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_GLOBAL" and step.argval == "len":
            asking, last = True, None
        elif step.opname.startswith("LOAD"):
            last = step.argval
        elif step.opname == "GET_ITER" or "CALL" in step.opname:
            names += [last] if isinstance(last, str) and (asking or step.opname == "GET_ITER") else []
            asking, last = False, None
        elif step.opname != "CACHE":
            last = last if asking else None
    return tuple(names)


def _codes(reached: Reach) -> Iterator[types.CodeType]:
    """Yield the code of functions of the user's that are reached, with what is in it."""
    return (code for _, code in _codes_of(reached))


def _codes_of(reached: Reach) -> Iterator[tuple[types.FunctionType, types.CodeType]]:
    """Yield it with the functions."""
    seen: set[types.CodeType] = set()
    codes = [(x, x.__code__) for x in reached.nodes if isinstance(x, types.FunctionType)]
    while codes:
        function, code = codes.pop()
        if code not in seen and is_foreign(code.co_filename):
            seen.add(code)
            yield function, code
            codes += [(function, x) for x in code.co_consts if isinstance(x, types.CodeType)]


@functools.lru_cache(maxsize=4096)
def _asks(code: types.CodeType) -> bool:
    """Tell whether some code compares identities, but for those of constants such as None."""
    steps = code.co_code[::2]
    return any(this == _IS and last != _CONSTANT for last, this in itertools.pairwise(steps)) or not _ASKING.isdisjoint(code.co_names)
