"""Operators, array methods and indexing of Variables: each records the ``jax.numpy`` function that it stands for."""

from __future__ import annotations

import operator as python_operator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from tape import record
from tape.kernel import Op
from tape.mirror import call, operator
from tape.program import look
from tape.record import LOCAL, Handle, handle, set_mode
from tape.trie import CONSTANT, Place, kind_of

if TYPE_CHECKING:
    from tape.trie import State

__all__ = ["ArrayMethods", "detach", "producer"]

_IDENTITY = Op("detach", lambda x: x)


def detach(variable: Any) -> Any:
    """Return a constant of the same value, without running what is pending."""
    kind = variable._place.kind
    if variable._segment is not None and variable._cell[0] is None:
        old = set_mode(CONSTANT)
        try:
            return record.record(_IDENTITY, (variable,))
        finally:
            set_mode(old)
    value = look(variable)
    if isinstance(value, jax.core.Tracer):
        value = jax.lax.stop_gradient(value)
    return handle(None, Place(-1, kind_of(kind.aval)), [value])


def producer(state: State, slot: int) -> Any:
    """Return the op whose entry made ``slot``."""
    step: State | None = state
    while step is not None:
        if any(p.slot == slot for p in step.places):
            return step.op if step.kernel is not None else None
        step = step.parent
    return None


_OPERATORS = {
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "truediv": jnp.true_divide,
    "floordiv": jnp.floor_divide,
    "mod": jnp.remainder,
    "divmod": jnp.divmod,
    "pow": jnp.power,
    "matmul": jnp.matmul,
    "and": jnp.bitwise_and,
    "or": jnp.bitwise_or,
    "xor": jnp.bitwise_xor,
    "lshift": jnp.left_shift,
    "rshift": jnp.right_shift,
}


class ArrayMethods(Handle):
    """What a Variable shares with arrays."""

    __slots__ = ()


def _install() -> None:
    for name, fun in _OPERATORS.items():
        apply = operator(fun, fun.__name__)

        def forward(self: Any, other: Any, _apply: Any = apply) -> Any:
            return _apply(self, other) if _operand(other) else NotImplemented

        def reflected(self: Any, other: Any, _apply: Any = apply) -> Any:
            return _apply(other, self) if _operand(other) else NotImplemented

        setattr(ArrayMethods, f"__{name}__", forward)
        setattr(ArrayMethods, f"__r{name}__", reflected)


def _operand(value: Any) -> bool:
    return isinstance(value, (Handle, jax.Array, np.ndarray, np.generic, bool, int, float, complex))


_install()
_ = (LOCAL, call, python_operator)
