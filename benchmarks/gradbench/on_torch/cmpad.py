"""Evals of cmpad (``det``, ``llsq``, ``ode``), and ``hello``, ``lse`` and ``kmeans``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.gradbench.inputs import Data, numbers, square_matrix
from benchmarks.gradbench.on_torch.waiting import leaf, listed, tensor
from benchmarks.gradbench.protocol import Function

__all__ = ["MODULES"]


def square(x: Any) -> Any:
    """Return x^2."""
    return x * x


def det(rows: list[list[Any]]) -> Any:
    """Return a determinant by expansion along the first row."""
    if len(rows) == 1:
        return rows[0][0]
    total: Any = 0.0
    for j, entry in enumerate(rows[0]):
        term = entry * det([row[:j] + row[j + 1 :] for row in rows[1:]])
        total = total - term if j % 2 else total + term
    return total


def det_primal(a: Any) -> Any:
    """Return the determinant of a matrix."""
    return det([list(row) for row in a])


def llsq(x: Any, t: Any, s: Any) -> Any:
    """Return half the squared distance of a polynomial with coefficients x from s at the points t."""
    return 0.5 * ((s - torch.vander(t, len(x), increasing=True) @ x) ** 2).sum()


def prepare_llsq(raw: Data) -> Any:
    """Return coefficients, points and the signs of the points."""
    t = np.linspace(-1.0, 1.0, raw["n"])
    return leaf(numbers(raw["x"])), tensor(t), tensor(np.sign(t))


def lse(x: Any) -> Any:
    """Return log sum exp(x)."""
    top = x.max()
    return top + torch.log(torch.exp(x - top).sum())


def slope(x: Any, y: Any) -> Any:
    """Return y': x_0, and x_i y_(i-1)."""
    return torch.cat([x[:1], x[1:] * y[:-1]])


def ode(x: Any, steps: int) -> Any:
    """Return y(2) by Runge-Kutta steps from y(0) = 0."""
    y, h = torch.zeros_like(x), 2.0 / steps
    for _ in range(steps):
        k1 = slope(x, y)
        k2 = slope(x, y + h / 2 * k1)
        k3 = slope(x, y + h / 2 * k2)
        k4 = slope(x, y + h * k3)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return y


def cost(points: Any, centroids: Any) -> Any:
    """Return the sum of squared distances of points from their nearest centroids."""
    distances = (points**2).sum(1)[:, None] + (centroids**2).sum(1) - 2 * points @ centroids.T
    return distances.min(dim=1).values.sum()


def direction(points: Any, centroids: Any) -> Any:
    """Return the step of Newton's method: the gradient over the Hessian's diagonal."""
    (gradient,) = torch.autograd.grad(cost(points, centroids), centroids, create_graph=True)
    (diagonal,) = torch.autograd.grad(gradient.sum(), centroids)
    return (gradient / diagonal).detach()


def prepare_kmeans(raw: Data) -> Any:
    """Return points and centroids."""
    return tensor(numbers(raw["points"])), leaf(numbers(raw["centroids"]))


def _gradient(fun: Any) -> Any:
    return lambda args: torch.autograd.grad(fun(*args), args[0])[0]


def _det(raw: Data) -> Any:
    return (leaf(square_matrix(raw)),)


def _vector(raw: Data) -> Any:
    return (leaf(numbers(raw["x"])),)


def _ode(raw: Data) -> Any:
    return leaf(numbers(raw["x"])), raw["s"]


MODULES = {
    "hello": {
        "square": Function(lambda raw: leaf(float(raw)), square, listed),
        "double": Function(lambda raw: (leaf(float(raw)),), _gradient(square), listed),
    },
    "det": {
        "primal": Function(_det, lambda args: det_primal(*args), listed),
        "gradient": Function(_det, _gradient(det_primal), lambda g, _: listed(g.ravel())),
    },
    "llsq": {
        "primal": Function(prepare_llsq, lambda args: llsq(*args), listed),
        "gradient": Function(prepare_llsq, _gradient(llsq), listed),
    },
    "lse": {"primal": Function(_vector, lambda args: lse(*args), listed), "gradient": Function(_vector, _gradient(lse), listed)},
    "ode": {
        "primal": Function(_ode, lambda args: ode(*args), listed),
        "gradient": Function(_ode, _gradient(lambda x, steps: ode(x, steps)[-1]), listed),
    },
    "kmeans": {
        "cost": Function(prepare_kmeans, lambda args: cost(*args), listed),
        "dir": Function(prepare_kmeans, lambda args: direction(*args), listed),
    },
}
