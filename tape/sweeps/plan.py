"""Plans: the reverse sweep of one tape structure, worked out once and found again on the trie.

A plan walks the entries of a structure last to first, each once, and lists what to record: the VJP kernel of each entry on its forward
values and cotangents, and an addition where cotangents meet.  It depends on the structure only, never on values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from jax import lax

from tape.configuration import configuration
from tape.graph.sweep import sweep
from tape.graph.trie import CONSTANT
from tape.graph.walks import active, backwards
from tape.ops.assembly import vjp_call
from tape.ops.kernel import Op
from tape.rules import registry

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from tape.graph.kinds import Kind
    from tape.graph.trie import State
    from tape.ops.kernel import Kernel

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

    @property
    def inputs(self) -> list[int]:
        """The values that it reads, as an entry of a Wengert list."""
        return [value for value in self.operands if value is not None]

    @property
    def slots(self) -> list[int]:
        """The values that it gives."""
        return [value for value in self.results if value is not None]


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
        carrying = {place.slot for place in state.table[: state.n_slots] if place.kind.requires_grad} - blocked
        if wanted is not None or blocked:  # else each of them depends on a leaf
            path, cut = state.path(), state.cut
            start = wanted if wanted is not None else cut.union(*[step.slots for step in path if step.ends])
            carrying = active(path, start & carrying, lambda step: () if step.ends else carrying.intersection(step.slots) - cut)
        found = plans[key] = frozenset(carrying)
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
        cut = state.cut
        for step in backwards(state.path(), reached):
            met = reached.intersection(step.slots) - stop
            ends.extend(slot for slot in step.slots if slot in met and (step.ends or slot in cut))
            if not (step.ends or met <= cut):
                passed.update(place.slot for place in step.places if place.kind.requires_grad and place.slot not in cut)
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


def _make(
    state: State,
    seeds: tuple[int, ...],
    active: Collection[int],
    watched: frozenset[int],
    hooked: frozenset[int],
    kept: tuple[int, ...] | None,
    observed: bool,
) -> Plan:
    planner = _Planner(state, seeds, watched, hooked, observed)
    n_slots = state.n_slots
    sweep(planner.path, {slot: n_slots + i for i, slot in enumerate(seeds) if slot in active}, active, planner)
    plan = planner.plan
    externals = {o for i in plan.instructions for o in i.operands if o is not None and o < n_slots}
    if kept is not None:
        externals = _recompute(plan, state, externals, set(kept))
    plan.seeds = seeds
    plan.pending = kept is None
    plan.n_forward = n_slots
    plan.outputs = tuple(planner.outputs)
    plan.externals = tuple(sorted(externals))
    plan.entries = frozenset(planner.entries)
    plan.size = planner.count
    return plan


class _Planner:
    """Emitter of a sweep that writes a plan; a cotangent is the number of a value in it."""

    def __init__(self, state: State, seeds: tuple[int, ...], watched: frozenset[int], hooked: frozenset[int], observed: bool) -> None:
        self.plan = Plan()
        self.path = state.path()
        self.count = state.n_slots + len(seeds)
        self.outputs: list[tuple[int, int]] = []
        self.entries: set[int] = set()
        self._emit = self.plan.instructions.append
        self._cut = state.cut
        self._final = watched | state.cut
        self._hooked = hooked
        self._shown = hooked | self._final
        self._observed = observed
        # A Function's backward may leave out a cotangent, so that a sum to add to may be missing when the plan is written.  Op hooks see terms.
        self._fused = not observed and not any(isinstance(step.op, FunctionOp) for step in self.path)

    def _numbers(self, n: int) -> tuple[int, ...]:
        """Number the next values."""
        first = self.count
        self.count += n
        return (first,) if n == 1 else tuple(range(first, first + n))

    def arrive(self, step: State, cotangents: list[int | None]) -> list[int | None] | None:
        """Show totals to hooks, and note the final ones."""
        if not step.ends and self._shown.isdisjoint(step.slots):
            return cotangents
        for i, slot in enumerate(step.slots):
            total = cotangents[i]
            if total is None:
                continue
            if slot in self._hooked:
                (cotangents[i],) = replaced = self._numbers(1)
                self._emit(Instruction(None, (total,), replaced, hook=slot))
                self.plan.straight = False
                total = replaced[0]
            if step.ends or slot in self._final:
                self.outputs.append((slot, total))
        if step.ends:
            return None
        if not self._cut.isdisjoint(step.slots):
            cotangents = [None if slot in self._cut else ct for slot, ct in zip(step.slots, cotangents, strict=True)]
            if all(ct is None for ct in cotangents):
                return None
        return cotangents

    def pull(
        self, step: State, cotangents: list[int | None], wanted: tuple[bool, ...], totals: dict[Any, int]
    ) -> Iterable[tuple[Any, int]]:
        """Write the VJP of an entry, between what op hooks see of it."""
        self.entries.add(step.depth)
        if step.hazard is not None and self.plan.hazard is None:
            self.plan.hazard = step
        kernel, inputs = step.kernel, step.inputs
        assert kernel is not None
        if self._observed:
            shown, hidden = cotangents[: kernel.visible], cotangents[kernel.visible :]
            seen = tuple([None if ct is None else self._numbers(1)[0] for ct in shown])
            self._emit(Instruction(None, tuple(shown), seen, before=step))
            self.plan.straight = False
            cotangents = [*seen, *hidden]
        results: Sequence[int]
        if isinstance(step.op, FunctionOp):
            targets = tuple([i for i, flag in enumerate(wanted) if flag])
            results = self._numbers(len(targets))
            self._emit(Instruction(None, tuple(cotangents), results, function=step, wanted=wanted, where=step.where))
            self.plan.straight = False
        else:
            vjp, operands = vjp_call(kernel, inputs, step.slots, cotangents, wanted, totals if self._fused else None)
            targets = vjp.targets
            if vjp.kernel is None:
                results = operands
            else:
                results = self._numbers(len(targets))
                self._emit(Instruction(vjp.kernel, tuple(operands), results, None, None, (), step.where))
        if self._observed:
            terms = dict(zip(targets, results, strict=True))
            results = self._numbers(len(targets))
            numbers = dict(zip(targets, results, strict=True))
            positions = range(len(inputs))
            read = (*seen, *map(terms.get, positions))
            self._emit(Instruction(None, read, tuple(map(numbers.get, positions)), after=step))
        return zip([inputs[i] for i in targets], results, strict=True)

    def add(self, step: State | None, total: int, term: int) -> int:
        """Write an addition."""
        results = self._numbers(1)
        self._emit(Instruction(ADD, (total, term), results, where=step and step.where))
        return results[0]


def _recompute(plan: Plan, state: State, wanted: set[int], kept: set[int]) -> set[int]:
    """Put the forward entries whose values were not kept before the sweep; return the slots that are still read from outside."""
    outside: set[int] = set()
    again: list[Instruction] = []
    for step in backwards(state.path(), wanted):
        slots = step.slots
        read = wanted.intersection(slots)
        if step.kernel is None or kept.issuperset(read):
            outside.update(read)
        else:
            wanted.update(step.inputs)
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
