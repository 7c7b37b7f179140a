"""Evals of cmpad (``det``, ``llsq``, ``ode``), and ``hello``, ``lse`` and ``kmeans``."""

from __future__ import annotations

from typing import Any

import numpy as np

import tape
import tape.numpy as tnp
from benchmarks.gradbench.inputs import Data, numbers, square_matrix
from benchmarks.gradbench.on_tape.waiting import function, listed

__all__ = ["MODULES"]


def square(x: Any) -> Any:
    """Return x^2."""
    return x * x


def double(x: Any) -> Any:
    """Return the derivative of :func:`square`."""
    return tape.gradients(square(x), x)


def det(rows: list[list[Any]]) -> Any:
    """Return a determinant by expansion along the first row."""
    if len(rows) == 1:
        return rows[0][0]
    total = 0.0
    for j, entry in enumerate(rows[0]):
        term = entry * det([row[:j] + row[j + 1 :] for row in rows[1:]])
        total = total - term if j % 2 else total + term
    return total


def det_primal(a: Any) -> Any:
    """Return the determinant of a matrix."""
    return det([list(row) for row in a])


def llsq(x: Any, t: Any, s: Any) -> Any:
    """Return half the squared distance of a polynomial with coefficients x from s at the points t."""
    fitted, power = 0.0, 1.0
    for coefficient in x:
        fitted = fitted + coefficient * power
        power = power * t
    return 0.5 * ((s - fitted) ** 2).sum()


def prepare_llsq(raw: Data) -> Any:
    """Return coefficients, points and the signs of the points."""
    t = np.linspace(-1.0, 1.0, raw["n"])
    return tape.Variable(numbers(raw["x"])), tape.constant(t), tape.constant(np.sign(t))


def lse(x: Any) -> Any:
    """Return log sum exp(x)."""
    top = x.max()
    return top + tnp.log(tnp.exp(x - top).sum())


def slope(x: Any, y: Any) -> Any:
    """Return y': x_0, and x_i y_(i-1)."""
    return tnp.concatenate([x[:1], x[1:] * y[:-1]])


def ode(x: Any, steps: int) -> Any:
    """Return y(2) by Runge-Kutta steps from y(0) = 0."""
    y, h = tnp.zeros_like(x), 2.0 / steps
    for _ in range(steps):
        k1 = slope(x, y)
        k2 = slope(x, y + h / 2 * k1)
        k3 = slope(x, y + h / 2 * k2)
        k4 = slope(x, y + h * k3)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return y


def prepare_ode(raw: Data) -> Any:
    """Return the parameters and the number of steps."""
    return tape.Variable(numbers(raw["x"])), raw["s"]


def cost(points: Any, centroids: Any) -> Any:
    """Return the sum of squared distances of points from their nearest centroids."""
    distances = (points**2).sum(1)[:, None] + (centroids**2).sum(1) - 2 * points @ centroids.T
    return distances.min(axis=1).sum()


def direction(points: Any, centroids: Any) -> Any:
    """Return the step of Newton's method: the gradient over the Hessian's diagonal."""
    gradient = tape.gradients(cost(points, centroids), centroids, create_graph=True)
    return gradient / tape.gradients(gradient.sum(), centroids)


def prepare_kmeans(raw: Data) -> Any:
    """Return points and centroids."""
    return tape.constant(numbers(raw["points"])), tape.Variable(numbers(raw["centroids"]))


def _gradient(fun: Any) -> Any:
    return lambda args: tape.gradients(fun(*args), args[0])


MODULES = {
    "hello": {name: function(lambda raw: tape.Variable(float(raw)), f, listed) for name, f in (("square", square), ("double", double))},
    "det": {
        "primal": function(lambda raw: tape.Variable(square_matrix(raw)), det_primal, listed),
        "gradient": function(
            lambda raw: tape.Variable(square_matrix(raw)), lambda a: tape.gradients(det_primal(a), a), lambda g, _: listed(g.ravel())
        ),
    },
    "llsq": {
        "primal": function(prepare_llsq, lambda args: llsq(*args), listed),
        "gradient": function(prepare_llsq, _gradient(llsq), listed),
    },
    "lse": {
        "primal": function(lambda raw: (tape.Variable(numbers(raw["x"])),), lambda args: lse(*args), listed),
        "gradient": function(lambda raw: (tape.Variable(numbers(raw["x"])),), _gradient(lse), listed),
    },
    "ode": {
        "primal": function(prepare_ode, lambda args: ode(*args), listed),
        "gradient": function(prepare_ode, _gradient(lambda x, steps: ode(x, steps)[-1]), listed),
    },
    "kmeans": {
        "cost": function(prepare_kmeans, lambda args: cost(*args), listed),
        "dir": function(prepare_kmeans, lambda args: direction(*args), listed),
    },
}
