"""Lines: where in the user's code an entry was recorded, and whose code is which."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import sysconfig
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import jax
import jaxlib

from tape import layout
from tape.bounded import Bounded

_HERE = Path(__file__).parents[1]
_FOLDERS = (_HERE, _HERE.parent / "interop", *[Path(str(module.__file__)).parent for module in (jax, jaxlib)])
LIBRARIES = tuple([f"{folder}{os.sep}" for folder in _FOLDERS])  # where files of this library and of JAX are
STANDARD = sysconfig.get_paths()["stdlib"] + os.sep  # where those of Python's library are
_BETWEEN = contextlib.__file__  # a context manager of this library runs in it, and a user's own has its frame below
FOREIGN: Bounded[str, bool] = Bounded("files", 4096)  # file of some code -> whether it is outside this library
_OF_PYTHON = sys.stdlib_module_names - {"__main__"}
LINES: set[CodeType] = set()  # functions of this library that record for others


def lines_of(code: CodeType) -> None:
    """Have a function of this library that records for others say in its local variable ``where`` which line of theirs it is at."""
    LINES.add(code)


def is_foreign(file: str) -> bool:
    """Tell whether some code is the user's: neither of this library, nor of JAX."""
    known = FOREIGN.get(file)
    if known is None:
        known = FOREIGN[file] = not file.startswith((*LIBRARIES, _BETWEEN, "<frozen"))
    return known


def user_frame(frame: FrameType | None) -> tuple[FrameType | None, int]:
    """Return the innermost frame of the user's from this one up, and how many frames it is above."""
    depth = 0
    while frame is not None and not is_foreign(frame.f_code.co_filename):
        frame = frame.f_back
        depth += 1
    return frame, depth


def user_line() -> tuple[str, int] | None:
    """File and line of the user's innermost frame, or that which a function says that records for others."""
    if layout.NATIVE is not None:
        known: tuple[str, int] | None = layout.NATIVE.line_outside(FOREIGN, LINES)
        if known is not None:
            return known
    for file in (sys._getframe().f_code.co_filename, sys._getframe(1).f_code.co_filename):
        is_foreign(file)  # so that the recorder in C knows them the next time
    frame: FrameType | None = sys._getframe(2)  # at the least entry and following; a traceback would cost a hundred times as much
    while frame is not None:
        if is_foreign(frame.f_code.co_filename):
            return (frame.f_code.co_filename, frame.f_lineno)
        if frame.f_code in LINES:
            where: tuple[str, int] | None = frame.f_locals["where"]
            return where
        frame = frame.f_back
    return None


def line_of(eqn: Any) -> tuple[str, int] | None:
    """Return the user's line that an equation of a jaxpr comes from, as far as JAX knows it."""
    for frame in getattr(getattr(eqn.source_info, "traceback", None), "frames", None) or ():
        if is_foreign(frame.file_name):
            return frame.file_name, frame.line_num
    return None


def is_of_python(kind: type) -> bool:
    """Tell whether a class belongs to Python."""
    return kind.__module__.partition(".")[0] in _OF_PYTHON


def is_standard(function: FunctionType) -> bool:
    """Tell whether a function is one of Python's library, whose globals are its own."""
    name = str(function.__globals__.get("__name__"))
    return name.partition(".")[0] in _OF_PYTHON and function.__code__.co_filename.startswith((STANDARD, "<frozen"))


def is_installed(x: Any) -> bool:
    """Tell whether a class or function belongs to Python or an installed package, which knows nothing of a user's state."""
    name = str((x.__globals__.get("__name__") if isinstance(x, FunctionType) else None) or x.__module__)
    package = name.partition(".")[0]
    return package in _OF_PYTHON or _has_come(package)


@functools.lru_cache(maxsize=4096)
def _has_come(package: str) -> bool:
    """Tell whether a package is in a folder of those that were installed: each has left a note there of what it is."""
    module = sys.modules.get(package)
    places = [*getattr(module, "__path__", ()), getattr(module, "__file__", None)]
    return places[0] is not None and any(Path(places[0]).parent.glob("*.dist-info"))
