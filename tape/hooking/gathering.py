"""Gathering: hooks over several Variables at once, called when all of them have their gradient, or the first one has."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from tape.errors import TapeTypeError, TapeValueError
from tape.graph.scope import LOCAL, within
from tape.graph.segment import Handle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tape.hooking.handles import RemovableHandle

__all__ = ["HandleGroup", "gathering", "register_multi_grad_hook"]


class _Group:
    """A hook over several Variables."""

    __slots__ = ("count", "hook", "removed", "waits")

    def __init__(self, hook: Callable[[Any], Any], count: int, *, waits: bool) -> None:
        self.hook = hook
        self.count = count
        self.waits = waits  # for all of them
        self.removed = False

    def call(self, found: Any) -> None:
        """Call the hook."""
        given = self.hook(found)
        if given is not None:
            name = getattr(self.hook, "__name__", self.hook)
            msg = (
                f"hook {name!r} over several Variables returned {type(given).__name__}, but it cannot replace gradients; return None, and use "
                "register_hook on a Variable whose gradient is to be replaced"
            )
            raise TapeTypeError(msg)


class _Gathered:
    """The gradients that one sweep has for a group so far."""

    __slots__ = ("called", "gradients", "missing")

    def __init__(self, count: int) -> None:
        self.gradients: list[Any] = [None] * count
        self.missing = count
        self.called = False


class _Member:
    """The hook that one Variable of a group has."""

    __slots__ = ("group", "position")

    def __init__(self, group: _Group, position: int) -> None:
        self.group = group
        self.position = position

    def __call__(self, gradient: Any) -> None:
        group = self.group
        assert LOCAL.scope.gathered is not None, "hooks run in sweeps"
        gathered: _Gathered | None = LOCAL.scope.gathered.get(group)
        if gathered is None:
            gathered = LOCAL.scope.gathered[group] = _Gathered(group.count)
        if gathered.called or gathered.gradients[self.position] is not None:
            return
        gathered.gradients[self.position] = gradient
        gathered.missing -= 1
        if not group.waits or not gathered.missing:
            gathered.called = True
            found, gathered.gradients = gathered.gradients, []
            group.call(found if group.waits else gradient)


class HandleGroup:
    """What registering a hook over several Variables returns; ``remove()`` takes it away, also during a sweep."""

    __slots__ = ("_group", "_handles")

    def __init__(self, group: _Group, handles: Sequence[RemovableHandle]) -> None:
        self._group = group
        self._handles = list(handles)

    def remove(self) -> None:
        """Take the hook away."""
        self._group.removed = True
        for handle in self._handles:
            handle.remove()


@contextlib.contextmanager
def gathering(gathered: dict[Any, Any], *, last: bool) -> Iterator[None]:
    """While a sweep, or a step of it, runs: gather for its hooks over several Variables.

    Args:
        gathered: what it gathered so far.
        last: whether the sweep ends with the body, so that hooks which wait for what will not come are called then.

    """
    with within(gathered=gathered):
        yield
        if last:
            for group, found in list(gathered.items()):
                if not found.called and not group.removed:
                    found.called = True
                    group.call(found.gradients)


def register_multi_grad_hook(variables: Sequence[Any], hook: Callable[[Any], None], *, mode: str = "all") -> HandleGroup:
    """Call ``hook`` once in every sweep that reaches some of several Variables.

    Args:
        variables: Variables that require grad, leaves or not.
        hook: for ``"all"``, it is called with the list of their gradients, None for those that get none in this sweep, when all that get one
            have it: at once where that is all of them, else at the end of the sweep.  For ``"any"``, it is called with the first gradient.
            It sees what hooks registered before on each Variable left, and returns None.
        mode: ``"all"`` or ``"any"``.

    Returns:
        A handle whose ``remove()`` takes the hook away.

    Raises:
        TapeTypeError: ``hook`` is no function, or something is no Variable; in the sweep, where the hook returned something.
        TapeValueError: there is no Variable, one does not require grad, or ``mode`` is another.

    Example:
        >>> import tape
        >>> w, b = tape.Variable(2.0), tape.Variable(1.0)
        >>> handle = tape.register_multi_grad_hook([w, b], lambda grads: print([float(g) for g in grads]))
        >>> (w * 3 + b).backward()
        [3.0, 1.0]
        >>> handle.remove()

    """
    if not callable(hook):
        msg = f"register_multi_grad_hook: the hook must be callable, got {type(hook).__name__}"
        raise TapeTypeError(msg)
    if mode not in ("all", "any"):
        msg = f"register_multi_grad_hook: mode must be 'all' or 'any', got {mode!r}"
        raise TapeValueError(msg)
    listed: list[Any] = list(variables) if not isinstance(variables, Handle) and hasattr(variables, "__iter__") else [variables]
    if not listed:
        msg = "register_multi_grad_hook: got no Variables; pass those whose gradients the hook is to see"
        raise TapeValueError(msg)
    for i, v in enumerate(listed):
        if not isinstance(v, Handle):
            msg = f"register_multi_grad_hook: variables[{i}] must be a tape.Variable, got {type(v).__name__}"
            raise TapeTypeError(msg)
        kind = v._place.kind
        if not kind.requires_grad:
            msg = (
                f"register_multi_grad_hook: variables[{i}] does not require grad (shape {kind.aval.shape}, dtype {kind.aval.dtype}), so it gets no "
                "gradient; leave it out"
            )
            raise TapeValueError(msg)
    group = _Group(hook, len(listed), waits=mode == "all")
    return HandleGroup(group, [v.register_hook(_Member(group, i)) for i, v in enumerate(listed)])
