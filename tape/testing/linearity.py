"""A pullback is linear in its cotangent, whoever says what the derivative is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tape.testing.examination import Examination

__all__ = ["check_linear"]


def check_linear(exam: Examination) -> None:
    """Compare gradients for cotangents that are multiples of each other; nothing else says so where the rule is its own reference."""
    base = exam.probes.pairs[0]
    c = exam.probes.cotangents[base.cotangent]
    for b, pair in enumerate(exam.probes.pairs):
        factor = _multiple(exam.probes.cotangents[pair.cotangent], c)
        if b not in exam.seen or pair.point != base.point or factor is None:
            continue
        for k, g in enumerate(exam.found["g"]):
            expected, twin = factor * g[0], factor * g[1]
            tolerance = exam.tolerance(expected, twin, exam.floor(b, exam.probes.points[pair.point][k]))
            with np.errstate(invalid="ignore"):
                same = (np.abs(g[2 * b] - expected) <= tolerance) | ~np.isfinite(expected)
            if not np.all(same):
                exam.fail(k, "first", "", **(exam.details(k, b) | {"expected": expected}))
                return


def _multiple(cts: list[np.ndarray], base: list[np.ndarray]) -> float | None:
    """Return by what number a cotangent is another one's multiple."""
    flat, of = (np.concatenate([np.ravel(a) for a in x]) for x in (cts, base))
    if not of.size:
        return None
    factor = flat[0] / of[0]
    return float(factor.real) if np.allclose(flat, factor * of, rtol=1e-12, atol=0) and abs(factor.imag) == 0 else None
