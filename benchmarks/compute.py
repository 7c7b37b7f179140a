"""Compute-bound steps: arrays so large that XLA's work decides."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from benchmarks import fitting
from benchmarks.workloads import Workload, normal

__all__ = ["LOOKED", "WORKLOADS"]


# A wide MLP with softmax cross-entropy.


def _make_wide(rng: np.random.Generator, tiny: bool) -> tuple[list[Any], tuple[Any, ...]]:
    batch, sizes = (3, [5, 6, 4]) if tiny else (256, [512, 1024, 1024, 10])
    parameters = [a for m, n in itertools.pairwise(sizes) for a in (normal(rng, m, n), normal(rng, n, scale=0.1))]
    return parameters, (normal(rng, batch, sizes[0], scale=1.0), _one_hot(rng, batch, sizes[-1]))


def _one_hot(rng: np.random.Generator, batch: int, classes: int) -> Any:
    return np.eye(classes, dtype=np.float32)[rng.integers(classes, size=batch)]


def _cross_entropy(xp: Any, logits: Any, labels: Any) -> Any:
    shifted = logits - xp.sum(logits * labels, axis=-1, keepdims=True)
    return xp.mean(xp.log(xp.sum(xp.exp(shifted), axis=-1)))


def _wide(xp: Any, p: list[Any], x: Any, labels: Any) -> Any:
    def loss(p: list[Any]) -> Any:
        h = x
        for i in range(0, len(p) - 2, 2):
            h = xp.relu(h @ p[i] + p[i + 1])
        return _cross_entropy(xp, h @ p[-2] + p[-1], labels)

    return xp.value_and_grad(loss, p)


# A convolutional network: two convolutions with pooling, and a linear layer.


def _make_cnn(rng: np.random.Generator, tiny: bool) -> tuple[list[Any], tuple[Any, ...]]:
    batch, side, first, second = (2, 8, 2, 3) if tiny else (32, 32, 16, 32)
    shapes = [(first, 3, 3, 3), (second, first, 3, 3)]
    kernels = [normal(rng, *s, scale=float(np.prod(s[1:])) ** -0.5) for s in shapes]
    parameters = [kernels[0], normal(rng, first, 1, 1, scale=0.1), kernels[1], normal(rng, second, 1, 1, scale=0.1)]
    parameters += [normal(rng, second * (side // 4) ** 2, 10), normal(rng, 10, scale=0.1)]
    return parameters, (normal(rng, batch, 3, side, side, scale=1.0), _one_hot(rng, batch, 10))


def _cnn(xp: Any, p: list[Any], images: Any, labels: Any) -> Any:
    def loss(p: list[Any]) -> Any:
        h = xp.max_pool(xp.relu(xp.conv(images, p[0]) + p[1]))
        h = xp.max_pool(xp.relu(xp.conv(h, p[2]) + p[3]))
        return _cross_entropy(xp, h.reshape((h.shape[0], -1)) @ p[4] + p[5], labels)

    return xp.value_and_grad(loss, p)


# One block of a transformer, pre-norm, causal.


def make_transformer(rng: np.random.Generator, tiny: bool) -> tuple[list[Any], tuple[Any, ...]]:
    """Return the parameters of one block, and a batch with its mask."""
    batch, length, width = (2, 4, 8) if tiny else (8, 64, 128)
    return block(rng, width), (normal(rng, batch, length, width, scale=1.0), np.triu(np.full((length, length), -1e9, np.float32), 1))


def block(rng: np.random.Generator, width: int) -> list[Any]:
    """Return the parameters of one block."""
    vectors = [np.ones(width, np.float32), np.zeros(width, np.float32)] * 2
    return [*(normal(rng, width, n) for n in (3 * width, width, 4 * width)), normal(rng, 4 * width, width), *vectors]


def _normalized(xp: Any, x: Any, gain: Any, shift: Any) -> Any:
    centered = x - xp.mean(x, axis=-1, keepdims=True)
    return centered / xp.sqrt(xp.mean(centered * centered, axis=-1, keepdims=True) + 1e-5) * gain + shift


def transform(xp: Any, p: list[Any], x: Any, mask: Any) -> Any:
    """Return the output of one block with four heads."""
    batch, length, width = x.shape
    split = (batch, length, 4, width // 4)
    inside, outside, up, down, gain, shift, gain_up, shift_up = p
    z = _normalized(xp, x, gain, shift) @ inside
    q, k, v = (z[:, :, i * width : (i + 1) * width].reshape(split) for i in range(3))
    weights = xp.softmax(xp.einsum("bqhd,bkhd->bhqk", q, k) * (width // 4) ** -0.5 + mask)
    x = x + xp.einsum("bhqk,bkhd->bqhd", weights, v).reshape((batch, length, width)) @ outside
    return x + xp.gelu(_normalized(xp, x, gain_up, shift_up) @ up) @ down


def _transformer(xp: Any, p: list[Any], x: Any, mask: Any) -> Any:
    def loss(p: list[Any]) -> Any:
        y = transform(xp, p, x, mask)
        return xp.mean(y * y)

    return xp.value_and_grad(loss, p)


# A recurrent network in one scan.


def _make_scan(rng: np.random.Generator, tiny: bool) -> tuple[list[Any], tuple[Any, ...]]:
    length, batch, hidden = (4, 2, 3) if tiny else (64, 32, 128)
    parameters = [normal(rng, hidden, hidden), normal(rng, hidden, hidden), normal(rng, hidden, scale=0.1)]
    return parameters, (normal(rng, length, batch, hidden, scale=1.0), np.zeros((batch, hidden), np.float32))


def _scan(xp: Any, p: list[Any], xs: Any, start: Any) -> Any:
    def loss(p: list[Any]) -> Any:
        def cell(h: Any, x: Any) -> tuple[Any, Any]:
            h = xp.tanh(x @ p[0] + h @ p[1] + p[2])
            return h, h

        last, outputs = xp.scan(cell, start, xs)
        return xp.mean(outputs * outputs) + xp.mean(last)

    return xp.value_and_grad(loss, p)


# Regression by a Gaussian process: the negative log-likelihood over its hyperparameters.


def _make_process(rng: np.random.Generator, tiny: bool) -> tuple[list[Any], tuple[Any, ...]]:
    n, features = (6, 2) if tiny else (400, 4)
    x = normal(rng, n, features, scale=1.0)
    parameters = [np.zeros(features, np.float32), np.zeros((), np.float32), np.full((), -2.0, np.float32)]
    return parameters, (x, np.sin(x.sum(axis=1)) + normal(rng, n, scale=0.1), np.eye(n, dtype=np.float32))


def _process(xp: Any, p: list[Any], x: Any, y: Any, eye: Any) -> Any:
    def loss(p: list[Any]) -> Any:
        scaled = x * xp.exp(p[0])
        squares = xp.sum(scaled * scaled, axis=1)
        distances = squares[:, None] + squares[None, :] - 2.0 * (scaled @ scaled.T)
        kernel = xp.exp(p[1]) * xp.exp(-0.5 * distances) + xp.exp(p[2]) * eye
        factor = xp.cholesky(kernel)
        solved = xp.solve_triangular(factor, y)
        return 0.5 * xp.sum(solved * solved) + xp.sum(xp.log(xp.diagonal(factor)))

    return xp.value_and_grad(loss, p)


WORKLOADS = (
    Workload("wide MLP", _make_wide, _wide),
    Workload("CNN", _make_cnn, _cnn, needs=frozenset({"convolution"})),
    Workload("transformer block", make_transformer, _transformer),
    Workload("scan RNN", _make_scan, _scan),
    *fitting.WORKLOADS,
    Workload("Gaussian process", _make_process, _process, needs=frozenset({"linear algebra"})),
)
LOOKED = frozenset({"CNN", "transformer block"})  # where the cost of looking first has its own target
