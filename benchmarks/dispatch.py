"""Dispatch-bound steps: small arrays, where the time goes to Python and to starting programs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from benchmarks import idioms
from benchmarks.workloads import Workload, normal

__all__ = ["WORKLOADS"]

CHAIN = 100
_SECOND = frozenset({"second order"})


def _layers(rng: np.random.Generator, sizes: list[int]) -> list[Any]:
    return [a for m, n in itertools.pairwise(sizes) for a in (normal(rng, m, n), normal(rng, n, scale=0.1))]


def _mlp(xp: Any, p: list[Any], x: Any) -> Any:
    """Return the output of tanh layers, the last one linear."""
    last = len(p) - 2
    for i in range(0, last, 2):
        x = xp.tanh(x @ p[i] + p[i + 1])
    return x @ p[last] + p[last + 1]


def _mean_square(xp: Any, p: list[Any], x: Any, y: Any) -> Any:
    error = _mlp(xp, p, x) - y
    return xp.mean(error * error)


# Five tanh layers, mean of squares.


def _make_tanh(rng: np.random.Generator, tiny: bool) -> tuple[list[Any], tuple[Any, ...]]:
    n = 4 if tiny else 16
    return _layers(rng, [n] * 6), (normal(rng, n, n, scale=1.0),)


def _tanh_loss(xp: Any, p: list[Any], x: Any) -> Any:
    for i in range(0, len(p), 2):
        x = xp.tanh(x @ p[i] + p[i + 1])
    return xp.mean(x * x)


def _tanh(xp: Any, p: list[Any], x: Any) -> Any:
    return xp.value_and_grad(lambda p: _tanh_loss(xp, p, x), p)


# A chain of sin on 8 floats.


def _make_chain(rng: np.random.Generator, _: bool) -> tuple[list[Any], tuple[Any, ...]]:
    return [normal(rng, 8, scale=0.5)], ()


def _chain_sum(xp: Any, x: Any) -> Any:
    for _ in range(CHAIN):
        x = xp.sin(x)
    return xp.sum(x)


def _chain(xp: Any, p: list[Any]) -> Any:
    return xp.value_and_grad(lambda p: _chain_sum(xp, p[0]), p)


def _chain_twice(xp: Any, p: list[Any]) -> Any:
    return xp.value_and_grad(lambda p: xp.sum(xp.gradients(lambda x: _chain_sum(xp, x), p[0])), p)


# An LSTM, unrolled over 20 steps.


def _make_lstm(rng: np.random.Generator, tiny: bool) -> tuple[list[Any], tuple[Any, ...]]:
    steps, batch, features, hidden = (3, 2, 3, 4) if tiny else (20, 8, 8, 16)
    parameters = [normal(rng, features, 4 * hidden), normal(rng, hidden, 4 * hidden), normal(rng, 4 * hidden, scale=0.1)]
    zeros = np.zeros((batch, hidden), np.float32)
    return parameters, (tuple(normal(rng, batch, features, scale=1.0) for _ in range(steps)), zeros)


def _sigmoid(xp: Any, x: Any) -> Any:
    return 0.5 * xp.tanh(0.5 * x) + 0.5


def _lstm(xp: Any, p: list[Any], xs: Any, zeros: Any) -> Any:
    hidden = zeros.shape[1]

    def loss(p: list[Any]) -> Any:
        h, c = zeros, zeros
        for x in xs:
            z = x @ p[0] + h @ p[1] + p[2]
            i, f, o = (_sigmoid(xp, z[:, k * hidden : (k + 1) * hidden]) for k in range(3))
            c = f * c + i * xp.tanh(z[:, 3 * hidden :])
            h = o * xp.tanh(c)
        return xp.mean(h * h)

    return xp.value_and_grad(loss, p)


# One step of Adam.


def _make_regression(rng: np.random.Generator, tiny: bool) -> tuple[list[Any], tuple[Any, ...]]:
    n = 4 if tiny else 16
    return _layers(rng, [n, n, n, 1]), (normal(rng, n, n, scale=1.0), normal(rng, n, 1, scale=1.0))


# The gradient penalty of a Wasserstein critic.


def _penalty(xp: Any, p: list[Any], real: Any, fake: Any) -> Any:
    def loss(p: list[Any]) -> Any:
        score = xp.mean(_mlp(xp, p, fake)) - xp.mean(_mlp(xp, p, real))
        slope = xp.gradients(lambda x: xp.sum(_mlp(xp, p, x)), xp.leaf(0.5 * (real + fake)))
        norm = xp.sqrt(xp.sum(slope * slope, axis=1) + 1e-12)
        return score + 10.0 * xp.mean((norm - 1.0) ** 2)

    return xp.value_and_grad(loss, p)


def _make_penalty(rng: np.random.Generator, tiny: bool) -> tuple[list[Any], tuple[Any, ...]]:
    n = 4 if tiny else 16
    return _layers(rng, [n, n, n, 1]), (normal(rng, n, n, scale=1.0), normal(rng, n, n, scale=1.0))


# A Hessian times a direction.


def _make_hvp(rng: np.random.Generator, tiny: bool) -> tuple[list[Any], tuple[Any, ...]]:
    parameters, data = _make_regression(rng, tiny)
    return parameters, (*data, [normal(rng, *p.shape, scale=1.0) for p in parameters])


def _hvp(xp: Any, p: list[Any], x: Any, y: Any, tangents: list[Any]) -> Any:
    return xp.hvp(lambda p: _mean_square(xp, p, x, y), p, tangents)


# MAML: two inner steps of gradient descent, and the gradient through them.


def _make_maml(rng: np.random.Generator, tiny: bool) -> tuple[list[Any], tuple[Any, ...]]:
    parameters, support = _make_regression(rng, tiny)
    return parameters, (*support, *(normal(rng, *a.shape, scale=1.0) for a in support))


def _maml(xp: Any, p: list[Any], x: Any, y: Any, x_query: Any, y_query: Any) -> Any:
    def loss(p: list[Any]) -> Any:
        for _ in range(2):
            gradients = xp.gradients(lambda p: _mean_square(xp, p, x, y), p)
            p = [w - 0.1 * g for w, g in zip(p, gradients, strict=True)]
        return _mean_square(xp, p, x_query, y_query)

    return xp.value_and_grad(loss, p)


WORKLOADS = (
    Workload("tanh MLP 5x16x16", _make_tanh, _tanh),
    Workload("chain of 100 sin", _make_chain, _chain),
    Workload("chain, double backprop", _make_chain, _chain_twice, needs=_SECOND),
    Workload("LSTM, 20 steps", _make_lstm, _lstm),
    Workload("SGD step", _make_regression, _mean_square, trains=True, optimizer="sgd", needs=frozenset({"optimizer"})),
    Workload("Adam step", _make_regression, _mean_square, trains=True, needs=frozenset({"optimizer"})),
    Workload("gradient penalty", _make_penalty, _penalty, needs=_SECOND),
    Workload("Hessian-vector product", _make_hvp, _hvp, needs=_SECOND),
    Workload("MAML, 2 inner steps", _make_maml, _maml, needs=_SECOND),
    *idioms.WORKLOADS,
)
