"""The reverse sweep of one op: its jaxpr, backwards, with the rule table.

This is the only place that applies rules.  It knows which inputs need a cotangent, evaluates only the forward values that rules ask
for, checks what rules return, and falls back to JAX's derivative for primitives without a rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tape import jaxapi
from tape.configuration import promoting
from tape.errors import GradientDtypeError, GradientShapeError, LeakedTracerError, RuleError
from tape.graph.kinds import differentiable
from tape.graph.wengert import Constant, Source, WengertList, accumulate, active, backwards, leading, producers, sweep
from tape.ops import residuals
from tape.ops.apart import apart
from tape.ops.linear import Equation, flatten
from tape.rules import parameters, table
from tape.rules.cotangents import for_jax, spread
from tape.rules.registry import Rule, no_gradient

_NAME, _REMAT = jaxapi.primitive("name"), jaxapi.primitive("remat")


class _Evaluation:
    """Emitter of a sweep that applies rules to values: ``known`` ones (inputs, outputs at hand), and what follows from them."""

    def __init__(self, listed: WengertList[Equation], inputs: Sequence[Any], outputs: Sequence[Any] | None) -> None:
        self.avals = listed.avals
        self.makers = producers(listed.entries)
        self.known: dict[int, Any] = dict(enumerate(inputs))
        for source, value in zip(listed.outputs, outputs or (), strict=outputs is not None):
            named: Source | None = source
            while value is not None and isinstance(named, int):
                self.known[named] = value
                entry = self.makers.get(named)  # what is named is known by its name
                named = entry.inputs[0] if entry is not None and entry.primitive is _NAME else None

    def read(self, source: Source) -> Any:
        """Return the value of a slot or constant, running the entries that it depends on, each once."""
        if isinstance(source, Constant):
            return source.value
        if source not in self.known:
            for entry in leading([source], self.makers, self.known)[0]:
                for slot, value in zip(entry.slots, self._run(entry), strict=True):
                    self.known.setdefault(slot, value)
        return self.known[source]

    def _run(self, entry: Equation) -> Sequence[Any]:
        """Run one entry; of a checkpoint, values inside it that are known are not computed again."""
        inputs = list(map(self.read, entry.inputs))
        known = [self.known.get(slot) for slot in entry.slots]
        if entry.primitive is not _REMAT or all(value is None for value in known):
            return parameters.bind(entry.primitive, entry.params, inputs)
        listed = flatten(jaxapi.closed(entry.params["jaxpr"]))
        return list(map(_Evaluation(listed, inputs, known).read, listed.outputs))

    def arrive(self, _: Equation, cotangents: list[Any]) -> list[Any]:
        return cotangents

    def pull(self, entry: Equation, cotangents: list[Any], wanted: tuple[bool, ...], _: dict[int, Any]) -> Iterable[tuple[Any, Any]]:
        grads = _apply(entry, cotangents, wanted, self)
        return [(source, grad) for source, grad in zip(entry.inputs, grads, strict=True) if grad is not None]

    def add(self, _: Equation | None, total: jax.Array, term: jax.Array) -> jax.Array:
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
    tracer = next((c for c in vjp.consts if isinstance(c, jaxapi.Tracer)), None)
    if tracer is not None and not jaxapi.in_trace():
        aval = jax.typeof(tracer)
        msg = (
            f"{name}: a jax.custom_jvp function in it has an array (shape {aval.shape}, dtype {aval.dtype}) for an argument in its "
            "nondiff_argnums, and so has no derivative in a traced function, here as in jax.jit; let the function that you trace close "
            "over that argument's value"
        )
        raise LeakedTracerError(msg)


def activity(listed: WengertList[Equation], wanted: Sequence[bool] | None) -> set[int]:
    """Return the slots from which a gradient can flow to a wanted input."""
    avals = listed.avals

    def gives(entry: Equation) -> Iterable[int]:
        rule = table.lookup(entry.primitive)
        return () if rule is not None and rule.vjp is no_gradient else [s for s in entry.slots if differentiable(avals[s])]

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


def _apply(entry: Equation, cts: list[Any], needed: Sequence[bool], forward: _Evaluation) -> Sequence[Any]:
    """Apply the rule of one entry and check what it returns."""
    ins = [forward.read(s) for s in entry.inputs]
    rule = table.lookup(entry.primitive)
    if rule is None:
        return _jax_rule(entry, cts, needed, ins, forward.avals)
    outs = tuple([forward.read(s) for s in entry.slots])
    if rule.source == "user":
        return apart(lambda cts: _apply_rule(rule, entry, cts, needed, ins, outs, forward.avals), cts)
    with promoting():
        return _apply_rule(rule, entry, cts, needed, ins, outs, forward.avals)


def _apply_rule(
    rule: Rule, entry: Equation, cts: list[Any], needed: Sequence[bool], ins: list[Any], outs: tuple[Any, ...], avals: list[Any]
) -> Sequence[Any]:
    params = {**entry.params, "wanted": tuple(needed)} if rule.selective else entry.params
    several = entry.primitive.multiple_results
    grads = rule.vjp(tuple(cts) if several else cts[0], outs if several else outs[0], *ins, **params)
    if not isinstance(grads, (tuple, list)):
        grads = (grads,)
    if len(grads) != len(ins):
        msg = (
            f"VJP rule of {entry.primitive}: returned {len(grads)} cotangents for {len(ins)} inputs; "
            "return one per input, None where no gradient flows"
        )
        raise RuleError(msg)
    return [_checked(entry, i, grad, avals, rule) if need else None for i, (grad, need) in enumerate(zip(grads, needed, strict=True))]


def _checked(entry: Equation, position: int, grad: Any, avals: list[Any], rule: Rule) -> Any:
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
    what = f"VJP rule of {entry.primitive}: the cotangent of input {position} has"
    if jnp.shape(grad) != aval.shape:
        msg = f"{what} shape {jnp.shape(grad)}, but the input has shape {aval.shape}; sum over what was broadcast"
        raise GradientShapeError(msg)
    if jnp.result_type(grad) != aval.dtype:
        msg = f"{what} dtype {jnp.result_type(grad)}, but the input has dtype {aval.dtype}; cast it"
        raise GradientDtypeError(msg)
    return grad


def _sum_to(grad: jax.Array, shape: tuple[int, ...]) -> jax.Array:
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
            f"{entry.primitive}: this library has no VJP rule for the primitive, and JAX cannot differentiate it here ({e}); give it one "
            "with tape.rules.defvjp, or cut the gradient with .detach()"
        )
        raise RuleError(msg) from e
    return spread(vjp(for_jax(cts, [avals[slot] for slot in entry.slots])), chosen, len(ins))
