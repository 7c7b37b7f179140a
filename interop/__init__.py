"""Bridges between the tape and JAX, and to the libraries around it; a framework is imported only when its module is."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from interop.arrival import expect
from interop.export import export
from interop.lift import lift
from interop.lower import lower
from interop.saving import load, save
from tape.mirrored.absent import missing_function

if TYPE_CHECKING:  # they are imported at their first use
    from interop import autograd as autograd
    from interop import einops as einops
    from interop import equinox as equinox
    from interop import linen as linen
    from interop import nnx as nnx
    from interop import optax as optax
    from interop import orbax as orbax
    from interop import safetensors as safetensors
    from interop import scipy as scipy
    from interop import torch as torch

__all__ = ["export", "lift", "load", "lower", "save"]

_MODULES = frozenset(m.name for m in pkgutil.iter_modules(__path__)) - frozenset(__all__)  # imported at their first use

expect("einops", "interop.einops")


if not TYPE_CHECKING:  # which would take every name for one that is there

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f"interop.{name}")
        raise missing_function("interop", name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, *[name for name in globals() if name.startswith("__")]})
