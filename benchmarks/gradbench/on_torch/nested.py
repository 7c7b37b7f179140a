"""Evals in which an optimized function holds a derivative: ``particle`` and ``saddle``, both derivatives in reverse mode (``rr``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gradbench.inputs import Data, most_steps, numbers
from benchmarks.gradbench.on_torch.waiting import listed, tensor
from benchmarks.gradbench.protocol import Function

__all__ = ["MODULES"]

Scalar = Callable[..., Any]


def reverse(fun: Scalar) -> Scalar:
    """Return the gradient of a function, which can be differentiated again."""

    def gradient(x: Any) -> Any:
        x = x if x.requires_grad else x.detach().requires_grad_()
        return torch.autograd.grad(fun(x), x, create_graph=True)[0]

    return gradient


def argmin(fun: Scalar, x: Any, left: float) -> Any:
    """Return where gradient descent ends, after ``left`` steps at most; its rate doubles after ten good steps and halves after a bad one."""
    gradient = reverse(fun)
    value, slopes = fun(x), gradient(x)
    rate, good = 1e-5, 0
    while left > 0 and torch.sqrt((slopes**2).sum()) > 1e-5:
        if good == 10:
            rate, good = 2 * rate, 0
            continue
        left -= 1
        following = x - rate * slopes
        if torch.sqrt(((x - following) ** 2).sum()) <= 1e-5:
            break
        lower = fun(following)
        if lower < value:
            x, value, slopes, good = following, lower, gradient(following), good + 1
        else:
            rate, good = rate / 2, 0
    return x


def outermost(fun: Scalar, x: Any, left: float) -> Any:
    """Return :func:`argmin` where nothing around it is differentiated, so that each step is cut from those before."""
    gradient = reverse(fun)
    value, slopes = fun(x).detach(), gradient(x).detach()
    rate, good = 1e-5, 0
    while left > 0 and torch.sqrt((slopes**2).sum()) > 1e-5:
        if good == 10:
            rate, good = 2 * rate, 0
            continue
        left -= 1
        following = x - rate * slopes
        if torch.sqrt(((x - following) ** 2).sum()) <= 1e-5:
            break
        lower = fun(following).detach()
        if lower < value:
            x, value, slopes, good = following, lower, gradient(following).detach(), good + 1
        else:
            rate, good = rate / 2, 0
    return x


def potential(x: Any, w: Any) -> Any:
    """Return the potential at x of charges at (10, 10 - w) and (10, 0)."""
    ten = torch.tensor(10.0, dtype=torch.float64)
    near, far = x - torch.stack([ten, 10.0 - w]), x - torch.tensor([10.0, 0.0], dtype=torch.float64)
    return 1 / torch.sqrt((near**2).sum()) + 1 / torch.sqrt((far**2).sum())


def trajectory(w: Any) -> Any:
    """Return the square of the place where a particle meets the x-axis, by Euler steps and a linear last one."""
    x, velocity = (torch.tensor(a, dtype=torch.float64) for a in ([0.0, 8.0], [0.75, 0.0]))
    while True:
        acceleration = -reverse(lambda x: potential(x, w))(x)
        x = x + 0.1 * velocity
        if x[1] <= 0:
            return (x[0] - x[1] / velocity[1] * velocity[0]) ** 2
        velocity = velocity + 0.1 * acceleration


def game(x: Any, y: Any) -> Any:
    """Return what is minimal in x where it is maximal in y."""
    return (x**2).sum() - (y**2).sum()


def saddle(start: Any, most: float) -> Any:
    """Return the saddle point, its x and its y."""

    def best(x: Any) -> Any:
        return argmin(lambda y: -game(x, y), start, most)

    x = outermost(lambda x: game(x, best(x)), start, most)
    return torch.cat([x, best(x).detach()])


def _w(raw: Data) -> Any:
    return tensor(numbers(raw["w"])), most_steps(raw)


def _start(raw: Data) -> Any:
    return tensor(numbers(raw["start"])), most_steps(raw)


MODULES = {
    "particle": {"rr": Function(_w, lambda args: outermost(trajectory, *args), listed)},
    "saddle": {"rr": Function(_start, lambda args: saddle(*args), listed)},
}
