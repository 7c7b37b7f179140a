"""Drawing: what a picture shows, before it is laid out: lanes, groups in groups, and entries; and how much gradient arrives there."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from tape.graph.scope import within
from tape.graph.segment import Handle
from tape.insight.causes import norm
from tape.insight.entries import Entry
from tape.insight.folding import Block, folded
from tape.insight.reading import Reading
from tape.insight.scopes import scope_of
from tape.programs.program import look
from tape.sweeps.seeds import require_grad, seeds_of, wide
from tape.sweeps.sweep import Sweep

_ROW = 80  # items side by side


@dataclass(eq=False)
class Group:
    """What is drawn as one when it is closed: an iteration of a loop, all of them (``times``), or what one call of a function recorded."""

    label: str
    items: list[Entry | Group] = field(default_factory=list)
    times: int = 0
    key: str = ""

    @property
    def count(self) -> str:
        """How many these are, in words."""
        return f"{sum(1 for _ in self.entries())} entries"

    def entries(self) -> Iterator[Entry]:
        """Yield what is in it, at any depth."""
        for item in self.items:
            if isinstance(item, Group):
                yield from item.entries()
            else:
                yield item


def lanes(entries: Sequence[Entry], group: str | None, *, fold: bool) -> list[Group]:
    """Return a lane for the forward, and one for each sweep, with their entries in groups."""
    numbers = itertools.count()
    drawn = []
    for sweep in sorted({e.sweep or 0 for e in entries} or {0}):
        own = [e for e in entries if (e.sweep or 0) == sweep]
        places = {e.number: i for i, e in enumerate(own)}
        items: list[Entry | Group] = [
            _opened(item, own, places) if isinstance(item, Block) else item for item in (folded(own) if fold else own)
        ]
        lane = Group("forward" if not sweep else f"sweep {sweep}", items)
        if group is not None:
            _scoped(lane, group)
        _chunked(lane)
        for inner in _groups(lane):
            inner.key = f"g{next(numbers)}"
        drawn.append(lane)
    return drawn


def _chunked(group: Group) -> None:
    """Put long rows of entries into groups by their numbers, so that a picture of them can be overlooked."""
    for item in group.items:
        if isinstance(item, Group):
            _chunked(item)
    count = len(group.items)
    if count > _ROW:
        step = max(10, math.isqrt(count))
        parts = [group.items[i : i + step] for i in range(0, count, step)]
        group.items = [Group(f"%{_first(part[0])} to %{_first(part[-1])}", part) for part in parts]


def _first(item: Entry | Group) -> int:
    return next(item.entries()).number if isinstance(item, Group) else item.number


def _groups(group: Group) -> Iterator[Group]:
    for item in group.items:
        if isinstance(item, Group):
            yield item
            yield from _groups(item)


def _opened(block: Block, own: Sequence[Entry], places: dict[int, int], shift: int = 0) -> Group:
    """Return all iterations of a block, of which the first is known; a block in it is as many entries further on in each."""
    first, last = places[block.first] + shift, places[block.last] + shift
    period = (last - first + 1) // block.times
    turns = []
    for turn in range(block.times):
        further = shift + turn * period
        items: list[Entry | Group] = [
            _opened(item, own, places, further) if isinstance(item, Block) else own[places[item.number] + further] for item in block.items
        ]
        turns.append(Group(f"{turn + 1} of {block.times}", items))
    names = ", ".join(dict.fromkeys(e.op for e in turns[0].entries()))
    one = [item for turn in turns for item in turn.items] if period == 1 else turns
    return Group(f"{block.times} x {names if len(names) < 34 else names[:33] + '…'}", list(one), block.times)


def _scoped(group: Group, kind: str) -> None:
    """Put entries next to each other that stand in one scope into a group of that."""
    items: list[Entry | Group] = []
    for scope, run in itertools.groupby(group.items, lambda item: _scope(item, kind)):
        listed = list(run)
        for item in listed:
            if isinstance(item, Group):
                _scoped_inside(item, kind, scope)
        if scope and len(listed) > 1:
            items.append(Group(scope, listed))
        else:
            items += listed
    only = items[0] if len(items) == 1 and isinstance(items[0], Group) else None
    whole = only is not None and not only.times and not group.times and group.label == "forward"
    group.items = only.items if only is not None and whole else items


def _scoped_inside(group: Group, kind: str, outer: str) -> None:
    """Group what is in a loop, where it stands in several scopes."""
    if group.times:
        for item in group.items:
            if isinstance(item, Group):
                _scoped_inside(item, kind, outer)
    elif len({_scope(item, kind) for item in group.items}) > 1:
        _scoped(group, kind)


def _scope(item: Entry | Group, kind: str) -> str:
    if isinstance(item, Group):
        scopes = {scope_of(e, kind) for e in item.entries()}
        return scopes.pop() if len(scopes) == 1 else ""
    return scope_of(item, kind)


def norms(function: str, reading: Reading, roots: Sequence[Handle]) -> dict[int, float]:
    """Return for each entry that gradients from the roots reach the norm of that of its first result that gets one; nothing is released.

    It is Euclidean, at the precision of double, and infinite where a value is not finite.  ReleasedTapeError: the tape was released.
    """
    for root in roots:
        require_grad(function, "outputs", root)
    targets: dict[Any, int] = {}
    for entry, line in zip(reading.entries, reading.lines, strict=True):
        segment = line.part.ref() if entry.requires_grad else None
        if segment is None:
            continue
        for slot in line.step.slots[: line.step.kernel.visible]:
            if line.part.state.table[slot].kind.requires_grad:
                targets[segment, slot] = entry.number
    arrived: dict[int, Any] = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(within(notes=None))
        settings = stack.enter_context(wide(roots))
        seeds, _ = seeds_of(function, list(roots), None)
        sweep = Sweep(list(targets), (), create_graph=False)
        sweep.run(roots, seeds, settings, leaf_hooks=False)
        for target, gradient in sweep.gradients.items():
            if target in targets:
                arrived.setdefault(targets[target], gradient)
        sizes = {number: norm(jax.device_get(look(gradient))) for number, gradient in sorted(arrived.items())}
    return {number: size if np.isfinite(size) else float("inf") for number, size in sizes.items()}
