"""What kind of wrong a gradient is, in words."""

from __future__ import annotations

import numpy as np

from tape.testing.blame import birth
from tape.testing.evidence import Evidence
from tape.testing.findings import Finding
from tape.testing.patterns import close, pattern_of


def diagnosed(evidence: Evidence, finding: Finding) -> str:
    """Say in words what is wrong."""
    r, g = finding.expected, finding.got
    if finding.kind == "numeric" and g is not None and not np.all(np.isfinite(g)):
        born = birth(evidence, finding.pair)
        return f"NaN born at {born}" if born else finding.message
    if r is None or g is None or finding.verdict != "fail" or finding.kind in {"structure", "raises", "numeric", "variant"}:
        return finding.message
    born = "" if np.all(np.isfinite(g)) else birth(evidence, finding.pair)
    pattern = (
        f"NaN born at {born}" if born else _sum_missing(evidence, finding) or _of_another(evidence, finding) or pattern_of(r, g, finding.at)
    )
    order = "right at first order, " if finding.kind == "second" else ""
    special = _of_cotangent(evidence, finding)
    parts = [special or order + pattern] if finding.kind in {"first", "second"} else [finding.message, pattern]
    return ": ".join(p for p in parts if p)


def _of_cotangent(evidence: Evidence, finding: Finding) -> str:
    """Say whether it is wrong for some cotangents only."""
    if finding.kind != "first" or finding.argument is None or finding.pair is None or 0 not in evidence.seen or finding.pair == 0:
        return ""
    pair = evidence.probes.pairs[finding.pair]
    if pair.point != 0:
        return ""
    r, g = evidence.measured["r"][finding.argument], evidence.measured["g"][finding.argument]
    if not np.allclose(r[0], g[0], rtol=1e-4, equal_nan=True):
        return ""
    size = float(np.max(np.abs(g[2 * finding.pair]), initial=0))
    clipped = "1e" in pair.why and size < 0.1 * float(np.max(np.abs(r[2 * finding.pair]), initial=0))
    what = f": no gradient is larger than {size:.3g}, so the cotangent is clipped" if clipped and "1e-" not in pair.why else ""
    return f"not linear in the cotangent, wrong for {pair.why}{what}"


def _of_another(evidence: Evidence, finding: Finding) -> str:
    """Say whether the gradient is that of another argument, or has that in addition."""
    k, b = finding.argument, finding.pair
    if finding.kind != "first" or k is None or b is None or finding.got is None:
        return ""
    r, g = evidence.measured["r"], finding.got
    for j, name in enumerate(evidence.subject.names):
        other = r[j][2 * b]
        if j == k or other.shape != g.shape or close(r[k][2 * b], other) or not g.size:
            continue
        for sign, said in ((1, ""), (-1, ", with the sign flipped")):
            if close(g, sign * other) and np.any(other):
                return f"the gradient of {name}{said}"
            if close(g, r[k][2 * b] + sign * other) and np.any(other):
                return f"the gradient of {name} is {'added' if sign > 0 else 'taken away'}"
    return ""


def _sum_missing(evidence: Evidence, finding: Finding) -> str:
    """Say whether the gradient is that of a part of an output: of one slice along an axis, or of the average."""
    k, b = finding.argument, finding.pair
    r, g = finding.expected, finding.got
    if finding.kind != "first" or k is None or b is None or r is None or g is None or np.allclose(g, 0):
        return ""
    x, cts = evidence.at(b)
    tried, texts = [], []
    for o, ct in enumerate(cts):
        for axis in range(ct.ndim):
            if ct.shape[axis] < 2 or ct.shape == r.shape:
                continue
            for text, i in (("first", 0), ("last", -1)):
                part = np.zeros_like(ct)
                at = (slice(None),) * axis + (i,)
                part[at] = ct[at]
                tried.append((x, [part if j == o else np.zeros_like(c) for j, c in enumerate(cts)]))
                texts.append(f"missing the sum over the broadcast axis {axis}: only its {text} slice counts")
            if close(g * ct.shape[axis], r):
                return f"divided by the size {ct.shape[axis]} of axis {axis}: an average instead of the sum"
    if evidence.untraced or not tried or len(tried) > 16:
        return ""
    gradients = evidence.one_by_one(tried)["r"][k]
    return next((text for text, part in zip(texts, gradients, strict=True) if close(g, part)), "")
