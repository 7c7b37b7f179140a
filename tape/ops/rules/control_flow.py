"""Rules of control flow: the sweep of a branch, of a loop of known length, and why there is none of a ``while`` loop.

Each sweeps the jaxprs that the primitive holds, and so is differentiable by the same engine.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import compress
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tape import jaxapi
from tape.errors import TapeValueError
from tape.graph.kinds import cotangent_aval
from tape.graph.wengert import active, closure
from tape.ops.building import rebuilt
from tape.ops.pullback import depends, pullback, receives
from tape.ops.residuals import Keep, inside, prune, pruned
from tape.rules import parameters
from tape.rules.cotangents import asked_for, zeros
from tape.rules.registry import Cost, Example, register


class _Swept:
    """The pullback of a jaxpr, itself a jaxpr: from inputs, outputs and the cotangents that there are to those that flow.

    ``known`` tells which outputs are at hand; the forward values that are not are computed again.  ``reads`` are the positions in
    (inputs, known outputs, cotangents) that it looks at.
    """

    def __init__(self, closed: jaxapi.ClosedJaxpr, present: list[bool], wanted: list[bool], known: list[bool]) -> None:
        ins, outs = (list(map(cotangent_aval, avals)) for avals in (closed.in_avals, closed.out_avals))
        self.flows: list[bool] = []

        def fun(ins: Any, outs: Any, cts: Any) -> list[Any]:
            given, seeds = iter(outs), iter(cts)
            at_hand = [next(given) if flag else None for flag in known]
            grads = pullback(closed, ins, [next(seeds) if flag else None for flag in present], wanted, at_hand)
            self.flows = [grad is not None for grad in grads]
            return [grad for grad in grads if grad is not None]

        traced, _ = jaxapi.trace(fun, ins, list(compress(outs, known)), list(compress(outs, present)))
        self.jaxpr, self.reads = prune(traced)

    def __call__(self, given: Any) -> list[Any]:
        """Return one cotangent per input, None where none flows; of what is given only ``reads`` is looked at."""
        grads = iter(jaxapi.eval_jaxpr(self.jaxpr.jaxpr, self.jaxpr.consts, *(given[i] for i in self.reads)))
        return [next(grads) if flag else None for flag in self.flows]


def _augment_cond(params: dict[str, Any], keep: Keep) -> tuple[dict[str, Any], list[Any]]:
    """Give every branch further outputs, of which it fills in its own values and leaves the rest zero; branches share what fits."""
    parts = []
    avals: list[Any] = []
    for branch in params["branches"]:
        listed, slots = inside(branch, keep)
        free = list(range(len(avals)))
        filled: dict[int, int] = {}
        for slot in slots:
            aval = listed.avals[slot]
            if slot in listed.outputs or jnp.issubdtype(aval.dtype, jax.dtypes.extended):
                continue  # there already, or a key, of which there is no zero
            place = next((i for i in free if avals[i] == cotangent_aval(aval)), None)
            if place is None:
                place = len(avals)
                avals.append(cotangent_aval(aval))
            else:
                free.remove(place)
            filled[place] = slot
        parts.append((listed, filled))
    if not avals:
        return params, []
    branches = tuple(rebuilt(listed, [*listed.outputs, *(filled.get(i, aval) for i, aval in enumerate(avals))]) for listed, filled in parts)
    return {**params, "branches": branches}, avals


def _prune_cond(params: dict[str, Any], used: list[bool]) -> tuple[dict[str, Any], list[bool], list[bool]]:
    """Drop from every branch the outputs that nothing reads, and the operands that no branch reads then."""
    branches = [pruned(branch, used) for branch in params["branches"]]
    read = [any(flags) for flags in zip(*(flags for _, flags in branches), strict=True)]
    smaller = [rebuilt(listed, listed.outputs, compress(range(len(read)), read)) for listed, _ in branches]
    return {**params, "branches": tuple(smaller)}, [True, *read], used


def _two_ways(x: Any, y: Any) -> Any:
    return lax.cond(jnp.sum(x) > jnp.sum(y), lambda x, y: (jnp.sin(x) * y, x), lambda x, y: (x * x, jnp.cos(x)), x, y)


def _three_ways(x: Any, y: Any) -> Any:
    ways = [lambda x, y: x * y, lambda x, y: jnp.ones_like(x), lambda x, y: jnp.sin(y)]
    return jnp.stack([lax.switch(i, ways, x, y) for i in jnp.arange(4)])


@register(
    "cond",
    source="chain rule over the branch taken",
    domain=((-1.0, 1.0), (-1.0, 1.0)),
    complex=False,
    selective=True,
    augment=_augment_cond,
    prune=_prune_cond,
    cost=Cost.HIGH,
    examples=[Example(_two_ways, ((3,), (3,)), "two branches"), Example(_three_ways, ((2,), (2,)), "three branches")],
)
def _cond(ct: Any, out: Any, index: Any, *ins: Any, branches: Any, wanted: Any = None, **_: Any) -> tuple[Any, ...]:
    """Sweep the branch that was taken; where another branch has a cotangent and this one has none, it is zero."""
    asked = asked_for(ins, None if wanted is None else wanted[1:])
    present = [c is not None for c in ct]
    given = [*ins, *out, *(c for c in ct if c is not None)]
    swept = [_Swept(branch, present, asked, [True] * len(out)) for branch in branches]
    flows = [any(flags) for flags in zip(*(one.flows for one in swept), strict=True)]
    reads = sorted({i for one in swept for i in one.reads})

    def run(one: _Swept) -> Any:
        def branch(operands: list[Any]) -> list[Any]:
            grads = one(dict(zip(reads, operands, strict=True)))
            return [zeros(x) if g is None else g for g, x, flag in zip(grads, ins, flows, strict=True) if flag]

        return branch

    grads = iter(lax.switch(index, [run(one) for one in swept], [given[i] for i in reads]))
    return (None, *(next(grads) if flag else None for flag in flows))


def _reached(body: jaxapi.ClosedJaxpr, n_consts: int, n_carry: int, wanted: list[bool]) -> list[bool]:
    """Close the wanted inputs of a loop's body under its carries: a carry that depends on a wanted input is itself of interest."""
    return closure(wanted, lambda reached: [*reached[:n_consts], *depends(body, reached)[:n_carry]])


@register(
    "while",
    source="the values on the way are not kept: nothing flows, and where something should, the rule refuses",
    domain=(),
    selective=True,
    cost=Cost.HIGH,
)
def _while(
    ct: Any, out: Any, *ins: Any, cond_nconsts: int = 0, body_nconsts: int = 0, body_jaxpr: Any = None, wanted: Any = None, **_: Any
) -> tuple[Any, ...]:
    """Refuse, unless nothing that has a cotangent depends on what is differentiated: the values on the way were not kept."""
    if not ct:
        return (None,) * len(ins)
    asked = asked_for(ins, wanted)[cond_nconsts:]
    reached = _reached(body_jaxpr, body_nconsts, len(out), asked)[body_nconsts:]
    for position, (c, flag) in enumerate(zip(ct, reached, strict=True)):
        if c is not None and flag:
            msg = (
                f"gradient of while_loop: carry {position} (shape {out[position].shape}, dtype {out[position].dtype}) depends on "
                "differentiated values, and a loop whose number of steps is found while it runs has no reverse derivative; use lax.scan, "
                "or lax.fori_loop with Python integers as bounds"
            )
            raise TapeValueError(msg)
    return (None,) * len(ins)


def _scan(
    ct: Any, out: Any, *ins: Any, jaxpr: Any, num_consts: int, num_carry: int, length: int, reverse: bool, wanted: Any = None, **others: Any
) -> tuple[Any, ...]:
    """Scan back with the pullback of the body, which finds the forward values of its step among the stacked outputs.

    The carries of the way back are the cotangents of the forward carries, and the sums of those of the constants.
    """
    first_x = num_consts + num_carry
    consts, init, xs = ins[:num_consts], ins[num_consts:first_x], ins[first_x:]
    asked = _reached(jaxpr, num_consts, num_carry, asked_for(ins, wanted))
    present = [c is not None and flag for c, flag in zip(ct, (*asked[num_consts:first_x], *(True for _ in ct[num_carry:])), strict=True)]
    # The carries that have a cotangent at some step.
    present = closure(present, lambda flags: receives(jaxpr, flags, asked)[num_consts:first_x])
    swept = _Swept(jaxpr, present, asked, [False] * num_carry + [True] * (len(out) - num_carry))
    if any(num_consts <= i < first_x for i in swept.reads):  # carries that were not kept: run forward once more, keeping them
        params = {"jaxpr": jaxpr, "num_consts": num_consts, "num_carry": num_carry, "length": length, "reverse": reverse, **others}
        params, avals = _augment_scan(params, Keep())
        outputs = parameters.bind(jaxapi.primitives.scan_p, params, ins)
        return _scan((*ct, *(None for _ in avals)), outputs, *ins, **params, wanted=wanted)

    moving = present[:num_carry]
    summed = swept.flows[:num_consts]
    # What a step reads is constant, carried or scanned over; each is numbered as the inputs of the pullback are.
    cts_y = [c for c in ct[num_carry:] if c is not None]
    n_known = len(out) - num_carry
    scanned = dict(zip(range(first_x, first_x + len(xs) + n_known), (*xs, *out[num_carry:]), strict=True))
    scanned.update(enumerate(cts_y, len(ins) + n_known + sum(moving)))
    scanned = {i: value for i, value in scanned.items() if i in swept.reads}

    def backward(state: Any, step: Any) -> Any:
        cts, totals = state
        grads = swept({**dict(enumerate(consts)), **dict(enumerate(cts, len(ins) + n_known)), **step})
        before = [zeros(c) if g is None else g for g, c, flag in zip(grads[num_consts:], init, moving, strict=False) if flag]
        totals = [lax.add(total, g) for total, g in zip(totals, compress(grads, summed), strict=True)]
        return (before, totals), [g for g in grads[first_x:] if g is not None]

    scan: Any = lax.scan
    start = [jnp.zeros_like(c) if given is None else given for given, c, flag in zip(ct, init, moving, strict=False) if flag]
    totals = list(map(jnp.zeros_like, compress(consts, summed)))
    known = None if scanned else length  # which JAX wants to be a number, where it may be symbolic (jax.export)
    (cts_init, totals), cts_xs = scan(backward, (start, totals), scanned, length=known, reverse=not reverse, unroll=others.get("unroll", 1))
    flowing = iter((*totals, *cts_init, *cts_xs))
    return tuple(next(flowing) if flag else None for flag in (*summed, *moving, *swept.flows[first_x:]))


def _augment_scan(params: dict[str, Any], keep: Keep) -> tuple[dict[str, Any], list[Any]]:
    """Stack the carries of every step, and the values inside it that are kept; what is the same at every step is computed again."""
    body, n_consts, n_carry = params["jaxpr"], params["num_consts"], params["num_carry"]
    if keep.policies:  # a loop in a checkpoint runs again as a whole
        return params, []
    listed, slots = inside(body, replace(keep, looped=True))
    varying = active(listed.entries, range(n_consts, listed.n_inputs), lambda entry: entry.slots)
    stacked = listed.outputs[n_carry:]
    kept = dict.fromkeys((*range(n_consts, n_consts + n_carry), *slots))
    further = [s for s in kept if s in varying and s not in stacked]
    avals = [jaxapi.ShapedArray((params["length"], *listed.avals[s].shape), listed.avals[s].dtype) for s in further]
    return {**params, "jaxpr": rebuilt(listed, [*listed.outputs, *further])}, avals


def _prune_scan(params: dict[str, Any], used: list[bool]) -> tuple[dict[str, Any], list[bool], list[bool]]:
    """Drop from a loop the stacked outputs that nothing reads, and the carries that feed nothing else."""
    body, n_consts, n_carry = params["jaxpr"], params["num_consts"], params["num_carry"]
    first_x = n_consts + n_carry
    stacked = used[n_carry:]
    carried = closure(used[:n_carry], lambda flags: pruned(body, [*flags, *stacked])[1][n_consts:first_x])
    listed, read = pruned(body, [*carried, *stacked])
    takes = [*read[:n_consts], *carried, *read[first_x:]]
    smaller = rebuilt(listed, listed.outputs, compress(range(len(takes)), takes))
    return {**params, "jaxpr": smaller, "num_consts": sum(read[:n_consts]), "num_carry": sum(carried)}, takes, [*carried, *stacked]


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
    "scan",
    _scan,
    source="chain rule over the steps, last to first; carries and costly values are kept, the rest of a step is computed again",
    domain=((-1.0, 1.0), (-1.0, 1.0), (-1.0, 1.0)),
    selective=True,
    augment=_augment_scan,
    prune=_prune_scan,
    cost=Cost.HIGH,
    examples=[
        Example(_recurrence, ((3,), (3,), (4, 3))),
        Example(lambda w, h, x: _recurrence(w, h, x, reverse=True, unroll=2), ((3,), (3,), (4, 3)), "reversed and unrolled"),
        Example(lambda w, h, x: _recurrence(w, h, x)[0], ((3,), (3,), (4, 3)), "last carry"),
        Example(lambda w, h, x: _recurrence(w, h, x)[1], ((), (), (4,)), "outputs only"),
        Example(lambda w, h, x: _power(w * h) + jnp.sum(x), ((2,), (2,), (2,)), "counted loop"),
        Example(_recurrence, ((3,), (3,), (0, 3)), "no steps"),
        Example(lambda w, h, x: jnp.cumsum(lax.map(lambda y: jnp.exp(y * w), x)) * h, ((), (), (4,)), "map"),
    ],
)
