"""What rules do to cotangents whatever their mathematics: fill in zeros, give them their inputs' dtypes, choose among inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tape import jaxapi
from tape.configuration import sixty_four_bits
from tape.graph.kinds import differentiable, varying


def full(like: Any, value: float) -> Any:
    """Array of a number, of the shape and dtype of ``like``, which varies over devices as that does."""
    array, axes = lax.full(like.shape, value, like.dtype), varying(like)
    return lax.pcast(array, tuple(axes), to="varying") if axes else array


def zeros(like: Any) -> Any:
    """Array of zeros of the shape and dtype of ``like``."""
    return full(like, 0)


def filled(cts: Iterable[Any], likes: Iterable[Any]) -> list[Any]:
    """Cotangents with zeros in place of None."""
    return [zeros(like) if ct is None else ct for ct, like in zip(cts, likes, strict=True)]


def for_jax(cts: Iterable[Any], likes: Iterable[Any]) -> tuple[Any, ...]:
    """Cotangents as ``jax.vjp`` asks for them: none is None, and those of integers are of its own dtype."""
    likes = list(likes)
    given = [ct if differentiable(like) else np.zeros(like.shape, jaxapi.float0) for ct, like in zip(cts, likes, strict=True)]
    return tuple(filled(given, likes))


def asked_for(ins: Iterable[Any], wanted: Iterable[bool] | None) -> list[bool]:
    """Tell which inputs get a cotangent: the differentiable ones, of them those that are wanted (all where nobody said)."""
    ins = list(ins)
    return [flag and differentiable(x) for flag, x in zip([True] * len(ins) if wanted is None else wanted, ins, strict=True)]


def spread(grads: Iterable[Any], chosen: Sequence[int], count: int) -> tuple[Any, ...]:
    """Cotangents of the chosen inputs, None for the others."""
    return tuple(map(dict(zip(chosen, grads, strict=True)).get, range(count)))


def cast(ct: Any, dtype: Any) -> Any:
    """Give ``ct`` the dtype of its input; a real input of a complex result gets the real part."""
    if ct.dtype == dtype:
        return ct
    if jnp.issubdtype(ct.dtype, jnp.complexfloating) and not jnp.issubdtype(dtype, jnp.complexfloating):
        ct = lax.real(ct)
    with sixty_four_bits():  # of what was recorded where there were none, and has an input of before
        return lax.convert_element_type(ct, dtype)


def wide(x: Any) -> Any:
    """Float32 in place of a half precision, for partial products and counts that would overflow there."""
    return lax.convert_element_type(x, jnp.float32) if x.dtype.itemsize < 4 else x
