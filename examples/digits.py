"""Train a small convolutional network on handwritten digits, define-by-run, with and without a gradient penalty.

The main job of this repository.  Plain Python loops record what they compute on the tape, ``.backward()`` sweeps it, and an optax
optimizer steps; nothing is compiled by hand.  The second run adds the squared norm of d loss / d image to the loss ("double
backpropagation", Drucker and LeCun 1992), so each of its steps differentiates a gradient.  At the end the gradient of the second loss
is compared with that of ``jax.grad``, at both networks, and a picture is saved.

In JAX both losses are functions of all weights that are jitted by hand, and the keys of dropout go through them; PyTorch runs these lines op by
op.  Here the penalty is one line, ``tape.gradients(..., create_graph=True)``, and each step becomes one program by itself.

    python examples/digits.py --output digits.png
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax
from experiment import digits, mosaic, options, picture

import interop.optax
import tape
import tape.numpy as tnp

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = np.ndarray[Any, Any]
Parameters = dict[str, Any]

BATCH = 64
DROPOUT = 0.5  # share of the features that a training step drops
PENALTY = 0.5  # weight of the squared norm of d loss / d image


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


def train(name: str, data: Sequence[Array], epochs: int, seed: int) -> tuple[Parameters, list[float], list[float]]:
    """Train from scratch; print one line per epoch, and return the weights, losses, and shares of test digits that are right."""
    print(f"\n{name}\n{'epoch':>5} {'train loss':>11} {'test accuracy':>14} {'seconds':>8}")
    images, labels, test_images, test_labels = data
    p, key, rng, start = initialise(seed), tape.random.key(seed), np.random.default_rng(seed), time.perf_counter()
    optimizer = interop.optax.Optimizer(p, optax.adam(optax.cosine_decay_schedule(4e-3, epochs * (len(images) // BATCH))))
    curve, right = [], []
    for epoch in range(1, epochs + 1):
        losses = []
        for rows in rng.permutation(len(images))[: len(images) // BATCH * BATCH].reshape(-1, BATCH):
            key, mask = tape.random.split(key)
            if name == "gradient penalty":
                objective, loss = penalised(p, images[rows], labels[rows], mask)
            else:
                objective = loss = cross_entropy(p, images[rows], labels[rows], mask)
            objective.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        with tape.no_grad():
            right.append(float((network(p, test_images).argmax(-1) == test_labels.argmax(-1)).mean()))
        curve.append(float(np.mean([float(x) for x in losses])))
        print(f"{epoch:>5} {curve[-1]:>11.4f} {right[-1]:>14.2%} {time.perf_counter() - start:>8.1f}", flush=True)
    return p, curve, right


def distance_from_jax(p: Parameters, images: Array, labels: Array, key: Any) -> float:
    """Return how far the gradient of the penalised loss is from that of ``jax.grad`` for the same model, relative to the largest slope."""

    def loss(p: Parameters, x: Any) -> Any:
        return cross_entropy(p, x, labels, key.value, lib=jax)

    def with_penalty(p: Parameters, x: Any) -> Any:
        return loss(p, x) + PENALTY * len(x) * (jax.grad(loss, argnums=1)(p, x) ** 2).sum()

    expected = jax.grad(with_penalty)({name: v.value for name, v in p.items()}, images)
    found = dict(zip(p, tape.gradients(penalised(p, images, labels, key)[0], list(p.values())), strict=True))
    return max(float(abs(found[n].value - g).max()) for n, g in expected.items()) / max(float(abs(g).max()) for g in expected.values())


def main(arguments: Sequence[str] | None = None) -> None:
    """Train both models, compare gradients, assert that both are right about new digits, save the picture."""
    chosen = options(__doc__, arguments, "digits.png", epochs=(40, "passes over the training digits, per model"))
    images, labels, test_images, test_labels = digits(chosen.seed)
    images, test_images = (pixels.reshape(-1, 8, 8, 1) for pixels in (images, test_images))
    epochs = 2 if chosen.quick else chosen.epochs
    if chosen.quick:
        images, labels = images[: 4 * BATCH], labels[: 4 * BATCH]
    print(f"{len(images)} digits to learn from, {len(test_images)} to test on, on {jax.devices()[0].platform}")
    shown = test_images[test_labels.argmax(0)[:5]]  # the first of each class below 5
    maps = []
    with picture(chosen.output, 3, "Handwritten digits on the tape: plain loss, and with a gradient penalty") as (left, middle, right):
        for name in ("plain loss", "gradient penalty"):
            p, curve, accuracy = train(name, (images, labels, test_images, test_labels), epochs, chosen.seed)
            distance = distance_from_jax(p, images[:BATCH], labels[:BATCH], tape.random.key(1))
            print(f"{name}: {accuracy[-1]:.2%} of new digits right; gradients within {distance:.1e} of jax.grad, relative")
            assert distance < 1e-4
            assert curve[-1] < curve[0]
            assert epochs < 20 or accuracy[-1] > 0.95
            left.semilogy(range(1, epochs + 1), curve, label=name)
            middle.semilogy(range(1, epochs + 1), [100 * (1 - a) for a in accuracy], label=f"{name}: {accuracy[-1]:.1%} right at the end")
            x = tape.Variable(shown)
            slope = tape.gradients(cross_entropy(p, x, np.eye(10, dtype="float32")[:5]), x).numpy()
            maps.append(slope / abs(slope).max((1, 2, 3), keepdims=True))
        left.set(xlabel="epoch", ylabel="cross-entropy, training")
        middle.set(xlabel="epoch", ylabel="wrong answers, % of test digits")
        right.imshow(mosaic(np.stack([shown])), cmap="gray_r", extent=(0, 50, 20, 30))
        right.imshow(mosaic(np.stack(maps)), cmap="RdBu_r", extent=(0, 50, 0, 20))
        right.set(
            xticks=[], ylim=(0, 30), xlabel="d loss / d pixel: darkening a red one raises the loss", title="what the networks look at"
        )
        right.set_yticks([25, 15, 5], ["test digit", "plain", "penalty"])


if __name__ == "__main__":
    main()
