"""Inputs of messages as NumPy arrays in double precision, which every tool and the oracle begin with, and outputs that are laid out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["Data", "adjustment", "hand", "jacobian_of_adjustment", "memory", "mixture", "most_steps", "numbers", "square_matrix"]

CAMERA = 11  # parameters of a camera: rotation 3, centre 3, focal length, principal point 2, radial distortion 2
BLOCK = CAMERA + 3 + 1  # and those of a point and a weight: what one observation depends on

Data = dict[str, Any]


def numbers(values: Any) -> np.ndarray:
    """Return nested lists of numbers as an array of doubles."""
    return np.asarray(values, np.float64)


def most_steps(raw: Data) -> float:
    """Return how many steps a descent of ``particle`` or ``saddle`` has at most; GradBench's own inputs set no limit."""
    return float(raw.get("most_steps", math.inf))


def square_matrix(raw: Data) -> np.ndarray:
    """Return the matrix of ``det``, which comes row after row."""
    return numbers(raw["A"]).reshape(raw["ell"], raw["ell"])


def adjustment(raw: Data) -> Data:
    """Return the scene of ``ba``: one camera, point, weight and feature, repeated; observation i sees camera i mod n and point i mod m."""
    n, m, p = raw["n"], raw["m"], raw["p"]
    index = np.arange(p)
    return {
        "cameras": np.tile(numbers(raw["cam"]), (n, 1)),
        "points": np.tile(numbers(raw["x"]), (m, 1)),
        "weights": np.full(p, float(raw["w"])),
        "features": np.tile(numbers(raw["feat"]), (p, 1)),
        "camera": index % n,
        "point": index % m,
    }


def jacobian_of_adjustment(raw: Data, first_block: np.ndarray, last_slope: float) -> Data:
    """Return what stands for the sparse Jacobian of ``ba``, by compressed rows: its first 30 entries and its last one.

    Args:
        raw: the input of the message.
        first_block: the derivative of the first observation's error, shape (2, 15): camera, point, weight.
        last_slope: the derivative of the last weight's error.

    """
    n, m, p = raw["n"], raw["m"], raw["p"]
    columns = [*range(CAMERA), *(CAMERA * n + np.arange(3)).tolist(), CAMERA * n + 3 * m]
    ends = [*range(0, 2 * BLOCK * p + 1, BLOCK), *range(2 * BLOCK * p + 1, 2 * BLOCK * p + p + 1)]
    return {
        "rows": [*ends[: 2 * BLOCK], ends[-1]],
        "cols": [*columns, *columns, CAMERA * n + 3 * m + p - 1],
        "vals": [*np.asarray(first_block, np.float64).ravel().tolist(), float(last_slope)],
    }


def mixture(raw: Data) -> Data:
    """Return the data of ``gmm``: ``l`` holds a component's strictly lower triangle, column after column."""
    d = raw["d"]
    below = [(row, column) for column in range(d) for row in range(column + 1, d)]
    return {
        "x": numbers(raw["x"]).reshape(raw["n"], d),
        "alpha": numbers(raw["alpha"]),
        "mu": numbers(raw["mu"]).reshape(raw["k"], d),
        "q": numbers(raw["q"]).reshape(raw["k"], d),
        "l": numbers(raw["l"]).reshape(raw["k"], len(below)),
        "rows": np.array([row for row, _ in below], int),
        "columns": np.array([column for _, column in below], int),
        "gamma": float(raw["gamma"]),
        "m": int(raw["m"]),
        "constant": constant_of_mixture(raw["n"], d, raw["k"], int(raw["m"]), float(raw["gamma"])),
    }


def constant_of_mixture(n: int, d: int, k: int, m: int, gamma: float) -> float:
    """Return what the objective of ``gmm`` holds besides what depends on parameters: norms of the normal and the Wishart distribution."""
    freedom = d + m + 1
    multigamma = 0.25 * d * (d - 1) * math.log(math.pi) + sum(math.lgamma(0.5 * freedom + 0.5 * (1 - j)) for j in range(1, d + 1))
    wishart = freedom * d * (math.log(gamma) - 0.5 * math.log(2)) - multigamma
    return -0.5 * n * d * math.log(2 * math.pi) + k * wishart


def memory(raw: Data) -> Data:
    """Return the data of ``lstm``: of every layer a row of weights and one of biases, and its hidden state and its cell."""
    return {
        "main": numbers(raw["main_params"]),
        "extra": numbers(raw["extra_params"]),
        "state": numbers(raw["state"]),
        "sequence": numbers(raw["sequence"]),
    }


def hand(raw: Data) -> Data:
    """Return the data of ``ht``; ``us`` is empty, or holds two coordinates in a triangle for each point."""
    data, model = raw["data"], raw["data"]["model"]
    found = np.asarray(data["correspondences"], int)
    us = numbers(raw["us"]).reshape(-1, 2)
    return {
        "theta": numbers(raw["theta"]),
        "us": us,
        "parents": [int(p) for p in model["parents"]],
        "relatives": numbers(model["base_relatives"]),
        "inverses": numbers(model["inverse_base_absolutes"]),
        "positions": numbers(model["base_positions"]).T,
        "weights": numbers(model["weights"]).T,
        "mirrored": bool(model["is_mirrored"]),
        "points": numbers(data["points"]).T,
        # the vertices of each point: of its triangle where there are coordinates in it, else one
        "vertices": np.asarray(model["triangles"], int)[found].T if len(us) else found[None],
    }


def fingers() -> dict[int, tuple[int, ...]]:
    """Return for each bone of ``ht`` that moves which angles of ``theta`` move it: a bend, and at a finger's root a spread."""
    angles, first = {}, 6
    for finger in range(5):
        for joint in range(3):
            count = 2 if joint == 0 else 1
            angles[4 * finger + joint + 2] = tuple(range(first, first + count))
            first += count
    return angles
