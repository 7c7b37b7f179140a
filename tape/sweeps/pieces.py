"""Pieces: a plan cut where gradients become final, so that they can be handed out while the rest of the sweep is still to come.

Each piece is a plan of its own, which reads values that pieces before it left.  Like the whole, it depends on the structure only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tape.graph.wengert import leading, producers
from tape.sweeps.plan import Instruction, Plan

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

__all__ = ["Piece", "pieces_of"]


class Piece(NamedTuple):
    """A part of a plan.  Values have their numbers in the whole plan.

    Attributes:
        plan: the part; ``inputs`` are its seeds, and its outputs go by their numbers.
        inputs: the values that it reads: forward ones first.
        used: values that no later piece reads.
        finals: positions among the groups that the plan was cut for.

    """

    plan: Plan
    inputs: tuple[int, ...]
    used: tuple[int, ...]
    finals: tuple[int, ...]


def pieces_of(plan: Plan, groups: tuple[tuple[int, ...], ...]) -> tuple[Piece, ...]:
    """Cut a plan (for a segment that has run) wherever the cotangents of one or more groups of its output slots are final.

    Args:
        plan: the whole.
        groups: slots, all of whose cotangents are wanted at once, and as early as can be.

    """
    found: tuple[Piece, ...] | None = plan.pieces.get(groups)
    if found is None:
        found = plan.pieces[groups] = tuple(_cut(plan, groups))
    return found


def _cut(plan: Plan, groups: Sequence[Sequence[int]]) -> Iterable[Piece]:
    n_forward = plan.n_forward
    again = [i for i in plan.instructions if any(value < n_forward for value in i.slots)]  # forward entries, once more
    steps = plan.instructions[len(again) :]
    made = {value: i + 1 for i, step in enumerate(steps) for value in step.slots}
    values = dict(plan.outputs)
    ends = [max(made.get(values[slot], 0) for slot in group) for group in groups]
    cuts = sorted({*ends, len(steps)})
    makers = producers(again)
    parts = []
    made_before: set[int] = set()
    for start, end in zip([0, *cuts[:-1]], cuts, strict=True):
        before = _forward(steps[start:end], makers, made_before)
        made_before.update(value for step in before for value in step.slots)
        parts.append([*before, *steps[start:end]])
    handed = [{values[slot] for group, e in zip(groups, ends, strict=True) if e == end for slot in group} for end in cuts]
    grouped = {slot for group in groups for slot in group}
    handed[-1].update(value for slot, value in plan.outputs if slot not in grouped)
    inputs = [_read(part) for part in parts]
    later: set[int] = set()
    pieces = []
    for part, read, given, end in zip(parts[::-1], inputs[::-1], handed[::-1], cuts[::-1], strict=True):
        results = {value for step in part for value in step.slots}
        outputs = results & (later | given)
        used = (read | results | given) - later
        finals = tuple([i for i, e in enumerate(ends) if e == end])
        ordered = (*sorted(v for v in read if v < n_forward), *sorted(v for v in read if v >= n_forward))
        pieces.append(Piece(_renumbered(part, ordered, sorted(outputs), n_forward), ordered, tuple(sorted(used)), finals))
        later = (later - results) | read | given
    return pieces[::-1]


def _forward(steps: Sequence[Instruction], makers: dict[int, Instruction], made_before: set[int]) -> list[Instruction]:
    """Return what to put before some steps, so that they find the forward values that were not kept.

    Those that a piece before computed are results of it, and further results cost a program more than what is cheap to compute: so where
    a few of them are enough to compute the others anew, these are not handed on.
    """
    wanted = {o for step in steps for o in step.inputs if o in makers}
    known = wanted & made_before
    found, handed_on = leading(wanted, makers, made_before)
    if known:
        oldest = min(known)
        anew, fewer = leading(wanted, makers, {v for v in made_before if v < oldest or not makers[v].op.cheap})
        if len(fewer) < len(handed_on) and len(anew) <= _ANEW * len(wanted):
            found = anew
    return found


_ANEW = 4  # steps that are computed anew rather than that a value is handed on


def _read(part: Iterable[Instruction]) -> set[int]:
    """Return the values that some steps read and none of them makes."""
    results = {value for step in part for value in step.slots}
    return {o for step in part for o in step.inputs} - results


def _renumbered(part: Sequence[Instruction], inputs: Collection[int], outputs: Iterable[int], n_forward: int) -> Plan:
    """Make a plan of some steps: its values that are no forward ones of its own are numbered anew, from ``n_forward`` on."""
    numbers = {value: n_forward + i for i, value in enumerate(inputs)}
    piece = Plan()
    piece.pending = False
    piece.seeds = tuple(inputs)
    piece.n_forward = n_forward + sum(value < n_forward for value in inputs)
    for step in part:
        operands = tuple([None if o is None else numbers.get(o, o) for o in step.operands])
        for value in step.slots:
            if value >= n_forward:
                numbers[value] = n_forward + len(numbers)
        results = tuple([None if value is None else numbers.get(value, value) for value in step.results])
        piece.instructions.append(step._replace(operands=operands, results=results))
        piece.straight = piece.straight and step.op is not None
    piece.outputs = tuple([(value, numbers.get(value, value)) for value in outputs])
    piece.size = n_forward + len(numbers)
    return piece
