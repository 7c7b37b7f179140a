"""Reductions whose derivatives lose digits where composed of primitives: norms, spreads, softmax. JAX's values, own derivatives."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tape.mirrored.composed import ruled
from tape.mirrored.mirror import mirrored
from tape.rules import slopes, weights

Tangent = Any  # a function of x, its tangent, and the axes, which are kept as ones

_PLAIN = {"dtype", "out", "where", "mean", "correction", "b"}  # options that are None: with others, JAX's own derivative


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _unit(x: jax.Array, axes: tuple[int, ...]) -> Any:
    """``x / |x|``, scaled, for its squares overflow and underflow before it does."""
    u = x * slopes.scale(x, axis=axes)
    return u / jnp.sqrt(jnp.sum(lax.square(u), axes, keepdims=True))


@_unit.defjvp
def _(axes: tuple[int, ...], primals: Sequence[jax.Array], tangents: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
    x, t = primals[0], tangents[0]
    u = _unit(x, axes)
    scale = slopes.scale(x, axis=axes)
    scaled = x * scale
    top = _largest(lax.abs(x), axes)
    along = jnp.sum(jnp.where(top, t, 0), axes, keepdims=True) / _picked(u, top, axes)
    d = jnp.where(top, 0, t - u * along)  # what is along x makes no difference, and would be a difference of equals
    length = jnp.sqrt(jnp.sum(lax.square(scaled), axes, keepdims=True))
    return u, (d - u * jnp.sum(u * d, axes, keepdims=True)) / length * scale


def _picked(u: jax.Array, top: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """The chosen element, and 1 where there is none."""
    picked = jnp.sum(jnp.where(top, u, 0), axes, keepdims=True)
    return jnp.where(picked == 0, 1, picked)


def _largest(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Tell which element is the largest; none where several are."""
    top = x == jnp.max(x, axes, keepdims=True)
    return lax.stop_gradient(top & (jnp.sum(top, axes, keepdims=True) == 1))


def _norm(x: jax.Array, t: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    return jnp.sum(t * _unit(x, axes), axes, keepdims=True)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _centred(x: Any, axes: tuple[int, ...]) -> Any:
    """``x`` less its mean, and less what that was rounded by; also of large numbers that cancel.

    They are added as multiples of one unit, not rounded, and then what is left; the mean has as few digits as make its multiple exact.
    """
    info, count, scale = np.finfo(x.dtype), prod(x.shape[a] for a in axes), slopes.scale(x, axis=axes)
    bits = (count - 1).bit_length()
    places = 2.0 ** (info.nmant - 1 - bits)
    scaled = x * scale
    head = lax.round(scaled * places, lax.RoundingMethod.TO_NEAREST_EVEN) * (1 / places)
    total, rest = jnp.sum(head, axes, keepdims=True), jnp.sum(scaled - head, axes, keepdims=True)
    mean = lax.reduce_precision((total + rest) / count, info.nexp, max(info.nmant - bits, 2))
    return (scaled - mean - ((total - count * mean) + rest) / count) / scale


@_centred.defjvp
def _(axes: tuple[int, ...], primals: Any, tangents: Any) -> Any:
    return _centred(primals[0], axes), tangents[0] - jnp.mean(tangents[0], axes, keepdims=True)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _standardized(x: Any, axes: tuple[int, ...]) -> Any:
    """``c / |c|`` of what x is beyond its mean."""
    return _unit(_centred(x, axes), axes)


@_standardized.defjvp
def _(axes: tuple[int, ...], primals: Any, tangents: Any) -> Any:
    """Without what is constant or along x, before and after: that makes no difference, and would be one of equals, far from the others."""

    def total(v: Any) -> Any:
        return jnp.sum(v, axes, keepdims=True)

    def without(t: Any, ends: Any, share: Any) -> Any:
        """Less a share of its mean at one end: exactly nothing is left there, where that is a single number."""
        count = total(lax.convert_element_type(ends, t.dtype))
        mean = total(jnp.where(ends, t, 0)) / count
        return jnp.where(ends & (count == 1), 0, t - share * mean)

    def essential(t: Any) -> Any:
        return without(without(t, x == near, 1), x == far, share)

    (x,), (t,) = primals, tangents
    u, centred = _standardized(x, axes), _centred(x, axes)
    scale = slopes.scale(centred, axis=axes)
    low, high = jnp.min(x, axes, keepdims=True), jnp.max(x, axes, keepdims=True)
    upward = jnp.max(centred, axes, keepdims=True) > -jnp.min(centred, axes, keepdims=True)
    far, near = jnp.where(upward, high, low), jnp.where(upward, low, high)
    share = (x - near) * scale / ((far - near) * scale)
    d = essential(t)
    d = d - jnp.mean(d, axes, keepdims=True)
    d = (d - u * total(u * d)) / jnp.sqrt(total(lax.square(centred * scale))) * scale
    return u, jax.linear_transpose(essential, t)(d)[0]


def _deviation(x: jax.Array, t: jax.Array, axes: tuple[int, ...], *, count: float) -> Any:
    """``(x - m) / (n s)``, scaled as a norm."""
    return jnp.sum(t * _standardized(x, axes), axes, keepdims=True) / count**0.5


def _variance(x: jax.Array, t: jax.Array, axes: tuple[int, ...], *, count: float) -> jax.Array:
    return jnp.sum(t * _centred(x, axes), axes, keepdims=True) * (2 / count)


def _from_heaviest(p: jax.Array, t: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Tangents less that of an element with over 3/4 of the weight: nearly 1 where the others are small, so that differences are lost.

    Transposed, its gradient becomes minus the sum of all others'.
    """
    heavy = lax.stop_gradient(p) > 0.75
    return jnp.where(heavy, 0, t - jnp.sum(jnp.where(heavy, t, 0), axes, keepdims=True))


def _log_softmax(x: jax.Array, t: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    p = _shares(x, axes)
    d = _from_heaviest(p, t, axes)
    return d - jnp.sum(p * d, axes, keepdims=True)


def _softmax(x: jax.Array, t: jax.Array, axes: tuple[int, ...]) -> Any:
    return _shifted(ruled(jax.nn.softmax, _softmax, axes, options=(("axis", axes),))(x), x, t, axes)


def _shares(x: jax.Array, axes: tuple[int, ...]) -> Any:
    """Softmax that is no result, but a derivative: of differences that are not rounded."""
    return ruled(weights.softmax, _shares_shifted, axes, options=(("axes", axes),))(x)


def _shares_shifted(x: jax.Array, t: jax.Array, axes: tuple[int, ...]) -> Any:
    return _shifted(_shares(x, axes), x, t, axes)


def _shifted(p: Any, x: Any, t: Any, axes: tuple[int, ...]) -> Any:
    d = _from_heaviest(p, t, axes)
    own, over_square, unscaled = weights.products(p, x, axes)
    along = over_square * d  # one's own part is apart, for second derivatives
    return own * d - unscaled * (jnp.sum(along, axes, keepdims=True) - along)


def _logsumexp(x: jax.Array, t: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    return jnp.sum(_shares(x, axes) * t, axes, keepdims=True)


def _axes(ndim: int, axis: object) -> tuple[int, ...]:
    """Return the axes as numbers from zero on; none where they are not plain."""
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, tuple) else (axis,)
    return tuple(a % ndim for a in given) if all(isinstance(a, int) for a in given) else ()  # those that there are not are refused by JAX


def _of_norm(x: jax.Array, given: Mapping[str, Any]) -> tuple[Tangent, tuple[int, ...]] | None:
    """Choose the axes of a norm that is the root of a sum of squares."""
    order, axis = given["ord"], given["axis"]
    axes = _axes(x.ndim, axis)
    plain = order is None or order == "fro" or (order == 2 and len(axes) == 1)  # JAX refuses others than matrices
    return (_norm, axes) if plain else None


def _of_vector_norm(x: jax.Array, given: Mapping[str, Any]) -> tuple[Tangent, tuple[int, ...]] | None:
    return (_norm, _axes(x.ndim, given["axis"])) if not isinstance(given["ord"], str) and given["ord"] == 2 else None


def _of_spread(tangent: Tangent) -> Callable[[Any, Mapping[str, Any]], tuple[Tangent, tuple[int, ...]] | None]:
    kinds: dict[float, Tangent] = {}

    def choose(x: jax.Array, given: Mapping[str, Any]) -> tuple[Tangent, tuple[int, ...]] | None:
        axes = _axes(x.ndim, given["axis"])
        count = prod(x.shape[a] for a in axes) - given["ddof"]
        return (kinds.setdefault(count, functools.partial(tangent, count=count)), axes) if count > 0 else None

    return choose


def _of_weights(tangent: Tangent) -> Callable[[Any, Mapping[str, Any]], tuple[Tangent, tuple[int, ...]]]:
    return lambda x, given: (tangent, _axes(x.ndim, given["axis"]))


def _reducing(choose: Callable[..., Any], module: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Mirror a reduction with a derivative of its own for real arrays, where its options are plain."""
    signature = inspect.signature(original)
    first = next(iter(signature.parameters))

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        x = given.pop(first)
        real = isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.floating) and x.size and x.ndim
        if not real or any(name in _PLAIN and value is not None for name, value in given.items()):
            return original(*args, **kwargs)
        chosen = choose(x, given)
        if chosen is None or not chosen[1]:
            return original(*args, **kwargs)
        return ruled(original, *chosen, options=tuple(given.items()))(x)

    return mirrored(function, original.__name__, module=module)


_WEIGHTS = {
    "softmax": _of_weights(_softmax),
    "log_softmax": _of_weights(_log_softmax),
    "logsumexp": lambda x, given: None if given["return_sign"] else (_logsumexp, _axes(x.ndim, given["axis"])),
}
_CHOICES: dict[str, dict[str, Callable[..., Any]]] = {
    "jax.numpy": {"std": _of_spread(_deviation), "var": _of_spread(_variance)},
    "jax.numpy.linalg": {"norm": _of_norm, "vector_norm": _of_vector_norm},
    "jax.nn": _WEIGHTS,
    "jax.scipy.special": _WEIGHTS,
}

# By JAX module and name: what makes the counterpart of such a function.
REDUCED: dict[str, dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]]] = {
    source: {name: functools.partial(_reducing, choose, source.replace("jax", "tape", 1)) for name, choose in named.items()}
    for source, named in _CHOICES.items()
}
