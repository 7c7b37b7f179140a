"""What the examples of this folder share: command line, data and weights, the training loop, a distance, and the file of their picture."""

from __future__ import annotations

import argparse
import contextlib
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

import interop
import tape.numpy as tnp
from tape.terminal.progress import progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import optax

__all__ = ["Array", "cpu_devices", "dense", "digits", "distance", "layers", "minimise", "mosaic", "options", "picture", "progress"]

Array = np.ndarray[Any, Any]


def options(doc: str | None, arguments: Sequence[str] | None, picture: str, **numbers: tuple[float, str]) -> argparse.Namespace:
    """Read the command line of an example: ``--quick``, ``--seed``, ``--output`` and ``numbers`` of its own, each with what it says.

    The first line of ``doc`` describes it.
    """
    mpl.use("Agg")  # nothing is shown on a screen
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    for name, (default, says) in numbers.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{says} (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of whatever is drawn at random (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path(picture), help="where to save the picture (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a few steps only, to see that everything works")
    return parser.parse_args(arguments)


def cpu_devices(count: int) -> None:
    """Let ``jax.devices()`` be that many CPU devices; JAX must not have made an array yet."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", count)


def digits(seed: int) -> tuple[Array, Array, Array, Array]:
    """Return handwritten digits, pixels in [0, 1] and one-hot labels: 75 % of the 1797 of scikit-learn, and the rest, to test on."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - most examples do without scikit-learn
    from sklearn.model_selection import train_test_split  # noqa: PLC0415

    pixels, targets = load_digits(return_X_y=True)
    data = (pixels / 16).astype("float32"), np.eye(10, dtype="float32")[targets]
    images, test_images, labels, test_labels = train_test_split(*data, test_size=0.25, stratify=targets, random_state=seed)
    return images, labels, test_images, test_labels


def layers(rng: np.random.Generator, widths: Sequence[int], gain: float = 2.0, dtype: str = "float32") -> list[tuple[Array, Array]]:
    """Draw weights of variance ``gain / inputs`` for each dense layer, and biases of zero."""
    return [((rng.normal(size=(a, b)) * (gain / a) ** 0.5).astype(dtype), np.zeros(b, dtype)) for a, b in itertools.pairwise(widths)]


def dense(weights: Sequence[tuple[Any, Any]], x: Any) -> Any:
    """Apply dense layers, with tanh between them, to ``x`` of shape (..., inputs)."""
    for w, b in weights[:-1]:
        x = tnp.tanh(x @ w + b)
    w, b = weights[-1]
    return x @ w + b


def minimise(loss: Callable[[], Any], parameters: Any, by: optax.GradientTransformation, steps: int, doing: str) -> list[float]:
    """Train ``parameters`` beside a bar of progress that says what it is ``doing``; return the losses of all steps."""
    optimizer = interop.optax.Optimizer(parameters, by)
    losses = []
    for _ in progress(range(steps), doing):
        now = loss()
        now.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(now.detach())
    return [float(value) for value in losses]


def distance(found: Any, expected: Any) -> float:
    """Return the largest difference between the arrays of two pytrees, relative to the largest number in the second."""
    pairs = list(zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True))
    return float(np.max([float(abs(a - b).max()) for a, b in pairs]) / np.max([float(abs(b).max()) for _, b in pairs]))


def mosaic(images: Array) -> Array:
    """Lay images of shape (rows, columns, height, width, ...) beside each other, one pixel apart."""
    apart = np.pad(images.reshape(images.shape[:4]), ((0, 0), (0, 0), (1, 1), (1, 1)))
    rows, columns, height, width = apart.shape
    return apart.transpose(0, 2, 1, 3).reshape(rows * height, columns * width)


@contextlib.contextmanager
def picture(output: Path, columns: int, title: str) -> Iterator[Any]:
    """Give axes beside each other to draw on, and save them."""
    figure, axes = plt.subplots(1, columns, figsize=(5.2 * columns, 4.4), layout="constrained", squeeze=False)
    figure.suptitle(title)
    try:
        yield axes[0]
        for each in axes[0]:
            if each.get_legend_handles_labels()[0]:
                each.legend()
            each.grid(alpha=0.3)
        figure.savefig(output, dpi=120)
        print(f"picture in {output}")
    finally:
        plt.close(figure)
