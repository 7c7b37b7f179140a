"""The accuracy table's column of float32: both orders of every function keep the digits that they are listed with."""

from __future__ import annotations

import jax
import numpy as np
import pytest

pytest.importorskip("mpmath")

from benchmarks import accuracy
from benchmarks.accuracy_cases import CASES

PART = 12  # functions in one program: compiled together, they take less


@pytest.mark.parametrize("first", range(0, len(CASES), PART))
def test_derivatives_are_right_to_their_limits(first):
    cases = CASES[first : first + PART]
    grids = [accuracy.grid(case, "float32")[::3] for case in cases]
    found = jax.jit(lambda grids: [accuracy.derivatives(case)(x) for case, x in zip(cases, grids, strict=True)])(grids)
    wrong = []
    for case, numbers, both in zip(cases, grids, found, strict=True):
        for order, values, limit in zip(accuracy.ORDERS, both, case.limits, strict=True):
            error, at = accuracy.worst(case, order, numbers, values)
            if not error <= limit:
                wrong.append(f"{case.label}, order {order}: {error:.3g} units at {at!r}, not {limit:g}")
    assert not wrong, "\n".join(wrong)


def test_a_derivative_without_tails_is_noticed():
    case = next(c for c in CASES if c.name == "nn.sigmoid")
    numbers = accuracy.grid(case, "float32")
    y = np.asarray(jax.nn.sigmoid(numbers))
    assert accuracy.worst(case, 1, numbers, y * (1 - y))[0] > 1e6


def test_what_is_less_accurate_has_a_reason():
    for case in CASES:
        assert bool(case.note) == (max(case.limits) > accuracy.LIMIT), case.label
