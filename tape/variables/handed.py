"""What functions of ``jax.tree`` hand out for a Variable: an object that JAX does not take apart, and that is that Variable in all else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from tape.graph.segment import Handle

__all__ = ["hand_out", "handed_type"]

_SLOTS = ("_cell", "_segment", "_place", "_extra")
# What keeps the Variable itself, or tells a running trace of it.
_METHODS = (
    "zero_grad",
    "retain_grad",
    "register_hook",
    "register_post_accumulate_grad_hook",
    "requires_grad_",
    "unchain",
    "unchain_backward",
    "__setitem__",
)


def handed_type(variable_type: type[Handle]) -> type[Handle]:
    """Make the type of what is handed out: JAX takes only the registered type apart, so that these stay whole."""
    members: dict[str, Any] = {"__slots__": ("_original",), "__module__": variable_type.__module__}
    members |= {name: _forwarded(name, variable_type) for name in (*_SLOTS, "value", "grad")}
    members |= {name: _method(name) for name in _METHODS}
    return type(variable_type.__name__, (variable_type,), members)


def _forwarded(name: str, variable_type: type[Handle]) -> property:
    def get(handed: Any) -> Any:
        return getattr(handed._original, name)

    def put(handed: Any, value: Any) -> None:
        setattr(handed._original, name, value)

    return property(get, put, doc=getattr(variable_type, name).__doc__)


def _method(name: str) -> Callable[..., Any]:
    def method(handed: Any, *args: Any, **options: Any) -> Any:
        found = getattr(handed._original, name)(*args, **options)
        return handed if found is handed._original else found

    return method


def hand_out(handed: type[Handle], variable: Any) -> Any:
    """Return an object of the type ``handed`` that stands for ``variable``."""
    made: Any = object.__new__(handed)
    made._original = variable
    return made
