"""Connections: what leads from one Variable to another on the tape, and where that is cut for gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tape.insight import causes
from tape.insight.causes import Cause
from tape.insight.listing import Tape
from tape.insight.notes import Leaf
from tape.sweeps.seeds import describe

if TYPE_CHECKING:
    from tape.insight.entries import Entry
    from tape.insight.notes import Place
    from tape.insight.reading import Line, Reading


class Connection:
    """What leads from an input to an output.

    Attributes:
        tape: the past of the output.
        targets: the places of the input there.
        leads: the entries that depend on it, each with the positions of the inputs by which it does.
        note: how sure it is that these are of the input.

    """

    def __init__(self, output: Any, given: Any) -> None:
        self.output, self.given = output, given
        self.tape = Tape.of(output)
        self.reading: Reading = self.tape._reading()
        self.note = ""
        self.targets = self._targets()
        self.leads = self._leads()

    def _targets(self) -> set[Place]:
        """Return the places of the input on the tape."""
        targets = {*self.reading.leaves_of(self.given), *self.reading.became(self.given)}
        if self.given._segment is not None:
            lines = [line for line in self.reading.lines if line is not None and line.part.ref() is self.given._segment]
            targets |= {(id(line.part), self.given._place.slot) for line in lines}
        if not targets:  # of what has no gradient and was looked at, the tape no longer knows which Variables it read
            kind = self.given._place.kind
            targets = {
                (key, -1)
                for key, leaf in self.reading.leaf_by_id.items()
                if leaf.kind is kind and leaf.variable() is None and leaf.cell is None
            }
            if targets and kind.requires_grad:
                self.note = (
                    "that it was this input is told by its shape and dtype only: what was looked at and has no gradient keeps no more"
                )
        return targets

    def _leads(self) -> dict[int, list[int]]:
        """Return the entries that depend on the input, each with the positions of the inputs by which it does."""
        dependent: set[Place] = set(self.targets)
        leads: dict[int, list[int]] = {}
        for number, line in enumerate(self.reading.lines):
            positions = [] if line is None else [i for i, place in enumerate(line.reads) if self._detached(place) in dependent]
            if line is not None and positions and not dependent.issuperset(line.gives):
                leads[number] = positions
                dependent.update(line.gives)
        return leads

    def _detached(self, place: Place) -> Place:
        leaf = self.reading.leaf_by_id.get(place[0])
        return place if leaf is None or leaf.behind is None or not isinstance(leaf.behind, Leaf) else (id(leaf.behind), -1)

    def way(self) -> list[Entry]:
        """Return the entries of the shortest way back from the output."""
        if not self.leads:
            return []
        entries = self.reading.entries
        at: int | None = max(self.leads)
        way: list[Entry] = []
        while at is not None:
            way.append(entries[at])
            befores = [v.entry for v in entries[at].inputs if v.entry is not None and v.entry in self.leads]
            at = min(befores, default=None)
        return way

    def flows(self) -> set[int]:
        """Return the entries through which gradients flow from the output to the input."""
        entries = self.reading.entries
        forward: set[int] = set()
        for number, positions in self.leads.items():
            e = entries[number]
            if not e.requires_grad:
                continue
            for i in positions:
                value = e.inputs[i] if i < len(e.inputs) else None
                if value is not None and value.requires_grad and (self.line(number).reads[i] in self.targets or value.entry in forward):
                    forward.add(number)
        last = next((n for n in reversed(range(len(entries))) if self._is_output(n)), None)
        return forward if last in forward else set()

    def line(self, number: int) -> Line:
        """Return an entry that leads there as it stands in its part."""
        line = self.reading.lines[number]
        assert line is not None, "what ran alone leads nowhere"
        return line

    def _is_output(self, number: int) -> bool:
        line = self.reading.lines[number]
        return line is not None and line.part.ref() is self.output._segment and self.output._place.slot in line.step.slots

    def unconnected(self) -> Cause:
        """Say why nothing leads from the input to the output."""
        if not self.reading.entries:
            what = (
                f"the output ({describe(self.output)}) has no past on the tape: it was made of a value (float(), .item(), .value, "
                ".numpy()), or detached"
            )
            repair = "keep the Variable itself, and take float(loss) only to print it"
            return Cause("detached loss", None, what, repair)
        extra = self.given._extra
        given_grad = None if extra is None else extra.grad
        if given_grad is not None and any(leaf.cell is given_grad._cell for leaf in self.reading.leaf_by_id.values()):
            what = "the output was computed of the input's .grad, which backward() left without its own past"
            repair = "pass create_graph=True to that backward(), or take the first gradient by tape.gradients(..., create_graph=True)"
            return Cause("create_graph", None, what, repair)
        shared = []
        if self.given._segment is not None:
            past = Tape.of(self.given)
            own = [leaf for leaf in self.reading.leaf_by_id.values() if leaf.kind.requires_grad]
            shared = [leaf for leaf in past._reading().leaf_by_id.values() if any(_same(leaf, other) for other in own)]
        if shared:
            names = ", ".join(dict.fromkeys(leaf.name or "a leaf" for leaf in shared))
            return Cause(
                "rebinding",
                None,
                f"the input is a result that was computed of {names} beside the output, which does not depend on it: the name was bound "
                "to a new Variable",
                "update in place (with tape.no_grad(): w -= step), and ask for the gradient of the Variable that the output was "
                "computed from",
            )
        if any(e.sweep is not None for e in self.reading.entries):
            what = "the output was computed of a gradient that does not depend on the input: what was differentiated is linear in it"
            repair = "nothing is to be repaired where that is meant: its second derivative is 0 (unconnected='zero')"
            return Cause("linear", None, what, repair)
        what = "nothing that is on the tape leads from the input to the output (what was looked at and has no gradient keeps no past)"
        repair = (
            "use this very Variable in the computation, not a copy or its .value; print a tape.Tape() around it to see what was recorded"
        )
        return Cause("not used", None, what, repair)

    def suspects(self) -> list[Cause]:
        """Return the entries whose derivative is 0 by what they are."""
        suspects = []
        for number in sorted(self.leads):
            e = self.reading.entries[number]
            if e.op in causes.STEPS:
                suspects.append(causes.step_at(e))
        return suspects[:3]

    def cuts(self) -> list[Cause]:
        """Return where what depends on the input loses its gradient."""
        cuts = []
        for number in self.leads:
            e, line = self.reading.entries[number], self.line(number)
            unrecorded = any(line.part.state.table[slot].kind.unrecorded for slot in line.step.slots[: len(e.outputs)])
            # A gradient could have flowed to these.
            carrying = [i for i in self.leads[number] if i < len(e.inputs) and (e.inputs[i].requires_grad or e.inputs[i].entry is None)]
            if carrying and not e.requires_grad:
                cuts.append(causes.cut_at(e, bool(unrecorded)))
        return cuts[:4]


def _same(a: Leaf, b: Leaf) -> bool:
    """Tell whether two leaves are the same value of one Variable, which may be gone."""
    if a.cell is not None and b.cell is not None:
        return a.cell is b.cell
    return a.variable() is not None and a.variable() is b.variable()
