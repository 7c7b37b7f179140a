"""NumPy's protocols: ``np.sin(v)``, ``np.concatenate([v, w])`` and ``np.add.reduce(v)`` record the counterparts in :mod:`tape.numpy`.

PyTorch's protocol refuses: ``torch.sin(v)`` is no op of the tape by itself.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np

from tape.bounded import Bounded
from tape.errors import TapeRuntimeError, TapeTypeError, saying
from tape.graph.segment import Handle
from tape.mirrored.adapters import array as array_of
from tape.mirrored.mirror import on_values, variable
from tape.mirrored.roles import roles_of
from tape.recording.record import repeating
from tape.recording.template import SEQUENCE
from tape.variables import updates

array = saying(array_of(jnp.asarray), "asarray")
_UNSUPPORTED = "has no counterpart in tape.numpy; pass .value or .detach() for a constant, or compose it of tape.numpy functions"
_WRITERS = {
    "copyto": "x[...] = values, or pass .value",
    "putmask": "tape.numpy.where(mask, values, x)",
    **{name: f"x = tape.numpy.{name}(x, ..., inplace=False)" for name in ("fill_diagonal", "place", "put", "put_along_axis")},
}
_AT = {**{name: name for name in ("add", "subtract", "multiply", "divide", "power")}, "minimum": "min", "maximum": "max"}
_LISTS = {"block", "einsum", "piecewise"}  # take lists that are not arrays
_BOUNDS = {"a_min": "min", "a_max": "max"}  # of np.clip, in JAX


def namespace(name: str) -> ModuleType:
    """Return a mirrored namespace, which stands above Variables: by its name, as NumPy's functions name their counterparts."""
    return importlib.import_module(name)


_COUNTERPARTS: Bounded[np.ufunc, Callable[..., Any]] = Bounded("ufuncs", 512)  # of those that were called


@repeating(6, known=_COUNTERPARTS)
def array_ufunc(_self: Handle, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> object:
    """Record a NumPy ufunc, or one of its methods, on Variables.

    Raises:
        TapeTypeError: it has no counterpart, or an option that arrays which cannot be written to do not have.

    """
    if method == "__call__" and not options:
        known = _COUNTERPARTS.get(ufunc)
        if known is not None and not any(x.__class__ is list or x.__class__ is tuple for x in inputs):
            return known(*inputs)
    name = sys.intern(ufunc.__name__)  # NumPy makes it anew: Python's cache of attributes would keep each of them that was looked up
    if method == "at":
        _at(name, *inputs)
        return None
    if any(x is not None for x in options.pop("out", None) or ()):
        msg = (
            f"np.{name}: a result with Variables among the operands cannot be written into out=; "
            f"take the result instead (x = np.{name}(...))"
        )
        raise TapeTypeError(msg)
    fun = getattr(namespace("tape.numpy"), name, None) or getattr(namespace("tape.scipy.special"), name, None)
    if method != "__call__":
        fun = getattr(fun, method, None)
    if fun is None:
        msg = f"np.{name}{'' if method == '__call__' else '.' + method} {_UNSUPPORTED}"
        raise TapeTypeError(msg)
    inputs = tuple([array(x) if isinstance(x, (list, tuple)) else x for x in inputs])
    if method == "__call__":
        _COUNTERPARTS[ufunc] = fun
        dtype = options.pop("dtype", None)
        if options.pop("where", True) is not True:
            msg = f"np.{name}: where= needs an array to write into; use tape.numpy.where(condition, result, other)"
            raise TapeTypeError(msg)
        if dtype is not None:
            inputs = tuple(variable(x).astype(dtype) for x in inputs)
        options.pop("casting", None)
    return fun(*inputs, **options)


def _at(name: str, target: object, index: object, *values: object) -> None:
    """Change ``target`` as ``target[index] = ...`` does."""
    what = f"np.{name}.at"
    if not isinstance(target, Handle) or name not in _AT:
        msg = f"{what}: cannot write a Variable into {type(target).__name__}; use x.at[index].{_AT.get(name, 'set')}(values)"
        raise TapeTypeError(msg)
    updates.check_writable(target, what, f"{what}(x, index, values)", f"x = x.at[index].{_AT[name]}(values)")
    updates.store(what, target, getattr(updates.AtIndex(target, index), _AT[name])(*values))


def _as_given(value: object, takes: int) -> object:
    """Make arrays of lists where NumPy takes them for arrays, and JAX does not."""
    if not takes or not isinstance(value, (list, tuple)):
        return value
    return type(value)([_as_given(x, takes=True) for x in value]) if takes == SEQUENCE else array(value)


def array_function(_self: Handle, func: Callable[..., Any], _types: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """Record a NumPy function on Variables; one without a counterpart may look at values, where no gradient is lost."""
    module = (func.__module__ or "").replace("numpy", "tape.numpy", 1)
    known = module in {"tape.numpy", "tape.numpy.linalg", "tape.numpy.fft"}
    fun = getattr(namespace(module), func.__name__, None) if known else None
    if isinstance(kwargs.get("out"), (np.ndarray, Handle)):
        msg = f"np.{func.__name__}: Variables cannot be written into out=; take the result instead"
        raise TapeTypeError(msg)
    if func.__name__ in _WRITERS:
        msg = (
            f"np.{func.__name__}: would write the values of a Variable into a NumPy array, or into a Variable; "
            f"use {_WRITERS[func.__name__]}"
        )
        raise TapeTypeError(msg)
    if fun is not None:
        if func.__name__ == "clip":
            kwargs = {_BOUNDS.get(k, k): x for k, x in kwargs.items()}
        if func.__name__ not in _LISTS:
            roles = roles_of(fun, func.__name__)
            args = tuple([_as_given(x, roles.at(i)) for i, x in enumerate(args)])
            kwargs = {k: _as_given(x, roles.names.get(k, 0)) for k, x in kwargs.items()}
        return fun(*args, **kwargs)
    return on_values(func, f"np.{func.__name__}", args, kwargs)


@classmethod  # type: ignore[misc] # as torch calls it
def torch_function(_class: type[Handle], func: Callable[..., Any], _types: object, _args: object = (), _kwargs: object = None) -> object:
    """Refuse a function of torch.

    Raises:
        TapeRuntimeError: always; a TypeError would let torch say that operands do not fit.

    """
    msg = (
        f"torch's {getattr(func, '__name__', func)} met a Variable, whose gradient torch does not know; make a tape.constant(tensor) of "
        "a tensor of data, call it through interop.torch.from_torch(f)(x), use the counterpart in tape.numpy or tape.nn, or pass "
        "torch.as_tensor(x.numpy()) for a constant"
    )
    raise TapeRuntimeError(msg)
