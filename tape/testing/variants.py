"""Other arguments of a subject, and whether rule and reference differ there at first sight.

A rule may be right for those that were given by accident. What raises elsewhere says nothing: a function may be meant for what is given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.testing.evidence import Evidence
from tape.testing.measurement import Measurement
from tape.testing.precise import Precise, equations
from tape.testing.probes import NUDGE, Probes
from tape.testing.subject import Subject

GROWN = 2  # times as many equations: where sizes are unrolled, compiling takes long
CLEAR = 1e-3  # relative; what is less wrong elsewhere may be a matter of rounding, and is not looked into
JUMP = 1e-4  # relative; what a nudge changes in a value at a jump
SMALL = 1e-10  # what it may change in one that is zero
BY_NUMBER = ("dynamic", "gather", "scatter", "conv_")  # in names of primitives that take other elements of an axis too short for them
LAYOUT = ("reshape", "transpose", "broadcast_in_dim", "squeeze", "expand_dims", "jit", "pjit")

Axis = tuple[int, int]  # the number of an array, and of an axis


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """Other arguments of a subject, in words, with its jaxprs there.

    ``grown`` has the axes that grew together, with how many elements were given; ``noted`` says that a rule may not be meant for it.
    """

    text: str
    subject: Subject
    value: Any
    rule: Any
    grown: list[dict[Axis, int]]
    noted: bool = False


def made(evidence: Evidence, text: str, leaves: list[Any], grown: list[dict[Axis, int]]) -> Variant | None:
    """Trace function and rule there; None where one of them raises."""
    subject = evidence.subject.renewed(leaves)
    traced = [x.astype(jnp.float32) if x.dtype.itemsize < 4 else x for x in subject.leaves]
    n = len(traced)

    def pulled(*a: jax.Array) -> tuple[jax.Array, ...]:
        ys, gs = subject.pull(a[:n], a[n:])
        return (*ys, *gs)

    try:
        value, shapes = jaxapi.trace(subject.primal, *traced)
        rule, returned = jaxapi.trace(pulled, *traced, *shapes)
    except Exception:  # noqa: BLE001 - whatever it raises: it is not meant for these
        return None
    if [a.shape for a in returned[len(shapes) :]] != [x.shape for x in traced]:
        return None
    if sum(1 for _ in equations(rule.jaxpr)) > GROWN * sum(1 for _ in equations(evidence.rule.closed.jaxpr)):
        return None
    subject.first, subject.outputs = value, list(shapes)
    return Variant(text, subject, value, rule, grown)


def differs(evidence: Evidence, variant: Variant, *, used: bool = False) -> bool:
    """Tell whether rule and reference differ by more than conditioning explains; if ``used``, where the function reads what is new."""
    subject = variant.subject
    measurement = measured(evidence, *(evidence.precise(closed) for closed in (variant.value, variant.rule)), kind="first")
    probes = Probes(subject.leaves, subject.outputs, evidence.seed, explore=False, domains=[None] * len(subject.leaves))
    return apart(measurement, probes, [(subject, group) for group in variant.grown] if used else [])


def measured(evidence: Evidence, value: Precise, rule: Precise, *, kind: str) -> Measurement:
    """Return the programs that compare a rule with its reference."""
    measurement = Measurement(value, len(evidence.shapes), rule, kind=kind, parts=[value])
    if evidence.measurement.mode == "forward":
        measurement.use_forward()
    return measurement


def apart(measurement: Measurement, probes: Probes, read: list[tuple[Subject, dict[Axis, int]]]) -> bool:
    """Tell whether rule and reference differ at the given point, where the function depends on what is to be ``read``."""
    x, ct = probes.points[0], probes.cotangents[0]
    try:
        rows = measurement.compare([x, [a * (1 + NUDGE) for a in x]], [ct, ct])
    except Exception:  # noqa: BLE001 - as above
        return False
    if not all(np.all(np.isfinite(y)) for y in rows["y"]) or not steady(rows["y"], 0):
        return False
    if not all(_reads(subject, [r[0] for r in rows["r"]], group) for subject, group in read):
        return False
    return any(_apart(r[0], r[1], g[0]) for r, g in zip(rows["r"], rows["g"], strict=True))


def steady(ys: Sequence[np.ndarray], i: int) -> bool:
    """Tell whether values do not jump when the point is nudged: at a jump, or where a matrix is singular, there is no derivative.

    The first row is that of the given point.
    """
    return all(np.all(np.abs(y[i] - y[i + 1]) <= JUMP * np.sqrt(np.mean(np.abs(y[[0, i]]) ** 2)) + SMALL) for y in ys if y[i].size)


def _reads(subject: Subject, gradients: list[np.ndarray], group: dict[Axis, int]) -> bool:
    """Tell whether the function depends on what is new: one that picks elements by number is meant for one size."""
    differentiated = [(subject.places.index(i), axis, n) for (i, axis), n in group.items() if i in subject.places]
    return not differentiated or any(np.any(np.moveaxis(gradients[k], axis, 0)[n:]) for k, axis, n in differentiated)


def _apart(r: np.ndarray, twin: np.ndarray, g: np.ndarray) -> bool:
    with np.errstate(invalid="ignore"):
        size = np.sqrt(np.mean(np.abs(np.where(np.isfinite(r), r, 0)) ** 2)) if r.size else 0.0
        slack = CLEAR * (np.abs(r) + 1e-2 * size) + 20 * np.nan_to_num(np.abs(r - twin))
        return bool(np.any(np.isfinite(r) & ~(np.abs(g - r) <= slack)))
