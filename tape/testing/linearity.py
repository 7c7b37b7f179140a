"""A pullback is linear in its cotangent, whoever says what the derivative is, and a tangent in that of the argument."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from tape.testing.evidence import Evidence
from tape.testing.findings import Finding, fail
from tape.testing.probes import wide_array

LARGER = -1e3  # times a tangent: what clips it is not linear, either


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


def refused(evidence: Evidence, error: Exception) -> Finding:
    """Return that the derivative cannot be computed; the reason, where it is that a forward rule cannot be transposed."""
    finding = evidence.raises(error)
    xs = evidence.probes.native(evidence.probes.points[0], evidence.subject.leaves)
    v = evidence.probes.direction(0)
    try:
        once, more = (
            evidence.subject.push(xs, evidence.probes.native([by * a for a in v], evidence.subject.leaves)) for by in (1.0, LARGER)
        )
    except Exception:  # noqa: BLE001 - a rule is the user's: it may have no forward mode, or raise there, too
        return finding
    for a, b in zip(map(wide_array, once), map(wide_array, more), strict=True):
        if np.any(np.abs(b - LARGER * a) > np.sqrt(evidence.eps) * (np.abs(a) + np.abs(b))):
            text = f"the forward rule is not linear in its tangents (one {LARGER:g} times as large gives another multiple)"
            return dataclasses.replace(finding, message=f"{text}, so that reverse mode cannot transpose it: {finding.message}")
    return finding


def _multiple(cts: list[np.ndarray], base: list[np.ndarray]) -> float | None:
    """Return the factor between two cotangents that are multiples of each other."""
    flat, of = (np.concatenate([np.ravel(a) for a in x]) for x in (cts, base))
    if not of.size:
        return None
    factor = flat[0] / of[0]
    return float(factor.real) if np.allclose(flat, factor * of, rtol=1e-12, atol=0) and abs(factor.imag) == 0 else None
