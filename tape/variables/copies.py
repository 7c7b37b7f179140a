"""Copies of Variables: shallow and deep ones, and pickles, of the class of the original, with what else a user's subclass keeps.

Deep ones and pickles are of leaves, with value, flags, name and gradient; hooks stay behind.
"""

from __future__ import annotations

import copy
from typing import Any

import jax
import jax.numpy as jnp

from tape.errors import TapeValueError
from tape.graph import boundary
from tape.graph.kinds import Place, kind_of, leaf_kind
from tape.graph.scope import LOCAL
from tape.graph.segment import Handle, Segment, extra_of, hooks_at, outside
from tape.programs.program import taken
from tape.sweeps.seeds import describe
from tape.variables.conversion import concrete


def shallow_copy(variable: Any) -> Any:
    """Return what ``copy.copy`` does."""
    cell = [taken(variable)] if variable._segment is None else variable._cell  # the cell tells leaves apart
    copied = _new_handle(type(variable), variable._segment, variable._place, cell)
    if hasattr(variable, "__dict__"):
        vars(copied).update(vars(variable))
    if variable._segment is None:
        boundary.made(copied)
        _noted(variable, copied)
    elif variable._place.kind.requires_grad:  # hooks of either are hooks of both, also those that come later
        extra_of(variable).hooks = extra_of(copied).hooks = hooks_at(variable)
    return copied


def deep_copy(variable: Any, memo: dict[int, Any]) -> Any:
    """Return what ``copy.deepcopy`` does."""
    _refuse_past(variable, "deepcopy", "copy.deepcopy(x.detach())")
    copied = memo[id(variable)] = _leaf(type(variable), taken(variable), outside(variable._place, variable._segment), variable.name)
    _noted(variable, copied)
    if hasattr(variable, "__dict__"):
        vars(copied).update(copy.deepcopy(vars(variable), memo))
    gradient = _own_gradient(variable)
    return _with_gradient(copied, None if gradient is None else deep_copy(gradient, memo))


def reduced(variable: Any) -> tuple[Any, ...]:
    """Return what ``pickle`` asks for."""
    _refuse_past(variable, "pickle", "pickle.dumps(x.detach())")
    value, implementation = concrete(variable, "pickle"), None
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value, implementation = jax.random.key_data(value), str(jax.random.key_impl(value))
    kind = variable._place.kind
    about = kind.requires_grad, kind.unrecorded, variable.name, _own_gradient(variable)
    return (_restored, (type(variable), value, implementation, *about), getattr(variable, "__dict__", None))


def _restored(
    made: type,
    value: jax.Array,
    implementation: str | None,
    requires_grad: bool,
    unrecorded: bool | str,
    name: str | None,
    gradient: Handle | None,
) -> Any:
    if implementation is not None:
        value = jax.random.wrap_key_data(value, impl=implementation)
    kind = leaf_kind(value, requires_grad=True) if requires_grad else kind_of(jax.typeof(value), unrecorded=unrecorded)
    return _with_gradient(_leaf(made, value, Place(-1, kind), name), gradient)


def _with_gradient(copied: Any, gradient: Handle | None) -> Any:
    """Give a copy its gradient, which a frozen Variable has as well if sweeps reached it before, though none can be assigned to it."""
    if gradient is not None:
        extra_of(copied).grad = gradient
    return copied


def _new_handle(kind: Any, segment: Segment | None, place: Place, cell: list[Any]) -> Any:
    """Make a Variable of the given class, slot and cell; no constructor of a user's runs."""
    variable = kind.__new__(kind)
    variable._segment, variable._place, variable._cell, variable._extra = segment, place, cell, None
    return variable


def _leaf(made: type, value: jax.Array, place: Place, name: str | None) -> Any:
    leaf = _new_handle(made, None, place, [value])
    boundary.made(leaf)
    if name is not None:
        extra_of(leaf).name = name
    return leaf


def _noted(variable: Any, copied: Any) -> None:
    """Have the tapes that are open know whose value a copy has."""
    if LOCAL.scope.notes is not None:
        LOCAL.scope.notes.detached(variable, copied)


def _refuse_past(variable: Any, what: str, repair: str) -> None:
    if not variable.is_leaf:
        msg = f"{what}: a Variable that an op produced ({describe(variable)}) has a past, which a copy would lose; write {repair}"
        raise TapeValueError(msg)


def _own_gradient(variable: Any) -> Any:
    """Return the gradient that goes with a copy: without its past."""
    gradient = variable.grad
    return gradient if gradient is None or gradient.is_leaf else gradient.detach()
