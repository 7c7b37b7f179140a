"""Digits, with a gradient penalty
===============================

Train a small convolutional network on handwritten digits, define-by-run, with and without a gradient penalty.

Plain Python loops record what they compute on the tape, ``.backward()`` sweeps it, and an optax optimizer steps.  The second run adds the
squared norm of d loss / d image to the loss ("double backpropagation", Drucker and LeCun 1992), so each of its steps differentiates a
gradient.  At the end the gradient of the second loss is compared with that of ``jax.grad``, at both networks.

In JAX both losses are functions of all weights that are jitted by hand; PyTorch runs these lines op by op.  Here the penalty is one line,
``tape.gradients(..., create_graph=True)``, and each step becomes one program by itself.

Run it with ``python examples/digits.py --output digits.png``.
"""

import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import optax
from experiment import Array, digits, distance, mosaic, options, picture

import interop.optax
import tape

BATCH, PENALTY = 64, 0.5  # digits in a step, and the weight of the squared norm of d loss / d image


def initialise(rng: np.random.Generator) -> dict[str, Any]:
    """Draw the weights of two convolutions and a dense layer; biases start at zero."""
    shapes = {"conv1": (3, 3, 1, 16), "conv2": (3, 3, 16, 32), "dense": (4 * 4 * 32, 10)}
    start = {name: rng.normal(size=shape) * (2 / np.prod(shape[:-1])) ** 0.5 for name, shape in shapes.items()}
    start |= {f"{name}_bias": np.zeros(shape[-1]) for name, shape in shapes.items()}
    return {name: tape.Variable(value.astype("float32"), name=name) for name, value in start.items()}


def network(p: dict[str, Any], images: Any, lib: Any = tape) -> Any:
    """Class scores, shape (N, 10); ``lib=jax`` makes the same model a pure JAX function."""
    x = images.reshape(-1, 8, 8, 1)
    for name, stride in ("conv1", 1), ("conv2", 2):
        x = lib.lax.conv_general_dilated(x, p[name], (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = lib.nn.silu(x + p[f"{name}_bias"])
    return x.reshape(len(images), -1) @ p["dense"] + p["dense_bias"]


def cross_entropy(p: dict[str, Any], images: Any, labels: Any, lib: Any = tape) -> Any:
    """Mean over the batch of minus the log-probability of the right class."""
    return -(labels * lib.nn.log_softmax(network(p, images, lib))).sum(-1).mean()


def plain(p: dict[str, Any], images: Any, labels: Any) -> tuple[Any, Any]:
    """What is trained, and the loss: here they are one."""
    return (cross_entropy(p, images, labels),) * 2


def penalised(p: dict[str, Any], images: Any, labels: Any) -> tuple[Any, Any]:
    """Loss with gradient penalty, and the loss alone; the inner gradient is recorded, so it can be differentiated like any value."""
    x = tape.Variable(images)
    loss = cross_entropy(p, x, labels)
    slope = tape.gradients(loss, x, create_graph=True)
    return loss + PENALTY * len(images) * (slope**2).sum(), loss


def train(objective: Any, data: Sequence[Array], epochs: int, seed: int) -> tuple[dict[str, Any], list[float], list[float]]:
    """Train from scratch; print one line per epoch, and return the weights, losses, and shares of test digits that are right."""
    print(f"{'epoch':>5} {'train loss':>11} {'test accuracy':>14} {'seconds':>8}")
    images, labels, test_images, test_labels = data
    rng, start = np.random.default_rng(seed), time.perf_counter()
    p, curve, right = initialise(rng), [], []
    optimizer = interop.optax.Optimizer(p, optax.adam(optax.cosine_decay_schedule(4e-3, epochs * (len(images) // BATCH))))
    for epoch in range(1, epochs + 1):
        losses = []
        for rows in rng.permutation(len(images))[: len(images) // BATCH * BATCH].reshape(-1, BATCH):
            trained, loss = objective(p, images[rows], labels[rows])
            trained.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        with tape.no_grad():
            right.append(float((network(p, test_images).argmax(-1) == test_labels.argmax(-1)).mean()))
        curve.append(float(np.mean([float(x) for x in losses])))
        print(f"{epoch:>5} {curve[-1]:>11.4f} {right[-1]:>14.2%} {time.perf_counter() - start:>8.1f}", flush=True)
    return p, curve, right


def distance_from_jax(p: dict[str, Any], images: Array, labels: Array) -> float:
    """Return how far the gradient of the penalised loss is from that of ``jax.grad`` for the same model, relative to the largest slope."""

    def in_jax(p: dict[str, Any]) -> Any:
        loss, slope = jax.value_and_grad(cross_entropy, argnums=1)(p, images, labels, jax)
        return loss + PENALTY * len(images) * (slope**2).sum()

    return distance(tape.grad(lambda p: penalised(p, images, labels)[0])(p), jax.grad(in_jax)({name: v.value for name, v in p.items()}))


def main(arguments: Sequence[str] | None = None) -> None:
    """Train both models, assert that gradients are JAX's and that both are right about new digits, and draw what they look at."""
    chosen = options(__doc__, arguments, "digits.png", epochs=(40, "passes over the training digits, per model"))
    data, epochs = digits(chosen.seed), chosen.epochs
    if chosen.quick:
        data, epochs = (data[0][: 4 * BATCH], data[1][: 4 * BATCH], *data[2:]), 2
    print(f"{len(data[0])} digits to learn from, {len(data[2])} to test on, on {jax.devices()[0].platform}")
    shown, maps = data[2][data[3].argmax(0)[:5]], []  # the first of each class below 5
    with picture(chosen.output, 3, "Handwritten digits on the tape: plain loss, and with a gradient penalty") as (left, middle, right):
        for name, objective in ("plain loss", plain), ("gradient penalty", penalised):
            print(f"\n{name}")
            p, curve, accuracy = train(objective, data, epochs, chosen.seed)
            apart = distance_from_jax(p, data[0][:BATCH], data[1][:BATCH])
            print(f"{name}: {accuracy[-1]:.2%} of new digits right; gradients within {apart:.1e} of jax.grad, relative")
            assert apart < 1e-4
            assert curve[-1] < curve[0]
            assert epochs < 20 or accuracy[-1] > 0.95
            left.semilogy(range(1, epochs + 1), curve, label=name)
            middle.semilogy(range(1, epochs + 1), [100 * (1 - a) for a in accuracy], label=f"{name}: {accuracy[-1]:.1%} right at the end")
            slope = tape.grad(cross_entropy, argnums=1)(p, shown, np.eye(10, dtype="float32")[:5]).numpy()
            maps.append(slope / abs(slope).max(1, keepdims=True))
        left.set(xlabel="epoch", ylabel="cross-entropy, training")
        middle.set(xlabel="epoch", ylabel="wrong answers, % of test digits")
        right.imshow(mosaic(shown.reshape(1, 5, 8, 8)), cmap="gray_r", extent=(0, 50, 20, 30))
        right.imshow(mosaic(np.reshape(maps, (2, 5, 8, 8))), cmap="RdBu_r", extent=(0, 50, 0, 20))
        right.set(xticks=[], ylim=(0, 30), xlabel="d loss / d pixel: darkening a red one raises the loss", title="what they look at")
        right.set_yticks([25, 15, 5], ["test digit", "plain", "penalty"])


if __name__ == "__main__":
    main()
