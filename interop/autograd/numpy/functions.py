"""Functions that differ from both NumPy and its counterpart on the tape: kinks, arrays made of Variables, what JAX lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from interop.autograd.arguments import holds_variables
from interop.autograd.numpy.dispatch import stacked, wrapped
from interop.autograd.primitives import getval
from interop.autograd.trees import is_variable
from tape import numpy as tnp
from tape import stop_gradient
from tape.errors import TapeTypeError, TapeValueError, unknown_keyword
from tape.graph import constants
from tape.variables import interception

__all__ = ["OWN", "RECORDED"]


def _refuse(what: str, **options: Any) -> None:
    """Refuse options of NumPy's that are not taken, rather than leave them out."""
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise unknown_keyword(what, *given)


def _abs(x: Any) -> Any:
    x = stacked(x)
    return tnp.abs(x) if x.dtype.kind == "c" else x * tnp.sign(x)


def _clip(a: Any, a_min: Any = None, a_max: Any = None, **bounds: Any) -> Any:
    low, high = bounds.pop("min", a_min), bounds.pop("max", a_max)
    _refuse("clip", **bounds)
    a, low, high = stacked(a), stacked(low), stacked(high)
    clipped = a
    if low is not None:
        clipped = tnp.where(clipped > low, clipped, low)
    if high is not None:
        clipped = tnp.where(clipped < high, clipped, high)
    return tnp.where(tnp.isnan(a), a, clipped)


def _std(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = False) -> Any:
    """Be constant where there is one element: the derivative is zero, where that of a square root is infinite."""
    _refuse("std", out=out)
    a = stacked(a)
    axes = range(a.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    one = all(a.shape[i] == 1 for i in axes)
    return (tnp.var if one and not ddof else tnp.std)(a, axis=axis, dtype=dtype, ddof=ddof, keepdims=bool(keepdims))


def _hypot(x: Any, y: Any) -> Any:
    """Scale by a constant, so that nothing overflows, and derivatives of any order are right where both are equal."""
    x, y = stacked(x), stacked(y)
    scale = stop_gradient(tnp.maximum(tnp.abs(x), tnp.abs(y)))
    scale = tnp.where((scale == 0) | tnp.isinf(scale), 1.0, scale)
    return scale * tnp.sqrt((x / scale) ** 2 + (y / scale) ** 2)


def _skipping_nan(choose: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``fmax`` or ``fmin``: what is equal shares the gradient, as for ``maximum``."""

    def recorded(x: Any, y: Any) -> Any:
        x, y = stacked(x), stacked(y)
        return tnp.where(tnp.isnan(x), y, tnp.where(tnp.isnan(y), x, choose(x, y)))

    return recorded


def _power(x: Any, y: Any, **options: Any) -> Any:
    """Take a small whole number as known: all derivatives are right at zero then."""
    if not options and isinstance(y, (int, float)) and y in {0, 1, 2, 3}:
        x = stacked(x)
        return x ** int(y) if y else tnp.where(True, tnp.ones_like(x), x)
    return interception.array_ufunc(x, np.power, "__call__", stacked(x), stacked(y), **options)


def array(object: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002 - NumPy's name
    """Make an array: of nested lists with Variables in them, too."""
    if not holds_variables(object):
        return np.array(object, *args, **kwargs)
    dtype = args[0] if args else kwargs.get("dtype")
    try:
        result = tnp.array(object)
    except TapeTypeError as e:
        msg = f"array: the lists are not of one shape: {e}"
        raise TapeValueError(msg) from e
    result = result if dtype is None else result.astype(dtype)
    ndmin = kwargs.get("ndmin", 0)
    return result.reshape((1,) * (ndmin - result.ndim) + result.shape) if result.ndim < ndmin else result


def where(condition: Any, *args: Any, **kwargs: Any) -> Any:
    """Choose between two; plain Python values give plain Python values, as in HIPS autograd."""
    if not args and not kwargs:
        return np.where(getval(condition))
    x = args[0] if args else kwargs["x"]
    y = args[1] if len(args) > 1 else kwargs["y"]
    if holds_variables((condition, x, y)):
        return tnp.where(_as_array(condition), _as_array(x), _as_array(y))
    result = np.where(condition, x, y)
    return result if any(map(_holds_arrays, (condition, x, y))) else result.tolist()


def _as_array(x: Any) -> Any:
    return stacked(x) if holds_variables(x) else np.asarray(x) if isinstance(x, (list, tuple)) else x


def _holds_arrays(x: Any) -> bool:
    return isinstance(x, (np.ndarray, np.generic)) or (isinstance(x, (list, tuple)) and any(map(_holds_arrays, x)))


def make_diagonal(D: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:  # noqa: N803 - its name there
    """Return the smallest square arrays with ``D`` along a diagonal of two axes: what ``diagonal`` takes apart."""
    xp: Any = tnp if holds_variables(D) else np
    before, after = (np.zeros((*D.shape[:-1], max(n, 0))) for n in (-offset, offset))
    padded = xp.concatenate([before, D, after], axis=-1)
    diagonal = padded[..., None] * np.eye(padded.shape[-1], k=offset)
    return xp.moveaxis(diagonal, (-2, -1), (axis1, axis2))


def parse_einsum_input(*args: Any) -> Any:
    """Return the operands of ``einsum`` as NumPy takes them apart."""
    return np.einsum_path(*[getval(x) for x in args], optimize=False)


def _real_if_close(a: Any, tol: float = 100) -> Any:
    a = stacked(a)
    value = getval(a)
    return tnp.real(a) if np.iscomplexobj(value) and not np.iscomplexobj(np.real_if_close(value, tol)) else a


def _gradient(f: Any, *varargs: Any, **kwargs: Any) -> Any:
    """Return differences: a tuple for several axes, as NumPy 2 does."""
    slopes = tnp.gradient(stacked(f), *varargs, **kwargs)
    return tuple(slopes) if isinstance(slopes, list) else slopes


def _partition(a: Any, kth: Any, axis: Any = -1, **_: Any) -> Any:
    order = np.argpartition(getval(a), kth, axis=axis)
    return tnp.take_along_axis(a if axis is not None else tnp.ravel(a), order, -1 if axis is None else axis)


def _sort(a: Any, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Any:  # noqa: ARG001 - they sort alike
    _refuse("sort", order=order)
    return tnp.sort(stacked(a), axis=axis)


def _linspace(start: Any, stop: Any, num: int = 50, **kwargs: Any) -> Any:
    return tnp.linspace(stacked(start), stacked(stop), int(num), **kwargs)


def _row_stack(tup: Any) -> Any:
    return tnp.vstack(_parts(tup))


def _parts(tup: Any) -> Any:
    return [x if is_variable(x) else stacked(x) if holds_variables(x) else constants.operand(np.asarray(x)) for x in tup]


def _joining(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda tup, *args, **kwargs: function(tup if is_variable(tup) else _parts(tup), *args, **kwargs)


def array_from_args(_args: Any, _kwargs: Any, *scalars: Any) -> Any:
    """Make an array of its last arguments."""
    return array(list(scalars), *_args, **_kwargs)


def concatenate_args(axis: int, *args: Any) -> Any:
    """Concatenate its last arguments."""
    return wrapped(np.concatenate)(args, axis)


class _Indexer:
    """``np.r_`` and ``np.c_``."""

    def __init__(self, plain: Any, recorded: Any) -> None:
        self._plain = plain
        self._recorded = recorded

    def __getitem__(self, index: Any) -> Any:
        return (self._recorded if holds_variables(index) else self._plain)[index]


class _Casting(type):
    """The type of integer types that are called with Variables."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.__mro__[1])


def _integer(kind: Any) -> Any:
    """Return an integer type of NumPy that takes the values of Variables."""

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG001
        return kind(*[getval(x) for x in args], **kwargs)

    return _Casting(kind.__name__, (kind,), {"__new__": new, "__module__": "numpy"})


# By name, what records.
RECORDED: dict[str, Callable[..., Any]] = {
    "abs": _abs,
    "absolute": _abs,
    "fabs": _abs,
    "clip": _clip,
    "fmax": _skipping_nan(tnp.maximum),
    "fmin": _skipping_nan(tnp.minimum),
    "hypot": _hypot,
    "std": _std,
    "pow": _power,
    "power": _power,
    "real_if_close": _real_if_close,
    "gradient": _gradient,
    "partition": _partition,
    "sort": _sort,
    "rollaxis": tnp.rollaxis,
    "linspace": _linspace,
    "asarray": array,
    "asanyarray": array,
    "ascontiguousarray": array,
    "asfarray": array,
}
RECORDED |= {name: _joining(getattr(tnp, name)) for name in ("concatenate", "stack", "vstack", "hstack", "dstack", "column_stack")}
RECORDED["concat"] = RECORDED["concatenate"]

OWN: dict[str, Any] = {
    "array": array,
    "where": where,
    "make_diagonal": make_diagonal,
    "array_from_args": array_from_args,
    "concatenate_args": concatenate_args,
    "r_": _Indexer(np.r_, tnp.r_),
    "c_": _Indexer(np.c_, tnp.c_),
    "row_stack": wrapped(np.vstack, _row_stack, name="row_stack"),
}
OWN |= {kind.__name__: _integer(kind) for kind in (np.int8, np.int16, np.int32, np.int64)}
