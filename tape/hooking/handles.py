"""Handles of hooks: on one Variable, and over several, which are called when all have their gradient; what hooks return, checked."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

from tape.errors import GradientDtypeError, GradientShapeError, RuleError, TapeTypeError, TapeValueError, check_callable
from tape.graph.boundary import Caller, recorded
from tape.graph.scope import LOCAL, within
from tape.graph.segment import Handle, V
from tape.recording import record

_numbers = itertools.count()


@dataclass(slots=True)
class Changes:
    """``count`` is a new number after each registration or removal of a hook."""

    count: int = 0


CHANGES = Changes()


class RemovableHandle:
    """What registering a hook returns; ``remove()`` takes the hook away, also during a sweep, and twice does no harm."""

    __slots__ = ("_hooks", "_number")

    def __init__(self, hooks: dict[int, Callable[..., Any]], hook: Callable[..., Any]) -> None:
        self._hooks = hooks
        self._number = next(_numbers)
        hooks[self._number] = hook
        CHANGES.count = next(_numbers)

    def remove(self) -> None:
        """Take the hook away."""
        take_away(self._hooks, self._number)


def take_away(hooks: dict[int, Callable[..., Any]], number: int) -> None:
    """Take the hook of this number away, if it is there."""
    hooks.pop(number, None)
    CHANGES.count = next(_numbers)


@dataclass(slots=True, eq=False)
class _Group:
    """A hook over several Variables.  What a sweep gathers for it is in the scope: gradients by position, and None once it was called."""

    hook: Callable[[Any], object]
    count: int
    waits: bool  # for all of them
    removed: bool = False

    def see(self, position: int, gradient: Handle) -> None:
        """Take note of the gradient of one Variable."""
        gathered = LOCAL.scope.gathered
        assert gathered is not None, "hooks run in sweeps"
        gradients = gathered.setdefault(self, {})
        if gradients is not None and position not in gradients:
            gradients[position] = gradient
            if not self.waits or len(gradients) == self.count:
                self.call(gathered, gradients)

    def call(self, gathered: dict[_Group, dict[int, Handle] | None], gradients: dict[int, Handle]) -> None:
        """Call the hook, once in a sweep."""
        gathered[self] = None
        cells = [gradient._cell for gradient in gradients.values()]
        name = getattr(self.hook, "__name__", self.hook)
        with calling(f"hook {name!r}", *gradients.values()):
            result = self.hook([gradients.get(i) for i in range(self.count)] if self.waits else next(iter(gradients.values())))
        written = any(gradient._cell is not cell for gradient, cell in zip(gradients.values(), cells, strict=True))
        if result is not None or written:
            did = "wrote into a gradient" if written else f"returned {type(result).__name__}"
            msg = (
                f"hook {name!r} over several Variables {did}, but it cannot replace gradients; return None, and use register_hook on a "
                "Variable whose gradient is to be replaced"
            )
            raise TapeTypeError(msg)


@dataclass(slots=True, eq=False, repr=False)
class HandleGroup:
    """What registering a hook over several Variables returns; ``remove()`` takes it away, also during a sweep."""

    _group: _Group
    _handles: Sequence[RemovableHandle]

    def remove(self) -> None:
        """Take the hook away."""
        self._group.removed = True
        for handle in self._handles:
            handle.remove()


@contextlib.contextmanager
def gathering(gathered: dict[_Group, dict[int, Handle] | None], *, last: bool) -> Iterator[None]:
    """While a sweep, or a step of it, runs: add to what it ``gathered``; after the ``last``, hooks do not wait for what will not come."""
    with within(gathered=gathered):
        yield
        if last:
            finish(gathered)


def finish(gathered: dict[_Group, dict[int, Handle] | None]) -> None:
    """Call the hooks that wait for what will not come."""
    for group, gradients in list(gathered.items()):
        if gradients is not None and not group.removed:
            group.call(gathered, gradients)


@overload
def register_multi_grad_hook(
    variables: Sequence[V], hook: Callable[[list[V | None]], None], *, mode: Literal["all"] = ...
) -> HandleGroup: ...
@overload
def register_multi_grad_hook(variables: Sequence[V], hook: Callable[[V], None], *, mode: Literal["any"]) -> HandleGroup: ...
def register_multi_grad_hook(variables: Sequence[Any], hook: Callable[[Any], None], *, mode: str = "all") -> HandleGroup:
    """Call ``hook`` once in every sweep that reaches some of several Variables.

    Args:
        variables: Variables that require grad, leaves or not.
        hook: for ``"all"``, it is called with the list of their gradients, None for those that get none in this sweep, when all that get
            one have it: at once where that is all of them, else at the end of the sweep.  For ``"any"``, it is called with the first
            gradient. It sees what hooks registered before on each Variable left, and returns None.
        mode: ``"all"`` or ``"any"``.

    Returns:
        A handle whose ``remove()`` takes the hook away.

    Raises:
        TapeTypeError: ``hook`` is not a function, or something is not a Variable; in the sweep, where the hook returned something
            or wrote into a gradient.
        TapeValueError: there is no Variable, one does not require grad, or ``mode`` is neither ``"all"`` nor ``"any"``.

    Example:
        >>> import tape
        >>> w, b = tape.Variable(2.0), tape.Variable(1.0)
        >>> handle = tape.register_multi_grad_hook([w, b], lambda grads: print([float(g) for g in grads]))
        >>> (w * 3 + b).backward()
        [3.0, 1.0]
        >>> handle.remove()

    """
    check_callable("register_multi_grad_hook", hook, "the hook must be callable")
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
                f"register_multi_grad_hook: variables[{i}] does not require grad (shape {kind.aval.shape}, dtype {kind.aval.dtype}), "
                "so it gets no gradient; leave it out"
            )
            raise TapeValueError(msg)
    group = _Group(hook, len(listed), mode == "all")
    return HandleGroup(group, [v.register_hook(functools.partial(group.see, i)) for i, v in enumerate(listed)])


_LOOKED = (
    "{0} returned an array that it computed outside the tape (by .value, raw jax.numpy or NumPy), so a second derivative through it "
    "would be lost; compute it with tape.numpy, or return tape.constant(...) to say that it is a constant"
)


def calling(who: str, *gradients: Handle) -> within:
    """While a hook runs, and its result is taken: an array that it made of a value which it looked at has no derivative on the tape."""
    return within(caller=Caller(_LOOKED, who, recorded=recorded(), writes=gradients))


def replacement(who: str, gradient: Handle, given: object) -> Handle:
    """Return the Variable that a hook returned in place of a gradient, if it has its shape and dtype."""
    new_gradient = given if isinstance(given, Handle) else record.constant_from(f"what {who} returned", given)
    old, new = gradient._place.kind.aval, new_gradient._place.kind.aval
    if new.shape != old.shape:
        msg = f"{who} returned a gradient of shape {new.shape} for one of shape {old.shape}; return the same shape, or None to leave it"
        raise GradientShapeError(msg)
    if new.dtype != old.dtype:
        msg = f"{who} returned a gradient of dtype {new.dtype} for one of dtype {old.dtype}; cast it, or return None to leave it"
        raise GradientDtypeError(msg)
    return new_gradient


def replacements(what: str, present: tuple[Any, ...], given: object) -> tuple[Any, ...]:
    """Return the gradients that are present (None: there is none) with those in their place that an op hook has given."""
    if not isinstance(given, (tuple, list)):
        msg = f"{what} returned {type(given).__name__}; return a tuple of {len(present)} gradients, or None to leave them"
        raise GradientDtypeError(msg)
    if len(given) != len(present):
        msg = f"{what} returned {len(given)} gradients for {len(present)}; return one for each, None for those to leave"
        raise RuleError(msg)
    replaced = []
    for i, (old, new) in enumerate(zip(present, given, strict=True)):
        if new is not None and old is None:
            msg = f"{what} returned a gradient in position {i}, where there is none to replace; return None there"
            raise RuleError(msg)
        replaced.append(old if new is None else replacement(f"{what}, position {i},", old, new))
    return tuple(replaced)
