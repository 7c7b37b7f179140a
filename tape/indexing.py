"""Indexing: ``v[i]``, ``v[i] = y`` and ``v.at[i]``.

Positions given as integers, and windows ``v[a:b]`` with both ends given, are inputs of the op, so that a loop over them records the same
structure every time.  Other slices are static.  Boolean masks are looked at and become integer indices, so that gradients flow through the
gather.
"""

from __future__ import annotations

import inspect
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tape import jaxapi, record
from tape.errors import ConcretizationError, LostGradientError, TapeIndexError, TapeTypeError, TapeValueError
from tape.kernel import Op
from tape.mirror import call, variable
from tape.program import look
from tape.pullback import differentiable
from tape.record import Extra, Handle

__all__ = ["At", "getitem", "setitem"]

_STARTS: dict[int, Handle] = {}
_PLANS: dict[Any, tuple[Op, tuple[Handle, ...]]] = {}
_OPS: dict[Any, Op] = {}
_LIMIT = 1 << 14
_KNOWN_POSITIVE = {"allow_negative_indices": False} if "allow_negative_indices" in inspect.signature(lax.dynamic_slice).parameters else {}


def _start(position: int) -> Handle:
    """Return the constant of a position; equal ones are one Variable, which enters a segment once."""
    found = _STARTS.get(position)
    if found is None:
        if len(_STARTS) > _LIMIT:
            _STARTS.clear()
        found = _STARTS[position] = record.leaf(np.int32(position) if position < 2**31 else np.int64(position))
    return found


def _take_first(x: Any, i: Any) -> Any:
    return lax.dynamic_index_in_dim(x, i, 0, keepdims=False, **_KNOWN_POSITIVE)


_FIRST = Op("getitem", _take_first)


def getitem(v: Any, index: Any) -> Any:
    """Record ``v[index]``.

    Raises:
        TapeIndexError: an integer is out of range, there are too many indices, or a mask does not fit.

    """
    shape = v._place.kind.aval.shape
    if type(index) is int and shape:
        n = shape[0]
        if -n <= index < n:
            return record.record(_FIRST, (v, _start(index + n if index < 0 else index)))
    items = index if type(index) is tuple else (index,)
    key: list[Any] = [shape]
    for item in items:
        kind = type(item)
        if kind is int or item is None or item is Ellipsis:
            key.append(item)
        elif kind is slice and type(item.start) in _BOUNDS and type(item.stop) in _BOUNDS and type(item.step) in _BOUNDS:
            key.append((item.start, item.stop, item.step))
        else:
            break
    else:
        found = _PLANS.get(tuple(key))
        if found is None:
            if len(_PLANS) > _LIMIT:
                _PLANS.clear()
            spec, starts = _plan(shape, items, windows=True)
            found = _PLANS[tuple(key)] = (_basic_op("getitem", spec), starts)
        return record.record(found[0], (v, *found[1]))
    return call(_gather, "getitem", (v, _expand(v, index, strict=True)), {})


_BOUNDS = (int, type(None))


def _gather(x: Any, index: Any) -> Any:
    return x[index]


def _basic_op(name: str, spec: tuple[Any, ...]) -> Op:
    found = _OPS.get((name, spec))
    if found is None:
        run = _read if name == "getitem" else _write

        def fun(*arrays: Any) -> Any:
            return run(spec, *arrays)

        found = _OPS[name, spec] = Op(name, fun, spec)
    return found


def _plan(shape: tuple[int, ...], items: tuple[Any, ...], *, windows: bool) -> tuple[tuple[Any, ...], tuple[Handle, ...]]:
    """Turn integers and slices into a specification per axis and the positions that are inputs.

    A specification is "new" (an axis of length one), "at" (one position), a length (of a window), or (start, stop, step) of a slice.
    """
    spec: list[Any] = []
    starts = []
    axis = 0
    for item in _without_ellipsis(items, shape):
        if item is None:
            spec.append("new")
            continue
        n = shape[axis]
        if isinstance(item, slice):
            start, stop, step = item.indices(n)
            length = len(range(start, stop, step))
            if (
                windows
                and step == 1
                and 0 < length < n
                and item.start is not None
                and item.stop is not None
                and item.start >= 0
                and item.stop >= 0
            ):
                spec.append(length)
                starts.append(_start(start))
            else:
                spec.append((start, stop if length else start, step))
        else:
            spec.append("at")
            starts.append(_start(_position(item, n, axis)))
        axis += 1
    return tuple(spec), tuple(starts)


def _position(index: int, n: int, axis: int) -> int:
    if not -n <= index < n:
        msg = f"index {index} is out of range for axis {axis} of length {n}; valid are {-n} to {n - 1}"
        raise TapeIndexError(msg)
    return index + n if index < 0 else index


def _axes(item: Any) -> int:
    """Return how many axes an index uses up."""
    if item is None or item is Ellipsis or isinstance(item, (bool, np.bool_)):
        return 0
    if isinstance(item, (Handle, jax.Array, np.ndarray)) and _is_mask(item):
        return len(item.shape)  # type: ignore[union-attr]
    return 1


def _is_mask(item: Any) -> bool:
    aval = item._place.kind.aval if isinstance(item, Handle) else item
    return bool(aval.dtype == np.bool_)


def _without_ellipsis(items: tuple[Any, ...], shape: tuple[int, ...]) -> list[Any]:
    """Replace the ellipsis (or the missing end) by whole slices."""
    used = sum(map(_axes, items))
    if used > len(shape):
        msg = f"too many indices: {used} for a Variable with {len(shape)} axes (shape {shape})"
        raise TapeIndexError(msg)
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        msg = "an index can have one Ellipsis ('...') only"
        raise TapeIndexError(msg)
    at = dots[0] if dots else len(items)
    return [*items[:at], *[slice(None)] * (len(shape) - used), *items[at + 1 :]]


def _read(spec: tuple[Any, ...], x: Any, *starts: Any) -> Any:
    axes = [s for s in spec if s != "new"]
    sizes = [s if isinstance(s, int) else 1 if s == "at" else n for s, n in zip(axes, x.shape, strict=True)]
    if starts:
        it = iter(starts)
        zero = np.int32(0)
        x = lax.dynamic_slice(x, [zero if isinstance(s, tuple) else next(it) for s in axes], sizes, **_KNOWN_POSITIVE)
    lows, highs, strides, flipped = [], [], [], []
    for axis, (s, n) in enumerate(zip(axes, sizes, strict=True)):
        low, high, stride = s if isinstance(s, tuple) else (0, n, 1)
        if stride < 0:
            count = len(range(low, high, stride))
            low, high, stride = (low + (count - 1) * stride, low + 1, -stride) if count else (0, 0, 1)
            flipped.append(axis)
        lows.append(low)
        highs.append(high)
        strides.append(stride)
    if any((low, high, stride) != (0, n, 1) for low, high, stride, n in zip(lows, highs, strides, x.shape, strict=True)):
        x = lax.slice(x, lows, highs, strides)
    if flipped:
        x = lax.rev(x, flipped)
    x = lax.squeeze(x, [i for i, s in enumerate(axes) if s == "at"])
    return lax.expand_dims(x, [i for i, s in enumerate([s for s in spec if s != "at"]) if s == "new"])


def _expand(v: Any, index: Any, *, strict: bool) -> Any:
    """Return an index of Variables, slices and new axes that JAX understands: masks as integers, positions as inputs."""
    shape = v._place.kind.aval.shape
    items = tuple(map(_as_item, index)) if type(index) is tuple else (_as_item(index),)
    done: list[Any] = []
    axis = 0
    for item in _without_ellipsis(items, shape):
        used = _axes(item)
        if type(item) is int:
            n = shape[axis]
            done.append(_start(_position(item, n, axis)) if strict or -n <= item < n else item)
        elif isinstance(item, slice):
            done.append(slice(*[None if b is None else operator.index(b) for b in (item.start, item.stop, item.step)]))
        elif used and isinstance(item, (Handle, jax.Array, np.ndarray)) and _is_mask(item):
            done.extend(_nonzero(item, shape[axis : axis + used], axis))
        else:
            done.append(item)
        axis += used
    return tuple(done) if len(done) != 1 else done[0]


def _as_item(item: Any) -> Any:
    if isinstance(item, (list, range)):
        items = list(item)
        if any(isinstance(x, (Handle, jax.Array)) for x in jax.tree.leaves(items, is_leaf=lambda x: isinstance(x, Handle))):
            return call(jnp.asarray, "asarray", (items,), {})
        array = np.asarray(items)
        return array.astype(np.intp) if array.size == 0 else array
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
    return tuple(record.leaf(jnp.asarray(i.astype(np.int32))) for i in np.nonzero(np.asarray(values)))


def setitem(v: Any, index: Any, value: Any) -> None:
    """Rebind ``v`` to ``v.at[index].set(value)``; entries recorded before keep the old value.

    Raises:
        TapeValueError: ``v`` is a leaf that requires grad.
        LostGradientError: ``value`` requires grad and ``v`` has an integer or boolean dtype.

    """
    kind = v._place.kind
    if kind.requires_grad and v._segment is None:
        msg = (
            f"x[i] = y: x is a leaf that requires grad (shape {v.shape}, dtype {v.dtype}), so assigning would cut it from its gradient; use "
            "y = x.at[i].set(value), or assign to x.detach()"
        )
        raise TapeValueError(msg)
    new = _as_value(v, value)
    rebind(v, _assigned(v, index, new))


def _as_value(v: Any, value: Any) -> Any:
    aval = v._place.kind.aval
    if isinstance(value, (list, tuple)):
        value = call(jnp.asarray, "asarray", (value,), {})
    new = variable(value)
    kind = new._place.kind
    if kind.requires_grad and not differentiable(aval):
        msg = f"x[i] = y: y requires grad, and x of dtype {aval.dtype} carries no gradient; convert x with .astype('float32'), or pass y.detach()"
        raise LostGradientError(msg)
    if differentiable(aval) and jnp.iscomplexobj(kind.aval) and not jnp.issubdtype(aval.dtype, jnp.complexfloating):
        msg = f"x[i] = y: y of dtype {kind.aval.dtype} does not fit into x of dtype {aval.dtype}; use y.real, or convert x with .astype('complex64')"
        raise TapeTypeError(msg)
    return new


def _assigned(v: Any, index: Any, new: Any) -> Any:
    shape = v._place.kind.aval.shape
    items = index if type(index) is tuple else (index,)
    if all(
        type(i) is int or i is None or i is Ellipsis or (type(i) is slice and {type(i.start), type(i.stop), type(i.step)} <= set(_BOUNDS))
        for i in items
    ):
        spec, starts = _plan(shape, items, windows=True)
        full = iter(shape)
        if any(isinstance(s, tuple) and s != (0, n, 1) for s, n in ((s, next(full)) for s in spec if s != "new")):
            spec, starts = _plan(shape, items, windows=False)
        return record.record(_basic_op("setitem", spec), (v, new, *starts))
    if len(items) == 1 and isinstance(index, (Handle, jax.Array, np.ndarray)) and _is_mask(index) and new.size == 1 and new.ndim <= v.ndim:
        mask = variable(index)
        if mask.ndim and mask.shape == shape[: mask.ndim]:
            return call(_where, "setitem", (v, mask, new), {})
    return call(_scatter, "setitem", (v, new, _expand(v, index, strict=True)), {})


def _where(x: Any, mask: Any, y: Any) -> Any:
    return jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim)), y.astype(x.dtype).reshape(()), x)


def _fitted(x: Any, y: Any, shape: tuple[int, ...]) -> Any:
    """Broadcast ``y`` as NumPy's assignment does: leading axes of length one are dropped."""
    extra = max(0, y.ndim - len(shape))
    if all(n == 1 for n in y.shape[:extra]):
        y = y.reshape(y.shape[extra:])
    return jnp.broadcast_to(y.astype(x.dtype), shape)


def _scatter(x: Any, y: Any, index: Any) -> Any:
    shape = jax.eval_shape(_gather, x, index).shape if not isinstance(index, tuple) else jax.eval_shape(lambda x: x[index], x).shape
    return x.at[index].set(_fitted(x, y, shape))


def _write(spec: tuple[Any, ...], x: Any, y: Any, *starts: Any) -> Any:
    axes = [s for s in spec if s != "new"]
    it = iter(starts)
    if all(not isinstance(s, tuple) or s == (0, n, 1) for s, n in zip(axes, x.shape, strict=True)):
        sizes = [s if isinstance(s, int) else 1 if s == "at" else n for s, n in zip(axes, x.shape, strict=True)]
        rest = iter(sizes)
        shape = [1 if s == "new" else n for s, n in ((s, 1 if s == "new" else next(rest)) for s in spec) if s != "at"]
        y = _fitted(x, y, tuple(shape)).reshape(sizes)
        return lax.dynamic_update_slice(x, y, [np.int32(0) if isinstance(s, tuple) else next(it) for s in axes], **_KNOWN_POSITIVE)
    index: list[Any] = []
    for s in spec:
        if s == "new":
            index.append(None)
        elif s == "at":
            index.append(next(it))
        else:
            start, stop, step = s
            index.append(slice(start, None if step < 0 and stop < 0 else stop, step))
    at = tuple(index)
    return x.at[at].set(_fitted(x, y, jax.eval_shape(lambda x: x[at], x).shape))


def rebind(v: Any, result: Any) -> None:
    """Make ``v`` the Variable that ``result`` is; gradient and hooks of the old one stay behind."""
    if v._segment is not None:
        retained = v._segment.retained.get(v._place.slot)
        if retained:
            retained[:] = [ref for ref in retained if ref() is not v]
    name = None if v._extra is None else v._extra.name
    v._segment, v._place, v._cell = result._segment, result._place, result._cell
    v._extra = None
    if name is not None:
        v._extra = Extra()
        v._extra.name = name


class At:
    """``v.at[index].set(y)`` and its kin: updated copies, as ``jax.Array.at`` makes them."""

    __slots__ = ("_variable",)

    def __init__(self, v: Any) -> None:
        self._variable = v

    def __getitem__(self, index: Any) -> AtIndex:
        return AtIndex(self._variable, index)

    def __repr__(self) -> str:
        return f"At({self._variable!r})"


class AtIndex:
    """The elements of a Variable at an index, to be read or updated in a copy."""

    __slots__ = ("_index", "_variable")

    def __init__(self, v: Any, index: Any) -> None:
        self._variable = v
        self._index = index

    def __repr__(self) -> str:
        return f"AtIndex({self._variable!r}, {self._index!r})"

    def _record(self, method: str, values: tuple[Any, ...], options: dict[str, Any]) -> Any:
        fun, name = _UPDATES[method]
        return call(fun, name, (self._variable, _expand(self._variable, self._index, strict=False), *values), options)

    def get(self, **options: Any) -> Any:
        """Return the elements (options as in ``jax.Array.at``)."""
        return self._record("get", (), options)

    def set(self, values: Any, **options: Any) -> Any:
        """Return a copy with the elements replaced."""
        return self._record("set", (values,), options)

    def apply(self, function: Any, **options: Any) -> Any:
        """Return a copy with ``function`` (of Variables) applied to the elements."""
        return self.set(function(self.get()), **options)

    def add(self, values: Any, **options: Any) -> Any:
        """Return a copy with ``values`` added to the elements."""
        return self._record("add", (values,), options)

    def subtract(self, values: Any, **options: Any) -> Any:
        """Return a copy with ``values`` subtracted from the elements."""
        return self._record("subtract", (values,), options)

    def multiply(self, values: Any, **options: Any) -> Any:
        """Return a copy with the elements multiplied by ``values``."""
        return self._record("multiply", (values,), options)

    mul = multiply

    def divide(self, values: Any, **options: Any) -> Any:
        """Return a copy with the elements divided by ``values``."""
        return self._record("divide", (values,), options)

    def power(self, values: Any, **options: Any) -> Any:
        """Return a copy with the elements raised to ``values``."""
        return self._record("power", (values,), options)

    def min(self, values: Any, **options: Any) -> Any:
        """Return a copy with the smaller of the elements and ``values``."""
        return self._record("min", (values,), options)

    def max(self, values: Any, **options: Any) -> Any:
        """Return a copy with the larger of the elements and ``values``."""
        return self._record("max", (values,), options)


def _update(method: str) -> tuple[Any, str]:
    def update(x: Any, index: Any, *values: Any, **options: Any) -> Any:
        return getattr(x.at[index], method)(*values, **options)

    return update, f"at_{method}"


_UPDATES = {m: _update(m) for m in ("get", "set", "add", "subtract", "multiply", "divide", "power", "min", "max")}
