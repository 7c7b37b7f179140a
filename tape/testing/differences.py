"""Directional derivatives by differences: from both sides and from either side, extrapolated to step zero, with an error estimate.

Ridders (1982) extrapolates central differences for a falling sequence of steps by Richardson's (1911) and Neville's scheme and takes
the entry of the tableau that changes least from its neighbours; that change, and what rounding can do at the step, is its error.
Steps that are too long to see the function agree with each other by chance: an entry must also agree with all shorter steps.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

RATIO = 1 / 3
STEPS = 0.06 * RATIO ** np.arange(18)  # relative to the size of what is stepped over: from 6 % to 5e-10
TAIL = 5  # of the smallest steps
ORDERS = 8  # of extrapolation
ROUGH = 1e6  # times what rounding does: a function that bends so at the shortest steps is not noisy, but not seen


@dataclasses.dataclass(frozen=True, slots=True)
class Estimate:
    """A derivative and its error, or an array of them; ``error`` is infinite where nothing can be said."""

    value: Any
    error: Any

    def apart(self, other: float, slack: float = 0.0) -> bool:
        """Tell whether ``other`` is beyond ten times the error, which is no less than what rounds the value itself."""
        return not abs(self.value - other) <= 10 * max(self.error, float(np.finfo(float).eps) * abs(self.value)) + slack


def derivatives(middle: np.ndarray | float, right: np.ndarray, left: np.ndarray, noise: Any) -> tuple[Estimate, Estimate, Estimate]:
    """Estimate derivatives from values at steps :data:`STEPS` to the right and to the left.

    Args:
        middle: the value at step zero, a number or one per function.
        right: the values at ``+STEPS``, along the first axis.
        left: the values at ``-STEPS``.
        noise: how far off a value may be by rounding.

    Returns:
        The two-sided derivative, the right one and the left one.

    Example:
        >>> import numpy as np
        >>> both, right, left = derivatives(0.0, np.abs(STEPS), np.abs(-STEPS), 0.0)
        >>> round(float(both.value), 6), round(float(right.value), 6), round(float(left.value), 6)
        (0.0, 1.0, -1.0)

    """
    steps = STEPS.reshape(-1, *[1] * (np.ndim(right) - 1))
    with np.errstate(invalid="ignore", over="ignore"):
        # Smooth values at the smallest steps lie on a line; what does not is rounding inside the function, which its size does not show.
        curved = np.abs(right[-TAIL:] + left[-TAIL:] - 2 * middle)
        bent = np.max(np.where(np.isfinite(curved), curved, 0.0), axis=0)
        span = np.maximum(np.abs(right - middle), np.abs(left - middle))
        unseen = (bent > ROUGH * noise) & (bent > 0.1 * np.max(np.where(np.isfinite(span), span, 0.0), axis=0))
        noise = np.where(unseen, np.inf, np.maximum(np.maximum(noise, bent), _unseen(middle, right, left))) / steps
        both = _extrapolated((right - left) / (2 * steps), noise, RATIO**2, RATIO**2)
        return (
            both,
            _extrapolated((right - middle) / steps, noise, RATIO, RATIO),
            _extrapolated((middle - left) / steps, noise, RATIO, RATIO),
        )


def curvature(middle: np.ndarray | float, right: np.ndarray, left: np.ndarray, noise: Any) -> Estimate:
    """Estimate the second derivative from values at :data:`STEPS` to the right and to the left; arguments as for :func:`derivatives`.

    Example:
        >>> import numpy as np
        >>> estimate = curvature(1.0, np.exp(STEPS), np.exp(-STEPS), 1e-16)
        >>> bool(abs(estimate.value - 1) < 1e-8)
        True

    """
    steps = STEPS.reshape(-1, *[1] * (np.ndim(right) - 1))
    with np.errstate(invalid="ignore", over="ignore"):
        noise = np.maximum(noise, _unseen(middle, right, left))
        return _extrapolated((right + left - 2 * middle) / steps**2, 4 * noise / steps**2, RATIO**2, RATIO**2)


def _unseen(middle: np.ndarray | float, right: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Return the least change there is, where shorter steps make none to either side, and longer ones one in proportion.

    What is less is lost to rounding inside of the function, as in ``x - sin(x)`` of a small x. Few flat functions look like that: those
    that rise to both sides of some flat ground, of which is less known then.
    """
    moved = np.minimum(np.abs(right - middle), np.abs(left - middle))
    n = np.clip(np.argmin(moved > 0, axis=0), 3, None)  # steps from the longest on that make a change; 0 where all do
    longer, long, least = (np.take_along_axis(moved, n[None] - i, 0)[0] for i in (3, 2, 1))
    in_proportion = [(a > b / RATIO / 2) & (a < 2 * b / RATIO) for a, b in ((longer, long), (long, least))]
    still = np.all(moved[-1:] == 0, axis=0)
    return np.where(still & in_proportion[0] & in_proportion[1] & np.isfinite(least), least, 0.0)


def _extrapolated(column: np.ndarray, rounding: np.ndarray, first: float, factor: float) -> Estimate:
    """Remove the leading power of the step again and again; keep the entry with the smallest error."""
    value = np.full(column.shape[1:], np.nan)
    error = np.full(column.shape[1:], np.inf)
    power = first
    # Quotients of shorter and shorter steps come nearer to the derivative: no further from it than twice what the last step changed.
    reach = 2 * np.abs(np.diff(column, axis=0)) + 2 * rounding[1:]
    above = np.minimum.accumulate(_known(column[1:] + reach, np.inf)[::-1])[::-1]
    below = np.maximum.accumulate(_known(column[1:] - reach, -np.inf)[::-1])[::-1]
    for order in range(ORDERS):
        finer = (column[1:] - power * column[:-1]) / (1 - power)
        change = np.maximum(np.abs(finer - column[1:]), np.abs(finer - column[:-1]))
        change[1:] = np.maximum(change[1:], np.abs(finer[1:] - finer[:-1]))
        change = np.maximum(change + 2 * rounding[order + 1 :], np.maximum(finer - above[order:], below[order:] - finer))
        if order == 0:
            change[0] = np.inf  # one pair of steps says nothing of its own error
        change = np.where(np.isfinite(finer) & np.isfinite(change), change, np.inf)
        i = np.argmin(change, axis=0)[None]
        least, best = np.take_along_axis(change, i, 0)[0], np.take_along_axis(finer, i, 0)[0]
        value, error = np.where(least < error, best, value), np.minimum(least, error)
        column = finer
        power *= factor
    return Estimate(value, error)


def _known(bound: np.ndarray, otherwise: float) -> np.ndarray:
    return np.where(np.isnan(bound), otherwise, bound)
