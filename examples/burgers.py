"""Physics-informed network
========================

Solve Burgers' equation with a network that is trained on the equation alone (a PINN; Raissi, Perdikaris and Karniadakis 2019)::

    u_t + u u_x = 0.02 u_xx   for x in [-1, 1], t in [0, 1]
    u(x, 0) = -sin(pi x),   u(-1, t) = u(1, t) = 0

The loss contains u_t, u_x and u_xx of the network, so each training step differentiates a second derivative once more by 4 000 weights.
Each of them is one line: ``tape.gradients(..., create_graph=True)``.  The answer is compared with finite differences on a fine grid.

In JAX the network has to be a function of one point, differentiated three times and mapped over points; in PyTorch the lines are the same,
and each op of the three nested sweeps is a call of its own.

Run it with ``python examples/burgers.py``.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import optax
from experiment import Array, dense, minimise, options, picture

import tape
import tape.numpy as tnp

VISCOSITY = 0.02
WIDTHS = (2, 32, 32, 32, 32, 1)


def initialise(rng: np.random.Generator) -> list[tuple[Any, Any]]:
    """Weights of Glorot's scale, and zero biases."""
    return [
        (tape.Variable((rng.normal(size=(a, b)) * (2 / (a + b)) ** 0.5).astype("float32")), tape.Variable(np.zeros(b, "float32")))
        for a, b in itertools.pairwise(WIDTHS)
    ]


def network(layers: Sequence[tuple[Any, Any]], x: Any, t: Any) -> Any:
    """Return u at points x, t of shape (N,); initial and boundary values hold exactly, whatever the weights are."""
    return -tnp.sin(np.pi * x) + t * (1 - x**2) * dense(layers, tnp.stack([x, 2 * t - 1], axis=-1))[:, 0]


def residual(layers: Sequence[tuple[Any, Any]], points: Array) -> Any:
    """Left side minus right side of the equation at points of shape (N, 2)."""
    x, t = tape.Variable(points[:, 0]), tape.Variable(points[:, 1])
    u = network(layers, x, t)
    u_x, u_t = tape.gradients(u.sum(), [x, t], create_graph=True)
    u_xx = tape.gradients(u_x.sum(), x, create_graph=True)
    return u_t + u * u_x - VISCOSITY * u_xx


def finite_differences(x: Array, times: Array) -> Array:
    """Solve by the conservative central scheme on 801 points with Heun's steps; u at the times and at x, shape (times, x)."""
    grid = np.linspace(-1, 1, 801)
    dx, dt = grid[1] - grid[0], 1e-4

    def rate(u: Array) -> Array:
        out = np.zeros_like(u)
        out[1:-1] = -(u[2:] ** 2 - u[:-2] ** 2) / (4 * dx) + VISCOSITY * (u[2:] - 2 * u[1:-1] + u[:-2]) / dx**2
        return out

    u, now, rows = -np.sin(np.pi * grid), 0.0, []
    for end in times:
        while now < end - dt / 2:
            first = rate(u)
            u, now = u + dt / 2 * (first + rate(u + dt * first)), now + dt
        rows.append(np.interp(x, grid, u))
    return np.array(rows)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Train, compare with finite differences, and draw both."""
    chosen = options(__doc__, arguments, "burgers.png")
    rng = np.random.default_rng(chosen.seed)
    layers = initialise(rng)
    steps, count = (150, 200) if chosen.quick else (4000, 1000)

    def loss() -> Any:
        points = np.stack([rng.uniform(-1, 1, count), rng.uniform(0, 1, count)], axis=1).astype("float32")
        return (residual(layers, points) ** 2).mean()

    losses = minimise(loss, layers, optax.adam(optax.cosine_decay_schedule(4e-3, steps)), steps, "training")
    x, times = np.linspace(-1, 1, 201), np.linspace(0, 1, 5)
    expected = finite_differences(x, times)
    with tape.no_grad():
        found = np.array([network(layers, tnp.asarray(x, "float32"), tnp.full(len(x), t, "float32")).numpy() for t in times])
    error = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
    print(f"loss {losses[0]:.2e} at first, {losses[-1]:.2e} at last; {error:.2%} from finite differences (relative, L2)")
    assert error < (0.5 if chosen.quick else 0.02)
    with picture(chosen.output, 2, "Burgers' equation, learned from the equation alone") as (left, right):
        for k, t in enumerate(times):
            left.plot(x, expected[k], color=f"C{k}", label=f"t = {t:g}")
            left.plot(x, found[k], "k:", linewidth=2)
        left.set(xlabel="x", ylabel="u", title="Finite differences (lines) and the network (dots)")
        right.semilogy(losses)
        right.set(xlabel="step", ylabel="mean squared residual", title="Loss")
    return {"error": error}


if __name__ == "__main__":
    main()
