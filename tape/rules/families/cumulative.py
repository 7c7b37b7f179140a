"""Cumulative reductions along an axis: sum, product, maximum, minimum and log-sum-exp."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax

from tape.rules.cotangents import wide
from tape.rules.registry import Cost, Example, register


def _first(rule: Callable[..., Any], again: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Give a rule the cumulated axis as the first one, in the direction of the cumulation, and single precision in place of half.

    There the result is computed ``again``, for the rule multiplies what it was rounded by, and it overflows before the gradient does.
    """

    def vjp(ct: Any, out: Any, x: Any, *, axis: int, reverse: bool, **_: Any) -> Any:
        def turned(a: Any) -> Any:
            return lax.rev(a, (0,)) if reverse else a

        if not x.shape[axis]:
            return ct
        moved = [turned(jnp.moveaxis(wide(a), axis, 0)) for a in (ct, out, x)]
        if again is not None and x.dtype.itemsize < 4:
            moved[1] = again(moved[2], 0)
        grad = rule(*moved)
        return lax.convert_element_type(jnp.moveaxis(turned(grad), 0, axis), x.dtype)

    return vjp


def _backwards(decay: Any, ct: Any) -> Any:
    """Solve ``s[i] = ct[i] + decay[i] s[i + 1]`` from the last row on; ``decay`` has one row less than ``ct``."""

    def combine(later: tuple[Any, Any], earlier: tuple[Any, Any]) -> tuple[Any, Any]:
        return later[0] * earlier[0], earlier[1] + earlier[0] * later[1]

    padded = jnp.concatenate([decay, lax.full_like(ct[:1], 1)])
    solved: tuple[Any, Any] = lax.associative_scan(combine, (padded, ct), reverse=True)
    return solved[1]


def _along(cumulate: Callable[..., Any]) -> list[Example]:
    """List uses of a cumulation along every kind of axis, in both directions."""
    return [
        Example(lambda x: cumulate(x, 0), ((5,),), "vector"),
        Example(lambda x: cumulate(x, 0, reverse=True), ((4, 2),), "first axis, reverse"),
        Example(lambda x: cumulate(x, 1), ((2, 3, 2),), "middle axis"),
        Example(lambda x: cumulate(x, 1, reverse=True), ((2, 6),), "last axis, reverse"),
        Example(lambda x: cumulate(x, 0), ((1, 2),), "one element"),
    ]


@register(
    "cumprod",
    source="dy_k = sum over i <= k of dx_i times the product of the other x_j, j <= k",
    domain=((0.5, 1.5),),
    cost=Cost.LOOPED,
    examples=[
        *_along(lax.cumprod),
        Example(lambda x: lax.cumprod(x * jnp.array([1.0, 0.0, 1.0, 0.0, 1.0], x.dtype)), ((5,),), "two zeros"),
    ],
)
@partial(_first, again=lax.cumprod)
def _cumprod(ct: Any, out: Any, x: Any) -> Any:
    """Multiply the product before an element with what the elements after it make of the cotangent; zeros are no special case."""
    return jnp.concatenate([lax.full_like(out[:1], 1), out[:-1]]) * _backwards(x[1:], ct)


def _ratio(x: Any, y: Any) -> Any:
    """Weight exp(x - y): 1 where both are inf, and 0 where both are -inf, as a sum without terms has none to weigh."""
    undefined = lax.eq(x, y) & jnp.isinf(y)
    return jnp.where(undefined, jnp.where(y > 0, 1, 0), lax.exp(jnp.where(undefined, 0, x - y)))


@register(
    "cumlogsumexp",
    source="dy_k = sum over i <= k of exp(x_i - y_k) dx_i",
    complex=False,
    cost=Cost.LOOPED,
    examples=_along(lax.cumlogsumexp),
)
@partial(_first, again=lax.cumlogsumexp)
def _cumlogsumexp(ct: Any, out: Any, x: Any) -> Any:
    """Sum the cotangents with weights exp(x[i] - y[k]), built from factors that are never above 1."""
    return _ratio(x, out) * _backwards(_ratio(out[:-1], out[1:]), ct)


def _halves(first: Any, second: Any, pick: Callable[[Any, Any], Any], ct: Any) -> tuple[Any, Any]:
    """Give a cotangent to the one of two values that is picked (complex numbers go by their real parts first), half to each of equals."""
    tie, picked = lax.eq(first, second), pick(first, second)
    none, half = lax.full_like(ct, 0), ct * 0.5
    return (
        lax.select(tie, half, lax.select(lax.eq(picked, first), ct, none)),
        lax.select(tie, half, lax.select(lax.eq(picked, second), ct, none)),
    )


def _winners(ct: Any, out: Any, x: Any, pick: Callable[[Any, Any], Any]) -> Any:
    """Hand the cotangents of a running maximum (minimum) down the tree of pairwise comparisons that a parallel scan makes.

    Odd places hold the running extreme of pairs; an even place compares the odd one before it with itself.
    """
    n = x.shape[0]
    if n == 1:
        return ct
    even, odd = x[: n - 1 : 2], x[1::2]
    running = out[1::2]
    before, own = _halves(running[: (n - 1) // 2], x[2::2], pick, ct[2::2])
    pairs = _winners(ct[1::2] + _longer(before, n // 2), running, pick(even, odd), pick)
    to_even, to_odd = (_longer(half, (n + 1) // 2) for half in _halves(even, odd, pick, pairs))
    woven = jnp.stack([to_even + jnp.concatenate([ct[:1], own]), to_odd], 1)
    return lax.reshape(woven, (2 * to_even.shape[0], *x.shape[1:]))[:n]


def _longer(x: Any, n: int) -> Any:
    """``n`` rows: those of ``x``, and a row of zeros if that is one less."""
    return x if x.shape[0] == n else jnp.concatenate([x, jnp.zeros((1, *x.shape[1:]), x.dtype)])


register(
    "cumsum",
    lambda ct, out, x, *, axis, reverse, **_: lax.cumsum(ct, axis, not reverse),
    source="the transpose of a running sum is the running sum from the other end",
    cost=Cost.LOOPED,
    examples=_along(lax.cumsum),
)
for _name, _which, _pick in (("cummax", "largest", lax.max), ("cummin", "smallest", lax.min)):
    register(
        _name,
        _first(partial(_winners, pick=_pick)),
        source=f"dy_k = dx_i of the {_which} x_i, i <= k; equals share as in lax.{_name[3:]}, in the order of a parallel scan",
        cost=Cost.LOOPED,
        examples=_along(getattr(lax, _name)),
    )
