"""Evals of cmpad (``det``, ``llsq``, ``ode``), and ``hello``, ``lse`` and ``kmeans``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gradbench.inputs import Data, numbers, square_matrix
from benchmarks.gradbench.on_jax.waiting import function, listed

__all__ = ["MODULES"]


def square(x: Any) -> Any:
    """Return x^2."""
    return x * x


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
    return 0.5 * ((s - jnp.polyval(x[::-1], t)) ** 2).sum()


def prepare_llsq(raw: Data) -> Any:
    """Return coefficients, points and the signs of the points."""
    t = np.linspace(-1.0, 1.0, raw["n"])
    return numbers(raw["x"]), t, np.sign(t)


def lse(x: Any) -> Any:
    """Return log sum exp(x)."""
    top = x.max()
    return top + jnp.log(jnp.exp(x - top).sum())


def ode(x: Any, steps: int) -> Any:
    """Return y(2) by Runge-Kutta steps from y(0) = 0."""
    h = 2.0 / steps

    def slope(y: Any) -> Any:
        return jnp.concatenate([x[:1], x[1:] * y[:-1]])

    def step(y: Any, _: None) -> Any:
        k1 = slope(y)
        k2 = slope(y + h / 2 * k1)
        k3 = slope(y + h / 2 * k2)
        k4 = slope(y + h * k3)
        return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

    return jax.lax.scan(step, jnp.zeros_like(x), length=steps)[0]


def cost(centroids: Any, points: Any) -> Any:
    """Return the sum of squared distances of points from their nearest centroids."""
    distances = (points**2).sum(1)[:, None] + (centroids**2).sum(1) - 2 * points @ centroids.T
    return distances.min(axis=1).sum()


def direction(centroids: Any, points: Any) -> Any:
    """Return the step of Newton's method: the gradient over the Hessian's diagonal."""
    gradient, diagonal = jax.jvp(lambda c: jax.grad(cost)(c, points), (centroids,), (jnp.ones_like(centroids),))
    return gradient / diagonal


def prepare_kmeans(raw: Data) -> Any:
    """Return centroids and points."""
    return numbers(raw["centroids"]), numbers(raw["points"])


def _ode(raw: Data) -> Any:
    return numbers(raw["x"]), raw["s"]


MODULES = {
    "hello": {name: function(lambda raw: (float(raw),), f, listed) for name, f in (("square", square), ("double", jax.grad(square)))},
    "det": {
        "primal": function(lambda raw: (square_matrix(raw),), det_primal, listed),
        "gradient": function(lambda raw: (square_matrix(raw),), jax.grad(det_primal), lambda g, _: listed(g.ravel())),
    },
    "llsq": {"primal": function(prepare_llsq, llsq, listed), "gradient": function(prepare_llsq, jax.grad(llsq), listed)},
    "lse": {
        "primal": function(lambda raw: (numbers(raw["x"]),), lse, listed),
        "gradient": function(lambda raw: (numbers(raw["x"]),), jax.grad(lse), listed),
    },
    "ode": {
        "primal": function(_ode, ode, listed, static=1),
        "gradient": function(_ode, jax.grad(lambda x, steps: ode(x, steps)[-1]), listed, static=1),
    },
    "kmeans": {"cost": function(prepare_kmeans, cost, listed), "dir": function(prepare_kmeans, direction, listed)},
}
