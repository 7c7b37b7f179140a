"""What NumPy computes as XLA does: for each such primitive, the function of NumPy arrays that stands for one equation.

A primitive stands here for the dtypes for which both agree but for rounding; where the parameters or dtypes of an equation are others, its
maker returns None, and where its values are (a float that fits no integer), the function raises ValueError: XLA runs these.  What NumPy has
only in another form is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import itemgetter, methodcaller
from typing import Any

import numpy as np
from jax import lax

from tape import jaxapi
from tape.ops.host_places import gather, put, scatter, sort, top_k
from tape.ops.host_solving import cholesky, triangular_solve

Host = Any  # an array of NumPy, or one of its scalars: of shape ()
Call = Any  # a function of these, which returns one, or several in a list
Maker = Any  # of the function, from an equation's parameters and the avals of its inputs and results

_FLOATS = frozenset({np.dtype("float32"), np.dtype("float64")})
_INTEGERS = frozenset(np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64))
_SIGNED = frozenset(np.dtype(f"int{bits}") for bits in (8, 16, 32, 64))
_BOOL = frozenset({np.dtype(bool)})
_NUMBERS = _FLOATS | _INTEGERS


def _same(function: Call, dtypes: frozenset[Any]) -> Maker:
    """Return the maker of a function that needs no parameters, for inputs of these dtypes."""

    def make(_: dict[str, Any], ins: Sequence[Any], __: Sequence[Any]) -> Call | None:
        return function if all(a.dtype in dtypes for a in ins) else None

    return make


def _itself(x: Host) -> Host:
    return x


def _integer_pow(p: dict[str, Any], ins: Sequence[Any], _: Sequence[Any]) -> Call | None:
    y, dtype = p["y"], ins[0].dtype
    if dtype not in _FLOATS:
        return None
    one = dtype.type(1)

    def power(x: Host) -> Host:
        result = None
        square, left = x, abs(y)
        while left:
            if left & 1:
                result = square if result is None else result * square
            left >>= 1
            if left:
                square = square * square
        return one / result if y < 0 else result

    return np.ones_like if y == 0 else np.square if y == 2 else power


def _convert(p: dict[str, Any], ins: Sequence[Any], _: Sequence[Any]) -> Call | None:
    old, new = ins[0].dtype, p["new_dtype"]
    if old == new:
        return _itself
    if old not in _NUMBERS | _BOOL or new not in _NUMBERS | _BOOL:
        return None
    if old not in _FLOATS or new not in _INTEGERS:
        return lambda x: x.astype(new)
    low, high = float(np.iinfo(new).min), float(np.iinfo(new).max // 2 + 1) * 2  # a power of two, which any float can be

    def whole(x: Host) -> Host:
        if not ((x >= low) & (x < high)).all():
            raise ValueError("floats that do not fit are left to XLA")
        return x.astype(new)

    return whole


def _broadcast(p: dict[str, Any], ins: Sequence[Any], outs: Sequence[Any]) -> Call | None:
    if len(ins) > 1:
        return None
    shape, dtype = tuple(p["shape"]), outs[0].dtype
    sizes = [1] * len(shape)
    for d, n in zip(p["broadcast_dimensions"], ins[0].shape, strict=True):
        sizes[d] = n
    if tuple(sizes) == shape:
        return lambda x: x.reshape(shape)
    empty = np.empty
    whole = sizes[len(sizes) - len(ins[0].shape) :] == list(ins[0].shape)

    def broadcast(x: Host) -> Host:
        result = empty(shape, dtype)
        result[...] = x if whole else x.reshape(sizes)
        return result

    return broadcast


def _windows(shape: Sequence[int], sizes: Sequence[int]) -> Call:
    """Return what makes of start positions the window that XLA reads: it is moved to where it fits."""
    last = [n - size for n, size in zip(shape, sizes, strict=True)]

    def window(starts: Sequence[Host]) -> tuple[slice, ...]:
        firsts = [min(max(int(s), 0), end) for s, end in zip(starts, last, strict=True)]
        return tuple([slice(s, s + size) for s, size in zip(firsts, sizes, strict=True)])

    return window


def _dynamic_slice(p: dict[str, Any], ins: Sequence[Any], _: Sequence[Any]) -> Call:
    window = _windows(ins[0].shape, p["slice_sizes"])
    return lambda x, *starts: x[window(starts)]


def _dynamic_update_slice(_: dict[str, Any], ins: Sequence[Any], __: Sequence[Any]) -> Call:
    window = _windows(ins[0].shape, ins[1].shape)

    def update(x: Host, part: Host, *starts: Host) -> Host:
        result = x.copy()
        result[window(starts)] = part
        return result

    return update


def _reshape(p: dict[str, Any], _: Sequence[Any], __: Sequence[Any]) -> Call:
    shape, order = tuple(p["new_sizes"]), p["dimensions"]
    return (lambda x: x.reshape(shape)) if order is None else (lambda x: x.transpose(order).reshape(shape))


def _split(p: dict[str, Any], _: Sequence[Any], __: Sequence[Any]) -> Call:
    ends, axis = np.cumsum(p["sizes"])[:-1], p["axis"]
    return lambda x: np.split(x, ends, axis)


def _pad(p: dict[str, Any], ins: Sequence[Any], outs: Sequence[Any]) -> Call:
    config, dtype = p["padding_config"], outs[0].dtype
    lengths = [n + max(n - 1, 0) * inside for (_, _, inside), n in zip(config, ins[0].shape, strict=True)]
    whole = tuple([max(low, 0) + n + max(high, 0) for (low, high, _), n in zip(config, lengths, strict=True)])
    window = tuple([slice(max(low, 0), max(low, 0) + n, inside + 1) for (low, _, inside), n in zip(config, lengths, strict=True)])
    left = tuple([slice(max(-low, 0), n - max(-high, 0)) for (low, high, _), n in zip(config, whole, strict=True)])

    def pad(x: Host, value: Host) -> Host:
        result = np.empty(whole, dtype)
        result[...] = value
        result[window] = x
        return result[left]

    return pad


def _iota(p: dict[str, Any], ins: Sequence[Any], outs: Sequence[Any]) -> Call | None:
    shape, dtype, axis = outs[0].shape, outs[0].dtype, p["dimension"]
    if dtype not in _NUMBERS or len(p["shape"]) != len(shape) or ins:
        return None
    sizes = [n if d == axis else 1 for d, n in enumerate(shape)]
    line = np.array(np.broadcast_to(np.arange(shape[axis]).astype(dtype).reshape(sizes), shape))
    return lambda: line


def _reduction(ufunc: Any, dtypes: frozenset[Any]) -> Maker:
    def make(p: dict[str, Any], ins: Sequence[Any], outs: Sequence[Any]) -> Call | None:
        if ins[0].dtype not in dtypes or len(ins) > 1 or outs[0].dtype != ins[0].dtype:
            return None
        axes, dtype, reduce = tuple(p["axes"]), ins[0].dtype, ufunc.reduce
        whole: Any = axes if len(axes) != 1 else axes[0]
        if len(axes) == ins[0].ndim and ins[0].ndim > 1:
            whole = None
        return lambda x: reduce(x, whole, dtype)

    return make


def _position(function: Call) -> Maker:
    def make(p: dict[str, Any], ins: Sequence[Any], _: Sequence[Any]) -> Call | None:
        axes, dtype = p["axes"], p["index_dtype"]
        return (lambda x: function(x, axes[0]).astype(dtype)) if ins[0].dtype in _NUMBERS and len(axes) == 1 else None

    return make


def _running(ufunc: Any) -> Maker:
    def make(p: dict[str, Any], ins: Sequence[Any], _: Sequence[Any]) -> Call | None:
        axis, dtype = p["axis"], ins[0].dtype
        if dtype not in _NUMBERS:
            return None
        if p["reverse"]:
            return lambda x: np.flip(ufunc.accumulate(np.flip(x, axis), axis, dtype), axis)
        return lambda x: ufunc.accumulate(x, axis, dtype)

    return make


def _exact(precision: object) -> bool:
    """Tell whether a product is computed in the dtype of its factors, as on the CPU it is at any of JAX's three precisions."""
    return precision is None or all(isinstance(p, lax.Precision) for p in (precision if isinstance(precision, tuple) else (precision,)))


_ALONE = 1 << 18  # multiplications up to which NumPy's OpenBLAS uses one thread; with two, a busy machine takes it ten times as long


_product = np.ndarray.dot  # of arrays with axes, which are no scalars of NumPy: np.dot asks both first whether they are arrays of others


def _matrix_product(m: int, k: int, n: int) -> Call:
    """Return the product of matrices m x k and k x n, by rows where that keeps it on one thread."""
    rows = _ALONE // max(k * n, 1)
    if not 16 <= rows < m:  # with fewer, that would cost more than the threads do
        return _product

    def product(x: Host, y: Host) -> Host:
        out = np.empty((m, n), x.dtype)
        for i in range(0, m, rows):
            _product(x[i : i + rows], y, out[i : i + rows])
        return out

    return product


def _dot(p: dict[str, Any], ins: Sequence[Any], outs: Sequence[Any]) -> Call | None:
    a, b = ins
    (over_a, over_b), (batch_a, batch_b) = (tuple(map(tuple, pair)) for pair in p["dimension_numbers"])
    if a.dtype not in _FLOATS or a.dtype != b.dtype or outs[0].dtype != a.dtype or not _exact(p["precision"]):
        return None
    if not over_a and not batch_a:
        return (lambda x, y: np.multiply(x[:, None], y)) if a.ndim == b.ndim == 1 else np.multiply.outer  # in less time
    if not batch_a and len(over_a) == 1 and a.ndim <= 2 and b.ndim <= 2:
        if a.ndim == 2 and b.ndim == 2:
            turned_a, turned_b = over_a[0] == 0, over_b[0] == 1
            dot = _matrix_product(a.shape[1 - over_a[0]], a.shape[over_a[0]], b.shape[1 - over_b[0]])
            return (lambda x, y: dot(x.T if turned_a else x, y.T if turned_b else y)) if turned_a or turned_b else dot
        if over_a[0] == a.ndim - 1 and over_b[0] == 0:
            return _product
        return lambda x, y: _product(y, x)
    free_a = [d for d in range(a.ndim) if d not in over_a + batch_a]
    free_b = [d for d in range(b.ndim) if d not in over_b + batch_b]
    order_a, order_b = (*batch_a, *free_a, *over_a), (*batch_b, *over_b, *free_b)
    batch = [a.shape[d] for d in batch_a]
    m, k, n = (int(np.prod([x.shape[d] for d in dims], dtype=int)) for x, dims in ((a, free_a), (a, over_a), (b, free_b)))
    product = np.matmul if batch else _matrix_product(m, k, n)
    shape_a, shape_b, shape = (*batch, m, k), (*batch, k, n), outs[0].shape
    return lambda x, y: product(x.transpose(order_a).reshape(shape_a), y.transpose(order_b).reshape(shape_b)).reshape(shape)


def _remainder(_: dict[str, Any], ins: Sequence[Any], __: Sequence[Any]) -> Call | None:
    """Of integers, with the sign of the dividend; where the divisor is 0, the dividend."""
    if ins[0].dtype in _FLOATS:
        return np.fmod
    return (lambda x, y: np.where(y == 0, x, np.fmod(x, y))) if ins[0].dtype in _INTEGERS else None


def _quotient(_: dict[str, Any], ins: Sequence[Any], __: Sequence[Any]) -> Call | None:
    """Of integers, rounded towards zero; where the divisor is 0, a number of ones."""
    if ins[0].dtype in _FLOATS:
        return np.divide
    ones = np.array(-1).astype(ins[0].dtype)
    return (lambda x, y: np.where(y == 0, ones, np.floor_divide(x - np.fmod(x, y), y))) if ins[0].dtype in _INTEGERS else None


def _reduce_precision(p: dict[str, Any], ins: Sequence[Any], _: Sequence[Any]) -> Call | None:
    """Round to so many digits, to even ones where two are as near: half a unit is added to the bits, and what is below it cut off."""
    dtype = ins[0].dtype
    if dtype not in _FLOATS or p["exponent_bits"] != np.finfo(dtype).nexp:
        return None
    less = max(np.finfo(dtype).nmant - p["mantissa_bits"], 0)
    bits = np.dtype(f"u{dtype.itemsize}").type
    unit, one, below = bits(less), bits(1), bits((1 << less >> 1) - 1 if less else 0)
    mask = ~bits((1 << less) - 1)

    def rounded(x: Host) -> Host:
        x = np.asarray(x)
        number = x.view(bits)
        return np.where(np.isnan(x), x, ((number + (below + ((number >> unit) & one))) & mask).view(dtype))

    return rounded if less else _itself


def _where(which: Host, no: Host, yes: Host) -> Host:
    return np.where(which, yes, no)


def _rsqrt(x: Host) -> Host:
    return x.dtype.type(1) / np.sqrt(x)


def _logistic(x: Host) -> Host:
    one = x.dtype.type(1)
    return one / (one + np.exp(-x))


def _one_minus_square(x: Host) -> Host:
    one = x.dtype.type(1)
    return (one - x) * (one + x)


_OWN_NAMES = {  # what NumPy has under the same name, by the dtypes
    _FLOATS: "acos acosh asin asinh atan atan2 atanh cbrt ceil cos cosh exp exp2 expm1 floor log log1p pow sin sinh sqrt tan tanh",
    _NUMBERS: "abs sign square",
}
FUNCTIONS: dict[str, tuple[Call, frozenset[Any]]] = {
    **{name: (getattr(np, name), dtypes) for dtypes, names in _OWN_NAMES.items() for name in names.split()},
    "and": (np.bitwise_and, _INTEGERS | _BOOL),
    "clamp": (lambda low, x, high: np.minimum(np.maximum(x, low), high), _NUMBERS),
    "eq": (np.equal, _NUMBERS | _BOOL),
    "ge": (np.greater_equal, _NUMBERS),
    "gt": (np.greater, _NUMBERS),
    "is_finite": (np.isfinite, _FLOATS),
    "le": (np.less_equal, _NUMBERS),
    "logistic": (_logistic, _FLOATS),
    "lt": (np.less, _NUMBERS),
    "max": (np.maximum, _NUMBERS | _BOOL),
    "min": (np.minimum, _NUMBERS | _BOOL),
    "mul": (np.multiply, _NUMBERS | _BOOL),
    "ne": (np.not_equal, _NUMBERS | _BOOL),
    "neg": (np.negative, _NUMBERS),
    "not": (np.invert, _INTEGERS | _BOOL),
    "one_minus_square": (_one_minus_square, _FLOATS),
    "or": (np.bitwise_or, _INTEGERS | _BOOL),
    "rsqrt": (_rsqrt, _FLOATS),
    "shift_right_arithmetic": (np.right_shift, _SIGNED),
    "sub": (np.subtract, _NUMBERS),
    "xor": (np.bitwise_xor, _INTEGERS | _BOOL),
}
_TO_SHAPE: Maker = lambda _, __, outs: methodcaller("reshape", outs[0].shape)  # noqa: E731 - of two primitives
_MAKERS: dict[str, Maker] = {
    **{name: _same(*given) for name, given in FUNCTIONS.items()},
    "add": lambda *_: np.add,
    "add_jaxvals": lambda *_: np.add,
    "argmax": _position(np.argmax),
    "argmin": _position(np.argmin),
    "broadcast_in_dim": _broadcast,
    "cholesky": cholesky(_FLOATS),
    "concatenate": lambda p, *_: lambda *xs: np.concatenate(xs, p["dimension"]),
    "convert_element_type": _convert,
    "copy": lambda *_: _itself,
    "copy_p": lambda *_: _itself,
    "cumprod": _running(np.multiply),
    "cumsum": _running(np.add),
    "div": _quotient,
    "dot_general": _dot,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "expand_dims": _TO_SHAPE,
    "gather": gather,
    "integer_pow": _integer_pow,
    "iota": _iota,
    "name": lambda *_: _itself,
    "optimization_barrier": lambda *_: lambda *xs: xs,
    "pad": _pad,
    "reduce_and": _reduction(np.logical_and, _BOOL),
    "reduce_max": _reduction(np.maximum, _NUMBERS),
    "reduce_min": _reduction(np.minimum, _NUMBERS),
    "reduce_or": _reduction(np.logical_or, _BOOL),
    "reduce_precision": _reduce_precision,
    "reduce_prod": _reduction(np.multiply, _NUMBERS),
    "reduce_sum": _reduction(np.add, _NUMBERS),
    "reshape": _reshape,
    "rem": _remainder,
    "rev": lambda p, *_: lambda x: np.flip(x, tuple(p["dimensions"])),
    "round": lambda p, ins, _: np.rint if int(p["rounding_method"]) == 1 and ins[0].dtype in _FLOATS else None,
    "scatter": scatter(put, _NUMBERS | _BOOL),
    "scatter_add": scatter(np.add.at, _NUMBERS),
    "scatter_max": scatter(np.maximum.at, _NUMBERS),
    "scatter_min": scatter(np.minimum.at, _NUMBERS),
    "scatter_mul": scatter(np.multiply.at, _NUMBERS),
    "scatter_sub": scatter(np.subtract.at, _NUMBERS),
    "select_n": lambda _, ins, __: _where if len(ins) == 3 and ins[0].dtype == bool else None,
    "slice": lambda p, *_: itemgetter(tuple(map(slice, p["start_indices"], p["limit_indices"], p["strides"] or repeat(1)))),
    "sort": sort(_NUMBERS),
    "split": _split,
    "squeeze": _TO_SHAPE,
    "stop_gradient": lambda *_: _itself,
    "stack": lambda p, *_: lambda *xs: np.stack(xs, p["axis"]),
    "top_k": top_k(_FLOATS),
    "transpose": lambda p, *_: methodcaller("transpose", tuple(p["permutation"])),
    "triangular_solve": triangular_solve(_FLOATS),
    "unstack": lambda p, *_: lambda x: list(np.moveaxis(x, p["axis"], 0)),
}
ON_HOST = {primitive: make for name, make in _MAKERS.items() if (primitive := jaxapi.primitive(name)) is not None}
