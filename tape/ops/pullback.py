"""The reverse sweep of one op: its jaxpr, backwards, with the rule table.

This is the only place that applies rules.  It knows which inputs need a cotangent, evaluates only the forward values that rules ask
for, checks what rules return, and falls back to JAX's derivative for primitives without a rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from tape import jaxapi
from tape.errors import GradientDtypeError, GradientShapeError, LeakedTracerError, RuleError
from tape.graph.kinds import differentiable
from tape.graph.wengert import accumulate, active, backwards, sweep
from tape.ops import residuals
from tape.ops.forward import ForwardValues
from tape.ops.linear import Equation, flatten
from tape.rules import parameters, registry
from tape.rules.cotangents import for_jax, spread

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tape.graph.wengert import Source, WengertList

__all__ = ["activity", "check_own", "depends", "differentiable", "pullback", "receives"]


_NAME, _REMAT = jaxapi.primitive("name"), jaxapi.primitive("remat")


class _Evaluation:
    """Emitter of a sweep that applies rules to values, with those of the inputs (and of outputs, where they are known) at hand."""

    def __init__(self, listed: WengertList[Equation], inputs: Sequence[Any], outputs: Sequence[Any] | None) -> None:
        self.avals = listed.avals
        self.forward: ForwardValues[Any] = ForwardValues(listed, self._run, lambda constant: constant.value)
        known = self.forward.values
        known.update(enumerate(inputs))
        for source, value in zip(listed.outputs, outputs or (), strict=outputs is not None):
            named: Source | None = source
            while value is not None and isinstance(named, int):
                known[named] = value
                entry = self.forward.makers.get(named)  # what is named is known by its name
                named = entry.inputs[0] if entry is not None and entry.primitive is _NAME else None

    def _run(self, entry: Equation, inputs: list[Any]) -> Sequence[Any]:
        """Run one entry; of a checkpoint, values inside it that are known are not computed again."""
        known = [self.forward.values.get(slot) for slot in entry.slots]
        if entry.primitive is not _REMAT or all(value is None for value in known):
            return parameters.bind(entry.primitive, entry.params, inputs)
        listed = flatten(jaxapi.closed(entry.params["jaxpr"]))
        return list(map(_Evaluation(listed, inputs, known).forward.read, listed.outputs))

    def arrive(self, _: Equation, cotangents: list[Any]) -> list[Any]:
        return cotangents

    def pull(self, entry: Equation, cotangents: list[Any], wanted: tuple[bool, ...], _: dict[int, Any]) -> Iterable[tuple[Any, Any]]:
        grads = _apply(entry, cotangents, wanted, self.forward, self.avals)
        return [(source, grad) for source, grad in zip(entry.inputs, grads, strict=True) if grad is not None]

    def add(self, _: Equation | None, total: Any, term: Any) -> Any:
        return lax.add(total, term)


def pullback(
    closed: jaxapi.ClosedJaxpr,
    inputs: Sequence[Any],
    cotangents: Sequence[Any],
    wanted: Sequence[bool] | None = None,
    outputs: Sequence[Any] | None = None,
) -> tuple[Any, ...]:
    """Cotangents of a jaxpr's inputs for given cotangents of its outputs.

    Args:
        closed: the jaxpr.
        inputs: its inputs (arrays or tracers).
        cotangents: one per output, None for zero.
        wanted: for which inputs a cotangent is computed; all inexact ones where None.
        outputs: the outputs where they are known already, so that rules can use them instead of computing them again.

    Returns:
        One cotangent per input, of its shape and dtype; None where it is not wanted or no gradient flows.

    Raises:
        RuleError: a rule returned the wrong number of cotangents, or (subclasses) one of the wrong shape or dtype.

    """
    listed = flatten(closed)
    residuals.augment(listed, residuals.Keep())
    evaluation = _Evaluation(listed, inputs, outputs)
    active = activity(listed, wanted)
    totals: dict[Any, Any] = {}
    accumulate(totals, [(s, ct) for s, ct in zip(listed.outputs, cotangents, strict=True) if ct is not None and s in active], evaluation)
    sweep(listed.entries, totals, active, evaluation)
    return tuple(totals.get(slot) for slot in range(listed.n_inputs))


def check_own(name: str, vjp: jaxapi.ClosedJaxpr) -> None:
    """Check that the VJP of an op that belongs to no JAX transformation holds no value of one: it would be one that is over."""
    found = next((c for c in vjp.consts if isinstance(c, jaxapi.Tracer)), None)
    if found is not None and not jaxapi.in_trace():
        aval = jax.typeof(found)
        msg = (
            f"{name}: a jax.custom_jvp function in it has an array (shape {aval.shape}, dtype {aval.dtype}) for an argument in its nondiff_argnums, "
            "and so has no derivative in a traced function, here as in jax.jit; let the function that you trace close over that argument's value"
        )
        raise LeakedTracerError(msg)


def activity(listed: WengertList[Equation], wanted: Sequence[bool] | None) -> set[int]:
    """Return the slots from which a gradient can flow to a wanted input."""
    avals = listed.avals

    def gives(entry: Equation) -> Iterable[int]:
        rule = registry.lookup(entry.primitive)
        return () if rule is not None and rule.vjp is registry.no_gradient else [s for s in entry.slots if differentiable(avals[s])]

    return active(listed.entries, [s for s in range(listed.n_inputs) if differentiable(avals[s]) and (wanted is None or wanted[s])], gives)


def depends(closed: jaxapi.ClosedJaxpr, wanted: Sequence[bool]) -> list[bool]:
    """Tell for every output of a jaxpr whether a gradient can flow from it to one of the wanted inputs."""
    listed = flatten(closed)
    flowing = activity(listed, wanted)
    return [source in flowing for source in listed.outputs]


def receives(closed: jaxapi.ClosedJaxpr, present: Sequence[bool], wanted: Sequence[bool]) -> list[bool]:
    """Tell for every wanted input of a jaxpr whether it can get a cotangent from one of the outputs that have one."""
    listed = flatten(closed)
    flowing = activity(listed, wanted)
    reached = flowing.intersection(s for s, flag in zip(listed.outputs, present, strict=True) if flag and isinstance(s, int))
    for entry in backwards(listed.entries, reached):
        reached.update(flowing.intersection(s for s in entry.inputs if isinstance(s, int)))
    return [slot in reached for slot in range(listed.n_inputs)]


def _apply(entry: Equation, cts: list[Any], needed: Sequence[bool], forward: ForwardValues[Any], avals: list[Any]) -> Sequence[Any]:
    """Apply the rule of one entry and check what it returns."""
    ins = [forward.read(s) for s in entry.inputs]
    rule = registry.lookup(entry.primitive)
    if rule is None:
        return _jax_rule(entry, cts, needed, ins, avals)
    params = {**entry.params, "wanted": tuple(needed)} if rule.selective else entry.params
    if entry.primitive.multiple_results:
        outs = tuple(forward.read(s) for s in entry.slots)
        grads = rule.vjp(tuple(cts), outs, *ins, **params)
    else:
        grads = rule.vjp(cts[0], forward.read(entry.slots[0]), *ins, **params)
    if not isinstance(grads, (tuple, list)):
        grads = (grads,)
    if len(grads) != len(ins):
        msg = f"VJP rule of {entry.primitive}: returned {len(grads)} cotangents for {len(ins)} inputs; return one per input, None where no gradient flows"
        raise RuleError(msg)
    return [_checked(entry, i, grad, avals, rule) if need else None for i, (grad, need) in enumerate(zip(grads, needed, strict=True))]


def _checked(entry: Equation, position: int, grad: Any, avals: list[Any], rule: registry.Rule) -> Any:
    """Return the cotangent of one input if it has its input's shape and dtype."""
    if callable(grad):
        grad = grad()
    if grad is None:
        return None
    slot = entry.inputs[position]
    assert isinstance(slot, int)
    aval = avals[slot]
    if rule.elementwise and jnp.shape(grad) != aval.shape:
        grad = _sum_to(grad, aval.shape)
    if jnp.shape(grad) != aval.shape:
        msg = f"VJP rule of {entry.primitive}: the cotangent of input {position} has shape {jnp.shape(grad)}, but the input has shape {aval.shape}; sum over what was broadcast"
        raise GradientShapeError(msg)
    if jnp.result_type(grad) != aval.dtype:
        msg = f"VJP rule of {entry.primitive}: the cotangent of input {position} has dtype {jnp.result_type(grad)}, but the input has dtype {aval.dtype}; cast it"
        raise GradientDtypeError(msg)
    return grad


def _sum_to(grad: Any, shape: tuple[int, ...]) -> Any:
    """Sum a cotangent over what an elementwise primitive broadcast: a scalar operand, or axes of length 1."""
    if shape == ():
        return jnp.sum(grad)
    full = jnp.shape(grad)
    if len(full) != len(shape) or any(n not in (1, m) for n, m in zip(shape, full, strict=True)):
        return grad  # not a broadcast: the check of shapes says so
    axes = tuple(i for i, (n, m) in enumerate(zip(shape, full, strict=True)) if n != m)
    return jnp.sum(grad, axis=axes, keepdims=True)


def _jax_rule(entry: Equation, cts: list[Any], needed: Sequence[bool], ins: list[Any], avals: list[Any]) -> tuple[Any, ...]:
    """JAX's derivative of a primitive that has no rule here."""
    chosen = [i for i, need in enumerate(needed) if need]
    try:
        _, vjp = jax.vjp(parameters.partial(entry.primitive, entry.params, ins, chosen), *[ins[i] for i in chosen])
    except (ValueError, TypeError, NotImplementedError, AssertionError) as e:
        msg = (
            f"{entry.primitive}: this library has no VJP rule for the primitive, and JAX cannot differentiate it here ({e}); give it one with "
            "tape.rules.defvjp, or cut the gradient with .detach()"
        )
        raise RuleError(msg) from e
    return spread(vjp(for_jax(cts, [avals[slot] for slot in entry.slots])), chosen, len(ins))
