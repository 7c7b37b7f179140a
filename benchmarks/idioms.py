"""Dispatch-bound steps in the idioms of real code: what stands between the large operations of a program, one idiom per workload."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workloads import ARRAYS, NUMPY, Workload, normal

__all__ = ["WORKLOADS"]

ROUNDS = 50
KEEP = 0.9


def _size(tiny: bool) -> int:
    return 4 if tiny else 16


def _square(rng: np.random.Generator, tiny: bool) -> tuple[list[Any], tuple[Any, ...]]:
    """Return a matrix and a vector as parameters, and a matrix as data."""
    n = _size(tiny)
    return [normal(rng, n, n), normal(rng, n, scale=0.1)], (normal(rng, n, n, scale=1.0),)


# Two hundred operations, among them those with a number and with an array.


def _make_mixed(rng: np.random.Generator, _: bool) -> tuple[list[Any], tuple[Any, ...]]:
    return [normal(rng, 8, scale=0.5)], (normal(rng, 8, scale=0.1),)


def _mixed(xp: Any, p: list[Any], shift: Any) -> Any:
    def loss(p: list[Any]) -> Any:
        x = p[0]
        for _ in range(ROUNDS):
            x = xp.tanh(xp.sin(x) * 1.1 + shift)
        return xp.sum(x)

    return xp.value_and_grad(loss, p)


# Slices and single items.


def _slices(xp: Any, p: list[Any], x: Any) -> Any:
    half = x.shape[1] // 2

    def loss(p: list[Any]) -> Any:
        h = x @ p[0]
        left, right = h[:, :half], h[:, half:]
        h = xp.tanh(left) * right + p[1][None, :half]
        steps = h[1:] - h[:-1]
        return xp.mean(steps * steps) + xp.mean(h[0] * h[-1]) + h[0, 0] + xp.mean(h[::2, 1:3])

    return xp.value_and_grad(loss, p)


# Numbers on either side.


def _scalars(xp: Any, p: list[Any], x: Any) -> Any:
    def loss(p: list[Any]) -> Any:
        h = 2.0 * (x @ p[0]) - 1
        gate = 1.0 / (1.0 + xp.exp(-h))
        h = 0.5 * gate + (1 - gate) * h**2 / 3
        return xp.mean((h + 0.1) ** 2) * 10 - 0.01 * xp.sum(p[1] ** 2)

    return xp.value_and_grad(loss, p)


# Keywords: a layer norm, sums that keep their axes.


def _keywords(xp: Any, p: list[Any], x: Any) -> Any:
    def loss(p: list[Any]) -> Any:
        h = x @ p[0]
        centered = h - xp.mean(h, axis=-1, keepdims=True)
        h = centered / xp.sqrt(xp.mean(centered * centered, axis=-1, keepdims=True) + 1e-5) + p[1]
        both = xp.concatenate([h, centered], axis=1)
        e = xp.exp(both)
        return xp.mean(xp.sum(e, axis=0) / xp.sum(e, axis=(0, 1), keepdims=True))

    return xp.value_and_grad(loss, p)


# Raw arrays as operands, of NumPy (as a data loader hands them over) and of the system.


def _operands(xp: Any, p: list[Any], x: Any) -> Any:
    x = xp.operand(x)

    def loss(p: list[Any]) -> Any:
        h = xp.tanh(x @ p[0] + p[1])
        h = h * x + x
        return xp.mean((h - x) ** 2)

    return xp.value_and_grad(loss, p)


# Parameters in a dictionary.


def _make_named(rng: np.random.Generator, tiny: bool) -> tuple[Any, tuple[Any, ...]]:
    n = _size(tiny)
    layers = {f"layer{i}": {"weight": normal(rng, n, n), "bias": normal(rng, n, scale=0.1)} for i in range(4)}
    return layers, (normal(rng, n, n, scale=1.0),)


def _named(xp: Any, p: Any, x: Any) -> Any:
    def loss(p: Any) -> Any:
        h = x
        for layer in p.values():
            h = xp.tanh(h @ layer["weight"] + layer["bias"])
        return xp.mean(h * h)

    return xp.value_and_grad(loss, p)


# Methods.


def _methods(xp: Any, p: list[Any], x: Any) -> Any:
    n = x.shape[0]

    def loss(p: list[Any]) -> Any:
        h = (x @ p[0]).reshape((n, 2, -1)).sum(axis=1)
        gram = h @ h.T
        return gram.mean(axis=0).sum() + (p[1] * p[1]).reshape((2, -1)).mean()

    return xp.value_and_grad(loss, p)


# Attention by einsum.


def _make_attention(rng: np.random.Generator, tiny: bool) -> tuple[list[Any], tuple[Any, ...]]:
    length, heads, width = (3, 2, 4) if tiny else (8, 2, 16)
    return [normal(rng, width, heads, width // heads) for _ in range(3)], (normal(rng, 2, length, width, scale=1.0),)


def _attention(xp: Any, p: list[Any], x: Any) -> Any:
    def loss(p: list[Any]) -> Any:
        q, k, v = (xp.einsum("bld,dhe->blhe", x, w) for w in p)
        e = xp.exp(xp.einsum("bqhe,bkhe->bhqk", q, k) * 0.3)
        weights = e / xp.sum(e, axis=-1, keepdims=True)
        out = xp.einsum("bhqk,bkhe->bqhe", weights, v)
        return xp.mean(out * out)

    return xp.value_and_grad(loss, p)


# Rows by their numbers: an embedding, and what each example chose.


def _make_lookup(rng: np.random.Generator, tiny: bool) -> tuple[list[Any], tuple[Any, ...]]:
    n, words = _size(tiny), 5 if tiny else 50
    tokens, rows = rng.integers(words, size=n).astype(np.int32), np.arange(n, dtype=np.int32)
    return [normal(rng, words, n), normal(rng, n, n)], (tokens, rows, rng.integers(n, size=n).astype(np.int32))


def _lookup(xp: Any, p: list[Any], tokens: Any, rows: Any, chosen: Any) -> Any:
    def loss(p: list[Any]) -> Any:
        logits = xp.tanh(p[0][tokens]) @ p[1]
        return xp.mean(xp.log(xp.sum(xp.exp(logits), axis=1)) - logits[rows, chosen])

    return xp.value_and_grad(loss, p)


# Piecewise functions.


def _where(xp: Any, p: list[Any], x: Any) -> Any:
    def loss(p: list[Any]) -> Any:
        h = x @ p[0] + p[1]
        h = xp.where(h > 0, h, 0.1 * h)
        error = h - x
        size = xp.abs(error)
        return xp.mean(xp.where(size < 1.0, 0.5 * error * error, size - 0.5))

    return xp.value_and_grad(loss, p)


# Dropout, with the keys of JAX.


def _make_dropout(rng: np.random.Generator, tiny: bool) -> tuple[list[Any], tuple[Any, ...]]:
    n = _size(tiny)
    return [normal(rng, n, n) for _ in range(3)], (normal(rng, n, n, scale=1.0), np.array([0, 42], np.uint32))


def _dropout(xp: Any, p: list[Any], x: Any, key: Any) -> Any:
    def loss(p: list[Any]) -> Any:
        h = x
        for i, w in enumerate(p):
            h = xp.tanh(h @ w)
            mask = xp.random.bernoulli(xp.random.fold_in(key, i), KEEP, h.shape)
            h = xp.where(mask, h / KEEP, 0.0)
        return xp.mean(h * h)

    return xp.value_and_grad(loss, p)


_KEYS = frozenset({"keys"})
WORKLOADS = (
    Workload("chain of 200, numbers and arrays", _make_mixed, _mixed),
    Workload("slices", _square, _slices),
    Workload("numbers", _square, _scalars),
    Workload("keyword arguments", _square, _keywords),
    Workload("NumPy operands", _square, _operands, operands=NUMPY),
    Workload("array operands", _square, _operands, operands=ARRAYS),
    Workload("dict of parameters", _make_named, _named),
    Workload("methods", _square, _methods),
    Workload("einsum", _make_attention, _attention),
    Workload("indexing by arrays", _make_lookup, _lookup),
    Workload("where", _square, _where),
    Workload("dropout", _make_dropout, _dropout, needs=_KEYS),
)
