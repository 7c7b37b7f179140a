"""One check from beginning to end: what is measured, in which order, and what each disagreement means."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.testing import convergence, judgement, native, second, transformed
from tape.testing.accuracy import MOST, inexact
from tape.testing.analytic import Complexified, is_analytic
from tape.testing.executables import Program
from tape.testing.findings import Finding, Suspect
from tape.testing.linearity import check_linear
from tape.testing.measurement import BASIS, Measurement, user_rules
from tape.testing.precise import Precise, equations
from tape.testing.probes import FAR, NUDGE, Probes, scale_of
from tape.testing.steadiness import check_steady
from tape.testing.structure import check_structure
from tape.testing.untraced import Untraced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tape.testing.subject import Subject

__all__ = ["Examination"]

LARGE = 800  # equations: compiling a program of that size takes seconds, each time that it is batched or taken apart
_SAMPLERS = {"random_gamma"}  # they reject some candidates, and are differentiated implicitly


class Examination:
    """Checks one subject.

    Attributes:
        findings: what was found.
        votes: what was heard, for each argument.
        found: values and gradients of reference ("y", "r") and rule ("rule_y", "g"), per array, for all pairs and their twins.
        seen: the pairs at which the function is finite.
        native_rule: the jaxpr of the derivative under test in the function's own dtypes.

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
    ) -> None:
        self.subject = subject
        self.order = order
        self.domains = domains
        self.against = against
        self.seed = seed
        self.findings: list[Finding] = []
        self.votes: list[dict[str, str]] = [{} for _ in subject.leaves]
        self.notes: list[str] = []
        self.eps = max(_eps(x.dtype) for x in [*subject.leaves, *subject.outputs])
        finest = np.finfo(np.float64 if self.eps < 1e-12 else np.float32)  # half precision is held to what single precision rounds
        self.fine = float(finest.eps)
        self.tiny = float(finest.tiny) / self.fine  # the smallest change that means something, where values underflow
        self.rtol = rtol if rtol is not None else (1e-7 if self.eps < 1e-12 else 3e-6)
        # Constants of half precision would be rounded in the program: it is traced in single precision.
        self.traced = [x.astype(jnp.float32) if x.dtype.itemsize < 4 else x for x in subject.leaves]
        self.explore = False
        self.found: dict[str, list[np.ndarray]] = {}
        self.seen: list[int] = []
        self.sparse: set[int] = set()
        self.nearby = 0
        self.untraced = False
        self.by_differences = False  # alone
        self.native_rule: Any = None
        self.iterates = False
        self.large = False
        self.left_out: list[str] = []  # for the program is large
        self.adrift: set[int] = set()  # points at which loops do not converge

    def run(self) -> None:
        """Measure and judge, from what is surest to what builds on it."""
        self._examine()
        if self.left_out:
            self.notes.append(f"the function is a large program; what would take long was left out: {', '.join(self.left_out)}")

    def _examine(self) -> None:
        subject = self.subject
        try:
            self.value_jaxpr, shapes = jaxapi.trace(subject.primal, *self.traced)
            self.shapes = list(shapes)
        except Exception as e:  # noqa: BLE001 - it runs on concrete values alone
            self.untraced = self.by_differences = True
            self.shapes = list(subject.outputs)
            self.notes.append(f"JAX cannot trace the function ({type(e).__name__}): its values alone were asked")
        self.large = not self.untraced and sum(1 for _ in equations(self.value_jaxpr.jaxpr)) > LARGE
        check_steady(self)
        self.explore = self.untraced or bool(user_rules(self.value_jaxpr)) or subject.kind == "tape" or subject.own_vjp is not None
        self.probes = Probes(subject.leaves, subject.outputs, self.seed, explore=self.explore, domains=self.domains)
        self.nearby = next(b for b, pair in enumerate(self.probes.pairs) if pair.point == 1)
        self.sparse = {b for b, pair in enumerate(self.probes.pairs) if pair.why.endswith("alone")}
        if not self.untraced:
            self.value = Precise(self.value_jaxpr)
            convergence.follow(self)
            self.measurement: Any = Measurement(self.value, len(self.shapes), kind="first", parts=[self.value])
            if is_analytic(self.value_jaxpr.jaxpr):
                self.measurement.exact = Complexified(self.value_jaxpr)
            self.measurement.prepare(self.probes.points[0], self.probes.cotangents[0])  # while the rule runs op by op
        eager = native.differentiate(self) if self.explore and not self.failed else None
        if self.findings:
            return
        try:
            self._measure()
        except Exception as e:  # noqa: BLE001 - a rule is the user's: it may raise anything
            self.raises(e)
        if self.findings:
            return
        try:
            self._check_first(eager)
        except Exception as e:  # noqa: BLE001 - as above
            self.raises(e)
            return
        if 0 not in self.seen:
            return
        if not self.failed and self.explore:
            transformed.check_forward(self)
            transformed.check_vmap(self)
        if not self.failed and self.order >= 2:
            second.check_second(self)

    def _measure(self) -> None:
        """Prepare what computes rule and reference."""
        if self.untraced:
            self.measurement = Untraced(self.subject.pull, self.subject.primal, self.seed)
            return
        if not self.explore:
            return  # JAX's derivative of a function without rules is the reference
        rule, _ = jaxapi.trace(self.pulled, *self.traced, *self.shapes)
        self.rule = self.measurement.rule = self.precise(rule)
        if "numeric" not in self.against:
            self.measurement.believed = self._believed()
        check_structure(self)

    def pulled(self, *a: Any) -> tuple[Any, ...]:
        """Return the values and the gradients of the derivative under test."""
        n = len(self.traced)
        return tuple(itertools.chain(*self.subject.pull(a[:n], a[n:])))

    def _believed(self) -> Precise:
        """JAX's derivative with all rules, at its word."""
        subject, n = self.subject, len(self.traced)
        if subject.kind == "jax" and subject.own_vjp is None:
            return self.rule
        function = jaxapi.jaxpr_as_fun(self.value_jaxpr)

        def derived(*a: Any) -> Any:
            ys, back = jax.vjp(function, *a[:n])
            return (*ys, *back(list(a[n:])))

        return self.precise(jaxapi.trace(derived, *self.traced, *self.shapes)[0])

    def precise(self, closed: Any) -> Precise:
        """Return a jaxpr to be evaluated as the function is."""
        made = Precise(closed)
        made.further, made.most = self.value.further, self.value.most
        return made

    @property
    def asks_values(self) -> bool:
        """Whether the function's values say what its derivative is: those of samples move otherwise than their distribution."""
        drawn = not self.untraced and any(eqn.primitive.name in _SAMPLERS for eqn in equations(self.value_jaxpr.jaxpr))
        if drawn and (note := "the derivative of a sample is that of its distribution's quantile: values were not asked") not in self.notes:
            self.notes.append(note)
        return "numeric" in self.against and not drawn

    @property
    def failed(self) -> bool:
        """Whether anything was found wrong."""
        return any(f.verdict == "fail" for f in self.findings)

    @property
    def settled(self) -> bool:
        """Whether anything was found wrong, or inaccurate, which the function's values would only say again."""
        return any(f.verdict in {"fail", "inaccurate"} for f in self.findings)

    def doubt(self, argument: int | None, kind: str, message: str, **details: Any) -> None:
        """Note something that cannot be decided."""
        self.findings.append(Finding(kind, argument, "inconclusive", message, **details))

    def fail(self, argument: int | None, kind: str, message: str, **details: Any) -> None:
        """Note something that is wrong."""
        self.findings.append(Finding(kind, argument, "fail", message, **details))

    def coarse(self, argument: int, kind: str, **details: Any) -> None:
        """Note something that is right, but for what rounding takes."""
        r, g = details["expected"], details["got"]
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.nanmax(np.where(np.isfinite(r) & (r != 0), np.abs(g - r) / np.abs(r), 0), initial=0)
        if share > MOST:
            message = "right but for what is far beneath rounding of the gradient of all outputs: its formula rounds that to nothing"
        else:
            message = f"right but for a share of {share:.1g}: its formula loses digits to rounding in the function's dtype"
        self.findings.append(Finding(kind, argument, "inaccurate", message, **details))

    def imprecise(self, argument: int, b: int, got: np.ndarray) -> bool:
        """Tell whether a gradient is wrong by no more than rounding takes from the rule."""
        if self.untraced or not self.explore:
            return False
        pair = self.probes.pairs[b]
        if b in self.sparse and self._beneath(argument, b, got):
            return True
        inputs = [*self.probes.points[pair.point], *self.probes.cotangents[pair.cotangent]]
        return inexact(self, self.rule, inputs, len(self.shapes) + argument, self.found["r"][argument][2 * b], got)

    def _beneath(self, argument: int, b: int, got: np.ndarray) -> bool:
        """Tell whether all that one output's gradient lacks is far beneath what rounding takes from the gradient of all outputs."""
        with np.errstate(invalid="ignore"):
            whole = np.abs(self.found["r"][argument][0]).max(initial=0)
            return bool(np.all(np.abs(got - self.found["r"][argument][2 * b]) <= self.fine**2 * whole))

    def infinite(self) -> None:
        """Note that there is no value at the given point."""
        self.doubt(None, "first", "the function's value is not finite at the given point")

    def raises(self, error: Exception) -> None:
        """Note that the derivative cannot be computed: a fault of the rule where there is one."""
        ruled = isinstance(self.subject.fun, (jax.custom_jvp, jax.custom_vjp)) or (self.explore and not self.untraced)
        note = self.fail if ruled else self.doubt
        note(None, "raises", f"the derivative raises {self.line(error)}")

    @staticmethod
    def line(error: Exception) -> str:
        """Return an error as one line."""
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"

    def details(self, argument: int, b: int) -> dict[str, Any]:
        """Return what a finding says of a pair."""
        pair = self.probes.pairs[b]
        at = self.probes.points[pair.point][argument]
        return {"why": pair.why, "expected": self.found["r"][argument][2 * b], "got": self.found["g"][argument][2 * b], "at": at, "pair": b}

    def _pairs(self) -> tuple[list[Any], list[Any]]:
        """Points and cotangents of all pairs, each followed by its twin at a distance of rounding.

        The last two are twins at a distance that the arguments' own dtypes cannot tell apart.
        """
        rng = np.random.default_rng(self.seed + 1)
        points, cts = [], []
        for pair in self.probes.pairs:
            x = self.probes.points[0 if pair.point in self.adrift else pair.point]  # nobody looks at what is found there
            points += [x, [a * (1 + NUDGE * rng.uniform(0.3, 1, a.shape) * rng.choice([-1, 1], a.shape)) for a in x]]
            cts += [self.probes.cotangents[pair.cotangent]] * 2
        for i in (0, 1):
            points.append([a * (1 + 2 * self.eps * rng.choice([-1, 1], a.shape)) for a in self.probes.points[i]])
            cts.append(self.probes.cotangents[i])
        return points, cts

    def _check_first(self, eager: Any) -> None:
        found = self._compared()
        m = self.measurement
        if self.by_differences:
            self.rtol = max(self.rtol, 1e-6 if m.eps < 1e-12 else 1e4 * m.eps)
        elif self.value.opaque or (self.explore and self.rule.opaque):
            m.eps = _eps(jnp.float32)
            self.rtol = max(self.rtol, 200 * m.eps)
        if self.iterates:  # solvers, and their rules, are as exact as their tolerance
            self.rtol = max(self.rtol, 3e-6)
        self.found = found
        finite = [b for b in range(len(self.probes.pairs)) if all(np.all(np.isfinite(y[2 * b])) for y in found["y"])]
        self.seen = [b for b in finite if self.probes.pairs[b].point not in self.adrift]
        if self.iterates:  # solvers with an absolute tolerance do not see what is far below it
            self.seen = [b for b in self.seen if not self.probes.pairs[b].why.startswith("a cotangent of size 1e-")]
        beyond = [b for b in self.seen if not self.probes.inside[self.probes.pairs[b].point]]
        self.seen = [b for b in self.seen if b not in beyond]
        if eager is None and 0 not in self.seen:
            self.infinite()
            return
        self._check_values()
        self._note_beyond(self._suspects(beyond))
        suspects = self._suspects(self.seen)
        if eager is not None:
            native.compare(self, eager, {(s.argument, s.pair) for s in suspects})
        judgement.judge(self, suspects)
        if not self.explore and not self.findings:
            native.check_finite(self)
        if self.explore and m.believed is not None:
            check_linear(self)
        if eager is not None and not self.failed:
            native.alone(self)
        if eager is not None and not self.failed:
            native.repeat(self, eager)
        if not self.settled and self.asks_values:
            judgement.ask_values(self)

    def _compared(self) -> dict[str, list[np.ndarray]]:
        """Return values and gradients of reference and rule for all pairs; the reference is the best that there is."""
        pairs = self._pairs()
        if self.by_differences or not self.explore:
            return self.measurement.compare(*pairs)  # type: ignore[no-any-return]
        small = max(x.size for x in self.traced) <= BASIS
        for prepare in (lambda: None, self.measurement.use_forward) if small else (lambda: None,):  # some loops have no reverse mode
            prepare()
            try:
                return self.measurement.compare(*pairs)  # type: ignore[no-any-return]
            except Exception as e:  # noqa: BLE001 - whatever JAX raises where it has no rule
                error = e
        self.by_differences = True
        self.notes.append(f"JAX cannot differentiate what the function computes ({type(error).__name__}): its values alone were asked")
        m = len(self.shapes)
        value, rule = Program("value", self.value, [self.value]), Program("rule", self.rule, [self.rule])

        def pull(xs: Any, cts: Any) -> tuple[list[Any], list[Any]]:
            found = list(rule(*xs, *cts))
            return found[:m], found[m:]

        value(*self.probes.points[0])
        self.measurement = Untraced(pull, value, self.seed)
        self.measurement.eps = _eps(jnp.float32) if self.value.opaque or self.rule.opaque else self.measurement.eps
        return self.measurement.compare(*pairs)  # type: ignore[no-any-return]

    def one_by_one(self, singles: Sequence[tuple[Any, Any]]) -> dict[str, list[np.ndarray]]:
        """Compute rule and reference for points with their cotangents, by the program that is there."""
        return self.measurement.compare([x for x, _ in singles], [ct for _, ct in singles])  # type: ignore[no-any-return]

    def tolerance(self, r: np.ndarray, twin: np.ndarray, floor: Any) -> Any:
        """Return how far a right derivative may be off in double precision: what a nudge of the point changes, and a share."""
        with np.errstate(invalid="ignore"):
            change = np.abs(r - twin)
            size = np.where(np.isfinite(r), np.abs(r), 0)
            jump = change > 1e-4 * (size + np.abs(twin)) + 1e-6 * (np.sqrt(np.mean(size**2)) if size.size else 0)  # a kink, not rounding
        change = np.where(np.isfinite(change) & ~jump, change, 0)
        typical = np.sqrt(np.mean(change**2)) if change.size else 0.0
        if self.iterates and size.size:  # when to stop is decided for all elements together
            floor = floor + self.rtol * np.sqrt(np.mean(size**2))
        return 20 * change + 20 * typical + self.rtol * np.abs(r) + floor

    def floor(self, b: int, x: np.ndarray) -> Any:
        """Return what rounding of the function's values alone can make of a gradient that is zero."""
        cts = self.probes.cotangents[self.probes.pairs[b].cotangent]
        size = sum(float(np.abs(y[2 * b] * c).sum()) for y, c in zip(self.found["y"], cts, strict=True))
        return 1e3 * np.finfo(float).eps * size / scale_of(x)

    def _check_values(self) -> None:
        """The function's result is the same when it is differentiated."""
        for k, (ys, owns) in enumerate(zip(self.found["y"], self.found["rule_y"], strict=True)):
            for b in self.seen:
                y, twin, own = ys[2 * b], ys[2 * b + 1], owns[2 * b]
                tolerance = self.tolerance(y, twin, 1e3 * np.finfo(float).eps * np.abs(y).max(initial=0))
                if np.any(~(np.abs(y - own) <= tolerance)):
                    why = self.probes.pairs[b].why
                    self.fail(
                        None, "value", f"output {k} is another when the function is differentiated", why=why, expected=y, got=own, pair=b
                    )
                    return

    def _note_beyond(self, suspects: list[Suspect]) -> None:
        """Say what is another derivative where nobody said that there is a function."""
        for s in {s.argument: s for s in reversed(suspects)}.values():
            why, at = self.probes.pairs[s.pair].why, self.probes.points[self.probes.pairs[s.pair].point][s.argument]
            self.notes.append(
                f"at {why}, the gradient by {self.subject.names[s.argument]} is not JAX's of the values (at {at[s.bad].flat[0]:.3g}, say): no fault "
                "unless the function is meant there, as domain=(low, high) would say"
            )

    def _suspects(self, pairs: Sequence[int]) -> list[Suspect]:
        suspects = []
        for k in range(len(self.traced)):
            for b in pairs:
                r, twin, g = self.found["r"][k][2 * b], self.found["r"][k][2 * b + 1], self.found["g"][k][2 * b]
                tolerance = self.tolerance(r, twin, self.floor(b, self.probes.points[self.probes.pairs[b].point][k]))
                with np.errstate(invalid="ignore", divide="ignore"):
                    off = np.abs(g - r)
                    same = (off <= tolerance) | (g == r) | ~np.isfinite(r)  # such a reference convicts nobody: values are asked
                    if (
                        self.probes.pairs[b].point >= FAR and self.probes.pairs[b].point != self.probes.bent
                    ):  # nobody asked how exact approximations are there
                        same |= (off <= 1e-3 * np.abs(r)) | ~np.isfinite(g)
                    ratio = np.where(same, 0.0, np.nan_to_num(off / np.maximum(tolerance, 1e-300), nan=np.inf, posinf=np.inf))
                if not np.all(same):
                    suspects.append(Suspect(b, k, ~same, ratio))
        return suspects


def _eps(dtype: Any) -> float:
    finfo: Any = jnp.finfo
    return float(finfo(dtype).eps)
