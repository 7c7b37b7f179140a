"""Learn how a double pendulum moves: a plain network, and one that learns the Lagrangian (Cranmer et al. 2020) or Hamiltonian only.

A Lagrangian network gives one number, L(q, v).  The accelerations follow from Euler and Lagrange's equations,

    a = (d2L / dv2)^-1 (dL/dq - d2L/dv dq v),

so the model contains a Hessian of the network, and training differentiates it once more.  A Hamiltonian network (Greydanus, Dzamba and
Yosinski 2019) gives H(q, p), with dq/dt = dH/dp and dp/dt = -dH/dq.  Both are made of ``tape.grad``, ``tape.hessian`` and ``tape.vmap``.
Each model then goes on from a start that it has not seen, and the drift of the true energy is compared.

In JAX this is as short, with everything pure; in PyTorch the mapped Hessian needs ``torch.func``.  Here the Hessian of the network is one line,
``tape.hessian(function, argnums=1)(q, v)``, and ``loss.backward()`` goes through it.

    python examples/mechanics.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import optax
from experiment import options, picture, progress

import interop.optax
import tape
import tape.numpy as tnp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Array = np.ndarray[Any, Any]

GRAVITY = 9.8
WIDTH = 64


def lagrangian(q: Any, v: Any) -> Any:
    """Of two equal masses on two rods of length 1: kinetic minus potential energy; q are the angles, v their rates."""
    kinetic = v[0] ** 2 + 0.5 * v[1] ** 2 + v[0] * v[1] * tnp.cos(q[0] - q[1])
    return kinetic + GRAVITY * (2 * tnp.cos(q[0]) + tnp.cos(q[1]))


def energy(q: Any, v: Any) -> Any:
    """Kinetic plus potential energy of the true pendulum."""
    return v[0] ** 2 + 0.5 * v[1] ** 2 + v[0] * v[1] * tnp.cos(q[0] - q[1]) - GRAVITY * (2 * tnp.cos(q[0]) + tnp.cos(q[1]))


def energy_of_momenta(q: Any, m: Any) -> Any:
    """The same, of momenta: those are (2 v0 + c v1, v1 + c v0), where c is the cosine of the difference of the angles."""
    c = tnp.cos(q[0] - q[1])
    return energy(q, tnp.stack([m[0] - c * m[1], 2 * m[1] - c * m[0]]) / (2 - c**2))


def accelerations(function: Callable[[Any, Any], Any], q: Any, v: Any) -> Any:
    """Solve Euler and Lagrange's equations of one Lagrangian at one state."""
    mass = tape.hessian(function, argnums=1)(q, v)
    mixed = tape.jacfwd(tape.grad(function, argnums=1), argnums=0)(q, v)
    return tnp.linalg.solve(mass, tape.grad(function)(q, v) - mixed @ v)


def network(p: dict[str, Any], q: Any, v: Any, outputs: int) -> Any:
    """Two hidden layers on angles (as sines and cosines) and rates; one number, or ``outputs`` of them."""
    h = tnp.concatenate([tnp.sin(q), tnp.cos(q), tnp.sin(q[:1] - q[1:]), tnp.cos(q[:1] - q[1:]), v / 4, (v[:1] * v[1:]) / 16])
    h = tape.nn.softplus(h @ p["w1"] + p["b1"])
    h = tape.nn.softplus(h @ p["w2"] + p["b2"])
    out = h @ p["w3"]
    return out if outputs > 1 else out[0]


def initialise(rng: np.random.Generator, outputs: int) -> dict[str, Any]:
    """Weights of Glorot's scale."""
    shapes = {"w1": (9, WIDTH), "w2": (WIDTH, WIDTH), "w3": (WIDTH, outputs)}
    weights = {name: tape.Variable((rng.normal(size=s) * (2 / sum(s)) ** 0.5).astype("float32")) for name, s in shapes.items()}
    return weights | {name: tape.Variable(np.zeros(WIDTH, "float32")) for name in ("b1", "b2")}


def plain(p: dict[str, Any], q: Any, v: Any) -> Any:
    """Accelerations straight from a network."""
    return network(p, q, v, 2)


def learned_lagrangian(p: dict[str, Any], q: Any, v: Any) -> Any:
    """Accelerations from a network that is a Lagrangian; a little kinetic energy is added, so that its mass matrix is never singular."""
    return accelerations(lambda q, v: network(p, q, v, 1) + 0.5 * (v**2).sum(), q, v)


def learned_hamiltonian(p: dict[str, Any], q: Any, momentum: Any) -> Any:
    """Rates of angles and momenta, from a network that is a Hamiltonian."""
    dq, dp = tape.grad(lambda q, m: network(p, q, m, 1) + 0.05 * (m**2).sum(), argnums=(0, 1))(q, momentum)
    return tnp.concatenate([dp, -dq])


def train(name: str, model: Callable[..., Any], data: Sequence[Array], steps: int, rng: np.random.Generator) -> tuple[dict[str, Any], Any]:
    """Fit the model's rates to the true ones; return its weights and the losses."""
    p = initialise(rng, 2 if model is plain else 1)
    optimizer = interop.optax.Optimizer(p, optax.adam(optax.cosine_decay_schedule(3e-3, steps)))
    mapped = tape.vmap(model, in_axes=(None, 0, 0))
    scale = np.abs(data[2]).mean(0)
    losses = []
    for _ in progress(range(steps), name):
        rows = rng.integers(len(data[0]), size=128)
        first, second, rates = (part[rows] for part in data)
        loss = (((mapped(p, first, second) - rates) / scale) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return p, [float(v) for v in losses]


@tape.no_grad()
def drift(rate: Callable[[Any], Any], state: Array, energy: Callable[[Any, Any], Any], turns: int) -> Array:
    """Integrate by Runge and Kutta's method with steps of 0.01; the energy of the true pendulum along the way."""
    s, h, energies = tape.constant(state), 0.01, []
    for _ in range(turns):
        a = rate(s)
        b = rate(s + h / 2 * a)
        c = rate(s + h / 2 * b)
        d = rate(s + h * c)
        s = s + h / 6 * (a + 2 * b + 2 * c + d)
        energies.append(energy(s[:2], s[2:]))
    return np.array([float(e) for e in energies])


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Train the three, assert that the structured ones keep the energy better, and draw it."""
    chosen = options(__doc__, arguments, "mechanics.png")
    rng = np.random.default_rng(chosen.seed)
    count, steps = (256, 60) if chosen.quick else (8192, 3000)
    q, v = (rng.uniform(-limit, limit, (count, 2)).astype("float32") for limit in (2.0, 3.0))
    true = np.asarray(tape.vmap(lambda q, v: accelerations(lagrangian, q, v))(q, v))  # arrays in, arrays out
    momenta, forces = (np.asarray(tape.vmap(tape.grad(lagrangian, argnums=k))(q, v)) for k in (1, 0))
    losses, energies = {}, {}
    start, turns = np.array([1.2, 0.4, 0, 0], "float32"), 20 if chosen.quick else 1000  # at rest: no rates, no momenta
    for name, model, data in (
        ("plain network", plain, (q, v, true)),
        ("Lagrangian network", learned_lagrangian, (q, v, true)),
        ("Hamiltonian network", learned_hamiltonian, (q, momenta, np.concatenate([v, forces], axis=1))),
    ):
        p, losses[name] = train(name, model, data, steps, rng)
        if model is learned_hamiltonian:  # it moves in angles and momenta
            energies[name] = drift(lambda s, p=p: learned_hamiltonian(p, s[:2], s[2:]), start, energy_of_momenta, turns)
        else:
            energies[name] = drift(lambda s, p=p, f=model: tnp.concatenate([s[2:], f(p, s[:2], s[2:])]), start, energy, turns)
    for name, curve in losses.items():
        print(f"{name:<20} loss {np.mean(curve[:10]):.3f} -> {np.mean(curve[-10:]):.5f}")
        assert np.mean(curve[-10:]) < np.mean(curve[:10])
    drifts = {name: float(np.abs(e - e[0]).max()) for name, e in energies.items()}
    for name, d in drifts.items():
        print(f"{name:<20} its trajectory's true energy drifts by {d:.3f}")
    assert chosen.quick or max(drifts["Lagrangian network"], drifts["Hamiltonian network"]) < drifts["plain network"]
    with picture(chosen.output, 2, "A double pendulum, learned") as (left, right):
        for name, curve in losses.items():
            left.semilogy(np.convolve(curve, np.ones(20) / 20, "valid"), label=name)
        left.set(xlabel="step", ylabel="error of rates, relative", title="Training")
        for name, e in energies.items():
            right.plot(0.01 * np.arange(len(e)), e - e[0], label=name)
        right.set(xlabel="seconds", ylabel="change of the true energy", title="A trajectory that was not seen")
    return {"drifts": drifts}


if __name__ == "__main__":
    main()
