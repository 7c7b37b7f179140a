"""Names: what the user calls a Variable that has none, as far as that can be seen from where it is used."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from tape.graph.segment import Handle

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType

_BUDGET = 4000  # values looked at
_DEPTH = 4  # params["layers"][0].weight
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
            elif not isinstance(value, _CLOSED) and id(value) not in seen and depth + 1 < _DEPTH:
                seen.add(id(value))
                inner += _inside(path, value)
        level = inner


def _inside(path: str, value: object) -> list[tuple[str, Any]]:
    """Return what a container or object holds, with how to get there; no code of the user's is called."""
    if value.__class__ is dict:
        return [(f"{path}[{key!r}]", x) for key, x in list(value.items())[:_BUDGET]]
    if value.__class__ in (list, tuple):
        return [(f"{path}[{i}]", x) for i, x in enumerate(value[:_BUDGET])]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f"{path}.{field}", x) for field, x in zip(value._fields, value, strict=False)]
    held = getattr(value, "__dict__", None) if not _library(value) else None
    return [(f"{path}.{key}", x) for key, x in list(held.items())[:_BUDGET]] if held.__class__ is dict else []


def _library(value: object) -> bool:
    return type(value).__module__.split(".", 1)[0] in ("jax", "jaxlib", "numpy", "tape", "builtins", "_pytest", "pytest")
