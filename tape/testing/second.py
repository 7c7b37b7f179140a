"""The derivative of the derivative."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tape import jaxapi
from tape.testing.accuracy import inexact
from tape.testing.executables import Program
from tape.testing.judgement import ask, decide, is_of_jax
from tape.testing.measurement import Measurement, user_rules
from tape.testing.probes import NUDGE, scale_of
from tape.testing.untraced import Untraced

if TYPE_CHECKING:
    from tape.testing.differences import Estimate
    from tape.testing.examination import Examination
    from tape.testing.precise import Precise

__all__ = ["check_second"]

APPROXIMATE = 1e-2  # JAX's special functions approximate in pieces, whose derivatives are less exact than they are
CLEAR = 1e-4  # relative error of a second derivative that tells two apart


def check_second(exam: Examination) -> None:
    """Compare the pullback of the pullback with JAX's of the bare function: for the arguments and for the cotangents."""
    chosen = [b for b in exam.seen if exam.probes.pairs[b].why in exam.probes.plain]
    points: list[Any] = []
    us: list[Any] = []
    for b in chosen:
        pair = exam.probes.pairs[b]
        x, ct = exam.probes.points[pair.point], exam.probes.cotangents[pair.cotangent]
        points += [[*x, *ct], [*[a * (1 + NUDGE) for a in x], *ct]]
        us += [exam.probes.direction(pair.point)] * 2
    ways: tuple[Any, ...] = (_by_differences,) if exam.by_differences else (_traced, _by_differences) if exam.explore else (_traced,)
    found = twice = None
    try:
        if exam.explore and not exam.untraced:
            twice = _twice(exam)
    except Exception as e:  # noqa: BLE001 - a rule need not be differentiable
        ways, error = (), exam.line(e)
    for prepare in ways:
        try:
            gradients = prepare(exam, twice)
            gradients.eps = exam.measurement.eps
            if gradients.alone and "numeric" not in exam.against:
                return
            found = gradients.compare(points, us)
            break
        except Exception as e:  # noqa: BLE001 - some loops have no reverse mode
            error = exam.line(e)
    if found is None:
        exam.notes.append(f"no second derivative: it raises {error}")  # nobody will take that for a gradient
        return
    if any(v.get("jax") == "odd one out" for v in exam.votes):
        _ask_values(exam, gradients, found, chosen, points, us)
        return
    for k in range(len(found["r"])):
        _judge(exam, gradients, found, k, chosen, points, us, twice)
    if not exam.settled and not exam.by_differences and exam.asks_values:
        _ask_curvature(exam, found, chosen, us)


def _share(exam: Examination) -> float:
    """What relative error is accepted where differences judge the second derivative."""
    rules = [] if exam.untraced or exam.subject.kind == "tape" or exam.subject.own_vjp is not None else user_rules(exam.value_jaxpr)
    return APPROXIMATE if rules and all(map(is_of_jax, rules)) else 10 * exam.rtol


def _twice(exam: Examination) -> Precise:
    n, m = len(exam.traced), len(exam.shapes)
    twice, _ = jaxapi.trace(
        lambda *a: tuple(exam.subject.pull_twice(a[:n], a[n : n + m], a[n + m :])), *exam.traced, *exam.shapes, *exam.traced
    )
    return exam.precise(twice)


def _traced(exam: Examination, twice: Precise | None) -> Measurement:
    n, m, measurement = len(exam.traced), len(exam.shapes), exam.measurement

    def bare(*a: Any) -> Any:
        return measurement.reference(a[:n], a[n:])[1]

    def bare_twice(a: Any, us: Any) -> Any:
        gs, back = jax.vjp(bare, *a)
        return gs, list(back(list(us)))

    kind, believed = f"second after {measurement.mode}", measurement.believed
    if measurement.rule is None or twice is None:
        return Measurement(bare, 0, None, bare_twice, kind=kind, parts=[exam.value])
    first = measurement.rule
    parts = [exam.value, first, *([] if believed is None else [believed])]
    made = Measurement(lambda *a: first(*a)[m:], 0, twice, bare_twice, kind=f"{kind}, {len(parts)}", parts=parts)
    made.believed = made.rule if measurement.alone else None
    return made


def _by_differences(exam: Examination, twice: Precise | None) -> Any:
    """Compare with differences of the first derivative."""
    n, m, subject = len(exam.traced), len(exam.shapes), exam.subject
    if twice is None:
        return Untraced(lambda a, us: ([], subject.pull_twice(a[:n], a[n:], us)), lambda *a: subject.pull(a[:n], a[n:])[1], exam.seed)
    first = Program("rule", exam.rule, [exam.rule])
    second = Program("rule", twice, [twice])
    return Untraced(lambda a, us: ([], second(*a, *us)), lambda *a: first(*a)[m:], exam.seed)


def _ask_values(exam: Examination, gradients: Any, found: dict[str, Any], chosen: list[int], points: list[Any], us: list[Any]) -> None:
    """Compare with differences of the first derivative alone: JAX's derivative of the bare function is the odd one out."""
    directions = [[*exam.probes.direction(exam.probes.pairs[b].point), *points[2 * j][len(exam.traced) :]] for j, b in enumerate(chosen)]
    tasks = [(points[2 * j], v, us[2 * j]) for j, v in enumerate(directions)]
    wrong = []
    for j, (b, v, (both, high, low, _)) in enumerate(zip(chosen, directions, gradients.slopes(tasks), strict=True)):
        with np.errstate(invalid="ignore"):
            g = sum(float(np.sum(a[2 * j] * d).real) for a, d in zip(found["g"], v, strict=True))
            slack = _share(exam) * sum(float(np.abs(a[2 * j] * d).sum()) for a, d in zip(found["g"], v, strict=True))
        if decide(both, high, low, float("nan"), g, slack) in {"wrong", "outside"}:
            wrong.append((b, both.value, g))
    if any(exam.probes.pairs[b].point != 0 for b, _, _ in wrong):
        b, r, g = wrong[0]
        details = {"why": exam.probes.pairs[b].why, "expected": np.asarray(r), "got": np.asarray(g)}
        exam.fail(None, "second", "the first derivative is right, the second is not", **details)


def _ask_curvature(exam: Examination, found: dict[str, Any], chosen: list[int], us: list[Any]) -> None:
    """Ask the function's values: after the first derivative's share, what remains of them along a direction goes with the second's."""
    for j, b in enumerate(chosen):
        pair = exam.probes.pairs[b]
        if any(np.iscomplexobj(a) for a in us[2 * j]):
            return
        along = _curved(exam, b, us[2 * j])
        got, slack = _second_along(exam, found, j, us[2 * j])
        if not np.isfinite(got) or not np.isfinite(along.error):
            continue
        wrong = along.apart(got, slack)
        for votes in exam.votes:
            votes["taylor"] = "wrong" if wrong else "right"
        if wrong and pair.point != 0:
            message = "the first derivative is right, the function's values say another second one"
            exam.fail(None, "second", message, why=pair.why, pair=b, expected=np.asarray(along.value), got=np.asarray(got))
            return


def _curved(exam: Examination, b: int, v: list[Any]) -> Estimate:
    """The second derivative along a direction that the function's values have."""
    pair = exam.probes.pairs[b]
    return exam.measurement.curvature(exam.probes.points[pair.point], v, exam.probes.cotangents[pair.cotangent])  # type: ignore[no-any-return]


def _second_along(exam: Examination, found: dict[str, Any], j: int, v: list[Any], of: str = "g") -> tuple[float, float]:
    """The second derivative along a direction that rule (``"g"``) or reference (``"r"``) has, and how far off rounding may have it."""
    with np.errstate(invalid="ignore"):
        products = [g[2 * j] * a for g, a in zip(found[of], v, strict=False)]
        moved = [(r[2 * j] - r[2 * j + 1]) * a for r, a in zip(found["r"], v, strict=False)]
        got = sum(float(p.sum()) for p in products)
        slack = sum(_share(exam) * float(np.abs(p).sum()) + 20 * float(np.abs(m).sum()) for p, m in zip(products, moved, strict=True))
    return got, slack


def _values_agree(exam: Examination, found: dict[str, Any], j: int, b: int, v: list[Any]) -> bool:
    """Tell whether the function's values have the rule's second derivative along a direction, and not the reference's.

    A branch for one point alone, as at a removable singularity, has no derivatives unless its rule says so.
    """
    if exam.by_differences or not exam.asks_values or any(np.iscomplexobj(a) for a in v):
        return False
    along = _curved(exam, b, v)
    right, wrong = (not along.apart(*_second_along(exam, found, j, v, of)) for of in ("g", "r"))
    return right and not wrong and bool(along.error < CLEAR * abs(along.value))


def _judge(
    exam: Examination,
    gradients: Any,
    found: dict[str, Any],
    k: int,
    chosen: list[int],
    points: list[Any],
    us: list[Any],
    twice: Precise | None,
) -> None:
    n = len(exam.traced)
    wrong: dict[int, np.ndarray] = {}
    for j, b in enumerate(chosen):
        r, twin, g = found["r"][k][2 * j], found["r"][k][2 * j + 1], found["g"][k][2 * j]
        with np.errstate(invalid="ignore"):
            size = sum(float(np.abs(np.nan_to_num(q[2 * b] * u)).sum()) for q, u in zip(exam.found["r"], us[2 * j], strict=True))
            scale: Any = scale_of(points[2 * j][k]) if k < n else 1.0
            tolerance = exam.tolerance(r, twin, 1e3 * np.finfo(float).eps * size / scale) + (_share(exam) - exam.rtol) * np.abs(r)
            off = ~((np.abs(g - r) <= tolerance) | (g == r) | (np.isnan(g) & np.isnan(r)) | ~np.isfinite(r))
        if off.any():
            wrong[j] = off
    if not wrong:
        return
    generic = [j for j in wrong if exam.probes.pairs[chosen[j]].point != 0]
    if not generic and any(v.get("jax") == "kink" for v in exam.votes):
        return  # where the first derivative is one of several, there is no second one
    j = (generic or list(wrong))[0]
    if not generic and k < n and _values_agree(exam, found, j, chosen[j], us[2 * j]):
        return
    rs, gs = ([a[2 * j] for a in found[key]] for key in ("r", "g"))
    with np.errstate(invalid="ignore"):
        ratio = np.where(wrong[j], np.nan_to_num(np.abs(gs[k] - rs[k]), nan=np.inf, posinf=np.inf), 0)
    answer = ask(exam, gradients, points[2 * j], us[2 * j], k, rs, gs, ratio, {k: wrong[j]}, _share(exam))
    b = chosen[j]
    details = {"why": exam.probes.pairs[b].why, "expected": rs[k], "got": gs[k], "pair": b}
    if (
        answer in {"wrong", "outside", "unknown"}
        and twice is not None
        and inexact(exam, twice, [*points[2 * j], *us[2 * j]], k, rs[k], gs[k])
    ):
        if k < n:
            exam.coarse(k, "second", **details)
        return
    if answer == "wrong" or (generic and not exam.by_differences and answer in {"outside", "unknown"}):
        what = "the second is not" if k < n else "it does not depend on the cotangent as it should"
        exam.fail(k if k < n else None, "second", f"the first derivative is right, {what}", **details)
    elif answer not in {"right", "kink"} and k < n:
        exam.doubt(k, "second", "a kink of the derivative at the given point", **details)
