"""Evals in which an optimized function holds a derivative: ``particle`` and ``saddle`` (Pearlmutter and Siskind, 2008).

Their functions are named by two modes, forward (f) or reverse (r): of the outer derivative and of the inner one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import tape
import tape.numpy as tnp
from benchmarks.gradbench.inputs import Data, most_steps, numbers
from benchmarks.gradbench.on_tape.waiting import function, listed
from benchmarks.gradbench.protocol import Function

__all__ = ["MODULES", "trajectory"]

Scalar = Callable[..., Any]


def reverse(fun: Scalar) -> Scalar:
    """Return the gradient of a function of a vector or a number."""
    return tape.grad(fun)


def forward(fun: Scalar) -> Scalar:
    """Return the same gradient, direction by direction."""

    def gradient(x: Any) -> Any:
        slopes = [tape.jvp(fun, (x,), (e.reshape(x.shape),))[1] for e in np.eye(x.size)]
        return tnp.stack(slopes).reshape(x.shape)

    return gradient


MODES = {"f": forward, "r": reverse}


def argmin(fun: Scalar, x: Any, mode: Callable[[Scalar], Scalar], left: float = math.inf) -> Any:
    """Return where gradient descent ends, after ``left`` steps at most; its rate doubles after ten good steps and halves after a bad one."""
    gradient = mode(fun)
    value, slopes = fun(x), gradient(x)
    rate, good = 1e-5, 0
    while left > 0 and tnp.sqrt((slopes**2).sum()) > 1e-5:
        if good == 10:
            rate, good = 2 * rate, 0
            continue
        left -= 1
        following = x - rate * slopes
        if tnp.sqrt(((x - following) ** 2).sum()) <= 1e-5:
            break
        lower = fun(following)
        if lower < value:
            x, value, slopes, good = following, lower, gradient(following), good + 1
        else:
            rate, good = rate / 2, 0
    return x


def potential(x: Any, w: Any) -> Any:
    """Return the potential at x of charges at (10, 10 - w) and (10, 0)."""
    near, far = x - tnp.stack([10.0, 10.0 - w]), x - np.array([10.0, 0.0])
    return 1 / tnp.sqrt((near**2).sum()) + 1 / tnp.sqrt((far**2).sum())


def trajectory(w: Any, mode: Callable[[Scalar], Scalar]) -> Any:
    """Return the square of the place where a particle meets the x-axis, by Euler steps and a linear last one."""
    x: Any = tape.constant(np.array([0.0, 8.0]))
    velocity: Any = tape.constant(np.array([0.75, 0.0]))
    while True:
        acceleration = -mode(lambda x: potential(x, w))(x)
        x = x + 0.1 * velocity
        if x[1] <= 0:
            return (x[0] - x[1] / velocity[1] * velocity[0]) ** 2
        velocity = velocity + 0.1 * acceleration


def particle(outer: str, inner: str) -> Function:
    """Return the function that is named by two modes: the control w of the smallest distance from the origin."""

    def solve(args: Any) -> Any:
        w, most = args
        return argmin(lambda w: trajectory(w, MODES[inner]), w, MODES[outer], most)

    return function(lambda raw: (tape.constant(float(raw["w"])), most_steps(raw)), solve, listed)


def game(x: Any, y: Any) -> Any:
    """Return what is minimal in x where it is maximal in y."""
    return (x**2).sum() - (y**2).sum()


def saddle(outer: str, inner: str) -> Function:
    """Return the function that is named by two modes: the saddle point, its x and its y."""

    def solve(args: Any) -> Any:
        start, most = args

        def best(x: Any) -> Any:
            return argmin(lambda y: -game(x, y), start, MODES[inner], most)

        x = argmin(lambda x: game(x, best(x)), start, MODES[outer], most)
        return tnp.concatenate([x, best(x)])

    return function(prepare_saddle, solve, listed)


def prepare_saddle(raw: Data) -> Any:
    """Return where descents start, and their greatest length."""
    return tape.constant(numbers(raw["start"])), most_steps(raw)


MODULES = {
    "particle": {outer + inner: particle(outer, inner) for outer in "fr" for inner in "fr"},
    "saddle": {outer + inner: saddle(outer, inner) for outer in "fr" for inner in "fr"},
}
