"""Names: what the user calls a Variable that has none, as far as it can be seen where it is used; what containers and objects hold."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import types
from collections import deque
from typing import TYPE_CHECKING, Any

from tape.callables.objects import MISSING, attributes, in_cell
from tape.graph.lines import is_foreign
from tape.graph.segment import Handle

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType

_BUDGET = 4000  # values looked at
_DEPTH = 4  # params["layers"][0].weight
_LIBRARIES = frozenset(("jax", "jaxlib", "numpy", "builtins", "_pytest", "pytest", "pluggy", "threading", "logging", "importlib"))
_CLOSED = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)


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
    level: list[tuple[str, Any]] = list(frame.f_locals.items())
    if frame.f_locals is not frame.f_globals:
        level += frame.f_globals.items()
    seen: set[int] = set()
    left = _BUDGET
    for depth in range(_DEPTH):
        inner: list[tuple[str, Any]] = []
        for path, value in level:
            left -= 1
            if left < 0:
                return
            if isinstance(value, Handle):
                if not (path == "_" or path.startswith("__")):
                    yield path, value
                    grad = None if value._extra is None else value._extra.grad
                    if isinstance(grad, Handle):
                        yield f"{value._extra.name or path}.grad", grad  # type: ignore[union-attr]
            elif not (isinstance(value, _CLOSED) or type(value).__module__.startswith("tape.") or id(value) in seen or depth + 1 == _DEPTH):
                seen.add(id(value))
                inner += held_in(path, value, _BUDGET)
        level = inner


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
    """Return what a container (so many of its items), an object or a closure holds, and how to get there; no code of the user's runs."""
    kind = value.__class__
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
        frames = [tb.tb_frame for tb in _tracebacks(value) if is_foreign(tb.tb_frame.f_code.co_filename)]
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


def _tracebacks(error: BaseException) -> Iterator[types.TracebackType]:
    tb = error.__traceback__
    while tb is not None:
        yield tb
        tb = tb.tb_next
