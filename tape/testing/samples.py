"""Arguments for the rules of the table, drawn from the domains of their records."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tape.graph.kinds import differentiable
from tape.rules import Domain, Example, Rule


def examples_of(record: Rule) -> Sequence[Example]:
    """Examples of a record; an elementwise one without any is the function of its name in ``lax`` on matrices."""
    if record.examples:
        return record.examples
    return (Example(getattr(jax.lax, record.primitive.name), ((2, 3),) * len(record.domain)),)


def intervals_of(record: Rule, example: Example) -> list[Domain]:
    """One interval per argument; a record with fewer repeats its last one."""
    return [record.domain[min(i, len(record.domain) - 1)] for i in range(len(example.shapes))]


def generator(*key: object) -> np.random.Generator:
    """Random numbers that depend on ``key`` only."""
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def draw(record: Rule, example: Example, dtype: Any, shapes: Sequence[tuple[int, ...]] | None = None) -> list[np.ndarray[Any, Any]]:
    """Arguments of ``dtype`` from the record's domain; the imaginary parts of complex ones lie in (0.1, 0.7)."""
    rng = generator(str(record.primitive), example.name, len(example.shapes))
    args = []
    for shape, (low, high) in zip(shapes or example.shapes, intervals_of(record, example), strict=True):
        values = rng.uniform(low, high, shape)
        if jnp.issubdtype(dtype, jnp.complexfloating):
            values = values + 1j * rng.uniform(0.1, 0.7, shape)
        args.append(np.asarray(values, dtype))
    return args


def draw_like(avals: Iterable[Any], *key: object) -> list[np.ndarray[Any, Any] | None]:
    """Numbers of absolute value between 1/2 and 1 in the shapes and dtypes of ``avals``; None where no gradient flows."""
    rng = generator(*key)

    def one(shape: tuple[int, ...]) -> Any:
        return rng.choice((-1.0, 1.0), shape) * rng.uniform(0.5, 1.0, shape)

    return [
        np.asarray(one(a.shape) + (1j * one(a.shape) if jnp.issubdtype(a.dtype, jnp.complexfloating) else 0), a.dtype)
        if differentiable(a)
        else None
        for a in avals
    ]
