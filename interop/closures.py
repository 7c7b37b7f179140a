"""Functions made inside of functions, as optax's are, for ``pickle``: by the name of the outermost one and what they close over."""

from __future__ import annotations

import inspect
import io
import pickle
import sys
import types
from typing import Any

__all__ = ["dumps"]


def dumps(value: Any) -> bytes:
    """Return the pickle of a value, functions in it that were made inside of importable ones; :func:`pickle.loads` reads it.

    The code of a function is not in it: that is looked up again, where the module is the same as it was.

    Raises:
        pickle.PicklingError: something in it is neither.

    """
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


class _Pickler(pickle.Pickler):
    """Pickles functions that have no name of their own to be imported by."""

    def reducer_override(self, value: Any) -> Any:
        """Return how a function is made anew."""
        if not isinstance(value, types.FunctionType) or _named(value.__module__, value.__qualname__) is value:
            return NotImplemented
        outer, *_ = value.__qualname__.split(".<locals>")
        path = _path(_code(value.__module__, outer), value.__code__)
        if path is None:
            msg = f"the function {value.__qualname__} of {value.__module__} cannot be found there by its name"
            raise pickle.PicklingError(msg)
        cells = None if value.__closure__ is None else tuple([_contents(cell) for cell in value.__closure__])
        made = (value.__module__, outer, path, value.__code__.co_name, value.__code__.co_freevars)
        return _made, made, (value.__defaults__, value.__kwdefaults__, cells), None, None, _fill


def _contents(cell: Any) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _named(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _code(module: str, name: str) -> Any:
    return getattr(inspect.unwrap(found) if callable(found := _named(module, name)) else None, "__code__", None)


def _path(code: Any, wanted: Any) -> tuple[int, ...] | None:
    """Return where in the constants of ``code`` another one is."""
    for i, inner in enumerate(() if code is None else code.co_consts):
        if isinstance(inner, types.CodeType):
            rest = () if inner is wanted else _path(inner, wanted)
            if rest is not None:
                return (i, *rest)
    return None


def _made(module: str, outer: str, path: tuple[int, ...], name: str, closed: tuple[str, ...]) -> Any:
    """Make a function anew, with empty cells."""
    __import__(module)
    code = _code(module, outer)
    for i in path:
        code = code.co_consts[i] if code is not None and i < len(code.co_consts) else None
    if not isinstance(code, types.CodeType) or (code.co_name, code.co_freevars) != (name, closed):
        msg = f"the function {name} in {module}.{outer} is not there any more; pickles of an Optimizer need the optax that they were made with"
        raise pickle.UnpicklingError(msg)
    return types.FunctionType(code, vars(sys.modules[module]), name, None, tuple([types.CellType() for _ in closed]))


def _fill(function: Any, state: tuple[Any, ...]) -> None:
    """Give a function its defaults and what it closes over."""
    function.__defaults__, function.__kwdefaults__, cells = state
    for cell, contents in zip(function.__closure__ or (), cells or (), strict=True):
        if contents:
            cell.cell_contents = contents[0]
