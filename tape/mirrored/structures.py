"""Mirrored classes: objects of JAX that hold arrays (a rotation, a density estimate, an interpolator), holding Variables instead."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from tape.mirrored.mirror import call
from tape.recording.template import Structured

MIRRORED_CLASSES = frozenset({"RegularGridInterpolator", "Rotation", "Slerp", "gaussian_kde"})
_MADE: dict[type, type] = {}


class _Mirrored(Structured):
    """Base of the mirrored classes; ``inner`` is the JAX object (or its attributes) with Variables in place of arrays."""

    __slots__ = ()

    source: ClassVar[type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        inner = self.inner
        return inner[name] if type(inner) is dict else getattr(inner, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"


def _is_tree(source: type) -> bool:
    """Say whether JAX can take objects of the class apart."""
    return hasattr(source, "_fields") or hasattr(source, "tree_flatten")


def _restored(source: type, inner: object) -> Any:
    if _is_tree(source):
        return inner
    restored: Any = object.__new__(source)
    restored.__dict__.update(inner)
    return restored


def _constructor(source: type) -> Callable[..., None]:
    @functools.wraps(source)
    def construct(*args: object, **kwargs: object) -> object:
        instance = source(*args, **kwargs)
        return instance if _is_tree(source) else vars(instance)

    def __init__(self: Any, *args: object, **kwargs: object) -> None:  # noqa: N807 - it becomes one
        self.inner = call(construct, source.__name__, args, kwargs)

    return __init__


def _on_inner(source: type, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(self: object, *args: object, **kwargs: object) -> object:
        return original(_restored(source, self), *args, **kwargs)

    return run


def _recorded(source: type, original: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that records ``run``, whose result may be an object of a mirrored class."""

    @functools.wraps(original)
    def method(*args: object, **kwargs: object) -> object:
        result = call(run, f"{source.__name__}.{original.__name__}", args, kwargs)
        kind = _MADE.get(type(result))
        if kind is None:
            return result
        mirror: Any = object.__new__(kind)
        mirror.inner = result
        return mirror

    return method


def mirrored_class(source: type, module: str) -> type:
    """Return the recording counterpart of a class of JAX."""
    body: dict[str, Any] = {
        "__doc__": source.__doc__,
        "__module__": module,
        "__slots__": (),
        "__init__": _constructor(source),
        "__signature__": inspect.signature(source),
        "source": source,
    }
    special = {"__call__", "__getitem__", "__mul__"}
    for name, value in vars(source).items():
        if (name.startswith("_") and name not in special) or name in {"tree_flatten", "tree_unflatten"}:
            continue
        if isinstance(value, classmethod):
            maker = getattr(source, name)
            body[name] = staticmethod(_recorded(source, maker, maker))
        elif callable(value):
            body[name] = _recorded(source, value, _on_inner(source, value))
    if "__len__" in vars(source):
        body["__len__"] = lambda self: len(_restored(source, self.inner))
    mirror = _MADE[source] = type(source.__name__, (_Mirrored,), body)
    return mirror
