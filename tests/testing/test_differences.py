"""An estimate of a derivative by differences is never surer than it may be."""

import numpy as np
import pytest

from tape.testing.differences import STEPS, Estimate, curvature, derivatives


def logistic(x):
    for _ in range(25):
        x = 3.9 * x * (1 - x)
    return x


def logistic_slope(x):
    slope = 1.0
    for _ in range(25):
        slope, x = slope * 3.9 * (1 - 2 * x), 3.9 * x * (1 - x)
    return slope


EASY = {
    "sine": (lambda t: np.sin(1 + t), np.cos(1)),
    "large": (lambda t: (30 * (1 + t)) ** 2, 1800),
    "offset": (lambda t: 1e6 + np.sin(1 + t), np.cos(1)),
    "bump": (lambda t: np.exp(-((1e3 * t + 1) ** 2) / 2), -1e3 * np.exp(-0.5)),
    "zero": (lambda t: np.sin(1 + t) ** 2 + np.cos(1 + t) ** 2, 0),
}
# Longer steps do not see these functions, and agree with each other about nothing.
HARD = {
    **{f"cosine at {x:g}": (lambda t, x=x: np.cos(x * (1 + t)), -x * np.sin(x)) for x in (1e6, 1.3e6, 3e7, 3e9)},
    **{f"chaos at {x:g}": (lambda t, x=x: logistic(x * (1 + t)), x * logistic_slope(x)) for x in (0.11, 0.3, 0.7)},
    **{f"root at {x:g}": (lambda t, x=x: np.sqrt(abs(x + 0.1 * t)), 0.05 / np.sqrt(x)) for x in (1e-8, 1e-6, 1e-3)},
    **{
        f"cancelled at {x:g}": (lambda t, x=x: x * (1 + t) - np.sin(x * (1 + t)), x * 2 * np.sin(x / 2) ** 2)
        for x in (9e-5, 1e-4, 3e-4, 1e-3)
    },
    "steep": (lambda t: np.tanh(1e6 * t + 0.3), 1e6 * (1 - np.tanh(0.3) ** 2)),
    "in single precision": (lambda t: float(np.float32(np.sin(1 + t))), np.cos(1)),
}


def estimates(fun):
    right, left = np.array([fun(t) for t in STEPS]), np.array([fun(-t) for t in STEPS])
    return derivatives(fun(0.0), right, left, 4 * np.finfo(float).eps * abs(fun(0.0)))


@pytest.mark.parametrize("name", [*EASY, *HARD])
def test_the_truth_is_within_ten_times_the_error(name):
    fun, slope = (EASY | HARD)[name]
    for estimate in estimates(fun):
        assert not np.isfinite(estimate.error) or not estimate.apart(slope)


@pytest.mark.parametrize("name", EASY)
def test_an_easy_derivative_is_known_well(name):
    fun, slope = EASY[name]
    for estimate in estimates(fun):
        assert abs(estimate.value - slope) <= 1e-6 * max(abs(slope), 1e-6)
        assert estimate.error <= 1e-5 * max(abs(slope), 1e-6)


def test_what_is_lost_inside_of_a_function_is_no_curvature_of_zero():
    x = 1e-4
    right, left = (x * (1 + t) - np.sin(x * (1 + t)) for t in (STEPS, -STEPS))
    estimate = curvature(x - np.sin(x), right, left, 4 * np.finfo(float).eps * (x - np.sin(x)))
    assert not estimate.apart(x * x * np.sin(x))


def test_flat_ground_is_flat():
    for fun in (lambda t: max(t - 0.01, 0.0), lambda t: 1 + 1e-3 * t**2, lambda t: t**3, lambda t: max(abs(t) - 0.01, 0.0)):
        both, *_ = estimates(fun)
        assert abs(both.value) <= 1e-9
        assert both.error <= 1e-6


def test_a_kink_has_two_slopes():
    both, right, left = estimates(lambda t: max(2 * t, -t))
    assert [round(float(e.value), 6) for e in (right, left)] == [2, -1]
    assert both.error < 1e-3


def test_a_jump_has_none():
    assert not any(np.isfinite(e.error) for e in estimates(lambda t: float(t > 0)))


def test_what_rounds_a_slope_does_not_convict():
    slope = 0.7433182620154835
    both = Estimate(slope, 0.0)  # of a line through zero, where values have no size to be rounded by
    assert not both.apart(slope * (1 + 4e-16))
    assert both.apart(slope * (1 + 1e-13))
