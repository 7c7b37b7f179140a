"""Inputs of every eval, as GradBench draws them: its sizes where they take seconds, else smaller ones.

The files of ADBench (scenes, hands, texts) are not here; inputs of their kind are drawn. The harness sends the files. The descents of
``particle`` and ``saddle``, of 84 and of 155 times 155 steps, are cut short.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["FUNCTIONS", "Case", "cases"]

MODES = ("rr", "ff", "fr", "rf")
FUNCTIONS: dict[str, tuple[str, ...]] = {
    "hello": ("square", "double"),
    "ba": ("objective", "jacobian"),
    "det": ("primal", "gradient"),
    "gmm": ("objective", "jacobian"),
    "ht": ("objective", "jacobian"),
    "kmeans": ("cost", "dir"),
    "llsq": ("primal", "gradient"),
    "lse": ("primal", "gradient"),
    "lstm": ("objective", "jacobian"),
    "ode": ("primal", "gradient"),
    "particle": MODES,
    "saddle": MODES,
}


@dataclass(frozen=True)
class Case:
    """An input of an eval, and what it is called."""

    module: str
    description: str
    input: Any


def _rng() -> np.random.Generator:
    return np.random.default_rng(31337)


def ba(n: int, m: int, p: int) -> Case:
    """Return a camera, a point and a feature of the kind of ADBench's."""
    cam = [0.0157, -0.0128, -0.0044, -0.034, -0.1075, 1.12, 399.75, 0.5, -0.3, -3.2e-7, 5.9e-13]
    data = {"cam": cam, "x": [-0.612, 0.572, -1.847], "w": 0.47, "feat": [-332.65, 262.09]}
    return Case("ba", f"n={n},m={m},p={p}", {"n": n, "m": m, "p": p, **data})


def det(ell: int) -> Case:
    """Return a random matrix."""
    return Case("det", f"{ell}", {"A": _rng().random(ell * ell).tolist(), "ell": ell})


def gmm(d: int, k: int, n: int) -> Case:
    """Return random points and components."""
    rng = _rng()
    parts = {"x": rng.normal(size=(n, d)), "mu": rng.uniform(size=(k, d)), "q": rng.normal(size=(k, d))}
    parts |= {"l": rng.normal(size=(k, d * (d - 1) // 2)), "alpha": rng.normal(size=k)}
    return Case("gmm", f"{d}_{k}_{n}", {"d": d, "k": k, "n": n, "m": 0, "gamma": 1.0} | {key: a.tolist() for key, a in parts.items()})


def ht(vertices: int, points: int, *, complicated: bool) -> Case:
    """Return a hand of 22 bones, five fingers on a wrist, with random vertices and points."""
    rng, bones = _rng(), 22
    parents = [-1, 0, *((1 if i % 4 == 0 else i + 1) for i in range(20))]
    relatives = np.tile(np.eye(4), (bones, 1, 1))
    relatives[:, :3, 3] = rng.normal(size=(bones, 3)) * 0.3
    absolutes: list[np.ndarray] = []
    for relative, parent in zip(relatives, parents, strict=True):
        absolutes.append(relative if parent == -1 else absolutes[parent] @ relative)
    weights = rng.random((vertices, bones)) * (rng.random((vertices, bones)) < 0.2)
    triangles = rng.integers(vertices, size=(2 * vertices, 3))
    model = {
        "bone_count": bones,
        "bone_names": [f"bone{i}" for i in range(bones)],
        "parents": parents,
        "base_relatives": relatives.tolist(),
        "inverse_base_absolutes": np.linalg.inv(np.stack(absolutes)).tolist(),
        "base_positions": np.concatenate([rng.normal(size=(vertices, 3)), np.ones((vertices, 1))], axis=1).tolist(),
        "weights": weights.tolist(),
        "triangles": triangles.tolist(),
        "is_mirrored": False,
    }
    data = {
        "model": model,
        "correspondences": rng.integers(vertices, size=points).tolist(),
        "points": rng.normal(size=(points, 3)).tolist(),
    }
    us = rng.random((points, 2)).tolist() if complicated else []
    name = f"{'complicated' if complicated else 'simple'},{points} points"
    return Case("ht", name, {"theta": (rng.normal(size=26) * 0.3).tolist(), "data": data, "us": us})


def kmeans(k: int, n: int, d: int) -> Case:
    """Return random points, of which the last ones are centroids."""
    points = _rng().random((n, d)).tolist()
    return Case("kmeans", f"k={k},n={n},d={d}", {"points": points, "centroids": points[-k:]})


def llsq(n: int, m: int) -> Case:
    """Return random coefficients."""
    return Case("llsq", f"n={n},m={m}", {"x": _rng().random(m).tolist(), "n": n})


def lse(n: int) -> Case:
    """Return random numbers."""
    return Case("lse", f"n={n}", {"x": _rng().random(n).tolist()})


def lstm(layers: int, characters: int, bits: int = 14) -> Case:
    """Return random parameters, and a random text in bits."""
    rng = _rng()
    shapes = {"main_params": (2 * layers, 4 * bits), "extra_params": (3, bits), "state": (2 * layers, bits)}
    parts = {name: rng.random(shape).tolist() for name, shape in shapes.items()}
    return Case("lstm", f"l={layers},c={characters}", parts | {"sequence": rng.integers(2, size=(characters, bits)).astype(float).tolist()})


def ode(n: int, s: int) -> Case:
    """Return random parameters; near 1, so that what is computed of a thousand of them is not below all numbers."""
    return Case("ode", f"n={n},s={s}", {"x": (0.5 + _rng().random(n)).tolist(), "s": s})


def cases(size: str) -> Iterator[Case]:
    """Give the cases of a size: "tiny" (tests), "quick" or "default"."""
    at = ("tiny", "quick", "default").index(size)
    yield Case("hello", "3", 3.0)
    yield ba(*((2, 3, 12), (5, 50, 500), (49, 7776, 31843))[at])
    yield from (det(ell) for ell in ((4,), (5,), (5, 6))[at])
    yield from (gmm(*sizes) for sizes in (((3, 2, 5),), ((2, 5, 100),), ((2, 5, 1000), (10, 25, 1000)))[at])
    for complicated in (False, True):
        yield ht(*((8, 4), (60, 20), (544, 200))[at], complicated=complicated)
    yield from (kmeans(*sizes) for sizes in (((3, 12, 2),), ((5, 200, 4),), ((10, 1000, 8), (100, 10000, 8)))[at])
    yield from (llsq(*sizes) for sizes in (((8, 4),), ((64, 32),), ((128, 128), (4096, 128)))[at])
    yield from (lse(n) for n in ((10,), (2500,), (2500, 160000))[at])
    yield from (lstm(*sizes) for sizes in (((2, 6, 3),), ((2, 32),), ((2, 1024), (4, 1024)))[at])
    yield from (ode(*sizes) for sizes in (((4, 3),), ((50, 10),), ((1000, 10), (1000, 100)))[at])
    most = (1, 2, 4)[at]
    yield Case("particle", f"w=0, {most} steps", {"w": 0.0, "most_steps": most})
    most = (3, 12, 40)[at]
    yield Case("saddle", f"start=1,1, {most} steps", {"start": [1.0, 1.0], "most_steps": most})
