"""SciPy, recorded where it meets Variables: the modules that HIPS autograd has."""

from __future__ import annotations

import importlib
from typing import Any

from tape.errors import TapeAttributeError

_MODULES = ("integrate", "linalg", "misc", "signal", "special", "stats")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"interop.autograd.scipy.{name}")
    msg = f"module 'interop.autograd.scipy' has no attribute {name!r}"
    raise TapeAttributeError(msg)
