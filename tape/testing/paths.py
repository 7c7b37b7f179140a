"""Which step of a function a wrong rule leaves out: a term of the product rule, the mean that was subtracted, the sum of a softmax.

The gradient is the sum over all ways from result to argument. A rule that forgets one, or gives it another sign, has the gradient of the
function in which an operand of one equation counts otherwise; each operand is tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tape.jaxapi import JaxprEqn
from tape.testing.blame import place_of
from tape.testing.evidence import Evidence
from tape.testing.executables import quickly
from tape.testing.findings import Finding
from tape.testing.patterns import close
from tape.testing.precise import Precise, inner

MOST = 40  # operands that are tried
WEIGHTS = {0.0: "is missing", -1.0: "has the wrong sign", 2.0: "counts twice", 0.5: "counts half"}


class _Weighted(Precise):
    """Evaluates, with derivatives in which each operand of each equation counts as much as its weight says."""

    weights: Any = None

    def __call__(self, *inputs: jax.Array) -> list[Any]:
        self.operands: list[JaxprEqn] = []
        return super().__call__(*inputs)

    def _apply(self, eqn: JaxprEqn, inputs: list[Any]) -> Sequence[Any]:
        if inner(eqn) is not None:
            return super()._apply(eqn, inputs)
        return Precise(self.closed)._apply(eqn, [self._weighed(eqn, x) for x in inputs])

    def _weighed(self, eqn: JaxprEqn, x: Any) -> Any:
        if not isinstance(x, jax.core.Tracer) or not jnp.issubdtype(x.dtype, jnp.inexact) or len(self.operands) == MOST:
            return x
        self.operands.append(eqn)
        if self.weights is None:
            return x
        kept = jax.lax.stop_gradient(x)
        return kept + self.weights[len(self.operands) - 1] * (x - kept)


def missing(evidence: Evidence, finding: Finding) -> str:
    """Name the step whose derivative is missing, or counts otherwise, in a gradient of the first order; empty where there is no such."""
    k, b = finding.argument, finding.pair
    if finding.kind != "first" or k is None or b is None or evidence.untraced or evidence.by_differences or evidence.large:
        return ""
    weighted = _Weighted(evidence.value_jaxpr)

    def gradient(weights: jax.Array, xs: Sequence[jax.Array], cts: Sequence[jax.Array]) -> Any:
        weighted.weights = weights
        _, back = jax.vjp(weighted, *xs)
        return back(list(cts))[k]

    try:
        with jax.enable_x64(True):
            jax.eval_shape(weighted.__call__, *evidence.probes.points[0])
            operands = list(weighted.operands)
            run = quickly(jax.vmap(gradient, (0, None, None)))
            at = list(dict.fromkeys((b, evidence.nearby)))
            weights = np.concatenate([np.ones((1, MOST)), 1 - np.eye(len(operands), MOST)])
            gradients = [np.asarray(run(weights, *evidence.at(pair))) for pair in at]
    except Exception:  # noqa: BLE001 - an explanation is a courtesy: the verdict stands without
        return ""
    whole, rule = (
        np.concatenate([np.ravel(a) for a in of]) for of in ([f[0] for f in gradients], [evidence.measured["g"][k][2 * p] for p in at])
    )
    shares = [whole - np.concatenate([np.ravel(f[i]) for f in gradients]) for i in range(1, len(operands) + 1)]
    for (weight, text), (eqn, share) in itertools.product(WEIGHTS.items(), zip(operands, shares, strict=True)):
        if np.any(share) and np.all(np.isfinite(share)) and close(rule, whole + (weight - 1) * share):
            place = place_of(eqn)
            return f"the derivative through {eqn.primitive.name}{f' at {place}' if place else ''} {text}"
    return ""
