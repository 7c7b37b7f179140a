"""Compute-bound objectives of fitting, after those of ADBench: bundle adjustment, and a mixture of Gaussians."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks.workloads import Workload, normal

__all__ = ["WORKLOADS"]


# Bundle adjustment: cameras (rotation, centre, focal length, principal point, two of radial distortion) see points.


def _make_bundle(rng: np.random.Generator, tiny: bool) -> tuple[list[Any], tuple[Any, ...]]:
    cameras, points, seen = (2, 3, 5) if tiny else (49, 7776, 31843)
    camera = np.concatenate([normal(rng, cameras, 3, scale=0.2), normal(rng, cameras, 3, scale=0.3), normal(rng, cameras, 5, scale=0.1)], 1)
    camera[:, 6] += 1
    point = normal(rng, points, 3, scale=0.3) + np.array([0, 0, 3], np.float32)
    by, what = rng.integers(cameras, size=seen).astype(np.int32), rng.integers(points, size=seen).astype(np.int32)
    return [camera, point, np.ones(seen, np.float32) * 0.9], (by, what, normal(rng, seen, 2, scale=0.1))


def _rotated(xp: Any, rotation: Any, x: Any) -> Any:
    """Rotate vectors by the angle that is the length of another one, around that (Rodrigues)."""
    square = xp.sum(rotation * rotation, axis=1, keepdims=True) + 1e-12
    angle = xp.sqrt(square)
    cosine, sine = xp.cos(angle), xp.sin(angle)
    axis = rotation / angle
    a, b, c = axis[:, 0], axis[:, 1], axis[:, 2]
    u, v, w = x[:, 0], x[:, 1], x[:, 2]
    across = xp.stack([b * w - c * v, c * u - a * w, a * v - b * u], axis=1)
    return x * cosine + across * sine + axis * (xp.sum(axis * x, axis=1, keepdims=True) * (1.0 - cosine))


def _bundle(xp: Any, p: list[Any], by: Any, what: Any, features: Any) -> Any:
    def loss(p: list[Any]) -> Any:
        camera, point = p[0][by], p[1][what]
        x = _rotated(xp, camera[:, 0:3], point - camera[:, 3:6])
        flat = x[:, 0:2] / x[:, 2:3]
        square = xp.sum(flat * flat, axis=1, keepdims=True)
        bent = flat * (1.0 + camera[:, 9:10] * square + camera[:, 10:11] * square * square)
        projected = bent * camera[:, 6:7] + camera[:, 7:9]
        error = p[2][:, None] * (projected - features)
        weight = 1.0 - p[2] * p[2]
        return xp.sum(error * error) + xp.sum(weight * weight)

    return xp.value_and_grad(loss, p)


# A mixture of Gaussians, each with the inverse Cholesky factor of its covariance.


def _make_mixture(rng: np.random.Generator, tiny: bool) -> tuple[list[Any], tuple[Any, ...]]:
    n, kinds, width = (4, 2, 3) if tiny else (1000, 10, 16)
    parameters = [normal(rng, kinds, scale=1.0), normal(rng, kinds, width, scale=1.0), normal(rng, kinds, width, scale=0.2)]
    return [*parameters, normal(rng, kinds, width, width, scale=0.1)], (
        normal(rng, n, width, scale=1.0),
        np.tril(np.ones((width, width), np.float32), -1),
    )


def _mixture(xp: Any, p: list[Any], x: Any, below: Any) -> Any:
    n, width = x.shape

    def loss(p: list[Any]) -> Any:
        alphas, means, logs, corners = p
        diagonal = xp.exp(logs)
        centered = x[:, None, :] - means[None, :, :]
        scaled = centered * diagonal + xp.einsum("kij,nkj->nki", corners * below, centered)
        inner = alphas + xp.sum(logs, axis=1) - 0.5 * xp.sum(scaled * scaled, axis=2)
        likelihood = xp.sum(_logsumexp(xp, inner, 1)) - n * _logsumexp(xp, alphas, 0)
        prior = 0.5 * (xp.sum(diagonal * diagonal) + xp.sum((corners * below) ** 2)) - xp.sum(logs)
        return likelihood - n * width * 0.5 * math.log(2 * math.pi) + prior

    return xp.value_and_grad(loss, p)


def _logsumexp(xp: Any, x: Any, axis: int) -> Any:
    return xp.log(xp.sum(xp.exp(x), axis=axis))


WORKLOADS = (
    Workload("bundle adjustment", _make_bundle, _bundle),
    Workload("mixture of Gaussians", _make_mixture, _mixture),
)
