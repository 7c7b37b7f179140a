"""Evals of cmpad (``det``, ``llsq``, ``ode``), and ``hello``, ``lse`` and ``kmeans``."""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd import grad

from benchmarks.gradbench.inputs import Data, numbers, square_matrix
from benchmarks.gradbench.protocol import Function

__all__ = ["MODULES", "listed"]


def listed(tree: Any, _raw: Any = None) -> Any:
    """Return arrays in nested dicts as nested lists."""
    if isinstance(tree, dict):
        return {key: listed(x) for key, x in tree.items()}
    return np.asarray(tree).tolist()


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
    return det([[a[i, j] for j in range(len(a))] for i in range(len(a))])


def llsq(x: Any, powers: Any, s: Any) -> Any:
    """Return half the squared distance of a polynomial with coefficients x from s, with the powers of points as columns."""
    return 0.5 * anp.sum((s - anp.dot(powers, x)) ** 2)


def prepare_llsq(raw: Data) -> Any:
    """Return coefficients, the powers of points and the signs of the points."""
    t = np.linspace(-1.0, 1.0, raw["n"])
    return numbers(raw["x"]), t, np.sign(t)


def _powers(fun: Any) -> Any:
    return lambda args: fun(args[0], np.vander(args[1], len(args[0]), increasing=True), args[2])


def lse(x: Any) -> Any:
    """Return log sum exp(x)."""
    top = anp.max(x)
    return top + anp.log(anp.sum(anp.exp(x - top)))


def slope(x: Any, y: Any) -> Any:
    """Return y': x_0, and x_i y_(i-1)."""
    return anp.concatenate((x[:1], x[1:] * y[:-1]))


def ode(x: Any, steps: int) -> Any:
    """Return y(2) by Runge-Kutta steps from y(0) = 0."""
    y, h = np.zeros(len(x)), 2.0 / steps
    for _ in range(steps):
        k1 = slope(x, y)
        k2 = slope(x, y + h / 2 * k1)
        k3 = slope(x, y + h / 2 * k2)
        k4 = slope(x, y + h * k3)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return y


def cost(centroids: Any, points: Any) -> Any:
    """Return the sum of squared distances of points from their nearest centroids."""
    squared = anp.sum(points**2, axis=1)[:, None] + anp.sum(centroids**2, axis=1)
    return anp.sum(anp.min(squared - 2 * anp.dot(points, centroids.T), axis=1))


def direction(centroids: Any, points: Any) -> Any:
    """Return the step of Newton's method: the gradient over the Hessian's diagonal."""
    gradient = grad(cost)
    return gradient(centroids, points) / grad(lambda c: anp.sum(gradient(c, points)))(centroids)


def prepare_kmeans(raw: Data) -> Any:
    """Return centroids and points."""
    return numbers(raw["centroids"]), numbers(raw["points"])


def _det(raw: Data) -> Any:
    return (square_matrix(raw),)


def _vector(raw: Data) -> Any:
    return (numbers(raw["x"]),)


def _ode(raw: Data) -> Any:
    return numbers(raw["x"]), raw["s"]


MODULES = {
    "hello": {"square": Function(float, square, listed), "double": Function(float, grad(square), listed)},
    "det": {
        "primal": Function(_det, lambda args: det_primal(*args), listed),
        "gradient": Function(_det, lambda args: grad(det_primal)(*args), lambda g, _: listed(g.ravel())),
    },
    "llsq": {"primal": Function(prepare_llsq, _powers(llsq), listed), "gradient": Function(prepare_llsq, _powers(grad(llsq)), listed)},
    "lse": {
        "primal": Function(_vector, lambda args: lse(*args), listed),
        "gradient": Function(_vector, lambda args: grad(lse)(*args), listed),
    },
    "ode": {
        "primal": Function(_ode, lambda args: ode(*args), listed),
        "gradient": Function(_ode, lambda args: grad(lambda x: ode(x, args[1])[-1])(args[0]), listed),
    },
    "kmeans": {
        "cost": Function(prepare_kmeans, lambda args: cost(*args), listed),
        "dir": Function(prepare_kmeans, lambda args: direction(*args), listed),
    },
}
