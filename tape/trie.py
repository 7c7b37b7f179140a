"""The trie of tapes: every prefix of a tape recorded before is a state, found again by one dict look-up per entry.

An edge is a new leaf (keyed by its :class:`Kind`), an entry (keyed by op and input slots), or a change of the grad mode.  What can be
known of an entry without running it (shapes, dtypes, flags, place) hangs on its state, and so do programs and sweep plans, so that
nothing is hashed or planned for a structure met again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tape.pullback import differentiable

if TYPE_CHECKING:
    from collections.abc import Hashable

    from tape.kernel import Kernel

__all__ = ["CONSTANT", "RECORD", "SWEEP", "Kind", "Place", "State", "kind_of", "root"]

STATE_LIMIT = 200_000

SEGMENT_LIMIT = 400  # entries; XLA's compile time grows faster than linearly beyond

# Grad modes. In SWEEP mode (a sweep without create_graph) results are constants that remember that they are unrecorded gradients.
CONSTANT, RECORD, SWEEP = 0, 1, 2

_PACKAGE = str(Path(__file__).parent)
_INTEROP = str(Path(__file__).parent.parent / "interop")


class Kind:
    """What is known of a value without its value: shape and dtype (``aval``), ``requires_grad``, and ``unrecorded``.

    ``unrecorded`` marks gradients that were taken without ``create_graph``: differentiating through them would lose a gradient.
    Kinds are interned, so that they are compared by identity.
    """

    __slots__ = ("aval", "requires_grad", "unrecorded")

    def __init__(self, aval: Any, requires_grad: bool, unrecorded: bool) -> None:
        self.aval = aval
        self.requires_grad = requires_grad
        self.unrecorded = unrecorded


_KINDS: dict[tuple[Any, bool, bool], Kind] = {}


def kind_of(aval: Any, *, requires_grad: bool = False, unrecorded: bool = False) -> Kind:
    """Return the one Kind of these properties."""
    key = (aval, requires_grad, unrecorded)
    found = _KINDS.get(key)
    if found is None:
        found = _KINDS[key] = Kind(aval, requires_grad, unrecorded)
    return found


class Place:
    """One slot of a segment: its number and kind.  A slot of -1 is a value outside any segment."""

    __slots__ = ("kind", "slot")

    def __init__(self, slot: int, kind: Kind) -> None:
        self.slot = slot
        self.kind = kind


class State:
    """One prefix of a tape.  ``kernel`` is None for leaves and changes of mode."""

    __slots__ = (
        "depth",
        "full",
        "hazard",
        "inputs",
        "kernel",
        "mode",
        "n_slots",
        "next",
        "op",
        "parent",
        "place",
        "places",
        "plans",
        "programs",
        "quick",
        "table",
        "where",
    )

    def __init__(self, parent: State | None, mode: int) -> None:
        self.parent = parent
        self.mode = mode
        self.next: dict[Hashable, Any] = {}
        self.depth: int = 0 if parent is None else parent.depth
        self.n_slots: int = 0 if parent is None else parent.n_slots
        # One list is shared along a chain of states; the first n_slots of it are this state's.
        self.table: list[Place] = [] if parent is None else parent.table
        self.full = False
        self.quick = False  # one visible result, and room for more entries
        self.kernel: Kernel | None = None
        self.op: Any = None
        self.inputs: tuple[int, ...] = ()
        self.places: tuple[Place, ...] = ()
        self.place: Place | None = None
        self.hazard: int | None = None
        self.where: tuple[str, int] | None = None
        self.programs: dict[Hashable, Any] | None = None
        self.plans: dict[Hashable, Any] | None = None

    def _add_slots(self, kinds: list[Kind]) -> None:
        if len(self.table) != self.n_slots:
            self.table = self.table[: self.n_slots]
        self.places = tuple(Place(self.n_slots + i, kind) for i, kind in enumerate(kinds))
        self.table.extend(self.places)
        self.n_slots += len(kinds)
        self.place = self.places[0] if self.kernel is None or self.kernel.single else None

    def leaf(self, kind: Kind) -> State:
        """Make the state that follows when a leaf of this kind enters."""
        child = State(self, self.mode)
        child._add_slots([kind])
        return _enter(self, kind, child)

    def switched(self, mode: int) -> State:
        """Return the state that follows when the grad mode becomes ``mode``."""
        found: State | None = self.next.get(mode)
        return found if found is not None else _enter(self, mode, State(self, mode))

    def entry(self, key: Hashable, op: Any, kernel: Kernel, inputs: tuple[int, ...]) -> State:
        """Make the state that follows when ``kernel`` is recorded on the slots ``inputs``."""
        child = State(self, self.mode)
        child.depth += 1
        child.full = child.depth > SEGMENT_LIMIT
        child.op = op
        child.inputs = inputs
        kinds = [self.table[s].kind for s in inputs]
        tainted = next((i for i, k in enumerate(kinds) if k.unrecorded), None)
        differentiable_input = self.mode == RECORD and any(k.requires_grad for k in kinds)
        if differentiable_input:
            kernel = kernel.augmented()
        child.kernel = kernel
        unrecorded = (self.mode == RECORD and tainted is not None) or (
            self.mode == SWEEP and any(k.requires_grad or k.unrecorded for k in kinds)
        )
        out = []
        for aval in kernel.out_avals:
            inexact = differentiable(aval)
            requires_grad = differentiable_input and inexact
            out.append(kind_of(aval, requires_grad=requires_grad, unrecorded=inexact and not requires_grad and unrecorded))
        child._add_slots(out)
        child.quick = child.place is not None and not child.full
        child.hazard = tainted if differentiable_input else None
        child.where = user_line()
        return child if kernel.transient else _enter(self, key, child)

    def path(self) -> list[State]:
        """All states from the root (left out) to this one."""
        states = []
        state = self
        while state.parent is not None:
            states.append(state)
            state = state.parent
        return states[::-1]


_count = 0
_ROOTS: dict[Hashable, State] = {}


def _enter(parent: State, key: Hashable, child: State) -> State:
    global _count  # noqa: PLW0603 - one trie for the process
    _count += 1
    return parent.next.setdefault(key, child)  # type: ignore[no-any-return]


def root(configuration: Hashable, mode: int) -> State:
    """Return the empty tape for a JAX configuration and grad mode."""
    global _count  # noqa: PLW0603
    if _count > STATE_LIMIT:
        _ROOTS.clear()
        _count = 0
    key = (configuration, mode)
    found = _ROOTS.get(key)
    if found is None:
        found = _ROOTS[key] = State(None, mode)
    return found


def user_line() -> tuple[str, int] | None:
    """File and line of the innermost frame outside this library."""
    frame = sys._getframe(1)  # a traceback would cost a hundred times as much
    while frame is not None and frame.f_code.co_filename.startswith((_PACKAGE, _INTEROP)):
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)
