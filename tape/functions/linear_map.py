"""Linear maps with a transpose of their own, for JAX: a primitive whose two directions are both given.

``jax.custom_derivatives.linear_call`` is one too, but can neither be mapped by ``jax.vmap`` nor be differentiated by its residuals.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tape import jaxapi
from tape.graph.kinds import differentiable

if TYPE_CHECKING:
    Arrays = Sequence[jax.Array]
    Avals = Sequence[jaxapi.ShapedArray]


def linear_map(
    forward: Callable[[Arrays, Arrays], list[jax.Array]],
    transpose: Callable[[Arrays, Arrays], list[jax.Array]],
    residuals: Arrays,
    linear: Arrays,
    results: Avals | None = None,
) -> list[Any]:
    """Return what ``forward``, linear in its second argument, makes of arrays; ``transpose`` takes arrays like its results in their place.

    Where the shapes and dtypes of the results are given, ``forward`` closes over nothing of the JAX transformations around, and is not
    traced before somebody asks for it.
    """
    count = len(residuals)
    given = _avals([*residuals, *linear])
    consts: Arrays = ()
    traced = functools.partial(_traced, lambda *args: forward(args[:count], args[count:]), given)
    if results is None:
        closed = traced()
        consts, results = closed.consts, closed.out_avals  # constants of the JAX transformations around
        traced = functools.partial(jaxapi.hoist, closed, range(len(given)))
    skipped = len(consts)
    ends = _avals(results)
    back = functools.partial(
        _traced,
        lambda *args: transpose(args[skipped : skipped + count], args[skipped + count :]),
        [*_avals(consts), *given[:count], *ends],
    )
    return _apply(*consts, *residuals, *linear, there=_Half(traced, ends), back=_Half(back, given[count:]), residuals=skipped + count)


class _Half:
    """One direction of a map, traced when it is asked for, with the shapes and dtypes of what it returns.

    Each is a parameter of its own: JAX's caches refer weakly to a parameter, but not to what is in a tuple, and a trace may hold tracers.
    """

    def __init__(self, trace: Callable[[], jaxapi.ClosedJaxpr], results: Avals) -> None:
        self._trace = trace
        self.results = results

    @functools.cached_property
    def closed(self) -> jaxapi.ClosedJaxpr:
        return self._trace()

    def mapped(self, axes: Sequence[int | None], size: int) -> _Half:
        """Return it for residuals with a further axis (or None), where everything else has it first."""

        def trace() -> jaxapi.ClosedJaxpr:
            avals = self.closed.in_avals
            every = [*axes, *[0] * (len(avals) - len(axes))]
            fun = jax.vmap(jaxapi.jaxpr_as_fun(self.closed), in_axes=every, axis_size=size)
            return _traced(fun, [a if i is None else _stacked(a, size) for a, i in zip(avals, every, strict=True)])

        return _Half(trace, [_stacked(a, size) for a in self.results])


def _stacked(aval: jaxapi.ShapedArray, size: int) -> jaxapi.ShapedArray:
    return _traced(lambda x: jnp.broadcast_to(x, (size, *x.shape)), [aval]).out_avals[0]  # type: ignore[no-any-return]


def _avals(examples: Sequence[Any]) -> list[jaxapi.ShapedArray]:
    return [(x if isinstance(x, jaxapi.ShapedArray) else jax.typeof(x)).update(weak_type=False) for x in examples]


def is_zero(tangent: Any) -> bool:
    """Tell whether a tangent, or a cotangent, is one of JAX's zeros, or None."""
    return tangent is None or isinstance(tangent, (jaxapi.SymbolicZero, jaxapi.ad.Zero)) or getattr(tangent, "dtype", None) == jaxapi.float0


def zero_tangent(like: Any) -> Any:
    """Return the zero among the tangents of something with a shape and dtype."""
    return jnp.zeros(like.shape, like.dtype) if differentiable(like) else np.zeros(like.shape, jaxapi.float0)


def _traced(fun: Callable[..., Any], examples: Avals) -> jaxapi.ClosedJaxpr:
    return jaxapi.trace(fun, *examples)[0]


def _run(*args: jax.Array, there: _Half, **_: object) -> list[jax.Array]:
    return list(jaxapi.jaxpr_as_fun(there.closed)(*args))


def _shapes(*_: object, there: _Half, **__: object) -> list[jaxapi.ShapedArray]:
    return list(there.results)


def _jvp(primals: Arrays, tangents: Sequence[Any], *, there: _Half, back: _Half, residuals: int) -> tuple[list[jax.Array], list[jax.Array]]:
    """The map of the tangent, and the ordinary derivative by the residuals."""
    out = _apply(*primals, there=there, back=back, residuals=residuals)
    total = [jnp.zeros_like(x) for x in out]
    if any(not is_zero(t) for t in tangents[residuals:]):
        linear = map(jaxapi.ad.instantiate_zeros, tangents[residuals:])
        total = _apply(*primals[:residuals], *linear, there=there, back=back, residuals=residuals)
    moving = [i for i in range(residuals) if not is_zero(tangents[i])]
    if moving:

        def fun(*values: jax.Array) -> list[jax.Array]:
            table = dict(zip(moving, values, strict=True))
            return _run(*[table.get(i, x) for i, x in enumerate(primals)], there=there)

        _, further = jax.jvp(fun, [primals[i] for i in moving], [jaxapi.ad.instantiate_zeros(tangents[i]) for i in moving])
        total = list(map(lax.add, total, further))
    return out, total


def _transpose(cotangents: Sequence[Any], *args: Any, there: _Half, back: _Half, residuals: int) -> list[jax.Array | None]:
    known = [*back.closed.consts, *args[:residuals]]  # constants of the JAX transformations around are residuals, too
    turned = jaxapi.hoist(back.closed, range(len(back.closed.in_avals)))
    skipped = len(back.closed.consts)
    again = functools.partial(_traced, lambda *xs: _run(*xs[skipped:], there=there), [*_avals(known), *back.results])
    halves = {"there": _Half(lambda: turned, back.results), "back": _Half(again, there.results)}
    pulled = _apply(*known, *map(jaxapi.ad.instantiate_zeros, cotangents), **halves, residuals=len(known))
    return [*[None] * residuals, *pulled]


def _batch(args: Arrays, axes: Sequence[int | None], *, there: _Half, back: _Half, residuals: int) -> tuple[list[jax.Array], list[int]]:
    size = next(x.shape[a] for x, a in zip(args, axes, strict=True) if a is not None)
    moved = [
        jnp.moveaxis(x, a, 0) if a is not None else x if i < residuals else jnp.broadcast_to(x, (size, *x.shape))
        for i, (x, a) in enumerate(zip(args, axes, strict=True))
    ]
    held = [None if a is None else 0 for a in axes[:residuals]]
    out = _apply(*moved, there=there.mapped(held, size), back=back.mapped(held, size), residuals=residuals)
    return out, [0] * len(out)


def _defined() -> Callable[..., list[jax.Array]]:
    primitive: Any = jaxapi.Primitive("linear_map")
    primitive.multiple_results = True
    primitive.def_impl(_run)
    primitive.def_abstract_eval(_shapes)
    jaxapi.ad.primitive_jvps[primitive] = _jvp
    jaxapi.ad.primitive_transposes[primitive] = _transpose
    jaxapi.batching.primitive_batchers[primitive] = _batch
    jaxapi.mlir.register_lowering(primitive, jaxapi.mlir.lower_fun(_run, multiple_results=True))
    return primitive.bind  # type: ignore[no-any-return]


_apply = _defined()
