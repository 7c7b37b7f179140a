"""MAML, first and second order
============================

Learn weights from which one gradient step fits a new sine wave: MAML (Finn, Abbeel and Levine 2017), first and second order.

Tasks are waves of amplitude 0.1 to 5 and any phase; of each, ten points are seen.  The inner step is recorded, so the outer gradient goes
through it: the difference between the two orders is ``create_graph=True`` (first order has to say ``.detach()``).  The paper reports (its
section 5.2 and figures 2, 3) that without the second derivatives MAML is nearly as good, and that a network trained on all waves at once
cannot adapt at all; both are asserted.

In JAX the inner step is a function inside the loss, with all weights passed through by hand; in PyTorch it needs functional copies of the
modules.  Here the adapted weights are values: all tasks adapt at once because arrays broadcast.

Run it with ``python examples/maml.py``.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import optax
from experiment import Array, minimise, options, picture

import tape
import tape.numpy as tnp

TASKS, SHOTS, RATE = 25, 10, 0.01
WIDTHS = (1, 40, 40, 1)


def initialise(rng: np.random.Generator) -> list[Any]:
    """Weights and biases, one after the other; biases have shape (1, n), so that a leading axis of tasks can be put before both."""
    shapes = [shape for a, b in itertools.pairwise(WIDTHS) for shape in ((a, b), (1, b))]
    return [tape.Variable((rng.normal(size=s) * (0 if s[0] == 1 and s[1] != 40 else (2 / s[0]) ** 0.5)).astype("float32")) for s in shapes]


def network(weights: Sequence[Any], x: Any) -> Any:
    """Outputs of shape (tasks, points, 1)."""
    h = x
    for w, b in zip(weights[::2], weights[1::2], strict=True):
        h = h @ w + b
        if w is not weights[-2]:
            h = tape.nn.relu(h)
    return h


def waves(rng: np.random.Generator, points: int) -> tuple[Array, Array]:
    """Draw a wave per task; x and y of shape (tasks, points, 1): the first ten points are to adapt to, the others to be judged by."""
    amplitude, phase = rng.uniform(0.1, 5, (TASKS, 1, 1)), rng.uniform(0, np.pi, (TASKS, 1, 1))
    x = rng.uniform(-5, 5, (TASKS, points, 1))
    return x.astype("float32"), (amplitude * np.sin(x - phase)).astype("float32")


def adapt(weights: Sequence[Any], x: Array, y: Array, *, create_graph: bool) -> list[Any]:
    """Take one gradient step per task; the result has an axis of tasks in front."""
    each = [tnp.broadcast_to(w, (TASKS, *w.shape[-2:])) for w in weights]
    loss = ((network(each, x) - y) ** 2).mean(axis=(1, 2)).sum()
    slopes = tape.gradients(loss, each, create_graph=create_graph, retain_graph=True)
    return [w - RATE * (g if create_graph else g.detach()) for w, g in zip(each, slopes, strict=True)]  # else: an error, not a loss


def train(name: str, seed: int, steps: int) -> list[Any]:
    """Return the weights that the outer loop finds; ``name`` says what its gradient contains."""
    rng = np.random.default_rng(seed)
    weights = initialise(rng)

    def loss() -> Any:
        x, y = waves(rng, 2 * SHOTS)
        used = weights
        if name != "no adaptation":
            used = adapt(weights, x[:, :SHOTS], y[:, :SHOTS], create_graph=name == "second order")
        return ((network(used, x[:, SHOTS:]) - y[:, SHOTS:]) ** 2).mean()

    minimise(loss, weights, optax.adam(1e-3), steps, name)
    return weights


def evaluate(weights: Sequence[Any], seed: int, turns: int = 10) -> list[float]:
    """Mean squared error on 24 x 25 new waves after 0, 1, ... steps of adaptation."""
    errors = np.zeros(turns + 1)
    rng = np.random.default_rng(seed + 1000)
    for _ in range(24):
        x, y = waves(rng, 100)
        used = list(weights)
        for k in range(turns + 1):
            errors[k] += float(((network(used, x[:, SHOTS:]) - y[:, SHOTS:]).detach() ** 2).mean()) / 24
            used = [tape.Variable(w.value) for w in adapt(used, x[:, :SHOTS], y[:, :SHOTS], create_graph=False)]
    return [float(e) for e in errors]


def main(arguments: Sequence[str] | None = None) -> dict[str, list[float]]:
    """Train three ways, assert the paper's comparison, and draw how fast each adapts."""
    chosen = options(__doc__, arguments, "maml.png")
    steps = 300 if chosen.quick else 8000
    names = ("second order", "first order", "no adaptation")
    errors = {name: evaluate(train(name, chosen.seed, steps), chosen.seed) for name in names}
    print(f"{'mean squared error after':<26}{'0 steps':>9}{'1 step':>9}{'10 steps':>10}")
    for name, found in errors.items():
        print(f"{name:<26}{found[0]:>9.3f}{found[1]:>9.3f}{found[10]:>10.3f}")
    second, first, plain = (errors[name][1] for name in names)
    assert second < plain
    if not chosen.quick:
        assert first < 0.7 * plain
        assert second < 0.5 * plain
        assert second < 1.1 * first  # the second derivatives help
    with picture(chosen.output, 1, "Fitting a new sine wave from ten points") as (axes,):
        for name, found in errors.items():
            axes.plot(found, "o-", label=name)
        axes.set(xlabel="gradient steps on the ten points", ylabel="mean squared error on others")
        axes.set_ylim(0, 2 * errors["second order"][0])  # a network that was not trained to adapt diverges
    return errors


if __name__ == "__main__":
    main()
