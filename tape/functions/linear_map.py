"""Linear maps with a transpose of their own, for JAX: a primitive whose two directions are both given.

``jax.custom_derivatives.linear_call`` is one too, but can neither be mapped by ``jax.vmap`` nor be differentiated by its residuals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from tape import jaxapi

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["linear_map"]

_Map = jaxapi.ClosedJaxpr


def linear_map(
    forward: Callable[..., list[Any]],
    transpose: Callable[..., list[Any]],
    residuals: Sequence[Any],
    linear: Sequence[Any],
    results: Sequence[Any] | None = None,
) -> Any:
    """Apply a linear map to arrays.

    Args:
        forward: a function of two lists: the residuals, and arrays in which it is linear.
        transpose: its transpose: of the residuals, and of arrays like the results of ``forward``.
        residuals: arrays.
        linear: arrays.
        results: shapes and dtypes of the results of ``forward``, where that is known and it closes over nothing of the JAX transformations
            around: then it is not traced before somebody asks for it.

    Returns:
        What ``forward`` returns.

    """
    count = len(residuals)
    given = _avals([*residuals, *linear])
    consts: Sequence[Any] = ()

    def ahead() -> _Map:
        return _traced(lambda *args: forward(args[:count], args[count:]), given)

    if results is None:
        traced = ahead()
        consts, results = traced.consts, traced.out_avals  # constants of the JAX transformations around
        hoisted = jaxapi.hoist(traced, range(len(given)))
        ahead = lambda: hoisted  # noqa: E731
    skipped = len(consts)
    held = [*_avals(consts), *given[:count]]
    ends = _avals(results), given[count:]
    pair = _Pair(
        ahead,
        lambda: _traced(lambda *args: transpose(args[skipped : skipped + count], args[skipped + count :]), [*held, *ends[0]]),
        ends,
    )
    return _apply(*consts, *residuals, *linear, pair=pair, residuals=skipped + count)


class _Pair:
    """A map and its transpose, each traced when it is asked for, with the shapes and dtypes of what each of them returns."""

    def __init__(self, forward: Callable[[], _Map], transpose: Callable[[], _Map], results: tuple[Sequence[Any], Sequence[Any]]) -> None:
        self._makers = (forward, transpose)
        self._made: list[_Map | None] = [None, None]
        self.results = results

    def map(self, direction: int = 0) -> _Map:
        """Return the map (0) or its transpose (1)."""
        found = self._made[direction]
        if found is None:
            found = self._made[direction] = self._makers[direction]()
        return found

    def turned(self) -> _Pair:
        """Return the pair of the transpose."""
        return _Pair(lambda: self.map(1), lambda: self.map(0), self.results[::-1])

    def mapped(self, axes: Sequence[int | None], size: int) -> _Pair:
        """Return the pair for residuals with a further axis (or None), where everything else has it first."""

        def make(direction: int) -> Callable[[], _Map]:
            def made() -> _Map:
                closed = self.map(direction)
                avals = [v.aval for v in closed.jaxpr.invars]
                every = [*axes, *[0] * (len(avals) - len(axes))]
                fun: Any = jax.vmap(jaxapi.jaxpr_as_fun(closed), in_axes=every, axis_size=size)
                return _traced(fun, [a if i is None else _stacked(a, size) for a, i in zip(avals, every, strict=True)])

            return made

        forward, back = self.results
        return _Pair(make(0), make(1), ([_stacked(a, size) for a in forward], [_stacked(a, size) for a in back]))


def _stacked(aval: Any, size: int) -> Any:
    return _traced(lambda x: jnp.broadcast_to(x, (size, *x.shape)), [aval]).out_avals[0]


def _avals(examples: Sequence[Any]) -> list[Any]:
    return [(x if isinstance(x, jaxapi.ShapedArray) else jax.typeof(x)).update(weak_type=False) for x in examples]


def _is_zero(tangent: Any) -> bool:
    return isinstance(tangent, jaxapi.ad.Zero)


def _traced(fun: Callable[..., Any], examples: Sequence[Any]) -> _Map:
    return jaxapi.trace(fun, *examples)[0]


def _run(*args: Any, pair: _Pair, residuals: int) -> Sequence[Any]:
    del residuals
    return tuple(jaxapi.jaxpr_as_fun(pair.map())(*args))


def _shapes(*_: Any, pair: _Pair, residuals: int) -> list[Any]:
    del residuals
    return list(pair.results[0])


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, pair: _Pair, residuals: int) -> Any:
    """The map of the tangent, and the ordinary derivative by the residuals."""
    out = _apply(*primals, pair=pair, residuals=residuals)
    total: list[Any] = [None] * len(out)
    if any(not _is_zero(t) for t in tangents[residuals:]):
        total = _apply(*primals[:residuals], *map(jaxapi.ad.instantiate_zeros, tangents[residuals:]), pair=pair, residuals=residuals)
    moving = [i for i in range(residuals) if not _is_zero(tangents[i])]
    if moving:

        def fun(*values: Any) -> Sequence[Any]:
            filled = list(primals)
            for i, x in zip(moving, values, strict=True):
                filled[i] = x
            return _run(*filled, pair=pair, residuals=residuals)

        _, further = jax.jvp(fun, [primals[i] for i in moving], [jaxapi.ad.instantiate_zeros(tangents[i]) for i in moving])
        total = [b if a is None else lax.add(a, b) for a, b in zip(total, further, strict=True)]
    return out, [jnp.zeros_like(o) if t is None else t for o, t in zip(out, total, strict=True)]


def _transpose(cotangents: Sequence[Any], *args: Any, pair: _Pair, residuals: int) -> list[Any]:
    back = _apply(*args[:residuals], *map(jaxapi.ad.instantiate_zeros, cotangents), pair=pair.turned(), residuals=residuals)
    return [*[None] * residuals, *back]


def _batch(args: Sequence[Any], axes: Sequence[Any], *, pair: _Pair, residuals: int) -> Any:
    size = next(x.shape[a] for x, a in zip(args, axes, strict=True) if isinstance(a, int))
    moved = [jnp.moveaxis(x, a, 0) if isinstance(a, int) else x for x, a in zip(args, axes, strict=True)]
    for i in range(residuals, len(args)):
        if not isinstance(axes[i], int):
            moved[i] = jnp.broadcast_to(moved[i], (size, *moved[i].shape))
    held = [0 if isinstance(a, int) else None for a in axes[:residuals]]
    out = _apply(*moved, pair=pair.mapped(held, size), residuals=residuals)
    return out, [0] * len(out)


def _defined() -> Callable[..., Any]:
    made: Any = jaxapi.Primitive("linear_map")
    made.multiple_results = True
    made.def_impl(_run)
    made.def_abstract_eval(_shapes)
    jaxapi.ad.primitive_jvps[made] = _jvp
    jaxapi.ad.primitive_transposes[made] = _transpose
    jaxapi.batching.primitive_batchers[made] = _batch
    jaxapi.mlir.register_lowering(made, jaxapi.mlir.lower_fun(_run, multiple_results=True))
    return made.bind  # type: ignore[no-any-return]


_apply = _defined()
