"""Evals in which an optimized function holds a derivative: ``particle`` and ``saddle``, both derivatives in reverse mode (``rr``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd import grad

from benchmarks.gradbench.inputs import Data, most_steps, numbers
from benchmarks.gradbench.on_autograd.cmpad import listed
from benchmarks.gradbench.protocol import Function

__all__ = ["MODULES"]


def argmin(fun: Callable[..., Any], x: Any, left: float) -> Any:
    """Return where gradient descent ends, after ``left`` steps at most; its rate doubles after ten good steps and halves after a bad one."""
    gradient = grad(fun)
    value, slopes = fun(x), gradient(x)
    rate, good = 1e-5, 0
    while left > 0 and anp.sqrt(anp.sum(slopes**2)) > 1e-5:
        if good == 10:
            rate, good = 2 * rate, 0
            continue
        left -= 1
        following = x - rate * slopes
        if anp.sqrt(anp.sum((x - following) ** 2)) <= 1e-5:
            break
        lower = fun(following)
        if lower < value:
            x, value, slopes, good = following, lower, gradient(following), good + 1
        else:
            rate, good = rate / 2, 0
    return x


def potential(x: Any, w: Any) -> Any:
    """Return the potential at x of charges at (10, 10 - w) and (10, 0)."""
    near, far = x - anp.array([10.0, 10.0 - w]), x - np.array([10.0, 0.0])
    return 1 / anp.sqrt(anp.sum(near**2)) + 1 / anp.sqrt(anp.sum(far**2))


def trajectory(w: Any) -> Any:
    """Return the square of the place where a particle meets the x-axis, by Euler steps and a linear last one."""
    x, velocity = np.array([0.0, 8.0]), np.array([0.75, 0.0])
    while True:
        acceleration = -grad(potential)(x, w)
        x = x + 0.1 * velocity
        if x[1] <= 0:
            return (x[0] - x[1] / velocity[1] * velocity[0]) ** 2
        velocity = velocity + 0.1 * acceleration


def game(x: Any, y: Any) -> Any:
    """Return what is minimal in x where it is maximal in y."""
    return anp.sum(x**2) - anp.sum(y**2)


def saddle(start: Any, most: float) -> Any:
    """Return the saddle point, its x and its y."""

    def best(x: Any) -> Any:
        return argmin(lambda y: -game(x, y), start, most)

    x = argmin(lambda x: game(x, best(x)), start, most)
    return np.concatenate([x, best(x)])


def _start(raw: Data) -> Any:
    return numbers(raw["start"]), most_steps(raw)


MODULES = {
    "particle": {"rr": Function(lambda raw: (float(raw["w"]), most_steps(raw)), lambda args: argmin(trajectory, *args), listed)},
    "saddle": {"rr": Function(_start, lambda args: saddle(*args), listed)},
}
