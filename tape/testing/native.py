"""The derivative in the function's own dtypes, run as a user would run it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tape import jaxapi
from tape.testing.precise import Precise
from tape.testing.probes import wide_array

if TYPE_CHECKING:
    from tape.testing.examination import Examination

__all__ = ["TURNS", "compare", "differentiate"]

TURNS = ((0, "at the first call"), (1, "at a second call, with other values"), (0, "at a third call, with the first values again"))

Gradients = list[np.ndarray]


def differentiate(exam: Examination) -> list[Gradients] | None:
    """Differentiate three times, op by op: at the given point, at another one, and at the first again; None where it raises."""
    found = []
    for point, _ in TURNS:
        xs = exam.probes.native(exam.probes.points[point], exam.subject.leaves)
        cts = exam.probes.native(exam.probes.cotangents[point], exam.subject.outputs)
        try:
            _, gs = exam.subject.pull(xs, cts)
        except Exception as e:  # noqa: BLE001 - a rule is the user's: it may raise anything
            exam.raises(e)
            return None
        found.append([wide_array(g) for g in gs])
    return found


def compare(exam: Examination, native: list[Gradients], known: set[int]) -> None:
    """Compare with the reference; what is wrong in double precision too (``known``) is said elsewhere."""
    pairs = {0: 0, 1: exam.nearby}
    for k in range(len(exam.traced)):
        wrong = []
        for turn, (point, _) in enumerate(TURNS):
            b = pairs[point]
            g, r = native[turn][k], exam.found["r"][k][2 * b]
            if b in exam.seen and g.shape == r.shape and not _near(exam, g, k, b, point):
                wrong.append(turn)
        if not wrong:
            exam.right_eagerly.add(k)
        elif 0 not in wrong or (k not in known and len(wrong) < len(TURNS)):
            point, text = TURNS[wrong[0]]
            _tell(exam, "repeat", f"wrong {text}", native[wrong[0]][k], k, pairs[point], text)
        elif k not in known:
            dtype = exam.subject.leaves[k].dtype
            _tell(exam, "native", f"wrong in {dtype}, though right in double precision", native[0][k], k, 0, exam.probes.pairs[0].why)


def _tell(exam: Examination, kind: str, message: str, got: np.ndarray, k: int, b: int, why: str) -> None:
    exam.fail(k, kind, message, **{**exam.details(k, b), "got": got, "why": why})


def _near(exam: Examination, g: np.ndarray, k: int, b: int, point: int) -> bool:
    """Tell whether a gradient is the reference up to what rounding in its dtype explains."""
    r, twin, promoted = exam.found["r"][k][2 * b], exam.found["r"][k][point - 2], exam.found["g"][k][2 * b]
    rtol = max(exam.rtol, min(300 * exam.eps, np.sqrt(exam.eps)))
    with np.errstate(invalid="ignore"):
        change = np.nan_to_num(np.abs(r - twin), nan=0, posinf=0)
        size = _typical(r)
        floor = exam.floor(b, exam.probes.points[point][k]) * exam.eps / np.finfo(float).eps / 20
        off = ~((np.abs(g - r) <= 30 * (change + _typical(change)) + rtol * (np.abs(r) + size) + floor) | _alike(g, r) | ~np.isfinite(r))
        if not off.any():
            return True
        convention = ~_alike(promoted, r) & (np.abs(promoted - r) > 1e-3 * size)  # at a kink, in every dtype
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
