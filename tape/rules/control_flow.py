"""Control flow: the sweep of a branch, of a loop of known length, and why there is none of a ``while`` loop.

Each rule sweeps the jaxprs that the primitive holds with :mod:`tape.pullback`, and so is differentiable by the same engine.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tape import jaxapi
from tape import pullback as sweep
from tape.errors import TapeValueError
from tape.rules.registry import Example, register


def _flags(values: Any, wanted: Any = None) -> list[bool]:
    """Tell which values get a cotangent: the differentiable ones, of them those that are wanted."""
    values = list(values)
    wanted = [True] * len(values) if wanted is None else wanted
    return [bool(flag) and sweep.differentiable(x) for flag, x in zip(wanted, values, strict=True)]


class _Swept:
    """The pullback of a jaxpr, itself a jaxpr: from the inputs and the cotangents that there are to those that flow."""

    def __init__(self, closed: jaxapi.ClosedJaxpr, present: list[bool], wanted: list[bool]) -> None:
        shaped: Any = jax.ShapeDtypeStruct
        avals = [shaped(v.aval.shape, v.aval.dtype) for v in (*closed.jaxpr.invars, *closed.jaxpr.outvars)]
        self.n_inputs = len(closed.jaxpr.invars)
        self.flows: list[bool] = []

        def fun(*args: Any) -> list[Any]:
            cts = iter(args[self.n_inputs :])
            grads = sweep.pullback(closed, args[: self.n_inputs], [next(cts) if flag else None for flag in present], wanted)
            self.flows = [grad is not None for grad in grads]
            return [grad for grad in grads if grad is not None]

        seeds = [aval for aval, flag in zip(avals[self.n_inputs :], present, strict=True) if flag]
        traced, _ = jaxapi.trace(fun, *avals[: self.n_inputs], *seeds)
        self.jaxpr, self.reads = jaxapi.prune(traced)  # forward values that no rule looked at go

    def __call__(self, inputs: Any, cts: Any) -> list[Any]:
        """Return one cotangent per input, None where none flows."""
        given = (*inputs, *cts)
        grads = iter(jaxapi.eval_jaxpr(self.jaxpr.jaxpr, self.jaxpr.consts, *(given[i] for i in self.reads)))
        return [next(grads) if flag else None for flag in self.flows]


def _cond(ct: tuple[Any, ...], out: tuple[Any, ...], index: Any, *ins: Any, branches: Any, wanted: Any = None, **_: Any) -> tuple[Any, ...]:
    """Sweep the branch that was taken; where another branch has a cotangent and this one has none, it is zero."""
    asked = _flags(ins, None if wanted is None else wanted[1:])
    present = [c is not None for c in ct]
    cts = [c for c in ct if c is not None]
    swept = [_Swept(branch, present, asked) for branch in branches]
    flows = [any(flags) for flags in zip(*(one.flows for one in swept), strict=True)]

    def run(one: _Swept) -> Any:
        def branch(ins: list[Any], cts: list[Any]) -> list[Any]:
            grads = one(ins, cts)
            return [sweep.zeros(x) if g is None else g for g, x, flag in zip(grads, ins, flows, strict=True) if flag]

        return branch

    grads = iter(lax.switch(index, [run(one) for one in swept], list(ins), cts))
    return (None, *(next(grads) if flag else None for flag in flows))


def _reached(body: jaxapi.ClosedJaxpr, n_consts: int, n_carry: int, wanted: list[bool]) -> list[bool]:
    """Close the wanted inputs of a loop's body under its carries: a carry that depends on a wanted input is itself of interest."""
    reached = list(wanted)
    while True:
        flags = sweep.depends(body, reached)[:n_carry]
        grown = [*reached[:n_consts], *(a or b for a, b in zip(reached[n_consts:], flags, strict=False)), *reached[n_consts + n_carry :]]
        if grown == reached:
            return reached
        reached = grown


def _while(
    ct: tuple[Any, ...],
    out: tuple[Any, ...],
    *ins: Any,
    cond_nconsts: int = 0,
    body_nconsts: int = 0,
    body_jaxpr: Any = None,
    wanted: Any = None,
    **_: Any,
) -> tuple[Any, ...]:
    """Refuse, unless nothing that has a cotangent depends on what is differentiated: the values on the way were not kept."""
    if not ct:
        return (None,) * len(ins)
    asked = _flags(ins, wanted)[cond_nconsts:]
    reached = _reached(body_jaxpr, body_nconsts, len(out), asked)[body_nconsts:]
    for position, (c, flag) in enumerate(zip(ct, reached, strict=True)):
        if c is not None and flag:
            msg = (
                f"gradient of while_loop: carry {position} (shape {out[position].shape}, dtype {out[position].dtype}) depends on differentiated values, and a loop whose "
                "number of steps is found while it runs has no reverse derivative; use lax.scan, or lax.fori_loop with Python integers as bounds"
            )
            raise TapeValueError(msg)
    return (None,) * len(ins)


def _scan(
    ct: tuple[Any, ...],
    out: tuple[Any, ...],
    *ins: Any,
    jaxpr: Any,
    num_consts: int,
    num_carry: int,
    length: int,
    reverse: bool,
    unroll: Any = 1,
    wanted: Any = None,
    **_: Any,
) -> tuple[Any, ...]:
    """Scan forward once more keeping the carries, then scan back with the pullback of the body.

    The carries of the way back are the cotangents of the forward carries, and the sums of those of the constants.
    """
    first_x = num_consts + num_carry
    consts, init, xs = ins[:num_consts], ins[num_consts:first_x], ins[first_x:]
    asked = _reached(jaxpr, num_consts, num_carry, _flags(ins, wanted))
    present = [c is not None and flag for c, flag in zip(ct, (*asked[num_consts:first_x], *(True for _ in ct[num_carry:])), strict=True)]
    while True:  # the carries that have a cotangent at some step
        swept = _Swept(jaxpr, present, asked)
        grown = [a or b for a, b in zip(present, swept.flows[num_consts:first_x], strict=False)] + present[num_carry:]
        if grown == present:
            break
        present = grown

    kept = [position in swept.reads for position in range(num_consts, first_x)]

    def forward(carry: Any, x: Any) -> Any:
        results = jaxapi.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *consts, *carry, *x)
        return list(results[:num_carry]), [c for c, flag in zip(carry, kept, strict=True) if flag]

    scan: Any = lax.scan
    carries: Any = []
    if any(kept):
        _, carries = scan(forward, list(init), list(xs), length=length, reverse=reverse, unroll=unroll)
    moving = present[:num_carry]
    summed = swept.flows[:num_consts]

    def backward(state: Any, step: Any) -> Any:
        cts, totals = state
        stored, x, cts_y = step
        given = iter(stored)
        carry = [next(given) if flag else None for flag in kept]
        grads = swept((*consts, *carry, *x), (*cts, *cts_y))
        flowing = [g for g, flag in zip(grads, summed, strict=False) if flag]
        before = [sweep.zeros(c) if g is None else g for g, c, flag in zip(grads[num_consts:], init, moving, strict=False) if flag]
        return (before, [lax.add(total, g) for total, g in zip(totals, flowing, strict=True)]), [
            g for g in grads[first_x:] if g is not None
        ]

    start = [jnp.zeros_like(c) if given is None else given for given, c, flag in zip(ct, init, moving, strict=False) if flag]
    totals = [jnp.zeros_like(c) for c, flag in zip(consts, summed, strict=True) if flag]
    cts_y = [c for c in ct[num_carry:] if c is not None]
    steps = (carries, list(xs), cts_y)
    (cts_init, totals), cts_xs = scan(backward, (start, totals), steps, length=length, reverse=not reverse, unroll=unroll)
    found = iter((*totals, *cts_init, *cts_xs))
    return tuple(next(found) if flag else None for flag in (*summed, *moving, *swept.flows[first_x:]))


def _two_ways(x: Any, y: Any) -> Any:
    return lax.cond(jnp.sum(x) > jnp.sum(y), lambda x, y: (jnp.sin(x) * y, x), lambda x, y: (x * x, jnp.cos(x)), x, y)


def _three_ways(x: Any, y: Any) -> Any:
    ways = [lambda x, y: x * y, lambda x, y: jnp.ones_like(x), lambda x, y: jnp.sin(y)]
    return jnp.stack([lax.switch(i, ways, x, y) for i in jnp.arange(4)])


def _recurrence(weight: Any, start: Any, inputs: Any, **options: Any) -> Any:
    def body(state: tuple[Any, Any], x: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        step, h = state
        h = jnp.sin(weight * h + x) / (1 + step)
        return (step + 1, h), (h * h, step)

    (_, last), (squares, _) = lax.scan(body, (0, start), inputs, **options)
    return last, squares


def _power(x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda i, y: y * x + i, x)


register(
    "cond",
    _cond,
    domain=((-1.0, 1.0), (-1.0, 1.0)),
    source="chain rule over the branch taken",
    examples=[Example(_two_ways, ((3,), (3,)), "two branches"), Example(_three_ways, ((2,), (2,)), "three branches")],
    selective=True,
)
register(
    "while",
    _while,
    source="the values on the way are not kept: nothing flows, and where something should, the rule refuses",
    selective=True,
)
register(
    "scan",
    _scan,
    domain=((-1.0, 1.0), (-1.0, 1.0), (-1.0, 1.0)),
    source="chain rule over the steps, last to first; the carries are kept, the rest of a step is computed again",
    examples=[
        Example(_recurrence, ((3,), (3,), (4, 3))),
        Example(lambda w, h, x: _recurrence(w, h, x, reverse=True, unroll=2), ((3,), (3,), (4, 3)), "reversed and unrolled"),
        Example(lambda w, h, x: _recurrence(w, h, x)[0], ((3,), (3,), (4, 3)), "last carry"),
        Example(lambda w, h, x: _recurrence(w, h, x)[1], ((), (), (4,)), "outputs only"),
        Example(lambda w, h, x: _power(w * h) + jnp.sum(x), ((2,), (2,), (2,)), "counted loop"),
        Example(_recurrence, ((3,), (3,), (0, 3)), "no steps"),
        Example(lambda w, h, x: jnp.cumsum(lax.map(lambda y: jnp.exp(y * w), x)) * h, ((), (), (4,)), "map"),
    ],
    complex=True,
    selective=True,
)
