"""A memory counter: how many bytes each op makes, forward and backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tape.hooking.observing import OpHook, SeenOp
from tape.op_hooks.showing import Table, label, of_ops_or_lines, size

if TYPE_CHECKING:
    from collections.abc import Sequence


class MemoryRow(NamedTuple):
    """One row of a :class:`MemoryCounter`."""

    op: str
    forward_calls: int
    output_bytes: int
    backward_calls: int
    cotangent_bytes: int


class MemoryCounter(Table, OpHook):
    """Counts the bytes of the outputs of each op, and of the cotangents that its VJP makes.

    It adds up what ops make, not what is there at one time: a program keeps few of these values.  Nothing is run or looked at.

    Args:
        by: ``"op"`` for a row per op, ``"line"`` for one per op and line of the user's code.

    Raises:
        TapeValueError: ``by`` is neither.

    Example:
        >>> import tape
        >>> x = tape.Variable([1.0, 2.0])
        >>> with tape.op_hooks.MemoryCounter() as memory:
        ...     (x * x).sum().backward()
        >>> memory
        bytes per op
        op        calls  outputs  backward calls  cotangents
        ----------------------------------------------------
        multiply      1      8 B               1        16 B
        sum           1      4 B               1         8 B

    """

    def __init__(self, *, by: str = "op") -> None:
        self.by = of_ops_or_lines("MemoryCounter", by)
        self.reset()

    def reset(self) -> None:
        """Forget what was counted."""
        self._counts: dict[str, list[int]] = {}

    def rows(self) -> list[MemoryRow]:
        """Return a row for each op, the one that made most bytes first."""
        rows = [MemoryRow(op, *counts) for op, counts in self._counts.items()]
        return sorted(rows, key=lambda row: -(row.output_bytes + row.cotangent_bytes))

    def forward_postprocess(self, op: SeenOp, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:  # noqa: ARG002 - as the base
        """Count the outputs."""
        self._count(op, outputs, 0)

    def backward_postprocess(self, op: SeenOp, input_grads: tuple[Any, ...]) -> None:
        """Count what the VJP made."""
        self._count(op, input_grads, 2)

    def _count(self, op: SeenOp, made: Sequence[Any], at: int) -> None:
        counts = self._counts.setdefault(label(op, self.by), [0, 0, 0, 0])
        counts[at] += 1
        counts[at + 1] += sum(int(v.nbytes) for v in made if v is not None)

    def _table(self) -> tuple[str, list[str], list[list[str]]]:
        heads = ["op", "calls", "outputs", "backward calls", "cotangents"]
        rows = [[r.op, str(r.forward_calls), size(r.output_bytes), str(r.backward_calls), size(r.cotangent_bytes)] for r in self.rows()]
        return "bytes per op", heads, rows
