"""A pullback is linear in its cotangent, whoever says what the derivative is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tape.testing.evidence import Evidence
from tape.testing.findings import Finding, fail


def check_linear(evidence: Evidence) -> Iterator[Finding]:
    """Compare gradients for cotangents that are multiples of each other; nothing else says so where the rule is its own reference."""
    base = evidence.probes.pairs[0]
    c = evidence.probes.cotangents[base.cotangent]
    for b, pair in enumerate(evidence.probes.pairs):
        factor = _multiple(evidence.probes.cotangents[pair.cotangent], c)
        if b not in evidence.seen or pair.point != base.point or factor is None:
            continue
        for k, g in enumerate(evidence.measured["g"]):
            expected, twin = factor * g[0], factor * g[1]
            tolerance = evidence.tolerance(expected, twin, evidence.floor(b, evidence.probes.points[pair.point][k]))
            with np.errstate(invalid="ignore"):
                same = (np.abs(g[2 * b] - expected) <= tolerance) | ~np.isfinite(expected)
            if not np.all(same):
                yield fail(k, "first", "", **(evidence.details(k, b) | {"expected": expected}))
                return


def _multiple(cts: list[np.ndarray], base: list[np.ndarray]) -> float | None:
    """Return the factor between two cotangents that are multiples of each other."""
    flat, of = (np.concatenate([np.ravel(a) for a in x]) for x in (cts, base))
    if not of.size:
        return None
    factor = flat[0] / of[0]
    return float(factor.real) if np.allclose(flat, factor * of, rtol=1e-12, atol=0) and abs(factor.imag) == 0 else None
