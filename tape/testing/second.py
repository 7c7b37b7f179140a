"""The derivative of the derivative."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from tape import jaxapi
from tape.testing.accuracy import coarse, inexact
from tape.testing.differences import Estimate
from tape.testing.evidence import Evidence
from tape.testing.executables import Program
from tape.testing.findings import Finding, Item, Note, Vote, doubt, fail, line
from tape.testing.judgement import ask, decide, is_of_jax
from tape.testing.marks import scale_of
from tape.testing.measurement import Measurement, user_rules
from tape.testing.precise import Precise
from tape.testing.probes import NUDGE
from tape.testing.untraced import Untraced

APPROXIMATE = 1e-2  # JAX's special functions approximate in pieces, whose derivatives are less exact than they are
CLEAR = 1e-4  # relative error of a second derivative that tells two apart


def check_second(evidence: Evidence, votes: Sequence[Mapping[str, str]], *, settled: bool) -> Iterator[Item]:
    """Compare the pullback of the pullback with JAX's of the bare function: for the arguments and for the cotangents."""
    chosen = [b for b in evidence.seen if evidence.probes.pairs[b].why in evidence.probes.plain]
    points: list[Any] = []
    us: list[Any] = []
    for b in chosen:
        x, ct = evidence.at(b)
        points += [[*x, *ct], [*[a * (1 + NUDGE) for a in x], *ct]]
        us += [evidence.probes.direction(evidence.probes.pairs[b].point)] * 2
    ways: tuple[Any, ...] = (
        (_by_differences,) if evidence.by_differences else (_traced, _by_differences) if evidence.explore else (_traced,)
    )
    compared = twice = None
    try:
        if evidence.explore and not evidence.untraced:
            twice = _twice(evidence)
    except Exception as e:  # noqa: BLE001 - a rule need not be differentiable
        ways, error = (), line(e)
    for prepare in ways:
        try:
            gradients = prepare(evidence, twice)
            gradients.eps = evidence.measurement.eps
            if gradients.alone and "numeric" not in evidence.against:
                return
            compared = gradients.compare(points, us)
            break
        except Exception as e:  # noqa: BLE001 - some loops have no reverse mode
            error = line(e)
    if compared is None:
        yield Note(f"the second derivative was not checked: it raises {error}")  # which nobody will take for a gradient
        return
    if any(v.get("jax") == "odd one out" for v in votes):
        yield from _ask_values(evidence, gradients, compared, chosen, points, us)
        return
    at_kink = any(v.get("jax") == "kink" for v in votes)
    for k in range(len(compared["r"])):
        verdict = _judged(evidence, gradients, compared, k, chosen, points, us, twice, at_kink=at_kink)
        if verdict is not None:
            yield verdict
            settled |= verdict.verdict in {"fail", "inaccurate"}
    if not settled and not evidence.by_differences and evidence.asks_values:
        yield from _ask_curvature(evidence, compared, chosen, us, len(votes))


def _share(evidence: Evidence) -> float:
    """What relative error is accepted where differences judge the second derivative."""
    rules = (
        []
        if evidence.untraced or evidence.subject.kind == "tape" or evidence.subject.own_vjp is not None
        else user_rules(evidence.value_jaxpr)
    )
    return APPROXIMATE if rules and all(map(is_of_jax, rules)) else 10 * evidence.rtol


def _twice(evidence: Evidence) -> Precise:
    n, m = len(evidence.traced), len(evidence.shapes)
    twice, _ = jaxapi.trace(
        lambda *a: tuple(evidence.subject.pull_twice(a[:n], a[n : n + m], a[n + m :])), *evidence.traced, *evidence.shapes, *evidence.traced
    )
    return evidence.precise(twice)


def _traced(evidence: Evidence, twice: Precise | None) -> Measurement:
    n, m, measurement = len(evidence.traced), len(evidence.shapes), evidence.measurement

    def bare(*a: jax.Array) -> Any:
        return measurement.reference(a[:n], a[n:])[1]

    def bare_twice(a: Sequence[jax.Array], us: Sequence[jax.Array]) -> Any:
        gs, back = jax.vjp(bare, *a)
        return gs, list(back(list(us)))

    kind, believed = f"second after {measurement.mode}", measurement.believed
    if measurement.rule is None or twice is None:
        return Measurement(bare, 0, None, bare_twice, kind=kind, parts=[evidence.value])
    first = measurement.rule
    parts = [evidence.value, first, *([] if believed is None else [believed])]
    second = Measurement(lambda *a: first(*a)[m:], 0, twice, bare_twice, kind=f"{kind}, {len(parts)}", parts=parts)
    second.believed = second.rule if measurement.alone else None
    return second


def _by_differences(evidence: Evidence, twice: Precise | None) -> Untraced:
    """Compare with differences of the first derivative."""
    n, m, subject = len(evidence.traced), len(evidence.shapes), evidence.subject
    if twice is None:
        return Untraced(lambda a, us: ([], subject.pull_twice(a[:n], a[n:], us)), lambda *a: subject.pull(a[:n], a[n:])[1], evidence.seed)
    first = Program("rule", evidence.rule, [evidence.rule])
    second = Program("rule", twice, [twice])
    return Untraced(lambda a, us: ([], second(*a, *us)), lambda *a: first(*a)[m:], evidence.seed)


def _ask_values(
    evidence: Evidence, gradients: Measurement | Untraced, compared: dict[str, Any], chosen: list[int], points: list[Any], us: list[Any]
) -> Iterator[Finding]:
    """Compare with differences of the first derivative alone: JAX's derivative of the bare function is the odd one out."""
    directions = [
        [*evidence.probes.direction(evidence.probes.pairs[b].point), *points[2 * j][len(evidence.traced) :]] for j, b in enumerate(chosen)
    ]
    tasks = [(points[2 * j], v, us[2 * j]) for j, v in enumerate(directions)]
    wrong = []
    for j, (b, v, (both, high, low, _)) in enumerate(zip(chosen, directions, gradients.slopes(tasks), strict=True)):
        with np.errstate(invalid="ignore"):
            g = sum(float(np.sum(a[2 * j] * d).real) for a, d in zip(compared["g"], v, strict=True))
            slack = _share(evidence) * sum(float(np.abs(a[2 * j] * d).sum()) for a, d in zip(compared["g"], v, strict=True))
        if decide(both, high, low, float("nan"), g, slack) in {"wrong", "outside"}:
            wrong.append((b, both.value, g))
    if any(evidence.probes.pairs[b].point != 0 for b, _, _ in wrong):
        b, r, g = wrong[0]
        details = {"why": evidence.probes.pairs[b].why, "expected": np.asarray(r), "got": np.asarray(g)}
        yield fail(None, "second", "the first derivative is right, the second is not", **details)


def _ask_curvature(evidence: Evidence, compared: dict[str, Any], chosen: list[int], us: list[Any], arguments: int) -> Iterator[Item]:
    """Ask the function's values: after the first derivative's share, what remains of them along a direction goes with the second's."""
    for j, b in enumerate(chosen):
        pair = evidence.probes.pairs[b]
        if any(np.iscomplexobj(a) for a in us[2 * j]):
            return
        along = _curved(evidence, b, us[2 * j])
        got, slack = _second_along(evidence, compared, j, us[2 * j])
        if not np.isfinite(got) or not np.isfinite(along.error):
            continue
        wrong = along.apart(got, slack)
        for k in range(arguments):
            yield Vote(k, "taylor", "wrong" if wrong else "right")
        if wrong and pair.point != 0:
            message = "the first derivative is right, but differences of the function's values contradict the second"
            yield fail(None, "second", message, why=pair.why, pair=b, expected=np.asarray(along.value), got=np.asarray(got))
            return


def _curved(evidence: Evidence, b: int, v: list[Any]) -> Estimate:
    """The second derivative along a direction that the function's values have."""
    x, ct = evidence.at(b)
    return evidence.measurement.curvature(x, v, ct)  # type: ignore[no-any-return]


def _second_along(evidence: Evidence, compared: dict[str, Any], j: int, v: list[Any], of: str = "g") -> tuple[float, float]:
    """The second derivative along a direction that rule (``"g"``) or reference (``"r"``) has, and how far off rounding may have it."""
    with np.errstate(invalid="ignore"):
        products = [g[2 * j] * a for g, a in zip(compared[of], v, strict=False)]
        moved = [(r[2 * j] - r[2 * j + 1]) * a for r, a in zip(compared["r"], v, strict=False)]
        got = sum(float(p.sum()) for p in products)
        slack = sum(_share(evidence) * float(np.abs(p).sum()) + 20 * float(np.abs(m).sum()) for p, m in zip(products, moved, strict=True))
    return got, slack


def _values_agree(
    evidence: Evidence, gradients: Measurement | Untraced, point: list[list[Any]], direction: list[Any], k: int, bad: np.ndarray, b: int
) -> bool:
    """Tell whether the function's values have the rule's second derivative by some elements of an argument, and not the reference's.

    A branch for one point alone, as at a removable singularity, has no derivatives unless its rule says so. Only the elements in doubt
    (``bad``) are moved, all as far: beside others that are right, the share of one of them would be lost in what rounding allows.
    ``point`` is the arguments with cotangents, and the same nudged.
    """
    if evidence.by_differences or not evidence.asks_values or any(np.iscomplexobj(a) for a in direction):
        return False
    n = len(evidence.traced)
    length = np.sqrt(np.mean(np.square(direction[k])))
    v = [np.where(bad, np.copysign(length, d), 0.0) if i == k else np.zeros_like(d) for i, d in enumerate(direction)]
    compared = gradients.compare(point, [v, v])
    along = _curved(evidence, b, v[:n])
    right, wrong = (not along.apart(*_second_along(evidence, compared, 0, v, of)) for of in ("g", "r"))
    return right and not wrong and bool(along.error < CLEAR * abs(along.value))


def _judged(
    evidence: Evidence,
    gradients: Measurement | Untraced,
    compared: dict[str, Any],
    k: int,
    chosen: list[int],
    points: list[Any],
    us: list[Any],
    twice: Precise | None,
    *,
    at_kink: bool,
) -> Finding | None:
    n = len(evidence.traced)
    wrong: dict[int, np.ndarray] = {}
    for j, b in enumerate(chosen):
        r, twin, g = compared["r"][k][2 * j], compared["r"][k][2 * j + 1], compared["g"][k][2 * j]
        with np.errstate(invalid="ignore"):
            size = sum(float(np.abs(np.nan_to_num(q[2 * b] * u)).sum()) for q, u in zip(evidence.measured["r"], us[2 * j], strict=True))
            scale: Any = scale_of(points[2 * j][k]) if k < n else 1.0
            tolerance = evidence.tolerance(r, twin, 1e3 * np.finfo(float).eps * size / scale) + (_share(evidence) - evidence.rtol) * np.abs(
                r
            )
            off = ~((np.abs(g - r) <= tolerance) | (g == r) | (np.isnan(g) & np.isnan(r)) | ~np.isfinite(r))
        if off.any():
            wrong[j] = off
    if not wrong:
        return None
    generic = [j for j in wrong if evidence.probes.pairs[chosen[j]].point != 0]
    if not generic and at_kink:
        return None  # where the first derivative is one of several, there is no second one
    j = (generic or list(wrong))[0]
    if not generic and k < n and _values_agree(evidence, gradients, points[2 * j : 2 * j + 2], us[2 * j], k, wrong[j], chosen[j]):
        return None
    rs, gs = ([a[2 * j] for a in compared[key]] for key in ("r", "g"))
    with np.errstate(invalid="ignore"):
        ratio = np.where(wrong[j], np.nan_to_num(np.abs(gs[k] - rs[k]), nan=np.inf, posinf=np.inf), 0)
    answer = ask(evidence, gradients, points[2 * j], us[2 * j], k, rs, gs, ratio, {k: wrong[j]}, _share(evidence))
    b = chosen[j]
    details = {"why": evidence.probes.pairs[b].why, "expected": rs[k], "got": gs[k], "pair": b}
    if (
        answer in {"wrong", "outside", "unknown"}
        and twice is not None
        and inexact(evidence, twice, [*points[2 * j], *us[2 * j]], k, rs[k], gs[k])
    ):
        return coarse(k, "second", **details) if k < n else None
    if answer == "wrong" or (generic and not evidence.by_differences and answer in {"outside", "unknown"}):
        what = "the second is not" if k < n else "it does not depend on the cotangent as it should"
        return fail(k if k < n else None, "second", f"the first derivative is right, {what}", **details)
    if answer not in {"right", "kink"} and k < n:
        return doubt(k, "second", "a kink of the derivative at the given point", **details)
    return None
