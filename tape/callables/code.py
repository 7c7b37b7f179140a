"""Code: the names of globals, attributes and modules in that of functions, read without running it."""

from __future__ import annotations

import dis
import functools
import re
import types

from tape.bounded import Bounded

# What changes the world outside, or depends on more of it than names say.
_REFUSED = re.compile(
    "(STORE|DELETE)_(GLOBAL|ATTR)|DELETE_DEREF|IMPORT_.*|LOAD_BUILD_CLASS|(LOAD|STORE)_NAME|LOAD_LOCALS|LOAD_CLASSDEREF"
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
                    if origin:
                        chains[origin][tuple(chain)] = None
                    origin, chain = (step.opname if step.opname in chains else ""), [step.argval]
                    if step.opname in _TAKING:
                        chains[""]["", step.argval] = None
                    self.refused = self.refused or _REFUSED.fullmatch(step.opname) is not None
                jumped_to = False
        # Names of globals and of enclosing functions, each with the attributes taken from it at once (``numpy.linalg.norm``).
        self.globals, self.free = tuple(chains["LOAD_GLOBAL"]), tuple(chains["LOAD_DEREF"])
        # Attributes taken of all values but globals.
        self.attributes = tuple(dict.fromkeys([name for kind in ("", "LOAD_DEREF") for _, *chain in chains[kind] for name in chain]))


_NAMES: Bounded[int, Names] = Bounded("names in code", 4096)


def names_of(code: types.CodeType) -> Names:
    """Return what a code object names, found once."""
    return _NAMES.cached(id(code), lambda: Names(code))


@functools.lru_cache(maxsize=4096)
def all_names(code: types.CodeType) -> tuple[str, ...]:
    """Return the names of globals and attributes in a code object and the code inside it: they are read quicker than :class:`Names`.

    What nobody can write, an import hook has put there: pytest's assertions lead to all of pytest, some seconds of looking.
    """
    inner = [all_names(c) for c in code.co_consts if isinstance(c, types.CodeType)]
    named = [c for c in code.co_consts if isinstance(c, str)] if "globals" in code.co_names else []
    return tuple(sorted({*filter(str.isidentifier, (*code.co_names, *named)), *[name for names in inner for name in names]}))


@functools.lru_cache(maxsize=4096)
def imported(code: types.CodeType) -> tuple[str, ...]:
    """Return the names of the modules that a code object imports, and the code inside it."""
    inner = [name for c in code.co_consts if isinstance(c, types.CodeType) for name in imported(c)]
    if dis.opmap["IMPORT_NAME"] not in code.co_code[::2]:
        return tuple(inner)
    return (*inner, *[step.argval for step in dis.get_instructions(code) if step.opname == "IMPORT_NAME"])
