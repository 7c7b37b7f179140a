"""Updates: ``v[i] = y``, which rebinds the handle, and ``v.at[i]``, which makes updated copies."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tape.errors import LostGradientError, TapeTypeError, TapeValueError
from tape.mirrored.mirror import call, variable
from tape.ops.pullback import differentiable
from tape.recording import boundary, record
from tape.recording.segment import Extra, Handle
from tape.variables.indexing import BOUNDS, KNOWN_POSITIVE, basic_op, expand, gather, is_mask, plan

__all__ = ["At", "AtIndex", "rebind", "setitem"]


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
        type(i) is int or i is None or i is Ellipsis or (type(i) is slice and {type(i.start), type(i.stop), type(i.step)} <= set(BOUNDS))
        for i in items
    ):
        spec, starts = plan(shape, items, windows=True)
        full = iter(shape)
        if any(isinstance(s, tuple) and s != (0, n, 1) for s, n in ((s, next(full)) for s in spec if s != "new")):
            spec, starts = plan(shape, items, windows=False)
        return record.record(basic_op("setitem", _write, spec), (v, new, *starts))
    if len(items) == 1 and isinstance(index, (Handle, jax.Array, np.ndarray)) and is_mask(index) and new.size == 1 and new.ndim <= v.ndim:
        mask = variable(index)
        if mask.ndim and mask.shape == shape[: mask.ndim]:
            return call(_where, "setitem", (v, mask, new), {})
    return call(_scatter, "setitem", (v, new, expand(v, index, strict=True)), {})


def _where(x: Any, mask: Any, y: Any) -> Any:
    return jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim)), y.astype(x.dtype).reshape(()), x)


def _fitted(x: Any, y: Any, shape: tuple[int, ...]) -> Any:
    """Broadcast ``y`` as NumPy's assignment does: leading axes of length one are dropped."""
    extra = max(0, y.ndim - len(shape))
    if all(n == 1 for n in y.shape[:extra]):
        y = y.reshape(y.shape[extra:])
    return jnp.broadcast_to((y if y.dtype == x.dtype else y.astype(x.dtype)), shape)


def _scatter(x: Any, y: Any, index: Any) -> Any:
    shape = jax.eval_shape(gather, x, index).shape if not isinstance(index, tuple) else jax.eval_shape(lambda x: x[index], x).shape
    return x.at[index].set(_fitted(x, y, shape))


def _write(spec: tuple[Any, ...], x: Any, y: Any, *starts: Any) -> Any:
    axes = [s for s in spec if s != "new"]
    it = iter(starts)
    if all(not isinstance(s, tuple) or s == (0, n, 1) for s, n in zip(axes, x.shape, strict=True)):
        sizes = [s if isinstance(s, int) else 1 if s == "at" else n for s, n in zip(axes, x.shape, strict=True)]
        rest = iter(sizes)
        shape = [1 if s == "new" else n for s, n in ((s, 1 if s == "new" else next(rest)) for s in spec) if s != "at"]
        y = _fitted(x, y, tuple(shape)).reshape(sizes)
        return lax.dynamic_update_slice(x, y, [np.int32(0) if isinstance(s, tuple) else next(it) for s in axes], **KNOWN_POSITIVE)
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
    boundary.writing(v)
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
        return call(fun, name, (self._variable, expand(self._variable, self._index, strict=False), *values), options)

    def get(self, **options: Any) -> Any:
        """Return the elements (options as in ``jax.Array.at``)."""
        return self._record("get", (), options)

    def set(self, values: Any, **options: Any) -> Any:
        """Return a copy with the elements replaced."""
        return self._record("set", (values,), options)

    def apply(self, function: Any, **options: Any) -> Any:
        """Return a copy with ``function`` (of Variables) applied to the elements."""
        if not callable(function):
            msg = f"x.at[i].apply: expected a function, got {type(function).__name__}"
            raise TapeTypeError(msg)
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
