"""A short step whose structure never repeats, for runs of many of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.workloads import normal

__all__ = ["parameters", "program", "structures"]

LENGTH = 9
OPS = ("sin", "cos", "tanh", "exp", "arctan", "square")  # 6^9 structures of the same length: ten million


def parameters(rng: np.random.Generator) -> list[Any]:
    """Return the parameters of the step."""
    return [normal(rng, 8, scale=0.1), normal(rng, 8, scale=0.1)]


def structures(rng: np.random.Generator) -> Iterator[tuple[int, ...]]:
    """Yield the structures: which op at each place, no two alike."""
    place, count = int(rng.integers(len(OPS) ** LENGTH)), len(OPS) ** LENGTH
    while True:
        place = (place + 7_654_321) % count  # coprime to 6, so it comes back after all the others
        yield tuple(place // len(OPS) ** i % len(OPS) for i in range(LENGTH))


def program(xp: Any, p: list[Any], structure: tuple[int, ...]) -> Any:
    """Run the ops of a structure on bounded values, forwards and backwards."""

    def loss(p: list[Any]) -> Any:
        y = p[0]
        for k in structure:
            y = getattr(xp, OPS[k])(y * p[1])
        return xp.sum(y)

    return xp.value_and_grad(loss, p)
