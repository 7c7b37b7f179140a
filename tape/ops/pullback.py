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
from tape.ops import residuals
from tape.ops.linear import Constant, Line, LineList, flatten
from tape.rules import parameters, registry

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["activity", "check_own", "depends", "differentiable", "pullback", "receives", "zeros"]


def differentiable(aval: Any) -> bool:
    """Tell whether a value of this dtype can carry a gradient (floating or complex)."""
    return bool(jnp.issubdtype(aval.dtype, jnp.inexact))


def zeros(aval: Any) -> jax.Array:
    """Zero cotangent for a value of shape and dtype ``aval``."""
    return lax.full(aval.shape, 0, aval.dtype)


class _Forward:
    """The forward values of a list of lines, each computed when somebody reads it."""

    def __init__(self, listed: LineList, inputs: Sequence[Any], outputs: Sequence[Any] | None) -> None:
        self.listed = listed
        self.values: list[Any] = [None] * len(listed.avals)
        self.values[: listed.n_inputs] = inputs
        self.producer: dict[int, Line] = {slot: line for line in listed.lines for slot in line.outputs}
        if outputs is not None:
            for slot, value in zip(listed.outputs, outputs, strict=True):
                known: int | Constant | None = slot
                while value is not None and isinstance(known, int):
                    self.values[known] = value
                    line = self.producer.get(known)  # what is named is known by its name
                    known = line.inputs[0] if line is not None and line.primitive is _NAME else None

    def read(self, wanted: int | Constant) -> Any:
        """Return the value of a slot, computing the lines that it depends on (iteratively, each once)."""
        if isinstance(wanted, Constant):
            return wanted.value
        values = self.values
        if values[wanted] is None:
            stack = [self.producer[wanted]]
            while stack:
                line = stack[-1]
                missing = [self.producer[s] for s in line.inputs if isinstance(s, int) and values[s] is None]
                if missing:
                    stack.extend(missing)
                    continue
                stack.pop()
                if any(values[s] is None for s in line.outputs):
                    results = self._evaluate(line, [s.value if isinstance(s, Constant) else values[s] for s in line.inputs])
                    for slot, value in zip(line.outputs, results, strict=True):
                        if values[slot] is None:
                            values[slot] = value
        return values[wanted]

    def _evaluate(self, line: Line, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run one line; of a checkpoint, values inside it that are known are not computed again."""
        known = [self.values[s] for s in line.outputs]
        if line.primitive is not _REMAT or all(value is None for value in known):
            return evaluate(line, inputs)
        body = _Forward(flatten(jaxapi.closed(line.params["jaxpr"])), inputs, known)
        return [body.read(s) for s in body.listed.outputs]


_NAME, _REMAT = jaxapi.primitive("name"), jaxapi.primitive("remat")


def evaluate(line: Line, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Run one line on ``inputs`` and return its outputs."""
    return parameters.bind(line.primitive, line.params, inputs)


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
    forward = _Forward(listed, inputs, outputs)
    avals = listed.avals
    active = activity(listed, wanted)
    totals: list[Any] = [None] * len(avals)
    for out, ct in zip(listed.outputs, cotangents, strict=True):
        if ct is not None and isinstance(out, int) and active[out]:
            totals[out] = ct if totals[out] is None else lax.add(totals[out], ct)

    for line in reversed(listed.lines):
        cts = [totals[s] for s in line.outputs]
        if all(ct is None for ct in cts):
            continue
        needed = [isinstance(s, int) and active[s] for s in line.inputs]
        if not any(needed):
            continue
        for slot in line.outputs:
            totals[slot] = None
        grads = _apply(line, cts, needed, forward, avals)
        for source, grad in zip(line.inputs, grads, strict=True):
            if grad is not None and isinstance(source, int):
                totals[source] = grad if totals[source] is None else lax.add(totals[source], grad)
    return tuple(totals[s] if active[s] else None for s in range(listed.n_inputs))


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


def activity(listed: LineList, wanted: Sequence[bool] | None) -> list[bool]:
    """Tell for every slot whether a gradient can flow from it to a wanted input."""
    avals = listed.avals
    active = [False] * len(avals)
    for slot in range(listed.n_inputs):
        active[slot] = differentiable(avals[slot]) and (wanted is None or wanted[slot])
    for line in listed.lines:
        if any(isinstance(s, int) and active[s] for s in line.inputs):
            rule = registry.lookup(line.primitive)
            if rule is None or rule.vjp is not registry.no_gradient:
                for slot in line.outputs:
                    active[slot] = differentiable(avals[slot])
    return active


def depends(closed: jaxapi.ClosedJaxpr, wanted: Sequence[bool]) -> list[bool]:
    """Tell for every output of a jaxpr whether a gradient can flow from it to one of the wanted inputs."""
    listed = flatten(closed)
    active = activity(listed, wanted)
    return [isinstance(slot, int) and active[slot] for slot in listed.outputs]


def receives(closed: jaxapi.ClosedJaxpr, present: Sequence[bool], wanted: Sequence[bool]) -> list[bool]:
    """Tell for every wanted input of a jaxpr whether it can get a cotangent from one of the outputs that have one."""
    listed = flatten(closed)
    active = activity(listed, wanted)
    reached = {s for s, flag in zip(listed.outputs, present, strict=True) if flag and isinstance(s, int) and active[s]}
    for line in reversed(listed.lines):
        if not reached.isdisjoint(line.outputs):
            reached.update(s for s in line.inputs if isinstance(s, int) and active[s])
    return [s in reached for s in range(listed.n_inputs)]


def _apply(line: Line, cts: list[Any], needed: list[bool], forward: _Forward, avals: list[Any]) -> list[Any]:
    """Apply the rule of one line and check what it returns."""
    ins = [forward.read(s) for s in line.inputs]
    rule = registry.lookup(line.primitive)
    if rule is None:
        return _jax_rule(line, cts, needed, ins, avals)
    params = {**line.params, "wanted": tuple(needed)} if rule.selective else line.params
    if line.primitive.multiple_results:
        outs = tuple(forward.read(s) for s in line.outputs)
        grads = rule.vjp(tuple(cts), outs, *ins, **params)
    else:
        grads = rule.vjp(cts[0], forward.read(line.outputs[0]), *ins, **params)
    if not isinstance(grads, (tuple, list)):
        grads = (grads,)
    if len(grads) != len(ins):
        msg = f"VJP rule of {line.primitive}: returned {len(grads)} cotangents for {len(ins)} inputs; return one per input, None where no gradient flows"
        raise RuleError(msg)
    return [_checked(line, i, grad, avals, rule) if need else None for i, (grad, need) in enumerate(zip(grads, needed, strict=True))]


def _checked(line: Line, position: int, grad: Any, avals: list[Any], rule: registry.Rule) -> Any:
    """Return the cotangent of one input if it has its input's shape and dtype."""
    if callable(grad):
        grad = grad()
    if grad is None:
        return None
    slot = line.inputs[position]
    assert isinstance(slot, int)
    aval = avals[slot]
    if rule.elementwise and jnp.shape(grad) != aval.shape:
        grad = _sum_to(grad, aval.shape)
    if jnp.shape(grad) != aval.shape:
        msg = f"VJP rule of {line.primitive}: the cotangent of input {position} has shape {jnp.shape(grad)}, but the input has shape {aval.shape}; sum over what was broadcast"
        raise GradientShapeError(msg)
    if jnp.result_type(grad) != aval.dtype:
        msg = f"VJP rule of {line.primitive}: the cotangent of input {position} has dtype {jnp.result_type(grad)}, but the input has dtype {aval.dtype}; cast it"
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


def _jax_rule(line: Line, cts: list[Any], needed: list[bool], ins: list[Any], avals: list[Any]) -> list[Any]:
    """JAX's derivative of a primitive that has no rule here."""
    chosen = [i for i, need in enumerate(needed) if need]

    def fun(*varying: Any) -> tuple[Any, ...]:
        filled = list(ins)
        for i, value in zip(chosen, varying, strict=True):
            filled[i] = value
        return evaluate(line, filled)

    try:
        _, vjp = jax.vjp(fun, *[ins[i] for i in chosen])
    except (ValueError, TypeError, NotImplementedError, AssertionError) as e:
        msg = (
            f"{line.primitive}: this library has no VJP rule for the primitive, and JAX cannot differentiate it here ({e}); give it one with "
            "tape.rules.defvjp, or cut the gradient with .detach()"
        )
        raise RuleError(msg) from e
    seeds = []
    for slot, ct in zip(line.outputs, cts, strict=True):
        aval = avals[slot]
        if not differentiable(aval):
            seeds.append(jnp.zeros(aval.shape, jaxapi.float0))
        else:
            seeds.append(zeros(aval) if ct is None else ct)
    grads: list[Any] = [None] * len(ins)
    for i, grad in zip(chosen, vjp(tuple(seeds)), strict=True):
        grads[i] = grad
    return grads
