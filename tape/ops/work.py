"""Work: how many floating-point operations a jaxpr takes, and how many bytes it reads and writes.

They are counted as is usual: a multiplication and an addition are two, a number that an elementwise primitive computes is one (a sine,
too), and what only moves numbers takes none.  XLA counts the same, but for what it simplifies before (:mod:`tape.ops.costs` predicts time
from what is not fused, and is for decisions).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from tape import jaxapi
from tape.graph.length import bytes_of
from tape.jaxapi import Jaxpr, JaxprEqn, words
from tape.ops.costs import products
from tape.ops.jaxprs import held_by

_MOVES = words(
    "broadcast_in_dim reshape transpose squeeze expand_dims slice dynamic_slice dynamic_update_slice gather scatter concatenate pad "
    "rev copy copy_p convert_element_type bitcast_convert_type iota device_put stop_gradient sharding_constraint split tile empty "
    "optimization_barrier random_wrap random_unwrap name pvary"
)
_REDUCTIONS = ("reduce_", "argmax", "argmin")


def flops_of(jaxpr: Jaxpr) -> float:
    """Return the floating-point operations of a jaxpr; a loop whose number of turns is not known before counts one turn."""
    return sum([flops(eqn) for eqn in jaxpr.eqns])


def flops(eqn: JaxprEqn) -> float:
    """Return those of an equation."""
    held = [flops_of(inner) for inner in held_by(eqn)]
    if held:
        if eqn.primitive.name == "cond":
            return max(held)
        return float(eqn.params.get("length", 1)) * sum(held)
    name = eqn.primitive.name
    if name in _MOVES or eqn.primitive in jaxapi.CALL_JAXPR_PARAMS:
        return 0.0
    shapes = [getattr(v.aval, "shape", ()) for v in (*eqn.invars, *eqn.outvars)]
    multiplied = products(eqn, shapes)
    if multiplied:
        return 2.0 * multiplied
    written = sum([math.prod(getattr(v.aval, "shape", ())) for v in eqn.outvars])
    read = math.prod(shapes[0]) if eqn.invars else 0
    if name.startswith(_REDUCTIONS):
        return float(max(read - written, 0))
    if name.startswith("scatter"):
        return float(math.prod(shapes[2])) if len(eqn.invars) > 2 else 0.0
    if name == "sort":
        return written * math.log2(max(shapes[0][-1] if shapes[0] else 1, 2))
    if name == "fft":
        return 5.0 * written * math.log2(max(math.prod(eqn.params.get("fft_lengths", ())), 2))
    return float(written)


def bytes_moved(avals: Iterable[Any]) -> int:
    """Return the bytes of some values: what a jaxpr reads and writes, if these are its inputs and results."""
    return sum(map(bytes_of, avals))
