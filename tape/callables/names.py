"""Names: which globals a code object reads, and which attributes it takes of any value."""

from __future__ import annotations

import dis
import re
import types
from typing import Any

__all__ = ["Names", "names_of"]

_LIMIT = 4096
# What changes the world outside, or depends on more of it than names say.
_REFUSED = re.compile(
    "STORE_GLOBAL|DELETE_GLOBAL|STORE_ATTR|DELETE_ATTR|DELETE_DEREF|IMPORT_.*|LOAD_BUILD_CLASS|LOAD_NAME|STORE_NAME|LOAD_LOCALS|LOAD_CLASSDEREF"
    "|LOAD_FROM_DICT_OR_.*|LOAD_SUPER_ATTR|MATCH_CLASS|GET_AWAITABLE|GET_AITER|GET_ANEXT"
)

Paths = tuple[tuple[str, tuple[str, ...]], ...]


class Names:
    """What one code object, with the code inside it, names.

    Attributes:
        globals: global names, each with the attributes taken from it at once (``numpy.linalg.norm``).
        free: the same of names of enclosing functions, also of those inside this one.
        attributes: attributes of all values but globals.
        refused: whether the code does what :mod:`tape.callables.snapshot` cannot follow.

    """

    def __init__(self, code: types.CodeType) -> None:
        self._code = code  # kept alive, since it is known by its id
        self.refused = False
        self._attributes: dict[str, None] = {}  # sets that keep their order
        self._paths: dict[str, dict[Any, None]] = {"LOAD_GLOBAL": {}, "LOAD_DEREF": {}}
        self._visit(code)
        self.globals: Paths = tuple(self._paths["LOAD_GLOBAL"])
        self.free: Paths = tuple(self._paths["LOAD_DEREF"])
        self.attributes = tuple(dict.fromkeys([*self._attributes, *[name for _, chain in self.free for name in chain]]))

    def _visit(self, code: types.CodeType) -> None:
        origin, chain = "", [""]  # the instruction that a path begins with, and its names
        target = False
        for step in dis.get_instructions(code):
            target = target or step.is_jump_target
            if step.opname == "EXTENDED_ARG":
                continue
            if (
                step.opname in {"LOAD_ATTR", "LOAD_METHOD"} and origin and not target
            ):  # what is jumped to takes them of something else as well
                chain.append(step.argval)
            else:
                if origin:
                    self._paths[origin][chain[0], tuple(chain[1:])] = None
                origin, chain = (step.opname, [step.argval]) if step.opname in self._paths else ("", [])
                if step.opname in {"LOAD_ATTR", "LOAD_METHOD"}:
                    self._attributes[step.argval] = None
                self.refused = self.refused or _REFUSED.fullmatch(step.opname) is not None
            target = False
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._visit(constant)


_KNOWN: dict[int, Names] = {}


def names_of(code: types.CodeType) -> Names:
    """Return what a code object names, found once."""
    names = _KNOWN.get(id(code))
    if names is None:
        if len(_KNOWN) > _LIMIT:
            _KNOWN.clear()
        names = _KNOWN[id(code)] = Names(code)
    return names
