"""Bridges between the tape and JAX, and to the libraries around it; a framework is imported only when its module is."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from interop.arrival import expect
from interop.export import export
from interop.lift import lift
from interop.lower import lower
from interop.saving import load, save
from tape.errors import TapeAttributeError

__all__ = ["export", "lift", "load", "lower", "save"]

_MODULES = frozenset(m.name for m in pkgutil.iter_modules(__path__)) - frozenset(__all__)  # imported at their first use

expect("einops", "interop.einops")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"interop.{name}")
    msg = f"module 'interop' has no attribute {name!r}"
    raise TapeAttributeError(msg)


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, *[name for name in globals() if name.startswith("__")]})
