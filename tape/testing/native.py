"""The derivative in the function's own dtypes, run as a user would run it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.testing.accuracy import coarse, imprecise
from tape.testing.evidence import Evidence
from tape.testing.executables import Program
from tape.testing.findings import Finding, Item, LeftOut, doubt, fail, infinite
from tape.testing.judgement import is_of_jax
from tape.testing.linearity import refused
from tape.testing.measurement import Measurement, user_rules
from tape.testing.precise import Precise, equations
from tape.testing.probes import wide_array

TURNS = (
    (0, "at the first call"),
    (1, "at a second call, with other values"),
    (0, "at a third call, with the first values, when another forward pass has come between"),
    (0, "at a further call, with the first values and another cotangent"),
    (1, "under jit"),
)
BETWEEN, TURNED, JIT = 2, 3, 4
AGAIN = 16  # further calls of a function of the user's own, and of its program
BUDGET = 40_000  # equations that further calls may run
INSIDE = 10  # equations that one inside a loop or a branch counts for

DOUBLE = 1e-12  # below it, double precision is the function's own
HALF = 1e-4  # above it, rounding and conditioning in the function's own dtypes would hide a wrong factor
CONSTANTS = 8  # times the dtype's rounding: what that of constants may take from a gradient
MOST = 4  # arguments that are differentiated alone

Gradients = list[np.ndarray]


def differentiate(evidence: Evidence) -> list[Gradients] | Finding:
    """Differentiate op by op: at the given point, at another one, and at the first again; or say why that cannot be done.

    The third time, the function is called for the other point between the forward pass and the pullback, as in ``f(x) + f(y)`` (of a large
    program, that is the first forward pass, with the second in between); the pullback is then called again, for the cotangent with all
    signs turned (the gradient is returned with its signs turned back).
    """
    calls: list[Gradients] = []
    xs, cts = (
        [evidence.probes.native(given[i], like) for i in (0, 1)]
        for given, like in ((evidence.probes.points, evidence.subject.leaves), (evidence.probes.cotangents, evidence.subject.outputs))
    )
    turned = evidence.probes.native([-ct for ct in evidence.probes.cotangents[0]], evidence.subject.outputs)
    back: Any = None
    kept: Any = None
    for turn, (point, _) in enumerate(TURNS[:JIT]):
        if turn == TURNED and evidence.large:
            calls.append(calls[BETWEEN])
            continue
        try:
            if turn == BETWEEN and evidence.large:
                back = kept
            elif turn != TURNED:
                ys, back = evidence.subject.vjp(xs[point])
            kept = kept or back
            if turn == BETWEEN and not evidence.large:
                evidence.subject.vjp(xs[1])
            gs = back(turned if turn == TURNED else cts[point])
        except Exception as e:  # noqa: BLE001 - a rule is the user's: it may raise anything
            return refused(evidence, e)
        if not calls and not all(np.all(np.isfinite(wide_array(y))) for y in ys):
            return infinite()
        calls.append([-wide_array(g) if turn == TURNED else wide_array(g) for g in gs])
    return calls


def stale(evidence: Evidence, calls: list[Gradients]) -> Iterator[Finding]:
    """Tell whether another forward pass changed a gradient; asked where nothing else can be computed."""
    for k, (g, was) in enumerate(zip(calls[BETWEEN], calls[0], strict=True)):
        if g.shape == was.shape and not np.all((np.abs(g - was) <= np.sqrt(evidence.eps) * (np.abs(was) + _typical(was))) | _alike(g, was)):
            text = TURNS[BETWEEN][1]
            at = evidence.probes.points[0][k]
            yield fail(k, "repeat", f"wrong {text}", expected=was, got=g, at=at, why=text.removeprefix("at "))


def check_finite(evidence: Evidence) -> Iterator[Finding]:
    """Tell where JAX's derivative of a function without rules of its own is lost to the function's dtypes."""
    own = Precise(evidence.subject.first, keep=_all)

    def pull(xs: Sequence[jax.Array], cts: Sequence[jax.Array]) -> tuple[list[jax.Array], tuple[jax.Array, ...]]:
        ys, back = jax.vjp(lambda *a: [own(*a)[i] for i in evidence.subject.positions], *xs)
        return ys, back(cts)

    xs, cts = evidence.native(0)
    ys, gs = Program(("native", *evidence.subject.positions), pull, [own])(xs, cts)
    if not all(np.all(np.isfinite(wide_array(y))) for y in ys):
        yield infinite()
        return
    for k, (g, r) in enumerate(zip(map(wide_array, gs), evidence.measured["r"], strict=True)):
        dtype = evidence.subject.leaves[k].dtype
        finfo: Any = jnp.finfo
        if np.any(~np.isfinite(g) & (np.abs(r[0]) < float(finfo(dtype).max))):
            message = (
                f"the derivative is not finite in {dtype}, though it exists: an intermediate value is too large or too small for the dtype"
            )
            yield doubt(k, "native", message, **(evidence.details(k, 0) | {"got": g}))


def _compiled(evidence: Evidence, b: int) -> Gradients:
    """Run the traced derivative as one program in the function's own dtypes."""
    return _as_program(evidence, b)()


def _as_program(evidence: Evidence, b: int) -> Callable[[], Gradients]:
    own = Precise(evidence.native_rule, keep=_all)
    xs, cts = evidence.native(b)
    program = Program("native", own, [own])
    return lambda: [wide_array(g) for g in program(*xs, *cts)[len(cts) :]]


def compare(evidence: Evidence, native: list[Gradients], suspects: set[tuple[int, int]]) -> Iterator[Finding]:
    """Compare with the reference; what is wrong in double precision too (``suspects``: arguments with pairs) is said elsewhere."""
    known = {k for k, _ in suspects}
    pairs = {0: 0, 1: evidence.nearby}
    if not evidence.untraced:
        native = [*native, _compiled(evidence, pairs[TURNS[JIT][0]])]
    for k in range(len(evidence.traced)):
        wrong = []
        for turn, (point, _) in enumerate(TURNS[: len(native)]):
            b = pairs[point]
            if turn == TURNED and k in known:
                continue  # it may not be linear, which is said elsewhere
            g, r = native[turn][k], evidence.measured["r"][k][2 * b]
            if b in evidence.seen and g.shape == r.shape and not _near(evidence, g, k, b, point, said=(k, b) in suspects):
                wrong.append(turn)
        if not wrong:
            continue
        if k not in known and all(imprecise(evidence, k, pairs[TURNS[turn][0]], native[turn][k]) for turn in wrong):
            yield coarse(k, "native", **(evidence.details(k, 0) | {"got": native[0][k]}))
        elif 0 not in wrong or (k not in known and len(wrong) < len(native)):
            point, text = TURNS[wrong[0]]
            by_ops = {0, BETWEEN} <= set(wrong) and JIT not in wrong
            message = "wrong op by op, though right under jit" if by_ops else f"wrong {text}"
            why = evidence.probes.pairs[0].why if by_ops else text
            yield _wrong(evidence, "jit" if wrong == [JIT] else "repeat", message, native[wrong[0]][k], k, pairs[point], why)
        elif k not in known:
            wide = "where nothing is computed in a narrower dtype" if evidence.eps < DOUBLE else "in double precision"
            text = f"wrong in {evidence.subject.leaves[k].dtype}, though right {wide}"
            yield _wrong(evidence, "native", text, native[0][k], k, 0, evidence.probes.pairs[0].why)


def check_half(evidence: Evidence, native: list[Gradients]) -> Iterator[Item]:
    """Compare the rule as it is traced for half precision with JAX's derivative of the function as traced for it, both in double precision.

    What parts the two is the rounding of constants; a gradient that is taken for wrong has to be so when the rule runs in half precision,
    too.
    """
    subject, of = evidence.subject, evidence.measurement
    if evidence.eps < HALF or evidence.by_differences or of.believed is not None:
        return
    if evidence.large:
        yield LeftOut(f"the rule as it is traced in {subject.leaves[0].dtype}")
        return
    value, rule = (evidence.precise(closed) for closed in (jaxapi.trace(subject.primal, *subject.leaves)[0], evidence.native_rule))
    traced = Measurement(value, len(subject.outputs), rule, kind="as traced", parts=[value])
    if of.mode == "forward":
        traced.use_forward()
    pairs = (0, evidence.nearby)
    try:
        compared = traced.compare(*zip(*map(evidence.at, pairs), strict=True))
    except Exception:  # noqa: BLE001 - whatever JAX raises: then it cannot be asked
        return
    if value.opaque or rule.opaque:
        return
    for k, x in enumerate(subject.leaves):
        references: list[Iterable[np.ndarray]] = [compared["r"][k][:2], [evidence.measured["r"][k][2 * b] for b in pairs]]
        scaled = all(abs(_factor(rs, compared["g"][k][:2]) - 1) > CONSTANTS * evidence.eps for rs in references)
        for turn, b in enumerate(pairs):
            r, g, said = compared["r"][k][turn], compared["g"][k][turn], native[turn][k]
            with np.errstate(invalid="ignore"):
                allowed = CONSTANTS * evidence.eps * (np.abs(r) + _typical(r))
                agreed = [np.abs(a[k][2 * b] - r) <= allowed for a in (evidence.measured["r"], evidence.measured["g"])]
                far = np.abs(g - r) > (evidence.eps * np.abs(r) if scaled else allowed)
                off = agreed[0] & agreed[1] & far & (np.abs(said - g) < np.abs(said - r))
            if b in evidence.seen and np.any(off):
                text = evidence.probes.pairs[b].why
                yield _wrong(evidence, "native", f"wrong in {x.dtype}, though right in single precision", said, k, b, text)
                break


def _factor(references: Iterable[np.ndarray], gradients: Iterable[np.ndarray]) -> float:
    """Return the factor by which all of some gradients differ from the references; 1 where they have none in common."""
    r, g = (np.concatenate([np.ravel(a) for a in both]) for both in (references, gradients))
    with np.errstate(invalid="ignore", divide="ignore"):
        factor = float(np.vdot(r, g).real / np.vdot(r, r).real) if r.size > 1 else 1.0
        return factor if np.all(np.abs(g - factor * r) <= 0.1 * abs(factor - 1) * np.abs(r)) else 1.0


def alone(evidence: Evidence) -> Iterator[Item]:
    """Differentiate by one argument alone, and one output alone, where a rule is told which cotangents are wanted."""
    subject = evidence.subject
    n, m = len(evidence.traced), len(evidence.shapes)
    if evidence.untraced or subject.own_vjp is not None or n == m == 1 or not _told(evidence):
        return
    if evidence.large:
        yield LeftOut("each argument and output alone")
        return
    xs = evidence.probes.native(evidence.probes.points[0], subject.leaves)
    tasks: list[tuple[Sequence[int], Sequence[int], int, str]] = []
    if n > 1:
        tasks += [((k,), range(m), 0, f"argument {subject.names[k]} alone") for k in range(min(n, MOST))]
    for b in sorted(evidence.sparse) if m > 1 else ():
        used = [o for o, ct in enumerate(evidence.at(b)[1]) if ct.any()]
        if "output " in evidence.probes.pairs[b].why and len(used) == 1 and b in evidence.seen:
            tasks.append((tuple(range(n)), used, b, evidence.probes.pairs[b].why))
    for arguments, outputs, b, text in tasks:
        _, cts = evidence.native(b)
        try:
            gradients = subject.pull_alone(xs, cts, arguments, outputs)
        except Exception as e:  # noqa: BLE001 - as above
            yield evidence.raises(e)
            return
        for k, g in zip(arguments, map(wide_array, gradients), strict=True):
            if not _near(evidence, g, k, b, 0):
                yield _wrong(evidence, "native", f"wrong for {text}, though right for all of them together", g, k, b, text)
                return


def shared(evidence: Evidence) -> Iterator[Finding]:
    """Give one Variable as two arguments, which a rule of the tape's can tell from two Variables of the same values."""
    subject = evidence.subject
    if evidence.untraced or evidence.large or subject.kind != "tape" or not _told(evidence):
        return
    xs, cts = evidence.native(0)
    alike = [(i, j) for i, j in itertools.combinations(range(len(xs)), 2) if jax.typeof(xs[i]) == jax.typeof(xs[j])]
    for i, j in alike[:MOST]:
        both = _apart_and_shared(evidence, [xs[i] if k == j else x for k, x in enumerate(xs)], cts, (i, j))
        if both is None:
            continue
        r, got = both
        with np.errstate(invalid="ignore"):
            off = ~((np.abs(got - r) <= 300 * evidence.eps * (np.abs(r) + _typical(r))) | _alike(got, r))
        if off.any():
            text = f"wrong where one Variable is given as {subject.names[i]} and {subject.names[j]}, though right for two that are equal"
            at = evidence.probes.points[0][i]
            yield fail(i, "repeat", text, expected=r, got=got, at=at, pair=0, why="the given point, with one Variable in both places")
            return


def _apart_and_shared(evidence: Evidence, xs: list[Any], cts: list[Any], places: tuple[int, int]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the sum of the gradients of two equal arguments, and that of one in their places; None where the function itself differs."""
    try:
        ys, gs = evidence.subject.pull(xs, cts)
        zs, g = evidence.subject.pull_shared(xs, cts, places)
    except Exception:  # noqa: BLE001 - whatever it raises: it is not meant for equal arguments
        return None
    if not all(np.all(_alike(wide_array(y), wide_array(z))) for y, z in zip(ys, zs, strict=True)):  # it writes into one of them
        return None
    return sum((wide_array(gs[k]) for k in places), np.zeros(())), wide_array(g)


def repeat(evidence: Evidence, eager: list[Gradients]) -> Iterator[Item]:
    """Call the same again and again, op by op and as a program: a rule may be wrong in some calls only."""
    xs, cts = evidence.native(0)
    runs: list[tuple[Callable[[], list[Any]], Gradients, int]] = []
    if evidence.untraced or user_rules(evidence.value_jaxpr) or evidence.subject.kind == "tape" or evidence.subject.own_vjp is not None:
        count = _calls(evidence)
        if count < AGAIN:
            yield LeftOut(f"{AGAIN - count} of {AGAIN} repeated calls")
        runs.append((lambda: evidence.subject.pull(xs, cts)[1], eager[0], count))
    if not evidence.untraced and any("callback" in eqn.primitive.name for eqn in equations(evidence.native_rule.jaxpr)):
        program = _as_program(evidence, 0)
        runs.append((program, program(), AGAIN))
    for run, first, count in runs:
        for call in range(count):
            for k, (g, was) in enumerate(zip(map(wide_array, run()), first, strict=True)):
                with np.errstate(invalid="ignore"):
                    same = (np.abs(g - was) <= 300 * evidence.eps * (np.abs(was) + _typical(was))) | _alike(g, was)
                if not np.all(same):
                    text = "at a further call with the same values"
                    yield fail(
                        k, "repeat", f"wrong {text} ({call + 1} of {count})", **(evidence.details(k, 0) | {"got": g, "why": text[3:]})
                    )
                    return


def _calls(evidence: Evidence) -> int:
    """Return how many further calls are cheap: op by op, what is inside loops is compiled anew by each."""
    if evidence.untraced:
        return AGAIN
    flat = len(evidence.rule.closed.jaxpr.eqns)
    inside = sum(1 for _ in equations(evidence.rule.closed.jaxpr)) - flat
    count = min(AGAIN, BUDGET // (flat + INSIDE * inside + 1))
    return count if count > 1 else 0  # a single further call is expensive, and finds little


def _told(evidence: Evidence) -> bool:
    """Tell whether a rule of the user's sees which arguments are differentiated and which outputs are used."""
    rules = [eqn for eqn in user_rules(evidence.value_jaxpr) if not is_of_jax(eqn)]
    return any(evidence.subject.kind == "tape" or eqn.params.get("symbolic_zeros") for eqn in rules)


def _wrong(evidence: Evidence, kind: str, message: str, got: np.ndarray, k: int, b: int, why: str) -> Finding:
    return fail(k, kind, message, **{**evidence.details(k, b), "got": got, "why": why.removeprefix("at ")})


def _near(evidence: Evidence, g: np.ndarray, k: int, b: int, point: int, *, said: bool = False) -> bool:
    """Tell whether a gradient is the reference up to what rounding in its dtype explains, or as in double precision if that is off."""
    r, promoted = evidence.measured["r"][k][2 * b], evidence.measured["g"][k][2 * b]
    dense, twin = evidence.measured["r"][k][2 * (0 if point == 0 else evidence.nearby)], evidence.measured["r"][k][point - 2]
    rtol = max(evidence.rtol, min(300 * evidence.eps, np.sqrt(evidence.eps)))
    with np.errstate(invalid="ignore"):
        change = np.nan_to_num(np.abs(dense - twin), nan=0, posinf=0)
        own = (
            evidence.measured["g"][k][2 * (0 if point == 0 else evidence.nearby)] - evidence.measured["g"][k][point - 2]
        )  # what rounding does to the rule
        change = np.maximum(change, np.nan_to_num(np.abs(own), nan=0, posinf=0))
        size = _typical(r)
        floor = evidence.floor(b, evidence.probes.points[point][k]) * evidence.eps / np.finfo(float).eps / 200
        off = ~((np.abs(g - r) <= 30 * (change + _typical(change)) + rtol * (np.abs(r) + size) + floor) | _alike(g, r) | ~np.isfinite(r))
        if evidence.eps < DOUBLE:  # nothing but rounding parts the rule from itself in the program for double precision
            moved = np.nan_to_num(np.abs(promoted - evidence.measured["g"][k][2 * b + 1]), nan=0, posinf=0)
            reach = 30 * (moved + _typical(moved)) + 300 * evidence.eps * (np.abs(promoted) + _typical(promoted))
            off |= ~((np.abs(g - promoted) <= reach) | _alike(g, promoted) | ~np.isfinite(promoted))
        if not off.any():
            return True
        convention = ~_alike(promoted, r) & (said | (np.abs(promoted - r) > 1e-3 * size))  # at a kink, in every dtype
        if np.all(
            ~off | (convention & ((np.abs(g - promoted) <= np.sqrt(evidence.eps) * (np.abs(promoted) + size)) | _alike(g, promoted)))
        ):
            return True
        bare = _bare(evidence, b, k)
        if bare is None:
            return True
        gap = np.nan_to_num(np.abs(bare - r), nan=np.inf, posinf=np.inf)
        return bool(np.all(~off | (np.abs(g - r) <= 30 * (gap + _typical(gap)))))


def _alike(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))


def _typical(x: np.ndarray) -> float:
    finite = np.where(np.isfinite(x), np.abs(x), 0)
    return float(np.sqrt(np.mean(finite**2))) if x.size else 0.0


def _bare(evidence: Evidence, b: int, k: int) -> np.ndarray | None:
    """JAX's derivative of the bare function in the function's own dtypes: what rounding does to a derivative that is right."""
    if evidence.untraced:
        return None
    if evidence.measurement.believed is not None:
        return _compiled(evidence, b)[k]
    try:
        closed, _ = jaxapi.trace(evidence.subject.primal, *evidence.subject.leaves)
        own = Precise(closed, keep=_none)
        xs, cts = evidence.native(b)
        _, back = jax.vjp(own.__call__, *xs)
        return wide_array(back(cts)[k])
    except Exception:  # noqa: BLE001 - then JAX cannot be asked
        return None


def _none(_: object) -> bool:
    return False


def _all(_: object) -> bool:
    return True
