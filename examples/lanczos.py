"""Stochastic Lanczos quadrature
=============================

The spectrum of a network's Hessian, by stochastic Lanczos quadrature on Hessian-vector products (Ghorbani, Krishnan and Xiao 2019).

The Hessian of a loss with P weights is never made: Lanczos' iteration asks for its products with vectors only, and each is one sweep
through a recorded gradient.  Its small tridiagonal matrices give nodes and weights of a quadrature for the density of eigenvalues.  The
network here is small, so that the answer can be compared with all eigenvalues of the true Hessian (``tape.hessian``).

In JAX a product is ``jvp(grad(loss))``, to be jitted with all data as arguments; in PyTorch the graph of the gradient is kept, as here, and
each product costs a Python sweep.  Here a sweep that comes back is one compiled call.

Run it with ``python examples/lanczos.py``.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optax
from experiment import Array, minimise, options, picture, progress
from sklearn.datasets import load_digits

import tape
import tape.numpy as tnp

SHAPES = ((16, 12), (12, 12), (12, 10))  # weights of the layers, without biases: 456 in all


def loss_of(flat: Any, images: Array, labels: Array) -> Any:
    """Mean cross-entropy of a network whose weights are one vector, plus a little weight decay."""
    h, at = images, 0
    for rows, columns in SHAPES:
        if at:
            h = tnp.tanh(h)
        h = h @ flat[at : at + rows * columns].reshape(rows, columns)
        at += rows * columns
    return -(labels * tape.nn.log_softmax(h)).sum(-1).mean() + 5e-4 * (flat**2).sum()


def train(images: Array, labels: Array, rng: np.random.Generator, steps: int) -> Any:
    """Return trained weights as one Variable."""
    start = np.concatenate([(rng.normal(size=s) * s[0] ** -0.5).ravel() for s in SHAPES])
    flat = tape.Variable(start.astype("float32"))
    minimise(lambda: loss_of(flat, images, labels), [flat], optax.adam(1e-2), steps, "training")
    return flat


def lanczos(product: Callable[[Array], Array], start: Array, turns: int) -> tuple[Array, Array]:
    """Return nodes (Ritz values) and weights of Gauss' quadrature for the spectrum that ``start`` sees; orthogonalised in full."""
    basis, diagonal, beside = [start / np.linalg.norm(start)], [], []
    for _ in range(turns):
        w = product(basis[-1])
        diagonal.append(w @ basis[-1])
        for _ in range(2):  # twice is enough
            w = w - np.array(basis).T @ (np.array(basis) @ w)
        beside.append(np.linalg.norm(w))
        if beside[-1] < 1e-6 * abs(diagonal[0]):
            break
        basis.append(w / beside[-1])
    values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(beside[: len(diagonal) - 1], 1) + np.diag(beside[: len(diagonal) - 1], -1))
    return values, vectors[0] ** 2


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train, find the spectrum by products, compare with the true one, and draw both."""
    chosen = options(__doc__, arguments, "lanczos.png")
    rng = np.random.default_rng(chosen.seed)
    pixels, targets = load_digits(return_X_y=True)
    images = (pixels.reshape(-1, 4, 2, 4, 2).mean((2, 4)).reshape(-1, 16) / 8 - 1).astype("float32")[:1000]
    labels = np.eye(10, dtype="float32")[targets[:1000]]
    flat = train(images, labels, rng, 100 if chosen.quick else 1500)
    slope = tape.gradients(loss_of(flat, images, labels), flat, create_graph=True)  # recorded once: a product is a sweep from it

    def product(v: Array) -> Array:
        return np.asarray(tape.gradients(slope, flat, v.astype("float32"), retain_graph=True).numpy(), np.float64)

    probes, turns = (2, 15) if chosen.quick else (10, 80)
    found = [lanczos(product, rng.choice([-1.0, 1.0], len(flat)), turns) for _ in progress(range(probes), "Lanczos")]
    nodes, weights = np.concatenate([n for n, _ in found]), np.concatenate([w for _, w in found]) / probes
    exact = np.linalg.eigvalsh(np.asarray(tape.hessian(lambda w: loss_of(w, images, labels))(flat).numpy(), np.float64))
    top = float(abs(nodes.max() / exact[-1] - 1))
    trace = float(abs((nodes * weights).sum() * len(flat) / exact.sum() - 1))
    steps = np.concatenate([np.linspace(exact[0], 0, 20), np.geomspace(1e-4, exact[-1], 200)])  # most eigenvalues are near zero
    share = np.array([weights[nodes <= s].sum() for s in steps])
    distance = float(np.abs(share - np.searchsorted(exact, steps, side="right") / len(exact)).max())
    print(f"{len(flat)} weights, {probes * turns} products: largest eigenvalue {nodes.max():.3f} (true {exact[-1]:.3f})")
    print(
        f"its trace by {probes} random vectors is within {trace:.1%} of the true one, the share of eigenvalues below any bound within {distance:.1%}"
    )
    print(f"{(exact < 0).sum()} of the true ones are negative")
    assert top < (0.05 if chosen.quick else 1e-3)
    assert chosen.quick or distance < 0.1
    with picture(chosen.output, 2, f"Hessian of a network with {len(flat)} weights") as (left, right):
        left.plot(steps, np.searchsorted(exact, steps, side="right") / len(exact), label="all eigenvalues")
        left.plot(steps, share, "--", label=f"Lanczos, {probes} probes")
        left.set_xscale("symlog", linthresh=1e-3)
        left.set(xlabel="eigenvalue", ylabel="share below", title="Distribution")
        grid, width = np.linspace(exact[0] - 0.1, exact[-1] + 0.1, 500), 0.02 * (exact[-1] - exact[0])
        bells = np.exp(-0.5 * ((grid[:, None] - nodes) / width) ** 2) / (width * np.sqrt(2 * np.pi))
        right.semilogy(grid, bells @ weights)
        right.set(xlabel="eigenvalue", ylabel="density (smoothed)", ylim=(1e-5, None), title="Density from products")
    return {"top": top, "trace": trace, "distance": distance}


if __name__ == "__main__":
    main()
