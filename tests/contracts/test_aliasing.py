"""Contracts 3, 10, 11 and 12: every pattern in which the operands of ``a * b + c`` can be one thing, or share an array."""

import contextlib
import itertools

import numpy as np
import pytest

import tape
from tests.daily import NIGHTLY

VALUES = np.array([[2.0, -1.0], [-3.0, 4.0], [5.0, 0.5]], np.float32)
PRESET = np.array([[100.0, 10.0], [200.0, 20.0], [300.0, 30.0]], np.float32)
SHARED = [(0, 1, 2), (0, 0, 1), (0, 1, 0), (0, 1, 1), (0, 0, 0)]  # which operands are one object
KINDS = ("variable", "preset", "constant", "detached", "frozen", "numpy", "view", "result")
OFTEN = ("variable", "preset", "constant")


def combinations(count):
    """All kinds of each operand, by night; otherwise all of the usual three, and each other one beside Variables."""
    if NIGHTLY:
        return list(itertools.product(KINDS, repeat=count))
    found = list(itertools.product(OFTEN, repeat=count))
    for kind, i in itertools.product(KINDS[len(OFTEN) :], range(count)):
        found.append(("variable",) * i + (kind,) + ("variable",) * (count - 1 - i))
    return found


def operand(kind, i, base):
    """An operand, and the leaf that gets its gradient (or None)."""
    if kind == "numpy":
        return VALUES[i].copy(), None
    if kind == "view":
        return base[i], None  # of the one array that all views share
    if kind == "constant":
        return tape.constant(base[i]), None
    if kind == "frozen":
        return tape.Variable(VALUES[i]).requires_grad_(False), None
    leaf = tape.Variable(base[i])
    if kind == "preset":
        leaf.grad = PRESET[i]
    if kind == "detached":
        return leaf.detach(), None
    return (leaf * 1.0 if kind == "result" else leaf), leaf


def check(kinds, same, assigned):
    base = VALUES.copy()
    made = [operand(kind, i, base) for i, kind in enumerate(kinds)]
    a, b, c = (made[i][0] for i in same)
    y = a * b + c
    base[...] = 77.0  # what the user does with an array afterwards changes nothing
    leaves = {i: leaf for i, (_, leaf) in enumerate(made) if leaf is not None}
    values = [VALUES[i] for i in same]
    if not isinstance(y, tape.Variable):
        return
    np.testing.assert_array_equal(np.asarray(y.detach().value), values[0] * values[1] + values[2])
    if not y.requires_grad:
        assert not leaves
        return
    seed = np.array([3.0, -0.5], np.float32)
    if assigned:
        y.grad = seed
        y.backward()
        assert y.grad is None
    else:
        y.backward(seed)
    partials = [seed * values[1], seed * values[0], seed]
    held = {}
    for i, leaf in leaves.items():
        expected = sum(p for p, j in zip(partials, same, strict=True) if j == i) + (PRESET[i] if kinds[i] == "preset" else 0)
        np.testing.assert_array_equal(np.asarray(leaf.grad.value), expected)
        held[i] = expected
    for leaf in list(leaves.values())[:1]:
        leaf.grad[0] = 1e6  # rebinds one handle: neither the other gradients nor the seed
    for i, leaf in list(leaves.items())[1:]:
        np.testing.assert_array_equal(np.asarray(leaf.grad.value), held[i])
    np.testing.assert_array_equal(seed, [3.0, -0.5])


@pytest.mark.parametrize("mode", ["lazy", "eager"])
@pytest.mark.parametrize("same", SHARED)
def test_contract_03_10_11_12_aliasing_of_a_times_b_plus_c(same, mode):
    """All kinds of each distinct operand, with and without an assigned seed; the structure is met again and again on the way."""
    count = 1 + max(same)
    for kinds in combinations(count):
        for assigned in (False, True):
            with tape.eager() if mode == "eager" else contextlib.nullcontext():
                check(kinds, same, assigned)
