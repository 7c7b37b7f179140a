"""What a derivative returns has the form of what it is the derivative of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tape.jaxapi import ShapedArray
from tape.testing.findings import Finding, fail
from tape.testing.subject import Subject


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
