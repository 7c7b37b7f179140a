"""Operators of Variables: each records the ``jax.numpy`` function that it stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from tape import errors
from tape.errors import TapeTypeError, saying
from tape.graph.kinds import NUMBERS
from tape.graph.segment import Handle
from tape.mirrored.adapters import array
from tape.mirrored.mirror import Application, call, mirrored
from tape.ops.kernel import Op
from tape.recording import record
from tape.recording.record import record_number, record_one, record_two
from tape.recording.template import ARRAY
from tape.sweeps.seeds import describe
from tape.variables import updates
from tape.variables.declared import Declared

if TYPE_CHECKING:
    from tape.variables.declared import Operand

_BINARY: dict[str, tuple[Callable[..., Any], str]] = {  # with the symbol, where there is an augmented assignment
    "add": (jnp.add, "+"),
    "sub": (jnp.subtract, "-"),
    "mul": (jnp.multiply, "*"),
    "truediv": (jnp.true_divide, "/"),
    "floordiv": (jnp.floor_divide, "//"),
    "mod": (jnp.remainder, "%"),
    "divmod": (jnp.divmod, ""),
    "matmul": (jnp.matmul, "@"),
    "and": (jnp.bitwise_and, "&"),
    "or": (jnp.bitwise_or, "|"),
    "xor": (jnp.bitwise_xor, "^"),
    "lshift": (jnp.left_shift, "<<"),
    "rshift": (jnp.right_shift, ">>"),
}
_COMPARISONS: dict[str, Callable[..., Any]] = {
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
}
_UNARY: dict[str, Callable[..., Any]] = {"neg": jnp.negative, "pos": jnp.positive, "abs": jnp.abs, "invert": jnp.bitwise_not}
_OPERANDS = (Handle, jax.Array, np.ndarray, np.generic, bool, int, float, complex)
_NO_OPERANDS = (list, tuple, dict, set, frozenset, str, bytes, type(None))
_SEQUENCES = frozenset({"add", "mul", "mod"})  # operators that lists, tuples and text have themselves: += extends a list


def _binary(name: str, fun: Callable[..., Any]) -> tuple[Callable[[Handle, object], Any], Callable[[Handle, object], Any]]:
    """Return an operator and its reflected form."""
    called = fun.__name__
    op = Op(called, Application(fun, (ARRAY, ARRAY), ()))
    listed = saying(array(jnp.asarray), called)

    def forward(self: Handle, other: Any) -> object:
        if other.__class__ is self.__class__ or isinstance(other, Handle):
            return record_two(op, self, other)
        if type(other) in NUMBERS or isinstance(other, np.generic):
            return record_number(op, self, other)
        if isinstance(other, _OPERANDS):
            return record.record(op, (self, _constant(other, called)))
        if name in _COMPARISONS and isinstance(other, (list, tuple)):
            return record.record(op, (self, listed(other)))
        if jax.export.is_symbolic_dim(other):
            return record.record(op, (self, _length(other)))
        return _no_operand(self, other, called)

    def reflected(self: Handle, other: Any) -> object:
        if type(other) in NUMBERS or isinstance(other, np.generic):
            return record_number(op, self, other, first=True)
        if isinstance(other, _OPERANDS):
            return record.record(op, (_constant(other, called), self))
        if jax.export.is_symbolic_dim(other):
            return record.record(op, (_length(other), self))
        return NotImplemented if name in _SEQUENCES else _no_operand(self, other, called)

    both = record.quick(forward, two=op), record.quick(reflected, two=op, swapped=True)
    both[0].__doc__ = both[1].__doc__ = f"Record ``jax.numpy.{called}``."
    return both


def _no_operand(variable: Handle, other: object, called: str) -> object:
    """Refuse an operand that is none, rather than leave it to Python; what may know Variables itself is asked."""
    if called in {"equal", "not_equal"} or not isinstance(other, _NO_OPERANDS):
        return NotImplemented
    listed = isinstance(other, (list, tuple))
    repair = "make an array of it: tape.numpy.asarray(operand)" if listed else "pass a Variable, an array or a number"
    msg = f"{called}: an operand beside a Variable ({describe(variable)}) is of type {type(other).__name__}; {repair}"
    raise TapeTypeError(msg)


def _length(symbolic: object) -> Handle:
    """Return a symbolic length of ``jax.export`` as the number that it will be."""
    return record.leaf(jnp.asarray(symbolic))  # type: ignore[no-any-return]


def _constant(value: object, called: str) -> Handle:
    try:
        return record.operand(value)  # type: ignore[no-any-return]
    except (TypeError, ValueError, OverflowError) as e:
        raise (errors.wrap(e, called) or e) from e


def _unary(fun: Callable[..., Any]) -> Callable[[Handle], Any]:
    op = Op(fun.__name__, Application(fun, (ARRAY,), ()))

    def apply(self: Handle) -> object:
        return record_one(op, self)

    quick = record.quick(apply, one=op)
    quick.__doc__ = f"Record ``jax.numpy.{fun.__name__}``."
    return quick


class Operators(Declared):
    """The operators of a Variable, on either side and augmented."""

    __slots__ = ()

    def __pow__(self, exponent: Operand, modulo: None = None) -> Self:
        if modulo is not None or not isinstance(exponent, _OPERANDS):
            return _no_operand(self, exponent, "power") if modulo is None else NotImplemented
        return _power(self, exponent)  # type: ignore[no-any-return]

    def __rpow__(self, base: Operand) -> Self:
        return _power(base, self) if isinstance(base, _OPERANDS) else _no_operand(self, base, "power")  # type: ignore[no-any-return]

    def __round__(self, ndigits: int | None = None) -> Self:
        return call(_rounded, "round", (self, ndigits), {})  # type: ignore[no-any-return]


def _rounded(x: Any, ndigits: int | None) -> object:
    return round(x, ndigits)


_power = mirrored(jnp.power, "power")


def _install() -> None:
    methods: dict[str, Callable[..., Any]] = {name: _unary(fun) for name, fun in _UNARY.items()}
    methods |= {name: _binary(name, fun)[0] for name, fun in _COMPARISONS.items()}
    methods["ipow"] = updates.augmented("**", Operators.__pow__)
    for name, (fun, symbol) in _BINARY.items():
        methods[name], methods[f"r{name}"] = _binary(name, fun)
        if symbol:
            methods[f"i{name}"] = updates.augmented(symbol, methods[name])
    methods["pow"] = record.quick(Operators.__pow__, through=_power)
    methods["rpow"] = record.quick(Operators.__rpow__, through=_power, swapped=True)
    for name, method in methods.items():
        method.__name__ = method.__qualname__ = f"__{name}__"
        setattr(Operators, f"__{name}__", method)


_install()
