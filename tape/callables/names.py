"""Names: what a code object reads from outside itself, seen in its bytecode.

A path is a name with the attributes that are taken from it at once: ``model.layers`` in ``model.layers[0](x)``.
"""

from __future__ import annotations

import dis
import re
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Names", "names_of"]

Path = tuple[str, tuple[str, ...]]

_LIMIT = 4096
# What changes the world outside, or depends on more of it than names say.
_REFUSED = re.compile(
    "STORE_GLOBAL|DELETE_GLOBAL|STORE_ATTR|DELETE_ATTR|DELETE_DEREF|IMPORT_.*|LOAD_BUILD_CLASS|LOAD_NAME|STORE_NAME|LOAD_LOCALS|LOAD_CLASSDEREF"
    "|LOAD_FROM_DICT_OR_.*|LOAD_SUPER_ATTR|MATCH_CLASS|GET_AWAITABLE|GET_AITER|GET_ANEXT"
)
_TAKES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})


class Names:
    """What one code object, with the code inside it, names.

    Attributes:
        globals: paths from global names.
        free: paths from names of enclosing functions.
        first: attributes taken at once from the first argument (of a method: the object).
        loose: attributes of any other values.
        unbound: those and the ones of the first argument, together.
        refused: whether the code does what :mod:`tape.callables.snapshot` cannot follow.
        rebinds: whether it binds the name of its first argument anew.

    """

    def __init__(self, code: types.CodeType) -> None:
        self.refused = False
        self.rebinds = False
        self._code = code  # kept alive, since it is known by its id
        self._argument = code.co_varnames[0] if code.co_argcount else None
        found: dict[str, dict[Path, None]] = {"global": {}, "free": {}, "first": {}, "local": {}}  # sets that keep their order
        self._visit(code, {}, found)
        self.globals = tuple(found["global"])
        self.free = tuple(found["free"])
        self.first = tuple([chain for _, chain in found["first"]])
        self.loose = frozenset([name for _, chain in found["local"] for name in chain])
        self.unbound = self.loose.union(*self.first)

    def _visit(self, code: types.CodeType, enclosing: dict[str, str], found: dict[str, dict[Path, None]]) -> None:
        """Go through a code object; ``enclosing`` says what the names of enclosing functions are: "free", "first" or "local"."""
        outermost = code is self._code
        scope = {name: "free" if outermost else enclosing.get(name, "local") for name in code.co_freevars}
        scope.update(dict.fromkeys(code.co_cellvars, "local"))
        if outermost and self._argument is not None:
            scope[self._argument] = "first"
        steps = [s for s in dis.get_instructions(code) if s.opname != "EXTENDED_ARG"]
        for i, step in enumerate(steps):
            if _REFUSED.fullmatch(step.opname):
                self.refused = True
            elif step.opname in _TAKES:
                if not _continues(steps, i):
                    found["local"]["", (step.argval,)] = None
            elif step.opname == "LOAD_GLOBAL":
                found["global"][step.argval, _attributes(steps, i + 1)] = None
            elif step.opname.endswith("_DEREF") or "_FAST" in step.opname:
                for name, kind, chain in _accesses(steps, i):
                    origin = scope.get(name, "local")
                    if origin == "first" and kind != "LOAD":
                        self.rebinds = True
                    found[origin][name, chain] = None
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._visit(constant, scope, found)


def _accesses(steps: list[dis.Instruction], i: int) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Split an instruction on variables, which may combine two, into names, what is done, and the attributes taken of the last one."""
    step = steps[i]
    names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
    kinds = re.findall("LOAD|STORE|DELETE", step.opname)
    for j, (name, kind) in enumerate(zip(names, kinds, strict=False)):
        yield name, kind, _attributes(steps, i + 1) if kind == "LOAD" and j == len(names) - 1 else ()


def _attributes(steps: list[dis.Instruction], start: int) -> tuple[str, ...]:
    """Return the attributes taken one after the other from here on."""
    found = []
    for step in steps[start:]:
        if step.opname not in _TAKES or step.is_jump_target:  # what is jumped to takes them of something else as well
            break
        found.append(step.argval)
    return tuple(found)


def _continues(steps: list[dis.Instruction], i: int) -> bool:
    """Tell whether the attribute taken by instruction ``i`` belongs to the path of a name."""
    while i and steps[i].opname in _TAKES and not steps[i].is_jump_target:
        i -= 1
    name = steps[i].opname
    return name not in _TAKES and (name == "LOAD_GLOBAL" or ("LOAD" in name and (name.endswith("_DEREF") or "_FAST" in name)))


_KNOWN: dict[int, Names] = {}


def names_of(code: types.CodeType) -> Names:
    """Return what a code object names, found once."""
    found = _KNOWN.get(id(code))
    if found is None:
        if len(_KNOWN) > _LIMIT:
            _KNOWN.clear()
        found = _KNOWN[id(code)] = Names(code)
    return found
