"""Indexing: ``v[i]``, and how an index is taken apart.

Positions given as integers, and windows ``v[a:b]`` with both ends given, are inputs of the op, so that a loop over them records the same
structure every time.  Other slices are static.  Boolean masks are looked at and become integer indices, so that gradients flow through the
gather.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tape import jaxapi
from tape.bounded import Bounded
from tape.errors import ConcretizationError, TapeIndexError, TapeTypeError, TapeValueError
from tape.graph.kinds import NUMBERS
from tape.graph.segment import Handle
from tape.graph.trees import leaves_of
from tape.mirrored.mirror import call
from tape.ops.kernel import Op, intern_op
from tape.programs.handing import array_of
from tape.programs.program import look
from tape.recording import record
from tape.recording.template import ARRAY, NUMBER

Position = np.int32 | np.int64
Spec = tuple[Any, ...]  # per axis: "new" (of length one), "at" (one position), the length of a window, or (start, stop, step)
_LIMIT = 1 << 14
_STARTS: Bounded[int, Position] = Bounded("positions", _LIMIT)
_PLANS: Bounded[tuple[object, ...], tuple[Op, tuple[Position, ...]]] = Bounded("indices", _LIMIT)
_GATHERS: Bounded[tuple[object, ...], Op] = Bounded("indices with arrays", _LIMIT)


def _start(position: int) -> Position:
    """Return a position as a NumPy scalar: an input of the op."""
    return _STARTS.cached(position, lambda: np.int32(position) if position < 2**31 else np.int64(position))


def _take_first(x: jax.Array, i: jax.Array) -> Any:
    return lax.dynamic_index_in_dim(x, i, 0, keepdims=False, allow_negative_indices=False)


_FIRST = Op("getitem", _take_first)


def getitem(v: Handle, index: object) -> Any:
    """Record ``v[index]``.

    Raises:
        TapeIndexError: an integer is out of range, there are too many indices, or a mask does not fit.

    """
    shape = v._place.kind.aval.shape
    if type(index) is int and shape:
        n = shape[0]
        if -n <= index < n:
            position = index if index >= 0 else index + n
            return record.record_number(_FIRST, v, _STARTS.get(position) or _start(position))
    items = index if type(index) is tuple else (index,)
    key = basic(items, [shape])
    if key is not None:
        known = _PLANS.get(tuple(key))
        if known is None:
            if any(n.__class__ is not int for n in shape):  # symbolic lengths of jax.export, with which JAX reckons itself
                return record.record(Op("getitem", functools.partial(gather, index=index)), (v,))
            spec, starts = plan(shape, items, windows=True)
            known = _PLANS[tuple(key)] = (basic_op("getitem", _read, spec), starts)
        op, starts = known
        return record.record_number(op, v, starts[0]) if len(starts) == 1 else record.record(op, (v, *starts))
    # An index that holds arrays, or what else is not an integer, slice or new axis.
    return known_call(gather, "getitem", v, items, (), lambda: (v, expand(v, index, strict=True)))


def basic(items: tuple[Any, ...], key: list[Any]) -> list[Any] | None:
    """Return a key with an index of integers, slices of them and new axes; None where it is another."""
    for item in items:
        kind = type(item)
        if kind is slice:
            start, stop, step = item.start, item.stop, item.step
            if type(start) not in _BOUNDS or type(stop) not in _BOUNDS or type(step) not in _BOUNDS:
                return None
            key.append((start, stop, step))
        elif kind is int or item is None or item is Ellipsis:
            key.append(item)
        else:
            return None
    return key


def known_call(fun: Callable[..., Any], name: str, v: Handle, items: tuple[object, ...], values: tuple[Any, ...], arguments: Any) -> Any:
    """Record ``fun`` of the ``arguments``: ``v``, an index of ``items``, and ``values``; without taking them apart where that is known."""
    keyed = _keyed(fun, v, items, values)
    if keyed is None:
        return call(fun, name, arguments(), {})
    key, inputs = keyed
    op = _GATHERS.get(key)
    if op is not None:
        with contextlib.suppress(*jaxapi.CONCRETE_ERRORS):
            return record.record(op, inputs)

    def learn(op: Op, count: int) -> None:
        if count == len(inputs):
            _GATHERS[key] = op

    return call(fun, name, arguments(), {}, learn)


def _keyed(
    fun: Callable[..., Any], v: Handle, items: tuple[object, ...], values: tuple[Any, ...]
) -> tuple[tuple[object, ...], list[Any]] | None:
    """Return by what a call is known, and its inputs; None where an index is a mask or out of range, and where a value is no array."""
    shape = v._place.kind.aval.shape
    key: list[Any] = [fun, shape]
    inputs: list[Any] = [v]
    axis: int | None = 0  # None where an ellipsis came before
    for item in items:
        if isinstance(item, (Handle, jax.Array, np.ndarray)):
            dtype = (item._place.kind.aval if isinstance(item, Handle) else item).dtype
            if getattr(dtype, "kind", "key") not in "iu":
                return None
            key.append(ARRAY)
            inputs.append(item if isinstance(item, Handle) else record.operand(item))
        elif type(item) is int:
            if axis is None or axis >= len(shape) or not -shape[axis] <= item < shape[axis]:
                return None
            key.append(ARRAY)
            inputs.append(_start(item if item >= 0 else item + shape[axis]))
        elif basic((item,), key) is None:
            return None
        axis = None if item is Ellipsis or axis is None else axis + (item is not None)
    key.append(len(values))
    for value in values:
        if type(value) in NUMBERS:
            inputs.append(value)
            key.append(NUMBER)
        elif isinstance(value, (Handle, jax.Array, np.ndarray)):
            inputs.append(value if isinstance(value, Handle) else record.operand(value))
            key.append(ARRAY)
        else:
            return None
    return tuple(key), inputs


quick = record.quick(getitem, two=_FIRST, starts=_STARTS, plans=_PLANS)
_BOUNDS = (int, type(None))


def gather(x: jax.Array, index: object) -> jax.Array:
    """Return ``x[index]``."""
    return x[index]


def basic_op(name: str, run: Callable[..., jax.Array], spec: Spec) -> Op:
    """Return the op that applies ``run`` with a specification of :func:`plan`."""
    return intern_op((name, spec), lambda: Op(name, functools.partial(run, spec), (("index", _written(spec)),)))


def _written(spec: Spec) -> str:
    """Return a specification as an index: ``i, 0:4, i:i+2``, where positions ``i`` are inputs."""
    names = {"new": "None", "at": "i"}

    def one(item: Any) -> str:
        if isinstance(item, tuple):
            start, stop, step = item
            return f"{start}:{stop if stop >= 0 else ''}" + (f":{step}" if step != 1 else "")
        return names[item] if isinstance(item, str) else f"i:i+{item}"

    return ", ".join(map(one, spec))


def plan(shape: tuple[int, ...], items: tuple[Any, ...], *, windows: bool) -> tuple[Spec, tuple[Position, ...]]:
    """Turn integers and slices into a specification and the positions that are inputs."""
    spec: list[Any] = []
    starts = []
    axis = 0
    for item in _without_ellipsis(items, shape):
        if item is Ellipsis:
            continue
        if item is None:
            spec.append("new")
            continue
        n = shape[axis]
        if isinstance(item, slice):
            start, stop, step = _bounds(item, n)
            length = len(range(start, stop, step))
            given = item.start is not None and item.stop is not None and item.start >= 0 and item.stop >= 0
            if windows and given and step == 1 and 0 < length < n:
                spec.append(length)
                starts.append(_start(start))
            else:
                spec.append((start, stop, step) if length else (0, 0, 1))
        else:
            spec.append("at")
            starts.append(_start(_position(item, n, axis)))
        axis += 1
    return tuple(spec), tuple(starts)


def _bounds(item: slice, n: int) -> tuple[int, int, int]:
    """Return start, stop and step of a slice of an axis of length ``n``."""
    try:
        return item.indices(n)
    except TypeError as e:
        kinds = ", ".join(type(b).__name__ for b in (item.start, item.stop, item.step))
        msg = f"the bounds of a slice must be integers or None, got {kinds} ({e})"
        raise TapeTypeError(msg) from e
    except ValueError as e:
        msg = f"{e}; use a step such as 1 or -1"
        raise TapeValueError(msg) from e


def _position(index: int, n: int, axis: int) -> int:
    if not -n <= index < n:
        msg = f"index {index} is out of range for axis {axis} of length {n}; valid are {-n} to {n - 1}"
        raise TapeIndexError(msg)
    return index + n if index < 0 else index


def _axes(item: object) -> int:
    """Return how many axes an index uses up."""
    if item is None or item is Ellipsis or isinstance(item, (bool, np.bool_)):
        return 0
    if isinstance(item, (Handle, jax.Array, np.ndarray)) and is_mask(item):
        return len((item._place.kind.aval if isinstance(item, Handle) else item).shape)
    return 1


def is_mask(item: Handle | jax.Array | np.ndarray[Any, Any]) -> bool:
    """Say whether an array is boolean."""
    aval = item._place.kind.aval if isinstance(item, Handle) else item
    return bool(aval.dtype == np.bool_)


def _without_ellipsis(items: tuple[Any, ...], shape: tuple[int, ...]) -> list[Any]:
    """Replace the ellipsis (or the missing end) by whole slices; one that stands for no axis stays, as it parts the arrays beside it."""
    used = sum(map(_axes, items))
    if used > len(shape):
        msg = f"too many indices: {used} for a Variable with {len(shape)} axes (shape {shape})"
        raise TapeIndexError(msg)
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        msg = "an index can have one Ellipsis ('...') only"
        raise TapeIndexError(msg)
    at = dots[0] if dots else len(items)
    return [*items[:at], *([slice(None)] * (len(shape) - used) or items[at : at + 1]), *items[at + 1 :]]


def _read(spec: Spec, x: jax.Array, *starts: jax.Array) -> jax.Array:
    if starts:
        x = lax.dynamic_slice(x, *window(spec, x.shape, starts), allow_negative_indices=False)
    return x[static_index(spec, itertools.repeat(0))]


def window(spec: Spec, shape: tuple[int, ...], starts: tuple[jax.Array, ...]) -> tuple[list[Any], list[int]]:
    """Return where the window of a specification begins, and how long it is, along each axis of an array of some shape."""
    axes = [s for s in spec if s != "new"]
    positions = iter(starts)
    firsts = [np.int32(0) if isinstance(s, tuple) else next(positions) for s in axes]
    return firsts, [1 if s == "at" else s if isinstance(s, int) else n for s, n in zip(axes, shape, strict=True)]


def static_index(spec: Spec, positions: Iterator[Any]) -> tuple[Any, ...]:
    """Return the index that a specification stands for, of windows that are cut out already."""
    index: list[Any] = []
    for s in spec:
        if isinstance(s, tuple):
            start, stop, step = s
            index.append(slice(start, None if step < 0 and stop < 0 else stop, step))
        else:
            index.append(None if s == "new" else next(positions) if s == "at" else slice(None))
    return tuple(index)


def expand(v: Handle, index: object, *, strict: bool) -> Any:
    """Return an index of Variables, slices and new axes that JAX understands: masks as integers, positions as inputs."""
    shape = v._place.kind.aval.shape
    items = tuple(map(_as_item, index)) if type(index) is tuple else (_as_item(index),)
    done: list[Any] = []
    axis = 0
    for item in _without_ellipsis(items, shape):
        used = _axes(item)
        if type(item) is int:
            n = shape[axis]
            done.append(record.scalar(_start(_position(item, n, axis))) if strict or -n <= item < n else item)
        elif isinstance(item, slice):
            _bounds(item, shape[axis])
            done.append(slice(*[None if b is None else operator.index(b) for b in (item.start, item.stop, item.step)]))
        elif used and isinstance(item, (Handle, jax.Array, np.ndarray)) and is_mask(item):
            done.extend(_nonzero(item, shape[axis : axis + used], axis))
        else:
            done.append(item)
        axis += used
    return tuple(done) if len(done) != 1 else done[0]


def _as_item(item: object) -> Any:
    if isinstance(item, (list, range)):
        items = list(item)
        if any(isinstance(x, (Handle, jax.Array)) for x in leaves_of(items)):
            return call(jnp.asarray, "asarray", (items,), {})
        try:
            array = np.asarray(items)
        except ValueError as e:
            msg = f"an index cannot be made of nested lists of different lengths ({e}); use one list, or one array for each axis"
            raise TapeIndexError(msg) from e
        return array.astype(np.intp) if array.size == 0 else array
    if isinstance(item, np.bool_):
        return bool(item)
    return int(item) if isinstance(item, np.integer) else item


def _nonzero(mask: Any, shape: tuple[int, ...], axis: int) -> tuple[Any, ...]:
    if mask.shape != shape:
        msg = f"a boolean index of shape {mask.shape} does not fit axes {axis} to {axis + len(mask.shape) - 1} of shape {shape}"
        raise TapeIndexError(msg)
    values = look(mask) if isinstance(mask, Handle) else mask
    if isinstance(values, jaxapi.Tracer):
        msg = (
            "a boolean mask as an index needs its values, which are not known inside a JAX transformation; use "
            "tape.numpy.where(mask, x, y), or index outside"
        )
        raise ConcretizationError(msg)
    return tuple(record.leaf(array_of(i.astype(np.int32))) for i in np.nonzero(np.asarray(values)))
