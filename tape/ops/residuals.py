"""Residuals inside an op: the values that its forward run hands to its VJP, so that they are computed once.

An entry that holds a jaxpr of its own (a loop, a branch, a checkpoint) is given further outputs, the values inside it that may be kept.  Its
rule then finds them among the outputs; what no rule reads is pruned.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jax import lax

from tape import jaxapi
from tape.ops import building
from tape.ops.forward import ForwardValues
from tape.ops.linear import flatten
from tape.rules import registry
from tape.rules.registry import Cost

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tape.graph.wengert import WengertList
    from tape.ops.linear import Equation

__all__ = ["AppliedPolicy", "Keep", "augment", "exposing", "inside"]


@dataclass(frozen=True, slots=True, weakref_slot=True)  # JAX keeps traces by weak references to their parameters
class AppliedPolicy:
    """The policy of a checkpoint of which values inside are outputs besides; ``kept`` tells of which outputs the policy lets be kept."""

    policy: Callable[..., Any]
    kept: tuple[bool, ...]

    def __call__(self, *args: Any, **params: Any) -> Any:
        """Answer as the policy."""
        return self.policy(*args, **params)


@dataclass(frozen=True, slots=True)
class Keep:
    """Says which values are kept: what is costly to compute again; inside a checkpoint, what its policy lets be kept.

    ``policies`` are those of the checkpoints around, as for ``jax.checkpoint`` (all of them must agree); ``looped`` tells whether this is the
    body of a loop.
    """

    policies: tuple[Callable[..., Any], ...] = ()
    looped: bool = False

    def __call__(self, entry: Equation) -> bool:
        """Tell whether the results of ``entry`` are kept."""
        if self.policies:
            avals = [a.aval for a in entry.eqn.invars]
            return all(jaxapi.saveable(policy(entry.primitive, *avals, **entry.eqn.params)) for policy in self.policies)
        cost = registry.cost_of(entry.primitive)
        return cost is Cost.HIGH or (self.looped and cost is Cost.LOOPED)


def augment(listed: WengertList[Equation], keep: Keep) -> list[int]:
    """Give the entries that hold a jaxpr the values inside them as further outputs; return the slots of all values that may be kept."""
    slots: list[int] = []
    for entry in listed.entries:
        rule = registry.lookup(entry.primitive)
        if keep(entry):
            slots.extend(entry.slots)
        if rule is not None and rule.augment is not None:
            entry.params, avals = rule.augment(entry.params, keep)
            further = range(len(listed.avals), len(listed.avals) + len(avals))
            listed.avals.extend(avals)
            entry.slots = (*entry.slots, *further)
            slots.extend(further)
    return slots


def copied(into: building.JaxprBuilder, listed: WengertList[Equation]) -> ForwardValues[Any]:
    """Return the forward values of a list as variables of the jaxpr that is being built: its inputs, and copies of the entries that are read."""

    def run(entry: Equation, inputs: list[Any]) -> list[Any]:
        return into.equation(entry.eqn, entry.params, inputs, [listed.avals[s] for s in entry.slots])

    forward: ForwardValues[Any] = ForwardValues(listed, run, lambda constant: into.constant(constant.value, constant.aval))
    forward.values.update((slot, into.input(listed.avals[slot])) for slot in range(listed.n_inputs))
    return forward


def exposing(listed: WengertList[Equation], further: Sequence[Any]) -> jaxapi.ClosedJaxpr:
    """Make a jaxpr of entries, with further outputs: slots, or avals for zeros."""
    into = building.JaxprBuilder()
    forward = copied(into, listed)
    for entry in listed.entries:
        forward.run(entry)
    outputs = [forward.read(s) for s in listed.outputs]
    zeros = {
        s: into.inline(jaxapi.trace(functools.partial(lax.full, s.shape, 0, s.dtype))[0], ())[0] for s in further if not isinstance(s, int)
    }
    return into.closed([*outputs, *(forward.read(s) if isinstance(s, int) else zeros[s] for s in further)])


def inside(closed: jaxapi.ClosedJaxpr, keep: Keep) -> tuple[WengertList[Equation], list[int]]:
    """Flatten and augment a jaxpr; return with it the slots that may be kept."""
    listed = flatten(closed)
    return listed, list(dict.fromkeys(augment(listed, keep)))
