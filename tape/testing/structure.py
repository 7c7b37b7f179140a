"""What a derivative returns has the form of what it is the derivative of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tape import jaxapi

if TYPE_CHECKING:
    from tape.testing.examination import Examination

__all__ = ["check_structure"]


def check_structure(exam: Examination) -> None:
    """A cotangent has its primal's shape and dtype, and a value the function's."""
    subject = exam.subject
    try:
        same = all(x.dtype == t.dtype for x, t in zip(subject.leaves, exam.traced, strict=True))
        exam.native_rule = exam.rule.closed if same else jaxapi.trace(exam.pulled, *subject.leaves, *subject.outputs)[0]
    except Exception as e:  # noqa: BLE001 - a rule is the user's: it may raise anything
        exam.raises(e)
        return
    found = exam.native_rule.out_avals
    values, gradients = found[: len(subject.outputs)], found[len(subject.outputs) :]
    for k, (own, y) in enumerate(zip(values, subject.outputs, strict=True)):
        if own.shape != y.shape or own.dtype != y.dtype:
            message = (
                f"output {k} has dtype {own.dtype} and shape {own.shape} when the function is differentiated, else {y.dtype} and {y.shape}"
            )
            exam.fail(None, "structure", message)
    for k, (g, x) in enumerate(zip(gradients, subject.leaves, strict=True)):
        if g.shape != x.shape or g.dtype != x.dtype:
            message = f"the cotangent has dtype {g.dtype} and shape {g.shape}, its primal {x.dtype} and {x.shape}"
            exam.fail(k, "structure", message, got=np.zeros(g.shape), expected=np.zeros(x.shape))
