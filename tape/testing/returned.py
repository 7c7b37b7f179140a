"""What function and derivative return: the same for the same arguments, and of the form of what it is the derivative of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tape import jaxapi
from tape.jaxapi import ClosedJaxpr, ShapedArray
from tape.testing.evidence import Evidence
from tape.testing.executables import signature
from tape.testing.findings import Finding, fail
from tape.testing.precise import equations
from tape.testing.probes import wide_array
from tape.testing.subject import Subject


def check_steady(evidence: Evidence) -> Iterator[Finding]:
    """Compare two calls with the same arguments, unless two traces show that they run the same program."""
    subject = evidence.subject
    if subject.first is not None:
        alike = all(x.dtype == t.dtype for x, t in zip(subject.leaves, evidence.traced, strict=True))
        again = evidence.value_jaxpr if alike and not evidence.untraced else jaxapi.trace(subject.primal, *subject.leaves)[0]
        if _same(subject.first, again) and not any("callback" in eqn.primitive.name for eqn in equations(again.jaxpr)):
            return
        runs = [jaxapi.jaxpr_as_fun(again), subject.primal]  # what the program was, and what it is now
    else:
        runs = [subject.primal, subject.primal]
    first, second = ([wide_array(y) for y in run(*subject.leaves)] for run in runs)
    for k, (y, other) in enumerate(zip(first, second, strict=True)):
        tolerance = 1e3 * evidence.eps * (np.abs(y) + np.sqrt(np.mean(np.abs(y) ** 2)) if y.size else 0)
        with np.errstate(invalid="ignore"):
            off = ~((np.abs(y - other) <= tolerance) | (y == other) | (np.isnan(y) & np.isnan(other)))
        if off.any():
            message = f"output {k} changes from call to call with the same arguments: pass what is random (a key, a seed) as an argument"
            yield fail(None, "value", message, why="the given point")
            return


def _same(first: ClosedJaxpr, again: ClosedJaxpr) -> bool:
    """Tell whether two jaxprs compute the same, up to which of the results they return."""
    if signature(first.jaxpr)[:-1] != signature(again.jaxpr)[:-1]:
        return False
    return all(a is b or _equal(a, b) for a, b in zip(first.consts, again.consts, strict=True))


def _equal(a: object, b: object) -> bool:
    try:
        return np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True)
    except TypeError:
        return False


def check_structure(avals: Sequence[ShapedArray], subject: Subject) -> Iterator[Finding]:
    """A cotangent has its primal's shape and dtype, and a value the function's; ``avals`` are of the values and gradients of the rule."""
    values, gradients = avals[: len(subject.outputs)], avals[len(subject.outputs) :]
    for k, (own, y) in enumerate(zip(values, subject.outputs, strict=True)):
        if own.shape != y.shape or own.dtype != y.dtype:
            inside = f"dtype {own.dtype} and shape {own.shape} when the function is differentiated"
            message = f"output {k} has {inside}, {y.dtype} and {y.shape} otherwise"
            yield fail(None, "structure", message)
    for k, (g, x) in enumerate(zip(gradients, subject.leaves, strict=True)):
        if g.shape != x.shape or g.dtype != x.dtype:
            message = f"the cotangent has dtype {g.dtype} and shape {g.shape}, its primal {x.dtype} and {x.shape}"
            yield fail(k, "structure", message, got=np.zeros(g.shape), expected=np.zeros(x.shape))
