"""Plans: the reverse sweep of one tape structure, worked out once and found again on the trie.

A plan walks the entries of a structure last to first, each once, and lists what to record: the VJP kernel of each entry on its forward
values and cotangents, and an addition where cotangents meet.  It depends on the structure only, never on values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from jax import lax

from tape.configuration import configuration
from tape.ops.kernel import Op
from tape.recording.trie import CONSTANT
from tape.rules import registry

if TYPE_CHECKING:
    from collections.abc import Collection

    from tape.ops.kernel import Kernel
    from tape.ops.kinds import Kind
    from tape.recording.trie import State

__all__ = ["ADD", "FunctionOp", "Instruction", "Plan", "active_slots", "behind", "plan_sweep"]

ADD = Op("add_any", lax.add)


class FunctionOp:
    """The op of a ``tape.Function``'s entry: an identity whose VJP is Python, kept by the segment and not by the structure.

    Its first ``arguments`` inputs are those of the function, the further ones were computed of them without recording.
    """

    def __init__(self, name: str, identity: Op, arguments: int) -> None:
        self.name = name
        self.identity = identity
        self.arguments = arguments
        self.fresh = True  # nobody has recorded it yet
        self.params: Any = None

    def kernel_of(self, kinds: tuple[Kind, ...]) -> Kernel:
        """Return the identity on the outputs."""
        return self.identity.kernel_of(kinds)


class Instruction(NamedTuple):
    """One step of a sweep.

    ``operands`` and ``results`` number the values of the sweep: forward slots first, then cotangents in the order of their making.
    ``hook`` is a slot whose hooks see (and may replace) the one operand; ``function`` is an entry whose VJP is Python.  Op hooks see (and may
    replace) the cotangents of the entry ``before``, or what the VJP of the entry ``after`` gave, which follows these cotangents there.
    """

    op: Any
    operands: tuple[int | None, ...]
    results: tuple[int | None, ...]
    hook: int | None = None
    function: State | None = None
    wanted: tuple[bool, ...] = ()
    where: Any = None
    before: State | None = None
    after: State | None = None


class Plan:
    """The instructions of a sweep, what they read and what they give."""

    __slots__ = (
        "entries",
        "externals",
        "hazard",
        "instructions",
        "n_forward",
        "outputs",
        "pending",
        "pieces",
        "seeds",
        "size",
        "straight",
    )

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.seeds: tuple[int, ...] = ()  # the root slots, in the order of the values n_slots ..
        self.outputs: tuple[tuple[int, int], ...] = ()  # (slot, value): final cotangents of leaves and watched slots
        self.externals: tuple[int, ...] = ()  # forward slots that instructions read
        self.entries: frozenset[int] = frozenset()  # depths of the entries swept
        self.hazard: State | None = None  # an entry that takes an unrecorded gradient for a constant
        self.straight = True  # no Python in between: can be replayed in one step
        self.pending = True  # made for a segment that has not run
        self.n_forward = 0  # values numbered below it are no cotangents
        self.size = 0
        self.pieces: dict[Any, Any] = {}  # by where it is cut (tape.sweeps.pieces)


def active_slots(state: State, wanted: frozenset[int] | None, blocked: frozenset[int]) -> frozenset[int]:
    """Return the differentiable slots that depend on a wanted slot (on any leaf, where None) not through a blocked one."""
    plans = _plans(state)
    key = ("active", wanted, blocked)
    found: frozenset[int] | None = plans.get(key)
    if found is None:
        if wanted is None and not blocked:  # each of them depends on a leaf
            active = {place.slot for place in state.table[: state.n_slots] if place.kind.requires_grad}
        else:
            active = set()
            for step in state.path():
                reached = wanted is None if step.ends else not active.isdisjoint(step.inputs)
                for place in step.places:
                    slot = place.slot
                    leads = wanted is None if slot in state.cut else reached
                    if place.kind.requires_grad and slot not in blocked and (leads or (wanted is not None and slot in wanted)):
                        active.add(slot)
        found = plans[key] = frozenset(active)
    return found


def behind(state: State, slots: frozenset[int], stop: frozenset[int] = frozenset()) -> tuple[tuple[int, ...], frozenset[int]]:
    """Return the slots at which sweeps from ``slots`` end (leaves, cut ones), and the differentiable results of all entries on the way.

    What is behind the slots in ``stop`` is left out.
    """
    plans = _plans(state)
    key = ("behind", slots, stop)
    found: tuple[tuple[int, ...], frozenset[int]] | None = plans.get(key)
    if found is None:
        reached = set(slots)
        ends: list[int] = []
        passed: set[int] = set()
        for step in reversed(state.path()):
            met = [slot for slot in step.slots if slot in reached and slot not in stop]
            if step.ends:
                ends.extend(met)
                continue
            ends.extend(slot for slot in met if slot in state.cut)
            if any(slot not in state.cut for slot in met):
                passed.update(place.slot for place in step.places if place.kind.requires_grad and place.slot not in state.cut)
                reached.update(s for s in step.inputs if state.table[s].kind.requires_grad)
        found = plans[key] = (tuple(ends), frozenset(passed))
    return found


def _plans(state: State) -> dict[Any, Any]:
    if state.plans is None:
        state.plans = {}
    return state.plans


def plan_sweep(
    state: State,
    seeds: tuple[int, ...],
    wanted: frozenset[int] | None,
    blocked: frozenset[int],
    watched: frozenset[int],
    hooked: frozenset[int],
    kept: tuple[int, ...] | None,
    observed: bool = False,
) -> Plan:
    """Return the plan of a sweep over a structure.

    Args:
        state: the structure.
        seeds: slots that have a cotangent, ascending.
        wanted: slots whose cotangents are asked for, or lead to others; None for all differentiable leaves.
        blocked: slots through which nothing is propagated.
        watched: slots whose total cotangent is reported besides the leaves'.
        hooked: slots that have hooks.
        kept: None while the segment is pending; the slots whose values there are once it has run. The others are computed again.
        observed: whether op hooks see it.

    """
    plans = _plans(state)
    key = (seeds, wanted, blocked, watched, hooked, kept, observed, registry.revision(), configuration())
    found: Plan | None = plans.get(key)
    if found is None:
        found = plans[key] = _make(state, seeds, active_slots(state, wanted, blocked), watched, hooked, kept, observed)
    return found


_YES = (True,)


def _make(
    state: State,
    seeds: tuple[int, ...],
    active: Collection[int],
    watched: frozenset[int],
    hooked: frozenset[int],
    kept: tuple[int, ...] | None,
    observed: bool,
) -> Plan:
    plan = Plan()
    path = state.path()
    cut = state.cut
    # A Function's backward may leave out a cotangent, so that a sum to add to may be missing when the plan is written.  Op hooks see terms.
    fused = not observed and not any(isinstance(step.op, FunctionOp) for step in path)
    plan.seeds = seeds
    plan.pending = kept is None
    plan.n_forward = state.n_slots
    count = state.n_slots + len(seeds)
    totals: dict[int, int] = {slot: state.n_slots + i for i, slot in enumerate(seeds) if slot in active}
    outputs: list[tuple[int, int]] = []
    entries: set[int] = set()
    emit = plan.instructions.append

    for step in reversed(path):
        if not step.places:
            continue
        slots = step.slots
        if len(slots) == 1:
            if slots[0] not in totals:
                continue
            present: tuple[bool, ...] = _YES
        else:
            present = tuple([slot in totals for slot in slots])
            if True not in present:
                continue
        for slot in slots:
            if slot in totals:
                if slot in hooked:
                    emit(Instruction(None, (totals[slot],), (count,), hook=slot))
                    totals[slot] = count
                    count += 1
                    plan.straight = False
                if step.ends or slot in watched or slot in cut:
                    outputs.append((slot, totals[slot]))
        if step.ends:
            continue
        if not cut.isdisjoint(slots):
            present = tuple([slot in totals and slot not in cut for slot in slots])
            if True not in present:
                continue
        inputs = step.inputs
        wanted = tuple([s in active for s in inputs])
        if True not in wanted:
            continue
        entries.add(step.depth)
        if step.hazard is not None and plan.hazard is None:
            plan.hazard = step
        seen: tuple[int | None, ...] = ()
        if observed:
            shown = slots[: step.kernel.visible]
            coming = [slot for slot, p in zip(slots, present, strict=True) if p]
            cotangents = tuple([totals[s] if s in coming else None for s in shown])
            for slot in shown:
                if slot in coming:
                    totals[slot] = count
                    count += 1
            seen = tuple([totals[s] if s in coming else None for s in shown])
            emit(Instruction(None, cotangents, seen, before=step))
            plan.straight = False
        if isinstance(step.op, FunctionOp):
            targets = tuple(i for i, w in enumerate(wanted) if w)
            operands: tuple[int | None, ...] = tuple(totals[s] if p else None for s, p in zip(slots, present, strict=True))
            results = tuple(range(count, count + len(targets)))
            count += len(targets)
            emit(Instruction(None, operands, results, function=step, wanted=wanted, where=step.where))
            plan.straight = False
        else:
            adding: tuple[bool, ...] = ()
            same: tuple[int, ...] = ()
            if fused:
                if len(inputs) > 1 and len(set(inputs)) < len(inputs):
                    same = tuple([inputs.index(s) for s in inputs])
                    adding = tuple([s in totals and same[i] == i for i, s in enumerate(inputs)])
                else:
                    adding = tuple([s in totals for s in inputs])
                if True not in adding:
                    adding = ()
            vjp = step.kernel.vjp(present, wanted, adding, same)
            targets = vjp.targets
            values = [*inputs, *slots]
            values += [totals[s] for s, p in zip(slots, present, strict=True) if p]
            if adding:
                values += [totals[s] for s, a in zip(inputs, adding, strict=True) if a]
            operands = tuple([values[i] for i in vjp.sources])
            if vjp.kernel is None:
                results = operands  # type: ignore[assignment]
            else:
                results = tuple(range(count, count + len(targets)))
                count += len(targets)
                emit(Instruction(vjp.kernel, operands, results, None, None, (), step.where))
            if fused:
                for i, value in zip(targets, results, strict=True):
                    totals[inputs[i]] = value
                continue
        if observed:
            given = dict(zip(targets, results, strict=True))
            results = tuple(range(count, count + len(targets)))
            count += len(targets)
            numbers = dict(zip(targets, results, strict=True))
            positions = range(len(inputs))
            read = (*seen, *[given.get(i) for i in positions])
            emit(Instruction(None, read, tuple([numbers.get(i) for i in positions]), after=step))
        for i, value in zip(targets, results, strict=True):
            slot = inputs[i]
            if slot in totals:
                emit(Instruction(ADD, (totals[slot], value), (count,), where=step.where))
                value = count  # noqa: PLW2901 - the sum takes the place of the term
                count += 1
            totals[slot] = value
    n_slots = state.n_slots
    externals = {o for i in plan.instructions for o in i.operands if o is not None and o < n_slots}
    if kept is not None:
        externals = _recompute(plan, state, externals, set(kept))
    plan.outputs = tuple(outputs)
    plan.externals = tuple(sorted(externals))
    plan.entries = frozenset(entries)
    plan.size = count
    return plan


def _recompute(plan: Plan, state: State, wanted: set[int], kept: set[int]) -> set[int]:
    """Put the forward entries whose values were not kept before the sweep; return the slots that are still read from outside."""
    outside: set[int] = set()
    again: list[Instruction] = []
    for step in reversed(state.path()):
        slots = step.slots
        if wanted.isdisjoint(slots):
            continue
        if step.kernel is None or kept.issuperset(wanted.intersection(slots)):
            outside.update(wanted.intersection(slots))
        else:
            wanted = wanted.union(step.inputs)
            kernel, results = step.kernel.exposed(), slots
            if step.mode == CONSTANT:  # it was not recorded, and is not when it is computed again
                kernel = kernel.stopped()
            if not state.cut.isdisjoint(slots):  # what is computed again of a slot that was cut leads to its past no more
                results = tuple([None if s in kept and s in state.cut else s for s in slots])
                outside.update(s for s in slots if s in wanted and s in kept and s in state.cut)
                if state.cut.issuperset(p.slot for p in step.places if p.kind.requires_grad):
                    kernel = kernel.stopped()
            again.append(Instruction(kernel, step.inputs, results, where=step.where))
    plan.instructions[:0] = again[::-1]
    return outside
