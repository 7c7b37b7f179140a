"""Variables as pytrees: how they pass into JAX transformations and out of them, and what ``jax.tree`` makes of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.errors import LostGradientError
from tape.graph import boundary
from tape.graph.kinds import GivenPlace, Place, differentiable, kind_of
from tape.graph.scope import LOCAL
from tape.graph.segment import Handle, itself
from tape.graph.trie import RECORD
from tape.jaxapi import words
from tape.programs.program import look, taken
from tape.recording import record
from tape.recording.record import handle
from tape.sweeps.seeds import describe

_OPAQUE = jax.core.ShapedArray((), np.dtype(bool))
_OURS = {"jax", "tape", "interop"}
_handed: type[Handle]


class _Told:
    """What is known of a Variable that the user's code took apart by ``jax.tree``: equal for all, so that trees of Variables match."""

    __slots__ = ("cut", "name")

    def __init__(self, *, cut: bool, name: str | None) -> None:
        self.cut = cut
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Told)

    def __hash__(self) -> int:
        return hash(_Told)


def register(variable_type: type[Handle]) -> None:
    """Tell JAX how Variables are taken apart and put together."""
    global _handed  # noqa: PLW0603 - set once, at import
    _handed = _handed_type(variable_type)
    jax.tree_util.register_pytree_node(variable_type, _flatten, _unflatten)


_SLOTS = ("_cell", "_segment", "_place", "_extra")
_METHODS = words(  # they keep the Variable itself, or tell a running trace of it
    "zero_grad retain_grad register_hook register_post_accumulate_grad_hook requires_grad_ unchain unchain_backward __setitem__"
)


def _handed_type(variable_type: type[Handle]) -> type[Handle]:
    """Make the type of what ``jax.tree`` hands out for a Variable: JAX leaves it whole; in all else it is that Variable."""
    members: dict[str, Any] = {"__slots__": ("_original",), "__module__": variable_type.__module__}
    members |= {name: _forwarded(name, variable_type) for name in (*_SLOTS, "value", "grad")}
    members |= {name: _method(name) for name in _METHODS}
    return type(variable_type.__name__, (variable_type,), members)


def _forwarded(name: str, variable_type: type[Handle]) -> property:
    def get(stand_in: Any) -> object:
        return getattr(stand_in._original, name)

    def put(stand_in: Any, value: object) -> None:
        setattr(stand_in._original, name, value)

    return property(get, put, doc=getattr(variable_type, name).__doc__)


def _method(name: str) -> Callable[..., Any]:
    def method(stand_in: Any, *args: object, **options: object) -> object:
        result = getattr(stand_in._original, name)(*args, **options)
        return stand_in if result is stand_in._original else result

    return method


def _flatten(variable: Handle) -> tuple[tuple[Any, ...], Any]:
    kind = variable._place.kind
    cut, name = kind.unrecorded == boundary.CUT, None if variable._extra is None else variable._extra.name
    flows = kind.requires_grad or (cut and boundary.is_traced(variable))  # another transformation does not heal what one has cut
    asking = sys._getframe(1)
    caller = _caller(asking) if asking.f_code.co_filename in jaxapi.TREE_FILES else None
    if (flows or cut) and caller is not None and jaxapi.takes_jacobians(caller.f_code):
        raise LostGradientError(_JACOBIANS.format(describe(variable)))
    if flows and caller is not None and LOCAL.scope.mode == RECORD and _calls_back(caller):
        raise LostGradientError(_CALLED_BACK.format(caller.f_code.co_name, describe(variable)))
    if (flows or boundary.is_traced(variable)) and _filters(caller):
        raise LostGradientError(_FILTERED.format(describe(variable)))
    if not _is_users(caller):
        LOCAL.scope.caller.take(variable)
        # JAX keeps what it traced: a result that was computed without recording would stay a constant.
        return ((look if flows else taken)(variable),), (flows, flows and LOCAL.scope.mode == RECORD, name)
    told = _Told(cut=cut, name=name)
    if LOCAL.scope.mode == RECORD and flows and _ravels(asking):
        raise LostGradientError(_RAVELLED.format(describe(variable)))
    if LOCAL.scope.mode == RECORD and flows:  # what is computed of an array would have no derivative
        stand_in: Any = object.__new__(_handed)
        stand_in._original = variable
        return (stand_in,), told
    LOCAL.scope.caller.take(variable)
    return (taken(variable),), told


def _is_users(caller: FrameType | None) -> bool:
    """Tell whether a function of ``jax.tree`` takes a Variable apart for the user's code, not for a transformation of JAX."""
    return caller is not None and caller.f_globals.get("__name__", "").partition(".")[0] not in _OURS


def _ravels(asking: FrameType) -> bool:
    """Tell whether ``jax.flatten_util.ravel_pytree`` asks, which computes with what it is handed."""
    return asking.f_code is jaxapi.RAVELS or (asking.f_back is not None and asking.f_back.f_code is jaxapi.RAVELS)


def _calls_back(caller: FrameType) -> bool:
    """Tell whether JAX takes apart what a callback is called with, whose results are arrays that could have a derivative."""
    if caller.f_code.co_name not in {"pure_callback", "io_callback"} or _is_users(caller):
        return False
    return any(differentiable(result) for result in jax.tree.leaves(caller.f_locals["result_shape_dtypes"]) if hasattr(result, "dtype"))


def _filters(caller: FrameType | None) -> bool:
    """Tell whether a transformation of Equinox asks, which keeps what is no array for itself, so also what stands in for a Variable."""
    while caller is not None and (name := caller.f_globals.get("__name__", "")).startswith("equinox."):
        if name in _FILTERING:
            return True
        caller = _caller(caller.f_back)
    return False


_FILTERING = words("equinox._jit equinox._ad equinox._vmap_pmap equinox._eval_shape equinox._make_jaxpr equinox._callback equinox._errors")
_FILTERED = (
    "Equinox takes a Variable ({}) for no array, so its transformations (filter_jit, filter_vmap, filter_grad ...) would not pass it on; "
    "use tape.jit, tape.vmap, tape.grad or tape.checkpoint in their place, make an op of the transformed function by interop.lift, or hand "
    "it the .value for a constant"
)
_CALLED_BACK = (
    "{} of a Variable that requires grad ({}) would lose its gradient: JAX does not differentiate what Python computes there; call it in "
    "the forward of a tape.Function, whose backward is the derivative, call the jax.custom_vjp function around it through interop.lift, "
    "or give it v.detach() for a constant"
)
_JACOBIANS = (
    "jax.jacfwd, jax.jacrev and jax.hessian put no Jacobian of a Variable that requires grad ({}) together; use tape.hessian(f)(x) (or "
    "tape.jacfwd, tape.jacrev), or jax.hessian(interop.lower(f))(x.value) for arrays"
)
_RAVELLED = (
    "ravel_pytree of a Variable that requires grad ({}) would lose its gradient; use "
    "tape.numpy.concatenate([v.ravel() for v in jax.tree.leaves(tree)]), or call it under tape.no_grad() for a constant"
)


def _caller(frame: FrameType | None) -> FrameType | None:
    """Return the frame that called the functions of ``jax.tree`` on top of the stack."""
    while frame is not None and frame.f_code.co_filename in jaxapi.TREE_FILES:
        frame = frame.f_back
    return frame


def _unflatten(static: Any, children: tuple[Any]) -> Any:
    """Rebuild a Variable in or behind a JAX transformation, or behind a function of ``jax.tree``.

    What JAX hands to a function that it traces keeps its flag, so that raw JAX functions refuse it.  What comes out of a transformation,
    also into the trace of another one, is a constant: a sweep of the tape refuses it if gradients would have to flow through it.
    """
    (value,) = children
    if isinstance(value, np.ndarray) and _fetches():
        return value  # as for an array
    if isinstance(value, Handle):
        return itself(value)  # the function given to jax.tree.map returned it
    if isinstance(static, _Told):
        if isinstance(value, (np.ndarray, np.generic)):
            value = jnp.asarray(value)
        if not isinstance(value, jax.Array):
            return value
        variable = record.leaf(value, unrecorded=boundary.CUT if static.cut and differentiable(value) else LOCAL.scope.caller.bring(value))
        name = static.name
    else:
        flows, _, name = static
        variable = _passed(value, flows=flows)
    if name is not None:
        variable.name = name
    return variable


def _fetches() -> bool:
    """Tell whether ``jax.device_get`` puts a Variable together again, of what it fetched."""
    caller = _caller(sys._getframe(2))
    return caller is not None and jaxapi.fetches(caller.f_code)


def _passed(value: object, *, flows: bool) -> Any:
    """Return the Variable that JAX passes on; ``flows`` tells whether a gradient should flow through it."""
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return handle(None, Place(-1, kind_of(_OPAQUE)), [value])  # a placeholder of some tree function
    aval = jax.typeof(value) if isinstance(value, jax.Array) else jax.core.ShapedArray(value.shape, value.dtype)
    flows = flows and differentiable(aval)
    keeps = flows and _entering()
    cut = boundary.CUT if flows and LOCAL.scope.mode == RECORD else LOCAL.scope.caller.bring(aval)
    place = GivenPlace if keeps else Place
    return handle(None, place(-1, kind_of(aval, requires_grad=keeps, unrecorded=not keeps and cut)), [value])


def _entering() -> bool:
    """Tell whether JAX hands an argument to the user's function, rather than a result to whoever called JAX."""
    caller = _caller(sys._getframe(3))
    return caller is not None and jaxapi.hands_over(caller.f_code)
