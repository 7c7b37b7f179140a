"""Nested containers as one vector, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from interop.autograd import numpy as anp
from interop.autograd.trees import is_variable

__all__ = ["flatten", "flatten_func"]


def flatten(value: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Flatten nested tuples, lists and dicts of arrays and numbers; return a vector, and what makes the containers of one again.

    Example:
        >>> from interop.autograd.misc import flatten
        >>> vector, unflatten = flatten([1.0, {"a": 2.0, "b": 3.0}])
        >>> vector, [float(x) for x in unflatten(vector * 2)[1].values()]
        (array([1., 2., 3.]), [4.0, 6.0])

    """
    parts: list[Any] = []
    build = _collected(value, parts)
    vector = anp.concatenate([anp.ravel(p) for p in parts]) if parts else np.array([])

    def unflatten(vector: Any) -> Any:
        return build(vector, 0)[0]

    return vector, unflatten


def _collected(value: Any, parts: list[Any]) -> Callable[[Any, int], tuple[Any, int]]:
    """Append the arrays in a value; return what builds such a value of a vector from a position on, and says where it ends."""
    if isinstance(value, (list, tuple, dict)):
        keys = sorted(value) if isinstance(value, dict) else None
        builders = [_collected(value[k], parts) for k in keys] if keys is not None else [_collected(x, parts) for x in value]
        kind = type(value)

        def build(vector: Any, at: int) -> tuple[Any, int]:
            built = []
            for builder in builders:
                item, at = builder(vector, at)
                built.append(item)
            if keys is not None:
                named = dict(zip(keys, built, strict=True))
                return kind((k, named[k]) for k in value), at
            return (kind(*built) if hasattr(value, "_fields") else kind(built)), at

        return build
    parts.append(value)
    shape = tuple(np.shape(value)) if not is_variable(value) else value.shape
    size = int(np.prod(shape, dtype=int))
    real = (value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype).kind != "c"

    def one(vector: Any, at: int) -> tuple[Any, int]:
        x = vector[at] if shape == () else anp.reshape(vector[at : at + size], shape)
        return anp.real(x) if real and vector.dtype.kind == "c" else x, at + size

    return one


def flatten_func(func: Callable[..., Any], example: Any) -> tuple[Callable[..., Any], Callable[[Any], Any], Any]:
    """Return ``func`` as a function of vectors, what makes containers of these, and the example as a vector."""
    vector, unflatten = flatten(example)
    return (lambda x, *args: flatten(func(unflatten(x), *args))[0]), unflatten, vector
