"""Plans: the reverse sweep of one tape structure, worked out once and found again on the trie.

A plan walks the entries of a structure last to first, each once, and lists what to record: the VJP kernel of each entry on its forward
values and cotangents, and an addition where cotangents meet.  It depends on the structure only, never on values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jax import lax

from tape import layout
from tape.configuration import configuration
from tape.errors import LostGradientError
from tape.graph.kinds import Kind
from tape.graph.trie import CONSTANT, State
from tape.graph.wengert import active, backwards, sweep
from tape.ops.kernel import Kernel, Op
from tape.ops.placing import placing
from tape.programs.retention import through
from tape.rules import table

ADD = Op("add_any", lax.add)
_NONE: frozenset[int] = frozenset()


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

    ``operands`` and ``results`` number the values of the sweep: forward slots first, then cotangents in the order of their making.  Instead
    of an ``op`` to record there may be Python that it ``calls``: the ``"hooks"`` of a ``slot`` on the one operand; the backward of an
    ``entry`` that is a ``"function"``; op hooks ``"before"`` its VJP, on its cotangents, or ``"after"`` it, on these and what it gave.
    """

    op: Any
    operands: tuple[int | None, ...]
    results: tuple[int | None, ...]
    where: tuple[str, int] | None = None
    calls: str | None = None
    slot: int | None = None
    entry: State | None = None
    wanted: tuple[bool, ...] = ()
    depth: int | None = (
        None  # of the entry whose derivative it is part of, or that it computes again: not the entry itself, of which the plan is kept
    )

    @property
    def inputs(self) -> list[int]:
        """The values that it reads, as an entry of a Wengert list."""
        return [value for value in self.operands if value is not None]

    @property
    def slots(self) -> list[int]:
        """The values that it gives."""
        return [value for value in self.results if value is not None]


@dataclass(slots=True, eq=False)
class Plan:
    """The instructions of a sweep, what they read and what they give."""

    instructions: list[Instruction]
    seeds: tuple[int, ...]  # the root slots
    given: tuple[int, ...]  # the values of their cotangents
    outputs: tuple[tuple[int, int], ...]  # (slot, value): final cotangents of leaves and watched slots
    n_forward: int  # values numbered below it are not cotangents
    straight: bool  # no Python in between: can be replayed in one step
    externals: tuple[int, ...] = ()  # forward slots that instructions read
    entries: frozenset[int] = frozenset()  # depths of the entries swept
    hazard: State | None = None  # an entry that takes an unrecorded gradient for a constant
    pending: bool = False  # made for a segment that has not run
    pieces: dict[object, Any] = field(default_factory=dict)  # by where it is cut (tape.sweeps.streaming)
    _seconds: float | None = None

    @property
    def seconds(self) -> float:
        """What it is predicted to add to the compilation of a program."""
        if self._seconds is None:
            kernels = [step.op for step in self.instructions if isinstance(step.op, Kernel)]  # an addition is nearly nothing
            self._seconds = float(sum([kernel.cost.part for kernel in kernels]))
        return self._seconds

    def same(self, other: Plan) -> bool:
        """Tell whether two plans of a structure, for the same cotangents and ends, do the same."""
        return self.pending == other.pending and self.instructions == other.instructions

    def part(self, instructions: list[Instruction], given: Iterable[int], outputs: Iterable[int]) -> Plan:
        """Return the plan of some of the instructions, which read ``given`` values; they and the outputs go by their numbers here."""
        straight = all(step.calls is None for step in instructions)
        values = tuple(given)
        return Plan(instructions, values, values, tuple([(value, value) for value in outputs]), self.n_forward, straight)


def active_slots(state: State, wanted: frozenset[int] | None, blocked: frozenset[int]) -> frozenset[int]:
    """Return the differentiable slots that depend on a wanted slot (on any leaf, where None) not through a blocked one."""

    def work_out() -> frozenset[int]:
        carrying = {place.slot for place in state.table[: state.n_slots] if place.kind.requires_grad} - blocked
        if wanted is not None or blocked:  # else each of them depends on a leaf
            path, cut = state.path(), state.cut
            start = wanted if wanted is not None else cut.union(*[step.slots for step in path if step.ends])
            for step in path:
                if step.kernel is not None and step.kernel.within:
                    start = start.union(*[(step.slots[j] for j in js) for i, js in step.kernel.within.items() if step.slots[i] in start])
            carrying = active(path, start & carrying, lambda step: () if step.ends else carrying.intersection(step.slots) - cut)
        return frozenset(carrying)

    return state.cached(("active", wanted, blocked), work_out)


class Behind(NamedTuple):
    """What sweeps from some slots come to: where they end (leaves, cut slots), the entries on the way, last to first, and their results."""

    ends: tuple[int, ...]
    steps: tuple[State, ...]
    passed: frozenset[int]  # those that are differentiable, and not cut


def behind(state: State, slots: frozenset[int], stop: frozenset[int] = frozenset(), first: int = 0) -> Behind:
    """Return what sweeps from ``slots`` come to; what is behind the slots in ``stop``, or before the ``first``, is left out."""

    def work_out() -> Behind:
        reached = set(slots)
        ends: list[int] = []
        steps: list[State] = []
        cut, path = state.cut, state.path()
        if not (stop or first or cut):
            steps = through(path, reached, state.table, cut, _NONE)
            ends = [slot for step in reversed(path) if step.ends for slot in step.slots if slot in reached]
            path = []
        for step in backwards(path, reached):
            if step.slots[0] < first:
                break
            met = reached.intersection(step.slots) - stop
            ends.extend(slot for slot in step.slots if slot in met and (step.ends or slot in cut))
            if not (step.ends or met <= cut):
                steps.append(step)
                reached.update(s for s in step.inputs if state.table[s].kind.requires_grad)
        passed = frozenset([place.slot for step in steps for place in step.places if place.kind.requires_grad])
        return Behind(tuple(ends), tuple(steps), passed - cut)

    return state.cached(("behind", slots, stop, first), work_out)


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

    It goes from the slots in ``seeds`` (ascending) to the ``wanted`` ones and such as lead to others (None: to all differentiable leaves),
    not through those ``blocked``; totals of those ``watched`` are reported besides the leaves'.  ``kept`` is None while the segment is
    pending, and then says which values are there: the others are computed again.
    """

    def work_out() -> Plan:
        planner = _Planner(state, seeds, watched, hooked, observed)
        n_slots = state.n_slots
        active = active_slots(state, wanted, blocked)
        planner.sweep({slot: n_slots + i for i, slot in enumerate(seeds) if slot in active}, active)
        new = planner.plan(kept)
        alike: list[Plan] = state.cached(("plans", *about), list)
        known = next((plan for plan in alike if plan.same(new)), None)  # it reads nothing further of what is kept
        if known is None:
            alike.append(new)
        return known or new

    about = (seeds, *about_plans(wanted, blocked, watched, hooked, observed))
    return state.cached(("plan", kept, *about), work_out)


def about_plans(
    wanted: frozenset[int] | None = None,
    blocked: frozenset[int] = _NONE,
    watched: frozenset[int] = _NONE,
    hooked: frozenset[int] = _NONE,
    observed: bool = False,
) -> tuple[object, ...]:
    """Return what a plan is known by besides the structure and its cotangents, and in what settings."""
    return wanted, blocked, watched, hooked, observed, table.revision(), id(configuration())  # equal ones are one object


class _Planner:
    """Emitter of a sweep that writes a plan; a cotangent is the number of a value in it."""

    def __init__(self, state: State, seeds: tuple[int, ...], watched: frozenset[int], hooked: frozenset[int], observed: bool) -> None:
        self.path = state.path()
        self._steps: list[Instruction] = []
        self._straight = True
        self._hazard: State | None = None
        self._state = state
        self._seeds = seeds
        self._count = state.n_slots + len(seeds)
        self._outputs: list[tuple[int, int]] = []
        self._entries: set[int] = set()
        self._emit = self._steps.append
        self._cut = state.cut
        self._final = watched | state.cut
        self._hooked = hooked
        self._shown = hooked | self._final
        self._observed = observed
        # A Function's backward may leave out a cotangent, so that a sum to add to may be missing.  Op hooks see terms.
        self._fused = not observed and FunctionOp not in {step.op.__class__ for step in self.path}

    def sweep(self, totals: dict[Any, int], active: frozenset[int]) -> None:
        """Sweep back from totals of cotangents: what is nothing but VJPs in C, where there is one."""
        if layout.NATIVE is None or self._observed:
            sweep(self.path, totals, active, self)
            return
        path, at = self.path, len(self.path) - 1
        shown = frozenset(self._shown)
        about = Instruction, ADD, FunctionOp, table.revision(), id(configuration()), self._steps, self._entries, self._fused
        while True:
            at, self._count = layout.NATIVE.planned(path, at, totals, active, shown, *about, self._count)
            if at < 0:
                return
            sweep((path[at],), totals, active, self)
            at -= 1

    def plan(self, kept: tuple[int, ...] | None) -> Plan:
        """Return the plan, which puts first what is computed again of what was not ``kept``."""
        n_slots = self._state.n_slots
        externals = {o for o in set().union(*[step.operands for step in self._steps]) if o is not None and o < n_slots}
        again: list[Instruction] = []
        if kept is not None:
            again, externals = _recompute(self._state, externals, set(kept))
        return Plan(
            again + self._steps,
            self._seeds,
            tuple(range(n_slots, n_slots + len(self._seeds))),
            tuple(self._outputs),
            n_slots,
            self._straight,
            tuple(sorted(externals)),
            frozenset(self._entries),
            self._hazard,
            kept is None,
        )

    def _call(self, calls: str, operands: tuple[int | None, ...], results: tuple[int | None, ...], **about: Any) -> None:
        self._straight = False
        self._emit(Instruction(None, operands, results, None, calls, **about))

    def _numbers(self, n: int) -> tuple[int, ...]:
        """Number the next values."""
        first = self._count
        self._count += n
        return (first,) if n == 1 else tuple(range(first, first + n))

    def arrive(self, step: State, cotangents: list[int | None]) -> list[int | None] | None:
        """Show totals to hooks, and note the final ones."""
        if not step.ends and self._shown.isdisjoint(step.slots):
            return cotangents
        if step.kernel is not None and step.kernel.within:
            self._check_within(step, cotangents)
        for i, slot in enumerate(step.slots):
            total = cotangents[i]
            if total is None:
                continue
            if slot in self._hooked:
                (cotangents[i],) = replaced = self._numbers(1)
                self._call("hooks", (total,), replaced, slot=slot)
                total = replaced[0]
            if step.ends and (sharding := step.places[i].kind.sharding) is not None:
                (cotangents[i],) = placed = self._numbers(1)
                kernel = placing(sharding).kernel_of((step.places[i].kind,))
                self._emit(Instruction(kernel, (total,), placed, step.where))
                total = placed[0]
            if step.ends or slot in self._final:
                self._outputs.append((slot, total))
        if step.ends:
            return None
        if not self._cut.isdisjoint(step.slots):
            cotangents = [None if slot in self._cut else ct for slot, ct in zip(step.slots, cotangents, strict=True)]
            if all(ct is None for ct in cotangents):
                return None
        return cotangents

    def _check_within(self, step: State, cotangents: list[int | None]) -> None:
        """Refuse to show the gradient of a result without what comes from others that were computed of it inside of the same op."""
        assert step.kernel is not None
        for i, others in step.kernel.within.items():
            if step.slots[i] in self._shown and any(cotangents[j] is not None for j in others):
                aval, name = step.places[i].kind.aval, step.kernel.name
                msg = (
                    f"the gradient of a result of {name} (shape {aval.shape}, dtype {aval.dtype}) is asked for, by retain_grad(), a hook, "
                    f"unchain() or as an input of gradients(), and the sweep comes from another result of the same call, which {name} has "
                    "computed of it where no sweep comes by; compute that one outside of the compiled function, or sweep inside of it"
                )
                raise LostGradientError(msg)

    def pull(
        self, step: State, cotangents: list[int | None], wanted: tuple[bool, ...], totals: dict[Any, int]
    ) -> Iterable[tuple[Any, int]]:
        """Write the VJP of an entry, between what op hooks see of it."""
        self._entries.add(step.depth)
        if step.hazard is not None and self._hazard is None:
            self._hazard = step
        kernel, inputs = step.kernel, step.inputs
        assert kernel is not None
        if self._observed:
            shown, hidden = cotangents[: kernel.visible], cotangents[kernel.visible :]
            seen = tuple([None if ct is None else self._numbers(1)[0] for ct in shown])
            self._call("before", tuple(shown), seen, entry=step)
            cotangents = [*seen, *hidden]
        results: Sequence[int]
        if isinstance(step.op, FunctionOp):
            targets = tuple([i for i, flag in enumerate(wanted) if flag])
            results = self._numbers(len(targets))
            self._call("function", tuple(cotangents), results, entry=step, wanted=wanted)
        else:
            vjp, operands = kernel.vjp_call(inputs, step.slots, cotangents, wanted, totals if self._fused else None)
            targets = vjp.targets
            if vjp.kernel is None:
                results = operands
            else:
                results = self._numbers(len(targets))
                self._emit(Instruction(vjp.kernel, tuple(operands), results, step.where, depth=step.depth))
        if self._observed:
            terms = dict(zip(targets, results, strict=True))
            results = self._numbers(len(targets))
            numbers = dict(zip(targets, results, strict=True))
            positions = range(len(inputs))
            read = (*seen, *map(terms.get, positions))
            self._call("after", read, tuple(map(numbers.get, positions)), entry=step)
        if len(targets) == 1:
            return ((inputs[targets[0]], results[0]),)
        return zip([inputs[i] for i in targets], results, strict=True)

    def add(self, step: State | None, total: int, term: int) -> int:
        """Write an addition."""
        results = self._numbers(1)
        where, depth = (None, None) if step is None else (step.where, step.depth)
        self._emit(Instruction(ADD, (total, term), results, where=where, depth=depth))
        return results[0]


def _recompute(state: State, wanted: set[int], kept: set[int]) -> tuple[list[Instruction], set[int]]:
    """Return what to compute again before the sweep, for it was not kept, and the slots that are still read from outside."""
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
            if not state.cut.isdisjoint(slots):  # what is computed again from a slot that was cut no longer leads to its past
                results = tuple([None if s in kept and s in state.cut else s for s in slots])
                outside.update(s for s in slots if s in wanted and s in kept and s in state.cut)
                if state.cut.issuperset(p.slot for p in step.places if p.kind.requires_grad):
                    kernel = kernel.stopped()
            again.append(Instruction(kernel, step.inputs, results, where=step.where, depth=step.depth))
    return again[::-1], outside
