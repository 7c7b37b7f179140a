"""The derivative in forward mode and under ``vmap``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tape import jaxapi
from tape.testing.executables import Program
from tape.testing.precise import equations
from tape.testing.probes import NUDGE

if TYPE_CHECKING:
    from tape.testing.examination import Examination
    from tape.testing.precise import Precise

__all__ = ["check_forward", "check_vmap"]

SIZE = 3  # of a batch


def check_forward(exam: Examination) -> None:
    """Compare forward mode, where there is one, with JAX's of the bare function."""
    n = len(exam.traced)
    if exam.by_differences:
        return
    try:
        closed, _ = jaxapi.trace(lambda *a: tuple(exam.subject.push(a[:n], a[n:])), *exam.traced, *exam.traced)
    except Exception:  # noqa: BLE001 - a custom_vjp has no forward mode
        return
    if any(eqn.primitive.name == "custom_lin" for eqn in equations(closed.jaxpr)):
        return  # nor has what contains one
    if exam.measurement.believed is not None or any(v.get("jax") == "odd one out" for v in exam.votes):
        _check_adjoint(exam, exam.precise(closed))
        return
    push, value = exam.precise(closed), exam.value

    def both(xs: Any, vs: Any) -> Any:
        _, expected = jax.jvp(value.__call__, tuple(xs), tuple(vs))
        return expected, push(*xs, *vs)

    x, v = exam.probes.points[1], exam.probes.direction(1)
    program = Program("forward", both, [value, push])
    expected, got = program(x, v)
    twins, _ = program([a * (1 + NUDGE) for a in x], v)
    for k, (r, twin, t) in enumerate(zip(*[map(np.asarray, a) for a in (expected, twins, got)], strict=True)):
        tolerance = exam.tolerance(r, twin, 1e3 * np.finfo(float).eps * np.abs(r).max(initial=0))
        if np.all(np.isfinite(r)) and np.any(~(np.abs(r - t) <= tolerance)):
            exam.fail(None, "forward", f"forward mode gives another tangent of output {k}", expected=r, got=t, why="a point nearby")
            return


def _check_adjoint(exam: Examination, push: Precise) -> None:
    """Forward mode is the pullback's adjoint: <ct, Jv> is <J'ct, v>."""
    b = exam.nearby
    if b not in exam.seen:
        return
    pair = exam.probes.pairs[b]
    x, v, cts = exam.probes.points[pair.point], exam.probes.direction(pair.point), exam.probes.cotangents[pair.cotangent]
    tangents = Program("adjoint", push, [push])(*x, *v)
    products = [np.sum(np.asarray(t) * c).real for t, c in zip(tangents, cts, strict=True)]
    with np.errstate(invalid="ignore"):
        terms = [(g[2 * b] * a).real for g, a in zip(exam.found["g"], v, strict=True)]
        moved = sum(float(np.abs((g[2 * b] - g[2 * b + 1]) * a).sum()) for g, a in zip(exam.found["g"], v, strict=True))
        expected, got = sum(float(t.sum()) for t in terms), float(sum(products))
        slack = 20 * moved + exam.rtol * (sum(float(np.abs(t).sum()) for t in terms) + float(sum(map(abs, products))))
    if np.isfinite(expected) and not abs(expected - got) <= slack:
        message = "forward mode is not the adjoint of the derivative"
        exam.fail(None, "forward", message, expected=np.asarray(expected), got=np.asarray(got), why=pair.why)


def check_vmap(exam: Examination) -> None:
    """Compare the derivative under ``vmap`` with the same derivative, one example at a time."""
    n = len(exam.traced)
    usable = [i for i in range(exam.probes.count) if i < 2 or i in {exam.probes.pairs[b].point for b in exam.seen}]
    xs = [exam.probes.points[usable[i % len(usable)]] for i in range(SIZE)]
    cts = [exam.probes.cotangents[0], exam.probes.cotangents[1], [-c for c in exam.probes.cotangents[0]]]
    singles: list[tuple[Any, Any]] = []
    runs: list[Any] = []
    direct: list[Any] = []
    variants = _variants(exam)
    for _, over_x, over_ct, count in variants:
        rows = [
            [a[j if over else 0][i] for a, chosen in ((xs, over_x), (cts, over_ct)) for i, over in enumerate(chosen)] for j in range(count)
        ]
        singles += [(row[:n], row[n:]) for row in rows]
        batched = [*over_x, *over_ct]
        avals = [
            jax.ShapeDtypeStruct(((count, *a.shape) if over else a.shape), a.dtype)
            for over, a in zip(batched, [*exam.traced, *exam.shapes], strict=True)
        ]
        axes = tuple(0 if over else None for over in batched)
        given = [np.stack(column) if over else column[0] for over, column in zip(batched, zip(*rows, strict=True), strict=True)]
        derivative: Any = jax.vmap(lambda *a: tuple(exam.subject.pull(a[:n], a[n:])[1]), in_axes=axes)
        try:
            if exam.untraced:
                with jax.enable_x64(True):
                    direct.append([np.asarray(g) for g in derivative(*given)])
            else:
                runs.append((exam.precise(jaxapi.trace(derivative, *avals)[0]), given))
        except Exception as e:  # noqa: BLE001 - not everything can be batched
            exam.notes.append(f"under vmap the derivative raises {type(e).__name__}: not checked there")
            return
    if not variants:
        return
    got = direct
    if runs:
        program = Program(
            "vmap", lambda batch: [run(*given) for (run, _), given in zip(runs, batch, strict=True)], [run for run, _ in runs]
        )
        got = program([given for _, given in runs])
    want = exam.one_by_one(singles)
    start = 0
    for (label, _, _, count), found in zip(variants, got, strict=True):
        for k, batch in enumerate(found):
            g, a, r = np.asarray(batch), want["g"][k][start : start + count], want["r"][k][start : start + count]
            if g.shape != a.shape or not _agree(g, a, r):
                exam.fail(k, "vmap", f"wrong under vmap over {label}, though right without", expected=a, got=g, why=f"vmap over {label}")
                return
        start += count


def _agree(g: np.ndarray, a: np.ndarray, r: np.ndarray) -> bool:
    with np.errstate(invalid="ignore"):
        scale = np.sqrt(np.mean(np.abs(np.where(np.isfinite(a), a, 0)) ** 2)) if a.size else 0
        near = [np.abs(g - b) <= 1e-6 * np.abs(b) + 1e-9 * scale for b in (a, r)]
    return bool(np.all(near[0] | near[1] | ~np.isfinite(a) | ~np.isfinite(r)))


def _variants(exam: Examination) -> list[tuple[str, list[bool], list[bool], int]]:
    """What to batch: nothing where all batching rules are JAX's, for those are not under test."""
    n, m = len(exam.traced), len(exam.shapes)
    if not exam.untraced:
        known = {p.name for p in vars(jaxapi.primitives).values() if isinstance(p, jaxapi.Primitive)} - {"custom_vmap_call"}
        names = {eqn.primitive.name for closed in (exam.rule.closed, exam.value.closed) for eqn in equations(closed.jaxpr)}
        if all(name in known and "callback" not in name for name in names):
            return []
    found = [
        ("all arguments and cotangents", [True] * n, [True] * m, SIZE),
        ("a batch of one", [True] * n, [True] * m, 1),
        ("the cotangents alone", [False] * n, [True] * m, SIZE),
        ("the arguments alone", [True] * n, [False] * m, SIZE),
    ]
    if n > 1:
        found += [(f"{exam.subject.names[k]} alone", [i == k for i in range(n)], [False] * m, SIZE) for k in range(min(n, 3))]
    return found
