"""Reductions over sliding windows (pooling), and the selections that their derivatives are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tape import jaxapi
from tape.rules import parameters
from tape.rules.registry import LINE, Example, register

if TYPE_CHECKING:
    from collections.abc import Callable


def _reduce_window_sum(ct: Any, out: Any, x: Any, **params: Any) -> tuple[Any, ...]:
    """Sum the cotangents of the windows that an element lies in: a window sum with strides and base dilation exchanged."""
    strides, dilation = params["window_strides"], params["base_dilation"]

    def grad() -> Any:
        if not x.size or not ct.size:
            return lax.full(x.shape, 0, x.dtype)
        pads = []
        for n, windows, size, stride, (low, _), base, spread in zip(
            x.shape, ct.shape, params["window_dimensions"], strides, params["padding"], dilation, params["window_dilation"], strict=True
        ):
            reach = (size - 1) * spread
            before = reach - low
            pads.append((before, reach + (n - 1) * base + 1 - ((windows - 1) * stride + 1) - before))
        exchanged = {**params, "window_strides": tuple(dilation), "padding": tuple(pads), "base_dilation": tuple(strides)}
        return parameters.apply("reduce_window_sum", exchanged, ct)[0]

    return (grad,)


def _chosen(x: Any, largest: bool, params: dict[str, Any]) -> Any:
    """Flat position in ``x`` of each window's extreme, the first of equals; ``x.size`` for a window of padding only."""
    places = lax.reshape(lax.iota(jnp.int32, x.size), x.shape)
    wins = lax.gt if largest else lax.lt

    def better(a: tuple[Any, Any], b: tuple[Any, Any]) -> tuple[Any, Any]:
        keep = wins(a[0], b[0]) | (lax.eq(a[0], b[0]) & lax.lt(a[1], b[1])) | lax.ne(a[0], a[0])
        return lax.select(keep, a[0], b[0]), lax.select(keep, a[1], b[1])

    worst = jnp.array(-jnp.inf if largest else jnp.inf, x.dtype)
    ones = (1,) * x.ndim
    return lax.reduce_window(
        (x, places),
        (worst, jnp.array(x.size, jnp.int32)),
        better,
        params["window_dimensions"],
        params["window_strides"],
        params["padding"],
        params.get("base_dilation", ones),
        params.get("window_dilation", ones),
    )[1]


def _scatter(ct: Any, places: Any, like: Any) -> Any:
    """Add up cotangents at flat positions; those beyond the end are dropped."""
    flat = jnp.zeros((like.size,), like.dtype).at[lax.reshape(places, (ct.size,))].add(lax.reshape(ct, (ct.size,)), mode="drop")
    return lax.reshape(flat, like.shape)


def _gather(ct: Any, places: Any) -> Any:
    """Read a cotangent at flat positions; zero beyond the end."""
    return lax.reshape(ct, (ct.size,)).at[places].get(mode="fill", fill_value=0)


def _pool(largest: bool) -> Callable[..., tuple[Any, ...]]:
    """Rule of a window maximum or minimum: the cotangent of a window goes to the element that it chose."""

    def vjp(ct: Any, out: Any, x: Any, **params: Any) -> tuple[Any, ...]:
        return (lambda: _scatter(ct, _chosen(x, largest, params), x) if ct.size and x.size else lax.full_like(x, 0),)

    return vjp


def _select_and_scatter_add(ct: Any, out: Any, source: Any, operand: Any, *, select_prim: Any, **params: Any) -> tuple[Any, ...]:
    """Read the cotangent where each window's value was added."""
    largest = str(select_prim) == "ge"
    return (lambda: _gather(ct, _chosen(operand, largest, params)) if source.size and ct.size else lax.full_like(source, 0), None)


def _select_and_gather_add(ct: Any, out: Any, tangents: Any, operand: Any, *, select_prim: Any, **params: Any) -> tuple[Any, ...]:
    """Add the cotangent of each window where its value was read."""
    largest = str(select_prim) == "ge"
    return (
        lambda: _scatter(ct, _chosen(operand, largest, params), tangents) if ct.size and tangents.size else lax.full_like(tangents, 0),
        None,
    )


def _bound(name: str, **params: Any) -> Callable[..., Any]:
    """Return the primitive called ``name`` as a function of arrays; its selection has no public wrapper."""
    return lambda *args: parameters.apply(name, params, *args)[0]


def _windowed(computation: Callable[..., Any], start: float) -> list[Example]:
    """List uses of a window reduction with every parameter."""

    def over(
        name: str, shape: tuple[int, ...], window: tuple[int, ...], strides: tuple[int, ...], padding: Any, *dilations: Any
    ) -> Example:
        def fun(x: Any) -> Any:
            return lax.reduce_window(x, np.array(start, x.dtype), computation, window, strides, padding, *dilations)

        return Example(fun, (shape,), name)

    return [
        over("valid", (2, 4), (1, 2), (1, 2), "VALID"),
        over("overlapping", (4, 5), (3, 2), (1, 1), "VALID"),
        over("strides, same padding", (5, 4), (3, 2), (2, 2), "SAME"),
        over("stride leaves elements out", (8,), (2,), (3,), "VALID"),
        over("uneven padding", (5,), (3,), (2,), ((2, 1),)),
        over("negative padding", (7,), (3,), (2,), ((-1, -1),)),
        over("window dilation", (7,), (3,), (1,), ((1, 1),), (1,), (2,)),
        over("base dilation", (4,), (3,), (2,), ((1, 2),), (2,)),
        over("both dilations", (4,), (2,), (1,), ((1, 1),), (2,), (3,)),
    ]


register(
    "reduce_window_sum",
    _reduce_window_sum,
    domain=(LINE,),
    source="y[o] = sum over k of x[stride o + k]; the transpose sums ct[o] over all (o, k) with stride o + k = i",
    examples=_windowed(lax.add, 0.0),
    complex=True,
)
for _name, _largest in (("max", True), ("min", False)):
    register(
        f"reduce_window_{_name}",
        _pool(largest=_largest),
        domain=(LINE,),
        source=f"dy[o] = dx at the first {'largest' if _largest else 'smallest'} element of the window",
        examples=_windowed(getattr(lax, _name), -float("inf") if _largest else float("inf")),
    )

_WINDOW = {"window_dimensions": (2, 3), "window_strides": (2, 2), "padding": ((1, 0), (0, 1))}
_PLAIN = {"base_dilation": (1, 1), "window_dilation": (1, 1)}

register(
    "select_and_scatter_add",
    _select_and_scatter_add,
    domain=(LINE, LINE),
    source="linear in the values added: the transpose reads them at the elements chosen",
    examples=[
        Example(_bound("select_and_scatter_add", select_prim=jaxapi.primitive(p), **_WINDOW), ((2, 2), (4, 4)), p) for p in ("ge", "le")
    ],
)
register(
    "select_and_gather_add",
    _select_and_gather_add,
    domain=(LINE, LINE),
    source="linear in the values read: the transpose adds at the elements chosen",
    examples=[
        Example(_bound("select_and_gather_add", select_prim=jaxapi.primitive(p), **_WINDOW, **_PLAIN), ((4, 4), (4, 4)), p)
        for p in ("ge", "le")
    ],
)
