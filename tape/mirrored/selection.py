"""Functions whose result's shape depends on values: they look at them, and record a gather through which gradients flow."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from tape import jaxapi
from tape.errors import TapeValueError
from tape.graph.scope import LOCAL
from tape.graph.segment import Handle
from tape.graph.trees import leaves_of
from tape.mirrored.mirror import call, mirrored, on_values, variable
from tape.programs.handing import array_of
from tape.programs.program import look
from tape.recording import record


def _gather(positions: jax.Array, *data: jax.Array, dtype: Any = None) -> jax.Array:
    """Elements of ``data``, which get ``dtype``; None: that of the first of them.  Those of weak types stay so."""
    to = data[0].dtype if dtype is None else dtype
    return jnp.concatenate([x.ravel() if x.dtype == to else x.ravel().astype(to) for x in data])[positions]


def _take(positions: jax.Array, data: jax.Array, axis: int) -> jax.Array:
    return jnp.take(data, positions, axis)


def _gathered(name: str, positions: object, data: list[Any], dtype: object = None) -> Any:
    where = record.leaf(array_of(np.asarray(positions).astype(np.int32)))
    return call(_gather, name, (where, *data), {"dtype": dtype})


def _known(*values: object) -> bool:
    """Say whether none of the values is a tracer."""
    leaves = leaves_of(values)
    return not any(isinstance(_value(x), jaxapi.Tracer) for x in leaves)


def _value(x: object) -> Any:
    return look(x) if isinstance(x, Handle) else x


def _as_source(x: object) -> Any:
    return variable(np.asarray(x) if isinstance(x, (list, tuple)) else x)


def _is_array(value: object) -> bool:
    return isinstance(value, (Handle, jax.Array, np.ndarray, list, tuple))


_NEAR = 1 << 16  # bytes, which take no time to bring to the host


def _here(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of JAX's as NumPy's of that name does it where both do the same: small arrays take it a hundredth of the time."""
    host: Callable[..., Any] = getattr(np, fun.__name__)

    @functools.wraps(fun)
    def run(*args: object, **kwargs: object) -> object:
        given = (*args, *kwargs.values())
        arrays = [x for x in given if isinstance(x, (np.ndarray, jax.Array))]
        if all(map(_is_plain, given)) and (len({x.dtype for x in arrays}) == 1 or all(x.dtype.kind != "f" for x in arrays)):
            with contextlib.suppress(Exception):  # JAX says what is wrong, or does what NumPy does not
                results = host(*map(_on_host, args), **{k: _on_host(x) for k, x in kwargs.items()})
                return jax.tree.map(array_of, results)
        return fun(*args, **kwargs)

    return run


def _is_plain(x: Any) -> bool:
    """Tell whether NumPy takes an argument as JAX does, and is near to it."""
    if not isinstance(x, (np.ndarray, jax.Array)):
        return x is None or isinstance(x, (bool, int))
    near = isinstance(x, np.ndarray) or x.nbytes <= _NEAR or all(d.platform == "cpu" for d in x.devices())
    return near and isinstance(x.dtype, np.dtype) and x.dtype.kind in "biuf"


def _on_host(x: object) -> object:
    return np.asarray(x) if isinstance(x, jax.Array) else x


def _by_position(fun: Callable[..., Any], data: tuple[str, ...], deciding: str) -> Callable[..., Any]:
    """Select from ``data`` as ``fun`` selects from their positions, where the argument ``deciding`` is an array."""
    name = fun.__name__
    signature = inspect.signature(fun)
    static = [n for n in ("size", "total_repeat_length") if n in signature.parameters]

    def select(*args: object, **kwargs: Any) -> object:
        bound = signature.bind(*args, **kwargs)
        given = bound.arguments
        if any(given.get(n) is not None for n in static) or not _is_array(given[deciding]) or not _known(given[deciding]):
            return call(fun, name, args, kwargs)
        sources = []
        offset = 0
        for n in data:
            source = _as_source(given[n])
            sources.append(source)
            given[n] = np.arange(offset, offset + source.size).reshape(source.shape)
            offset += source.size
        given[deciding] = np.asarray(_value(given[deciding]))
        return _gathered(name, on_values(_here(fun), name, bound.args, bound.kwargs).value, sources)

    return select


def _by_value(fun: Callable[..., Any], data: tuple[str, ...]) -> Callable[..., Any]:
    """Gather the values that ``fun`` finds (its first result) from where they come first among ``data``."""
    name = fun.__name__
    signature = inspect.signature(fun)
    here = fun if name.startswith("unique_") else _here(fun)  # JAX names their results in types of its own

    def select(*args: object, **kwargs: Any) -> object:
        bound = signature.bind(*args, **kwargs)
        given = bound.arguments
        sources = [given[n] for n in data]
        if given.get("size") is not None:
            return call(fun, name, args, kwargs)
        if not _requires_grad(sources) or not _known(sources):
            return on_values(here, name, args, kwargs)
        given.update({n: _value(given[n]) for n in data})
        results = on_values(here, name, bound.args, bound.kwargs)
        axis = given.get("axis")
        first: Any = results if isinstance(results, Handle) else results[0]
        if len(data) == 1:
            options: dict[str, Any] = (
                {k: given[k] for k in ("axis", "equal_nan") if k in given} if name == "unique" else {"equal_nan": False}
            )
            positions = _here(jnp.unique)(given[data[0]], return_index=True, **options)[1]
        else:
            positions = _first_positions(np.concatenate([np.ravel(given[n]) for n in data]).astype(first.dtype), np.asarray(look(first)))
        if axis is None:
            found_in = sources[:1] if name == "setdiff1d" else sources
            values = _gathered(name, positions, [variable(s) for s in found_in], first.dtype)
        else:
            values = call(_take, name, (record.leaf(positions), sources[0], axis), {})
        if isinstance(results, Handle):
            return values
        return type(results)(values, *results[1:]) if hasattr(results, "_fields") else (values, *results[1:])

    return select


def _first_positions(values: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    order = np.argsort(values, kind="stable")
    return order[np.searchsorted(values[order], wanted)] if values.size else np.zeros(0, np.int32)


def _requires_grad(values: Iterable[object]) -> bool:
    return bool(LOCAL.scope.mode) and any(
        isinstance(v, Handle) and (v._place.kind.requires_grad or v._place.kind.unrecorded) for v in values
    )


def _trim_zeros(filt: object, trim: str = "fb", axis: int | Sequence[int] | None = None) -> object:
    if not _is_array(filt) or not _known(filt):
        return call(jnp.trim_zeros, "trim_zeros", (filt, trim, axis), {})
    source = _as_source(filt)
    if not source.ndim:
        return source
    front, back = "f" in trim.lower(), "b" in trim.lower()
    axes = range(source.ndim) if axis is None else normalize_axis_tuple(axis, source.ndim)
    index = [slice(None)] * source.ndim
    for a, (n, positions) in enumerate(zip(source.shape, np.nonzero(np.asarray(look(source))), strict=True)):
        empty = (n, n) if front else (0, 0)
        low, high = (int(positions.min()), int(positions.max()) + 1) if positions.size else empty
        if a in axes:
            index[a] = slice(low if front else 0, high if back else n)
    return source[tuple(index)]


def _bincount(x: object, weights: object = None, minlength: int = 0, *, length: int | None = None, **options: object) -> object:
    if length is None and _known(x):
        values = np.asarray(_value(x))
        length = max(int(minlength), int(values.max()) + 1 if values.size else 0)
    elif length is not None:
        options["minlength"] = minlength
    return call(jnp.bincount, "bincount", (x, weights), {"length": length, **options})


def over_segments(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a sum (or a product, minimum, maximum) over segments, which looks at the segments' numbers where their count is not given."""
    name = original.__name__
    recording = mirrored(original, name, module="tape.ops")
    signature = inspect.signature(original)

    @functools.wraps(original)
    def select(*args: object, **kwargs: object) -> object:
        given = signature.bind_partial(*args, **kwargs).arguments
        if given.get("num_segments") is not None or "segment_ids" not in given or not _known(given["segment_ids"]):
            return recording(*args, **kwargs)
        numbers = np.asarray(_value(given["segment_ids"]))
        if not numbers.size:  # JAX says that a count is needed
            return on_values(original, name, args, kwargs)
        given["num_segments"] = int(numbers.max()) + 1
        return recording(**given)

    return select


def choose(a: object, choices: Sequence[object], out: None = None, mode: str = "raise") -> object:
    """Choose from arrays by position; ``mode="raise"`` looks at the positions."""
    if mode == "raise" and out is None and _known(a):
        values = np.asarray(_value(a))
        count = len(choices)
        if values.size and not (values.min() >= 0 and values.max() < count):
            msg = (
                f"choose: an entry of a is outside 0 to {count - 1} (found {values.min()} to {values.max()}); "
                "use mode='wrap' or mode='clip'"
            )
            raise TapeValueError(msg)
        mode = "clip"
    return call(jnp.choose, "choose", (a, choices, out, mode), {})


def _roots(p: object, *, strip_zeros: bool = True) -> object:
    if strip_zeros and _known(p):
        coefficients = _as_source(p)
        if coefficients.ndim < 2:
            coefficients = coefficients.reshape(-1)
            positions = np.nonzero(np.asarray(look(coefficients)))[0]
            start = int(positions[0]) if positions.size else coefficients.size
            return call(jnp.roots, "roots", (coefficients[start:],), {"strip_zeros": False})
    return call(jnp.roots, "roots", (p,), {"strip_zeros": strip_zeros})


def _where(*args: object, **kwargs: object) -> object:
    if len(args) == 1 and kwargs.get("size") is None and not ({"x", "y"} & set(kwargs)):
        return on_values(_here(jnp.where), "where", args, kwargs)
    return _WHERE(*args, **kwargs)


def _looking(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Look at the values, unless ``size`` is given."""
    here = _here(fun)

    def select(*args: object, **kwargs: Any) -> object:
        return on_values(here, fun.__name__, args, kwargs) if kwargs.get("size") is None else call(fun, fun.__name__, args, kwargs)

    return select


_WHERE = mirrored(jnp.where, "where")
THROUGH: dict[object, Any] = {_where: _WHERE}  # what serves all calls that it has served before

compress = _by_position(jnp.compress, ("a",), "condition")
repeat = _by_position(jnp.repeat, ("a",), "repeats")
nonzero = _looking(jnp.nonzero)

SELECTIONS: dict[str, Callable[..., Any]] = {
    "choose": choose,
    "argwhere": _looking(jnp.argwhere),
    "bincount": _bincount,
    "compress": compress,
    "delete": _by_position(jnp.delete, ("arr",), "obj"),
    "extract": _by_position(jnp.extract, ("arr",), "condition"),
    "flatnonzero": _looking(jnp.flatnonzero),
    "insert": _by_position(jnp.insert, ("arr", "values"), "obj"),
    "intersect1d": _by_value(jnp.intersect1d, ("ar1", "ar2")),
    "nonzero": nonzero,
    "repeat": repeat,
    "roots": _roots,
    "setdiff1d": _by_value(jnp.setdiff1d, ("ar1", "ar2")),
    "setxor1d": _by_value(jnp.setxor1d, ("ar1", "ar2")),
    "trim_zeros": _trim_zeros,
    "union1d": _by_value(jnp.union1d, ("ar1", "ar2")),
    "unique": _by_value(jnp.unique, ("ar",)),
    "unique_all": _by_value(jnp.unique_all, ("x",)),
    "unique_counts": _by_value(jnp.unique_counts, ("x",)),
    "unique_inverse": _by_value(jnp.unique_inverse, ("x",)),
    "unique_values": _by_value(jnp.unique_values, ("x",)),
    "where": _where,
}
