"""Which functions the command means, and which arguments they are called with."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import pathlib
import sys
import typing
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tape.errors import TapeTypeError, TapeValueError

UNKNOWN_SHAPE = (3,)  # of arrays whose annotation says nothing of a shape
SIZES = (2, 3, 4, 5, 6)  # of the named axes of an annotation, in the order of their first use
NEEDED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def find(spec: str) -> Callable[..., Any]:
    """Return the function that ``spec`` names: ``package.module:function``, ``package.module:Class.method`` or ``file.py:function``."""
    place, colon, path = spec.rpartition(":")
    if not (place and colon and path):
        msg = f"{spec!r} names no function; write package.module:function or file.py:function"
        raise TapeValueError(msg)
    target: Any = _module(place)
    for name in path.split("."):
        if not hasattr(target, name):
            msg = f"{place} has no {path!r}: {getattr(target, '__name__', target)!r} has no attribute {name!r}"
            raise TapeValueError(msg)
        target = getattr(target, name)
    if not callable(target):
        msg = f"{spec} is of type {type(target).__name__}, which cannot be called; name a function"
        raise TapeTypeError(msg)
    return typing.cast("Callable[..., Any]", target)


def _module(place: str) -> Any:
    """Import a module by its name, or from its file."""
    path = pathlib.Path(place)
    try:
        if path.suffix != ".py":
            return importlib.import_module(place)
        sys.path.insert(0, str(path.parent))  # as Python does for a script: a file may import its neighbours
        return importlib.import_module(path.stem)
    except Exception as error:
        msg = f"{place} cannot be imported: {type(error).__name__}: {error}"
        raise TapeValueError(msg) from error


@dataclasses.dataclass(slots=True)
class Drawing:
    """How arguments are drawn: their dtype, the interval of their values (normally distributed without one) and a seed."""

    dtype: str = "float32"
    between: tuple[float, float] | None = None
    seed: int = 0
    _random: np.random.Generator = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def array(self, shape: Sequence[int], dtype: Any = None) -> Any:
        """Return an array of ``shape``."""
        dtype = jnp.dtype(dtype or self.dtype)
        if jnp.issubdtype(dtype, jnp.integer):
            return jnp.asarray(self._random.integers(0, 3, shape), dtype)
        if jnp.issubdtype(dtype, jnp.bool_):
            return jnp.asarray(self._random.integers(0, 2, shape), dtype)
        values = self._values(shape)
        if jnp.issubdtype(dtype, jnp.complexfloating):
            values = values + 1j * self._values(shape)
        return jnp.asarray(values, dtype)

    def _values(self, shape: Sequence[int]) -> Any:
        return self._random.normal(size=shape) if self.between is None else self._random.uniform(*self.between, shape)

    def evaluate(self, text: str) -> Any:
        """Return the value of a Python expression in which ``np``, ``jnp``, ``jax`` and ``array(shape)`` are known."""
        try:
            return eval(text, {"np": np, "jnp": jnp, "jax": jax, "math": math, "array": self.array})  # noqa: S307 - the user's own command line
        except Exception as error:
            msg = f"--arg {text!r} cannot be evaluated: {type(error).__name__}: {error}"
            raise TapeValueError(msg) from error


def arguments(fun: Callable[..., Any], given: Sequence[tuple[str, str]], drawing: Drawing) -> list[Any]:
    """Return the arguments for ``fun``: those that the command line gives (``("shape", "3,4")`` or ``("arg", "2.0")``), in order.

    Without any, they are found from the function's annotations and defaults.
    """
    if not given:
        return _discovered(fun, drawing)
    return [drawing.array(_shape(text)) if kind == "shape" else drawing.evaluate(text) for kind, text in given]


def _shape(text: str) -> tuple[int, ...]:
    """Return the shape that ``3,4`` (or ``()``, or nothing) stands for."""
    sizes = [part.strip() for part in text.strip().strip("()").split(",") if part.strip()]
    if not all(part.isdigit() for part in sizes):
        msg = f"--shape {text!r} is not a shape; write for instance --shape 3,4, and --shape '()' for a scalar"
        raise TapeValueError(msg)
    return tuple(map(int, sizes))


def _discovered(fun: Callable[..., Any], drawing: Drawing) -> list[Any]:
    """Draw arguments from the signature of ``fun``."""
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError) as error:
        msg = f"{_name(fun)} has no signature to read arguments from; give --shape or --arg for each"
        raise TapeValueError(msg) from error
    try:
        hints = typing.get_type_hints(fun)
    except Exception:  # noqa: BLE001 - annotations may name what is not there at run time
        hints = dict(getattr(fun, "__annotations__", {}))
    sizes: dict[str, int] = {}
    strategies = []
    for parameter in parameters:
        if parameter.kind not in NEEDED:
            continue
        default = parameter.default
        if default is not inspect.Parameter.empty:
            if not isinstance(default, (jax.Array, np.ndarray)):
                break  # this one and all that follow stay at their defaults
            strategies.append(default)
            continue
        if parameter.name not in hints:
            msg = (
                f"{_name(fun)}: nothing says what its argument {parameter.name!r} is; "
                "give --shape 3,4 or --arg EXPRESSION for each argument, or annotate it"
            )
            raise TapeValueError(msg)
        strategies.append(_annotated(parameter.name, hints[parameter.name], drawing, sizes, fun))
    return strategies


def _annotated(name: str, hint: Any, drawing: Drawing, sizes: dict[str, int], fun: Callable[..., Any]) -> Any:
    """Draw an argument that is annotated with ``hint``."""
    text = hint if isinstance(hint, str) else getattr(hint, "__name__", "") if isinstance(hint, type) else str(hint)
    if hasattr(hint, "dim_str"):  # jaxtyping's Float[Array, "batch channels"]
        return drawing.array(_named_shape(hint.dim_str, sizes), _dtype_of(hint, drawing))
    if hint is float or text == "float":
        return float(drawing.array(()))
    if hint is complex or text == "complex":
        return complex(drawing.array((), "complex64"))
    if hint is int or text == "int":
        return 2
    if hint is bool or text == "bool":
        return True
    if any(word in text for word in ("Array", "ndarray", "Variable")):
        return drawing.array(UNKNOWN_SHAPE)
    msg = f"{_name(fun)}: no argument {name!r} can be drawn from the annotation {text!r}; give --shape or --arg for each argument"
    raise TapeValueError(msg)


def _named_shape(text: str, sizes: dict[str, int]) -> tuple[int, ...]:
    """Return a shape for the axes that an annotation names: equal names have equal sizes."""
    shape = []
    for word in text.split():
        axis = word.lstrip("#*?").split("=")[-1]
        if axis in {"...", "_", ""}:
            continue
        shape.append(int(axis) if axis.isdigit() else sizes.setdefault(axis, SIZES[len(sizes) % len(SIZES)]))
    return tuple(shape)


def _dtype_of(hint: Any, drawing: Drawing) -> Any:
    """Return the dtype that an annotation asks for: the drawing's where it is one of those allowed."""
    allowed = getattr(hint, "dtypes", None)
    if not isinstance(allowed, (list, tuple)) or drawing.dtype in allowed or not allowed:
        return drawing.dtype
    return next((d for d in ("float32", "complex64", "int32", "bool") if d in allowed), allowed[0])


def _name(fun: Any) -> str:
    return getattr(fun, "__name__", None) or repr(fun)
