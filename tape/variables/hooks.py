"""Hooks on a Variable: where they are kept, and on which Variables they can be registered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tape.errors import TapeTypeError, TapeValueError
from tape.graph.scope import LOCAL
from tape.graph.segment import end_of, extra_of
from tape.hooking.handles import RemovableHandle
from tape.recording import record
from tape.sweeps.seeds import describe

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["register_hook", "register_post_hook"]


def register_hook(variable: Any, hook: Callable[[Any], Any]) -> RemovableHandle:
    """Register a hook on the gradient of a Variable."""
    if not callable(hook):
        msg = f"register_hook: the hook must be callable, got {type(hook).__name__}"
        raise TapeTypeError(msg)
    if not variable._place.kind.requires_grad:
        msg = f"register_hook: a Variable that does not require grad ({describe(variable)}) gets no gradient"
        raise TapeValueError(msg)
    end = record.node_of(variable) if variable._segment is None else end_of(variable._segment, variable._place.slot)
    hooks = variable._segment.hooks.setdefault(variable._place.slot, {}) if end is None else end.hooks
    return RemovableHandle(hooks, LOCAL.scope.trace.watched(variable, hooks, hook))


def register_post_hook(variable: Any, hook: Callable[[Any], Any]) -> RemovableHandle:
    """Register a hook on a leaf that has received its gradient."""
    if not callable(hook):
        msg = f"register_post_accumulate_grad_hook: the hook must be callable, got {type(hook).__name__}"
        raise TapeTypeError(msg)
    if not (variable._place.kind.requires_grad and variable.is_leaf):
        msg = f"register_post_accumulate_grad_hook: only a leaf that requires grad gathers .grad ({describe(variable)})"
        raise TapeValueError(msg)
    hooks = extra_of(variable).post_hooks
    LOCAL.scope.trace.register(variable, hooks)
    return RemovableHandle(hooks, hook)
