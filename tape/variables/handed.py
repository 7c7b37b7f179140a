"""What functions of ``jax.tree`` hand out for a Variable: its value as an entry of the tape, and everything else of the Variable itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tape.ops.kernel import Op
from tape.recording import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from tape.recording.segment import Handle

__all__ = ["hand_out", "handed_type"]

_ALIAS = Op("alias", lambda x: x)
_FORWARDED = ("zero_grad", "retain_grad", "register_hook", "register_post_accumulate_grad_hook")
_REBINDING = ("requires_grad_", "unchain", "unchain_backward", "__setitem__")


def handed_type(variable_type: type[Handle]) -> type[Handle]:
    """Make the type of what is handed out: JAX takes only the registered type apart, so that these stay whole."""
    members: dict[str, Any] = {"__slots__": ("_original",), "__module__": variable_type.__module__, "_of_tree": True}
    members |= {name: _forwarding(name) for name in _FORWARDED}
    members |= {name: _rebinding(name) for name in _REBINDING}
    members["grad"] = property(lambda v: v._original.grad, lambda v, gradient: setattr(v._original, "grad", gradient))
    members["is_leaf"] = property(lambda v: v._original.is_leaf)
    members["value"] = property(variable_type.value.fget, _assign)  # type: ignore[attr-defined]
    return type(variable_type.__name__, (variable_type,), members)


def _forwarding(name: str) -> Callable[..., Any]:
    def method(variable: Any, *args: Any, **options: Any) -> Any:
        return getattr(variable._original, name)(*args, **options)

    return method


def _rebinding(name: str) -> Callable[..., Any]:
    def method(variable: Any, *args: Any, **options: Any) -> Any:
        found = getattr(variable._original, name)(*args, **options)
        _take(variable, record.record(_ALIAS, (variable._original,)))
        return variable if found is variable._original else found

    return method


def _assign(variable: Any, value: Any) -> None:
    variable._original.value = value
    _take(variable, record.record(_ALIAS, (variable._original,)))


def hand_out(handed: type[Handle], variable: Any) -> Any:
    """Return a Variable of the type ``handed`` with the value of ``variable``; gradients flow on to that."""
    made: Any = object.__new__(handed)
    made._original = variable
    made._extra = None
    _take(made, record.record(_ALIAS, (variable,)))
    if variable.name is not None:
        made.name = variable.name
    return made


def _take(variable: Any, made: Any) -> None:
    variable._segment, variable._cell, variable._place = made._segment, made._cell, made._place
