"""Functions of symmetric matrices: they take others, and make them symmetric first."""

from __future__ import annotations

import numpy as np

from tape.testing.evidence import Evidence
from tape.testing.findings import Note
from tape.testing.precise import equations

FACTORISATIONS = {"cholesky", "eigh"}  # which nobody asks for of a matrix that is not symmetric
CLOSE = 1e-9  # relative; a matrix nearby that is not symmetric is much further off


def symmetrises(evidence: Evidence, b: int) -> bool:
    """Tell whether the function factorises matrices that are symmetric alone, and has the same values for the symmetric part of others."""
    if evidence.untraced or not FACTORISATIONS & {eqn.primitive.name for eqn in equations(evidence.value_jaxpr.jaxpr)}:
        return False
    x, ct = evidence.at(b)
    given = evidence.probes.points[0]
    halves = [(a + np.swapaxes(a, -1, -2).conj()) / 2 if not np.array_equal(a, was) else a for a, was in zip(x, given, strict=True)]
    ys = evidence.one_by_one([(x, ct), (halves, ct)])["y"]
    return all(np.allclose(y[0], y[1], rtol=CLOSE, atol=CLOSE * np.abs(y[0]).max(initial=0)) for y in ys)


def note_unsymmetric(evidence: Evidence, argument: int) -> Note:
    """Say that a gradient is wrong for matrices that are not symmetric."""
    name = evidence.subject.names[argument]
    return Note(
        f"where matrices are not symmetric, as the given ones are, the gradient of {name} is not JAX's: the function takes their symmetric "
        "part then; this counts as wrong only if it is meant for them"
    )
