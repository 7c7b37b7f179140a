"""Compilations of steps: one traced step with its program, and the bindings of it that were needed so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from tape import jaxapi
from tape.callables.reach import globals_that_hold
from tape.errors import TapeValueError
from tape.jitting.binding import Binding
from tape.jitting.retracing import describe_leaf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tape.callables.reach import Reach
    from tape.jitting.arguments import Call
    from tape.jitting.tracing import Step

__all__ = ["Compilation"]


class Compilation:
    """A traced step, compiled, with its bindings (latest first), and what tells it apart, for messages."""

    def __init__(self, step: Step, options: dict[str, Any], call: Call, found: Reach, said: dict[str, str]) -> None:
        self.step = step
        self.said = said
        self.given = len(call.variables)
        self.donated = _donated(step, call, options)
        self.paths = {i: [e.path for e in edges] for i in step.relevant if (edges := found.edges.get(id(step.sources[i])))}
        # What a call brings, or what is looked up anew, is not to live as long as the program does.
        lasting = {i for i in step.relevant if i >= self.given and i not in self.paths}
        step.sources = [v if i in lasting else None for i, v in enumerate(step.sources)]
        self.globals = [e for i in lasting for e in globals_that_hold(step.sources[i])]
        self.bindings: list[Binding] = []
        run = jaxapi.jaxpr_as_fun(step.jaxpr)

        def program(*arrays: Any) -> Any:
            return run(*arrays)

        program.__name__ = program.__qualname__ = step.name
        passed = {k: v for k, v in options.items() if k in {"keep_unused", "compiler_options"}}
        self.run = jax.jit(program, donate_argnums=self.donated, **passed)

    def bind(self, given: Sequence[Any], found: Reach) -> Binding | None:
        """Bind the step to the Variables of a call, if they are as they were when it was traced."""
        step = self.step
        variables: list[Any] = [*given, *step.sources[self.given :]]
        places = found.by_path()
        for i, paths in self.paths.items():
            there = [places.get(p) for p in paths]
            if any(v is None or v is not there[0] for v in there) or (i < self.given and there[0] is not given[i]):
                return None
            variables[i] = there[0]
        if any(e.holder.get(e.key) is not e.content for e in self.globals):
            return None
        holders = {h.path: h for h in found.holders}
        slots = [s._replace(holder=holders[s.holder.path]) for s in step.outcome.slots if s.holder.path in holders]
        matter = [variables[i] for i in step.relevant]
        if len({*map(id, matter), *map(id, given)}) < len({*step.relevant, *range(len(given))}) or len(slots) < len(step.outcome.slots):
            return None
        binding = Binding(step, self.run, variables, len(given), [*found.way(matter), *self.globals], slots, self.donated)
        return binding if binding.fits() else None


def _donated(step: Step, call: Call, options: dict[str, Any]) -> tuple[int, ...]:
    """Return the inputs of the program whose buffers its results may take."""
    found = [i for i, d in enumerate(call.array_flags) if d]
    variables = call.variables
    wanted = {i for i, v in enumerate(variables) if call.donates(v)}
    simple = {c.source for c in step.outcome.changes if c.value is not None}
    for i in wanted:
        if i not in simple:
            msg = (
                f"jit: {step.name} donates a Variable ({describe_leaf(variables[i])}) that it does not assign to, so that you could still reach "
                "its buffer; assign its new value in the function, or do not donate it"
            )
            raise TapeValueError(msg)
    grads: set[int] = set()
    if options.get("donate_state"):
        wanted |= simple
        grads = {c.source for c in step.outcome.changes if c.grad is not None}
    if (found or wanted or grads) and step.kernel is not None:
        msg = (
            f"jit: {step.name} returns a differentiable result, whose gradient needs its inputs, so they cannot be donated; call it in "
            "tape.no_grad(), call backward() inside, or donate nothing"
        )
        raise TapeValueError(msg)
    first = len(call.arrays)
    found += [first + n for n, i in enumerate(step.values) if i in wanted]
    first += len(step.values)
    found += [first + n for n, i in enumerate(step.grads) if i in grads]
    return tuple(found)
