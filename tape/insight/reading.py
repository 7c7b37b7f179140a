"""Reading: what was noted, or is found in the past of Variables, becomes entries."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from tape.graph.kinds import Kind
from tape.graph.segment import LeafNode
from tape.graph.trie import CONSTANT, SWEEP, State
from tape.insight.entries import Entry, Value
from tape.insight.parts import Leaf, Lone, Mark, Part, Place, Source, Span, place_of


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
        leaves: the values that they read and do not make, in the order of their use.
        places: for each entry its part and number there, or the entry that ran alone.
        numbers: of entries, by (part, number in it).

    """

    def __init__(self, order: Sequence[Span | Lone], began: Sequence[int] = (), sweeps: Sequence[tuple[str, int] | None] = ()) -> None:
        self.entries: list[Entry] = []
        self.leaves: list[Value] = []
        self.sources: list[Source] = []  # of the leaves
        self.leaf_by_id: dict[int, Leaf] = {}  # leaves by their ids, numbers too
        self.places: list[tuple[Part, int] | Lone] = []
        self.numbers: dict[tuple[int, int], int] = {}  # by (id of the part, number in it)
        self._steps_of: Callable[[Part], list[Any]] = functools.cache(lambda part: part.steps)
        self.shared: set[int] = set()  # entries whose lines are those of whoever recorded the same ops first
        self._began = began
        self._sweeps = sweeps  # the line at which each was asked for
        self._made: dict[tuple[int, int], Value] = {}  # by (id of the part or lone entry, slot or number of the result)
        self._known: dict[Any, Value] = {}  # leaves, by what they are
        self._names: Counter[str] = Counter()
        for item in order:
            if isinstance(item, Lone):
                self._lone(item)
            else:
                self._span(item)

    def leaves_of(self, variable: object) -> list[Place]:
        """Return the places at which a Variable is read as a leaf: one for each value that it had."""
        return [(key, -1) for key, leaf in self.leaf_by_id.items() if leaf.variable() is variable]

    def became(self, variable: object) -> list[Place]:
        """Return those where a pending result became its value: an update under ``no_grad``, or ``requires_grad_()``."""
        places = []
        for line in self.lines:
            segment = line.part.ref() if line is not None and line.step.ends else None
            if line is not None and segment is not None:
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
            if line is not None and any(map(depends, line.reads)):
                dependents.update(line.gives)
        for place in off_the_tape:
            depends(place)
        return dependents

    @functools.cached_property
    def lines(self) -> list[Line | None]:
        """The entries as they stand in their parts; None for one that ran alone."""
        return [None if isinstance(place, Lone) else self._line(*place) for place in self.places]

    def _line(self, part: Part, number: int) -> Line:
        step = self._steps_of(part)[number]
        reads = tuple([place_of((part, slot)) for slot in step.inputs])
        return Line(part, step, reads, tuple([(id(part), slot) for slot in step.slots]))

    def _span(self, span: Span) -> None:
        part = span.part
        segment = part.ref()
        released_depths: Any = None if segment is None or not segment.swept else segment.released
        steps = self._steps_of(part)
        for number in range(span.begin, span.end):
            if part.only is not None and number not in part.only:
                continue
            step = steps[number]
            kernel = step.kernel
            named = step.op if step.op is not None else kernel
            visible = step.slots[: kernel.visible]
            place = len(self.entries)
            arguments = getattr(named, "arguments", None)  # a tape.Function's: the others were computed from them
            inputs = tuple([self._value(part, slot) for slot in step.inputs[:arguments]])
            outputs = self._results(place, [((id(part), slot), part.state.table[slot].kind) for slot in visible])
            mark = part.marks.get(step.slots[0]) if step.slots else None
            line = part.lines.get(number)
            if line is None and segment is not None and step.slots:
                line = segment.lines.get(step.slots[0])
            if line is None and getattr(step, "known", False):
                self.shared.add(place)
            self.numbers[id(part), number] = place
            sweep, of = self._sweep(part, number, step, mark)
            released = not step.ends and (released_depths is None or step.depth in released_depths)
            jaxpr = None if kernel.transient else kernel.jaxpr.jaxpr
            constant, inside = step.mode == CONSTANT and not step.ends, part.inside.get(number)
            line = line or step.where
            entry = Entry(place, named.name, inputs, outputs, line, sweep, of, inside, constant, released, named.params, jaxpr)
            self._enter(entry, (part, number))

    def _results(self, number: int, kinds: Sequence[tuple[Place, Kind]]) -> tuple[Value, ...]:
        """Return the results of an entry, of these kinds at these places."""
        several = len(kinds) > 1
        results = [Value.of(kind, f"%{number}.{i}" if several else f"%{number}", number, i) for i, (_, kind) in enumerate(kinds)]
        self._made.update(zip([place for place, _ in kinds], results, strict=True))
        return tuple(results)

    def _enter(self, entry: Entry, place: tuple[Part, int] | Lone) -> None:
        if entry.of is not None:
            line = self.entries[entry.of].where
            object.__setattr__(entry, "where", line)
        elif entry.sweep is not None and entry.sweep <= len(self._sweeps):  # a seed, or a sum: nobody saw these recorded
            object.__setattr__(entry, "where", self._sweeps[entry.sweep - 1] or entry.where)
        self.entries.append(entry)
        self.places.append(place)

    def _sweep(self, part: Part, number: int, step: State, mark: Mark | None) -> tuple[int | None, int | None]:
        """Return which sweep wrote an entry, and for which one."""
        if mark is not None:
            return max(mark.sweep, 1), self._of(mark)
        if number in part.lines or step.mode == CONSTANT:
            return None, None
        begun = sum(1 for first in self._began if first <= len(self.entries))
        if not begun and step.mode != SWEEP and hasattr(step.op, "kernel_of"):
            return None, None
        return begun or (self.entries[-1].sweep if self.entries else None) or 1, None

    def _of(self, mark: Mark) -> int | None:
        return None if mark.part is None or mark.depth is None else self.numbers.get((id(mark.part), mark.depth - 1))

    def _lone(self, lone: Lone) -> None:
        place = len(self.entries)
        inputs = tuple([self._value_of(source) for source in lone.inputs])
        outputs = self._results(place, [((id(lone), i), kind) for i, kind in enumerate(lone.kinds)])
        sweep, of = (None, None) if lone.mark is None else (max(lone.mark.sweep, 1), self._of(lone.mark))
        entry = Entry(place, lone.op.name, inputs, outputs, lone.line, sweep, of, None, lone.mode == CONSTANT, True, lone.op.params, None)
        self._enter(entry, lone)

    def _value(self, part: Part, slot: int) -> Value:
        result = self._made.get((id(part), slot))
        if result is not None:
            return result
        source = part.sources.get(slot)
        return self._leaf((part, slot)) if source is None else self._value_of(source)

    def _value_of(self, source: Source) -> Value:
        if isinstance(source, Leaf):
            return self._leaf(source)
        whole, slot = source
        if isinstance(whole, Lone):
            return self._made.get((id(whole), slot)) or self._leaf(source)
        return self._value(whole, slot)

    def _met(self, leaf: Leaf) -> None:
        """Take note of a leaf, and of those that its value comes from."""
        waiting: list[Source | None] = [leaf]
        while waiting:
            one = waiting.pop()
            if isinstance(one, Leaf) and id(one) not in self.leaf_by_id:
                self.leaf_by_id[id(one)] = one
                waiting += [one.behind] if one.outside is None else one.outside[1]

    def _leaf(self, source: Source) -> Value:
        """Return what is not made on the tape."""
        key = source if isinstance(source, Leaf) else (id(source[0]), source[1])
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
            whole, slot = source
            kind, name = whole.kinds[slot] if isinstance(whole, Lone) else whole.state.table[slot].kind, None
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
