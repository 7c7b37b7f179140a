"""Operators and array methods of Variables: each records the ``jax.numpy`` function or array method that it stands for."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from tape import errors, jaxapi
from tape.errors import LostGradientError, TapeTypeError, saying
from tape.mirrored import selection
from tape.mirrored.adapters import array
from tape.mirrored.mirror import Application, call, mirrored, on_values
from tape.ops.kernel import Op
from tape.ops.kinds import Place, kind_of
from tape.programs.program import look
from tape.recording import boundary, record
from tape.recording.record import handle, record_number, record_one, record_two
from tape.recording.scalars import NUMBERS
from tape.recording.segment import LOCAL, Handle, in_mode
from tape.recording.template import ARRAY
from tape.recording.trie import CONSTANT, RECORD
from tape.sweeps.seeds import describe
from tape.variables import indexing, interception, updates

if TYPE_CHECKING:
    from collections.abc import Callable

    from tape.recording.trie import State

__all__ = ["ArrayMethods", "called_by_array_operator", "detach", "producer", "refuse_reinterpretation"]

_IDENTITY = Op("detach", lambda x: x)


def detach(variable: Any) -> Any:
    """Return a constant of the same value, without running what is pending."""
    kind = variable._place.kind
    if variable._cell[0] is None:
        return in_mode(CONSTANT, record.record, _IDENTITY, (variable,))
    if LOCAL.lifting is None:
        value = look(variable)
    else:
        boundary.captured(variable, flows=False)
        value = variable._cell[0]
    if isinstance(value, jaxapi.Tracer):
        return record.leaf(jax.lax.stop_gradient(value))
    return handle(None, Place(-1, kind_of(kind.aval)), [value])


def stop_gradient(x: Any) -> Any:
    """Return ``x`` cut off from the tape.

    Args:
        x: a Variable, an array, or a pytree of them; any shape and dtype.

    Returns:
        The same values as constant Variables.

    Example:
        >>> import tape
        >>> x = tape.Variable(3.0)
        >>> y = x * tape.stop_gradient(x)
        >>> float(tape.gradients(y, x))
        3.0

    """
    return jax.tree.map(lambda v: detach(v if isinstance(v, Handle) else record.constant(v)), x, is_leaf=lambda v: isinstance(v, Handle))


def producer(state: State, slot: int) -> Any:
    """Return the op whose entry made ``slot``."""
    step: State | None = state
    while step is not None:
        if slot in step.slots:
            return step.op if step.kernel is not None else None
        for line in step.lines or ():
            if slot in line.slots:
                return line.kernel
        step = step.parent
    return None


_BINARY: dict[str, Callable[..., Any]] = {
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "truediv": jnp.true_divide,
    "floordiv": jnp.floor_divide,
    "mod": jnp.remainder,
    "divmod": jnp.divmod,
    "matmul": jnp.matmul,
    "and": jnp.bitwise_and,
    "or": jnp.bitwise_or,
    "xor": jnp.bitwise_xor,
    "lshift": jnp.left_shift,
    "rshift": jnp.right_shift,
}
_COMPARISONS: dict[str, Callable[..., Any]] = {
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
}
_AUGMENTED = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "**",
    "matmul": "@",
    "and": "&",
    "or": "|",
    "xor": "^",
    "lshift": "<<",
    "rshift": ">>",
}
_UNARY: dict[str, Callable[..., Any]] = {"neg": jnp.negative, "pos": jnp.positive, "abs": jnp.abs, "invert": jnp.bitwise_not}
_OPERANDS = (Handle, jax.Array, np.ndarray, np.generic, bool, int, float, complex)
_NO_OPERANDS = (list, tuple, dict, set, frozenset, str, bytes, type(None))
_SEQUENCES = frozenset({"add", "mul", "mod"})  # operators that lists, tuples and text have themselves: += extends a list
_as_array = array(jnp.asarray)


def _binary(name: str, fun: Callable[..., Any]) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """Return an operator and its reflected form."""
    called = fun.__name__
    op = Op(called, Application(fun, (ARRAY, ARRAY), ()))
    said = saying(_as_array, called)

    def forward(self: Any, other: Any) -> Any:
        if other.__class__ is self.__class__ or isinstance(other, Handle):
            return record_two(op, self, other)
        if type(other) in NUMBERS or isinstance(other, np.generic):
            return record_number(op, self, other)
        if isinstance(other, _OPERANDS):
            return record.record(op, (self, _constant(other, called)))
        if name in _COMPARISONS and isinstance(other, (list, tuple)):
            return record.record(op, (self, said(other)))
        return _no_operand(self, other, called)

    def reflected(self: Any, other: Any) -> Any:
        if type(other) in NUMBERS or isinstance(other, np.generic):
            return record_number(op, self, other, first=True)
        if isinstance(other, _OPERANDS):
            return record.record(op, (_constant(other, called), self))
        return NotImplemented if name in _SEQUENCES else _no_operand(self, other, called)

    forward.__name__ = forward.__qualname__ = f"__{name}__"
    reflected.__name__ = reflected.__qualname__ = f"__r{name}__"
    forward.__doc__ = reflected.__doc__ = f"Record ``jax.numpy.{called}``."
    return forward, reflected


def _no_operand(variable: Any, other: Any, called: str) -> Any:
    """Refuse an operand that is none, rather than leave it to Python; what may know Variables itself is asked."""
    if called in {"equal", "not_equal"} or not isinstance(other, _NO_OPERANDS):
        return NotImplemented
    listed = isinstance(other, (list, tuple))
    repair = "make an array of it: tape.numpy.asarray(operand)" if listed else "pass a Variable, an array or a number"
    msg = f"{called}: an operand beside a Variable ({describe(variable)}) is of type {type(other).__name__}; {repair}"
    raise TapeTypeError(msg)


def _constant(value: Any, called: str) -> Any:
    try:
        return record.constant(value)
    except (TypeError, ValueError, OverflowError) as e:
        raise (errors.wrap(e, called) or e) from e


def _unary(name: str, fun: Callable[..., Any]) -> Callable[[Any], Any]:
    op = Op(fun.__name__, Application(fun, (ARRAY,), ()))

    def apply(self: Any) -> Any:
        return record_one(op, self)

    apply.__name__ = apply.__qualname__ = f"__{name}__"
    apply.__doc__ = f"Record ``jax.numpy.{fun.__name__}``."
    return apply


def _method(name: str) -> Callable[..., Any]:
    """Return the recording counterpart of a method of ``jax.Array``."""
    original = getattr(jax.Array, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, name)(*args, **kwargs)

    made = mirrored(method, name, module="tape")
    made.__qualname__ = f"Variable.{name}"
    return made


def _property(name: str) -> property:
    """Return the recording counterpart of a property of ``jax.Array``."""
    op = Op(name, lambda x: getattr(x, name))

    def get(self: Any) -> Any:
        return record.record(op, (self,))

    get.__doc__ = getattr(jax.Array, name).__doc__
    return property(get)


def _selecting(name: str, select: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method whose result's shape depends on values."""
    said = saying(select, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return said(self, *args, **kwargs)

    original = getattr(jax.Array, name)
    functools.update_wrapper(method, original)
    method.__name__ = name
    method.__qualname__ = f"Variable.{name}"
    method.__module__ = "tape"
    return method


def _compress(self: Any, condition: Any, *args: Any, **kwargs: Any) -> Any:
    return selection.compress(condition, self, *args, **kwargs)


def refuse_reinterpretation(variable: Any, what: str) -> None:
    """Raise where reading the bits of a Variable as another type would lose its gradient."""
    if isinstance(variable, Handle) and variable._place.kind.requires_grad and LOCAL.mode == RECORD:
        aval = variable._place.kind.aval
        msg = (
            f"{what}: reads the bits of a Variable that requires grad (shape {aval.shape}, dtype {aval.dtype}), through which no gradient flows; "
            "pass it detached (.detach()), or convert the values with .astype(dtype)"
        )
        raise LostGradientError(msg)


_PROPERTIES = ("T", "mT", "real", "imag")
_METHODS = (
    "all",
    "any",
    "argmax",
    "argmin",
    "argpartition",
    "argsort",
    "astype",
    "clip",
    "conj",
    "conjugate",
    "copy",
    "cumprod",
    "cumsum",
    "diagonal",
    "dot",
    "flatten",
    "max",
    "mean",
    "min",
    "prod",
    "ptp",
    "ravel",
    "reshape",
    "round",
    "searchsorted",
    "sort",
    "squeeze",
    "std",
    "sum",
    "swapaxes",
    "take",
    "trace",
    "transpose",
    "var",
)


class ArrayMethods(Handle):
    """What a Variable shares with arrays: operators, methods, indexing, and the protocols of NumPy and the Array API."""

    __slots__ = ()

    __array_ufunc__ = interception.array_ufunc
    __array_function__ = interception.array_function
    __getitem__ = indexing.getitem
    __setitem__ = updates.setitem

    @property
    def at(self) -> updates.At:
        """Updated copies: ``v.at[index].set(y)``, ``add``, ``multiply`` and so on, as ``jax.Array.at``."""
        return updates.At(self)

    def __pow__(self, exponent: Any, modulo: Any = None) -> Any:
        if modulo is not None or not isinstance(exponent, _OPERANDS):
            return _no_operand(self, exponent, "power") if modulo is None else NotImplemented
        return _power(self, exponent)

    def __rpow__(self, base: Any) -> Any:
        return _power(base, self) if isinstance(base, _OPERANDS) else _no_operand(self, base, "power")

    def __round__(self, ndigits: int | None = None) -> Any:
        return call(_rounded, "round", (self, ndigits), {})

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """Return :mod:`tape.numpy`, an Array API namespace."""
        from tape import numpy as namespace  # noqa: PLC0415 - imports this module

        if api_version is not None and not (isinstance(api_version, str) and api_version <= namespace.__array_api_version__):
            msg = f"__array_namespace__: api_version {api_version!r} is not supported; the newest is {namespace.__array_api_version__!r}"
            raise TapeTypeError(msg)
        return namespace

    def view(self, dtype: Any = None, *shape: Any) -> Any:
        """Return the same bits read as another dtype; a Variable that requires grad is refused, because its gradient would be lost."""
        if shape or isinstance(dtype, (int, tuple, list)):  # PyTorch's view
            given = ", ".join(map(str, (dtype, *shape)))
            msg = f"view: reads the bits of a Variable (shape {self._place.kind.aval.shape}) as another dtype, got {given}; use x.reshape({given})"
            raise TapeTypeError(msg)
        try:
            same = dtype is None or jnp.dtype(dtype) == self._place.kind.aval.dtype
        except TypeError as e:
            raise (errors.wrap(e, "view") or e) from e
        if same:
            return call(jnp.asarray, "view", (self,), {})
        refuse_reinterpretation(self, "view")
        return call(_view, "view", (self, dtype), {})

    def byteswap(self) -> Any:
        """Return the elements with their bytes reversed."""
        refuse_reinterpretation(self, "byteswap")
        return call(_byteswap, "byteswap", (self,), {})

    def to_device(self, device: Any, *, stream: Any = None) -> Any:
        """Return a copy on another device; gradients flow back through it."""
        if stream is not None:
            msg = f"to_device: JAX has no streams, got stream={stream!r}; leave it out"
            raise TapeTypeError(msg)
        return call(jax.device_put, "to_device", (self, device), {})

    def devices(self) -> Any:
        """Return the devices that hold the value."""
        return look(self).devices()

    def tobytes(self, order: Any = "C") -> bytes:
        """Return the value's bytes."""
        try:
            return np.asarray(look(self)).tobytes(order)
        except (TypeError, ValueError) as e:
            raise (errors.wrap(e, "tobytes") or e) from e

    def nonzero(self, *, fill_value: Any = None, size: int | None = None) -> Any:
        """Return the indices of the elements that are not zero, looking at the values unless ``size`` is given."""
        if size is None:
            return on_values(jnp.nonzero, "nonzero", (self,), {})
        return call(jnp.nonzero, "nonzero", (self,), {"size": size, "fill_value": fill_value})

    repeat = _selecting("repeat", selection.repeat)
    compress = _selecting("compress", _compress)
    choose = _selecting("choose", selection.choose)


def _rounded(x: Any, ndigits: int | None) -> Any:
    return round(x, ndigits)


def _view(x: Any, dtype: Any) -> Any:
    return x.view(dtype)


def _byteswap(x: Any) -> Any:
    return x.byteswap()


_power = mirrored(jnp.power, "power")


def _install() -> None:
    for name, fun in _BINARY.items():
        forward, reflected = _binary(name, fun)
        setattr(ArrayMethods, f"__{name}__", forward)
        setattr(ArrayMethods, f"__r{name}__", reflected)
    for name, fun in _COMPARISONS.items():
        setattr(ArrayMethods, f"__{name}__", _binary(name, fun)[0])
    for name, symbol in _AUGMENTED.items():
        made = updates.augmented(symbol, getattr(ArrayMethods, f"__{name}__"))
        made.__name__ = made.__qualname__ = f"__i{name}__"
        setattr(ArrayMethods, f"__i{name}__", made)
    for name, fun in _UNARY.items():
        setattr(ArrayMethods, f"__{name}__", _unary(name, fun))
    for name in _METHODS:
        setattr(ArrayMethods, name, _method(name))
    for name in _PROPERTIES:
        setattr(ArrayMethods, name, _property(name))


_install()


@functools.cache
def _operator_codes() -> frozenset[Any]:
    """Return the code of every binary operator of ``jax.Array``."""
    array = type(jnp.zeros(()))
    names = [f"__{r}{n}__" for n in (*_BINARY, "pow") for r in ("", "r")] + [f"__{n}__" for n in _COMPARISONS]
    functions = [inspect.unwrap(f) for n in names if callable(f := getattr(array, n, None))]
    return frozenset(f.__code__ for f in functions if hasattr(f, "__code__"))


def called_by_array_operator(code: Any) -> bool:
    """Say whether ``code`` is an operator of ``jax.Array``, which asks its right operand for an array before it defers to it."""
    return code in _operator_codes()
