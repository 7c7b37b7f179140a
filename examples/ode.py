"""Adaptive ODE solver in plain Python
===================================

Fit the rates of predators and prey through an ODE solver with adaptive steps, written as plain Python.

The solver (Bogacki and Shampine 1989, orders 3 and 2, as in MATLAB's ode23) looks at its error after each step, accepts or rejects it, and
chooses the next step's length: a ``while`` loop whose number of turns depends on the values.  The sweep goes back through exactly the steps
that were accepted; the lengths of steps are constants of it, as in "discretise, then optimise".

In JAX a ``while_loop`` has no reverse mode at all, so solvers come as libraries with checkpointing inside (Diffrax); PyTorch runs the
loop as it stands, op by op.  Here it is the same Python and each turn is compiled once.

Run it with ``python examples/ode.py``.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optax
from experiment import distance, minimise, options, picture

import tape
import tape.numpy as tnp

RATES = np.array([1.1, 0.4, 0.1, 0.4])  # growth of prey, its loss per predator, growth of predators per prey, their loss
START = np.array([10.0, 5.0])
NOISE = 0.05  # relative, of what is observed


def field(y: Any, rates: Any) -> Any:
    """Lotka and Volterra's equations: d prey / dt and d predators / dt."""
    prey, predators = y[0], y[1]
    return tnp.stack([rates[0] * prey - rates[1] * prey * predators, rates[2] * prey * predators - rates[3] * predators])


def solve(f: Callable[[Any], Any], y: Any, times: Any, tolerance: float) -> tuple[list[Any], int, int]:
    """Integrate dy/dt = f(y) and return y at each of the times, the steps that were accepted, and those that were not."""
    step, now, accepted, rejected = 0.1, float(times[0]), 0, 0
    slope, states = f(y), [y]
    for end in times[1:]:
        while now < end:
            step = min(step, float(end) - now)
            second = f(y + 0.5 * step * slope)
            third = f(y + 0.75 * step * second)
            new = y + step * (2 / 9 * slope + 1 / 3 * second + 4 / 9 * third)
            last = f(new)
            wrong = step * (-5 / 72 * slope + 1 / 12 * second + 1 / 9 * third - 1 / 8 * last)
            size = float(tnp.abs(wrong.detach() / (tolerance * (1 + tnp.abs(new.detach())))).max())  # this looks
            if size <= 1:
                now, y, slope, accepted = now + step, new, last, accepted + 1
            else:
                rejected += 1
            step = step * min(5.0, max(0.2, 0.9 * (size + 1e-10) ** (-1 / 3)))
        states.append(y)
    return states, accepted, rejected


def simulate(rates: Any, times: Any, tolerance: float = 1e-3) -> tuple[Any, int, int]:
    """Predators and prey at the times, shape (times, 2)."""
    states, accepted, rejected = solve(lambda y: field(y, rates), tape.constant(START.astype("float32")), times, tolerance)
    return tnp.stack(states), accepted, rejected


def check(times: Any) -> float:
    """Return how far the gradient is from central differences of the solver, relative (float32, so 1e-3 is all they can tell)."""
    slope = tape.grad(lambda rates: simulate(rates, times)[0].sum())(RATES.astype("float32"))
    reference = np.empty(4)
    for i, shift in enumerate(np.eye(4) * 1e-2):
        up, down = (float(simulate((RATES + sign * shift).astype("float32"), times, 1e-5)[0].sum()) for sign in (1, -1))
        reference[i] = (up - down) / 2e-2
    return distance(slope, reference)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Fit the rates to noisy observations, assert that they come out, and draw the curves."""
    chosen = options(__doc__, arguments, "ode.png")
    times = np.linspace(0, 6 if chosen.quick else 15, 12 if chosen.quick else 30)
    apart = check(times[:6])
    print(f"gradient through the solver within {apart:.1e} of central differences")
    assert apart < 0.02
    truth, _, _ = simulate(RATES.astype("float32"), times, 1e-5)
    rng = np.random.default_rng(chosen.seed)
    seen = (truth.numpy() * np.exp(NOISE * rng.normal(size=truth.shape))).astype("float32")
    log_rates = tape.Variable(np.log(RATES * np.array([0.8, 1.3, 1.3, 0.8])).astype("float32"), name="log_rates")
    steps = []

    def loss() -> Any:
        curve, *taken = simulate(tnp.exp(log_rates), times)
        steps.append(tuple(taken))
        return ((tnp.log(curve) - np.log(seen)) ** 2).mean()

    losses = minimise(loss, [log_rates], optax.adam(0.03), 40 if chosen.quick else 150, "fitting")
    rates = np.exp(log_rates.numpy())
    worst = float(np.abs(rates / RATES - 1).max())
    print(f"rates {np.round(rates, 3)}, true ones {RATES}")
    print(f"steps of the solver (accepted, rejected): {min(steps)} to {max(steps)}")
    assert worst < (0.25 if chosen.quick else 0.1), worst
    with picture(chosen.output, 2, "Fitted through a solver with adaptive steps") as (left, right):
        fine = np.linspace(0, times[-1], 200)
        fitted = simulate(rates, fine)[0].numpy()
        for k, name in enumerate(("prey", "predators")):
            left.plot(fine, fitted[:, k], color=f"C{k}", label=name)
            left.plot(times, seen[:, k], "o", color=f"C{k}")
        left.set(xlabel="time", ylabel="animals", title="Observations and the fitted curve")
        right.semilogy(losses)
        right.set(xlabel="step", ylabel="mean squared error of logarithms", title="Loss")
    return {"rates": rates, "distance": apart, "worst": worst}


if __name__ == "__main__":
    main()
