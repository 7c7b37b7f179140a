"""The operations that random programs are made of: source text that means the same over ``jax.numpy`` and over the tape.

An operation lists, for given operands, the parameters with which it is defined there (none: it does not fit).  Domains are guarded in
the text, so that every value stays moderate.  Where a derivative jumps, operands that are not exact (computed, so known up to rounding)
are moved off the ties: rounding would decide otherwise, and compiled and interpreted programs round differently.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as onp

SHAPES = ((), (1,), (2,), (3,), (6,), (0,), (2, 3), (3, 2), (3, 1), (1, 3), (3, 3), (2, 1), (2, 2), (0, 3), (2, 1, 3), (2, 3, 1), (1, 3, 3), (2, 2, 3), (2, 3, 3), (2, 1, 3, 3))
HALF = ("float16", "bfloat16")


@dataclass(frozen=True)
class Info:
    """What the strategy knows of a value: ``exact`` means free of rounding, ``coarse`` that half precision took part."""

    shape: tuple[int, ...]
    dtype: str
    exact: bool = True
    coarse: bool = False
    weak: bool = False
    raw: bool = False  # not a Variable when run on the tape

    @property
    def ndim(self):
        return len(self.shape)

    @property
    def size(self):
        return math.prod(self.shape)

    @property
    def inexact(self):
        return self.dtype.startswith(("float", "bfloat"))

    @property
    def full(self):
        """A float that LAPACK and the special functions take."""
        return self.inexact and self.dtype not in HALF


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


def always(*operands):
    return [{}] if all(x.inexact for x in operands) else []


def fits(*operands):
    """Broadcast together, at least one of them a float, and a Variable."""
    if not any(x.inexact for x in operands) or all(x.raw for x in operands):
        return []
    try:
        onp.broadcast_shapes(*(x.shape for x in operands))
    except ValueError:
        return []
    return [{}]


def axes(x):
    return [None, *range(x.ndim), *([-1] if x.ndim else []), *([(0, 1)] if x.ndim >= 2 else [])]


def reduced(x, *, empty=True):
    if not x.inexact or (x.size == 0 and not empty):
        return []
    return [{"axis": axis, "keep": keep} for keep in (False, True) for axis in axes(x)]


def along(x, *, empty=True):
    if not x.inexact or (x.size == 0 and not empty):
        return []
    return [{"axis": axis} for axis in (*range(x.ndim), *([-1] if x.ndim else []))]


def along_full(x):
    return along(x, empty=False)


def reshaped(x):
    return [{"shape": s} for s in SHAPES if math.prod(s) == x.size and s != x.shape] if x.inexact else []


def broadcast(x):
    def possible(shape):
        try:
            return onp.broadcast_shapes(x.shape, shape) == shape and shape != x.shape
        except ValueError:
            return False

    return [{"shape": s} for s in SHAPES if possible(s)] if x.inexact else []


def joined(a, b):
    if not (a.inexact and b.inexact) or a.ndim != b.ndim:
        return []
    return [{"axis": i} for i in range(a.ndim) if all(m == n for j, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)) if i != j)]


def stacked(a, b):
    return [{"axis": i} for i in (*range(a.ndim + 1), -1)] if a.shape == b.shape and a.inexact and b.inexact else []


def split(x):
    if not x.inexact:
        return []
    return [{"axis": i, "count": n} for i in range(x.ndim) for n in (2, 3) if x.shape[i] and x.shape[i] % n == 0]


def ranked(low, high=3, *, empty=True):
    return lambda x: [{}] if x.inexact and low <= x.ndim <= high and (empty or x.size) else []


def indexed(x):
    """Basic and advanced static indices."""
    if not x.inexact or not x.ndim or x.shape[0] == 0:
        return []
    n = x.shape[0]
    found = ["0", "-1", "0:1", "1:", "::-1", "None", "..., None", "...", ":-1", "::2", f"onp.array([0, {n - 1}, 0])", "onp.array([[0, -1], [0, 0]])"]
    found += [f"onp.arange({n}) % 2 == 0"]
    if x.ndim >= 2 and x.shape[1]:
        m = x.shape[1]
        found += ["0, 0", ":, 0", "..., -1", ":, ::-1", f"onp.array([0, {n - 1}, 0]), onp.array([{m - 1}, 0, {m - 1}])", ":, onp.array([0, 0, 0])", "-1, None, :1"]
    return [{"i": i} for i in found]


def updated(a, b):
    """``a.at[i].add(b)``: b is broadcast to ``a[i]``, indices may be duplicate."""
    return [{"i": o["i"], "do": do} for o in indexed(a) for do in ("add", "set", "multiply") if _assignable(a, b, o["i"], duplicates=do == "add")]


@functools.cache
def _assignable(a, b, index, *, duplicates):
    if "arange" in index or not b.inexact or (not duplicates and "array" in index) or b.dtype != a.dtype or a.raw:
        return False
    target = eval(f"x[{index}]", {"onp": onp, "x": onp.zeros(a.shape)}).shape  # noqa: S307 - one of the literals above
    try:
        return onp.broadcast_shapes(target, b.shape) == target
    except ValueError:
        return False


def square(x):
    return [{}] if x.full and x.shape == (3, 3) else []


def solvable(a, b):
    return [{}] if square(a) and b.full and b.ndim in (1, 2) and b.shape[0] == 3 and a.dtype == b.dtype else []


def matmul(a, b):
    if not (a.inexact and b.inexact) or not a.ndim or not b.ndim or (a.raw and b.raw):
        return []
    return [{}] if a.shape[-1] == b.shape[-2 if b.ndim > 1 else -1] and max(a.ndim, b.ndim) <= 2 else []


def matrices(a, b):
    return [{}] if a.inexact and b.inexact and a.ndim == b.ndim == 2 and a.shape[1] == b.shape[0] else []


def same_rows(a, b):
    return [{}] if a.inexact and b.inexact and a.ndim == b.ndim == 2 and a.shape == b.shape else []


def both(a, b):
    return [{}] if a.inexact and b.inexact and a.ndim == b.ndim == 1 else []


def masked(a, b):
    """A mask of the broadcast shape, given as data."""
    return [{"mask": (onp.arange(math.prod(s)) % 3 == 1).reshape(s).tolist()} for _ in fits(a, b) for s in [onp.broadcast_shapes(a.shape, b.shape)] if math.prod(s)]


def selected(a, b, c):
    return fits(a, b, c) if a.inexact and b.inexact and c.inexact else []


def cast(x):
    return [{"dtype": d} for d in ("float16", "bfloat16", "float32", "float64") if d != x.dtype and (d != "float64" or jax.config.jax_enable_x64)] if x.inexact else []


def integers(x):
    return [{}] if x.dtype.startswith("int") else []


def counted(a, i):
    return [{"n": a.shape[0]}] if a.inexact and a.ndim and a.shape[0] and i.dtype.startswith("int") and i.ndim <= 1 and not a.raw else []


def gathered(x):
    if not x.inexact or not x.size:
        return []
    return [{"axis": i, "index": [0, n - 1, 0]} for i, n in enumerate(x.shape)]


def _unary(*texts, **kwargs):
    return [Operation(t, always, **kwargs) for t in texts]


OPERATIONS = (
    *_unary("np.tanh({a})", "np.sin({a})", "{a} * 0.5", "nn.sigmoid({a})", "np.exp(np.sin({a}))", "np.log({a} * {a} + 1)", "np.cos({a})"),
    *_unary("np.sqrt({a} * {a} + 0.5)", "nn.softplus({a})", "nn.gelu({a})", "np.arctan({a})", "np.square({a})", "1 / ({a} * {a} + 1)"),
    *_unary("np.expm1(np.tanh({a}))", "np.log1p({a} * {a})", "lax.rsqrt({a} * {a} + 1)", "nn.silu({a})", "np.tanh({a}) ** 3", "(1.5 + np.sin({a})) ** 1.5"),
    *_unary("2.0 - {a}", "-{a}", "{a} + {a}", exact=True),
    Operation("scipy.special.erf({a})", lambda a: [{}] if a.full else []),
    Operation("scipy.special.gammaln({a} * {a} + 1)", lambda a: [{}] if a.full else []),
    Operation("cube({a})", always),
    Operation("both_of({a}, {b})", lambda a, b: [{}] if a.shape == b.shape and a.dtype == b.dtype and a.inexact and not (a.raw or b.raw) else [], arity=2),
    Operation("{a} * {b}", fits, arity=2),
    Operation("{a} + {b}", fits, arity=2),
    Operation("{a} - {b}", fits, arity=2),
    Operation("{a} / ({b} * {b} + 1)", fits, arity=2),
    Operation("np.multiply({a}, {b})", fits, arity=2),
    Operation("np.arctan2({a}, {b} * {b} + 1)", fits, arity=2),
    Operation("np.logaddexp({a}, {b})", lambda a, b: fits(a, b) if a.inexact and b.inexact else [], arity=2),
    Operation("np.power(np.sin({a}) + 1.5, np.sin({b}))", lambda a, b: fits(a, b) if a.inexact and b.inexact else [], arity=2),
    Operation("np.hypot({a}, np.square({b}) + 1)", lambda a, b: fits(a, b) if a.inexact and b.inexact else [], arity=2),
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
    Operation("np.pad({a}, 1, mode={mode!r})", lambda a: [{"mode": m} for m in ("constant", "wrap", "edge")] if a.inexact and a.shape in ((1,), (2, 1)) else [], exact=True),
    Operation("np.tile({a}, 2)", ranked(0, 2), exact=True),
    Operation("np.repeat({a}, 2, axis={axis})", along, exact=True),
    Operation("np.repeat({a}, onp.array([2, 0, 1]), axis=0, total_repeat_length=3)", lambda a: [{}] if a.inexact and a.ndim and a.shape[0] == 3 else [], exact=True),
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
    Operation("(lambda e: (e[0], e[1] * e[1]))(np.linalg.eigh(np.tanh({a} + {a}.T) + np.diag(np.array([0, 5, 10], dtype={a}.dtype))))", square),
    Operation("np.linalg.svd(np.tanh({a}) + np.diag(np.array([3, 8, 13], dtype={a}.dtype)), compute_uv=False)", square),
    Operation("{a}.astype(np.{dtype})", lambda a: [] if a.raw else cast(a)),
    Operation("np.round({a} * 3).astype(np.int32)", always, kink="shift"),
    Operation("np.arange({n}) + {a}", lambda a: [{"n": n} for n in (a.shape[-1:] or (3,)) if n] if a.inexact and not a.raw else []),
    Operation("{a} // 2 + 1", lambda a: [] if a.raw else integers(a)),
    Operation("{a} % 3", lambda a: [] if a.raw else integers(a)),
    Operation("stop_gradient({a})", lambda a: [] if a.raw else always(a), exact=True),
)


def moved(name, info, kink):
    """Source of an operand, off the ties of its neighbours unless it is exact."""
    if kink is None or info.exact or not info.inexact:
        return name
    if kink == "shift" or not info.shape:
        return f"({name} - 0.1373)"
    return f"({name} + 0.3131 * onp.arange({info.size}).reshape({info.shape}).astype({info.dtype!r}))"


def source(operation, names, infos, option):
    """Text of one use of an operation."""
    places = {p: moved(n, i, operation.kink) for p, n, i in zip("abc", names, infos, strict=False)}
    if operation.kink == "ramp" and operation.arity == 2 and not all(i.exact for i in infos):
        places["b"] = f"({places['b']} + 0.0577)"
    return operation.text.format(**places, **option)


@functools.lru_cache(maxsize=100_000)
def results(operation, infos, options, wide):
    """Infos of the results of an operation, and whether it returned a tuple; None where one has an unusual shape."""
    text = source(operation, "abc", infos, dict(options))

    def fun(*arrays):
        return evaluate(text, dict(zip("abc", arrays, strict=False)))

    out = jax.eval_shape(fun, *[jax.ShapeDtypeStruct(i.shape, i.dtype, weak_type=i.weak) for i in infos])
    several = isinstance(out, (tuple, list))
    exact = operation.exact and all(i.exact for i in infos)
    found = []
    for x in out if several else (out,):
        coarse = any(i.coarse for i in infos) or x.dtype.name in HALF
        found.append(Info(x.shape, x.dtype.name, exact=exact or not jnp.issubdtype(x.dtype, jnp.inexact), coarse=coarse, weak=x.weak_type))
    return (tuple(found), several) if all(i.shape in SHAPES for i in found) else None


class Reference:
    """The names of programs over JAX."""

    np, nn, lax, scipy, onp = jnp, jax.nn, jax.lax, jax.scipy, onp
    stop_gradient = staticmethod(jax.lax.stop_gradient)
    cube = staticmethod(lambda x: x * x * x)
    both_of = staticmethod(lambda x, y: (x * y, jnp.sin(x)))


REFERENCE = {name: getattr(Reference, name) for name in ("np", "nn", "lax", "scipy", "onp", "stop_gradient", "cube", "both_of")}


def evaluate(text, names):
    """Value of an expression over JAX."""
    return eval(_compiled(text), {**REFERENCE, **names})  # noqa: S307 - text of this module


@functools.lru_cache(maxsize=10_000)
def _compiled(text):
    return compile(text, text, "eval")


def uses(operation, pool):
    """All uses of an operation of values of a pool (name to Info): operands and parameters."""
    if operation.arity == 3:
        pool = dict(list(pool.items())[-5:])
    found = []
    for names in itertools.product(pool, repeat=operation.arity):
        infos = tuple(pool[n] for n in names)
        if (operation.kink and any(i.coarse for i in infos)) or (operation.arity == 1 and infos[0].raw):
            continue
        found.extend((names, infos, option) for option in operation.options(*infos))
    return found
