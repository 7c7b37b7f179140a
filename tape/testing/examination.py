"""One check from beginning to end: what is measured, in which order, and what becomes of what its parts find."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.testing import native
from tape.testing.analytic import Complexified, is_analytic
from tape.testing.convergence import follow
from tape.testing.diagnosis import diagnosed
from tape.testing.evidence import Evidence, finest
from tape.testing.executables import Program
from tape.testing.findings import Finding, Item, LeftOut, Note, Suspect, Vote, fail, infinite
from tape.testing.isolation import judge_crossings, judge_isolated, note_beyond, note_not_finite
from tape.testing.judgement import ask_values, judge
from tape.testing.linearity import check_linear, refused
from tape.testing.marks import MINUTE
from tape.testing.measurement import BASIS, Measurement, user_rules
from tape.testing.others import odd_ones
from tape.testing.precise import Precise, equations
from tape.testing.probes import FAR, NUDGE, Probes
from tape.testing.returned import check_steady, check_structure
from tape.testing.second import check_second
from tape.testing.subject import Subject
from tape.testing.transformed import check_forward, check_vmap
from tape.testing.untraced import Untraced
from tape.testing.variants import steady

LARGE = 800  # equations: compiling a program of that size takes seconds, each time that it is batched or taken apart

STAGES = (  # of a check, as a bar of progress calls them
    "its values",
    "the rule in its own dtypes",
    "tracing the rule",
    "rule and reference in double precision",
    "comparing",
    "forward mode",
    "vmap",
    "other sizes, integers and masks",
    "second derivative",
)


class Examination:
    """Checks one subject: puts the parts of a check together, from what is surest to what builds on it.

    Attributes:
        evidence: what is known so far.
        findings: what was found.
        votes: what was heard, for each argument.
        notes: what could not be checked.

    """

    def __init__(
        self,
        subject: Subject,
        *,
        order: int,
        against: Sequence[str],
        seed: int,
        rtol: float | None,
        domains: Sequence[tuple[float, float] | None],
        begin: Callable[[str], None],
        others: bool = True,
    ) -> None:
        begin(STAGES[0])
        self._begin = begin  # a stage that takes long
        self.findings: list[Finding] = []
        self.votes: list[dict[str, str]] = [{} for _ in subject.leaves]
        self.notes: list[str] = []
        self._left_out: list[str] = []
        self._order = order
        self._domains = domains
        self._others = others  # whether other sizes, integers and masks are looked at, too
        traced = [x.astype(jnp.float32) if x.dtype.itemsize < 4 else x for x in subject.leaves]
        closed: Any = None
        shapes = list(subject.outputs)
        try:
            closed, returned = jaxapi.trace(subject.primal, *traced)
            shapes = list(returned)
        except Exception as e:  # noqa: BLE001 - it runs on concrete values alone
            self.notes.append(f"JAX cannot trace the function ({type(e).__name__}): compared with differences of its values only")
        explore = closed is None or bool(user_rules(closed)) or subject.kind == "tape" or subject.own_vjp is not None
        searches = closed is not None and any(eqn.params.get("name") == "searchsorted" for eqn in equations(closed.jaxpr))
        probes = Probes(subject.leaves, subject.outputs, seed, explore=explore, domains=domains, searches=searches)
        value = measurement = None
        iterates, adrift = False, None
        if closed is not None:
            value = Precise(closed)
            iterates, adrift = follow(value, probes.points, explore=explore)
            measurement = Measurement(value, len(shapes), kind="first", parts=[value])
            if is_analytic(closed.jaxpr):
                measurement.exact = Complexified(closed)
            measurement.prepare(probes.points[0], probes.cotangents[0])  # while the rule runs op by op
        self.evidence = Evidence(
            subject=subject,
            against=against,
            seed=seed,
            rtol=0.0 if rtol is None else rtol,
            traced=traced,
            shapes=shapes,
            value_jaxpr=closed,
            value=value,
            explore=explore,
            large=closed is not None and sum(1 for _ in equations(closed.jaxpr)) > LARGE,
            probes=probes,
            iterates=iterates,
            adrift=adrift or set(),
            settles=adrift is not None,
            measurement=measurement,
            by_differences=closed is None,
        )
        if rtol is None:
            self._know(rtol=1e-7 if self.evidence.eps < 1e-12 else 3e-6)

    def _know(self, **more: Any) -> Evidence:
        self.evidence = dataclasses.replace(self.evidence, **more)
        return self.evidence

    def _hear(self, items: Iterable[Item]) -> None:
        for item in items:
            if isinstance(item, Finding):
                self.findings.append(item)
            elif isinstance(item, Vote):
                self.votes[item.argument][item.who] = item.says
            elif isinstance(item, LeftOut):
                self._left_out.append(item.what)
            else:
                self.notes.append(item.text)

    @property
    def _failed(self) -> bool:
        """Whether anything was found wrong."""
        return any(f.verdict == "fail" for f in self.findings)

    @property
    def _settled(self) -> bool:
        """Whether anything was found wrong, or inaccurate, which the function's values would only say again."""
        return any(f.verdict in {"fail", "inaccurate"} for f in self.findings)

    def run(self) -> None:
        """Measure and judge."""
        self._examine()
        if self._left_out:
            self.notes.append(f"the function is a large program: to save time, these were not checked: {', '.join(self._left_out)}")

    def _examine(self) -> None:
        self._begin(STAGES[1])
        self._hear(check_steady(self.evidence))
        eager = native.differentiate(self.evidence) if self.evidence.explore and not self._failed else None
        if isinstance(eager, Finding):
            self._hear([eager])
        if self.findings or isinstance(eager, Finding):
            return
        self._begin(STAGES[2])
        try:
            self._prepare()
        except Exception as e:  # noqa: BLE001 - a rule is the user's: it may raise anything
            self._hear(self._stuck(eager, e))
        if self.findings:
            return
        try:
            self._compare(eager)
        except Exception as e:  # noqa: BLE001 - as above
            self._hear(self._stuck(eager, e))
            return
        evidence = self.evidence
        if 0 not in evidence.seen:
            return
        if not self._failed and evidence.explore:
            self._begin(STAGES[5])
            self._hear(check_forward(evidence, self.votes))
            self._begin(STAGES[6])
            self._hear(check_vmap(evidence))
        if not self._settled and evidence.explore and self._others:
            self._begin(STAGES[7])
            self._hear(self._variants())
        if not self._failed and self._order >= 2:
            self._begin(STAGES[8])
            self._hear(check_second(evidence, self.votes, settled=self._settled))

    def _stuck(self, eager: list[native.Gradients] | None, error: Exception) -> Sequence[Finding]:
        """Return what is wrong where the derivative raises: that a rule keeps what belongs to another call, if it is that."""
        return list(native.stale(self.evidence, eager) if eager is not None else ()) or [refused(self.evidence, error)]

    def _variants(self) -> Iterator[Item]:
        """Check the same function for other sizes, integers and masks where it looks wrong there."""
        evidence = self.evidence
        for variant in odd_ones(evidence):
            exam = Examination(
                variant.subject,
                order=1,
                against=evidence.against,
                seed=evidence.seed,
                rtol=evidence.rtol,
                domains=self._domains,
                begin=lambda _: None,
                others=False,
            )
            if evidence.settles and not exam.evidence.settles:
                continue  # a loop that arrives nowhere any more: nobody means that
            exam.run()
            for finding in exam.findings:
                if finding.verdict == "fail" and finding.kind == "first":
                    pattern = diagnosed(exam.evidence, finding)
                    if variant.noted:
                        gradient = f"the gradient of {evidence.subject.names[finding.argument or 0]} for {variant.text}"
                        yield Note(f"{gradient}: {pattern}; this counts as wrong only if the rule is meant for that, too")
                        break
                    message = f"right as given, wrong for {variant.text}: {pattern}"
                    yield dataclasses.replace(finding, kind="variant", message=message, pair=None)
                    return

    def _prepare(self) -> None:
        """Prepare what computes rule and reference."""
        evidence, subject = self.evidence, self.evidence.subject
        if evidence.untraced:
            self._know(measurement=Untraced(subject.pull, subject.primal, evidence.seed))
            return
        if not evidence.explore:
            return

        def pulled(*a: jax.Array) -> tuple[jax.Array, ...]:
            n = len(evidence.traced)
            return tuple(itertools.chain(*subject.pull(a[:n], a[n:])))

        rule = evidence.measurement.rule = evidence.precise(jaxapi.trace(pulled, *evidence.traced, *evidence.shapes)[0])
        if "numeric" not in evidence.against:
            evidence.measurement.believed = _believed(evidence, rule)
        if not evidence.iterates:
            evidence.probes.mark(rule, evidence.value_jaxpr)
            if evidence.settles:
                evidence = self._know(adrift=follow(evidence.value, evidence.probes.points, explore=True)[1] or set())
        same = all(x.dtype == t.dtype for x, t in zip(subject.leaves, evidence.traced, strict=True))
        native_rule = rule.closed if same else jaxapi.trace(pulled, *subject.leaves, *subject.outputs)[0]
        self._know(rule=rule, native_rule=native_rule)
        self._hear(check_structure(native_rule.out_avals, subject))

    def _compare(self, eager: list[native.Gradients] | None) -> None:
        """Compare rule and reference wherever they are looked at, and judge."""
        self._begin(STAGES[3])
        measured = self._measured()
        self._begin(STAGES[4])
        evidence = self.evidence
        rtol, m, pairs = evidence.rtol, evidence.measurement, evidence.probes.pairs
        if evidence.by_differences:
            rtol = max(rtol, 1e-6 if m.eps < 1e-12 else 1e4 * m.eps)
        elif evidence.value.opaque or (evidence.explore and evidence.rule.opaque):
            m.eps = finest([jnp.float32])
            rtol = max(rtol, 200 * m.eps)
        if evidence.iterates:  # solvers, and their rules, are as exact as their tolerance
            rtol = max(rtol, 1e-5)
        finite = [b for b in range(len(pairs)) if all(np.all(np.isfinite(y[2 * b])) for y in measured["y"])]
        marked = [b for b in finite if pairs[b].point in {*evidence.probes.marked, *evidence.probes.isolated}]
        adrift = {b for b in marked if not steady(measured["y"], 2 * b)} | {b for b in finite if pairs[b].point in evidence.adrift}
        seen = [b for b in finite if b not in adrift]
        if evidence.iterates:  # solvers with an absolute tolerance do not see what is far below it
            seen = [b for b in seen if not pairs[b].why.startswith("a cotangent of size 1e-")]
        beyond = [b for b in seen if not evidence.probes.inside[pairs[b].point]]
        alone = [b for b in seen if b in marked]
        evidence = self._know(rtol=rtol, measured=measured, seen=[b for b in seen if b not in beyond], eager=eager)
        if eager is None and 0 not in evidence.seen:
            self._hear([infinite()])
            return
        self._hear(_check_values(evidence))
        suspects = _suspects(evidence, evidence.seen)
        if eager is not None:
            self._hear(native.compare(evidence, eager, {(s.argument, s.pair) for s in suspects}))
        self._hear(judge(evidence, suspects, failed=self._failed))
        if not self._failed and evidence.explore:
            self._hear(itertools.chain(judge_isolated(evidence, alone), judge_crossings(evidence, beyond)))
        wrong = {f.argument for f in self.findings}
        beyond = [b for b in beyond if b not in alone]
        self._hear(note_beyond(evidence, [s for s in _suspects(evidence, beyond) if s.argument not in wrong]))
        self._hear(note_not_finite(evidence, beyond) if evidence.explore and not self._failed else ())
        if not evidence.explore and not self.findings:
            self._hear(native.check_finite(evidence))
        if evidence.explore and m.believed is not None:
            self._hear(check_linear(evidence))
        if eager is not None and not self._failed:
            self._hear(native.check_half(evidence, eager))
        for part in (native.alone, native.shared):
            if eager is not None and not self._failed:
                self._hear(part(evidence))
        if eager is not None and not self._failed:
            self._hear(native.repeat(evidence, eager))
        if not self._settled:
            if evidence.asks_values:
                self._hear(ask_values(evidence))
            elif evidence.drawn:
                self.notes.append(
                    "the derivative of a sample is that of its distribution's quantile function: not compared with differences of values"
                )

    def _measured(self) -> dict[str, list[np.ndarray]]:
        """Return values and gradients of reference and rule for all pairs; the reference is the best that there is."""
        evidence = self.evidence
        measurement = evidence.measurement
        pairs = _pairs(evidence)
        parts = () if evidence.untraced or not evidence.explore else (evidence.value, evidence.rule)
        if any(isinstance(c, jaxapi.Tracer) for part in parts for c in part.consts):
            msg = "the rule keeps a value of another call, which was being traced"
            raise jax.errors.UnexpectedTracerError(msg)
        if evidence.by_differences or not evidence.explore:
            return measurement.compare(*pairs)  # type: ignore[no-any-return]
        small = max(x.size for x in evidence.traced) <= BASIS
        for prepare in (lambda: None, measurement.use_forward) if small else (lambda: None,):  # some loops have no reverse mode
            prepare()
            try:
                return measurement.compare(*pairs)  # type: ignore[no-any-return]
            except Exception as e:  # noqa: BLE001 - whatever JAX raises where it has no rule
                error = e
        self.notes.append(f"JAX cannot differentiate the function ({type(error).__name__}): compared with differences of its values only")
        m = len(evidence.shapes)
        value, rule = Program("value", evidence.value, [evidence.value]), Program("rule", evidence.rule, [evidence.rule])

        def pull(xs: Sequence[jax.Array], cts: Sequence[jax.Array]) -> tuple[list[Any], list[Any]]:
            results = list(rule(*xs, *cts))
            return results[:m], results[m:]

        value(*evidence.probes.points[0])
        untraced = Untraced(pull, value, evidence.seed)
        untraced.eps = finest([jnp.float32]) if evidence.value.opaque or evidence.rule.opaque else untraced.eps
        self._know(by_differences=True, measurement=untraced)
        return untraced.compare(*pairs)


def _believed(evidence: Evidence, rule: Precise) -> Precise:
    """JAX's derivative with all rules, at its word."""
    n = len(evidence.traced)
    if evidence.subject.kind == "jax" and evidence.subject.own_vjp is None:
        return rule
    function = jaxapi.jaxpr_as_fun(evidence.value_jaxpr)

    def derived(*a: jax.Array) -> tuple[jax.Array, ...]:
        ys, back = jax.vjp(function, *a[:n])
        return (*ys, *back(list(a[n:])))

    return evidence.precise(jaxapi.trace(derived, *evidence.traced, *evidence.shapes)[0])


def _pairs(evidence: Evidence) -> tuple[list[Any], list[Any]]:
    """Points and cotangents of all pairs, each followed by its twin at a distance of rounding.

    The last two are twins at a distance that the arguments' own dtypes cannot tell apart.
    """
    rng = np.random.default_rng(evidence.seed + 1)
    points, cts = [], []
    for pair in evidence.probes.pairs:
        x = evidence.probes.points[0 if pair.point in evidence.adrift else pair.point]  # nobody looks at what is found there
        points += [x, [a * (1 + NUDGE * rng.uniform(0.3, 1, a.shape) * rng.choice([-1, 1], a.shape)) for a in x]]
        cts += [evidence.probes.cotangents[pair.cotangent]] * 2
    for i in (0, 1):
        points.append([a * (1 + 2 * evidence.eps * rng.choice([-1, 1], a.shape)) for a in evidence.probes.points[i]])
        cts.append(evidence.probes.cotangents[i])
    return points, cts


def _check_values(evidence: Evidence) -> Iterator[Item]:
    """The function's result is the same when it is differentiated."""
    for k, (ys, owns) in enumerate(zip(evidence.measured["y"], evidence.measured["rule_y"], strict=True)):
        for b in evidence.seen:
            y, twin, own = ys[2 * b], ys[2 * b + 1], owns[2 * b]
            tolerance = evidence.tolerance(y, twin, 1e3 * np.finfo(float).eps * np.abs(y).max(initial=0))
            if np.any(~(np.abs(y - own) <= tolerance)):
                why = evidence.probes.pairs[b].why
                yield fail(None, "value", f"output {k} changes when the function is differentiated", why=why, expected=y, got=own, pair=b)
                return


def _suspects(evidence: Evidence, pairs: Sequence[int]) -> list[Suspect]:
    suspects = []
    for k in range(len(evidence.traced)):
        for b in pairs:
            r, twin, g = evidence.measured["r"][k][2 * b], evidence.measured["r"][k][2 * b + 1], evidence.measured["g"][k][2 * b]
            tolerance = evidence.tolerance(r, twin, evidence.floor(b, evidence.probes.points[evidence.probes.pairs[b].point][k]))
            with np.errstate(invalid="ignore", divide="ignore"):
                off = np.abs(g - r)
                same = (off <= tolerance) | (g == r) | ~np.isfinite(r)  # such a reference convicts nobody: values decide
                point = evidence.probes.pairs[b].point
                if point >= FAR and point != evidence.probes.bent:  # how exact an approximation is there is not the question
                    same |= (off <= 1e-3 * np.abs(r)) | ~np.isfinite(g)
                if evidence.probes.pairs[b].why == MINUTE:  # nor is how many digits a formula loses there
                    same |= ~(np.abs(g - evidence.measured["g"][k][2 * b + 1]) <= 1e-3 * off)
                    same |= (np.abs(g) < np.abs(r)) & (np.abs(r - g) < np.abs(r))  # nor by how much an epsilon damps what is as small
                ratio = np.where(same, 0.0, np.nan_to_num(off / np.maximum(tolerance, 1e-300), nan=np.inf, posinf=np.inf))
            if not np.all(same):
                suspects.append(Suspect(b, k, ~same, ratio))
    return suspects
