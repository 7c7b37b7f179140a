"""Train in 16 bits on handwritten digits: what is lost without a loss scale, with one that is too large, and how a dynamic one finds its way.

The loss counts with a small weight (as one of several terms would, or one in large units), and the learning rate is larger by as much, so that
in exact arithmetic all runs do the same.  With a weight of 1e-4 the cotangents of the logits are below 6e-8, the smallest number of float16:
they become zero, and nothing is learned.  A loss scale (the seed of the backward pass; the optimizer divides it out in float32) moves them
into range.  One of 2**40 moves them beyond 65504: gradients are infinite, and every step is skipped.  A dynamic scale that starts there
is halved until they are finite.

bfloat16 has the exponents of float32: at that weight it needs no scale, and loses nothing without one.  What it needs one for is what float32
needs one for: with a weight of 1e-33 most cotangents are below 1e-38 and are flushed to zero, though the gradients, sums over the batch, are not.
What is left of them leads both astray.

In JAX scale, test and skipped step are part of the jitted function; in PyTorch they are a GradScaler, for float16 on accelerators.  Here it is
one argument, ``interop.optax.Optimizer(..., loss_scale=DynamicLossScale())``, in any dtype.

    python examples/loss_scaling.py --output loss_scaling.png
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import optax
from experiment import options
from matplotlib import pyplot as plt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import interop.optax
import tape

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Array = np.ndarray[Any, Any]

LAYERS = (64, 64, 64, 64, 10)
RATE = 1.0  # for a loss of weight 1


@dataclass
class Run:
    """One way to train: the weight of the loss, the dtype of the network (parameters are float32), and the loss scale."""

    weight: float
    dtype: str
    scaling: str
    learns: bool  # what has to come of it
    scale: Any = None
    loss: list[float] = field(default_factory=list)
    zeros: float = 0.0  # share of the numbers in the gradients of all weights that are zero, at the first step
    accuracy: float = 0.0
    skipped: int = 0
    last: str = ""  # the scale at the end


def runs() -> list[Run]:
    """Return the ways that are compared."""
    dynamic = interop.optax.DynamicLossScale
    return [
        Run(1e-4, "float32", "none", True),
        Run(1e-4, "float16", "none", False),
        Run(1e-4, "float16", "2**15", True, 2.0**15),
        Run(1e-4, "float16", "2**40", False, 2.0**40),
        Run(1e-4, "float16", "dynamic from 2**40", True, dynamic(initial=2.0**40, interval=50)),
        Run(1e-4, "bfloat16", "none", True),
        Run(1e-33, "float32", "none", False),
        Run(1e-33, "bfloat16", "none", False),
        Run(1e-33, "bfloat16", "2**20", True, 2.0**20),
        Run(1e-33, "bfloat16", "dynamic from 2**15", True, dynamic(initial=2.0**15, interval=5)),
    ]


def load(seed: int) -> tuple[Array, Array, Array, Array]:
    """Return pixels in [0, 1] and one-hot labels to learn from (75 %), and to test on."""
    pixels, targets = load_digits(return_X_y=True)
    parts = train_test_split(
        (pixels / 16).astype(np.float32), np.eye(10, dtype=np.float32)[targets], test_size=0.25, stratify=targets, random_state=seed
    )
    return parts[0], parts[2], parts[1], parts[3]


def initialise(seed: int) -> list[tuple[Any, Any]]:
    """Draw weights; the same ones for every run."""
    rng = np.random.default_rng(seed)
    return [
        (tape.Variable((rng.normal(size=(n, m)) * (2 / n) ** 0.5).astype(np.float32)), tape.Variable(np.zeros(m, np.float32)))
        for n, m in itertools.pairwise(LAYERS)
    ]


def network(parameters: Sequence[tuple[Any, Any]], pixels: Array, dtype: str) -> Any:
    """Return probabilities of shape (N, 10), in float32, of logits computed in ``dtype``."""
    x = tape.constant(pixels).astype(dtype)
    for i, (weights, bias) in enumerate(parameters):
        x = x @ weights.astype(dtype) + bias.astype(dtype)
        if i + 2 < len(LAYERS):
            x = tape.nn.relu(x)
    return tape.nn.softmax(x.astype("float32"))


def train(run: Run, data: tuple[Array, Array, Array, Array], steps: int, seed: int) -> None:
    """Train by full batches, and note what came of it."""
    pixels, labels, test_pixels, test_labels = data
    parameters = initialise(seed)
    optimizer = interop.optax.Optimizer(parameters, optax.sgd(RATE / run.weight, momentum=0.9), loss_scale=run.scale)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = ((network(parameters, pixels, run.dtype) - labels) ** 2).mean()
        optimizer.backward(run.weight * loss)
        if step == 0:
            run.zeros = float(np.mean([float((weights.grad == 0).mean()) for weights, _ in parameters]))
        optimizer.step()
        losses.append(loss.detach())
    run.loss = [float(x) for x in losses]
    if run.scale is not None:
        run.skipped = int(optimizer.scaling.skipped)
        run.last = f"2**{np.log2(float(optimizer.scaling.scale)):g}"
    with tape.no_grad():
        found = network(parameters, test_pixels, "float32").argmax(-1)
    run.accuracy = float((found == test_labels.argmax(-1)).mean())


def draw(results: Sequence[Run], output: Path) -> None:
    """Save the learning curves, one panel for each weight of the loss."""
    weights = sorted({run.weight for run in results}, reverse=True)
    figure, panels = plt.subplots(1, len(weights), figsize=(12, 4.8), sharey=True, layout="constrained")
    for axes, weight in zip(panels, weights, strict=True):
        for run in results:
            if run.weight == weight:
                style = "-" if run.scale is None else "--"
                axes.semilogy(run.loss, style, linewidth=2, label=f"{run.dtype}, scale {run.scaling}: {run.accuracy:.1%} right")
        axes.set(xlabel="step", title=f"a loss of weight {weight:g}")
        axes.legend(fontsize="small")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("mean squared error, training")
    figure.savefig(output, dpi=120)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> list[Run]:
    """Train in all ways, print a table, assert who learns, save the picture."""
    chosen = options(__doc__, arguments, "loss_scaling.png", steps=(200, "per run"))
    data = load(chosen.seed)
    print(f"{'weight':>7}  {'dtype':<9}{'scale':<19}{'zeros':>5}{'last loss':>11}{'accuracy':>10}{'skipped':>9}  scale at the end")
    results = runs()
    for run in results:
        train(run, data, 40 if chosen.quick else chosen.steps, chosen.seed)
        numbers = f"{run.zeros:>5.0%}{run.loss[-1]:>11.2g}{run.accuracy:>10.1%}{run.skipped:>9}"
        print(f"{run.weight:>7g}  {run.dtype:<9}{run.scaling:<19}{numbers}  {run.last}".rstrip(), flush=True)
        assert (run.loss[-1] < run.loss[0] / 2) == run.learns, run
    print("zeros: the share of zeros in the gradients of all weights, at the first step; accuracy is that on test digits")
    draw(results, chosen.output)
    print(f"picture in {chosen.output}")
    return results


if __name__ == "__main__":
    main()
