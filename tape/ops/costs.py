"""Costs: what a jaxpr takes to compile and to run, in seconds, predicted from what it consists of alone.

The numbers are those of one core of a common processor, and good to a factor of two or so.  What counts is that they are the same in every
run, whatever the machine, its load and its caches: what is decided by them is decided in the same way each time, and so results are the
same to the last digit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tape import jaxapi
from tape.jaxapi import Jaxpr, JaxprEqn
from tape.ops.jaxprs import held_by

_CALL = 25e-6  # to start a compiled kernel from Python
_ELEMENT = 0.5e-9  # to read or write a number
_FLOP = 2e-11  # to multiply and add, in products of matrices
_TURNS = 10  # of a loop whose number of turns is not known before
_LITTLE = 2e-6  # to compute: XLA's optimizations would save a part of it

# To compile, with tracing and lowering: programs of 8 to 1 900 primitives are predicted to a third or so by these.
PROGRAM = 0.07  # a whole, however small
_KERNEL, _QUICK = 0.03, 0.015  # a kernel of an entry or two primitives, and one compiled with the options of :mod:`tape.ops.running`
_FUSED, _OTHER = 0.0008, 0.011  # each primitive that goes over its operands in step, and that does not: sums, slices
_LESS = 0.3  # part of that for a quick one

_IN_STEP = {"broadcast_in_dim", "reshape", "squeeze", "expand_dims"}
_CUBIC = {"cholesky", "triangular_solve", "lu", "qr", "householder_product", "geqrf", "eigh", "eig", "svd", "schur"}


class Cost(NamedTuple):
    """What a jaxpr costs: the seconds that it adds to the compilation of a program, and those of one run on its own."""

    part: float
    run: float

    @property
    def work(self) -> float:
        """Seconds of a run as a part of a program."""
        return self.run - _CALL

    @property
    def small(self) -> bool:
        """Whether a run takes hardly longer than to start it, so that it is compiled quickly."""
        return self.run <= _CALL + _LITTLE

    @property
    def alone(self) -> float:
        """Seconds to compile it on its own."""
        return _QUICK + _LESS * self.part if self.small else _KERNEL + self.part


def cost_of(jaxpr: Jaxpr) -> Cost:
    """Return what a jaxpr costs."""
    part, run = _of(jaxpr)
    return Cost(part, _CALL + run)


def _of(jaxpr: Jaxpr) -> tuple[float, float]:
    part, run = 0.0, 0.0
    for eqn in jaxpr.eqns:
        p, r = predicted(eqn)
        part += p
        run += r
    return part, run


def predicted(eqn: JaxprEqn) -> tuple[float, float]:
    """Return the seconds that an equation adds to the compilation of a program, and to a run of it."""
    part, run = 0.0, 0.0
    held = [_of(inner) for inner in held_by(eqn)]
    if held:
        turns = eqn.params.get("length", _TURNS if eqn.primitive.name == "while" else 1)
        part += sum(p for p, _ in held)
        run += turns * sum(r for _, r in held)
    if eqn.primitive not in jaxapi.CALL_JAXPR_PARAMS:
        shapes = [getattr(v.aval, "shape", ()) for v in (*eqn.invars, *eqn.outvars)]
        parts = len(eqn.outvars) if eqn.primitive.name == "split" else 1
        part += _FUSED if eqn.primitive.name in _IN_STEP or len({*shapes, ()}) <= 2 else _OTHER * parts
        run += _ELEMENT * sum(map(math.prod, shapes)) + _FLOP * products(eqn, shapes)
    return part, run


def products(eqn: JaxprEqn, shapes: Sequence[tuple[int, ...]]) -> float:
    """Return how many numbers are multiplied and added in products of matrices, and in what takes as long."""
    name, params = eqn.primitive.name, eqn.params
    if name == "dot_general":
        (summed, _), _ = params["dimension_numbers"]
        return float(math.prod(shapes[-1]) * math.prod(shapes[0][i] for i in summed))
    if name == "conv_general_dilated":
        channels = shapes[1][params["dimension_numbers"].rhs_spec[0]]
        return float(math.prod(shapes[-1]) * math.prod(shapes[1]) / max(channels, 1))
    return max(math.prod(s) * s[-1] if s else 0 for s in shapes) if name in _CUBIC else 0
