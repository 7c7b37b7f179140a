"""Cumulative reductions along an axis: sum, product, maximum, minimum and log-sum-exp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import lax

from tape.rules.cotangents import wide
from tape.rules.registry import LINE, Cost, Example, register

if TYPE_CHECKING:
    from collections.abc import Callable


def _led(x: Any, axis: int, reverse: bool) -> Any:
    """Move the cumulated axis to the front, in the direction of the cumulation."""
    moved = jnp.moveaxis(x, axis, 0)
    return lax.rev(moved, (0,)) if reverse else moved


def _unled(x: Any, axis: int, reverse: bool) -> Any:
    """Undo :func:`_led`."""
    return jnp.moveaxis(lax.rev(x, (0,)) if reverse else x, 0, axis)


def _backwards(decay: Any, ct: Any) -> Any:
    """Solve ``s[i] = ct[i] + decay[i] s[i + 1]`` from the last row on; ``decay`` has one row less than ``ct``."""

    def combine(later: tuple[Any, Any], earlier: tuple[Any, Any]) -> tuple[Any, Any]:
        return later[0] * earlier[0], earlier[1] + earlier[0] * later[1]

    padded = jnp.concatenate([decay, lax.full_like(ct[:1], 1)])
    solved: tuple[Any, Any] = lax.associative_scan(combine, (padded, ct), reverse=True)
    return solved[1]


def _cumprod(ct: Any, out: Any, x: Any, *, axis: int, reverse: bool, **_: Any) -> tuple[Any, ...]:
    """Multiply the product before an element with what the elements after it make of the cotangent; zeros are no special case."""

    def grad() -> Any:
        if not x.shape[axis]:
            return ct
        c, y, v = (_led(wide(a), axis, reverse) for a in (ct, out, x))
        before = jnp.concatenate([lax.full_like(y[:1], 1), y[:-1]])
        return lax.convert_element_type(_unled(before * _backwards(v[1:], c), axis, reverse), x.dtype)

    return (grad,)


def _ratio(x: Any, y: Any) -> Any:
    """Weight exp(x - y): 1 where both are inf, and 0 where both are -inf, as a sum without terms has none to weigh."""
    undefined = lax.eq(x, y) & jnp.isinf(y)
    return jnp.where(undefined, jnp.where(y > 0, 1, 0), lax.exp(jnp.where(undefined, 0, x - y)))


def _cumlogsumexp(ct: Any, out: Any, x: Any, *, axis: int, reverse: bool, **_: Any) -> tuple[Any, ...]:
    """Sum the cotangents with weights exp(x[i] - y[k]), built from factors that are never above 1."""

    def grad() -> Any:
        if not x.shape[axis]:
            return ct
        c, y, v = (_led(wide(a), axis, reverse) for a in (ct, out, x))
        return lax.convert_element_type(_unled(_ratio(v, y) * _backwards(_ratio(y[:-1], y[1:]), c), axis, reverse), x.dtype)

    return (grad,)


def _halves(first: Any, second: Any, wins: Callable[[Any, Any], Any], ct: Any) -> tuple[Any, Any]:
    """Give a cotangent to the one of two values that wins, half to each of equals."""
    tie = lax.eq(first, second)
    none, half = lax.full_like(ct, 0), ct * 0.5
    return (
        lax.select(tie, half, lax.select(wins(first, second), ct, none)),
        lax.select(tie, half, lax.select(wins(second, first), ct, none)),
    )


def _winners(ct: Any, out: Any, x: Any, pick: Callable[[Any, Any], Any], wins: Callable[[Any, Any], Any]) -> Any:
    """Hand the cotangents of a running maximum (minimum) down the tree of pairwise comparisons that a parallel scan makes.

    Odd places hold the running extreme of pairs; an even place compares the odd one before it with itself.
    """
    n = x.shape[0]
    if n <= 1:
        return ct
    even, odd = x[: n - 1 : 2], x[1::2]
    running = out[1::2]
    before, own = _halves(running[: (n - 1) // 2], x[2::2], wins, ct[2::2])
    down = ct[1::2] + (before if n % 2 else jnp.concatenate([before, lax.full_like(ct[:1], 0)]))
    pairs = _winners(down, running, pick(even, odd), pick, wins)
    to_even, to_odd = _halves(even, odd, wins, pairs)
    own = jnp.concatenate([ct[:1], own])
    to_even = own + (jnp.concatenate([to_even, lax.full_like(ct[:1], 0)]) if n % 2 else to_even)
    if n % 2:
        to_odd = jnp.concatenate([to_odd, lax.full_like(ct[:1], 0)])
    woven = lax.reshape(jnp.stack([to_even, to_odd], 1), (2 * to_even.shape[0], *x.shape[1:]))
    return woven[:n]


def _running(pick: Callable[[Any, Any], Any], wins: Callable[[Any, Any], Any]) -> Callable[..., tuple[Any, ...]]:
    """Rule of a running maximum or minimum."""

    def vjp(ct: Any, out: Any, x: Any, *, axis: int, reverse: bool, **_: Any) -> tuple[Any, ...]:
        def grad() -> Any:
            c, y, v = (_led(a, axis, reverse) for a in (ct, out, x))
            return _unled(_winners(c, y, v, pick, wins), axis, reverse)

        return (grad,)

    return vjp


def _along(cumulate: Callable[..., Any]) -> list[Example]:
    """List uses of a cumulation along every kind of axis, in both directions."""
    return [
        Example(lambda x: cumulate(x, 0), ((5,),), "vector"),
        Example(lambda x: cumulate(x, 0, reverse=True), ((4, 2),), "first axis, reverse"),
        Example(lambda x: cumulate(x, 1), ((2, 3, 2),), "middle axis"),
        Example(lambda x: cumulate(x, 1, reverse=True), ((2, 6),), "last axis, reverse"),
        Example(lambda x: cumulate(x, 0), ((1, 2),), "one element"),
    ]


register(
    "cumsum",
    lambda ct, out, x, *, axis, reverse, **_: (lambda: lax.cumsum(ct, axis, not reverse),),
    domain=(LINE,),
    source="the transpose of a running sum is the running sum from the other end",
    examples=_along(lax.cumsum),
    complex=True,
    cost=Cost.LOOPED,
)
register(
    "cumprod",
    _cumprod,
    domain=((0.5, 1.5),),
    source="dy_k = sum over i <= k of dx_i times the product of the other x_j, j <= k",
    examples=[
        *_along(lax.cumprod),
        Example(lambda x: lax.cumprod(x * jnp.array([1.0, 0.0, 1.0, 0.0, 1.0], x.dtype)), ((5,),), "two zeros"),
    ],
    complex=True,
    cost=Cost.LOOPED,
)
for _name, _rule, _which in (("cummax", _running(lax.max, lax.gt), "largest"), ("cummin", _running(lax.min, lax.lt), "smallest")):
    register(
        _name,
        _rule,
        domain=(LINE,),
        source=f"dy_k = dx_i of the {_which} x_i, i <= k; equals share as in lax.{_name[3:]}, in the order of a parallel scan",
        examples=_along(getattr(lax, _name)),
        cost=Cost.LOOPED,
    )
register(
    "cumlogsumexp",
    _cumlogsumexp,
    domain=(LINE,),
    source="dy_k = sum over i <= k of exp(x_i - y_k) dx_i",
    examples=_along(lax.cumlogsumexp),
    cost=Cost.LOOPED,
)
