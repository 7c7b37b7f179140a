"""What to write for a name that other libraries have: a method that a Variable lacks, or a function that a namespace lacks."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from tape.errors import TapeAttributeError
from tape.mirrored.spellings import DRAWN, IN_PLACE, METHODS, NAMED, RENAMED

_NAMESPACES = ("numpy", "nn", "numpy.linalg", "lax", "scipy.special", "random")  # below jax; some are imported only when they are asked
_SECOND = {"b", "x2", "y"}  # names of a function's second operand


def missing(found: object, name: str) -> AttributeError:
    """Return the error for an attribute that an object of this library, a Variable most often, does not have."""
    kind = type(found).__name__
    repair = None if name.startswith("_") else NAMED[kind].get(name) if kind in NAMED else _repair(name)
    return _error(f"'{kind}' object has no attribute {name!r}", repair, name, found)


def missing_function(module: str, name: str) -> AttributeError:
    """Return the error for a name that a mirrored namespace does not have."""
    repair = NAMED.get(module, {}).get(name)
    if repair is None and not name.startswith("_"):
        spelled = METHODS.get(name, "")
        function = RENAMED.get(name) or (spelled[5:].partition("(")[0] if spelled.startswith("tape.") else None) or _elsewhere(name)
        repair = None if function is None or f"tape.{function}" == f"{module}.{name}" else f"tape.{function}"
    return _error(f"module {module!r} has no attribute {name!r}", repair, name, sys.modules.get(module))


def _error(msg: str, repair: str | None, name: str, where: object) -> AttributeError:
    error = TapeAttributeError(msg if repair is None else f"{msg}; use {repair}")
    error.name, error.obj = name, where
    return error


def _repair(name: str) -> str | None:
    if name in METHODS:
        return METHODS[name]
    if name in DRAWN:
        return f"variable.value = tape.random.{DRAWN[name]}"
    stem = name.removesuffix("_")
    if stem != name and (stem in dir(jnp) or stem in IN_PLACE or _repair(stem) is not None):
        repair = "an augmented assignment (variable += ... under tape.no_grad() for a leaf that requires grad), or variable.value = ..."
        return f"x.zero_grad() for the gradient of x, {repair}" if stem == "zero" else repair
    function = _elsewhere(name)
    return None if function is None else f"tape.{function}({', '.join(['variable', *_further(_attribute_at(function))])})"


def _elsewhere(name: str) -> str | None:
    """Return the function of a namespace that has this name."""
    for where in _NAMESPACES:
        function = _attribute_at(f"{where}.{name}")
        if callable(function) and not isinstance(function, type):
            return f"{where}.{name}"
    return None


def _attribute_at(path: str) -> Any:
    where, _, name = path.rpartition(".")
    return getattr(importlib.import_module(f"jax.{where}"), name, None)


def _further(function: Callable[..., Any]) -> list[str]:
    """Return names for the arguments that a function needs behind the first."""
    if isinstance(function, jnp.ufunc):
        return ["other"] * (function.nin - 1)
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # the type of an argument, say
        return []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p.name for p in parameters if p.kind in positional and p.default is p.empty]
    return ["other" if name in _SECOND else name for name in needed[1:]]
