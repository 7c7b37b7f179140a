"""The reverse sweep: from any number of roots back to the leaves, last recorded first, each entry once.

The sweep goes segment by segment, newest first (a heap, no recursion), plans each structure once (:mod:`tape.sweeps.plan`) and writes it
onto the tape (:mod:`tape.sweeps.emission`).  Everything is checked, and every gradient known, before any ``.grad`` changes.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tape import layout
from tape.configuration import configuration, sixty_four_bits
from tape.errors import UnrecordedGradientError
from tape.graph.kinds import why_unrecorded
from tape.graph.scope import LOCAL, in_mode
from tape.graph.segment import GONE, Handle, LeafNode, Segment, SegmentClosedError, WayBack, end_of, hooks_at, made_at
from tape.graph.trie import RECORD, SWEEP, State
from tape.hooking.handles import gathering
from tape.hooking.observing import Observer
from tape.jaxapi import X64
from tape.ops.kernel import Op
from tape.programs.failures import check_kept, check_slots, named
from tape.programs.handing import hand_on
from tape.programs.program import run_pending
from tape.programs.retention import trimmed
from tape.recording import record, staging
from tape.sweeps import emission
from tape.sweeps.parting import Parting
from tape.sweeps.plan import ADD, Plan, about_plans, active_slots, behind, plan_sweep

_SEED = Op("seed", lambda x: x)
_NONE: frozenset[int] = frozenset()

Target = LeafNode | tuple[Segment, int]


def target_of(variable: Handle) -> Target:
    """Return what identifies a Variable in the graph: its node for a leaf, its segment and slot otherwise."""
    trace = LOCAL.scope.trace
    if trace.capturing and trace.releases:
        variable = trace.read(variable)  # what is computed outside is a leaf there
    segment, slot, extra = variable._segment, variable._place.slot, variable._extra
    if segment is None:
        return record.node_of(variable)
    end = resolved((segment, slot))
    if extra is not None and extra.hooks:  # which the segment has no more, should it have been released
        if isinstance(end, LeafNode):
            end.hooks = hooks_at(variable)
        else:
            segment.hooks[slot] = hooks_at(variable)
    return end


def past(targets: Iterable[Target]) -> set[Target]:
    """Return the leaves that something was computed of, and what is between."""
    way = WayBack(targets)
    passed: set[Target] = set()
    for segment, slots in way:
        ends, steps, _ = behind(segment.state, slots)
        way.follow(segment, ends)
        passed.update([(segment, slot) for slot in (*slots, *[s for step in steps for s in step.inputs])])
    return {*way.leaves, *passed}


def hazardous(segment: Segment, step: State) -> str:
    """Say what an entry uses that has no derivative on the tape, and why it has none."""
    place = segment.state.table[step.inputs[step.hazard]]  # type: ignore[index]
    aval = place.kind.aval
    why = why_unrecorded(place.kind.unrecorded, made_at(place, segment))
    return f"{named(step)} uses a value of shape {aval.shape}, dtype {aval.dtype} that has no derivative on the tape: {why}"


def resolved(target: Target) -> Target:
    """Return the end that sweeps find where a target was cut from its past, and any other target as it is."""
    if isinstance(target, LeafNode):
        return target
    end = end_of(*target)
    return target if end is None else end


class Sweep:
    """One reverse sweep.

    Args:
        targets: what a gradient is asked for; None for all leaves that require grad.
        ignored: what nothing is propagated to or through.
        create_graph: record the sweep, so that its results can be differentiated.
        batch: cotangents have a further first axis of this length: so many sweeps as one.

    After :meth:`run`, ``gradients`` maps each target (or leaf) reached to its gradient, and :meth:`releasing` frees what was swept.

    """

    def __init__(self, targets: Iterable[Target] | None, ignored: Iterable[Target], create_graph: bool, batch: int | None = None) -> None:
        self.gradients: dict[Any, Any] = {}  # by targets
        self._create_graph = create_graph
        self.observer: Observer | None = LOCAL.scope.observer if LOCAL.scope.observer is not None and LOCAL.scope.observer.sweeps else None
        self._batch = batch
        self._targets = None if targets is None else set(targets)
        self._ignored = set(ignored)
        self._cotangents: dict[Segment, dict[int, Any]] = {}
        self._heap: list[tuple[int, Segment]] = []
        self._swept: list[tuple[Segment, Plan]] = []
        self._wanted: dict[Segment, frozenset[int]] = {}
        self._needed: dict[Segment, frozenset[int]] = {}
        self._foreseen: dict[Segment, tuple[tuple[int, ...], Plan, list[Any]]] = {}
        self._parting = Parting()
        self._parted: tuple[Plan, Segment] | None = None  # before which it was asked last
        self._inner: tuple[Segment | None, int] | None = None  # while users see nothing: what was pending, and the first slot written there
        self._common = targets is None and not self._ignored and batch is None and self.observer is None

    def run(
        self, roots: Sequence[Any], seeds: Sequence[Any], settings: contextlib.ExitStack | None = None, *, leaf_hooks: bool = True
    ) -> None:
        """Sweep back from Variables with a seed for each (None: ones); the JAX settings that this needs are entered into ``settings``.

        A sweep that is a part of another one calls no hooks of leaves.
        """
        with contextlib.ExitStack() as stack:
            in_mode(RECORD if self._create_graph else SWEEP, self._run, roots, seeds, settings or stack, leaf_hooks)

    def _run(self, roots: Sequence[Any], seeds: Sequence[Any], settings: contextlib.ExitStack, leaf_hooks: bool) -> None:
        pending = LOCAL.segment()
        if not self._create_graph and self.observer is None and LOCAL.scope.notes is None:
            self._inner = pending, 0 if pending is None else len(pending.state.table)
        with gathering({}, last=leaf_hooks):
            self.arrive_at(roots, seeds)
            self._sweep_known()
            for segment, cotangents in self._segments(settings):
                self._sweep_segment(segment, cotangents)
                self._sweep_known()
            self._shows()
            if leaf_hooks:
                for target, gradient in self.gradients.items():
                    if isinstance(target, LeafNode) and target.hooks:
                        self.gradients[target] = emission.run_hooks(target.hooks, gradient)

    def _segments(self, settings: contextlib.ExitStack) -> Iterator[tuple[Segment, dict[int, Any]]]:
        """Yield the segments that something arrived at, newest first, with that."""
        if self._targets is not None or self._ignored:
            self._find_paths(self._cotangents)
        while self._heap:
            _, segment = heapq.heappop(self._heap)
            if segment.configuration[0] and not X64.value:  # cotangents have the dtypes of their primals
                settings.enter_context(sixty_four_bits())
            yield segment, self._cotangents.pop(segment)

    def arrive_at(self, roots: Sequence[Any], seeds: Sequence[Any]) -> None:
        """Begin with a seed for each root; None is ones."""
        if LOCAL.scope.notes is not None:
            LOCAL.scope.notes.begin_sweep()
        for root, seed in zip(roots, seeds, strict=True):
            self.arrive(target_of(root), emission.ones_like(root._place.kind.aval) if seed is None else self._seed(seed))

    def foresee(self, roots: Sequence[Any]) -> list[tuple[Segment | None, list[Target]]]:
        """Check a whole sweep without writing it, and take what it will read; segments that are pending run.

        Return the segments in the order in which the sweep comes to them (first None: the roots themselves), each with the targets (or
        leaves) to which none of the later ones contributes any more.
        """
        for root in roots:
            if root._segment is not None and root._segment.pending:
                run_pending(root._segment, "stream")
            self.arrive(target_of(root), None)
        order: list[Segment | None] = [None]
        last = dict.fromkeys(self.gradients, order[0])
        with contextlib.ExitStack() as settings:
            for segment, slots in self._segments(settings):
                order.append(segment)
                ahead = tuple(sorted(slots))
                plan, sources = self._sources(segment, ahead)
                self._foreseen[segment] = (ahead, plan, sources)
                self.gradients = {}
                self._pass_on(segment, segment.state, [(slot, None) for slot, _ in plan.outputs])
                last.update(dict.fromkeys(self.gradients, segment))
        self.gradients = {}
        final: dict[Segment | None, list[Target]] = {segment: [] for segment in order}
        for target, at in last.items():
            if isinstance(target, LeafNode) or (self._targets is not None and target in self._targets):
                final[at].append(target)
        return list(final.items())

    def _seed(self, seed: Handle) -> Any:
        """Return a seed as this sweep uses it: without ``create_graph`` its own derivative is not recorded."""
        if seed._place.kind.requires_grad and not self._create_graph:
            return record.record(_SEED, (seed,))
        return emission.share(seed)

    def begin(self, segment: Segment) -> tuple[Plan, dict[int, Any]] | None:
        """Return the plan of a segment that was foreseen, and the values that it reads, by number; None where no cotangent came to it."""
        cotangents = self._cotangents.pop(segment, None)
        ahead, plan, sources = self._foreseen.pop(segment)
        if cotangents is None:
            return None
        slots = tuple(sorted(cotangents))
        if slots != ahead:  # the Python backward of a newer one left some out
            plan, sources = self._sources(segment, slots)
        self._swept.append((segment, plan))
        values = dict(zip(plan.externals, sources, strict=True))
        values.update((plan.n_forward + i, cotangents[slot]) for i, slot in enumerate(slots))
        return plan, values

    def _sources(self, segment: Segment, slots: tuple[int, ...]) -> tuple[Plan, list[Any]]:
        """Return the plan for a segment that has run, and the forward values that it reads, packed if they were."""
        while True:
            plan = self.plan(segment, slots)
            with contextlib.suppress(SegmentClosedError):  # another thread swept it meanwhile
                return plan, emission.held(plan, segment, segment.state)

    def only_plan(self, segment: Segment) -> Plan | None:
        """Return the plan, if nothing but ``segment`` was swept."""
        swept = [(one, plan) for one, plan in self._swept if plan.instructions or one is segment]  # a target elsewhere is only come to
        return swept[0][1] if len(swept) == 1 and swept[0][0] is segment else None

    @property
    def hooked(self) -> bool:
        """Whether it called hooks on Variables (those of leaves excepted), or swept a step that does."""
        steps = [step for _, plan in self._swept for step in plan.instructions]
        return any(step.calls == "hooks" or getattr(step.op, "hooked", False) for step in steps)

    @contextlib.contextmanager
    def releasing(self) -> Iterator[None]:
        """Mark what was swept as released, and free what was kept for it, unless the body (running what is pending) fails."""
        if not LOCAL.scope.trace.releases:
            yield
            return
        before = [(segment, segment.released) for segment, _ in self._swept]
        try:
            for segment, plan in self._swept:
                segment.released = plan.entries if not segment.released else segment.released | plan.entries
            yield
        except BaseException:
            for segment, released in reversed(before):
                if segment.leaves:  # what it kept is still there
                    segment.released = released
            raise
        for segment, _ in self._swept:
            trimmed(segment)

    def arrive(self, target: Target, cotangent: Handle | None) -> None:
        """Add a cotangent to a leaf's gradient, or to what a segment is to be swept with."""
        target = resolved(target)
        if self._ignored and target in self._ignored:
            return
        if isinstance(target, LeafNode):
            if self._targets is None or target in self._targets:
                self.gradients[target] = emission.add(self.gradients.get(target), cotangent)
            return
        segment, slot = target
        waiting = self._cotangents.get(segment)
        if waiting is None:
            waiting = self._cotangents[segment] = {}
            heapq.heappush(self._heap, (-segment.serial, segment))
        waiting[slot] = emission.add(waiting.get(slot), cotangent)

    def _sweep_segment(self, segment: Segment, cotangents: dict[int, Any]) -> None:
        added = self._add_in_turn(segment, cotangents) if segment.run is not None else ()
        slots = tuple(sorted(cotangents))
        while True:
            if segment.run is None:
                if segment.packing is not None:
                    run_pending(segment, "saved values")  # forward and reverse as one program would keep nothing in between
                elif not staging.recording(segment):
                    run_pending(segment, "swept elsewhere")
            plan, state = self.plan(segment, slots), segment.state
            if not plan.straight or segment.packing is not None or segment.retained or segment.hooks:
                self._shows(cotangents.values())
            if not plan.pending:
                self.part(plan, segment)
            try:
                outputs = emission.emit(plan, segment, state, [cotangents[s] for s in slots], self._batch, self.observer)
                break
            except SegmentClosedError:  # nothing was written
                continue
        self._swept.append((segment, plan))
        self._pass_on(segment, state, outputs.items())
        if LOCAL.scope.notes is not None:
            LOCAL.scope.notes.grew()
        for totals, key, total in added:
            if totals[key] is None:  # nothing was added, for nothing flows there
                totals[key] = total

    def _sweep_known(self) -> None:
        """Sweep those that come next as long as each is swept as one was before, in the common case."""
        scope = LOCAL.scope
        if self._common and self._heap and scope.notes is None and not scope.eager:
            totals = self._heap, self._cotangents, self.gradients, self._swept
            swept_on(*totals, self.part, self.arrive, configuration(), about_plans(), ADD, heapq.heappop, heapq.heappush)

    def _add_in_turn(self, segment: Segment, cotangents: dict[int, Any]) -> Sequence[tuple[dict[Any, Any], Any, Any]]:
        """Have an entry that ran alone, and reads a value twice, add its two terms to the total that there is, one after the other.

        So do longer segments, and JAX.  The sum of the two first would be the same but for rounding, and XLA fuses it worse.  The totals
        that were added to ``cotangents`` are returned: where each was, under which key, and what it was.
        """
        inputs = segment.state.inputs
        if segment.state.depth > len(segment.leaves) + 1 or len(set(inputs)) == len(inputs):
            return ()
        added: list[tuple[dict[Any, Any], Any, Any]] = []
        for slot in sorted(set(inputs).intersection(segment.origins).difference(cotangents)):
            target = resolved(segment.origins[slot])
            totals: dict[Any, Any] = self.gradients if isinstance(target, LeafNode) else self._cotangents.get(target[0], {})
            key = target if isinstance(target, LeafNode) else target[1]
            if totals.get(key) is not None:
                cotangents[slot] = totals[key]
                added.append((totals, key, totals[key]))
                totals[key] = None  # until it comes back, as the new total
        return added

    def part(self, plan: Plan, segment: Segment) -> None:
        """Run what is written before a segment is swept by ``plan``, if a program ends there."""
        if (plan, segment) == self._parted:  # the sweep of that begins again
            return
        self._parted = plan, segment
        ends = segment.trace is None and self._parting.ends(plan, max(len(self._heap), segment.generation))
        if ends and (pending := LOCAL.segment()) is not None:
            first, slot = self._inner or (pending, None)
            run_pending(pending, "length", slot if pending is first else 0)

    def _shows(self, cotangents: Iterable[Any] = ()) -> None:
        """Have JAX's arrays in what there is so far, and in some cotangents: users may see them, and all that follows."""
        if self._inner is not None:
            self._inner = None
            hand_on([*cotangents, *[ct for known in (self.gradients, *self._cotangents.values()) for ct in known.values()]])

    def _pass_on(self, segment: Segment, state: State, outputs: Iterable[tuple[int, Any]]) -> None:
        """Hand on the cotangents at which the sweep of a segment ended."""
        for slot, gradient in outputs:
            origin = segment.origins.get(slot)
            if origin is not None:
                self.arrive(origin, gradient)
            elif slot not in emission.leaf_indices(state) and slot not in state.cut:  # what was cut and has no origin, nobody asks for
                self.gradients[(segment, slot)] = gradient

    def plan(self, segment: Segment, slots: tuple[int, ...]) -> Plan:
        """Return the plan to sweep ``segment`` where ``slots`` (ascending) have cotangents, unless it cannot be swept."""
        wanted = self._wanted.get(segment, frozenset()) if self._wanted else None
        watched = frozenset([slot for slot, refs in segment.retained.items() if refs]) if segment.retained else _NONE
        if self._targets is not None:
            watched |= _slots_in(segment, self._targets)
        hooked = frozenset([slot for slot, hooks in segment.hooks.items() if hooks]) if segment.hooks else _NONE
        kept = None if segment.run is None else segment.run.there
        observed = self.observer is not None
        plan = plan_sweep(segment.state, slots, wanted, self._blocked(segment), watched, hooked, kept, observed)
        self._check(segment, plan)
        return plan

    def _blocked(self, segment: Segment) -> frozenset[int]:
        if not self._ignored:
            return _NONE
        return frozenset([slot for slot, origin in segment.origins.items() if origin in self._ignored]) | _slots_in(segment, self._ignored)

    def _check(self, segment: Segment, plan: Plan) -> None:
        """Refuse to sweep what failed or was released, and what would take an unrecorded gradient for a constant."""
        check_slots(segment, plan.seeds)
        check_kept(segment, plan.entries)
        if plan.hazard is not None:
            raise UnrecordedGradientError(hazardous(segment, plan.hazard))

    def _find_paths(self, begin: dict[Segment, dict[int, Any]]) -> None:
        """Find which slots of which segments lead to a target (oldest first), not through what is ignored."""
        oldest = min(map(_serial, self._targets or ()), default=-1)  # what came before leads to none of them
        way = WayBack([(segment, slot) for segment, slots in begin.items() for slot in slots])
        reachable: list[Segment] = []
        for segment, slots in way:
            reachable.append(segment)
            ends = behind(segment.state, slots).ends
            way.follow(segment, [end for end in ends if _serial(segment.origins.get(end)) >= oldest])
        for segment in reversed(reachable):
            leading = [slot for slot, origin in segment.origins.items() if self._leads(origin)]
            self._wanted[segment] = _slots_in(segment, self._targets or ()).union(leading)
            self._needed[segment] = active_slots(segment.state, self._wanted[segment], self._blocked(segment))

    def _leads(self, origin: Target) -> bool:
        origin = resolved(origin)
        if origin in self._ignored:
            return False
        if isinstance(origin, LeafNode):
            return self._targets is None or origin in self._targets or origin is GONE
        return origin[1] in self._needed.get(origin[0], ()) or (self._targets is not None and origin in self._targets)


swept_on = layout.chosen("swept_on")  # what :meth:`Sweep._sweep_segment` does with one segment after the other


def _serial(target: Target | None) -> int:
    return target[0].serial if isinstance(target, tuple) else -1


def _slots_in(segment: Segment, targets: Iterable[Target]) -> frozenset[int]:
    return frozenset([target[1] for target in targets if not isinstance(target, LeafNode) and target[0] is segment])
