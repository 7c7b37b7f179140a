"""NumPy's protocols: ``np.sin(v)``, ``np.concatenate([v, w])`` and ``np.add.reduce(v)`` record the counterparts in :mod:`tape.numpy`."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

import jax.numpy as jnp
import numpy as np

from tape.errors import TapeTypeError, saying
from tape.graph.segment import Handle
from tape.mirrored.adapters import array as array_of
from tape.mirrored.mirror import on_values, variable
from tape.variables import updates

__all__ = ["array_function", "array_ufunc"]


array = saying(array_of(jnp.asarray), "asarray")
_UNSUPPORTED = "has no counterpart in tape.numpy; pass .value or .detach() for a constant, or compose it of tape.numpy functions"


_WRITERS = {"copyto": "x[...] = values, or pass .value", "putmask": "tape.numpy.where(mask, values, x)"}


def _named(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name, None)


def array_ufunc(_self: Any, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
    """Record a NumPy ufunc, or one of its methods, on Variables.

    Raises:
        TapeTypeError: it has no counterpart, or an option that arrays which cannot be written to do not have.

    """
    name = ufunc.__name__
    if method == "at":
        return _at(name, *inputs)
    if any(x is not None for x in options.pop("out", None) or ()):
        msg = f"np.{name}: a result with Variables among the operands cannot be written into out=; take the result instead (x = np.{name}(...))"
        raise TapeTypeError(msg)
    fun = _named("tape.numpy", name) or _named("tape.scipy.special", name)
    if method != "__call__":
        fun = getattr(fun, method, None)
    if fun is None:
        msg = f"np.{name}{'' if method == '__call__' else '.' + method} {_UNSUPPORTED}"
        raise TapeTypeError(msg)
    inputs = tuple([array(x) if isinstance(x, (list, tuple)) else x for x in inputs])
    if method == "__call__":
        dtype = options.pop("dtype", None)
        if options.pop("where", True) is not True:
            msg = f"np.{name}: where= needs an array to write into; use tape.numpy.where(condition, result, other)"
            raise TapeTypeError(msg)
        if dtype is not None:
            inputs = tuple(variable(x).astype(dtype) for x in inputs)
        options.pop("casting", None)
    return fun(*inputs, **options)


def _at(name: str, target: Any, index: Any, *values: Any) -> None:
    """Change ``target`` as ``target[index] = ...`` does."""
    methods = {
        "add": "add",
        "subtract": "subtract",
        "multiply": "multiply",
        "divide": "divide",
        "power": "power",
        "minimum": "min",
        "maximum": "max",
    }
    if not isinstance(target, Handle) or name not in methods:
        msg = f"np.{name}.at: cannot write a Variable into {type(target).__name__}; use x.at[index].{methods.get(name, 'set')}(values)"
        raise TapeTypeError(msg)
    what = f"np.{name}.at"
    updates.check_writable(target, what, f"{what}(x, index, values)", f"x = x.at[index].{methods[name]}(values)")
    updates.store(what, target, getattr(updates.At(target)[index], methods[name])(*values))


def _given(fun: Any, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    """Make arrays of lists where NumPy takes them for arrays, and JAX does not."""
    positions, rest, names = _arrays(fun)
    takes = [*positions, *[rest] * len(args)]
    return [_as_given(x, t) for x, t in zip(args, takes, strict=False)], {k: _as_given(x, names.get(k)) for k, x in kwargs.items()}


def _as_given(value: Any, takes: str | None) -> Any:
    if takes is None or not isinstance(value, (list, tuple)):
        return value
    return array(value) if takes == "array" else type(value)([_as_given(x, "array") for x in value])


@functools.cache
def _arrays(fun: Any) -> tuple[list[str | None], str | None, dict[str, str | None]]:
    """Return which parameters of a function take an array or arrays: those with a position, the rest of them, and all by name."""
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = {p.name: _takes(p) for p in parameters}
    positions = [names[p.name] for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return positions, next((names[p.name] for p in parameters if p.kind is p.VAR_POSITIONAL), None), names


def _takes(parameter: inspect.Parameter) -> str | None:
    """Tell whether a parameter takes an array, arrays in a sequence, or anything else; einsum's may be lists of axes."""
    if parameter.annotation is parameter.empty:
        return "array" if parameter.default in (parameter.empty, None) and parameter.name not in {"subscripts", "operands"} else None
    annotation = str(parameter.annotation)
    if "list[" in annotation or not ("ArrayLike" in annotation or "numpy.ndarray" in annotation):
        return None
    return "arrays" if "Sequence" in annotation else "array"


def array_function(_self: Any, func: Any, _types: Any, args: Any, kwargs: Any) -> Any:
    """Record a NumPy function on Variables; one without a counterpart may look at values, where no gradient is lost."""
    module = (func.__module__ or "").replace("numpy", "tape.numpy", 1)
    fun = _named(module, func.__name__) if module in {"tape.numpy", "tape.numpy.linalg", "tape.numpy.fft"} else None
    if isinstance(kwargs.get("out"), (np.ndarray, Handle)):
        msg = f"np.{func.__name__}: Variables cannot be written into out=; take the result instead"
        raise TapeTypeError(msg)
    if fun is not None:
        args, kwargs = _given(fun, args, kwargs)
        return fun(*args, **kwargs)
    if func.__name__ in _WRITERS:
        msg = f"np.{func.__name__}: would write the values of a Variable into a NumPy array, or into a Variable; use {_WRITERS[func.__name__]}"
        raise TapeTypeError(msg)
    return on_values(func, f"np.{func.__name__}", args, kwargs)
