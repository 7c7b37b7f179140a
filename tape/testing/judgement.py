"""Who is right where rule and reference differ: the function's values decide."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tape.jaxapi import JaxprEqn
from tape.testing.accuracy import coarse, imprecise
from tape.testing.differences import Estimate
from tape.testing.evidence import Evidence
from tape.testing.findings import Finding, Item, Suspect, Vote, doubt, fail
from tape.testing.marks import scale_of
from tape.testing.measurement import Measurement
from tape.testing.precise import Precise, inner
from tape.testing.probes import wide_array
from tape.testing.symmetry import note_unsymmetric, symmetrises
from tape.testing.untraced import Untraced

PLAIN = 1e-3  # relative error of differences that settle
FLAT = 1e-9  # error of a derivative that is zero
WORST = 4  # elements that are asked about one by one, and cotangents at one point
BESIDE = 1e-6  # relative; how far from a kink its several derivatives are looked for
ROUND = 64  # points there
ULPS = 4  # of a value, that an approximation may be off
ALIKE = 0.1  # share of a gap to the values: what is nearer has them
TURNED = 1 << 12  # complex arrays up to this size are also tried along the imaginary axis
_JAX = str(pathlib.Path(jax.__file__).parent)


def judge(evidence: Evidence, suspects: list[Suspect], *, failed: bool) -> Iterator[Item]:
    """Decide for each argument whose gradient is not the reference's.

    A disagreement at the given point alone may be a kink there: then every value between the one-sided derivatives is right, and so is
    what JAX's own rules say. Where a matrix has lost its symmetry, the function's values have to confirm JAX's derivative: some functions
    read one triangle alone; nobody asks them once anything has failed. What is wrong there alone is noted where the function factorises
    the symmetric part, for it is one of symmetric matrices.
    """
    by_argument: dict[int, list[Suspect]] = {}
    for s in suspects:
        by_argument.setdefault(s.argument, []).append(s)
    for k, mine in by_argument.items():
        by_point: dict[int, list[Suspect]] = {}
        for s in mine:
            by_point.setdefault(evidence.probes.pairs[s.pair].point, []).append(s)
        bent = [] if evidence.probes.bent is None else by_point.pop(evidence.probes.bent, [])
        marked = [by_point.pop(point) for point in evidence.probes.marked if point in by_point]
        asked = {point: _first_asked(evidence, there, suspects) for point, there in by_point.items()}
        results = {s.pair: answer for s, answer in asked.values()}
        given, generic = ([s for point, (s, _) in asked.items() if (point == 0) == at] for at in (True, False))
        at_kink = given and not generic and given[0].pair in {0, *evidence.sparse}
        wrong = [s for s in (*given, *generic) if results[s.pair] == "wrong"]
        chosen = next(iter([*wrong, *given, *generic]), None)
        verdict: Item | None = None
        if chosen is None:
            pass
        elif wrong and not at_kink:
            verdict = _convicted(evidence, *wrong)
        elif at_kink and results[chosen.pair] in {"wrong", "outside"}:
            if _conventional(evidence, k, chosen.pair):
                message = "a kink at the given point: the derivative is what JAX's rules give, and neither one-sided derivative"
                verdict = doubt(k, "first", message, **evidence.details(k, chosen.pair))
            else:
                verdict = _convicted(evidence, chosen)
        elif "unknown" in results.values() and any(_plain(evidence, s) for s in (*given, *generic) if s in generic or not at_kink):
            verdict = _convicted(evidence, chosen)
        elif "unknown" in results.values() or "outside" in results.values():
            verdict = doubt(k, "first", "differences cannot tell which derivative is right", **evidence.details(k, chosen.pair))
        else:
            verdict = Vote(k, "jax", "kink" if "kink" in results.values() else "odd one out")
        if verdict is not None:
            yield verdict
            failed |= isinstance(verdict, Finding) and verdict.verdict == "fail"
        if bent and not failed and _asked(evidence, bent[0], suspects, both=True) == "wrong":
            item = note_unsymmetric(evidence, k) if symmetrises(evidence, bent[0].pair) else _convicted(evidence, bent[0])
            yield item
            failed |= isinstance(item, Finding) and item.verdict == "fail"
        for there in marked if not failed else ():
            s, answer = _first_asked(evidence, there, suspects)
            if answer == "wrong" or (answer == "outside" and not _conventional(evidence, k, s.pair)):
                convicted = _convicted(evidence, s)
                yield convicted
                failed |= convicted.verdict == "fail"
                break


def _first_asked(evidence: Evidence, there: list[Suspect], suspects: list[Suspect]) -> tuple[Suspect, str]:
    """Ask about the disagreements at one point, for one cotangent after another, until one is more than rounding."""
    for s in there[:WORST]:
        answer = _asked(evidence, s, suspects)
        if answer != "right":
            return s, answer
    return there[0], "right"


def is_refuted(evidence: Evidence, s: Suspect) -> bool:
    """Tell whether values refute a derivative, be it at a kink, and JAX's convention does not excuse it."""
    answer = _asked(evidence, s, [])
    return answer == "wrong" or (answer == "outside" and not _conventional(evidence, s.argument, s.pair))


def _convicted(evidence: Evidence, *wrong: Suspect) -> Finding:
    """Say that a gradient is wrong, or inaccurate where it is as right everywhere as rounding lets its formula be."""
    gross = [s for s in wrong if not imprecise(evidence, s.argument, s.pair, evidence.measured["g"][s.argument][2 * s.pair])]
    s = (gross or wrong)[0]
    details = evidence.details(s.argument, s.pair)
    return fail(s.argument, "first", "", **details) if gross else coarse(s.argument, "first", **details)


def _plain(evidence: Evidence, s: Suspect) -> bool:
    """Tell whether a disagreement is far beyond rounding and conditioning."""
    r, twin, g = (evidence.measured[key][s.argument][2 * s.pair + i] for key, i in (("r", 0), ("r", 1), ("g", 0)))
    i = np.unravel_index(int(np.argmax(s.ratio)), s.ratio.shape)
    size = max(abs(r[i]), abs(g[i])) if np.isfinite(g[i]) else abs(r[i])
    return bool(np.isfinite(r[i]) and not abs(g[i] - r[i]) <= 1e-4 * size and abs(twin[i] - r[i]) <= 1e-6 * abs(r[i]) and s.ratio[i] > 100)


def _asked(evidence: Evidence, s: Suspect, suspects: Sequence[Suspect], *, both: bool = False) -> str:
    """Have differences decide between rule and reference; ``suspects`` has the other arguments' disagreements for the same pair."""
    x, ct = evidence.at(s.pair)
    r, g = ([a[2 * s.pair] for a in evidence.measured[key]] for key in ("r", "g"))
    bad = {o.argument: o.bad for o in (s, *suspects) if o.pair == s.pair}

    def answer(around: Sequence[Sequence[np.ndarray]]) -> str:
        return ask(evidence, evidence.measurement, x, ct, s.argument, r, g, s.ratio, bad, evidence.rtol, both=both, around=around)

    first = answer([])
    kinks = {0, *evidence.probes.marked, *evidence.probes.isolated}
    if first not in {"wrong", "outside"} or evidence.probes.pairs[s.pair].point not in kinks:
        return first
    return answer(_around(evidence, s.pair))


def _around(evidence: Evidence, b: int) -> list[list[np.ndarray]]:
    """Return the reference's gradients at points all round, of which a kink has several: what lies between them is no mistake."""
    x, ct = evidence.at(b)
    rng = np.random.default_rng(evidence.seed)
    shapes = [[a.shape if i % 2 else () for a in x] for i in range(ROUND)]  # each element by itself, or all to one side
    points = [[a + BESIDE * scale_of(a) * rng.uniform(-1, 1, of) for a, of in zip(x, shape, strict=True)] for shape in shapes]
    rows = evidence.one_by_one([(point, ct) for point in points])["r"]
    return [[row[i] for row in rows] for i in range(ROUND)]


def ask(
    evidence: Evidence,
    measurement: Measurement | Untraced,
    x: list[np.ndarray],
    ct: list[np.ndarray],
    argument: int,
    reference: Sequence[np.ndarray],
    rule: Sequence[np.ndarray],
    ratio: np.ndarray,
    bad: dict[int, np.ndarray],
    rtol: float,
    *,
    both: bool = False,
    around: Sequence[Sequence[np.ndarray]] = (),
) -> str:
    """Have differences decide between two derivatives, along elements where they disagree (``bad``, per argument) and along all of those.

    Returns ``"wrong"`` or ``"right"`` of the rule, ``"kink"`` where it lies between the one-sided derivatives, ``"outside"`` where it does
    not, or ``"unknown"``. With ``both``, a rule is wrong only if the reference is right. At a kink, what lies between the slopes ``around``
    is right.
    """
    r, g = reference[argument], rule[argument]
    with np.errstate(invalid="ignore"):
        gaps = np.where(bad[argument], np.nan_to_num(np.abs(g - r), nan=np.inf, posinf=np.inf), 0)
        aslant = [np.abs(np.real(g - r)).flat[i] < np.abs(np.imag(g - r)).flat[i] for i in range(r.size)] if r.size <= TURNED else None
    sizes = [scale_of(a) for a in x]
    directions = []
    worst = [int(i) for i in np.argsort(-ratio, axis=None)[:WORST] if bad[argument].flat[i]]
    for i in dict.fromkeys([*worst, int(np.argmax(gaps))]):
        v = [np.zeros_like(a) for a in x]
        turned = np.iscomplexobj(v[argument]) and aslant is not None and aslant[i]
        v[argument].flat[i] = sizes[argument].flat[i] * (1j if turned else 1)
        directions.append(v)
    parts = [{argument: bad[argument]}, *({k: of} for k, of in bad.items() if k != argument), bad]
    joint = [[np.where(part.get(k, False), sizes[k], 0).astype(a.dtype) for k, a in enumerate(x)] for part in parts]
    directions += joint[:1] if bad[argument].sum() > 1 else []
    own = len(directions)
    directions += joint[1:] if len(bad) > 1 else []
    answers = []
    for v, (two_sided, high, low, size) in zip(directions, measurement.slopes([(x, v, ct) for v in directions]), strict=True):
        with np.errstate(invalid="ignore"):
            r_v, g_v = (sum(float(np.sum((a * d)[d != 0]).real) for a, d in zip(of, v, strict=True)) for of in (reference, rule))
            slack = rtol * sum(float(np.abs(np.nan_to_num(a * d)).sum()) for a, d in zip(reference, v, strict=True)) + _unheld(
                evidence, ct, size
            )
        answer = decide(two_sided, high, low, r_v, g_v, slack)
        if around and answer in {"wrong", "outside"}:
            slopes = [sum(float(np.sum((a * d)[d != 0]).real) for a, d in zip(of, v, strict=True)) for of in around]
            if max(slopes) - min(slopes) > PLAIN * abs(g_v) and min(slopes) - slack <= g_v <= max(slopes) + slack:
                answer = "kink"
        answers.append("unknown" if both and two_sided.apart(r_v, slack) else answer)
    results = {*answers[:own]}
    if own < len(answers) and results != {"right"} and not {"wrong", "outside"} & {*answers[own:-1]}:
        results.add(answers[-1])  # else what is wrong of all together is another argument's
    return next((answer for answer in ("wrong", "outside", "unknown", "kink", "right") if answer in results), "unknown")


def _unheld(evidence: Evidence, ct: Sequence[np.ndarray], size: float) -> float:
    """Return what the function's dtype cannot hold of a change, where what changes has a size: what rounding takes, or underflow."""
    largest = max((float(np.abs(c).max(initial=0)) for c in ct), default=0.0)
    return ULPS * evidence.fine * size + largest * evidence.tiny


def _conventional(evidence: Evidence, argument: int, b: int) -> bool:
    """Tell whether the derivative is what JAX's own rules say (only the user's are taken away)."""
    if evidence.untraced:
        return evidence.subject.own_vjp is None  # differences alone do not tell a kink's convention from a mistake
    pair = evidence.probes.pairs[b]
    own = Precise(evidence.value_jaxpr, keep=is_of_jax)
    xs = [jnp.asarray(x, a.dtype) for x, a in zip(evidence.probes.points[pair.point], evidence.traced, strict=True)]
    cts = [jnp.asarray(c, y.dtype) for c, y in zip(evidence.probes.cotangents[pair.cotangent], evidence.shapes, strict=True)]
    try:
        _, back = jax.vjp(own.__call__, *xs)
        r = wide_array(back(cts)[argument])
    except Exception:  # noqa: BLE001 - whatever JAX raises: then there is no such derivative
        return False
    g = evidence.measured["g"][argument][2 * b]
    with np.errstate(invalid="ignore"):
        near = np.abs(g - r) <= 1e-3 * (np.abs(r) + 1e-3 * np.sqrt(np.mean(np.abs(r) ** 2)))
    return bool(np.all(near | (g == r) | (np.isnan(g) & np.isnan(r))))


def ask_values(evidence: Evidence) -> Iterator[Item]:
    """Ask the function's values, for rule and reference may be alike and wrong (``stop_gradient``, say)."""
    tasks: list[Any] = []
    of = []
    for b in [b for b in (evidence.nearby, 0) if b in evidence.seen]:
        pair = evidence.probes.pairs[b]
        x, ct = evidence.at(b)
        alone: list[int | None] = [*range(min(len(x), 3))] if pair.point == 0 and len(x) > 1 else [None]
        for k in alone:
            tasks.append((x, evidence.probes.direction(pair.point, k), ct))
            of.append(b)
    generic_wrong = evidence.nearby not in evidence.seen
    for (_, v, ct), b, (both, high, low, _) in zip(tasks, of, evidence.measurement.slopes(tasks), strict=True):
        gs = [g[2 * b] for g in evidence.measured["g"]]
        with np.errstate(invalid="ignore"):
            g_v = sum(float(np.sum(g * d).real) for g, d in zip(gs, v, strict=True))
            if any(np.any(np.isinf(g)) for g in gs) and not any(np.any(np.isnan(g)) for g in gs):
                g_v = float("inf")  # two infinities are not NaN
            size = sum(float(np.abs(g * d).sum()) for g, d in zip(gs, v, strict=True))
            moved = sum(
                float(np.abs(np.nan_to_num((r[2 * b] - r[2 * b + 1]) * d, posinf=0, neginf=0)).sum())
                for r, d in zip(evidence.measured["r"], v, strict=True)
            )
        answer = decide(both, high, low, float("nan"), g_v, evidence.rtol * size + 20 * moved + _unheld(evidence, ct, 0))
        ks = [k for k, d in enumerate(v) if np.any(d)]
        for k in ks:
            yield Vote(k, "numeric", answer)
        lost = [k for k in ks if not np.all(np.isfinite(gs[k]))]
        if lost and answer != "wrong":
            yield doubt(lost[0], "first", "the derivative is not finite", **evidence.details(lost[0], b))
        elif answer in {"wrong", "outside"}:
            generic_wrong |= evidence.probes.pairs[b].point != 0
            r_v = sum(float(np.sum(r[2 * b] * d).real) for r, d in zip(evidence.measured["r"], v, strict=True))
            gaps = {j: np.abs((gs[j] - evidence.measured["r"][j][2 * b]) * v[j]).max(initial=0) for j in ks}
            k = lost[0] if lost else max(ks, key=gaps.__getitem__)
            if generic_wrong and not lost and abs(r_v - both.value) < ALIKE * abs(g_v - both.value):
                yield Vote(k, "jax", "wrong")
                yield fail(k, "first", "", **evidence.details(k, b))  # it was too near to JAX's derivative to be asked about
                return
            if generic_wrong or lost:
                message = "differences of the function's values contradict the rule, and JAX too"
                yield fail(
                    k, "numeric", message, why=evidence.probes.pairs[b].why, pair=b, expected=np.asarray(both.value), got=np.asarray(g_v)
                )
                return
            if not evidence.untraced and not _conventional(evidence, k, b):  # too small a part of the value to be missed there
                yield fail(k, "first", "", **evidence.details(k, b))
                return
            yield doubt(k, "first", "a kink at the given point: the derivative is what JAX's rules give", **evidence.details(k, b))


def decide(both: Estimate, high: Estimate, low: Estimate, r: float, g: float, slack: float) -> str:
    """Say what differences say of ``g``: right, wrong, kink (between the one-sided derivatives), outside of them, or unknown."""
    if not np.isfinite(both.error) or not np.isfinite(high.error):
        return "unknown"
    kink = high.value - low.value > 20 * (high.error + low.error) + 1e-6 * abs(both.value)
    if not np.isfinite(g):
        error, size = high.error + low.error, high.value - low.value if kink else abs(high.value) + abs(low.value)
        settled = error < max(PLAIN * size, FLAT) or (np.isnan(g) and not kink)
        return "wrong" if settled else "unknown"  # differences of an infinite slope do not settle
    if kink:
        inside = low.value - 10 * low.error - slack <= g <= high.value + 10 * high.error + slack
        return "kink" if inside else "outside"
    if both.apart(g, slack):
        lost = np.isfinite(r) and both.apart(r, slack) and abs(g - both.value) < abs(r - both.value)
        return "unknown" if lost else "wrong"  # what the values do not show of the reference, rounding may have taken
    alike = np.isfinite(r) and abs(g - r) > slack and not both.apart(r, slack)
    return "unknown" if alike else "right"


def is_of_jax(eqn: JaxprEqn) -> bool:
    """Tell whether a rule is JAX's own: the function that it belongs to is a public one of JAX that has a rule."""
    closed = inner(eqn)
    info: Any = None if closed is None else getattr(closed.jaxpr, "debug_info", None)
    if not str(getattr(info, "func_filename", None) or "").startswith(_JAX):
        return False
    for key in ("jvp_jaxpr_fun", "bwd"):  # somebody may have given JAX's function a rule of theirs
        rule: Any = getattr(eqn.params.get(key), "debug_info", None)
        if not str(getattr(rule, "func_filename", None) or _JAX).startswith(_JAX):
            return False
    name = str(info.func_name)
    for module in (jax.nn, jnp, jax.scipy.special, jax.numpy.linalg, jax.lax):
        candidate = getattr(module, name, None)
        while candidate is not None:
            if isinstance(candidate, (jax.custom_jvp, jax.custom_vjp)):
                return True
            candidate = getattr(candidate, "__wrapped__", None)
    return name.startswith("_")  # nobody outside wraps JAX's private functions
