"""What kind of wrong a gradient is, in words."""

from __future__ import annotations

import itertools
import re

import numpy as np

from tape.testing.blame import birth
from tape.testing.evidence import Evidence
from tape.testing.findings import Finding
from tape.testing.marks import EDGE, EQUAL, SPECIAL
from tape.testing.native import BETWEEN, TURNED
from tape.testing.paths import missing
from tape.testing.patterns import close, pattern_of, region, ties_of

MANY = 3  # special values that are named
FEW = 16  # elements that are asked about one by one
UNLIKE = 1e-3  # relative; what parts two calls with the same values


def diagnosed(evidence: Evidence, finding: Finding) -> str:
    """Say in words what is wrong."""
    r, g = finding.expected, finding.got
    if finding.kind == "numeric" and g is not None and not np.all(np.isfinite(g)):
        born = birth(evidence, finding.pair)
        return f"NaN born at {born}" if born else finding.message
    if r is None or g is None or finding.verdict != "fail" or finding.kind in {"structure", "raises", "numeric", "variant"}:
        return finding.message
    born = "" if np.all(np.isfinite(g)) else birth(evidence, finding.pair)
    seen = _numbers(evidence, finding, everywhere=True)
    if seen is not None and not region(*seen):  # where branches meet, JAX's convention may be off
        seen = _numbers(evidence, finding, everywhere=False)
    plain = pattern_of(r, g, finding.at, seen)
    point = None if finding.pair is None else evidence.probes.pairs[finding.pair].point
    if point in {*evidence.probes.marked, *evidence.probes.isolated} and r.shape == g.shape:
        known = _at_values(evidence, finding, plain)
        tied = "" if known else ties_of(~(np.abs(g - r) <= 1e-5 * np.abs(r)), finding.at, all_may=True)  # where nothing tied, it was right
        plain = known or (re.sub(r" (everywhere|in places)", f" {tied}", plain) if tied else plain)
    if edge := _edge(evidence, finding):
        plain = re.sub(r" (everywhere|in places|where .*|at .*)$", "", plain) + f" where {edge}"
    pattern = f"NaN born at {born}" if born else _sum_missing(evidence, finding) or _of_another(evidence, finding, plain) or plain
    if re.match("wrong|off by the constant", pattern) and finding.kind == "first":
        step = missing(evidence, finding)
        pattern = f"{pattern}: {step}" if step else pattern
    if finding.kind == "first" and _unsteady(evidence, finding):
        return "another at each call, though the values are the same"
    order = "right at first order, " if finding.kind == "second" else ""
    special = _of_cotangent(evidence, finding)
    said = finding.kind == "first" or (finding.kind == "second" and "cotangent" not in finding.message)
    traced = "wrong as traced, though right op by op: " if _traced_alone(evidence, finding) else ""
    parts = [traced + (special or order + pattern)] if said else [finding.message, pattern]
    return ": ".join(p for p in parts if p)


def _edge(evidence: Evidence, finding: Finding) -> str:
    """Say behind which number the gradient is wrong, where that is what a condition of the rule says of its argument."""
    k, r, g = finding.argument, finding.expected, finding.got
    for crossing, before, behind in evidence.probes.crossings:
        if behind != finding.pair or crossing.argument != k or not crossing.each or r is None or g is None:
            continue
        this, that = (evidence.at(b)[0][k] for b in (before, behind))
        off = (np.abs(g - r) > UNLIKE * np.abs(r)) & (this != that)
        edges, sides = (this[off] + that[off]) / 2, np.sign(that[off] - this[off])
        for name, of in (("x", edges), ("|x|", np.abs(edges))):
            if of.size and np.allclose(of, of[0], rtol=1e-5, atol=1e-9) and (name == "|x|" or np.all(sides == sides[0])):
                return f"{name} {'>' if name == '|x|' or sides[0] > 0 else '<'} {of[0]:.4g}"
    return ""


def _at_values(evidence: Evidence, finding: Finding, plain: str) -> str:
    """Say for which special values the gradient is wrong, where these are few, or how arguments are related there."""
    r, g, k = finding.expected, finding.got, finding.argument
    assert r is not None and g is not None and k is not None and finding.pair is not None  # noqa: PT018 - as the caller made sure
    given, x = evidence.probes.points[0], evidence.at(finding.pair)[0]
    off = ~(np.abs(g - r) <= 1e-5 * np.abs(r))
    pattern = re.sub(r" (everywhere|in places|where .*|at .*)$", "", pattern_of(r[off], g[off], None))
    related = _related([a[off] if a.shape == off.shape else None for a in x], evidence.subject.names)
    if related and finding.why.startswith((EDGE, EQUAL)):
        return f"{pattern} where {related}"
    moved = [j for j, a in enumerate(x) if not np.array_equal(a, given[j])]
    j = moved[0] if len(moved) == 1 else k
    if not finding.why.startswith(SPECIAL) or (j == k and x[k].shape != off.shape):
        return ""
    here, there = (evidence.measured[key][k][0] for key in ("r", "g"))
    if j == k and np.all(np.abs(there - here)[off] > UNLIKE * np.abs(here)[off]):
        return ""  # it is wrong at the given point, too, where it is too small to be seen
    values = np.unique(x[k][off] if j == k else x[j][x[j] != given[j]])
    name = "x" if j == k else evidence.subject.names[j]
    said = pattern if j == k else plain.removesuffix(" everywhere")
    return f"{said} where {name} is {' or '.join(f'{v:.6g}' for v in values)}" if values.size <= MANY else ""


def _related(xs: list[np.ndarray | None], names: list[str]) -> str:
    """Say how two arguments are related: one is a multiple of the other, or their sum or product is the same in all elements."""
    for (i, a), (j, b) in itertools.combinations(enumerate(xs), 2):
        if a is None or b is None or not a.size or not np.all(b):
            continue
        alone = np.unique(a).size == 1  # then all of it holds
        for of, text in ((a / b, "{0} = {2} * {1}"), (a + b, "{0} + {1} = {2}"), (a - b, "{0} - {1} = {2}"), (a * b, "{0} * {1} = {2}")):
            if np.allclose(of, of[0], rtol=1e-6, atol=1e-9) and (not alone or abs(of[0]) == 1):
                said = text.format(names[i], names[j], f"{of[0]:.6g}")
                return said.replace("= 1 * ", "= ").replace("= -1 * ", "= -") if text.startswith("{0} = ") else said
    return ""


def _traced_alone(evidence: Evidence, finding: Finding) -> bool:
    """Say whether the same gradient was right when it was computed op by op."""
    k, r, g = finding.argument, finding.expected, finding.got
    if evidence.eager is None or finding.kind != "first" or k is None or r is None or g is None or finding.pair not in (0, evidence.nearby):
        return False
    eager = evidence.eager[0 if finding.pair == 0 else 1][k]
    return eager.shape == r.shape and bool(np.abs(eager - r).max(initial=0) < 0.01 * np.abs(g - r).max(initial=0))


def _unsteady(evidence: Evidence, finding: Finding) -> bool:
    """Tell whether the gradient was another each time that it was computed op by op at the given point."""
    k, r = finding.argument, finding.expected
    if evidence.eager is None or k is None or r is None:
        return False
    pairs = itertools.combinations([evidence.eager[turn][k] for turn in (0, BETWEEN, TURNED)], 2)
    return all(np.abs(a - b).max(initial=0) > UNLIKE * np.abs(a).max(initial=0) for a, b in pairs)


def _numbers(evidence: Evidence, finding: Finding, *, everywhere: bool) -> tuple[np.ndarray, np.ndarray] | None:
    """Return for which numbers the gradient of an argument is wrong, and for which right, if it has one for each.

    Without ``everywhere``, nothing is said to be wrong where branches meet.
    """
    k, r = finding.argument, finding.expected
    if (
        finding.kind != "first"
        or k is None
        or finding.at is None
        or r is None
        or r.shape != finding.at.shape
        or np.iscomplexobj(finding.at)
    ):
        return None
    numbers, off, moving, inside = [], [], [], []
    for b, pair in enumerate(evidence.probes.pairs):
        rule, g = evidence.measured["r"][k][2 * b], evidence.measured["g"][k][2 * b]
        if pair.point in evidence.adrift or not (np.all(np.isfinite(rule)) and np.all(np.isfinite(g))):
            continue
        scale = float(np.max(np.abs(rule), initial=0))
        bad = np.abs(g - rule) > 1e-5 * np.abs(rule) + 1e-12 * scale
        asked = everywhere or pair.point not in evidence.probes.marked
        numbers.append(evidence.probes.points[pair.point][k])
        off.append(bad & asked)
        moving.append(np.where(bad, asked, np.abs(rule) > 1e-9 * scale))
        inside.append(np.full(rule.shape, evidence.probes.inside[pair.point]))
    if not numbers:
        return None
    x, wrong, known, meant = (np.concatenate([np.ravel(a) for a in of]) for of in (numbers, off, moving, inside))
    plain = np.abs(x) > 1e-2 * np.min(np.abs(x[wrong]), initial=np.inf)  # near zero, a difference may be too small to be seen
    meant |= ~np.isin(np.sign(x), np.sign(x[wrong]))  # far out, a difference may be; of another sign, it is a branch that is right
    return x[wrong], x[known & ~wrong & plain & meant]


def _of_cotangent(evidence: Evidence, finding: Finding) -> str:
    """Say whether it is wrong for some cotangents only, or in what it does with them."""
    k, b = finding.argument, finding.pair
    if finding.kind != "first" or k is None or b is None or 0 not in evidence.seen or evidence.probes.pairs[b].point != 0:
        return ""
    pair = evidence.probes.pairs[b]
    r, g = evidence.measured["r"][k], evidence.measured["g"][k]
    with np.errstate(invalid="ignore"):
        gaps = [float(np.max(np.nan_to_num(np.abs(g[2 * i] - r[2 * i]), nan=np.inf), initial=0)) for i in (0, b)]
        sizes = [max(float(np.max(np.abs(ct), initial=0)) for ct in evidence.at(i)[1]) for i in (0, b)]
    if b == 0 or not np.allclose(r[0], g[0], rtol=1e-4, equal_nan=True) or gaps[0] * sizes[1] > 1e-2 * gaps[1] * sizes[0]:
        return _unlinear(evidence, g)
    size = float(np.max(np.abs(g[2 * b]), initial=0))
    clipped = "1e" in pair.why and size < 0.1 * float(np.max(np.abs(r[2 * b]), initial=0))
    what = f": no gradient is larger than {size:.3g}, so the cotangent is clipped" if clipped and "1e-" not in pair.why else ""
    return f"not linear in the cotangent, wrong for {pair.why}{what}"


def _unlinear(evidence: Evidence, g: np.ndarray) -> str:
    """Say whether the gradient at the given point does not follow the cotangent."""
    here = {pair.why: g[2 * b] for b, pair in enumerate(evidence.probes.pairs) if pair.point == 0}
    large = next((b for b, pair in enumerate(evidence.probes.pairs) if pair.why.startswith("a cotangent of size 1e")), 0)
    if not all(np.all(np.isfinite(x)) for x in here.values()) or not np.any(g[0]):
        return ""
    if len(here) > 2 and all(close(x, g[0]) for x in here.values()):
        return "the same for all cotangents, as if the cotangent were left out"
    zero = here.get("the cotangent zero")
    if zero is not None and np.any(zero):
        return f"not linear in the cotangent: {zero.flat[int(np.argmax(np.abs(zero)))]:.4g} for the cotangent zero"
    cts, of = (evidence.at(b)[1][0].flat[:1] for b in (large, 0))
    if of.size and not close(g[2 * large], (cts / of)[0] * g[0]):
        return f"not linear in the cotangent: the gradient for one {(cts / of)[0].real:.3g} times as large is another"
    return ""


def _of_another(evidence: Evidence, finding: Finding, plain: str) -> str:
    """Say whether the gradient is that of another argument, or has that in addition; ``plain`` is how it can be said without."""
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
                simple = "sign" in plain or "too" in plain
                return f"the gradient of {name}{said}" + (f" (or {plain})" if simple else "")
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
    if not evidence.untraced and len(cts) == 1 and cts[0].shape == r.shape and 1 < r.size <= FEW:
        own = [np.where(np.arange(r.size).reshape(r.shape) == i, cts[0], 0) for i in range(r.size)]
        rows = evidence.one_by_one([(x, [ct]) for ct in own])["r"][k]
        alone = np.array([row.flat[i] for i, row in enumerate(rows)]).reshape(r.shape)
        if close(g, alone) and not close(r, alone):
            return "as if each element of the result depended on its own element alone"
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
    return next((text for text, part in zip(texts, gradients, strict=True) if close(g, part) and not close(r, part)), "")
