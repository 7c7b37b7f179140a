"""Train a small convolutional network on handwritten digits, define-by-run, with and without a gradient penalty.

The main job of this repository.  Plain Python loops record what they compute on the tape, ``.backward()`` sweeps it, and an optax
optimizer steps; nothing is compiled by hand.  The second run adds the squared norm of d loss / d image to the loss ("double
backpropagation", Drucker and LeCun 1992), so each of its steps differentiates a gradient.  At the end the gradients of both losses
are compared with those of ``jax.grad``, and a picture is saved.

In JAX both losses are functions of all weights that are jitted by hand, and the keys of dropout go through them; PyTorch runs these lines op by
op.  Here the penalty is one line, ``tape.gradients(..., create_graph=True)``, and each step becomes one program by itself.

    python examples/digits.py --output digits.png
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import matplotlib as mpl
import numpy as np
import optax
from experiment import options
from matplotlib import pyplot as plt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import interop.optax
import tape
import tape.numpy as tnp

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

Array = np.ndarray[Any, Any]
Parameters = dict[str, Any]

BATCH = 64
DROPOUT = 0.5  # share of the features that a training step drops
PENALTY = 0.5  # weight of the squared norm of d loss / d image


@dataclass
class Data:
    """Images of shape (N, 8, 8, 1) in [0, 1] and one-hot labels of shape (N, 10)."""

    images: Array
    labels: Array

    def batches(self, rng: np.random.Generator) -> Iterator[tuple[Array, Array]]:
        """Shuffle once and yield full batches: all have one shape, so the tape has one structure."""
        order = rng.permutation(len(self.images))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            yield self.images[chosen], self.labels[chosen]


@dataclass
class Run:
    """One trained model and its learning curves, a point per epoch."""

    name: str
    parameters: Parameters
    loss: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    seconds: float = 0.0


def load(seed: int) -> tuple[Data, Data]:
    """Return training and test digits: 75 % and 25 % of the 1797 that come with scikit-learn."""
    pixels, targets = load_digits(return_X_y=True)
    images = (pixels / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    labels = np.eye(10, dtype=np.float32)[targets]
    parts = train_test_split(images, labels, test_size=0.25, stratify=targets, random_state=seed)
    return Data(parts[0], parts[2]), Data(parts[1], parts[3])


def initialise(seed: int) -> Parameters:
    """Draw the weights of two convolutions and a dense layer; biases start at zero."""
    shapes = {"conv1": (3, 3, 1, 16), "conv2": (3, 3, 16, 32), "dense": (4 * 4 * 32, 10)}
    keys = tape.random.split(tape.random.key(seed), len(shapes))
    parameters: Parameters = {}
    for key, (name, shape) in zip(keys, shapes.items(), strict=True):
        scale = (2 / np.prod(shape[:-1])) ** 0.5
        parameters[name] = tape.Variable(scale * tape.random.normal(key, shape), name=name)
        parameters[f"{name}_bias"] = tape.Variable(tnp.zeros(shape[-1]), name=f"{name}_bias")
    return parameters


def network(p: Parameters, images: Any, key: Any = None, lib: Any = tape) -> Any:
    """Class scores, shape (N, 10); a key drops features at random.  ``lib=jax`` makes the same model a pure JAX function."""
    layout = ("NHWC", "HWIO", "NHWC")
    x = lib.lax.conv_general_dilated(images, p["conv1"], (1, 1), "SAME", dimension_numbers=layout)
    x = lib.nn.silu(x + p["conv1_bias"])
    x = lib.lax.conv_general_dilated(x, p["conv2"], (2, 2), "SAME", dimension_numbers=layout)
    x = lib.nn.silu(x + p["conv2_bias"])
    x = x.reshape(len(images), -1)
    if key is not None:
        x = x * lib.random.bernoulli(key, 1 - DROPOUT, x.shape) / (1 - DROPOUT)
    return x @ p["dense"] + p["dense_bias"]


def cross_entropy(p: Parameters, images: Any, labels: Any, key: Any = None, lib: Any = tape) -> Any:
    """Mean over the batch of minus the log-probability of the right class."""
    return -(labels * lib.nn.log_softmax(network(p, images, key, lib))).sum(-1).mean()


def penalised(p: Parameters, images: Any, labels: Any, key: Any) -> tuple[Any, Any]:
    """Loss with gradient penalty, and the loss alone; the inner gradient is recorded, so it can be differentiated like any value."""
    x = tape.Variable(images)
    loss = cross_entropy(p, x, labels, key)
    slope = tape.gradients(loss, x, create_graph=True)
    return loss + PENALTY * len(images) * (slope**2).sum(), loss


def train(name: str, seed: int, epochs: int, train_set: Data, test_set: Data, *, penalty: bool) -> Run:
    """Train from scratch and print one line per epoch."""
    print(f"\n{name}\n{'epoch':>5} {'train loss':>11} {'test accuracy':>14} {'seconds':>8}", flush=True)
    run = Run(name, initialise(seed))
    key = tape.random.key(seed)
    rng = np.random.default_rng(seed)
    steps = epochs * (len(train_set.images) // BATCH)
    optimizer = interop.optax.Optimizer(run.parameters, optax.adam(optax.cosine_decay_schedule(4e-3, steps)))
    start = time.perf_counter()
    for epoch in range(1, epochs + 1):
        losses = []
        for images, labels in train_set.batches(rng):
            key, mask = tape.random.split(key)
            if penalty:
                objective, loss = penalised(run.parameters, images, labels, mask)
            else:
                objective = loss = cross_entropy(run.parameters, images, labels, mask)
            objective.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        run.loss.append(float(np.mean([float(x) for x in losses])))
        run.accuracy.append(accuracy(run.parameters, test_set))
        run.seconds = time.perf_counter() - start
        print(f"{epoch:>5} {run.loss[-1]:>11.4f} {run.accuracy[-1]:>14.2%} {run.seconds:>8.1f}", flush=True)
    return run


@tape.no_grad()
def accuracy(p: Parameters, data: Data) -> float:
    """Share of the images whose highest score is the right class."""
    return float((network(p, data.images).argmax(-1) == data.labels.argmax(-1)).mean())


def input_gradients(p: Parameters, data: Data) -> Array:
    """Gradient of each image's loss with respect to its pixels: what the model attends to."""
    x = tape.Variable(data.images)
    loss = len(data.images) * cross_entropy(p, x, data.labels)
    gradients: Array = tape.gradients(loss, x).numpy()
    return gradients[..., 0]


def compare_with_jax(p: Parameters, images: Array, labels: Array, key: Any) -> float:
    """Print how far both gradients are from those of ``jax.grad`` for the same model; return the larger relative distance."""
    arrays = {name: v.value for name, v in p.items()}

    def jax_loss(p: Parameters, x: Any) -> Any:
        return cross_entropy(p, x, labels, key.value, lib=jax)

    def jax_penalised(p: Parameters, x: Any) -> Any:
        return jax_loss(p, x) + PENALTY * len(x) * (jax.grad(jax_loss, argnums=1)(p, x) ** 2).sum()

    print(
        f"\nDistance of {sum(a.size for a in arrays.values())} parameters' gradients from jax.grad\n{'':<20}{'largest':>10}{'relative':>10}"
    )
    worst = 0.0
    for name, ours, theirs in (
        ("plain loss", cross_entropy(p, images, labels, key), jax_loss),
        ("with the penalty", penalised(p, images, labels, key)[0], jax_penalised),
    ):
        gradients = tape.gradients(ours, list(p.values()))
        expected = jax.grad(theirs)(arrays, images)
        flat = np.concatenate([g.numpy().ravel() for g in gradients])
        reference = np.concatenate([np.ravel(expected[key]) for key in p])
        difference = np.abs(flat - reference).max()
        print(f"{name:<20}{difference:>10.1e}{difference / np.abs(reference).max():>10.1e}")
        worst = max(worst, float(difference / np.abs(reference).max()))
    return worst


def draw(runs: Sequence[Run], data: Data, output: Path) -> None:
    """Save learning curves of all runs and maps of d loss / d image for some test digits."""
    figure = plt.figure(figsize=(11, 8), layout="constrained")
    figure.suptitle("Handwritten digits on the tape: plain loss, and with a gradient penalty", fontsize=14)
    upper, lower = np.asarray(figure.subfigures(2, 1, height_ratios=(1.1, 1)))
    left, right = upper.subplots(1, 2)
    for run in runs:
        epochs = range(1, len(run.loss) + 1)
        left.semilogy(epochs, run.loss, label=run.name)
        right.plot(epochs, [100 * (1 - a) for a in run.accuracy], label=f"{run.name}: {run.accuracy[-1]:.1%} right at the end")
    left.set(xlabel="epoch", ylabel="cross-entropy, training", title="Training loss")
    right.set(xlabel="epoch", ylabel="wrong answers, % of test digits", title="Test error", yscale="log")
    right.yaxis.set_major_formatter(mpl.ticker.FormatStrFormatter("%g"))
    for axes in (left, right):
        axes.legend()
        axes.grid(alpha=0.3)
    first = data.labels.argmax(0)  # of each class
    shown = Data(data.images[first], data.labels[first])
    rows = [("test digit", shown.images[..., 0]), *((run.name, input_gradients(run.parameters, shown)) for run in runs)]
    lower.suptitle("d loss / d image: darkening a red pixel raises the loss, a blue one lowers it (each map on its own scale)")
    for row, (axes_row, (label, pictures)) in enumerate(zip(lower.subplots(len(rows), len(first)), rows, strict=True)):
        for axes, picture in zip(axes_row, pictures, strict=True):
            limit = np.abs(picture).max()
            axes.imshow(picture, **({"cmap": "gray_r"} if row == 0 else {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit}))
            axes.set(xticks=[], yticks=[])
        axes_row[0].set_ylabel(label, rotation=0, ha="right", va="center")
    figure.savefig(output, dpi=120)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train both models, compare gradients, assert that both are right about new digits, save the picture."""
    chosen = options(__doc__, arguments, "digits.png", epochs=(40, "passes over the training digits, per model"))
    train_set, test_set = load(chosen.seed)
    epochs = chosen.epochs
    if chosen.quick:
        epochs, train_set = 2, Data(train_set.images[: 4 * BATCH], train_set.labels[: 4 * BATCH])
    print(f"{len(train_set.images)} digits to learn from, {len(test_set.images)} to test on, on {jax.devices()[0].platform}")
    runs = [
        train("plain loss", chosen.seed, epochs, train_set, test_set, penalty=False),
        train("gradient penalty", chosen.seed, epochs, train_set, test_set, penalty=True),
    ]
    distance = compare_with_jax(runs[0].parameters, train_set.images[:BATCH], train_set.labels[:BATCH], tape.random.key(1))
    assert distance < 1e-4
    assert all(run.loss[-1] < run.loss[0] for run in runs)
    assert epochs < 20 or all(run.accuracy[-1] > 0.95 for run in runs)
    draw(runs, test_set, chosen.output)
    print(f"\n{', '.join(f'{r.name} {r.accuracy[-1]:.2%} in {r.seconds:.0f} s' for r in runs)}; picture in {chosen.output}")


if __name__ == "__main__":
    main()
