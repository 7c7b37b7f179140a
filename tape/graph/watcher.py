"""Watchers: what is told of whatever Python does with Variables.

A scope has one of each kind, and NOBODY where there is none: who traces the callable or the raw JAX function that is running (it may know
a Variable by another one), whose Python calls it (it may see values), and the forward of a ``tape.Function`` (it refuses what it is not
given).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tape.graph.boxes import Cell
    from tape.graph.segment import Handle, Segment


class Watcher:
    """What it is told; each kind overrides what concerns it, and the rest does nothing."""

    __slots__ = ()

    # -- who traces -------------------------------------------------------------------------------------------------

    capturing: ClassVar[bool] = False  # ops on Variables are evaluated in the trace of a callable
    guards: ClassVar[bool] = False  # it refuses Variables from around, also where a function of the tape inside of it reads them
    pends: ClassVar[bool] = False  # not one by one, but when somebody looks (tape.recording.staging)
    releases: ClassVar[bool] = True  # a sweep may release what it swept
    touched: ClassVar[dict[int, Any]] = {}  # by id, the Variables that were written to (:meth:`write`), where it knows these by others
    stand_ins: ClassVar[dict[int, Cell]] = {}  # by the id of a cell from outside, the cell by which it is known

    def read(self, variable: Handle, *, flows: bool = True) -> Handle:  # noqa: ARG002
        """Return the Variable as it is known here, now that its value is about to be read; ``flows``: a gradient could flow to it."""
        return variable

    def operand(self, variable: Handle) -> Handle:
        """Return the Variable as an op reads it that is recorded here."""
        return self.read(variable)

    def assigned(self, variable: Handle) -> Handle:
        """Return the Variable as a function of the user's is to see it, and may keep it, that is called here with a backward of its own."""
        return variable

    def leave(self, variable: Handle, array: Any) -> Any:  # noqa: ARG002
        """Return a Variable's value as an array that leaves the tape."""
        return array

    def adopt(self, cell: Cell) -> None:
        """Note a cell that is made now, and belongs to the trace."""

    def place(self, part: Any, inputs: Sequence[Any], trace: object) -> Sequence[Any] | None:  # noqa: ARG002
        """Take a part of a tape that belongs to a JAX transformation, to be written later, and return its results; None: not here."""
        return None

    def ran(self, segment: Segment, live: Sequence[int]) -> None:
        """Note that a pending segment of the trace has values now; the cells of its ``live`` slots get them."""

    def owns(self, variable: Handle) -> bool:  # noqa: ARG002
        """Tell whether a Variable was made here."""
        return True

    def part(self) -> contextlib.AbstractContextManager[None]:
        """While JAX traces one callable: the cells made in it are forgotten with it."""
        return contextlib.nullcontext()

    def write(self, variable: Handle) -> bool:  # noqa: ARG002
        """Note that a Variable is about to change; tell whether that is a result of the trace."""
        return False

    def read_grad(self, variable: Handle) -> None:
        """Note that a Variable's ``.grad`` is looked at, be it None or not."""

    def ask(self, variable: Handle, *, leaf: bool = False) -> None:
        """Note that somebody looks at what a Variable is beside its value; ``leaf``: at whether it is a leaf."""

    def clear_grad(self, variable: Handle) -> None:
        """Note that a Variable's ``.grad`` is about to become None, whatever it is."""
        self.write(variable)

    def receive(self, variable: Handle) -> None:
        """Note that a sweep is about to give a gradient to a leaf."""

    def aim(self, roots: Sequence[Handle], targets: Sequence[Any]) -> None:
        """Note that a sweep from ``roots`` is about to end at ``targets`` only."""

    def register(self, variable: Handle, hooks: dict[int, Callable[..., object]]) -> None:
        """Note that a hook is about to be registered, and on what."""

    def watched(self, variable: Handle, hooks: dict[int, Any], hook: Callable[..., Any]) -> Callable[..., Any]:  # noqa: ARG002
        """Return the hook to register on ``variable`` in place of this one."""
        return hook

    def swept(self, segment: Segment, slots: Sequence[int], gradients: Sequence[Any]) -> Sequence[Any]:  # noqa: ARG002
        """Return what counts of the gradients that the user's backward of an entry with these results has given."""
        return gradients

    # -- whose Python runs ------------------------------------------------------------------------------------------

    rebinds_names = False  # ``x += y`` makes a new Variable of an argument, as in any function
    writes: Sequence[Handle] = ()  # the Variables that ``x += y`` changes in any mode: gradients, for a hook

    def take(self, variable: Handle) -> None:
        """Note that a Variable's value leaves the tape as an array."""

    def bring(self, value: object) -> bool | str:  # noqa: ARG002
        """Return why an array that is brought onto the tape has no derivative there; False where it is a constant."""
        return False

    # -- the forward of a tape.Function -----------------------------------------------------------------------------

    def make(self, cell: Cell) -> None:
        """Note a leaf that is made now."""

    def stand(self, cell: Cell, stand_in: Cell) -> None:
        """Note that who traces knows a leaf by another cell."""

    def compute(self, cell: Cell, segment: Segment, slot: int) -> None:
        """Note where a value comes from that ran at once."""

    def enter(self, segment: Segment, slot: int, cell: Cell, origin: Segment | None, place: int) -> None:
        """Note a leaf of a segment that is not a constant, and which slot of which segment its value comes from."""


NOBODY = Watcher()
