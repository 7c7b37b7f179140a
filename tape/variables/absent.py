"""What to write for a method that other libraries have and a Variable has not."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special

__all__ = ["missing"]

_NAMESPACES = {"numpy": jnp, "nn": jax.nn, "numpy.linalg": jnp.linalg, "lax": jax.lax, "scipy.special": jax.scipy.special}
_SPELLINGS = {  # PyTorch's and Chainer's names, where JAX's is another
    "array": "value",
    "cleargrad": "zero_grad()",
    "clone": "copy()",
    "contiguous": "copy()",
    "data": "value",
    "dim": "ndim",
    "double": "astype('float64')",
    "float": "astype('float32')",
    "grad_fn": "op",
    "half": "astype('float16')",
    "int": "astype('int32')",
    "long": "astype('int64')",
    "numel": "size",
    "permute": "transpose(axes)",
    "scatter_add": "at[index].add(value)",
    "t": "T",
    "to": "astype(dtype)",
    "type": "astype(dtype)",
}
_FUNCTIONS = {
    "chunk": "numpy.split(variable, sections)",
    "expand": "numpy.broadcast_to(variable, shape)",
    "gather": "numpy.take_along_axis(variable, index, axis)",
    "index_select": "numpy.take(variable, index, axis)",
    "masked_fill": "numpy.where(mask, value, variable)",
    "masked_select": "numpy.extract(mask, variable)",
    "mm": "numpy.matmul(variable, other)",
    "topk": "lax.top_k(variable, k)",
    "unbind": "numpy.unstack(variable)",
    "unsqueeze": "numpy.expand_dims(variable, axis)",
}


def missing(variable: Any, name: str) -> AttributeError:
    """Return the error for an attribute that a Variable does not have."""
    msg = f"'{type(variable).__name__}' object has no attribute {name!r}"
    repair = None if name.startswith("_") else _repair(name)
    return AttributeError(msg if repair is None else f"{msg}; use {repair}", name=name, obj=variable)


def _repair(name: str) -> str | None:
    if name in _SPELLINGS:
        return f"variable.{_SPELLINGS[name]}"
    if name in _FUNCTIONS:
        return f"tape.{_FUNCTIONS[name]}"
    if name.endswith("_") and (name[:-1] in dir(jnp) or name[:-1] in {"add", "sub", "mul", "div"}):
        return "an assignment (variable = ..., or variable.value = ... for a leaf): values do not change in place"
    for where, namespace in _NAMESPACES.items():
        found = getattr(namespace, name, None)
        if callable(found) and not isinstance(found, type):
            return f"tape.{where}.{name}(variable)"
    return None
