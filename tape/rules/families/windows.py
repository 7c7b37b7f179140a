"""Reductions over sliding windows (pooling), and the selections that their derivatives are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tape import jaxapi
from tape.rules import parameters
from tape.rules.cotangents import zeros
from tape.rules.registry import Example, register


def _windowed(computation: Callable[..., Any], start: float) -> list[Example]:
    """List uses of a window reduction with every parameter."""

    def over(name: str, shape: tuple[int, ...], *options: Any) -> Example:
        return Example(lambda x: lax.reduce_window(x, np.array(start, x.dtype), computation, *options), (shape,), name)

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


@register(
    "reduce_window_sum",
    source="y[o] = sum over k of x[stride o + k]; the transpose sums ct[o] over all (o, k) with stride o + k = i",
    examples=_windowed(lax.add, 0.0),
)
def _reduce_window_sum(ct: Any, out: Any, x: Any, **params: Any) -> Any:
    """Sum the cotangents of the windows that an element lies in: a window sum with strides and base dilation exchanged."""
    if not x.size or not ct.size:
        return zeros(x)
    strides, dilation = params["window_strides"], params["base_dilation"]
    pads = []
    for n, windows, size, stride, (low, _), base, spread in zip(
        x.shape, ct.shape, params["window_dimensions"], strides, params["padding"], dilation, params["window_dilation"], strict=True
    ):
        reach = (size - 1) * spread
        before = reach - low
        pads.append((before, reach + (n - 1) * base + 1 - ((windows - 1) * stride + 1) - before))
    exchanged = {**params, "window_strides": tuple(dilation), "padding": tuple(pads), "base_dilation": tuple(strides)}
    return parameters.apply("reduce_window_sum", exchanged, ct)[0]


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


def _added(ct: Any, x: Any, largest: bool, params: dict[str, Any]) -> Any:
    """Add the cotangent of each window to the element of ``x`` that it chose; that of a window of padding only is dropped."""
    if not ct.size or not x.size:
        return zeros(x)
    places = lax.reshape(_chosen(x, largest, params), (ct.size,))
    return lax.reshape(jnp.zeros(x.size, x.dtype).at[places].add(lax.reshape(ct, (ct.size,)), mode="drop"), x.shape)


def _read(ct: Any, x: Any, largest: bool, params: dict[str, Any]) -> Any:
    """Read a cotangent where each window chose an element of ``x``; zero for a window of padding only."""
    return lax.reshape(ct, (ct.size,)).at[_chosen(x, largest, params)].get(mode="fill", fill_value=0)


def _selections(name: str, shape: tuple[int, int], wider: tuple[int, int], **further: Any) -> list[Example]:
    """List uses of the primitive called ``name``, which has no public wrapper; with a ``wider`` shape, one with windows of padding only."""

    def use(which: str, shape: tuple[int, int], low: int = 1, what: str = "") -> Example:
        params = {"window_dimensions": (2, 3), "window_strides": (2, 2), "padding": ((low, 0), (0, 1)), **further}
        selecting = {**params, "select_prim": jaxapi.primitive(which)}
        return Example(lambda *args: parameters.apply(name, selecting, *args)[0], (shape, (4, 4)), which + what)

    return [use("ge", shape), use("le", shape), use("ge", wider, 2, ", padding only")]


register(
    "select_and_scatter_add",
    lambda ct, out, source, x, *, select_prim, **params: (
        lambda: _read(ct, x, str(select_prim) == "ge", params) if source.size and ct.size else zeros(source),
        None,
    ),
    source="linear in the values added: the transpose reads them at the elements chosen",
    complex=False,
    examples=_selections("select_and_scatter_add", (2, 2), (3, 2)),
)
register(
    "select_and_gather_add",
    lambda ct, out, tangents, x, *, select_prim, **params: (lambda: _added(ct, x, str(select_prim) == "ge", params), None),
    source="linear in the values read: the transpose adds at the elements chosen",
    complex=False,
    examples=_selections("select_and_gather_add", (4, 4), (4, 4), base_dilation=(1, 1), window_dilation=(1, 1)),
)
for _name, _largest in (("max", True), ("min", False)):
    register(
        f"reduce_window_{_name}",
        lambda ct, out, x, largest=_largest, **params: _added(ct, x, largest, params),
        source=f"dy[o] = dx at the first {'largest' if _largest else 'smallest'} element of the window",
        complex=False,
        examples=_windowed(getattr(lax, _name), -float("inf") if _largest else float("inf")),
    )
