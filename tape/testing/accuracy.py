"""Gradients that are right, but inexact: how far rounding, in the function's own precision, takes a rule from itself.

The rule is evaluated in double precision, each of its results rounded as the function's dtype would round it. Where that takes the rule as
far from itself as it is from the truth, its formula loses the digits (by cancellation, as a rule): it is inaccurate there, and not wrong.
What a rule rounds by itself, to a lower precision than its arguments have, is not repeated here, and stays wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tape.jaxapi import JaxprEqn
from tape.testing.evidence import Evidence
from tape.testing.executables import Program
from tape.testing.findings import Finding
from tape.testing.precise import Precise, inner

SAMPLES = 4  # points at a distance of rounding at which the rule is evaluated
MARGIN = 10  # times the largest of their errors
MOST = 1e-2  # relative: what is further off is no matter of accuracy
DOUBLE = 1e-12  # a finer dtype is as fine as the arithmetic here


class Rounded(Precise):
    """Evaluates a jaxpr in double precision and rounds every result to the given number of bits."""

    def __init__(self, like: Precise, bits: int) -> None:
        super().__init__(like.closed)
        self.further, self.most, self._bits = like.further, like.most, bits

    def _apply(self, eqn: JaxprEqn, inputs: list[Any]) -> Sequence[Any]:
        results = super()._apply(eqn, inputs)
        return results if inner(eqn) is not None else [self._rounded(x) for x in results]

    def _rounded(self, x: jax.Array) -> jax.Array:
        if not jnp.issubdtype(getattr(x, "dtype", np.bool_), jnp.inexact):
            return x
        if jnp.iscomplexobj(x):
            return jax.lax.complex(self._rounded(x.real), self._rounded(x.imag))
        return jax.lax.reduce_precision(x, exponent_bits=11, mantissa_bits=self._bits)


def inexact(evidence: Evidence, rule: Precise, inputs: Sequence[np.ndarray], output: int, expected: np.ndarray, got: np.ndarray) -> bool:
    """Tell whether a result of a rule is as far from what was expected as rounding takes the rule from itself.

    Args:
        evidence: what is known of the subject.
        rule: the jaxpr of the rule.
        inputs: what it was given.
        output: the number of the result.
        expected: what it should be.
        got: what it is.

    """
    if evidence.fine < DOUBLE or got.shape != expected.shape:
        return False
    with np.errstate(invalid="ignore"):
        off = np.where(np.isfinite(expected), np.abs(got - expected), 0)
        if not np.all(off <= MOST * np.abs(np.nan_to_num(expected))):
            return False
    bits = round(-np.log2(evidence.fine))
    coarse = Rounded(rule, bits)
    exact, rounded = Program("rule", rule, [rule]), Program(("rounded", bits), coarse, [coarse])
    rng = np.random.default_rng(evidence.seed + 2)
    spread = np.zeros(expected.shape)
    for i in range(SAMPLES):
        at = [a * (1 + (i > 0) * evidence.fine * rng.uniform(-1, 1, a.shape)) for a in inputs]
        one, other = (np.asarray(run(*at)[output]) for run in (exact, rounded))
        spread = np.fmax(spread, np.abs(one - other))
    return bool(np.all(off <= MARGIN * spread + evidence.rtol * np.abs(expected)))


def imprecise(evidence: Evidence, argument: int, b: int, got: np.ndarray) -> bool:
    """Tell whether a gradient is wrong by no more than rounding takes from the rule."""
    if evidence.untraced or not evidence.explore:
        return False
    expected = evidence.measured["r"][argument]
    if b in evidence.sparse:  # what one output's gradient lacks may be far beneath what rounding takes from the gradient of all outputs
        with np.errstate(invalid="ignore"):
            if np.all(np.abs(got - expected[2 * b]) <= evidence.fine**2 * np.abs(expected[0]).max(initial=0)):
                return True
    x, ct = evidence.at(b)
    return inexact(evidence, evidence.rule, [*x, *ct], len(evidence.shapes) + argument, expected[2 * b], got)


def coarse(argument: int, kind: str, **details: Any) -> Finding:
    """Return something that is right, but for what rounding takes."""
    r, g = details["expected"], details["got"]
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.nanmax(np.where(np.isfinite(r) & (r != 0), np.abs(g - r) / np.abs(r), 0), initial=0)
    if share > MOST:
        message = "right, but for a part so small beside the other outputs' that its formula rounds it to zero"
    else:
        message = f"right to a relative error of {share:.1g}: its formula loses digits to rounding in the function's dtype"
    return Finding(kind, argument, "inaccurate", message, **details)
