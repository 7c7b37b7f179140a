"""Writing: a sweep without ``create_graph`` as one state of the trie, whose lines are not states themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tape import layout
from tape.graph.kinds import PLAIN, UNRECORDED, MadePlace, Place
from tape.graph.lines import user_line
from tape.graph.trie import State, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tape.graph.kinds import Role


def swept(start: State, instructions: Sequence[Any], slots: dict[Any, int]) -> State:
    """Make the state that follows when a sweep is written.

    Its instructions (:class:`tape.sweeps.plan.Instruction`) call kernels or ops on values; ``slots`` maps values to slots, where
    the two differ; the slots of the results, from ``n_slots`` on, are added to it.
    """
    child = State(start, start.mode)
    child.known, child.seen, child.hash = start.known, start.seen, hash((start.hash, len(instructions)))
    child.table = start.table[: start.n_slots]  # a list of its own: what follows takes time, and other threads may grow the old one
    child.depth = start.depth + len(instructions)
    child.lines = _lines(instructions, slots, child.table, child.depth, user_line(), PLAIN, UNRECORDED)
    child.n_slots = len(child.table)
    child.fill()
    return child


def _written_lines(
    instructions: Sequence[Any],
    numbers: dict[Any, int],
    table: list[Place],
    depth: int,
    line: tuple[str, int] | None,
    plain: Role,
    unrecorded: Role,
) -> tuple[Step, ...]:
    """Make the lines of a sweep; what its results are is added to ``numbers`` and to the ``table``."""
    lines = []
    for op, operands, results, where, *_ in instructions:
        inputs = tuple([numbers.get(o, o) for o in operands])
        kinds = [table[s].kind for s in inputs]
        role = unrecorded if any(kind.requires_grad or kind.unrecorded for kind in kinds) else plain
        kernel = op if hasattr(op, "kinds") else op.kernel_of(tuple(kinds))
        start = len(table)
        for slot, (value, kind) in enumerate(zip(results, kernel.kinds(role), strict=True), start):
            table.append(Place(slot, kind) if role == plain else MadePlace(slot, kind, line))
            numbers[value] = slot
        lines.append(Step(kernel, inputs, tuple(range(start, len(table))), where, depth))
    return tuple(lines)


_lines = layout.chosen("written_lines", _written_lines)
