"""Variables as pytrees: how they pass into JAX transformations and out of them, and what ``jax.tree`` makes of them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.ops.kernel import Op
from tape.ops.kinds import Place, kind_of
from tape.ops.pullback import differentiable
from tape.programs.program import look
from tape.recording import boundary, record
from tape.recording.record import handle
from tape.recording.segment import LOCAL, Handle
from tape.recording.trie import RECORD

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["register"]

_OPAQUE = jax.core.ShapedArray((), np.dtype(bool))
_ALIAS = Op("alias", lambda x: x)
_OURS = {"jax", "tape", "interop"}
_classes: dict[str, type[Handle]] = {}


class _Told:
    """What is known of a Variable that the user's code took apart by ``jax.tree``: equal for all, so that trees of Variables match."""

    __slots__ = ("name", "requires_grad")

    def __init__(self, *, requires_grad: bool, name: str | None) -> None:
        self.requires_grad = requires_grad
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Told)

    def __hash__(self) -> int:
        return hash(_Told)


def register(variable_type: type[Handle]) -> None:
    """Tell JAX how Variables are taken apart and put together."""
    _classes["variable"] = variable_type
    _classes["leaf"] = type(variable_type.__name__, (variable_type,), {"__slots__": ()})  # JAX takes only the registered type apart
    jax.tree_util.register_pytree_node(variable_type, _flatten, _unflatten)


def _flatten(variable: Any) -> tuple[tuple[Any, ...], Any]:
    if not _asked_by_tree_function():
        boundary.taking(variable)
        return (look(variable),), (variable.requires_grad, variable.name)
    told = _Told(requires_grad=variable.requires_grad, name=variable.name)
    if LOCAL.differentiating is not None and variable.requires_grad:
        # What a differentiated function computes of an array would have no derivative.
        made = record.record(_ALIAS, (variable,))
        made.__class__ = _classes["leaf"]
        return (made,), told
    boundary.taking(variable)
    return (look(variable),), told


def _asked_by_tree_function() -> bool:
    """Tell whether a function of ``jax.tree`` takes a Variable apart for the user's code, not for a transformation of JAX."""
    asking = sys._getframe(2)
    if asking.f_code.co_filename not in jaxapi.TREE_FILES:
        return False
    caller = _caller(asking)
    return caller is not None and caller.f_globals.get("__name__", "").partition(".")[0] not in _OURS


def _caller(frame: FrameType | None) -> FrameType | None:
    """Return the frame that called the functions of ``jax.tree`` on top of the stack."""
    while frame is not None and frame.f_code.co_filename in jaxapi.TREE_FILES:
        frame = frame.f_back
    return frame


def _unflatten(static: Any, children: Any) -> Any:
    """Rebuild a Variable in or behind a JAX transformation, or behind a function of ``jax.tree``.

    Inside, where the value is a tracer, the flag is kept, so that raw JAX functions refuse it; what comes back out is a constant, which a
    sweep refuses if gradients would have to flow through it.  Between two transformations it is still a leaf with that flag: a sweep in the
    outer one ends there, since what goes in and what comes out look alike.
    """
    (value,) = children
    if isinstance(value, Handle):  # the function given to jax.tree.map returned it
        if type(value) is _classes["leaf"]:
            value.__class__ = _classes["variable"]
        return value
    told = isinstance(static, _Told)
    if told:
        if isinstance(value, (np.ndarray, np.generic)):
            value = jnp.asarray(value)
        if not isinstance(value, jax.Array):
            return value
        static = (static.requires_grad, static.name)
    requires_grad, name = static
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        made = handle(None, Place(-1, kind_of(_OPAQUE)), [value])  # a placeholder of some tree function
    else:
        aval = jax.typeof(value) if isinstance(value, jax.Array) else jax.core.ShapedArray(value.shape, value.dtype)
        able = requires_grad and differentiable(aval)
        behind = able and not told and _outside(value) and not _entering()
        keeps = able and not behind and (isinstance(value, jax.core.Tracer) or _entering())
        cut = boundary.CUT if behind and LOCAL.mode == RECORD else boundary.brought(aval)
        made = handle(None, Place(-1, kind_of(aval, requires_grad=keeps, unrecorded=not keeps and cut)), [value])
    if name is not None:
        made.name = name
    return made


def _outside(value: Any) -> bool:
    """Tell whether a value came out of every transformation, or of every one that the function called which is being differentiated."""
    if LOCAL.differentiating is None:
        return not isinstance(value, jax.core.Tracer)
    return LOCAL.differentiating is jaxapi.current_trace()  # what runs is again what ran when that function was called


def _entering() -> bool:
    """Tell whether JAX hands an argument to a function with rules of its own that runs on values, without being traced."""
    caller = _caller(sys._getframe(2))
    return caller is not None and "flatten_fun" in caller.f_code.co_name
