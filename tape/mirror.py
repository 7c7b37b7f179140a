"""The mirror: one mechanism that turns a JAX function into one that records.

A call is split into arrays (Variables, JAX and NumPy arrays, and Python scalars where the function takes an array) and everything else.
What is not an array, together with the function, makes the op's key, so that the same call finds the same op again.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import jax
import jax.errors
import numpy as np

from tape import record
from tape.errors import ConcretizationError, LostGradientError, TapeError
from tape.kernel import Op, intern_op
from tape.program import look
from tape.record import Handle

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["call", "mirrored", "operator"]

_SCALARS = (bool, int, float, complex)
_ARRAYS = (jax.Array, np.ndarray, np.generic)
# Exponents stay static: x**2 is another primitive than x**y.
_STATIC_ARGUMENTS = {("power", 1), ("pow", 1), ("float_power", 1), ("integer_pow", 1)}
_BAKED_BYTES = 1 << 16


class _Array:
    """Stands for an array in a call's key."""

    def __repr__(self) -> str:
        return "array"


_ARRAY = _Array()


class _Baked:
    """An array that a call's key holds by value, because the function needs to see it."""

    __slots__ = ("key", "value")

    def __init__(self, value: np.ndarray[Any, Any]) -> None:
        self.value = value
        self.key = (value.shape, value.dtype.str, value.tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Baked) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


class _Node:
    """A container in a call's key: its type, its keys (for dicts) and its items."""

    __slots__ = ("_hash", "items", "names", "type")

    def __init__(self, type_: type, names: tuple[Any, ...] | None, items: tuple[Any, ...]) -> None:
        self.type = type_
        self.names = names
        self.items = items
        self._hash = hash((type_, names, items))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Node) and (self.type, self.names, self.items) == (other.type, other.names, other.items)

    def __hash__(self) -> int:
        return self._hash


class _Static:
    """A value in a call's key, told apart by type as well as by value (1, 1.0 and True are equal, and 0.0 is -0.0)."""

    __slots__ = ("_hash", "key", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.key = (type(value), repr(value) if isinstance(value, (float, complex)) else value)
        self._hash = hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self.key == other.key

    def __hash__(self) -> int:
        return self._hash


class _Splitter:
    """Splits the arguments of one call into Variables and a template."""

    def __init__(self, scalars_are_arrays: bool, bake: bool) -> None:
        self.variables: list[Any] = []
        self.scalars_are_arrays = scalars_are_arrays
        self.bake = bake

    def split(self, value: Any, takes_array: bool) -> Any:
        """Return the template of ``value`` and append the arrays in it."""
        if isinstance(value, Handle):
            kind = value._place.kind
            if self.bake and not kind.requires_grad:
                return self._baked(look(value))
            self.variables.append(value)
            return _ARRAY
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, _SCALARS):
            if takes_array and self.scalars_are_arrays:
                self.variables.append(record.constant(value))
                return _ARRAY
            return _Static(value)
        if isinstance(value, np.generic):
            if takes_array:
                self.variables.append(record.constant(np.asarray(value)))
                return _ARRAY
            return _Static(value)
        if isinstance(value, _ARRAYS):
            if self.bake:
                return self._baked(value)
            self.variables.append(record.constant(value))
            return _ARRAY
        if isinstance(value, (tuple, list)):
            items = tuple(self.split(v, takes_array=False) for v in value)
            return _Node(type(value), None, items)
        if isinstance(value, dict):
            return _Node(dict, tuple(value), tuple(self.split(v, takes_array=False) for v in value.values()))
        if isinstance(value, slice):
            return _Node(slice, None, tuple(self.split(v, takes_array=False) for v in (value.start, value.stop, value.step)))
        if hasattr(value, "__jax_array__"):
            self.variables.append(record.constant(value.__jax_array__()))
            return _ARRAY
        return value

    def _baked(self, value: Any) -> Any:
        if isinstance(value, jax.core.Tracer) or (hasattr(value, "dtype") and jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended)):
            self.variables.append(record.leaf(value))
            return _ARRAY
        return _Baked(np.asarray(value))


def _fill(template: Any, arrays: Any) -> Any:
    """Put arrays back in the place of the marks of a template."""
    if template is _ARRAY:
        return next(arrays)
    if isinstance(template, (_Static, _Baked)):
        return template.value
    if isinstance(template, _Node):
        items = [_fill(t, arrays) for t in template.items]
        if template.type is dict:
            return dict(zip(template.names or (), items, strict=True))
        if template.type is slice:
            return slice(*items)
        if hasattr(template.type, "_fields"):
            return template.type(*items)
        return template.type(items)
    return template


@functools.lru_cache(maxsize=None)
def _array_parameters(fun: Callable[..., Any]) -> tuple[dict[str, bool], tuple[bool, ...], bool]:
    """Say which parameters of ``fun`` take arrays, by name and position, from their annotations; last, for further positions."""
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        return {}, (), True
    names: dict[str, bool] = {}
    positions: list[bool] = []
    rest = True
    for p in parameters:
        annotation = p.annotation if isinstance(p.annotation, str) else str(p.annotation)
        unknown = p.annotation is inspect.Parameter.empty
        takes = unknown or "ArrayLike" in annotation or annotation.split("|")[0].strip() in {"Array", "Any", "RealNumeric", "Numeric"}
        if p.kind is p.VAR_POSITIONAL:
            rest = takes
            continue
        names[p.name] = takes
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            positions.append(takes)
    return names, tuple(positions), rest


_NEEDS_VALUES: set[Any] = set()  # op keys whose function has to see its scalars or arrays

def call(fun: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record ``fun(*args, **kwargs)`` as one entry.

    Raises:
        TapeError: the arguments do not fit (JAX's message, and the builtin class that JAX raises).
        LostGradientError: the function must see the value of a Variable that requires grad.

    """
    attempts = ((True, False), (False, False), (False, True))
    error: Exception | None = None
    for scalars_are_arrays, bake in attempts:
        splitter = _Splitter(scalars_are_arrays, bake)
        key = _key(fun, name, args, kwargs, splitter)
        try:
            hash(key)
        except TypeError:
            op = Op(name, functools.partial(_apply, fun, key[1], key[2]), None)
        else:
            if key in _NEEDS_VALUES:
                continue
            op = intern_op(key, lambda key=key: Op(name, functools.partial(_apply, fun, key[1], key[2]), key[2]))  # type: ignore[misc]
        try:
            return record.record(op, splitter.variables)
        except record.CONCRETE_ERRORS as e:
            error = e
            _remember(key)
        except TapeError:
            if not (scalars_are_arrays and _has_scalars(args, kwargs)):
                raise
    return _evaluate(fun, name, args, kwargs, error)


def _remember(key: Any) -> None:
    try:
        _NEEDS_VALUES.add(key)
    except TypeError:
        return


def _has_scalars(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(isinstance(a, (*_SCALARS, np.generic)) for a in (*args, *kwargs.values()))


def _key(fun: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any], splitter: _Splitter) -> tuple[Any, ...]:
    names, positions, rest = _array_parameters(fun)
    count = len(positions)
    positional = tuple(
        splitter.split(a, (positions[i] if i < count else rest) and (name, i) not in _STATIC_ARGUMENTS) for i, a in enumerate(args)
    )
    keyword = tuple((k, splitter.split(kwargs[k], names.get(k, False))) for k in sorted(kwargs))
    return (fun, positional, keyword)


def _apply(fun: Callable[..., Any], positional: tuple[Any, ...], keyword: tuple[Any, ...], *arrays: Any) -> Any:
    it = iter(arrays)
    args = [_fill(t, it) for t in positional]
    kwargs = {k: _fill(t, it) for k, t in keyword}
    return fun(*args, **kwargs)


def _evaluate(fun: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception | None) -> Any:
    """Look at every argument and run the function now; its results are constants."""
    leaves = jax.tree.leaves((args, kwargs), is_leaf=lambda x: isinstance(x, Handle))
    for leaf in leaves:
        if isinstance(leaf, Handle) and leaf._place.kind.requires_grad:
            aval = leaf._place.kind.aval
            msg = (
                f"{name}: the result's shape depends on the values of a Variable that requires grad (shape {aval.shape}, dtype {aval.dtype}), "
                "so no gradient could flow; pass it detached (.detach()), or give the static size that the function offers"
            )
            raise LostGradientError(msg) from error
        if isinstance(leaf, jax.core.Tracer) or (isinstance(leaf, Handle) and isinstance(look(leaf), jax.core.Tracer)):
            msg = f"{name}: needs the value of an argument, which is not known inside a JAX transformation; give static sizes, or call it outside"
            raise ConcretizationError(msg) from error
    args, kwargs = jax.tree.map(lambda x: look(x) if isinstance(x, Handle) else x, (args, kwargs), is_leaf=lambda x: isinstance(x, Handle))
    with jax.ensure_compile_time_eval():
        try:
            results = fun(*args, **kwargs)
        except (TypeError, ValueError, IndexError) as e:
            wrapped = record.wrap_jax_error(e, name)
            raise (wrapped or e) from e
    return jax.tree.map(lambda x: record.constant(x) if isinstance(x, _ARRAYS) else x, results)


def mirrored(fun: Callable[..., Any], name: str | None = None, *, module: str = "tape.numpy") -> Callable[..., Any]:
    """Return the recording counterpart of a JAX function, with its name, signature and docstring."""
    called = name or fun.__name__
    ops: dict[int, Op] = {}

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            count = len(args)
            op = ops.get(count)
            if op is not None:
                for a in args:
                    if not isinstance(a, Handle):
                        break
                else:
                    return record.record(op, args)
            elif count and all(isinstance(a, Handle) for a in args):
                result = call(fun, called, args, kwargs)
                template = (_ARRAY,) * count
                key = (fun, template, ())
                if key not in _NEEDS_VALUES:
                    ops[count] = intern_op(key, lambda: Op(called, functools.partial(_apply, fun, template, ())))
                return result
        return call(fun, called, args, kwargs)

    functools.update_wrapper(wrapper, fun)
    wrapper.__name__ = called
    wrapper.__qualname__ = called
    wrapper.__module__ = module
    return wrapper


def operator(fun: Callable[..., Any], name: str) -> Callable[[Any, Any], Any]:
    """Return a recording function of two operands that is quick for two Variables."""
    op = intern_op((fun, (_ARRAY, _ARRAY), ()), lambda: Op(name, functools.partial(_apply, fun, (_ARRAY, _ARRAY), ())))

    def apply(a: Any, b: Any) -> Any:
        if isinstance(b, Handle) and isinstance(a, Handle):
            return record.record(op, (a, b))
        return call(fun, name, (a, b), {})

    return apply
