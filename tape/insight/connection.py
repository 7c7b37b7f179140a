"""Connections: what leads from one Variable to another on the tape, and where that is cut for gradients."""

from __future__ import annotations

from typing import Any

from tape.insight import causes
from tape.insight.causes import Cause
from tape.insight.entries import Entry
from tape.insight.listing import Tape
from tape.insight.parts import Leaf, Place
from tape.insight.reading import Reading
from tape.sweeps.seeds import describe


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
            lines = [line for line in self.reading.lines if line.part.ref() is self.given._segment]
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
        dependents = self.reading.dependents(self.targets)
        lines = [(n, line) for n, line in enumerate(self.reading.lines) if not self.targets.issuperset(line.gives)]
        leads = {n: [i for i, place in enumerate(line.reads) if place in dependents] for n, line in lines}
        return {n: positions for n, positions in leads.items() if positions}

    def way(self) -> list[Entry]:
        """Return the entries of the shortest way back from the output."""
        at = max(self.leads, default=None)
        way: list[Entry] = []
        while at is not None:
            way.append(self.reading.entries[at])
            at = min([v.entry for v in way[-1].inputs if v.entry is not None and v.entry in self.leads], default=None)
        return way

    def flows(self) -> set[int]:
        """Return the entries through which gradients flow from the output to the input."""
        entries = self.reading.entries
        forward: set[int] = set()
        for number, positions in self.leads.items():
            e, reads = entries[number], self.reading.lines[number].reads
            carrying = [i for i in positions if e.requires_grad and i < len(e.inputs) and e.inputs[i].requires_grad]
            if any(reads[i] in self.targets or e.inputs[i].entry in forward for i in carrying):
                forward.add(number)
        last = next((n for n in reversed(range(len(entries))) if self._is_output(n)), None)
        return forward if last in forward else set()

    def _is_output(self, number: int) -> bool:
        line = self.reading.lines[number]
        return line.part.ref() is self.output._segment and self.output._place.slot in line.step.slots

    def unconnected(self) -> Cause:
        """Say why nothing leads from the input to the output."""
        leaves, extra = self.reading.leaf_by_id.values(), self.given._extra
        if not self.reading.entries:
            kind, made = "detached loss", "it was made of a value (float(), .item(), .value, .numpy()), or detached"
            what = f"the output ({describe(self.output)}) has no past on the tape: {made}"
            repair = "keep the Variable itself, and take float(loss) only to print it"
        elif extra is not None and extra.grad is not None and any(leaf.cell is extra.grad._cell for leaf in leaves):
            kind, what = "create_graph", "the output was computed of the input's .grad, which backward() left without its own past"
            repair = "pass create_graph=True to that backward(), or take the first gradient by tape.gradients(..., create_graph=True)"
        elif shared := self._shared():
            kind = "rebinding"
            what = (
                f"the input is a result that was computed of {', '.join(shared)} beside the output, which does not depend on it: the name "
                "was bound to a new Variable"
            )
            repair = (
                "update in place (with tape.no_grad(): w -= step), and ask for the gradient of the Variable that the output was "
                "computed from"
            )
        elif any(e.sweep is not None for e in self.reading.entries):
            kind = "linear"
            what = "the output was computed of a gradient that does not depend on the input: what was differentiated is linear in it"
            repair = "nothing is to be repaired where that is meant: its second derivative is 0 (unconnected='zero')"
        else:
            kind = "not used"
            what = "nothing that is on the tape leads from the input to the output (what was looked at and has no gradient keeps no past)"
            repair = (
                "use this very Variable in the computation, not a copy or its .value; print a tape.Tape() around it to see what was "
                "recorded"
            )
        return Cause(kind, None, what, repair)

    def _shared(self) -> dict[str, None]:
        """Return the names of the leaves that the input was computed of, as the output was."""
        if self.given._segment is None:
            return {}
        own = [leaf for leaf in self.reading.leaf_by_id.values() if leaf.kind.requires_grad]
        past = Tape.of(self.given)._reading().leaf_by_id.values()
        return dict.fromkeys(leaf.name or "a leaf" for leaf in past if any(_same(leaf, other) for other in own))

    def suspects(self) -> list[Cause]:
        """Return the entries whose derivative is 0 by what they are."""
        entries = [self.reading.entries[number] for number in sorted(self.leads)]
        return [causes.step_at(e) for e in entries if e.op in causes.STEPS][:3]

    def cuts(self) -> list[Cause]:
        """Return where what depends on the input loses its gradient."""
        cuts = []
        for number in self.leads:
            e, line = self.reading.entries[number], self.reading.lines[number]
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
