"""Steps that are not recorded, where tapes are open: these see them as entries, and what they leave behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from tape.graph.scope import LOCAL, within
from tape.graph.segment import Handle
from tape.graph.trees import variables_in
from tape.graph.trie import CONSTANT
from tape.ops.kernel import Kernel
from tape.programs.program import look
from tape.recording import record


def noted(binding: Any, arrays: Sequence[Any], given: Sequence[Handle]) -> object:
    """Run a step through which no gradients flow as an entry, for tapes that are open, and tell these what it leaves."""
    step, notes = binding.step, LOCAL.scope.notes
    if step.entry is None:
        step.entry = Kernel(step.name, step.jaxpr, jax.tree.structure([0] * len(step.jaxpr.out_avals)))
    sources = [*[given[i] for i in binding._read], *binding._values, *[e.grad for e in binding._grads]]
    with within(mode=CONSTANT, observer=None):  # op hooks saw what is in it
        recorded = record.record(step.entry, [*map(record.operand, arrays), *sources])
    results = [look(v) for v in recorded]
    returned = binding._deliver(results)
    places = [s.holder.place.at_key(s.key) for s in binding.setting.slots]
    left = [*variables_in((returned, places)), *[v for v, *_ in binding._written], *[v for v, _ in binding._joined]]
    left += [extra.grad for extra, *_ in binding._accumulated]
    made = {id(x): v for x, v in zip(results, recorded, strict=True)}
    for v in left:
        if v._segment is None and id(v._cell[0]) in made:
            notes.detached(made[id(v._cell[0])], v)
    return returned
