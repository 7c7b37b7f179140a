"""The derivative of the derivative."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tape import jaxapi
from tape.testing.judgement import ask
from tape.testing.measurement import Measurement, compiled, stack
from tape.testing.precise import Precise
from tape.testing.probes import NUDGE, scale_of

if TYPE_CHECKING:
    from tape.testing.examination import Examination

__all__ = ["check_second"]


def check_second(exam: Examination) -> None:
    """Compare the pullback of the pullback with JAX's of the bare function: for the arguments and for the cotangents."""
    n, m = len(exam.traced), len(exam.shapes)
    subject = exam.subject
    try:
        closed, _ = jaxapi.trace(
            lambda *a: tuple(subject.pull_twice(a[:n], a[n : n + m], a[n + m :])), *exam.traced, *exam.shapes, *exam.traced
        )
    except Exception as e:  # noqa: BLE001 - a rule need not be differentiable
        exam.doubt(None, "second", f"the second derivative raises {exam.line(e)}")
        return
    if any(v.get("jax") == "odd one out" for v in exam.votes):
        exam.doubt(None, "second", "JAX's derivative of the bare function is not to be trusted here: no reference for the second")
        return
    rule, measurement = Precise(closed), exam.measurement

    def both(item: Any) -> Any:
        xs, cts, us = item
        _, back = jax.vjp(lambda *b: measurement.reference(b[:n], b[n:])[1], *xs, *cts)
        return list(back(list(us))), rule(*xs, *cts, *us)

    chosen = [b for b in exam.seen if exam.probes.pairs[b].why in exam.probes.plain]
    points, cts, us = [], [], []
    for b in chosen:
        pair = exam.probes.pairs[b]
        x = exam.probes.points[pair.point]
        points += [x, [a * (1 + NUDGE) for a in x]]
        cts += [exam.probes.cotangents[pair.cotangent]] * 2
        us += [exam.probes.direction(pair.point)] * 2
    try:
        with jax.enable_x64(True):
            expected, got = compiled(lambda batch: jax.lax.map(both, batch))((stack(points), stack(cts), stack(us)))
    except Exception as e:  # noqa: BLE001 - some loops have no reverse mode
        exam.doubt(None, "second", f"there is no second derivative to compare with: {exam.line(e)}")
        return
    for k, (rs, gs) in enumerate(zip(expected, got, strict=True)):
        wrong: dict[int, np.ndarray] = {}
        for j, b in enumerate(chosen):
            r, twin, g = np.asarray(rs[2 * j]), np.asarray(rs[2 * j + 1]), np.asarray(gs[2 * j])
            size = sum(float(np.abs(np.nan_to_num(q[2 * b] * u)).sum()) for q, u in zip(exam.found["r"], us[2 * j], strict=True))
            scale: Any = scale_of(exam.probes.points[exam.probes.pairs[b].point][k]) if k < n else 1.0
            tolerance = exam.tolerance(r, twin, 1e3 * np.finfo(float).eps * size / scale) + 9 * exam.rtol * np.abs(r)
            with np.errstate(invalid="ignore"):
                off = ~((np.abs(g - r) <= tolerance) | (g == r) | (np.isnan(g) & np.isnan(r)) | ~np.isfinite(r))
            if off.any():
                wrong[j] = off
        if not wrong:
            continue
        generic = [w for w in wrong if exam.probes.pairs[chosen[w]].point != 0]
        j = (generic or list(wrong))[0]
        answer = _asked(
            exam,
            points[2 * j],
            cts[2 * j],
            us[2 * j],
            k,
            [np.asarray(a[2 * j]) for a in expected],
            [np.asarray(a[2 * j]) for a in got],
            wrong[j],
        )
        b, r, g = chosen[j], np.asarray(rs[2 * j]), np.asarray(gs[2 * j])
        details = {"why": exam.probes.pairs[b].why, "expected": r, "got": g, "pair": b}
        if answer == "wrong" or (generic and answer in {"outside", "unknown"}):
            what = "the second is not" if k < n else "it does not depend on the cotangent as it should"
            exam.fail(k if k < n else None, "second", f"the first derivative is right, {what}", **details)
        elif answer != "right" and k < n:
            exam.doubt(k, "second", "a kink of the derivative at the given point", **details)


def _asked(exam: Examination, xs: Any, cts: Any, us: Any, k: int, r: Any, g: Any, bad: np.ndarray) -> str:
    """Have differences of the first derivative decide."""
    first, outputs = exam.measurement.rule, len(exam.shapes)
    if exam.gradients is None:
        exam.gradients = Measurement(first, lambda *a: first(*a)[outputs:], 0)
        exam.gradients.eps = exam.measurement.eps
    with np.errstate(invalid="ignore"):
        ratio = np.where(bad, np.nan_to_num(np.abs(g[k] - r[k]), nan=np.inf, posinf=np.inf), 0)
    return ask(exam.gradients, [*xs, *cts], us, k, r, g, ratio, {k: bad}, 10 * exam.rtol)
