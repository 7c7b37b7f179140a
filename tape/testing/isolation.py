"""Points at which a rule is wrong though it is right all around them: wherever they lie, that is no question of what is meant."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from tape.testing.evidence import Evidence
from tape.testing.findings import Finding, Note, Suspect, fail
from tape.testing.judgement import ROUND, is_refuted
from tape.testing.marks import SPECIAL, ZERO, scale_of
from tape.testing.probes import OVERFLOWING

AROUND = 1e-3  # relative to an element's size
NEAR = 1e-2  # relative; how far a smooth reference moves on the way there
RIGHT = 1e-4  # relative
SHARE = 1e-3  # of the usual size: what is smaller may be left out


def judge_isolated(evidence: Evidence, pairs: Sequence[int]) -> Iterator[Finding]:
    """Find an element of a gradient that is right all round a point and wrong on it; what is not finite there convicts nobody."""
    rs, gs = evidence.measured["r"], evidence.measured["g"]
    usual = [np.sqrt(np.mean(np.abs(r[0]) ** 2)) if r[0].size else 0.0 for r in rs]
    for b in pairs:
        with np.errstate(invalid="ignore"):
            near = [np.abs(g[2 * b] - r[2 * b]) <= 2 * NEAR * (np.abs(r[2 * b]) + u) for r, g, u in zip(rs, gs, usual, strict=True)]
        bad = [np.isfinite(r[2 * b]) & np.isfinite(g[2 * b]) & ~same for r, g, same in zip(rs, gs, near, strict=True)]
        if not any(map(np.any, bad)):
            continue
        x, ct = evidence.at(b)
        rng = np.random.default_rng(evidence.seed)
        points = [[a + AROUND * scale_of(a) * rng.uniform(-1, 1, a.shape) for a in x] for _ in range(ROUND)]
        around = evidence.one_by_one([(point, ct) for point in points])
        for k, apart in enumerate(bad):
            r, g = around["r"][k], around["g"][k]
            with np.errstate(invalid="ignore"):
                size = np.abs(r).max(axis=0) + usual[k]
                wrong = apart & np.all(np.abs(g - r) <= RIGHT * size, axis=0)
                smooth = np.all(np.abs(r - rs[k][2 * b]) <= NEAR * size, axis=0)
            if np.any(wrong & smooth) or (np.any(wrong) and is_refuted(evidence, Suspect(b, k, wrong, wrong * 1.0))):
                yield fail(k, "first", "", **evidence.details(k, b))
                return


def judge_crossings(evidence: Evidence, pairs: Collection[int]) -> Iterator[Finding]:
    """Find a rule that is right up to a condition beyond the arguments, and wrong behind it, where the function goes on.

    What function and rule name, they are meant for. Where the condition is in a function of JAX that they call, or tells signs apart, the
    derivative has to go on as before. Where the rule is zero for another sign, it may guard against what is never given.
    """
    for crossing, before, behind in evidence.probes.crossings:
        if not {before, behind} <= {*pairs}:
            continue
        for k, (r, g) in enumerate(zip(evidence.measured["r"], evidence.measured["g"], strict=True)):
            a, b = 2 * before, 2 * behind
            usual = np.sqrt(np.mean(np.abs(r[0]) ** 2)) if r[0].size else 0.0
            with np.errstate(invalid="ignore"):
                size = np.maximum(np.abs(r[a]), np.abs(r[b]))
                smooth = np.abs(r[a] - r[b]) <= NEAR * size
                right = np.abs(g[a] - r[a]) <= RIGHT * (size + SHARE * usual)
                wrong = np.isfinite(g[b]) & (np.abs(g[b] - r[b]) > NEAR * (size + SHARE * usual))
                guarded = crossing.signs & (np.abs(g[b]) <= NEAR * size)
            smooth |= crossing.written and not crossing.signs
            bad = smooth & right & wrong & ~guarded
            if bad.any() and is_refuted(evidence, Suspect(behind, k, bad, bad * 1.0)):
                yield fail(k, "first", "", **evidence.details(k, behind))
                return


def note_not_finite(evidence: Evidence, beyond: Sequence[int]) -> Iterator[Note]:
    """Say where a rule is not finite, and JAX's derivative is: where branches meet, or far out, where the function may not be meant."""
    meeting = {*evidence.probes.marked}
    for k, b in itertools.product(range(len(evidence.traced)), (*evidence.seen, *beyond)):
        pair = evidence.probes.pairs[b]
        r, g = evidence.measured["r"][k][2 * b], evidence.measured["g"][k][2 * b]
        lost = np.isfinite(r) & ~np.isfinite(g)
        if lost.any() and (pair.point in meeting or pair.why == OVERFLOWING):
            plain = pair.why.startswith((ZERO, SPECIAL))
            where = f"{evidence.at(b)[0][k][lost].flat[0]:.3g}" if plain else pair.why
            gradient = (
                f"the gradient of {evidence.subject.names[k]} is {g[lost].flat[0]:.3g} at {where}, where JAX's is {r[lost].flat[0]:.3g}"
            )
            yield Note(f"{gradient}; this counts as wrong only if that is given")
            return


def note_beyond(evidence: Evidence, suspects: list[Suspect]) -> Iterator[Note]:
    """Say where rule and JAX differ at points that the user did not give, where the function may not be meant to be used."""
    for s in {s.argument: s for s in reversed(suspects) if evidence.probes.pairs[s.pair].why != OVERFLOWING}.values():
        why, at = evidence.probes.pairs[s.pair].why, evidence.probes.points[evidence.probes.pairs[s.pair].point][s.argument]
        yield Note(
            f"at {why}, the gradient of {evidence.subject.names[s.argument]} differs from JAX's (for instance at {at[s.bad].flat[0]:.3g}); "
            "this counts as wrong only if the function is meant to be used there: say so by domain=(low, high)"
        )
