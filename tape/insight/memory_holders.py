"""Holders: by which names of the user's Variables are reached.

The frames of all threads are gone through, their modules' names, and what stands in containers, objects and closures.  Nothing of that is
referred to afterwards: where a frame's local names are copied for whoever asks, the copy is emptied again.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any, NamedTuple

from tape.graph.lines import is_foreign
from tape.graph.segment import Handle
from tape.insight.names import held_in, locals_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_BUDGET = 200_000  # values looked at
_DEPTH = 6  # self.trainer.history["loss"][0].grad
_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), type, types.ModuleType, types.BuiltinFunctionType, types.CodeType)


class Reached(NamedTuple):
    """A Variable, and how it is reached."""

    variable: Handle
    path: str
    scope: str  # the function in whose frame the path begins; "" for a module


def reached() -> Iterator[Reached]:
    """Yield the Variables that the user's names lead to, by each path, the shortest ones first."""
    seen: set[int] = set()
    level: list[tuple[str, str, Any]] = []
    modules: set[int] = set()
    for name, scope, value in _roots(modules):
        level.append((name, scope, value))
    left = _BUDGET
    for _ in range(_DEPTH):
        inner: list[tuple[str, str, Any]] = []
        for path, scope, value in level:
            left -= 1
            if left < 0:
                return
            if isinstance(value, _PLAIN):
                continue
            known = id(value) in seen
            seen.add(id(value))
            if isinstance(value, Handle):
                yield Reached(value, path, scope)
            if known:
                continue
            if isinstance(value, Handle):
                extra = value._extra
                if extra is not None and isinstance(extra.grad, Handle):
                    inner.append((f"{path}.grad", scope, extra.grad))
            else:
                inner += [(below, scope, x) for below, x in held_in(path, value, left)]
        level = inner


def _roots(modules: set[int]) -> Iterator[tuple[str, str, Any]]:
    """Yield what the names in the frames of the user's, innermost first, and in their modules stand for."""
    globals_: list[tuple[str, str, Any]] = []
    own = sys._getframe()
    for top in sys._current_frames().values():
        frame: types.FrameType | None = top
        while frame is not None:
            if frame is not own and is_foreign(frame.f_code.co_filename):
                scope = "" if frame.f_code.co_name == "<module>" else frame.f_code.co_qualname
                if frame.f_locals is not frame.f_globals:
                    yield from [(name, scope, value) for name, value in locals_of(frame) if name != "_"]
                if id(frame.f_globals) not in modules:
                    modules.add(id(frame.f_globals))
                    globals_ += [(n, "", v) for n, v in list(frame.f_globals.items()) if n != "_" and not n.startswith("__")]
            frame = frame.f_back
    yield from globals_
    yield "sys.last_value", "", getattr(sys, "last_value", None)  # what a terminal or a notebook showed the last traceback of
