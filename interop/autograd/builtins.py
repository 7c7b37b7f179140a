"""Containers and questions about types: containers of Variables are Python's own, and a Variable is asked for the type of its value."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from interop.autograd.trees import is_variable

__all__ = ["dict", "isinstance", "list", "tuple", "type"]

tuple, list, dict = builtins.tuple, builtins.list, builtins.dict  # noqa: A001 - they have these names there


def type(x: Any) -> Any:  # noqa: A001
    """Return the type of a value: for a Variable that of its value, an array of NumPy or one of its numbers.

    Example:
        >>> import interop.autograd as autograd
        >>> kinds = []
        >>> slope = autograd.grad(lambda x: (kinds.append(autograd.builtins.type(x).__name__), x)[1])(1.0)
        >>> kinds
        ['float64']

    """
    if not is_variable(x):
        return builtins.type(x)
    return np.ndarray if x.shape else np.dtype(x.dtype).type


def isinstance(x: Any, kinds: Any) -> bool:  # noqa: A001
    """Tell whether a value is of a type: a Variable is what its value is.

    Example:
        >>> from interop.autograd import grad, isinstance
        >>> float(grad(lambda x: x**2 if isinstance(x, float) else 0.0 * x)(3.0))
        6.0

    """
    if not is_variable(x):
        return builtins.isinstance(x, kinds)
    return issubclass(type(x), kinds) or builtins.isinstance(x, kinds)
