"""Scopes: what the ops of a thread meet around them, and where its pending entries are.

A scope never changes.  Whoever sets something for a while replaces the thread's scope by one that differs, and restores the one before by
one store.  What is pending stands beside it, since recording an op reads nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tape import layout
from tape.graph.borders import parts
from tape.graph.trie import RECORD
from tape.graph.watcher import NOBODY, Watcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from tape.graph.segment import Handle, Segment


class Scope(NamedTuple):
    """What holds for the ops of a thread; lists and dicts in it are made by whoever opens a scope with others."""

    mode: int
    unseen: bool  # what is recorded now, op hooks do not see: a sweep is being written, or one of them runs
    caller: Watcher  # whose Python runs (boundary)
    forward: Watcher  # the forward of a tape.Function that runs (tape.functions.reads)
    staged: list[Any]  # weak references to pending segments of the JAX transformations that are running
    eager: bool = False  # no segment is pending then
    writing: bool = False  # a sweep is being written
    linear: bool = False  # the sweep that is being written is differentiated by its seeds only
    trace: Watcher = NOBODY  # who traces the callable of the tape (tape.callables.captures) or raw JAX function (boundary) that is running
    packing: Any = None  # the hooks for saved values (tape.hooking.packing)
    observer: Any = None  # the op hooks that are active (tape.hooking.observing)
    gathered: dict[Any, Any] | None = None  # what the running sweep has for hooks over several Variables (tape.hooking.handles)
    notes: Any = None  # what the tapes that are open note (tape.insight.notes)
    reproducible: bool = False  # what runs, runs as one compiled program from its first meeting on

    def but(self, **changes: Any) -> Scope:
        """Return the same scope with some fields changed: ``_replace``, in half the time."""
        fields = list(self)
        for name, value in changes.items():
            fields[_POSITIONS[name]] = value
        return _new(Scope, fields)


_new = tuple.__new__
_POSITIONS = {name: i for i, name in enumerate(Scope._fields)}


def no_segment() -> None:
    """Stand for the weak reference to a segment where there is none."""


def _beginning() -> tuple[Callable[[], Segment | None], Scope]:
    """Return what a new thread begins with."""
    return no_segment, Scope(RECORD, unseen=False, caller=NOBODY, forward=NOBODY, staged=[])


if TYPE_CHECKING:

    class _Local:
        segment: Callable[[], Segment | None]
        scope: Scope
        gave: bool  # a Variable that requires grad has given its value to Python


LOCAL: _Local = layout.Local(_beginning)  # type: ignore[assignment]


def note_given(variable: Handle) -> None:
    """Note that a Variable's value leaves the tape: a function that computes with it may return it (:mod:`tape.transforms.inputs`)."""
    if variable._place.kind.requires_grad:
        LOCAL.gave = True
    caller = LOCAL.scope.caller
    if caller is not NOBODY:
        caller.take(variable)


def set_scope(scope: Scope) -> None:
    """Make a scope this thread's, and have the pending segment go on in its mode, in the slow way where op hooks see it."""
    segment = LOCAL.segment()
    if segment is not None:
        if (scope.observer is not None or scope.notes is not None) and not scope.unseen:
            segment.epoch = None
        if segment.state.mode != scope.mode:
            if parts(segment.state, scope.mode) and not scope.reproducible:
                close(segment)  # it runs when somebody looks at it, or goes on from it
            else:
                segment.state = segment.state.switched(scope.mode)
    LOCAL.scope = scope  # nothing is called since the line above: Ctrl-C leaves both or none


def _switch(mode: int) -> None:
    """Have this thread go on in a grad mode."""
    set_scope(LOCAL.scope.but(mode=mode))


switch: Callable[[int], None] = _switch if layout.NATIVE is None else layout.NATIVE.Function(_switch, does=5)  # where nobody watches


class within:  # noqa: N801 - a context manager
    """A block in a scope of which some fields differ from the one around it, which is restored whatever happens."""

    __slots__ = ("_changes", "before")

    before: Scope  # the one around it, once it is entered

    def __init__(self, **changes: Any) -> None:
        self._changes = changes

    def __enter__(self) -> None:
        self.before = LOCAL.scope
        set_scope(self.before.but(**self._changes))

    def __exit__(self, *_: object) -> None:
        set_scope(self.before)


class parked(within):  # noqa: N801
    """:class:`within`, and what is pending outside stays as it is, also while an entry of it is being recorded."""

    __slots__ = ("_segment",)

    def __enter__(self) -> None:
        self._segment = LOCAL.segment
        LOCAL.segment = no_segment
        super().__enter__()

    def __exit__(self, *_: object) -> None:
        segment = self._segment()
        LOCAL.segment = self._segment if segment is not None and segment.pending else no_segment
        set_scope(self.before)


def in_scope(scope: Scope, function: Callable[..., Any], *args: Any) -> Any:
    """Return ``function(*args)``, called in a scope; the one before is restored even if Ctrl-C interrupts that."""
    before = LOCAL.scope
    try:
        try:
            set_scope(scope)
            return function(*args)
        finally:
            set_scope(before)
    finally:
        if LOCAL.scope is not before:
            set_scope(before)


def in_mode(mode: int, function: Callable[..., Any], *args: Any) -> Any:
    """Return ``function(*args)``, called in a grad mode to write a sweep or to detach: op hooks do not see what is recorded."""
    return in_scope(LOCAL.scope.but(mode=mode, unseen=True), function, *args)


def watched() -> bool:
    """Tell whether op hooks, or tapes that are open, see what is recorded now."""
    scope = LOCAL.scope
    return (scope.observer is not None or scope.notes is not None) and not scope.unseen


def close(segment: Segment) -> None:
    """Take ``segment`` from its thread: the next entry starts a new one."""
    if LOCAL.segment() is segment:
        LOCAL.segment = no_segment
