"""Dynamic steps: the structure comes from the data, and is never the same again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.workloads import Dynamic, normal

__all__ = ["WORKLOADS"]

WIDTH = 16


# A network over random binary trees.


def _make_tree(rng: np.random.Generator) -> list[Any]:
    return [normal(rng, WIDTH, WIDTH), normal(rng, WIDTH, WIDTH), normal(rng, WIDTH, scale=0.1)]


def _shape(rng: np.random.Generator, count: int) -> Any:
    """Return a random binary tree over so many leaves: None is a leaf, a pair is a node."""
    if count == 1:
        return None
    left = int(rng.integers(1, count))
    return (_shape(rng, left), _shape(rng, count - left))


def _filled(shape: Any, words: list[Any]) -> Any:
    return words.pop() if shape is None else tuple(_filled(part, words) for part in shape)


def _trees(rng: np.random.Generator) -> Iterator[tuple[Any, ...]]:
    met: set[Any] = set()
    while True:
        shape = _shape(rng, int(rng.integers(12, 25)))
        if shape not in met:
            met.add(shape)
            yield (_filled(shape, [normal(rng, WIDTH, scale=1.0) for _ in range(25)]),)


def _tree(xp: Any, p: list[Any], tree: Any) -> Any:
    def loss(p: list[Any]) -> Any:
        def visit(node: Any) -> Any:
            if isinstance(node, tuple):
                return xp.tanh(visit(node[0]) @ p[0] + visit(node[1]) @ p[1] + p[2])
            return node

        top = visit(tree)
        return xp.sum(top * top)

    return xp.value_and_grad(loss, p)


# A recurrent network over sequences of random lengths, one cell of two kinds per item, drawn with the data.


def _sequences(rng: np.random.Generator) -> Iterator[tuple[Any, ...]]:
    met: set[Any] = set()
    while True:
        kinds = tuple(rng.integers(2, size=int(rng.integers(10, 60))).tolist())
        if kinds not in met:
            met.add(kinds)
            yield tuple(normal(rng, WIDTH, scale=1.0) for _ in kinds), kinds


def _sequence(xp: Any, p: list[Any], xs: Any, kinds: tuple[int, ...]) -> Any:
    def loss(p: list[Any]) -> Any:
        h = xs[0]
        for x, kind in zip(xs, kinds, strict=True):
            h = xp.tanh(h @ p[0] + x @ p[1] + p[2]) if kind else 0.5 * h + 0.5 * xp.sin(x * p[2])
        return xp.sum(h * h)

    return xp.value_and_grad(loss, p)


# A fixed point, iterated until it moves less than a tolerance, and the gradient through the iterations.


def _make_fixed_point(rng: np.random.Generator) -> list[Any]:
    w = normal(rng, WIDTH, WIDTH)
    return [(0.9 / np.linalg.norm(w, 2) * w).astype(np.float32), normal(rng, WIDTH, WIDTH), normal(rng, WIDTH, scale=0.1)]


def _problems(rng: np.random.Generator) -> Iterator[tuple[Any, ...]]:
    while True:
        yield normal(rng, WIDTH, scale=float(10 ** rng.uniform(-1, 0.5))), float(10 ** rng.uniform(-5, -1))


def _fixed_point(xp: Any, p: list[Any], x: Any, tolerance: float) -> Any:
    def loss(p: list[Any]) -> Any:
        z, error = x, 1.0
        while float(error) > tolerance:
            new = xp.tanh(z @ p[0] + x @ p[1] + p[2])
            error = xp.max(xp.abs(xp.cut(new) - xp.cut(z)))
            z = new
        return xp.sum(z * z)

    return xp.value_and_grad(loss, p)


WORKLOADS = (
    Dynamic("random trees", _make_tree, _trees, _tree),
    Dynamic("random lengths", _make_tree, _sequences, _sequence),
    Dynamic("while loop", _make_fixed_point, _problems, _fixed_point),
)
