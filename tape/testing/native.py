"""The derivative in the function's own dtypes, run as a user would run it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.testing.executables import Program
from tape.testing.judgement import is_of_jax
from tape.testing.measurement import user_rules
from tape.testing.precise import Precise, equations
from tape.testing.probes import wide_array

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tape.testing.examination import Examination

__all__ = ["TURNS", "alone", "check_finite", "compare", "differentiate", "repeat"]

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
MOST = 4  # arguments that are differentiated alone

Gradients = list[np.ndarray]


def differentiate(exam: Examination) -> list[Gradients] | None:
    """Differentiate op by op: at the given point, at another one, and at the first again; None where that cannot be done.

    The third time, the function is called for the other point between the forward pass and the pullback, as in ``f(x) + f(y)`` (of a large
    program, that is the first forward pass, with the second in between); the pullback is then called again, for the cotangent with all signs
    turned (the gradient is returned with its signs turned back).
    """
    found: list[Gradients] = []
    xs, cts = (
        [exam.probes.native(given[i], like) for i in (0, 1)]
        for given, like in ((exam.probes.points, exam.subject.leaves), (exam.probes.cotangents, exam.subject.outputs))
    )
    turned = exam.probes.native([-ct for ct in exam.probes.cotangents[0]], exam.subject.outputs)
    back: Any = None
    kept: Any = None
    for turn, (point, _) in enumerate(TURNS[:JIT]):
        if turn == TURNED and exam.large:
            found.append(found[BETWEEN])
            continue
        try:
            if turn == BETWEEN and exam.large:
                back = kept
            elif turn != TURNED:
                ys, back = exam.subject.vjp(xs[point])
            kept = kept or back
            if turn == BETWEEN and not exam.large:
                exam.subject.vjp(xs[1])
            gs = back(turned if turn == TURNED else cts[point])
        except Exception as e:  # noqa: BLE001 - a rule is the user's: it may raise anything
            exam.raises(e)
            return None
        if not found and not all(np.all(np.isfinite(wide_array(y))) for y in ys):
            exam.infinite()
            return None
        found.append([-wide_array(g) if turn == TURNED else wide_array(g) for g in gs])
    return found


def check_finite(exam: Examination) -> None:
    """Tell where JAX's derivative of a function without rules of its own is lost to the function's dtypes."""
    own = Precise(exam.subject.first, keep=_all)

    def pull(xs: Any, cts: Any) -> Any:
        ys, back = jax.vjp(lambda *a: [own(*a)[i] for i in exam.subject.positions], *xs)
        return ys, back(cts)

    xs = exam.probes.native(exam.probes.points[0], exam.subject.leaves)
    cts = exam.probes.native(exam.probes.cotangents[0], exam.subject.outputs)
    ys, gs = Program(("native", *exam.subject.positions), pull, [own])(xs, cts)
    if not all(np.all(np.isfinite(wide_array(y))) for y in ys):
        exam.infinite()
        return
    for k, (g, r) in enumerate(zip(map(wide_array, gs), exam.found["r"], strict=True)):
        dtype = exam.subject.leaves[k].dtype
        finfo: Any = jnp.finfo
        if np.any(~np.isfinite(g) & (np.abs(r[0]) < float(finfo(dtype).max))):
            message = f"the derivative is not finite in {dtype}, though it exists: something on the way to it is too large or too small"
            exam.doubt(k, "native", message, **(exam.details(k, 0) | {"got": g}))


def _compiled(exam: Examination, b: int) -> Gradients:
    """Run the traced derivative as one program in the function's own dtypes."""
    return _as_program(exam, b)()


def _as_program(exam: Examination, b: int) -> Callable[[], Gradients]:
    own, pair = Precise(exam.native_rule, keep=_all), exam.probes.pairs[b]
    xs = exam.probes.native(exam.probes.points[pair.point], exam.subject.leaves)
    cts = exam.probes.native(exam.probes.cotangents[pair.cotangent], exam.subject.outputs)
    program = Program("native", own, [own])
    return lambda: [wide_array(g) for g in program(*xs, *cts)[len(cts) :]]


def compare(exam: Examination, native: list[Gradients], suspects: set[tuple[int, int]]) -> None:
    """Compare with the reference; what is wrong in double precision too (``suspects``: arguments with pairs) is said elsewhere."""
    known = {k for k, _ in suspects}
    pairs = {0: 0, 1: exam.nearby}
    if not exam.untraced:
        native = [*native, _compiled(exam, pairs[TURNS[JIT][0]])]
    for k in range(len(exam.traced)):
        wrong = []
        for turn, (point, _) in enumerate(TURNS[: len(native)]):
            b = pairs[point]
            if turn == TURNED and k in known:
                continue  # it may not be linear, which is said elsewhere
            g, r = native[turn][k], exam.found["r"][k][2 * b]
            if b in exam.seen and g.shape == r.shape and not _near(exam, g, k, b, point, said=(k, b) in suspects):
                wrong.append(turn)
        if not wrong:
            continue
        if k not in known and all(exam.imprecise(k, pairs[TURNS[turn][0]], native[turn][k]) for turn in wrong):
            exam.coarse(k, "native", **(exam.details(k, 0) | {"got": native[0][k]}))
        elif 0 not in wrong or (k not in known and len(wrong) < len(native)):
            point, text = TURNS[wrong[0]]
            _tell(exam, "jit" if wrong == [JIT] else "repeat", f"wrong {text}", native[wrong[0]][k], k, pairs[point], text)
        elif k not in known:
            dtype = exam.subject.leaves[k].dtype
            _tell(exam, "native", f"wrong in {dtype}, though right in double precision", native[0][k], k, 0, exam.probes.pairs[0].why)


def alone(exam: Examination) -> None:
    """Differentiate by one argument alone, and one output alone, where a rule is told what nobody asked for."""
    subject = exam.subject
    n, m = len(exam.traced), len(exam.shapes)
    if exam.untraced or subject.own_vjp is not None or n == m == 1 or not _told(exam):
        return
    if exam.large:
        exam.left_out.append("arguments and outputs alone")
        return
    xs = exam.probes.native(exam.probes.points[0], subject.leaves)
    tasks: list[tuple[Sequence[int], Sequence[int], int, str]] = []
    if n > 1:
        tasks += [((k,), range(m), 0, f"argument {subject.names[k]} alone") for k in range(min(n, MOST))]
    for b in sorted(exam.sparse) if m > 1 else ():
        used = [o for o, ct in enumerate(exam.probes.cotangents[exam.probes.pairs[b].cotangent]) if ct.any()]
        if "output " in exam.probes.pairs[b].why and len(used) == 1 and b in exam.seen:
            tasks.append((tuple(range(n)), used, b, exam.probes.pairs[b].why))
    for arguments, outputs, b, text in tasks:
        cts = exam.probes.native(exam.probes.cotangents[exam.probes.pairs[b].cotangent], subject.outputs)
        try:
            found = subject.pull_alone(xs, cts, arguments, outputs)
        except Exception as e:  # noqa: BLE001 - as above
            exam.raises(e)
            return
        for k, g in zip(arguments, map(wide_array, found), strict=True):
            if not _near(exam, g, k, b, 0):
                _tell(exam, "native", f"wrong for {text}, though right for all together", g, k, b, text)
                return


def repeat(exam: Examination, eager: list[Gradients]) -> None:
    """Call the same again and again, op by op and as a program: a rule may be wrong now and then."""
    xs = exam.probes.native(exam.probes.points[0], exam.subject.leaves)
    cts = exam.probes.native(exam.probes.cotangents[0], exam.subject.outputs)
    runs: list[tuple[Callable[[], list[Any]], Gradients, int]] = []
    if exam.untraced or user_rules(exam.value_jaxpr) or exam.subject.kind == "tape" or exam.subject.own_vjp is not None:
        runs.append((lambda: exam.subject.pull(xs, cts)[1], eager[0], _calls(exam)))
    if not exam.untraced and any("callback" in eqn.primitive.name for eqn in equations(exam.native_rule.jaxpr)):
        program = _as_program(exam, 0)
        runs.append((program, program(), AGAIN))
    for run, first, count in runs:
        for call in range(count):
            for k, (g, was) in enumerate(zip(map(wide_array, run()), first, strict=True)):
                with np.errstate(invalid="ignore"):
                    same = (np.abs(g - was) <= 300 * exam.eps * (np.abs(was) + _typical(was))) | _alike(g, was)
                if not np.all(same):
                    text = "at a further call with the same values"
                    exam.fail(k, "repeat", f"wrong {text} ({call + 1} of {count})", **(exam.details(k, 0) | {"got": g, "why": text[3:]}))
                    return


def _calls(exam: Examination) -> int:
    """Return how many further calls are cheap: op by op, what is inside loops is compiled anew by each."""
    if exam.untraced:
        return AGAIN
    flat = len(exam.rule.closed.jaxpr.eqns)
    inside = sum(1 for _ in equations(exam.rule.closed.jaxpr)) - flat
    count = min(AGAIN, BUDGET // (flat + INSIDE * inside + 1))
    count = count if count > 1 else 0  # one call more is dear where no second is to be had, and finds little
    if count < AGAIN:
        exam.left_out.append(f"{AGAIN - count} of {AGAIN} further calls")
    return count


def _told(exam: Examination) -> bool:
    """Tell whether a rule of the user's sees which arguments are differentiated and which outputs are used."""
    rules = [eqn for eqn in user_rules(exam.value_jaxpr) if not is_of_jax(eqn)]
    return any(exam.subject.kind == "tape" or eqn.params.get("symbolic_zeros") for eqn in rules)


def _tell(exam: Examination, kind: str, message: str, got: np.ndarray, k: int, b: int, why: str) -> None:
    exam.fail(k, kind, message, **{**exam.details(k, b), "got": got, "why": why.removeprefix("at ")})


def _near(exam: Examination, g: np.ndarray, k: int, b: int, point: int, *, said: bool = False) -> bool:
    """Tell whether a gradient is the reference up to what rounding in its dtype explains, or as in double precision if that is off."""
    r, promoted = exam.found["r"][k][2 * b], exam.found["g"][k][2 * b]
    dense, twin = exam.found["r"][k][2 * (0 if point == 0 else exam.nearby)], exam.found["r"][k][point - 2]
    rtol = max(exam.rtol, min(300 * exam.eps, np.sqrt(exam.eps)))
    with np.errstate(invalid="ignore"):
        change = np.nan_to_num(np.abs(dense - twin), nan=0, posinf=0)
        own = exam.found["g"][k][2 * (0 if point == 0 else exam.nearby)] - exam.found["g"][k][point - 2]  # what rounding does to the rule
        change = np.maximum(change, np.nan_to_num(np.abs(own), nan=0, posinf=0))
        size = _typical(r)
        floor = exam.floor(b, exam.probes.points[point][k]) * exam.eps / np.finfo(float).eps / 200
        off = ~((np.abs(g - r) <= 30 * (change + _typical(change)) + rtol * (np.abs(r) + size) + floor) | _alike(g, r) | ~np.isfinite(r))
        if exam.eps < DOUBLE:  # nothing but rounding parts the rule from itself in the program for double precision
            moved = np.nan_to_num(np.abs(promoted - exam.found["g"][k][2 * b + 1]), nan=0, posinf=0)
            reach = 30 * (moved + _typical(moved)) + 300 * exam.eps * (np.abs(promoted) + _typical(promoted))
            off |= ~((np.abs(g - promoted) <= reach) | _alike(g, promoted) | ~np.isfinite(promoted))
        if not off.any():
            return True
        convention = ~_alike(promoted, r) & (said | (np.abs(promoted - r) > 1e-3 * size))  # at a kink, in every dtype
        if np.all(~off | (convention & ((np.abs(g - promoted) <= np.sqrt(exam.eps) * (np.abs(promoted) + size)) | _alike(g, promoted)))):
            return True
        bare = _bare(exam, point, b, k)
        if bare is None:
            return True
        gap = np.nan_to_num(np.abs(bare - r), nan=np.inf, posinf=np.inf)
        return bool(np.all(~off | (np.abs(g - r) <= 30 * (gap + _typical(gap)))))


def _alike(a: np.ndarray, b: np.ndarray) -> Any:
    return (a == b) | (np.isnan(a) & np.isnan(b))


def _typical(x: np.ndarray) -> float:
    finite = np.where(np.isfinite(x), np.abs(x), 0)
    return float(np.sqrt(np.mean(finite**2))) if x.size else 0.0


def _bare(exam: Examination, point: int, b: int, k: int) -> np.ndarray | None:
    """JAX's derivative of the bare function in the function's own dtypes: what rounding does to a derivative that is right."""
    if exam.untraced:
        return None
    if exam.measurement.believed is not None:
        return _compiled(exam, b)[k]
    try:
        closed, _ = jaxapi.trace(exam.subject.primal, *exam.subject.leaves)
        own = Precise(closed, keep=_none)
        xs = exam.probes.native(exam.probes.points[point], exam.subject.leaves)
        cts = exam.probes.native(exam.probes.cotangents[exam.probes.pairs[b].cotangent], exam.subject.outputs)
        _, back = jax.vjp(own.__call__, *xs)
        return wide_array(back(cts)[k])
    except Exception:  # noqa: BLE001 - then JAX cannot be asked
        return None


def _none(_: Any) -> bool:
    return False


def _all(_: Any) -> bool:
    return True
