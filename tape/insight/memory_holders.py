"""Holders: by which names of the user's Variables are reached.

The frames of all threads are gone through, their modules' names, and what stands in containers, objects and closures.  Nothing of that is
referred to afterwards: where a frame's local names are copied for whoever asks, the copy is emptied again.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from tape.graph.lines import is_foreign
from tape.graph.segment import Handle

if TYPE_CHECKING:
    from collections.abc import Iterator

_BUDGET = 200_000  # values looked at
_DEPTH = 6  # self.trainer.history["loss"][0].grad
_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), type, types.ModuleType, types.BuiltinFunctionType, types.CodeType)
_LIBRARIES = frozenset(("jax", "jaxlib", "numpy", "builtins", "_pytest", "pluggy", "threading", "logging", "importlib"))


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
                inner += [(below, scope, x) for below, x in _inside(path, value)]
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
                    yield from [(name, scope, value) for name, value in _locals(frame) if name != "_"]
                if id(frame.f_globals) not in modules:
                    modules.add(id(frame.f_globals))
                    globals_ += [(n, "", v) for n, v in list(frame.f_globals.items()) if n != "_" and not n.startswith("__")]
            frame = frame.f_back
    yield from globals_
    yield "sys.last_value", "", getattr(sys, "last_value", None)  # what a terminal or a notebook showed the last traceback of


def _locals(frame: types.FrameType) -> list[tuple[str, Any]]:
    found = frame.f_locals
    listed = list(found.items())
    if found.__class__ is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # a copy, which the frame would keep
        found.clear()
    return listed


def _inside(path: str, value: Any) -> list[tuple[str, Any]]:
    """Return what a container, an object or a closure holds, with how to get there; no code of the user's is called."""
    kind = value.__class__
    if issubclass(kind, dict):
        return [(f"{path}[{key!r}]", x) for key, x in list(dict.items(value)) if isinstance(key, (str, int, float, tuple, bytes))]
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return [(f"{path}.{field}", x) for field, x in zip(kind._fields, tuple.__iter__(value), strict=False)]
    if issubclass(kind, (list, tuple)):
        plain = list if issubclass(kind, list) else tuple
        return [(f"{path}[{i}]", x) for i, x in enumerate(plain.__iter__(value))]
    if issubclass(kind, deque):
        return [(f"{path}[{i}]", x) for i, x in enumerate(deque.copy(value))]
    if issubclass(kind, (set, frozenset)):
        return [(f"{path}{{...}}", x) for x in list(set(value) if kind in (set, frozenset) else ())]
    if isinstance(value, types.MethodType):
        return [(f"{path}.__self__", value.__self__)]
    if isinstance(value, functools.partial):
        return [(f"{path}.func", value.func), (f"{path}.args", value.args), (f"{path}.keywords", value.keywords)]
    if isinstance(value, types.GeneratorType):
        return [] if value.gi_frame is None else [(f"{path}.{name}", x) for name, x in _locals(value.gi_frame)]
    if isinstance(value, BaseException):
        frames = [tb.tb_frame for tb in _tracebacks(value) if is_foreign(tb.tb_frame.f_code.co_filename)]
        return [(f"{path}.__traceback__: {name}", x) for frame in frames for name, x in _locals(frame) if x is not value]
    if isinstance(value, types.FunctionType):
        names, cells = value.__code__.co_freevars, value.__closure__ or ()
        found = [(f"{path}.{name}", cell) for name, cell in zip(names, cells, strict=False)]
        return [(name, content) for name, cell in found if (content := _content(cell)) is not None]
    if kind.__module__.startswith("tape.insight"):  # a Tape of Variables, and an explanation, which has one
        return [(path, x) for x in getattr(getattr(value, "_tape", value), "_outputs", ())]
    if kind.__module__.split(".", 1)[0] in _LIBRARIES or kind.__module__.startswith(("tape.graph", "tape.ops")):
        return []
    held = [(f"{path}.{name}", x) for name, x in list(getattr(value, "__dict__", {}).items())]
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            member = base.__dict__.get(name)
            if isinstance(member, types.MemberDescriptorType):
                try:
                    held.append((f"{path}.{name}", member.__get__(value, kind)))
                except AttributeError:
                    continue
    return held


def _tracebacks(error: BaseException) -> Iterator[types.TracebackType]:
    tb = error.__traceback__
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None
