"""Loss scaling in 16 bits
=======================

Train in 16 bits on handwritten digits: what is lost without a loss scale, with one that is too large, and how a dynamic one finds its way.

The loss counts with a small weight, and the learning rate is larger by as much, so that in exact arithmetic all runs do the same.  With a
weight of 1e-4 the cotangents of the logits are below 6e-8, the smallest number of float16: they become zero, and nothing is learned.  A loss
scale (the seed of the backward pass; the optimizer divides it out in float32) moves them into range.  One of 2**40 moves them beyond 65504:
gradients are infinite, and every step is skipped.  A dynamic scale that starts there is halved until they are finite.
bfloat16 has the exponents of float32, and needs a scale for what float32 needs one for: with a weight of 1e-33 most cotangents are below 1e-38
and are flushed to zero, though the gradients, sums over the batch, are not.

In JAX scale, test and skipped step are part of the jitted function; in PyTorch they are a GradScaler, for float16 on accelerators.  Here it is
one argument, ``interop.optax.Optimizer(..., loss_scale=DynamicLossScale())``, in any dtype.

Run it with ``python examples/loss_scaling.py --output loss_scaling.png``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax
from experiment import Array, digits, layers, options, picture, progress

import interop.optax
import tape
from interop.optax import DynamicLossScale

WIDTHS = (64, 64, 64, 64, 10)


@dataclass
class Run:
    """One way to train: the weight of the loss, the dtype of the network (parameters are float32), and the loss scale."""

    weight: float
    dtype: str
    scaling: str
    learns: bool  # what has to come of it
    scale: Any = None
    loss: Sequence[float] = ()
    skipped: int = 0  # steps


def runs() -> list[Run]:
    """Return the ways that are compared."""
    return [
        Run(1e-4, "float32", "none", True),
        Run(1e-4, "float16", "none", False),
        Run(1e-4, "float16", "2**15", True, 2.0**15),
        Run(1e-4, "float16", "2**40", False, 2.0**40),
        Run(1e-4, "float16", "dynamic from 2**40", True, DynamicLossScale(initial=2.0**40, interval=50)),
        Run(1e-4, "bfloat16", "none", True),
        Run(1e-33, "float32", "none", False),
        Run(1e-33, "bfloat16", "none", False),
        Run(1e-33, "bfloat16", "2**20", True, 2.0**20),
        Run(1e-33, "bfloat16", "dynamic from 2**15", True, DynamicLossScale(initial=2.0**15, interval=5)),
    ]


def network(parameters: Sequence[tuple[Any, Any]], pixels: Array, dtype: str) -> Any:
    """Return probabilities of shape (N, 10), in float32, of logits computed in ``dtype``."""
    x = tape.constant(pixels).astype(dtype)
    for k, (weights, bias) in enumerate(parameters):
        x = (tape.nn.relu(x) if k else x) @ weights.astype(dtype) + bias.astype(dtype)
    return tape.nn.softmax(x.astype("float32"))


def train(run: Run, data: Sequence[Array], steps: int, seed: int) -> str:
    """Train by full batches; return what came of it, in columns."""
    pixels, labels, test_pixels, test_labels = data
    parameters = jax.tree.map(tape.Variable, layers(np.random.default_rng(seed), WIDTHS))
    optimizer = interop.optax.Optimizer(parameters, optax.sgd(1 / run.weight, momentum=0.9), loss_scale=run.scale)
    losses, zeros = [], []
    for _ in progress(range(steps), f"{run.dtype}, {run.scaling}"):
        optimizer.zero_grad()
        loss = ((network(parameters, pixels, run.dtype) - labels) ** 2).mean()
        optimizer.backward(run.weight * loss)
        zeros = zeros or [float((weights.grad == 0).mean()) for weights, _ in parameters]  # at the first step
        optimizer.step()
        losses.append(loss.detach())
    run.loss = [float(x) for x in losses]
    with tape.no_grad():
        right = float((network(parameters, test_pixels, "float32").argmax(-1) == test_labels.argmax(-1)).mean())
    last = ""
    if run.scale is not None:
        run.skipped = int(optimizer.scaling.skipped)
        last = f"2**{np.log2(float(optimizer.scaling.scale)):g}"
    return f"{np.mean(zeros):>5.0%}{run.loss[-1]:>11.2g}{right:>10.1%}{run.skipped:>9}  {last}".rstrip()


def main(arguments: Sequence[str] | None = None) -> list[Run]:
    """Train in all ways, print a table, assert who learns, save the picture."""
    chosen = options(__doc__, arguments, "loss_scaling.png", steps=(200, "per run"))
    data = digits(chosen.seed)
    results = runs()
    print(f"{'weight':>7}  {'dtype':<9}{'scale':<19}{'zeros':>5}{'last loss':>11}{'accuracy':>10}{'skipped':>9}  scale at the end")
    for run in results:
        columns = train(run, data, 40 if chosen.quick else chosen.steps, chosen.seed)
        print(f"{run.weight:>7g}  {run.dtype:<9}{run.scaling:<19}{columns}", flush=True)
        assert (run.loss[-1] < run.loss[0] / 2) == run.learns, run
    print("zeros: the share of zeros in the gradients of all weights, at the first step; accuracy is that on test digits")
    with picture(chosen.output, 2, "Who learns in 16 bits") as panels:
        for axes, weight in zip(panels, (1e-4, 1e-33), strict=True):
            for run in results:
                if run.weight == weight:
                    axes.semilogy(run.loss, "-" if run.scale is None else "--", linewidth=2, label=f"{run.dtype}, scale {run.scaling}")
            axes.set(xlabel="step", ylabel="mean squared error, training", title=f"a loss of weight {weight:g}")
    return results


if __name__ == "__main__":
    main()
