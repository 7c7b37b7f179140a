"""Patterns that a wrong rule leaves in the numbers of a gradient."""

from __future__ import annotations

import numpy as np

_TURNED = "of the right size, but turned: a factor is conjugated, or should be"


Seen = tuple[np.ndarray, np.ndarray]


def pattern_of(r: np.ndarray, g: np.ndarray, at: np.ndarray | None, seen: Seen | None = None) -> str:
    """Say how ``g`` differs from ``r``; ``seen`` has the numbers for which it was wrong and those for which it was right, at all points."""
    if r.shape != g.shape:
        return f"shape {g.shape} instead of {r.shape}"
    if not np.all(np.isfinite(g)):
        return "NaN" + _where(~np.isfinite(g), at) if np.any(np.isnan(g)) else "infinite" + _where(~np.isfinite(g), at)
    if not np.any(np.isfinite(r)):
        return "finite where the derivative is not"
    if not np.all(np.isfinite(r)):
        r, g = np.where(np.isfinite(r), r, 0), np.where(np.isfinite(r), g, 0)
    scale = float(np.max(np.abs(r), initial=0))
    if close(g, np.zeros_like(g)):
        return "zero everywhere" if scale else "the derivative is zero"
    if scale == 0:
        return "not zero, though the derivative is"
    if close(g, r):
        small = ~(np.abs(g - r) <= 1e-5 * np.abs(r))
        if small.any() and not small.all():  # what is wrong is small beside the rest
            return pattern_of(r[small], g[small], None).removesuffix(" everywhere") + _where(small, at, seen)
        return f"off by {float(np.max(np.abs(g - r))) / scale:.1g} of its size"
    if close(g, -r):
        return "sign flipped"
    if np.iscomplexobj(r) and close(g, r.conj()):
        return "conjugated"
    for text, kept in (("imaginary", r.real), ("real", r - r.real)) if np.iscomplexobj(r) else ():
        if close(g, kept):
            return f"the {text} part is missing"
    shaped = _shape_pattern(r, g)
    if shaped:
        return shaped
    off = ~(np.abs(g - r) <= 1e-5 * np.abs(r) + 1e-12 * scale)
    if not off.any():
        return f"off by {float(np.max(np.abs(g - r))) / scale:.1g} of its size"
    moving = np.abs(r) > 1e-9 * scale
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = (g / r)[moving & off]
    everywhere = np.all(off | ~moving)
    where = (
        ("" if everywhere else _part(off))
        or ties_of(off, at)
        or (("where " + bounds if (bounds := seen and region(*seen)) else "everywhere") if everywhere else _where(off, at, seen).strip())
    )
    if ratio.size and np.all(np.abs(ratio - ratio[0]) <= 0.02 * np.abs(ratio[0] - 1)) and np.all(moving | ~off):
        factor = ratio[0]
        if np.all(np.abs(ratio) < 1e-12):
            return f"zero {where}"
        if abs(np.imag(factor)) > 1e-6 * abs(factor):
            turned = r.size == 1 and abs(abs(factor) - 1) < 1e-6
            return _TURNED if turned else f"{factor:.4g} times the derivative {where}"
        factor = np.real(factor)
        if abs(factor + 1) < 1e-6:
            return f"sign flipped {where}"
        if factor <= 0:
            return f"{factor:.4g} times the derivative {where}"
        size, more = (factor, "large") if factor > 1 else (1 / factor, "small")
        return f"{size:.6g}x too {more} {where}{_length(size, r.shape) if where == 'everywhere' else ''}"
    if np.iscomplexobj(r) and np.any(r.imag) and close(np.abs(g), np.abs(r)):
        return _TURNED
    difference = (g - r)[off]
    if difference.size > 1 and np.all(np.abs(difference - difference[0]) <= 1e-5 * np.abs(difference[0])):
        return f"off by the constant {difference[0]:.4g} {where}"
    if off.sum() < off.size:
        return f"wrong{_where(off, at, seen)} ({int(off.sum())} of {off.size} elements)"
    return f"wrong {where}" if off.size > 1 or where != "everywhere" else "wrong"


def _shape_pattern(r: np.ndarray, g: np.ndarray) -> str:
    """Say whether elements are in the wrong place, or added up or not."""
    if r.ndim == 2 and r.shape[0] == r.shape[1] > 1 and close(g, r.T):
        return "transposed"
    for axis in range(r.ndim):
        if r.shape[axis] < 2:
            continue
        if close(g, np.flip(r, axis)):
            return f"reversed along axis {axis}"
        if close(g, np.roll(np.flip(r, axis), 1, axis)):
            return f"reversed along axis {axis} behind its first index, as a Fourier transform is that goes the other way"
        for shift in (1, -1):
            if close(g, np.roll(r, shift, axis)) or close(_inside(g, shift, axis), _inside(np.roll(r, shift, axis), shift, axis)):
                return f"off by one along axis {axis}"
        average = np.broadcast_to(r.mean(axis, keepdims=True), r.shape)
        if close(g, average * r.shape[axis]) and not close(r, average):
            return f"summed over axis {axis}, which was not broadcast"
        if close(g, average):
            return f"averaged over axis {axis}"
        if close(g, np.cumsum(r, axis)):
            return f"added up along axis {axis}"
    if r.size > 1 and all(close(np.sort(a.ravel()), np.sort(b.ravel())) for a, b in ((g.real, r.real), (g.imag, r.imag))):
        return "the right numbers in the wrong places"
    return ""


def _length(factor: float, shape: tuple[int, ...]) -> str:
    """Say which axis is as long as a factor, for that is how a mean differs from a sum."""
    axes = [axis for axis, n in enumerate(shape) if n > 2 and abs(factor - n) < 1e-4 * n]
    return f", which is the size of axis {axes[0]}" if axes else ""


def ties_of(off: np.ndarray, at: np.ndarray | None, *, all_may: bool = False) -> str:
    """Say whether all that is off are elements equal to others, and some elements are not (unless ``all_may``)."""
    if at is None or np.iscomplexobj(at) or at.shape != off.shape or not at[off].any():
        return ""
    _, places, counts = np.unique(at, return_inverse=True, return_counts=True)
    tied = (counts > 1)[places].reshape(at.shape)
    return "where elements are equal" if np.all(tied[off]) and (all_may or not np.all(tied)) else ""


def _inside(x: np.ndarray, shift: int, axis: int) -> np.ndarray:
    """Leave out what comes round the edge."""
    if x.shape[axis] < 3:
        return np.full(1, np.nan)
    return np.take(x, range(1, x.shape[axis]) if shift > 0 else range(x.shape[axis] - 1), axis)


def close(a: np.ndarray, b: np.ndarray) -> bool:
    """Tell whether ``a`` is ``b`` but for noise of double precision."""
    scale = float(np.max(np.abs(b), initial=0))
    with np.errstate(invalid="ignore"):
        return bool(a.size and np.all(np.abs(a - b) <= 1e-6 * np.abs(b) + 1e-9 * scale))


def _where(off: np.ndarray, at: np.ndarray | None, seen: Seen | None = None) -> str:
    """Say what the elements in question have in common."""
    if np.all(off):
        return " everywhere"
    if part := _part(off):
        return f" {part}"
    if at is not None and not np.iscomplexobj(at) and at.shape == off.shape:
        bounds = region(*(seen or (at[off], at[~off])))
        if bounds:
            return f" where {bounds}"
    for axis in range(off.ndim):
        for text, i in (("first", 0), ("last", -1)):
            mask = np.zeros_like(off)
            mask[(slice(None),) * axis + (i,)] = True
            if np.array_equal(mask, off):
                return f" at the {text} index of axis {axis}"
    if off.sum() == 1:
        return f" at {tuple(int(i) for i in np.argwhere(off)[0])}"
    return " in places"


def _part(off: np.ndarray) -> str:
    """Say which part of a square matrix is off, of one that is large enough for that to be no chance."""
    if off.ndim != 2 or off.shape[0] != off.shape[1] or off.shape[0] < 3:
        return ""
    below, on = np.tri(len(off), k=-1, dtype=bool), np.eye(len(off), dtype=bool)
    parts = {"below": below, "above": below.T, "on": on, "off": ~on, "on and below": on | below, "on and above": on | below.T}
    return next((f"{text} the diagonal" for text, part in parts.items() if np.array_equal(part, off)), "")


def region(off: np.ndarray, right: np.ndarray) -> str:
    """Say which side of a number, or between which two, all of ``off`` are and none of ``right``; they are the roundest that there are."""
    if not off.size or not right.size:
        return ""
    if not np.any(np.isfinite(off)) and np.all(np.isfinite(right)):
        return "x is not finite"
    for text, tell in (("x < 0", np.less), ("x > 0", np.greater), ("x = 0", np.equal), ("x != 0", np.not_equal)):
        if np.all(tell(off, 0)) and not np.any(tell(right, 0)):
            return text
    if np.all(off == np.round(off)) and not np.any(right == np.round(right)):
        return "x is a whole number" if np.unique(off).size > 1 else f"x = {off[0]:g}"
    if min(np.unique(off).size, np.unique(right).size) < 2:
        return ""
    for name, a, b in (("x", off, right), ("|x|", np.abs(off), np.abs(right))):
        for sign, low, high, wrong in (("<", np.max(a), np.min(b), np.max(a)), (">", np.max(b), np.min(a), np.min(a))):
            if low < high:
                bound = _round(low, high, closed=True)
                return f"{name} {sign}{'=' if bound == wrong else ''} {bound:g}"
    for name, a, b in (("x", off, right), ("|x|", np.abs(off), np.abs(right))):
        below, above = b[b < np.min(a)], b[b > np.max(a)]
        if below.size + above.size == b.size:
            return f"{_round(np.max(below), np.min(a)):g} < {name} < {_round(np.max(a), np.min(above)):g}"
    return ""


def _round(low: float, high: float, *, closed: bool = False) -> float:
    """Return the roundest number between two, or one of them."""
    middle = 0.5 * (low + high)
    return next((r for r in (np.round(middle, k) for k in range(-3, 6)) if low < r < high or (closed and r in (low, high))), middle)
