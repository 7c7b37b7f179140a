"""Lagrangian and Hamiltonian networks
===================================

Learn how a double pendulum moves: a plain network, and one that learns the Lagrangian (Cranmer et al. 2020) or Hamiltonian only.
A Lagrangian network gives one number, L(q, v).  The accelerations follow from Euler and Lagrange's equations::

    a = (d2L / dv2)^-1 (dL/dq - d2L/dv dq v),

so the model contains a Hessian of the network, and training differentiates it once more.  A Hamiltonian network (Greydanus, Dzamba and
Yosinski 2019) gives H(q, p), with dq/dt = dH/dp and dp/dt = -dH/dq.  From a start that no model has seen, drifts of the true energy are compared.

In JAX this is as short, with everything pure; in PyTorch the mapped Hessian needs ``torch.func``.  Here the Hessian of the network is one line,
``tape.hessian(function, argnums=1)(q, v)``, and ``loss.backward()`` goes through it.

Run it with ``python examples/mechanics.py``.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import optax
from experiment import Array, layers, minimise, options, picture
from scipy.integrate import solve_ivp

import tape
import tape.numpy as tnp


def lagrangian(q: Any, v: Any) -> Any:
    """Of two equal masses on two rods of length 1: kinetic minus potential energy; q are the angles, v their rates."""
    kinetic = v[0] ** 2 + 0.5 * v[1] ** 2 + v[0] * v[1] * tnp.cos(q[0] - q[1])
    return kinetic + 9.8 * (2 * tnp.cos(q[0]) + tnp.cos(q[1]))


def energy(q: Any, v: Any) -> Any:
    """What the true pendulum keeps."""
    return tape.grad(lagrangian, argnums=1)(q, v) @ v - lagrangian(q, v)


def accelerations(function: Callable[[Any, Any], Any], q: Any, v: Any) -> Any:
    """Solve Euler and Lagrange's equations of one Lagrangian at one state."""
    mass = tape.hessian(function, argnums=1)(q, v)
    mixed = tape.jacfwd(tape.grad(function, argnums=1), argnums=0)(q, v)
    return tnp.linalg.solve(mass, tape.grad(function)(q, v) - mixed @ v)


def network(p: Sequence[tuple[Any, Any]], q: Any, v: Any) -> Any:
    """Two hidden layers on angles (as sines and cosines) and rates."""
    h = tnp.concatenate([tnp.sin(q), tnp.cos(q), tnp.sin(q[:1] - q[1:]), tnp.cos(q[:1] - q[1:]), v / 4, (v[:1] * v[1:]) / 16])
    for w, b in p[:-1]:
        h = tape.nn.softplus(h @ w + b)
    return h @ p[-1][0]


def plain(p: Any, q: Any, v: Any) -> Any:
    """Rates of angles and of their rates, straight from a network."""
    return tnp.concatenate([v, network(p, q, v)])


def learned_lagrangian(p: Any, q: Any, v: Any) -> Any:
    """The same from a network that is a Lagrangian; a little kinetic energy is added, so that its mass matrix is never singular."""
    return tnp.concatenate([v, accelerations(lambda q, v: network(p, q, v)[0] + 0.5 * (v**2).sum(), q, v)])


def learned_hamiltonian(p: Any, q: Any, momentum: Any) -> Any:
    """Rates of angles and momenta, from a network that is a Hamiltonian."""
    dq, dp = tape.grad(lambda q, m: network(p, q, m)[0] + 0.05 * (m**2).sum(), argnums=(0, 1))(q, momentum)
    return tnp.concatenate([dp, -dq])


def train(name: str, model: Callable[..., Any], data: Sequence[Array], steps: int, rng: np.random.Generator) -> tuple[Any, list[float]]:
    """Fit the model's rates to the true ones; return its weights and the losses."""
    p = jax.tree.map(tape.Variable, layers(rng, (9, 64, 64, 2 if model is plain else 1), gain=1.0))
    mapped = tape.vmap(model, in_axes=(None, 0, 0))
    scale = np.abs(data[2]).mean(0)

    def loss() -> Any:
        rows = rng.integers(len(data[0]), size=128)
        first, second, rates = (part[rows] for part in data)
        return (((mapped(p, first, second) - rates) / scale) ** 2).mean()

    return p, minimise(loss, p, optax.adam(optax.cosine_decay_schedule(3e-3, steps)), steps, name)


@tape.no_grad()
def trajectory(model: Callable[..., Any], p: Any, seconds: Array) -> list[Array]:
    """Angles, and rates or momenta, from a start at rest that no model has seen; SciPy's solver asks for the rates."""

    def rates(_: float, state: Array) -> Array:
        return model(p, *np.split(state.astype("float32"), 2)).numpy()

    return np.split(solve_ivp(rates, (0, seconds[-1]), [1.2, 0.4, 0, 0], t_eval=seconds).y.T.astype("float32"), 2, axis=1)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Train the three, assert that the structured ones keep the energy better, and draw it."""
    chosen = options(__doc__, arguments, "mechanics.png")
    rng = np.random.default_rng(chosen.seed)
    count, steps, seconds = (256, 60, np.linspace(0, 0.2, 20)) if chosen.quick else (8192, 3000, np.linspace(0, 10, 1000))
    q, v = (rng.uniform(-limit, limit, (count, 2)).astype("float32") for limit in (2.0, 3.0))
    true = np.asarray(tape.vmap(lambda q, v: accelerations(lagrangian, q, v))(q, v))  # arrays in, arrays out
    momenta, forces = (np.asarray(tape.vmap(tape.grad(lagrangian, argnums=k))(q, v)) for k in (1, 0))
    by_rates = q, v, np.concatenate([v, true], axis=1)
    by_momenta = q, momenta, np.concatenate([v, forces], axis=1)
    models, drifts = {"plain network": plain, "Lagrangian network": learned_lagrangian, "Hamiltonian network": learned_hamiltonian}, {}
    with picture(chosen.output, 2, "A double pendulum, learned") as (left, right):
        for name, model in models.items():
            p, losses = train(name, model, by_momenta if model is learned_hamiltonian else by_rates, steps, rng)
            q, v = trajectory(model, p, seconds)
            if model is learned_hamiltonian:  # momenta are the masses times the rates
                v = np.linalg.solve(tape.vmap(tape.hessian(lagrangian, argnums=1))(q, v), v[..., None])[..., 0]
            energies = np.asarray(tape.vmap(energy)(q, v))
            drifts[name] = float(np.abs(energies - energies[0]).max())
            before, after = np.mean(losses[:10]), np.mean(losses[-10:])
            print(f"{name:<20} loss {before:.3f} -> {after:.5f}, its trajectory's true energy drifts by {drifts[name]:.3f}")
            assert after < before
            left.semilogy(np.convolve(losses, np.ones(20) / 20, "valid"), label=name)
            right.plot(seconds, energies - energies[0], label=name)
        left.set(xlabel="step", ylabel="error of rates, relative", title="Training")
        right.set(xlabel="seconds", ylabel="change of the true energy", title="A trajectory that was not seen")
    assert chosen.quick or max(drifts["Lagrangian network"], drifts["Hamiltonian network"]) < drifts["plain network"]
    return {"drifts": drifts}


if __name__ == "__main__":
    main()
