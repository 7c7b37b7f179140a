"""Copies of Variables: deep ones, and pickles.  Both are of leaves, with value, flags, name and gradient; hooks stay behind."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tape import jaxapi
from tape.errors import TapeValueError
from tape.graph import boundary
from tape.graph.kinds import Place, kind_of, leaf_kind
from tape.graph.segment import Handle, extra_of, outside
from tape.programs.program import look
from tape.recording.record import handle
from tape.sweeps.seeds import describe
from tape.variables.conversion import concrete


def deep_copy(variable: Any, memo: dict[int, Any]) -> Any:
    """Return what ``copy.deepcopy`` does."""
    _refuse_past(variable, "deepcopy", "copy.deepcopy(x.detach())")
    copy = memo[id(variable)] = _leaf(look(variable), outside(variable._place, variable._segment), variable.name)
    gradient = _own_gradient(variable)
    return _with_gradient(copy, None if gradient is None else deep_copy(gradient, memo))


def reduced(variable: Any) -> tuple[Any, ...]:
    """Return what ``pickle`` asks for."""
    _refuse_past(variable, "pickle", "pickle.dumps(x.detach())")
    value, implementation = concrete(variable, "pickle"), None
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value, implementation = jax.random.key_data(value), str(jax.random.key_impl(value))
    kind = variable._place.kind
    return (_restored, (value, implementation, kind.requires_grad, kind.unrecorded, variable.name, _own_gradient(variable)))


def _restored(
    value: jax.Array, implementation: str | None, requires_grad: bool, unrecorded: bool | str, name: str | None, gradient: Handle | None
) -> Any:
    if implementation is not None:
        value = jax.random.wrap_key_data(value, impl=implementation)
    kind = leaf_kind(value, requires_grad=True) if requires_grad else kind_of(jax.typeof(value), unrecorded=unrecorded)
    return _with_gradient(_leaf(value, Place(-1, kind), name), gradient)


def _with_gradient(copy: Any, gradient: Handle | None) -> Any:
    """Give a copy its gradient, which a frozen Variable has as well if sweeps reached it before, though none can be assigned to it."""
    if gradient is not None:
        extra_of(copy).grad = gradient
    return copy


def _leaf(value: jax.Array, place: Place, name: str | None) -> Any:
    leaf = handle(None, place, [value])
    boundary.made(leaf)
    if name is not None:
        extra_of(leaf).name = name
    if jaxapi.in_trace():
        extra_of(leaf).inside = True
    return leaf


def _refuse_past(variable: Any, what: str, repair: str) -> None:
    if not variable.is_leaf:
        msg = f"{what}: a Variable that an op produced ({describe(variable)}) has a past, which a copy would lose; write {repair}"
        raise TapeValueError(msg)


def _own_gradient(variable: Any) -> Any:
    """Return the gradient that goes with a copy: without its past."""
    gradient = variable.grad
    return gradient if gradient is None or gradient.is_leaf else gradient.detach()
