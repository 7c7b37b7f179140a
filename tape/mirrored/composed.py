"""Functions composed of primitives, whose derivatives lose digits that way: JAX's values, with derivatives of their own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tape.mirrored.mirror import mirrored
from tape.rules import bessel, cardinal, gates, gaussian, plane, slopes
from tape.rules.cotangents import wide

Slope = Any  # a function of the arguments: what the tangent of one of them is multiplied with
Given = Any  # a slope per argument, or a function that chooses them by the options after the first argument, and by some of its own


@jax.custom_jvp
def _squareplus(x: jax.Array, b: jax.Array) -> Any:
    root = lax.sqrt(x * x + b)
    missing = 0.5 * b / (root * (root + lax.abs(x)))  # to 1 or 0, which the derivative tends to
    return jnp.where(x < 0, missing, 1 - missing)


@_squareplus.defjvp
def _(primals: Sequence[jax.Array], tangents: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (x, b), (t, s) = primals, tangents
    r = lax.rsqrt(x * x + b)
    by_x, by_b = (((v * r) * r) * r for v in (0.5 * b, -0.25 * x))  # the cube is out of range before these are
    return _squareplus(x, b), by_x * t + by_b * s


def _inside(x: jax.Array, y: jax.Array, slope: Callable[[jax.Array, jax.Array], jax.Array], beside: float) -> jax.Array:
    """Take a slope where both are positive; elsewhere the value is a constant or infinite."""
    positive = (x > 0) & (y > 0)
    return jnp.where(positive, slope(jnp.where(positive, x, 1), jnp.where(positive, y, 1)), beside)


def _gelu(approximate: bool, *, accurate: bool = False) -> tuple[Slope, ...]:
    """By tanh, JAX's composition, which reads what was computed; or what keeps the tails, for one exponential more."""
    if not approximate:
        return (gaussian.gelu,)
    return (gates.gelu,) if accurate else ()


def _entr(x: jax.Array) -> jax.Array:
    """``-(log(x) + 1)``, infinite at zero; no number left of it, where the value is infinite."""
    return jnp.where(x < 0, jnp.nan, -slopes.log_quotient(x, lax.full_like(x, 1), 1))


@jax.custom_jvp
def _missing(x: jax.Array, y: jax.Array) -> Any:
    """``1 - x / y``, by the difference where y is finite; of which the derivative would be one of equals."""
    infinite = jnp.isinf(y)
    finite = jnp.where(infinite, 1, y)
    return jnp.where(infinite, 1 - jnp.where(infinite, x, 0) / y, (finite - x) / finite)


@_missing.defjvp
def _(primals: Sequence[jax.Array], tangents: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (x, y), (t, s) = primals, tangents
    return _missing(x, y), s * ((x * (1 / y)) * (1 / y)) - t / y


def _hypot(x: jax.Array, y: jax.Array) -> jax.Array:
    """``x / hypot(x, y)``, and what JAX has at the kink."""
    kink = (x == 0) & (y == 0)
    return jnp.where(kink, 0.5, slopes.direction(jnp.where(kink, 1, x), y))


SLOPES: dict[str, dict[str, Given]] = {
    "jax.nn": {
        "softplus": (gates.sigma,),
        "log_sigmoid": (lambda x: gates.sigma(-x),),
        "silu": (gates.silu,),
        "swish": (gates.silu,),
        "mish": (gates.mish,),
        "gelu": _gelu,
        "soft_sign": (lambda x: lax.integer_pow(1 + lax.abs(x), -2),),
        "squareplus": (_squareplus, lambda x, b: 0.25 * lax.rsqrt(x * x + b)),
    },
    "jax.numpy": {
        "hypot": (_hypot, lambda x, y: _hypot(y, x)),
        "logaddexp": (gates.of_difference, lambda x, y: gates.of_difference(y, x)),
        "logaddexp2": (gates.of_binary_difference, lambda x, y: gates.of_binary_difference(y, x)),
        "sinc": (cardinal.sinc,),
    },
    "jax.scipy.special": {
        "ndtr": (gaussian.density,),
        "ndtri": (gaussian.ndtri,),
        "log_ndtr": lambda _order: (gaussian.log_ndtr,),
        "i0": (lambda x: jax.scipy.special.i1(x),),  # noqa: PLW0108 - which is imported at its first use, at a third of our own import's time
        "i1": (bessel.i1,),
        "entr": (_entr,),
        "rel_entr": (
            lambda x, y: _inside(x, y, lambda x, y: slopes.log_quotient(x, y, 1), 0.0),
            lambda x, y: _inside(x, y, lambda x, y: -x / y, 0.0),
        ),
        "kl_div": (
            lambda x, y: _inside(x, y, lambda x, y: slopes.log_quotient(x, y, 0), -1.0),
            lambda x, y: _inside(x, y, _missing, 1.0),
        ),
        "logit": (slopes.logit,),
        "xlogy": (lambda _, y: lax.log(y), lambda x, y: x / y),
        "xlog1py": (lambda _, y: lax.log1p(y), lambda x, y: x / (1 + y)),
        "spence": (slopes.spence,),  # JAX's is NaN from 1 to 2
    },
}


# Of complex numbers, where they have another derivative, or one at all.
PLANE: dict[str, tuple[Slope, ...]] = {
    "softplus": (plane.sigma,),
    "silu": (gates.silu,),
    "swish": (gates.silu,),
    "logaddexp": (lambda x, y: plane.sigma(x - y), lambda x, y: plane.sigma(y - x)),
    "sinc": (cardinal.sinc,),
}


@functools.cache
def ruled(
    original: Callable[..., Any], tangent: Callable[..., Any], of: tuple[Any, ...], static: tuple[Any, ...] = (), options: Any = ()
) -> Callable[..., Any]:
    """Give a function of arrays of one dtype its derivative, ``tangent(*arrays, *tangents, of)``; halves are computed in single."""

    @jax.custom_jvp
    def function(*args: jax.Array) -> Any:
        return original(*args, *static, **dict(options))

    @function.defjvp
    def _(primals: Sequence[jax.Array], tangents: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
        out = function(*primals)
        total = tangent(*map(wide, primals), *map(wide, tangents), of)
        return out, lax.convert_element_type(lax.reshape(total, out.shape), out.dtype)

    return function


def _by_slopes(*given: Any) -> Any:
    *arrays, slopes = given
    primals, tangents = arrays[: len(slopes)], arrays[len(slopes) :]
    return sum(t * slope(*primals) for t, slope in zip(tangents, slopes, strict=True))


def _differentiated(given: Given, module: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Mirror a function with derivatives of its own for arguments of a real dtype, and some for complex ones.

    Its signature is that of JAX; options that ``given`` adds are those of ``docs/accuracy.md``.
    """
    signature = None if isinstance(original, jnp.ufunc) else inspect.signature(original)
    added = [p for p in inspect.signature(given).parameters.values() if p.kind is p.KEYWORD_ONLY] if callable(given) else []

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        own = {p.name: kwargs.pop(p.name, p.default) for p in added}
        if signature is not None:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = bound.args, bound.kwargs
        arrays, static = (args[:1], args[1:]) if callable(given) else (args, ())
        dtype = jnp.result_type(*arrays)
        if jnp.issubdtype(dtype, jnp.complexfloating):
            slopes: tuple[Slope, ...] = PLANE.get(original.__name__, ())
        else:
            slopes = given(*static, **own) if callable(given) else given
        if kwargs or len(arrays) != len(slopes) or not jnp.issubdtype(dtype, jnp.inexact):
            return original(*args, **kwargs)
        return ruled(original, _by_slopes, slopes, static)(*jnp.broadcast_arrays(*[jnp.asarray(x, dtype) for x in arrays]))

    return mirrored(function, original.__name__, module=module)


# By JAX module and name: what makes the counterpart of such a function.
COMPOSED: dict[str, dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]]] = {
    source: {name: functools.partial(_differentiated, given, source.replace("jax", "tape", 1)) for name, given in named.items()}
    for source, named in SLOPES.items()
}
