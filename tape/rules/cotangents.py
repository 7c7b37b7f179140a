"""What several families of rules do to a cotangent whatever their mathematics: make it zero, give it its input's dtype."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

__all__ = ["cast", "wide", "zeros"]


def zeros(like: Any) -> Any:
    """Array of zeros of the shape and dtype of ``like``."""
    return lax.full(like.shape, 0, like.dtype)


def cast(ct: Any, dtype: Any) -> Any:
    """Give ``ct`` the dtype of its input; a real input of a complex result gets the real part."""
    if ct.dtype == dtype:
        return ct
    if jnp.issubdtype(ct.dtype, jnp.complexfloating) and not jnp.issubdtype(dtype, jnp.complexfloating):
        ct = lax.real(ct)
    return lax.convert_element_type(ct, dtype)


def wide(x: Any) -> Any:
    """Float32 in place of a half precision, for partial products and counts that would overflow there."""
    return lax.convert_element_type(x, jnp.float32) if x.dtype.itemsize < 4 else x
