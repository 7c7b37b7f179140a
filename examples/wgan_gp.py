"""Wasserstein GAN with gradient penalty
=====================================

Generate digits with a Wasserstein GAN whose critic is held to slope one by a gradient penalty (Gulrajani et al. 2017).

The penalty is on the norm of the critic's gradient by its input, between real and generated images; so every step of the critic
differentiates a gradient.  It is one line, ``tape.gradients(..., create_graph=True)``, in a loop that trains two networks in turns.

In JAX the penalty is ``vmap(grad(critic))`` in a function of both networks' weights that is jitted by hand; in PyTorch the code is this one,
and the double sweep costs twice its number of calls.

Run it with ``python examples/wgan_gp.py``.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import optax
from experiment import Array, layers, mosaic, options, picture, progress
from sklearn.datasets import load_digits

import interop.optax
import tape
import tape.numpy as tnp

NOISE, BATCH, PENALTY, CRITIC_STEPS = 16, 64, 10.0, 5


def dense(network: Sequence[tuple[Any, Any]], x: Any) -> Any:
    """Leaky rectifiers between layers."""
    for k, (w, b) in enumerate(network):
        x = (tape.nn.leaky_relu(x, 0.2) if k else x) @ w + b
    return x


def generate(generator: Sequence[tuple[Any, Any]], rng: np.random.Generator, count: int = BATCH) -> Any:
    """Images of shape (count, 64), values in (0, 1)."""
    return tape.nn.sigmoid(dense(generator, rng.normal(size=(count, NOISE)).astype("float32")))


def penalty(critic: Sequence[tuple[Any, Any]], real: Array, generated: Any, rng: np.random.Generator) -> Any:
    """Mean squared distance from 1 of the norm of the critic's gradient, at random points between real and generated images."""
    share = rng.random((len(real), 1)).astype("float32")
    between = tape.Variable((share * real + (1 - share) * generated.detach()).value)
    slope = tape.gradients(dense(critic, between).sum(), between, create_graph=True)
    return ((tnp.sqrt((slope**2).sum(1) + 1e-12) - 1) ** 2).mean()


def main(arguments: Sequence[str] | None = None) -> dict[str, list[float]]:
    """Train both networks, assert that the critic's distance falls, and draw digits."""
    chosen = options(__doc__, arguments, "wgan_gp.png")
    rng = np.random.default_rng(chosen.seed)
    images = (load_digits().data / 16).astype("float32")
    generator, critic = (jax.tree.map(tape.Variable, layers(rng, widths)) for widths in ((NOISE, 128, 128, 64), (64, 128, 128, 1)))
    of_generator, of_critic = (interop.optax.Optimizer(n, optax.adam(5e-4, b1=0.5, b2=0.9)) for n in (generator, critic))
    distances, slopes = [], []
    for _ in progress(range(10 if chosen.quick else 2500), "training"):
        for _ in range(CRITIC_STEPS):
            real, generated = images[rng.integers(len(images), size=BATCH)], generate(generator, rng).detach()
            distance = dense(critic, real).mean() - dense(critic, generated).mean()
            steep = penalty(critic, real, generated, rng)
            (PENALTY * steep - distance).backward()
            of_critic.step()
            of_critic.zero_grad()
        (-dense(critic, generate(generator, rng)).mean()).backward(inputs=generator)  # the critic is a constant here
        of_generator.step()
        of_generator.zero_grad()
        distances.append(distance.detach())
        slopes.append(steep.detach())
    with tape.no_grad():
        shown = generate(generator, rng, 500).numpy()
    curves = {"distance": [float(v) for v in distances], "penalty": [float(v) for v in slopes]}
    nearest = [float(np.linalg.norm(images - image, axis=1).min()) for image in shown]
    random = [float(np.linalg.norm(images - image, axis=1).min()) for image in rng.permuted(images[:500], axis=1)]  # pixels in any order
    last = np.mean(curves["distance"][-20:])
    print(f"estimated distance {max(curves['distance']):.3f} at most, {last:.3f} at last; penalty {curves['penalty'][-1]:.4f}")
    print(f"from the nearest true digit: generated {np.mean(nearest):.2f}, digits with shuffled pixels {np.mean(random):.2f}")
    if not chosen.quick:
        assert last < 0.5 * max(curves["distance"])
        assert np.mean(nearest) < 0.6 * np.mean(random)
    with picture(chosen.output, 2, "A Wasserstein GAN with gradient penalty") as (left, right):
        left.plot(curves["distance"], label="estimated distance")
        left.set(xlabel="step of the generator")
        right.imshow(mosaic(shown[:50].reshape(5, 10, 8, 8)), cmap="gray_r")
        right.set(title="generated digits", xticks=[], yticks=[])
    return curves


if __name__ == "__main__":
    main()
