"""What kind of wrong a gradient is: patterns that a wrong rule leaves in its numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tape.testing.blame import birth

if TYPE_CHECKING:
    from tape.testing.examination import Examination, Finding

__all__ = ["diagnosed"]


def diagnosed(exam: Examination, finding: Finding) -> str:
    """Say in words what is wrong."""
    r, g = finding.expected, finding.got
    if finding.kind == "numeric" and g is not None and not np.all(np.isfinite(g)):
        born = birth(exam, finding.pair)
        return f"NaN born at {born}" if born else finding.message
    if r is None or g is None or finding.verdict != "fail" or finding.kind in {"structure", "raises", "numeric"}:
        return finding.message
    born = "" if np.all(np.isfinite(g)) else birth(exam, finding.pair)
    pattern = f"NaN born at {born}" if born else _sum_missing(exam, finding) or _pattern(r, g, finding.at)
    order = "right at first order, " if finding.kind == "second" else ""
    special = _of_cotangent(exam, finding)
    parts = [special or order + pattern] if finding.kind in {"first", "second"} else [finding.message, pattern]
    return ": ".join(p for p in parts if p)


def _of_cotangent(exam: Examination, finding: Finding) -> str:
    """Say whether it is wrong for some cotangents only."""
    if finding.kind != "first" or finding.argument is None or finding.pair is None or 0 not in exam.seen or finding.pair == 0:
        return ""
    pair = exam.probes.pairs[finding.pair]
    if pair.point != 0:
        return ""
    r, g = exam.found["r"][finding.argument], exam.found["g"][finding.argument]
    if not np.allclose(r[0], g[0], rtol=1e-4, equal_nan=True):
        return ""
    size = float(np.max(np.abs(g[2 * finding.pair]), initial=0))
    clipped = "1e" in pair.why and size < 0.1 * float(np.max(np.abs(r[2 * finding.pair]), initial=0))
    what = f": no gradient is larger than {size:.3g}, so the cotangent is clipped" if clipped and "1e-" not in pair.why else ""
    return f"not linear in the cotangent, wrong for {pair.why}{what}"


def _sum_missing(exam: Examination, finding: Finding) -> str:
    """Say whether the gradient is that of a part of an output: of one slice along an axis, or of the average."""
    k, b = finding.argument, finding.pair
    r, g = finding.expected, finding.got
    if finding.kind != "first" or k is None or b is None or r is None or g is None or np.allclose(g, 0):
        return ""
    pair = exam.probes.pairs[b]
    x, cts = exam.probes.points[pair.point], exam.probes.cotangents[pair.cotangent]
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
            if _close(g * ct.shape[axis], r):
                return f"divided by the size {ct.shape[axis]} of axis {axis}: an average instead of the sum"
    if exam.untraced or not tried or len(tried) > 16:
        return ""
    found = exam.one_by_one(tried)["r"][k]
    return next((text for text, part in zip(texts, found, strict=True) if _close(g, part)), "")


def _pattern(r: np.ndarray, g: np.ndarray, at: Any) -> str:
    """Say how ``g`` differs from ``r``."""
    if r.shape != g.shape:
        return f"shape {g.shape} instead of {r.shape}"
    if not np.all(np.isfinite(g)):
        return "NaN" + _where(~np.isfinite(g), at) if np.any(np.isnan(g)) else "infinite" + _where(~np.isfinite(g), at)
    if not np.all(np.isfinite(r)):
        return "finite where the derivative is not"
    scale = float(np.max(np.abs(r), initial=0))
    if _close(g, np.zeros_like(g)):
        return "zero everywhere" if scale else "the derivative is zero"
    if scale == 0:
        return "not zero, though the derivative is"
    if _close(g, -r):
        return "sign flipped"
    if np.iscomplexobj(r) and _close(g, r.conj()):
        return "conjugated"
    shaped = _shape_pattern(r, g)
    if shaped:
        return shaped
    off = ~(np.abs(g - r) <= 1e-5 * np.abs(r) + 1e-12 * scale)
    moving = np.abs(r) > 1e-9 * scale
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = (g / r)[moving & off]
    where = "everywhere" if np.all(off | ~moving) else _where(off, at).strip()
    if ratio.size and np.all(np.abs(ratio - ratio[0]) <= 0.02 * np.abs(ratio[0] - 1)) and np.all(moving | ~off):
        factor = ratio[0]
        if np.all(np.abs(ratio) < 1e-12):
            return f"zero {where}"
        if np.iscomplexobj(r):
            return f"{factor:.4g} times the derivative {where}"
        if abs(factor + 1) < 1e-6:
            return f"sign flipped {where}"
        if factor > 1:
            return f"{factor:.6g}x too large {where}"
        return f"{1 / factor:.6g}x too small {where}" if factor > 0 else f"{factor:.4g} times the derivative {where}"
    difference = (g - r)[off]
    if difference.size > 1 and np.all(np.abs(difference - difference[0]) <= 1e-5 * np.abs(difference[0])):
        return f"off by the constant {difference[0]:.4g} {where}"
    if off.sum() < off.size:
        return f"wrong {where} ({int(off.sum())} of {off.size} elements)"
    return "wrong everywhere" if off.size > 1 else "wrong"


def _shape_pattern(r: np.ndarray, g: np.ndarray) -> str:
    """Say whether elements are in the wrong place, or added up or not."""
    if r.ndim == 2 and r.shape[0] == r.shape[1] > 1 and _close(g, r.T):
        return "transposed"
    for axis in range(r.ndim):
        if r.shape[axis] < 2:
            continue
        for shift in (1, -1):
            if _close(g, np.roll(r, shift, axis)) or _close(_inside(g, shift, axis), _inside(np.roll(r, shift, axis), shift, axis)):
                return f"off by one along axis {axis}"
        if _close(g, np.flip(r, axis)):
            return f"reversed along axis {axis}"
        if _close(g, np.broadcast_to(r.sum(axis, keepdims=True), r.shape)):
            return f"summed over axis {axis}, which was not broadcast"
        if _close(g, np.broadcast_to(r.mean(axis, keepdims=True), r.shape)):
            return f"averaged over axis {axis}"
        if _close(g, np.cumsum(r, axis)):
            return f"added up along axis {axis}"
    if r.size > 1 and _close(np.sort(g.real.ravel()), np.sort(r.real.ravel())):
        return "the right numbers in the wrong places"
    return ""


def _inside(x: np.ndarray, shift: int, axis: int) -> np.ndarray:
    """Leave out what comes round the edge."""
    if x.shape[axis] < 3:
        return np.full(1, np.nan)
    return np.take(x, range(1, x.shape[axis]) if shift > 0 else range(x.shape[axis] - 1), axis)


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    scale = float(np.max(np.abs(b), initial=0))
    with np.errstate(invalid="ignore"):
        return bool(a.size and np.all(np.abs(a - b) <= 1e-6 * np.abs(b) + 1e-9 * scale))


def _where(off: np.ndarray, at: Any) -> str:
    """Say what the elements in question have in common."""
    if np.all(off):
        return " everywhere"
    if at is not None and not np.iscomplexobj(at) and at.shape == off.shape:
        for text, mask in (("x < 0", at < 0), ("x > 0", at > 0), ("x = 0", at == 0), ("x != 0", at != 0), ("|x| > 1", np.abs(at) > 1)):
            if np.array_equal(mask, off):
                return f" where {text}"
    for axis in range(off.ndim):
        for text, i in (("first", 0), ("last", -1)):
            mask = np.zeros_like(off)
            mask[(slice(None),) * axis + (i,)] = True
            if np.array_equal(mask, off):
                return f" at the {text} index of axis {axis}"
    if off.sum() == 1:
        return f" at {tuple(int(i) for i in np.argwhere(off)[0])}"
    return " in places"
