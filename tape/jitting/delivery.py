"""Delivery: the results of a step are put where they belong: into Variables and gradients, into places, and into what it returns."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from tape import layout
from tape.graph.kinds import Place
from tape.graph.segment import Extra, extra_of
from tape.jitting.following import Setting
from tape.jitting.results import ARRAY, FOUND, GRADIENT, MADE, ONE, SAME, SHARED, Made, Tree
from tape.jitting.tracing import TracedStep
from tape.mirrored.detachment import detach
from tape.programs.program import look
from tape.recording.record import handle
from tape.sweeps.emission import share

_OF_ITS_CALLER = (np.ndarray, set, bytearray, deque)  # who may write to it; the next call returns it as it was


class Delivery(layout.Bound):
    """What a binding does with the results of its step."""

    sources: list[Any]
    setting: Setting

    def _aim(self, step: TracedStep) -> None:
        """Say to which Variables the results go."""
        outcome = step.outcome
        self._written: list[tuple[Any, Any, Place, int]] = []  # Variables, what they become, and which result they get
        self._joined: list[tuple[Any, int]] = []  # those that become one through which gradients flow
        self._renewed: list[tuple[Any, int | None, bool]] = []  # those that become others, and their gradients
        self._cleared: list[Extra] = []
        self._accumulated: list[tuple[Extra, int, bool]] = []
        for change in outcome.changes:
            v = self.sources[change.source]
            if change.value is not None:
                new = outcome.made[change.value]
                if new.live < 0 and new.of is None:
                    self._written.append((v, new.segment, new.place, new.result))
                else:
                    self._joined.append((v, change.value))
                if change.anew:
                    self._renewed.append((v, change.grad, change.assigned))
            if change.anew and change.value is not None:
                continue
            if change.grad is not None and change.grad < 0:
                self._cleared.append(extra_of(v))
            elif change.grad is not None:
                self._accumulated.append((extra_of(v), change.grad, change.assigned))

    def _plan_delivery(self, step: TracedStep) -> None:
        """Say what becomes of the results, once it is said where they go."""
        outcome = self._outcome = step.outcome
        wanted = [n for tree in outcome.trees for kind, n in tree.leaves if kind == MADE]
        wanted += [n for _, n in self._joined]
        wanted += [change.grad for change in outcome.changes if change.grad is not None and change.grad >= 0]
        for n in wanted:
            m = outcome.made[n]
            others = (m.grad, m.of[1] if m.of is not None and m.of[0] == MADE else -1)
            wanted += [other for other in others if other >= 0 and other not in wanted]
        self._needed = [(n, outcome.made[n]) for n in sorted({*wanted})]
        kept = bool(self.setting.slots or self.setting.orders)
        rare = any(m.name or m.grad >= 0 or m.retains or m.of for _, m in self._needed)
        self._rarely = bool(rare or self._accumulated or self._joined or self._renewed or outcome.shared or kept)
        # What it returns, where that is new Variables only, each once: on what segment, in which place, and which result.
        numbers = [n for kind, n in outcome.returned.leaves if kind == MADE]
        whole = len(numbers) == len(outcome.returned.leaves) == len({*numbers}) and not self._rarely
        self._fresh = [(m.segment, m.place, m.result) for m in map(outcome.made.__getitem__, numbers)] if whole else None
        self._structure = None if outcome.returned.structure is ONE else outcome.returned.structure
        # Whether the recorded step must run at once: something that it leaves behind cannot be pending.
        self._at_once = kept or bool(outcome.changes or any(m.segment is not None or m.place.kind.unrecorded for m in outcome.made))
        self._at_once = self._at_once or any(m.of is not None and m.live < 0 for m in outcome.made)
        self._at_once = self._at_once or any(kind == ARRAY for tree in outcome.trees for kind, _ in tree.leaves)

    def _delivered(self, results: Sequence[Any], recorded: Sequence[Any] | None) -> object:
        """Put the results of a run where they belong, and return what the step returns; ``recorded`` are the same as Variables."""
        others = [(n, self._leaf(m.of[0], m.of[1], results)) for n, m in self._needed if m.of and m.of[0] != MADE] if self._rarely else ()
        try:
            return self._put(results, recorded, others)
        except BaseException:  # Ctrl-C: all of it is there, or nothing
            self._put(results, recorded, others)
            raise

    def _put(self, results: Sequence[Any], recorded: Sequence[Any] | None, others: Sequence[tuple[int, Any]]) -> object:
        """Do what :meth:`_delivered` does; to do it again changes nothing."""
        self._write(results)
        for extra in self._cleared:
            extra.grad, extra.assigned = None, False
        if recorded is None and self._fresh is not None:
            leaves = [handle(segment, place, [results[n]]) for segment, place, n in self._fresh]
            return leaves[0] if self._structure is None else self._structure.unflatten(leaves)
        variables: list[Any] = [None] * len(self._outcome.made)
        shared = dict(others)
        for number, new in self._needed:
            if new.of is not None:
                variables[number] = own = share(shared[number] if number in shared else variables[new.of[1]])
                if own._segment is None:  # it has the value that the leaf had then
                    own._cell = [results[new.result]]
            elif recorded is None:
                variables[number] = handle(new.segment, new.place, [results[new.result]])
            else:
                variables[number] = recorded[new.result] if new.live >= 0 else self._passed(new, results[new.result])
        containers = self._settle(variables, results) if self._rarely else ()
        return self._built(self._outcome.returned, variables, results, containers)

    def _write(self, results: Sequence[Any]) -> None:
        """Give the Variables that the step wrote to their values."""
        for v, segment, place, n in self._written:
            v._segment = segment
            v._place = place
            v._cell = [results[n]]

    def _passed(self, new: Made, result: Any) -> object:
        """Return a Variable through which no gradient flows, of a step that was recorded: still pending where it can be."""
        if self._at_once:
            return handle(new.segment, new.place, [result])
        if new.place.kind.requires_grad:  # a leaf that the step made
            return handle(None, new.place, [look(detach(result))])
        return detach(result)

    # -- what is left behind --------------------------------------------------------------------------------------------

    def _settle(self, variables: Sequence[Any], results: Sequence[Any]) -> Sequence[object]:
        """Make the changes that are not mere values, and fill places; return the containers that stand in several."""
        for number, new in self._needed:
            if new.name is not None:
                variables[number].name = new.name
            if new.grad >= 0:
                extra = extra_of(variables[number])
                extra.grad, extra.assigned = variables[new.grad], new.assigned
            if new.retains:
                variables[number].retain_grad()
        for extra, number, assigned in self._accumulated:
            extra.grad, extra.assigned = variables[number], assigned
        for v, number in self._joined:
            new = variables[number]
            v._segment, v._place, v._cell = new._segment, new._place, new._cell
            if self._outcome.made[number].retains:
                v.retain_grad()
        for v, grad, assigned in self._renewed:
            own: Extra | None = None
            if v.name is not None or (grad is not None and grad >= 0):
                own = Extra()
                own.name = v.name
                if grad is not None and grad >= 0:
                    own.grad, own.assigned = variables[grad], assigned
            v._extra = own
        containers: list[object] = []
        for tree in self._outcome.shared:
            containers.append(self._built(tree, variables, results, containers))
        for slot in self.setting.slots:
            slot.put(self._built(slot.content, variables, results, containers))
        self.setting.orders.make()
        return containers

    def _built(self, tree: Tree, variables: Sequence[Any], results: Sequence[Any], containers: Sequence[object]) -> object:
        there = {MADE: variables, SHARED: containers}
        leaves = [there[kind][x] if kind in there else self._leaf(kind, x, results) for kind, x in tree.leaves]
        return leaves[0] if tree.structure is ONE else tree.structure.unflatten(leaves)

    def _leaf(self, kind: int, x: Any, results: Sequence[Any]) -> object:
        if kind == ARRAY:
            return results[x]
        if kind == SAME:
            return self.sources[x]
        if kind == GRADIENT:
            return self.sources[x]._extra.grad
        if kind == FOUND:
            return self.setting.found[x]
        return x.copy() if isinstance(x, _OF_ITS_CALLER) else x
