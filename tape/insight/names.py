"""Names: by which of the user's names Variables are reached, in one frame or in all; what containers, objects and closures hold."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import traceback
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

from tape.callables.objects import MISSING, attributes, in_cell
from tape.graph.lines import is_foreign
from tape.graph.segment import Handle

_LIBRARIES = frozenset(("jax", "jaxlib", "numpy", "builtins", "_pytest", "pytest", "pluggy", "threading", "logging", "importlib"))
_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), type, types.ModuleType, types.BuiltinFunctionType, types.CodeType)


class Reached(NamedTuple):
    """A Variable, and how it is reached."""

    variable: Handle
    path: str  # params["layers"][0].weight
    scope: str  # the function in whose frame the path begins; "" for a module


Start = tuple[str, str, Any]  # a path, its scope, and what it leads to


def name_of(variable: Handle, frames: Iterable[FrameType | None]) -> str | None:
    """Return what a Variable is called in the first of some frames that knows it: ``w``, ``params['w']``, ``self.w``."""
    for frame in frames:
        if frame is not None:
            for path, value in walk(frame):
                if value is variable:
                    return path
    return None


def walk(frame: FrameType) -> Iterator[tuple[str, Handle]]:
    """Yield the Variables that the names of a frame lead to, the nearest ones first."""
    names = list(frame.f_locals.items())
    if frame.f_locals is not frame.f_globals:
        names += frame.f_globals.items()
    for variable, path, _ in _led_to([(name, "", value) for name, value in names], 4000, 4, _is_data):
        if not (path == "_" or path.startswith("__")):
            yield path, variable
            extra = variable._extra
            if extra is not None and isinstance(extra.grad, Handle):
                yield f"{extra.name or path}.grad", extra.grad


def reached() -> Iterator[Reached]:
    """Yield the Variables that the user's names lead to, by each path, the shortest ones first.

    The frames of all threads are gone through, their modules' names, and what stands in containers, objects and closures.  Nothing of that
    is referred to afterwards: where a frame's local names are copied for whoever asks, the copy is emptied again.
    """
    yield from _led_to(list(_in_all_frames()), 200_000, 6, lambda _: True)


def _led_to(level: list[Start], budget: int, depth: int, open_to: Callable[[object], bool]) -> Iterator[Reached]:
    """Yield the Variables that some names lead to in so many steps, looking at so many values, in those to which it is ``open_to``."""
    seen: set[int] = set()
    for _ in range(depth):
        inner: list[Start] = []
        for path, scope, value in level:
            budget -= 1
            if budget < 0:
                return
            if isinstance(value, _PLAIN):
                continue
            known = id(value) in seen
            seen.add(id(value))
            if isinstance(value, Handle):
                yield Reached(value, path, scope)
            if not known and open_to(value):
                inner += [(below, scope, x) for below, x in held_in(path, value, budget)]
        level = inner


def _is_data(value: object) -> bool:
    """Tell whether the names of Variables lead through a value: not through functions, and through nothing of the tape's."""
    return not (isinstance(value, (types.FunctionType, Handle)) or type(value).__module__.startswith("tape."))


def _in_all_frames() -> Iterator[Start]:
    """Yield what the names in the frames of the user's, innermost first, and in their modules stand for."""
    globals_: list[Start] = []
    modules: set[int] = set()
    own = sys._getframe()
    for top in sys._current_frames().values():
        frame: FrameType | None = top
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


_UNSHARED = 3  # references to a copy that locals() has handed out to nobody: the frame's, the name's here, and the argument's


def locals_of(frame: types.FrameType) -> list[tuple[str, Any]]:
    """Return the local names of a frame with their values."""
    namespace = frame.f_locals
    listed = list(namespace.items())
    copied = namespace.__class__ is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if copied and sys.getrefcount(namespace) <= _UNSHARED:  # the frame would keep it
        namespace.clear()
    return listed


def held_in(path: str, value: Any, most: int) -> list[tuple[str, Any]]:
    """Return what a container (so many of its items), object, closure or Variable holds, and how to get there; no code of it runs."""
    kind = value.__class__
    if issubclass(kind, Handle):
        return [(f"{path}.grad", value._extra.grad)] if value._extra is not None and isinstance(value._extra.grad, Handle) else []
    if issubclass(kind, dict):
        return [(f"{path}[{key!r}]", x) for key, x in list(dict.items(value))[:most] if isinstance(key, (str, int, float, tuple, bytes))]
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return [(f"{path}.{field}", x) for field, x in zip(kind._fields, tuple.__iter__(value), strict=False)]
    if issubclass(kind, (list, tuple)):
        plain = list if issubclass(kind, list) else tuple
        return [(f"{path}[{i}]", x) for i, x in enumerate(plain.__getitem__(value, slice(most)))]
    if issubclass(kind, deque):
        return [(f"{path}[{i}]", x) for i, x in enumerate(itertools.islice(deque.copy(value), most))]
    if issubclass(kind, (set, frozenset)):
        return [(f"{path}{{...}}", x) for x in list(set(value) if kind in (set, frozenset) else ())]
    if isinstance(value, types.MethodType):
        return [(f"{path}.__self__", value.__self__)]
    if isinstance(value, functools.partial):
        return [(f"{path}.func", value.func), (f"{path}.args", value.args), (f"{path}.keywords", value.keywords)]
    if isinstance(value, types.GeneratorType):
        return [] if value.gi_frame is None else [(f"{path}.{name}", x) for name, x in locals_of(value.gi_frame)]
    if isinstance(value, BaseException):
        frames = [frame for frame, _ in traceback.walk_tb(value.__traceback__) if is_foreign(frame.f_code.co_filename)]
        return [(f"{path}.__traceback__: {name}", x) for frame in frames for name, x in locals_of(frame) if x is not value]
    if isinstance(value, types.FunctionType):
        names, cells = value.__code__.co_freevars, value.__closure__ or ()
        closed_over = [(f"{path}.{name}", cell) for name, cell in zip(names, cells, strict=False)]
        return [(name, content) for name, cell in closed_over if (content := in_cell(cell)) is not MISSING]
    if kind.__module__.startswith("tape.insight"):  # a Tape of Variables, and an explanation, which has one
        return [(path, x) for x in getattr(getattr(value, "_tape", value), "_outputs", ())]
    if kind.__module__.split(".", 1)[0] in _LIBRARIES or kind.__module__.startswith(("tape.graph", "tape.ops")):
        return []
    return [(f"{path}.{name}", x) for name, x in attributes(value).items()]
