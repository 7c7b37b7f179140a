"""What goes from the forward run of an op to its VJP: costly values inside it are kept, what nobody reads is neither kept nor computed.

An entry that holds a jaxpr of its own (a loop, a branch, a checkpoint) is given further outputs, the values inside it that may be kept.
Its rule then finds them among the outputs.  A sweep is traced with every forward value at hand; what its rules did not look at is pruned.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tape import jaxapi
from tape.graph.wengert import Source, WengertList
from tape.ops.building import rebuilt
from tape.ops.linear import Equation, flatten
from tape.rules import table
from tape.rules.registry import Cost


@dataclass(frozen=True, slots=True, weakref_slot=True)  # JAX keeps traces by weak references to their parameters
class AppliedPolicy:
    """The policy of a checkpoint of which values inside are outputs besides; ``kept`` tells of which outputs the policy lets be kept."""

    policy: Callable[..., Any]
    kept: tuple[bool, ...]

    def __call__(self, *args: object, **params: object) -> object:
        """Answer as the policy."""
        return self.policy(*args, **params)


@dataclass(frozen=True, slots=True)
class Keep:
    """Says which values are kept: what is costly to compute again; inside a checkpoint, what its policy lets be kept.

    ``policies`` are those of the checkpoints around, as for ``jax.checkpoint`` (all of them must agree); ``looped`` tells whether this is
    the body of a loop.
    """

    policies: tuple[Callable[..., Any], ...] = ()
    looped: bool = False

    def __call__(self, entry: Equation) -> bool:
        """Tell whether the results of ``entry`` are kept."""
        if self.policies:
            avals = [a.aval for a in entry.eqn.invars]
            return all(jaxapi.saveable(policy(entry.primitive, *avals, **entry.eqn.params)) for policy in self.policies)
        cost = table.cost_of(entry.primitive)
        return cost is Cost.HIGH or (self.looped and cost is Cost.LOOPED)


def augment(listed: WengertList[Equation], keep: Keep) -> list[int]:
    """Give the entries that hold a jaxpr the values inside them as further outputs; return the slots of all values that may be kept."""
    slots: list[int] = []
    for entry in listed.entries:
        rule = table.lookup(entry.primitive)
        if keep(entry):
            slots.extend(entry.slots)
        if rule is not None and rule.augment is not None:
            entry.params, avals = rule.augment(entry.params, keep)
            further = range(len(listed.avals), len(listed.avals) + len(avals))
            listed.avals.extend(avals)
            entry.slots = (*entry.slots, *further)
            slots.extend(further)
    return slots


def inside(closed: jaxapi.ClosedJaxpr, keep: Keep) -> tuple[WengertList[Equation], list[int]]:
    """Flatten and augment a jaxpr; return with it the slots that may be kept."""
    listed = flatten(closed)
    return listed, list(dict.fromkeys(augment(listed, keep)))


def pruned(closed: jaxapi.ClosedJaxpr, used: Sequence[bool], *, effects: bool = False) -> tuple[WengertList[Equation], list[bool]]:
    """Return a jaxpr as a list without the outputs that are not ``used`` and what only they need, inside loops and branches too.

    Beside it stands which inputs are still read.  Without ``effects``, entries go whatever they do besides: in a sweep, a forward value is
    printed (say) for the second time.
    """
    listed = flatten(closed, wholly=False)
    listed.outputs = tuple(itertools.compress(listed.outputs, used))
    read: set[Source] = set(listed.outputs)
    kept = []
    for entry in reversed(listed.entries):
        bound = effects and bool(entry.eqn.effects)
        if read.isdisjoint(entry.slots) and not bound:
            continue
        rule = table.lookup(entry.primitive)
        if rule is not None and rule.prune is not None and not bound and not read.issuperset(entry.slots):
            entry.params, takes, gives = rule.prune(entry.params, [slot in read for slot in entry.slots])
            entry.inputs, entry.slots = tuple(itertools.compress(entry.inputs, takes)), tuple(itertools.compress(entry.slots, gives))
        kept.append(entry)
        read.update(entry.inputs)
    listed.entries = kept[::-1]
    return listed, [i in read for i in range(listed.n_inputs)]


def prune(closed: jaxapi.ClosedJaxpr) -> tuple[jaxapi.ClosedJaxpr, tuple[int, ...]]:
    """Drop what no output needs, inputs too; return the smaller jaxpr, and the positions of the inputs that it kept."""
    listed, read = pruned(closed, [True] * len(closed.jaxpr.outvars))
    sources = tuple(i for i, flag in enumerate(read) if flag)
    return rebuilt(listed, listed.outputs, sources), sources
