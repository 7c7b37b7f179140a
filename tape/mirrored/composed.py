"""Functions composed of primitives, whose derivatives lose digits that way: JAX's values, with derivatives of their own."""

from __future__ import annotations

import functools
import inspect
from math import pi, sqrt
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from tape.mirrored.mirror import mirrored
from tape.rules import slopes
from tape.rules.cotangents import wide

if TYPE_CHECKING:
    from collections.abc import Callable

Slope = Any  # a function of the arguments: what the tangent of one of them is multiplied with


def _silu(x: Any) -> Any:
    return slopes.sigma(x) * (1 + slopes.bounded(x) * slopes.sigma(-x))


def _squareplus(x: Any, b: Any) -> Any:
    root = lax.sqrt(x * x + b)
    missing = 0.5 * b / (root * (root + lax.abs(x)))  # to 1 or 0, which the derivative tends to
    return jnp.where(x < 0, missing, 1 - missing)


def _difference(x: Any, y: Any) -> Any:
    """``x - y``, and no difference of equals: two infinities of a sign."""
    return jnp.where(jnp.isinf(x) & (x == y), 0, x - y)


SLOPES: dict[str, dict[str, tuple[Slope, ...]]] = {
    "jax.nn": {
        "softplus": (slopes.sigma,),
        "log_sigmoid": (lambda x: slopes.sigma(-x),),
        "silu": (_silu,),
        "swish": (_silu,),
        "soft_sign": (lambda x: lax.integer_pow(1 + lax.abs(x), -2),),
        "squareplus": (_squareplus, lambda x, b: 0.25 * lax.rsqrt(x * x + b)),
    },
    "jax.numpy": {
        "logaddexp": (lambda x, y: slopes.sigma(_difference(x, y)), lambda x, y: slopes.sigma(_difference(y, x))),
    },
    "jax.scipy.special": {
        "ndtr": (lambda x: slopes.gauss(x, -0.5) / sqrt(2 * pi),),
        "i0": (jax.scipy.special.i1,),
        "i1": (slopes.bessel_i1,),
    },
}


def _differentiated(given: tuple[Slope, ...], module: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Mirror a function with derivatives of its own for arguments of one real dtype; half precisions are computed in single."""

    @jax.custom_jvp
    def ruled(*args: Any) -> Any:
        return original(*args)

    @ruled.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        out = ruled(*primals)
        single = [wide(x) for x in primals]
        total = sum(wide(t) * slope(*single) for t, slope in zip(tangents, given, strict=True))
        return out, lax.convert_element_type(total, out.dtype)

    signature = None if isinstance(original, jnp.ufunc) else inspect.signature(original)

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        if signature is not None:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = bound.args, bound.kwargs
        dtype = jnp.result_type(*args)
        if kwargs or len(args) != len(given) or not jnp.issubdtype(dtype, jnp.floating):
            return original(*args, **kwargs)
        return ruled(*jnp.broadcast_arrays(*[jnp.asarray(x, dtype) for x in args]))

    return mirrored(function, original.__name__, module=module)


# By JAX module and name: what makes the counterpart of such a function.
COMPOSED: dict[str, dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]]] = {
    source: {name: functools.partial(_differentiated, given, source.replace("jax", "tape", 1)) for name, given in named.items()}
    for source, named in SLOPES.items()
}
