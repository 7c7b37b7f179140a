"""Evals in which an optimized function holds a derivative: ``particle`` and ``saddle``, as one program each.

Their loops depend on data, so they are ``while_loop``, through which JAX has no reverse mode: ``rr`` and ``rf`` (an outer derivative in
reverse mode) are not there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gradbench.inputs import Data, most_steps, numbers
from benchmarks.gradbench.on_jax.waiting import function, listed

__all__ = ["MODULES"]

Scalar = Callable[..., Any]
MODES: dict[str, Callable[[Scalar], Scalar]] = {"f": jax.jacfwd, "r": jax.grad}


def argmin(fun: Scalar, start: Any, mode: Callable[[Scalar], Scalar], most: Any) -> Any:
    """Return where gradient descent ends, after ``most`` steps; its rate doubles after ten good steps and halves after a bad one."""
    gradient = mode(fun)

    def proceeds(state: Any) -> Any:
        _, _, slopes, _, _, near, left = state
        return (jnp.sqrt((slopes**2).sum()) > 1e-5) & ~near & (left > 0)

    def faster(state: Any) -> Any:
        x, value, slopes, rate, _, near, left = state
        return x, value, slopes, 2 * rate, 0, near, left

    def step(state: Any) -> Any:
        x, value, slopes, rate, good, _, left = state
        following = x - rate * slopes
        near = jnp.sqrt(((x - following) ** 2).sum()) <= 1e-5

        def move(_: None) -> Any:
            lower = fun(following)
            better = lower < value
            return jax.lax.cond(
                better,
                lambda: (following, lower, gradient(following), rate, good + 1, near, left - 1),
                lambda: (x, value, slopes, rate / 2, 0, near, left - 1),
            )

        return jax.lax.cond(near, lambda _: (x, value, slopes, rate, good, near, left), move, None)

    def body(state: Any) -> Any:
        return jax.lax.cond(state[4] == 10, faster, step, state)

    return jax.lax.while_loop(proceeds, body, (start, fun(start), gradient(start), jnp.float64(1e-5), 0, False, most))[0]


def potential(x: Any, w: Any) -> Any:
    """Return the potential at x of charges at (10, 10 - w) and (10, 0)."""
    near, far = x - jnp.stack([10.0, 10.0 - w]), x - jnp.array([10.0, 0.0])
    return 1 / jnp.sqrt((near**2).sum()) + 1 / jnp.sqrt((far**2).sum())


def trajectory(w: Any, mode: Callable[[Scalar], Scalar]) -> Any:
    """Return the square of the place where a particle meets the x-axis, by Euler steps and a linear last one."""

    def body(state: Any) -> Any:
        x, velocity = state
        return x + 0.1 * velocity, velocity - 0.1 * mode(potential)(x, w)

    x, velocity = jax.lax.while_loop(
        lambda state: (state[0] + 0.1 * state[1])[1] > 0, body, (jnp.array([0.0, 8.0]), jnp.array([0.75, 0.0]))
    )
    x = x + 0.1 * velocity
    return (x[0] - x[1] / velocity[1] * velocity[0]) ** 2


def game(x: Any, y: Any) -> Any:
    """Return what is minimal in x where it is maximal in y."""
    return (x**2).sum() - (y**2).sum()


def saddle(start: Any, most: Any, inner: str) -> Any:
    """Return the saddle point, its x and its y."""

    def best(x: Any) -> Any:
        return argmin(lambda y: -game(x, y), start, MODES[inner], most)

    x = argmin(lambda x: game(x, best(x)), start, MODES["f"], most)
    return jnp.concatenate([x, best(x)])


def _particle(inner: str) -> Scalar:
    return lambda w, most: argmin(lambda w: trajectory(w, MODES[inner]), w, MODES["f"], most)


def _saddle(inner: str) -> Scalar:
    return lambda start, most: saddle(start, most, inner)


def _start(raw: Data) -> Any:
    return numbers(raw["start"]), most_steps(raw)


MODULES = {
    "particle": {"f" + inner: function(lambda raw: (float(raw["w"]), most_steps(raw)), _particle(inner), listed) for inner in "fr"},
    "saddle": {"f" + inner: function(_start, _saddle(inner), listed) for inner in "fr"},
}
