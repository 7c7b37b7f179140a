"""Updates: ``v[i] = y`` and ``v += y``, which change what a handle holds, and ``v.at[i]``, which makes updated copies.

A leaf that requires grad keeps its flag, gradient and hooks while its value changes, and does so under ``no_grad`` only; any other Variable
becomes the one that the result is.  Entries recorded before keep the old value.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from tape import jaxapi, layout
from tape.bounded import Bounded
from tape.errors import LostGradientError, TapeTypeError, TapeValueError, check_callable
from tape.graph import boundary
from tape.graph.kinds import LeafPlace, differentiable
from tape.graph.scope import LOCAL
from tape.graph.segment import Extra, Handle, V, itself
from tape.graph.trie import CONSTANT
from tape.graph.watcher import NOBODY
from tape.mirrored.mirror import call, variable
from tape.ops.kernel import Op
from tape.programs.program import look
from tape.recording import record
from tape.recording.entering import LEAF, made_leaf
from tape.sweeps.seeds import describe
from tape.variables import callers
from tape.variables.cuts import hold
from tape.variables.indexing import Position, Spec, basic, basic_op, expand, is_mask, known_call, plan, static_index, window

if TYPE_CHECKING:
    from tape.variables.declared import Index


def setitem(v: Handle, index: object, value: object) -> None:
    """Change ``v`` to ``v.at[index].set(value)``; entries recorded before keep the old value.

    Raises:
        TapeValueError: ``v`` is a leaf that requires grad, and recording is on; or nobody holds ``v``, as in ``x[i][j] = y``.
        LostGradientError: ``value`` requires grad and ``v`` has an integer or boolean dtype.
        LeakedTracerError: the result belongs to a JAX transformation, and ``v`` does not.

    """
    check_writable(v, "x[i] = y", "x[i] = y", "x = x.at[i].set(y)", ", or `x = x.detach()` before it for a constant")
    new = _as_value(v, value)
    result = _assigned(v, index, new)
    if sys.getrefcount(v) <= _ALONE < _NAMED and v._original is None and callers.assigns(sys._getframe(1)):
        msg = (
            f"x[i][j] = y: x[i] ({describe(v)}) is a copy of elements, no view, and nobody holds it, so nobody would see the assignment; "
            "write `x[i, j] = y`, or `row = x[i]`, `row[j] = y` and `x[i] = row`"
        )
        raise TapeValueError(msg)
    store("x[i] = y", v, result)


class _Counted:
    def __setitem__(self, counts: list[int], _: object) -> None:
        counts.append(sys.getrefcount(self))


def _references() -> list[int]:
    """Count the references to what is assigned to: where nobody holds it, and where a name does (on Python 3.14 as many)."""
    counts: list[int] = []
    _Counted()[counts] = None
    named = _Counted()
    named[counts] = None
    return counts


_ALONE, _NAMED = _references()


def delitem(v: Handle, index: object) -> None:
    """Refuse ``del v[index]``: arrays keep their shape."""
    msg = f"del x[i]: x ({describe(v)}) keeps its shape, i is {index!r}; write `x = tape.numpy.delete(x, i)` for a new Variable without it"
    raise TapeTypeError(msg)


def augmented(symbol: str, operator: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the augmented assignment, ``x += y`` for instance, of an operator.

    Under ``no_grad`` it changes ``x``, for all who hold it, and so does a hook its gradient; otherwise ``x = x + y`` it is, which a leaf
    that requires grad refuses.
    """
    write, make = f"x {symbol}= y", f"x = x {symbol} y"

    def apply(x: Handle, y: object) -> object:
        scope = LOCAL.scope
        mode, caller = scope.mode, scope.caller
        hooked = caller is not NOBODY and any(x is gradient for gradient in caller.writes)
        if ((x._segment is not None and mode != CONSTANT) or _stays_as_it_is(x)) and not hooked:
            return operator(x, y)
        x = itself(x)
        check_writable(x, write, write, make, ", and start a running sum as `total = 0.0`")
        result = operator(x, y)
        if overwritten(x, result, LEAF, LeafPlace):
            return x
        if (mode != CONSTANT and not hooked) or result is NotImplemented:
            return result
        result = _fitting(x, write, result)
        if not hooked and not x._place.kind.requires_grad and not (boundary.may_take(x, result) or LOCAL.scope.trace.write(x)):
            return result  # a constant from outside of a JAX transformation is none of its results
        store(write, x, result)
        return x

    apply.__doc__ = f"Change the Variable under ``no_grad``; otherwise return a new one, as ``x {symbol} y`` does."
    return apply


def _stays_as_it_is(x: Handle) -> bool:
    """Tell whether ``x += y`` makes a new Variable in any mode: ``x`` has a past, was given to a function, or may be its caller's."""
    if x._place.kind.requires_grad and (x._segment is not None or (x._place.given and LOCAL.scope.mode != CONSTANT)):
        return True
    return LOCAL.scope.caller.rebinds_names


def check_writable(x: Handle, what: str, write: str, make: str, further: str = "") -> None:
    """Refuse ``what`` for a leaf that requires grad while recording is on; ``write`` does it under ``no_grad``, ``make`` makes another."""
    if x._segment is None and x._place.kind.requires_grad and (LOCAL.scope.mode != CONSTANT or LOCAL.scope.caller.rebinds_names):
        msg = (
            f"{what}: x is a leaf that requires grad ({describe(x)}), which changes only where nothing is recorded; write `with "
            f"tape.no_grad(): {write}` to update it, `{make}` for a new Variable{further}"
        )
        raise TapeValueError(msg)


def _fitting(x: Handle, what: str, result: Any) -> Any:
    """Return the result of an augmented assignment in the dtype of ``x``, whose shape it must have."""
    old, new = x._place.kind.aval, result._place.kind.aval
    if new.shape == old.shape and new.dtype == old.dtype:
        return result
    expression = what.replace("=", "")
    repair = f"write `x = tape.Variable({expression})` for a new parameter" if x._place.kind.requires_grad else f"write `x = {expression}`"
    if new.shape != old.shape:
        msg = f"{what}: the result has shape {new.shape}, and x of shape {old.shape} keeps its own; {repair}"
        raise TapeValueError(msg)
    if _category(new) > _category(old):
        msg = f"{what}: the result has dtype {new.dtype}, and x of dtype {old.dtype} keeps its own; {repair}"
        raise TapeTypeError(msg)
    return result.astype(old.dtype)


_CATEGORIES = (np.bool_, np.integer, np.floating, np.complexfloating)


def _category(aval: jax.core.ShapedArray) -> int:
    """Order booleans, integers, real and complex numbers."""
    return next((i for i, category in enumerate(_CATEGORIES) if jnp.issubdtype(aval.dtype, category)), -1)


def store(what: str, v: Handle, result: Handle) -> None:
    """Have ``v`` be ``result``: a leaf that requires grad gets its value, pending perhaps, and any other Variable its place on the tape.

    Raises:
        LeakedTracerError: it belongs to a JAX transformation, and ``v`` does not.

    """
    boundary.check_no_leak(what, v, result)
    if v._segment is not None or not v._place.kind.requires_grad:
        _rebind(v, result)
    elif not made_leaf(v, result):
        hold(v, look(result), requires_grad=True, of=result)


overwritten = layout.chosen("overwritten")  # what :func:`store` does of an augmented assignment, in the common case


def _as_value(v: Handle, value: object) -> Any:
    aval = v._place.kind.aval
    if isinstance(value, (list, tuple)):
        value = call(jnp.asarray, "asarray", (value,), {})
    new = variable(value)
    kind = new._place.kind
    if kind.aval.dtype == aval.dtype:
        return new
    if kind.requires_grad and not differentiable(aval):
        msg = (
            f"x[i] = y: y requires grad, and x of dtype {aval.dtype} carries no gradient; "
            "convert x with .astype('float32'), or pass y.detach()"
        )
        raise LostGradientError(msg)
    if differentiable(aval) and jnp.iscomplexobj(kind.aval) and not jnp.issubdtype(aval.dtype, jnp.complexfloating):
        msg = (
            f"x[i] = y: y of dtype {kind.aval.dtype} does not fit into x of dtype {aval.dtype}; "
            "use y.real, or convert x with .astype('complex64')"
        )
        raise TapeTypeError(msg)
    return new


def _assigned(v: Handle, index: object, new: Handle) -> Any:
    shape, aval = v._place.kind.aval.shape, new._place.kind.aval
    items = index if type(index) is tuple else (index,)
    key = basic(items, [shape])
    if key is not None:
        op, starts = _WRITES.cached(tuple(key), lambda: _writing(shape, items))
        return record.record(op, (v, new, *starts))
    if (
        len(items) == 1
        and isinstance(index, (Handle, jax.Array, np.ndarray))
        and is_mask(index)
        and aval.size == 1
        and aval.ndim <= len(shape)
    ):
        mask = variable(index)
        if mask.ndim and mask.shape == shape[: mask.ndim]:
            return call(_where, "setitem", (v, mask, new), {})
    return known_call(_scatter, "setitem", v, items, (new,), lambda: (v, expand(v, index, strict=True), new))


_WRITES: Bounded[tuple[object, ...], tuple[Op, tuple[Position, ...]]] = Bounded("indices that are assigned to", 1 << 14)


def _writing(shape: tuple[int, ...], items: tuple[Any, ...]) -> tuple[Op, tuple[Position, ...]]:
    """Return the op that assigns to an index of integers, slices and new axes, and the positions that are its inputs."""
    spec, starts = plan(shape, items, windows=True)
    if _in_part(spec, shape):
        spec, starts = plan(shape, items, windows=False)
    return basic_op("setitem", _write, spec), starts


def _in_part(spec: Spec, shape: tuple[int, ...]) -> bool:
    """Tell whether a static slice takes a part of its axis."""
    return any(isinstance(s, tuple) and s != (0, n, 1) for s, n in zip([s for s in spec if s != "new"], shape, strict=True))


def _where(x: jax.Array, mask: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim)), y.astype(x.dtype).reshape(()), x)


def _fitted(x: jax.Array, y: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Broadcast ``y`` as NumPy's assignment does: leading axes of length one are dropped."""
    extra = max(0, y.ndim - len(shape))
    if all(n == 1 for n in y.shape[:extra]):
        y = y.reshape(y.shape[extra:])
    return jnp.broadcast_to((y if y.dtype == x.dtype else y.astype(x.dtype)), shape)


def _scatter(x: jax.Array, index: object, y: jax.Array) -> jax.Array:
    return x.at[index].set(_fitted(x, y, jax.eval_shape(lambda x: x[index], x).shape))


def _write(spec: Spec, x: jax.Array, y: jax.Array, *starts: jax.Array) -> jax.Array:
    if _in_part(spec, x.shape):
        return _scatter(x, static_index(spec, iter(starts)), y)
    firsts, sizes = window(spec, x.shape, starts)
    lengths = iter(sizes)
    shape = [n for s, n in [(s, 1 if s == "new" else next(lengths)) for s in spec] if s != "at"]
    y = _fitted(x, y, tuple(shape)).reshape(sizes)
    return lax.dynamic_update_slice(x, y, firsts, allow_negative_indices=False)


def _rebind(v: Handle, result: Handle) -> None:
    """Make ``v`` the Variable that ``result`` is; gradient and hooks of the old one stay behind, unless both are constants (frozen)."""
    LOCAL.scope.trace.write(v)
    if v._segment is not None:
        retained = v._segment.retained.get(v._place.slot)
        if retained:
            retained[:] = [ref for ref in retained if ref() is not v]
    boundary.note_origin(v)
    old = v._extra
    remains = not (v._place.kind.requires_grad or result._place.kind.requires_grad)
    v._segment, v._place, v._cell = result._segment, result._place, result._cell
    if remains:
        return
    v._extra = None
    if old is not None and (old.name is not None or old.inside is not None):
        v._extra = Extra()
        v._extra.name, v._extra.inside = old.name, old.inside


class At(Generic[V]):
    """``v.at[index].set(y)`` and its kin: updated copies, as ``jax.Array.at`` makes them."""

    __slots__ = ("_variable",)

    def __init__(self, v: V) -> None:
        self._variable = v

    def __getitem__(self, index: Index) -> AtIndex[V]:
        return AtIndex(self._variable, index)

    def __repr__(self) -> str:
        return f"At({self._variable!r})"


def _update(method: str, what: str) -> Callable[..., Any]:
    """Return a method that records the one of ``jax.Array.at[index]``."""

    def fun(x: jax.Array, index: object, *values: ArrayLike, **options: object) -> jax.Array:
        return getattr(x.at[index], method)(*values, **options)  # type: ignore[no-any-return]

    def update(self: AtIndex[Any], *values: object, **options: object) -> Any:
        v, index = self._variable, self._index
        name = f"at_{method}"
        if options:
            return call(fun, name, (v, expand(v, index, strict=False), *values), options)
        items = index if type(index) is tuple else (index,)
        return known_call(fun, name, v, items, values, lambda: (v, expand(v, index, strict=False), *values))

    update.__name__, update.__qualname__, update.__doc__ = method, f"AtIndex.{method}", f"Return {what}."
    return update


class AtIndex(Generic[V]):
    """The elements of a Variable at an index, to be read or updated in a copy."""

    __slots__ = ("_index", "_variable")

    def __init__(self, v: V, index: object) -> None:
        self._variable = v
        self._index = index

    def __repr__(self) -> str:
        return f"AtIndex({self._variable!r}, {self._index!r})"

    get: Callable[..., V] = _update("get", "the elements (options as in ``jax.Array.at``)")
    set: Callable[..., V] = _update("set", "a copy with the elements replaced")
    add: Callable[..., V] = _update("add", "a copy with ``values`` added to the elements")
    subtract: Callable[..., V] = _update("subtract", "a copy with ``values`` subtracted from the elements")
    multiply: Callable[..., V] = _update("multiply", "a copy with the elements multiplied by ``values``")
    mul: Callable[..., V] = multiply
    divide: Callable[..., V] = _update("divide", "a copy with the elements divided by ``values``")
    power: Callable[..., V] = _update("power", "a copy with the elements raised to ``values``")
    min: Callable[..., V] = _update("min", "a copy with the smaller of the elements and ``values``")
    max: Callable[..., V] = _update("max", "a copy with the larger of the elements and ``values``")

    def apply(self, function: Callable[[V], Any], **options: object) -> V:
        """Return a copy with ``function`` (of Variables) applied to elements, twice to one that an index (not traced) names twice."""
        check_callable("x.at[i].apply", function)
        result: Any = self._variable
        for index in _rounds(result, self._index):
            elements = AtIndex(result, index)
            result = elements.set(function(elements.get()), **options)
        return result  # type: ignore[no-any-return]


def _rounds(v: Handle, index: Any) -> list[Any]:
    """Split an index that names elements several times into such that do not; one that is traced stays whole."""
    if not any(isinstance(i, (Handle, jax.Array, np.ndarray, list)) for i in (index if isinstance(index, tuple) else (index,))):
        return [index]
    expanded = expand(v, index, strict=False)
    items = list(expanded) if isinstance(expanded, tuple) else [expanded]
    axes = [(at, i) for at, i in enumerate(items) if i is not None and i is not ...]
    named = {at: look(i) if isinstance(i, Handle) else i for at, i in axes if not isinstance(i, slice)}
    if any(isinstance(i, (bool, jaxapi.Tracer)) for i in named.values()):
        return [index]
    lengths = np.array([n for (at, _), n in zip(axes, v._place.kind.aval.shape, strict=True) if at in named])
    try:
        places = np.stack(np.broadcast_arrays(*named.values())).reshape(len(named), -1)
    except ValueError:  # JAX says what is wrong with them
        return [index]
    same = np.unique(np.where(places < 0, places + lengths[:, None], places), axis=1, return_inverse=True)[1].ravel()
    order = np.argsort(same, kind="stable")
    turns = np.empty_like(same)  # how often an element was named before
    turns[order] = np.arange(same.size) - np.searchsorted(same[order], same[order])
    if not turns.any():
        return [index]
    parts = [dict(zip(named, places[:, turns == turn], strict=True)) for turn in range(int(turns.max()) + 1)]
    return [tuple([part.get(at, item) for at, item in enumerate(items)]) for part in parts]
