"""Installed: which functions and classes belong to Python or to a package that was installed, and know nothing of a user's state."""

from __future__ import annotations

import functools
import sys
import types
from pathlib import Path
from typing import Any


def is_installed(x: Any) -> bool:
    """Tell whether a class or function belongs to Python or an installed package, which knows nothing of a user's state."""
    name = str((x.__globals__.get("__name__") if isinstance(x, types.FunctionType) else None) or x.__module__)
    package = name.partition(".")[0]
    return package in _OF_PYTHON or _has_come(package)


def is_of_python(kind: type) -> bool:
    """Tell whether a class belongs to Python."""
    return kind.__module__.partition(".")[0] in _OF_PYTHON


_OF_PYTHON = sys.stdlib_module_names - {"__main__"}


@functools.lru_cache(maxsize=4096)
def _has_come(package: str) -> bool:
    """Tell whether a package is in a folder of those that were installed: each has left a note there of what it is."""
    module = sys.modules.get(package)
    places = [*getattr(module, "__path__", ()), getattr(module, "__file__", None)]
    return places[0] is not None and any(Path(places[0]).parent.glob("*.dist-info"))
