"""The operations that random programs are made of: source text that means the same over ``jax.numpy`` and over the tape.

An operation lists, for given operands, the parameters with which it is defined there (none: it does not fit).  Domains are guarded in
the text, so that every value stays moderate.  Where a derivative jumps, operands that are not exact (computed, so known up to rounding)
are moved off the ties: rounding would decide otherwise, and compiled and interpreted programs round differently.
"""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as onp  # noqa: ICN001 - np is the namespace of the programs

from tape.testing.operands import (
    HALF,
    SHAPES,
    Info,
    along,
    along_full,
    always,
    both,
    broadcast,
    cast,
    counted,
    fits,
    gathered,
    indexed,
    integers,
    joined,
    masked,
    matmul,
    matrices,
    ranked,
    reduced,
    reshaped,
    same_rows,
    selected,
    solvable,
    split,
    square,
    stacked,
    updated,
)


@dataclass(frozen=True)
class Operation:
    """``text`` has places ``{a} {b} {c}`` for operands and further ones for parameters.

    ``options`` gives the parameters possible for operands.  ``kink`` says how inexact operands are moved off ties ("shift" for a kink at a
    number, "ramp" where elements are compared); ``exact`` that an exact operand gives an exact result.
    """

    text: str
    options: Callable[..., list[dict[str, Any]]]
    arity: int = 1
    kink: str | None = None
    exact: bool = False


def _unary(*texts: str, **kwargs: Any) -> list[Operation]:
    return [Operation(t, always, **kwargs) for t in texts]


OPERATIONS = (
    *_unary("np.tanh({a})", "np.sin({a})", "{a} * 0.5", "nn.sigmoid({a})", "np.exp(np.sin({a}))", "np.log({a} * {a} + 1)", "np.cos({a})"),
    *_unary("np.sqrt({a} * {a} + 0.5)", "nn.softplus({a})", "nn.gelu({a})", "np.arctan({a})", "np.square({a})", "1 / ({a} * {a} + 1)"),
    *_unary(
        "np.expm1(np.tanh({a}))",
        "np.log1p({a} * {a})",
        "lax.rsqrt({a} * {a} + 1)",
        "nn.silu({a})",
        "np.tanh({a}) ** 3",
        "(1.5 + np.sin({a})) ** 1.5",
    ),
    *_unary("2.0 - {a}", "-{a}", "{a} + {a}", exact=True),
    Operation("scipy.special.erf({a})", lambda a: [{}] if a.full else []),
    Operation("scipy.special.gammaln({a} * {a} + 1)", lambda a: [{}] if a.full else []),
    Operation("cube({a})", always),
    Operation(
        "both_of({a}, {b})",
        lambda a, b: [{}] if a.shape == b.shape and a.dtype == b.dtype and a.inexact and not (a.raw or b.raw) else [],
        arity=2,
    ),
    Operation("{a} * {b}", fits, arity=2),
    Operation("{a} + {b}", fits, arity=2),
    Operation("{a} - {b}", fits, arity=2),
    Operation("{a} / ({b} * {b} + 1)", fits, arity=2),
    Operation("np.multiply({a}, {b})", fits, arity=2),
    Operation("np.arctan2({a}, {b} * {b} + 1)", fits, arity=2),
    Operation("np.logaddexp({a}, {b})", lambda a, b: fits(a, b) if a.inexact and b.inexact else [], arity=2),
    Operation("np.power(np.sin({a}) + 1.5, np.sin({b}))", lambda a, b: fits(a, b) if a.inexact and b.inexact else [], arity=2),
    # 1.3 is no value of a leaf: where both operands are as large, JAX's second derivative is 0 in place of 0.354.
    Operation("np.hypot({a}, np.square({b}) + 1.3)", lambda a, b: fits(a, b) if a.inexact and b.inexact else [], arity=2),
    Operation("np.maximum({a}, {b})", fits, arity=2, kink="ramp"),
    Operation("np.minimum({a}, {b})", fits, arity=2, kink="ramp"),
    Operation("np.where(np.array({mask}), {a}, {b})", masked, arity=2, exact=True),
    Operation("np.where({a} > 0, {b}, {c})", selected, arity=3, kink="shift"),
    *_unary("nn.relu({a})", "np.abs({a})", "np.clip({a}, -0.5, 0.5)", "np.sign({a}) * {a}", "np.floor({a}) + {a}", kink="shift"),
    Operation("np.clip({a}, {b}, {b} + 1)", lambda a, b: fits(a, b) if a.inexact and b.inexact else [], arity=2, kink="ramp"),
    Operation("np.sum({a}, axis={axis}, keepdims={keep})", reduced),
    Operation("{a}.sum({axis}, keepdims={keep})", lambda a: [] if a.raw else reduced(a)),
    Operation("np.mean({a}, axis={axis}, keepdims={keep})", functools.partial(reduced, empty=False)),
    Operation("np.prod({a}, axis={axis}, keepdims={keep})", reduced),
    Operation("np.var({a}, axis={axis}, keepdims={keep})", functools.partial(reduced, empty=False)),
    Operation("nn.logsumexp({a}, axis={axis}, keepdims={keep})", functools.partial(reduced, empty=False)),
    Operation("np.max({a}, axis={axis}, keepdims={keep})", functools.partial(reduced, empty=False), kink="ramp"),
    Operation("np.min({a}, axis={axis}, keepdims={keep})", functools.partial(reduced, empty=False), kink="ramp"),
    Operation("nn.softmax({a}, axis={axis})", along_full),
    Operation("nn.log_softmax({a}, axis={axis})", along_full),
    Operation("np.cumsum({a}, axis={axis})", along),
    Operation("np.cumprod({a}, axis={axis})", along_full),
    Operation("lax.cummax({a}, axis={axis})", lambda a: [o for o in along_full(a) if o["axis"] >= 0], kink="ramp"),
    Operation("np.sort({a}, axis={axis})", along_full, kink="ramp"),
    Operation("np.take_along_axis({a}, np.argsort({a}, axis={axis}), axis={axis})", along_full, kink="ramp"),
    Operation("lax.top_k({a}, 1)", lambda a: [{}] if a.inexact and a.ndim and a.size else [], kink="ramp"),
    Operation("np.argmax({a}, axis={axis})", along_full, kink="ramp"),
    Operation("np.reshape({a}, {shape})", reshaped, exact=True),
    Operation("{a}.reshape({shape})", lambda a: [] if a.raw else reshaped(a), exact=True),
    Operation("np.broadcast_to({a}, {shape})", broadcast, exact=True),
    Operation("np.transpose({a})", ranked(1), exact=True),
    Operation("{a}.T", lambda a: [] if a.raw else ranked(2)(a), exact=True),
    Operation("np.moveaxis({a}, 0, -1)", ranked(2), exact=True),
    Operation("np.squeeze({a})", ranked(1), exact=True),
    Operation("np.concatenate([{a}, {b}], axis={axis})", joined, arity=2, exact=True),
    Operation("np.stack([{a}, {b}], axis={axis})", stacked, arity=2, exact=True),
    Operation("tuple(np.split({a}, {count}, axis={axis}))", split, exact=True),
    Operation("tuple({a})", lambda a: [{}] if a.inexact and a.ndim and 1 < a.shape[0] <= 3 and not a.raw else [], exact=True),
    Operation("np.flip({a}, axis={axis})", along, exact=True),
    Operation("np.roll({a}, 1, axis={axis})", along, exact=True),
    Operation(
        "np.pad({a}, 1, mode={mode!r})",
        lambda a: [{"mode": m} for m in ("constant", "wrap", "edge")] if a.inexact and a.shape in ((1,), (2, 1)) else [],
        exact=True,
    ),
    Operation("np.tile({a}, 2)", ranked(0, 2), exact=True),
    Operation("np.repeat({a}, 2, axis={axis})", along, exact=True),
    Operation(
        "np.repeat({a}, onp.array([2, 0, 1]), axis=0, total_repeat_length=3)",
        lambda a: [{}] if a.inexact and a.ndim and a.shape[0] == 3 else [],
        exact=True,
    ),
    Operation("{a}[{i}]", lambda a: [] if a.raw else indexed(a), exact=True),
    Operation("np.take({a}, np.array({index}), axis={axis})", gathered, exact=True),
    Operation("{a}[{b} % {n}]", counted, arity=2, exact=True),
    Operation("{a}.at[{i}].{do}({b})", updated, arity=2, exact=True),
    Operation("{a} @ {b}", matmul, arity=2),
    Operation('np.einsum("ij,jk->ki", {a}, {b})', matrices, arity=2),
    Operation('np.einsum("ij,ij->i", {a}, {b})', same_rows, arity=2),
    Operation("np.outer({a}, {b})", both, arity=2),
    Operation("np.linalg.solve({a} @ {a}.T + 3 * np.eye(3, dtype={a}.dtype), {b})", solvable, arity=2),
    Operation("np.linalg.cholesky({a} @ {a}.T + 3 * np.eye(3, dtype={a}.dtype))", square),
    Operation("np.linalg.inv(np.tanh({a}) + 4 * np.eye(3, dtype={a}.dtype))", square),
    Operation("np.linalg.slogdet(np.tanh({a}) + 4 * np.eye(3, dtype={a}.dtype))", square),
    Operation("np.linalg.qr(np.tanh({a}) + 4 * np.eye(3, dtype={a}.dtype))", square),
    Operation(
        "(lambda e: (e[0], e[1] * e[1]))(np.linalg.eigh(np.tanh({a} + {a}.T) + np.diag(np.array([0, 5, 10], dtype={a}.dtype))))", square
    ),
    Operation("np.linalg.svd(np.tanh({a}) + np.diag(np.array([3, 8, 13], dtype={a}.dtype)), compute_uv=False)", square),
    Operation("{a}.astype(np.{dtype})", lambda a: [] if a.raw else cast(a)),
    Operation("np.round({a} * 3).astype(np.int32)", always, kink="shift"),
    Operation("np.arange({n}) + {a}", lambda a: [{"n": n} for n in (a.shape[-1:] or (3,)) if n] if a.inexact and not a.raw else []),
    Operation("{a} // 2 + 1", lambda a: [] if a.raw else integers(a)),
    Operation("{a} % 3", lambda a: [] if a.raw else integers(a)),
    Operation("stop_gradient({a})", lambda a: [] if a.raw else always(a), exact=True),
)


def moved(name: str, info: Info, kink: str | None) -> str:
    """Source of an operand, off the ties of its neighbours unless it is exact."""
    if kink is None or info.exact or not info.inexact:
        return name
    if kink == "shift" or not info.shape:
        return f"({name} - 0.1373)"
    return f"({name} + 0.3131 * onp.arange({info.size}).reshape({info.shape}).astype({info.dtype!r}))"


def source(operation: Operation, names: Sequence[str], infos: Sequence[Info], option: Mapping[str, Any]) -> str:
    """Text of one use of an operation."""
    places = {p: moved(n, i, operation.kink) for p, n, i in zip("abc", names, infos, strict=False)}
    if operation.kink == "ramp" and operation.arity == 2 and not all(i.exact for i in infos):
        places["b"] = f"({places['b']} + 0.0577)"
    return operation.text.format(**places, **option)


@functools.lru_cache(maxsize=100_000)
def results(
    operation: Operation,
    infos: tuple[Info, ...],
    options: Frozen,
    wide: bool,  # noqa: ARG001 - part of the cache's key
) -> tuple[tuple[Info, ...], bool] | None:
    """Return the infos of the results of an operation, and whether it returned a tuple; None where one has an unusual shape."""
    text = source(operation, "abc", infos, dict(options))

    def fun(*arrays: Any) -> Any:
        return evaluate(text, dict(zip("abc", arrays, strict=False)))

    out = jax.eval_shape(fun, *[jax.ShapeDtypeStruct(i.shape, i.dtype, weak_type=i.weak) for i in infos])
    several = isinstance(out, (tuple, list))
    exact = operation.exact and all(i.exact for i in infos)
    described = []
    for x in out if several else (out,):
        coarse = any(i.coarse for i in infos) or x.dtype.name in HALF
        described.append(
            Info(x.shape, x.dtype.name, exact=exact or not jnp.issubdtype(x.dtype, jnp.inexact), coarse=coarse, weak=x.weak_type)
        )
    return (tuple(described), several) if all(i.shape in SHAPES for i in described) else None


class Frozen(dict[str, Any]):
    """Parameters as a key of a cache."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(repr(sorted(self.items())))


class Reference:
    """The names of programs over JAX."""

    np, nn, lax, scipy, onp = jnp, jax.nn, jax.lax, jax.scipy, onp
    stop_gradient = staticmethod(jax.lax.stop_gradient)
    cube = staticmethod(lambda x: x * x * x)
    both_of = staticmethod(lambda x, y: (x * y, jnp.sin(x)))


REFERENCE = {name: getattr(Reference, name) for name in ("np", "nn", "lax", "scipy", "onp", "stop_gradient", "cube", "both_of")}


def evaluate(text: str, names: Mapping[str, Any]) -> Any:
    """Value of an expression over JAX."""
    return eval(_compiled(text), {**REFERENCE, **names})  # noqa: S307 - text of this module


@functools.lru_cache(maxsize=10_000)
def _compiled(text: str) -> types.CodeType:
    return compile(text, text, "eval")


def uses(operation: Operation, pool: Mapping[str, Info]) -> list[tuple[tuple[str, ...], tuple[Info, ...], dict[str, Any]]]:
    """All uses of an operation of values of a pool (name to Info): operands and parameters."""
    if operation.arity == 3:
        pool = dict(list(pool.items())[-5:])
    possible: list[tuple[tuple[str, ...], tuple[Info, ...], dict[str, Any]]] = []
    for names in itertools.product(pool, repeat=operation.arity):
        infos = tuple(pool[n] for n in names)
        if (operation.kink and any(i.coarse for i in infos)) or (operation.arity == 1 and infos[0].raw):
            continue
        possible.extend((names, infos, option) for option in operation.options(*infos))
    return possible
