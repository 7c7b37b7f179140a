"""K-FAC by hooks
==============

Precondition each layer's gradient with what flows through the layer (Martens and Grosse 2015).

The curvature of a dense layer s = a W is close to the Kronecker product of A = mean(a a^T) and G = mean(g g^T), where g is the derivative of
the loss by the layer's output for labels drawn from the model's own predictions.  The inputs are at hand in the forward; a hook on each output
hands out g in the sweep: no layer class, no second code path.  The gradient becomes A^-1 dW G^-1.

In PyTorch the hooks are the same; in JAX libraries trace the whole loss and match patterns in its jaxpr to find the layers (kfac-jax).

Run it with ``python examples/kfac.py``.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from experiment import Array, options, picture, progress
from sklearn.datasets import load_digits

import tape
import tape.numpy as tnp

WIDTHS = (64, 40, 20, 10)
DAMPING, DECAY, RATE = 0.03, 0.9, 0.1


def forward(weights: Sequence[Any], images: Array) -> list[tuple[Any, Any]]:
    """Inputs and outputs of each layer; the last outputs are class scores, shape (N, 10)."""
    h, layers = tnp.asarray(images), []
    for w in weights:
        inputs = tnp.concatenate([h, tnp.ones((len(images), 1), "float32")], axis=1)  # the last row of W is the bias
        outputs = inputs @ w
        layers.append((inputs, outputs))
        h = tnp.tanh(outputs)
    return layers


def loss_of(scores: Any, labels: Array) -> Any:
    """Mean cross-entropy; labels are classes."""
    return -tape.nn.log_softmax(scores)[np.arange(len(labels)), labels].mean()


class Curvature:
    """Running averages of A and G of every layer."""

    def __init__(self, weights: Sequence[Any]) -> None:
        """Begin with identities."""
        self.inputs = [np.eye(w.shape[0], dtype="float32") for w in weights]
        self.outputs = [np.eye(w.shape[1], dtype="float32") for w in weights]

    def measure(self, weights: Sequence[Any], images: Array, rng: np.random.Generator) -> None:
        """Average over one batch, with labels drawn from the model."""
        layers, flowed = forward(weights, images), []
        for _, outputs in layers:
            outputs.register_hook(flowed.append)  # gets the derivative by this layer's outputs, when the sweep is there: last layers first
        draws = (outputs.detach() + rng.gumbel(size=outputs.shape).astype("float32")).argmax(-1).numpy()
        tape.gradients(loss_of(outputs, draws), list(weights))
        n = len(images)
        for k, (inputs, _) in enumerate(layers):
            a, g = inputs.detach().numpy(), flowed[-1 - k].numpy() * n  # the loss is a mean
            self.inputs[k] = DECAY * self.inputs[k] + (1 - DECAY) * a.T @ a / n
            self.outputs[k] = DECAY * self.outputs[k] + (1 - DECAY) * g.T @ g / n

    def precondition(self, k: int, gradient: Array) -> Array:
        """A^-1 dW G^-1, with damping split between the two in proportion to their traces (section 6.3 of the paper)."""
        a, g = self.inputs[k], self.outputs[k]
        balance = np.sqrt((np.trace(a) / len(a)) / (np.trace(g) / len(g)))
        left = np.linalg.solve(a + balance * DAMPING**0.5 * np.eye(len(a), dtype="float32"), gradient)
        right: Array = np.linalg.solve(g + DAMPING**0.5 / balance * np.eye(len(g), dtype="float32"), left.T).T
        return right


def train(name: str, images: Array, labels: Array, steps: int, seed: int) -> list[float]:
    """Train with momentum, by gradients or preconditioned ones; the losses."""
    rng = np.random.default_rng(seed)
    weights = [tape.Variable((rng.normal(size=(a + 1, b)) * a**-0.5).astype("float32")) for a, b in itertools.pairwise(WIDTHS)]
    momentum = [np.zeros(w.shape, "float32") for w in weights]
    curvature, losses = Curvature(weights), []
    for step in progress(range(steps), name):
        rows = rng.integers(len(images), size=256)
        loss = loss_of(forward(weights, images[rows])[-1][1], labels[rows])
        loss.backward()
        if name == "K-FAC" and (step < 20 or step % 5 == 0):
            curvature.measure(weights, images[rows], rng)
        with tape.no_grad():
            for k, w in enumerate(weights):
                gradient = w.grad.numpy()
                momentum[k] = 0.9 * momentum[k] + (curvature.precondition(k, gradient) if name == "K-FAC" else gradient)
                weights[k] -= (RATE if name == "K-FAC" else 0.3) * momentum[k]  # in place: the Variable stays the same
                w.zero_grad()
        losses.append(loss.detach())
    return [float(v) for v in losses]


def main(arguments: Sequence[str] | None = None) -> dict[str, list[float]]:
    """Train both ways on digits, assert that curvature saves steps, and draw it."""
    chosen = options(__doc__, arguments, "kfac.png")
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16).astype("float32")
    curves = {name: train(name, images, labels, 30 if chosen.quick else 300, chosen.seed) for name in ("momentum", "K-FAC")}
    for name, curve in curves.items():
        print(f"{name:<9} loss {curve[0]:.3f} -> {np.mean(curve[-10:]):.5f}")
    assert np.mean(curves["K-FAC"][-10:]) < (1 if chosen.quick else 0.3) * np.mean(curves["momentum"][-10:])
    with picture(chosen.output, 1, "Digits: gradient and preconditioned gradient") as (axes,):
        for name, curve in curves.items():
            axes.semilogy(np.convolve(curve, np.ones(5) / 5, "valid"), label=name)
        axes.set(xlabel="step", ylabel="cross-entropy")
    return curves


if __name__ == "__main__":
    main()
