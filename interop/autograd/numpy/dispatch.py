"""Which function runs: NumPy's own where no Variable is among the arguments, else its counterpart that records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from interop.autograd.arguments import holds_variables
from interop.autograd.primitives import getval
from tape.jaxapi import words
from tape.variables import interception
from tape.variables.variable import Variable

__all__ = ["NO_DERIVATIVE", "counterpart", "stacked", "wrapped"]

_PLAIN = frozenset({float, int, np.ndarray, np.float64, str, bool, type(None), type})
_UFUNC = ("accumulate", "at", "identity", "nargs", "nin", "nout", "ntypes", "outer", "reduce", "reduceat", "signature", "types")

# What they say of shapes and types only, or of values as constants: they run on values.
NO_DERIVATIVE = words(
    "all allclose alltrue any argmax argmin argpartition argsort argwhere array_equal array_equiv array_repr array_str array2string "
    "can_cast count_nonzero digitize einsum_path flatnonzero iscomplexobj isrealobj isscalar lexsort may_share_memory min_scalar_type "
    "ndim nonzero result_type searchsorted shape shares_memory size sometrue"
)


def stacked(x: Any) -> Any:
    """Return a list, or nested lists, with Variables in it as one Variable; anything else as it is."""
    return interception.array(x) if isinstance(x, (list, tuple)) and holds_variables(x) else x


def counterpart(fun: Any) -> Callable[..., Any]:
    """Return what records a function of NumPy on Variables."""
    if isinstance(fun, np.ufunc):

        def recorded(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("out", ()).__class__ is not tuple:
                kwargs["out"] = (kwargs["out"],)
            return interception.array_ufunc(None, fun, "__call__", *[_array(x) for x in args], **kwargs)  # type: ignore[arg-type]

    else:

        def recorded(*args: Any, **kwargs: Any) -> Any:
            return interception.array_function(None, fun, (), args, kwargs)  # type: ignore[arg-type]

    return recorded


def _array(x: Any) -> Any:
    return interception.array(x) if isinstance(x, (list, tuple)) else x


def wrapped(fun: Any, recorded: Callable[..., Any] | None = None, *, name: str | None = None) -> Any:
    """Return a function of NumPy that records where it meets a Variable, anywhere among its arguments."""
    name = name or fun.__name__
    record = recorded or counterpart(fun)
    if name in NO_DERIVATIVE:

        def on_values(*args: Any, **kwargs: Any) -> Any:
            return fun(*[getval(x) for x in args], **{k: getval(x) for k, x in kwargs.items()})

        dispatched: Any = on_values
    else:

        def dispatched(*args: Any, **kwargs: Any) -> Any:
            for x in args:
                if x.__class__ is Variable:
                    return record(*args, **kwargs)
            for x in args:
                if x.__class__ not in _PLAIN and holds_variables(x):
                    return record(*args, **kwargs)
            if kwargs and holds_variables(kwargs):
                return record(*args, **kwargs)
            return fun(*args, **kwargs)

    for attribute in _UFUNC if isinstance(fun, np.ufunc) else ():
        setattr(dispatched, attribute, getattr(fun, attribute))
    dispatched.__name__ = dispatched.__qualname__ = name
    dispatched.__doc__ = fun.__doc__
    dispatched.fun = fun
    return dispatched
