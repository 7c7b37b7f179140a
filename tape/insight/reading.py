"""Reading: what was noted, or is found in the past of Variables, becomes entries."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from tape.graph.segment import LeafNode
from tape.graph.trie import CONSTANT, SWEEP, State
from tape.insight.entries import Entry, Value
from tape.insight.parts import Leaf, Part, Place, Source, Span, origin_of, place_of


class Line(NamedTuple):
    """An entry in its part: the step there, and the places of what it reads and gives."""

    part: Part
    step: Any
    reads: tuple[Place, ...]
    gives: tuple[Place, ...]


class Reading:
    """The entries of a tape: where each was found, and what their leaves are.

    Attributes:
        entries: in order.
        leaves: the values that they read and do not give, in the order of their use.
        sources: of the leaves.
        leaf_by_id: the leaves by their ids, numbers too.
        shared: numbers of entries whose lines are those of whoever recorded the same ops first.

    """

    def __init__(self, order: Sequence[Span], began: Sequence[int] = (), sweeps: Sequence[tuple[str, int] | None] = ()) -> None:
        self.entries: list[Entry] = []
        self.leaves: list[Value] = []
        self.sources: list[Source] = []
        self.leaf_by_id: dict[int, Leaf] = {}
        self.shared: set[int] = set()
        self._began = began
        self._sweeps = sweeps  # the line at which each was asked for
        self._steps: list[tuple[Part, Any]] = []  # of the entries
        self._steps_of: Callable[[Part], list[Any]] = functools.cache(lambda part: part.steps)
        self._numbers: dict[tuple[int, int], int] = {}  # of the entries, by (id of the part, number in it)
        self._results: dict[Place, Value] = {}
        self._known: dict[Place, Value] = {}  # leaves
        self._names: Counter[str] = Counter()
        for span in order:
            self._span(span)

    def leaves_of(self, variable: object) -> list[Place]:
        """Return the places at which a Variable is read as a leaf: one for each value that it had."""
        return [(key, -1) for key, leaf in self.leaf_by_id.items() if leaf.variable() is variable]

    def became(self, variable: object) -> list[Place]:
        """Return those where a pending result became its value: an update under ``no_grad``, or ``requires_grad_()``."""
        places = []
        for line in self.lines:
            segment = line.part.ref() if line.step.ends else None
            if segment is not None:
                origin = segment.origins.get(line.step.slots[0])
                if isinstance(origin, LeafNode) and origin.ref() is variable:
                    places.append(line.gives[0])
        return places

    def dependents(self, places: Iterable[Place]) -> set[Place]:
        """Return places, and those of all that depends on them, also by values that were taken off the tape."""
        dependents = set(places)
        off_the_tape: dict[Place, list[Source]] = {}
        for key, leaf in self.leaf_by_id.items():
            if leaf.behind is not None or leaf.outside is not None:
                off_the_tape[key, -1] = [leaf.behind] if leaf.outside is None else leaf.outside[1]  # type: ignore[list-item]

        def depends(place: Place) -> bool:
            waiting, met = [place], {place}
            while waiting:
                at = waiting.pop()
                if at in dependents:
                    dependents.add(place)
                    return True
                further = {place_of(source) for source in off_the_tape.get(at, ())} - met
                waiting += further
                met |= further
            return False

        for line in self.lines:
            if any(map(depends, line.reads)):
                dependents.update(line.gives)
        for place in off_the_tape:
            depends(place)
        return dependents

    @functools.cached_property
    def lines(self) -> list[Line]:
        """The entries as they stand in their parts."""
        return [
            Line(part, step, tuple([place_of((part, slot)) for slot in step.inputs]), tuple([(id(part), slot) for slot in step.slots]))
            for part, step in self._steps
        ]

    def _span(self, span: Span) -> None:
        part = span.part
        segment = part.ref()
        released_depths: Any = None if segment is None or not segment.swept else segment.released
        steps = self._steps_of(part)
        for number in range(span.begin, span.end):
            if part.only is not None and number not in part.only:
                continue
            step = steps[number]
            kernel, place = step.kernel, len(self.entries)
            named = step.op if step.op is not None else kernel
            arguments = getattr(named, "arguments", None)  # a tape.Function's: the others were computed from them
            inputs = tuple([self._value((part, slot)) for slot in step.inputs[:arguments]])
            outputs = self._outputs(part, step.slots[: kernel.visible], place)
            line = part.lines.get(number)
            if line is None and segment is not None and step.slots:
                line = segment.lines.get(step.slots[0])
            if line is None and getattr(step, "known", False):
                self.shared.add(place)
            line = line or step.where
            sweep, of = self._sweep(part, number, step)
            if of is not None:
                line = self.entries[of].where
            elif sweep is not None and sweep <= len(self._sweeps):  # a seed, or a sum: nobody saw these recorded
                line = self._sweeps[sweep - 1] or line
            released = not step.ends and (released_depths is None or step.depth in released_depths)
            jaxpr = None if kernel.transient else kernel.jaxpr.jaxpr
            constant, inside = step.mode == CONSTANT and not step.ends, part.inside.get(number)
            self._numbers[id(part), number] = place
            self._steps.append((part, step))
            self.entries.append(Entry(place, named.name, inputs, outputs, line, sweep, of, inside, constant, released, named.params, jaxpr))

    def _outputs(self, part: Part, slots: Sequence[int], number: int) -> tuple[Value, ...]:
        """Return the results of an entry, which stand in some slots of its part."""
        for i, slot in enumerate(slots):
            name = f"%{number}.{i}" if len(slots) > 1 else f"%{number}"
            self._results[id(part), slot] = Value.of(part.state.table[slot].kind, name, number, i)
        return tuple([self._results[id(part), slot] for slot in slots])

    def _sweep(self, part: Part, number: int, step: State) -> tuple[int | None, int | None]:
        """Return which sweep wrote an entry, and for which one."""
        mark = part.marks.get(step.slots[0]) if step.slots else None
        if mark is not None:
            known = mark.part is not None and mark.depth is not None
            return max(mark.sweep, 1), self._numbers.get((id(mark.part), mark.depth - 1)) if known else None  # type: ignore[operator]
        if number in part.lines or step.mode == CONSTANT:
            return None, None
        begun = sum(1 for first in self._began if first <= len(self.entries))
        if not begun and step.mode != SWEEP and hasattr(step.op, "kernel_of"):
            return None, None
        return begun or (self.entries[-1].sweep if self.entries else None) or 1, None

    def _value(self, source: Source) -> Value:
        """Return what an entry reads."""
        source = origin_of(source)
        return self._results.get(place_of(source)) or self._leaf(source)

    def _met(self, leaf: Leaf) -> None:
        """Take note of a leaf, and of those that its value comes from."""
        waiting: list[Source | None] = [leaf]
        while waiting:
            one = waiting.pop()
            if isinstance(one, Leaf) and id(one) not in self.leaf_by_id:
                self.leaf_by_id[id(one)] = one
                waiting += [one.behind] if one.outside is None else one.outside[1]

    def _leaf(self, source: Source) -> Value:
        """Return what no entry on the tape gives."""
        key = place_of(source)
        known = self._known.get(key)
        if known is not None:
            return known
        if isinstance(source, Leaf):
            kind, number = source.kind, source.number
            self._met(source)
            name = source.name or getattr(source.variable(), "name", None)
            if number is not None:
                value = self._known[key] = Value.of(kind, _written(number))
                return value
        else:
            kind, name = source[0].state.table[source[1]].kind, None
        by = name or ("past" if not isinstance(source, Leaf) else "leaf" if kind.requires_grad else "const")
        count = self._names[by]
        self._names[by] += 1
        numbered = f"{by}{count}" if not name else f"{name}'{count + 1}" if count else name
        value = self._known[key] = Value.of(kind, numbered)
        self.leaves.append(value)
        self.sources.append(source)
        return value


def _written(number: object) -> str:
    item = number.item() if hasattr(number, "item") else number
    text = f"{item:.6g}" if isinstance(item, float) else repr(item)
    return f"{text}.0" if isinstance(item, float) and text.lstrip("-").isdigit() else text
