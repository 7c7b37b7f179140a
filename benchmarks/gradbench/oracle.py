"""What every function is to answer: in double precision, by NumPy alone, from closed forms and from complex steps.

A complex step f'(x) ~ Im f(x + ih) / h subtracts nothing, so that with h = 1e-30 it is right to rounding where f is analytic (Squire and
Trapp, "Using complex variables to estimate derivatives of real functions", 1998). No library of derivatives is asked.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.gradbench.inputs import (
    BLOCK,
    Data,
    adjustment,
    fingers,
    hand,
    jacobian_of_adjustment,
    memory,
    mixture,
    numbers,
    square_matrix,
)

__all__ = ["SADDLE", "TOLERANCE", "W", "expected", "mismatches", "trajectory"]

TOLERANCE = 1e-4  # GradBench's own: of the difference over the sum of the magnitudes, which counts as 1 at least
STEP = 1e-30
W = 0.2071918746486116  # what GradBench expects of ``particle``
SADDLE = 8.246324826140356e-06  # and in each of the four numbers of ``saddle``


def complex_step(fun: Callable[[Any], Any], x: np.ndarray) -> np.ndarray:
    """Return the Jacobian of a vector function of a vector, shape (outputs, inputs), column by column."""
    return np.stack([np.imag(fun(x + 1j * STEP * e)) / STEP for e in np.eye(len(x))], axis=-1)


def _det(raw: Data, function: str) -> Any:
    a = square_matrix(raw)
    value = np.linalg.det(a)
    return value if function == "primal" else value * np.linalg.inv(a).T.ravel()  # Jacobi's formula


def _llsq(raw: Data, function: str) -> Any:
    x, t = numbers(raw["x"]), np.linspace(-1.0, 1.0, raw["n"])
    powers = t[:, None] ** np.arange(len(x))
    residual = powers @ x - np.sign(t)
    return 0.5 * residual @ residual if function == "primal" else powers.T @ residual


def _lse(raw: Data, function: str) -> Any:
    x = numbers(raw["x"])
    weights = np.exp(x - x.max())
    return x.max() + np.log(weights.sum()) if function == "primal" else weights / weights.sum()


def _ode(raw: Data, function: str) -> Any:
    x, h = numbers(raw["x"]), 2.0 / raw["s"]
    # Every stage of y_i is a number times x_0 ... x_i, so that the last y has the derivative y / x_j.
    y, first = np.zeros_like(x), np.eye(1, len(x))[0]
    for _ in range(raw["s"]):
        k1 = first + np.concatenate([[0.0], y[:-1]])
        k2 = first + np.concatenate([[0.0], (y + h / 2 * k1)[:-1]])
        k3 = first + np.concatenate([[0.0], (y + h / 2 * k2)[:-1]])
        k4 = first + np.concatenate([[0.0], (y + h * k3)[:-1]])
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    values = np.cumprod(x) * y
    return values if function == "primal" else values[-1] / x


def _kmeans(raw: Data, function: str) -> Any:
    points, centroids = numbers(raw["points"]), numbers(raw["centroids"])
    squared = np.stack([((points - c) ** 2).sum(1) for c in centroids])
    if function == "cost":
        return squared.min(0).sum()
    nearest = squared.argmin(0)
    return np.stack([c - points[nearest == k].mean(0) for k, c in enumerate(centroids)])  # 2 sum (c - p) / (2 count)


def _gmm(raw: Data, function: str) -> Any:
    g = mixture(raw)
    n, d = g["x"].shape
    terms, prior, parts = [], 0.0, []
    for a, mu, q, below in zip(g["alpha"], g["mu"], g["q"], g["l"], strict=True):
        factor = np.diag(np.exp(q))
        factor[g["rows"], g["columns"]] = below
        centred = g["x"] - mu
        scaled = centred @ factor.T
        terms.append(a + q.sum() - 0.5 * (scaled**2).sum(1))
        prior += 0.5 * g["gamma"] ** 2 * (factor**2).sum() - g["m"] * q.sum()
        parts.append((factor, centred, scaled))
    main = np.stack(terms)
    top = main.max(0)
    shares = np.exp(main - top)
    likelihood = (top + np.log(shares.sum(0))).sum() - n * np.log(np.exp(g["alpha"]).sum())
    if function == "objective":
        return g["constant"] + likelihood - prior
    shares /= shares.sum(0)  # how much of each point is due to each component
    found: Data = {"alpha": shares.sum(1) - n * np.exp(g["alpha"]) / np.exp(g["alpha"]).sum(), "mu": [], "q": [], "l": []}
    for share, (factor, centred, scaled) in zip(shares, parts, strict=True):
        outer = (share[:, None] * scaled).T @ centred
        found["mu"].append((share[:, None] * scaled) @ factor.sum(0) if d == 1 else (share @ (scaled @ factor)))
        scale = np.diag(factor)
        found["q"].append(share.sum() - np.diag(outer) * scale - g["gamma"] ** 2 * scale**2 + g["m"])
        below = (g["rows"], g["columns"])
        found["l"].append(-outer[below] - g["gamma"] ** 2 * factor[below])
    return found


def _rotated(rotation: Any, x: Any) -> Any:
    angle = np.sqrt((rotation * rotation).sum())
    if abs(angle) == 0:
        return x + np.cross(rotation, x)
    axis = rotation / angle
    return x * np.cos(angle) + np.cross(axis, x) * np.sin(angle) + axis * (axis @ x) * (1 - np.cos(angle))


def _reprojection(z: Any, feature: np.ndarray) -> Any:
    x = _rotated(z[:3], z[11:14] - z[3:6])
    flat = x[:2] / x[2]
    squared = flat @ flat
    return z[14] * (flat * (1 + z[9] * squared + z[10] * squared**2) * z[6] + z[7:9] - feature)


def _ba(raw: Data, function: str) -> Any:
    scene = adjustment(raw)
    z = np.concatenate([scene["cameras"][0], scene["points"][0], scene["weights"][:1]])  # every observation's: all are repeated
    assert len(z) == BLOCK
    if function == "jacobian":
        return jacobian_of_adjustment(raw, complex_step(lambda z: _reprojection(z, scene["features"][0]), z), -2 * z[-1])
    error = _reprojection(z, scene["features"][0])
    return {
        "reproj_error": {"elements": error, "repeated": raw["p"]},
        "w_err": {"element": 1 - z[-1] ** 2, "repeated": raw["p"]},
    }


def _posed(moved: Any, h: Data, columns: int) -> Any:
    theta, angles = moved[columns:], fingers()
    absolutes: list[Any] = []
    posed: Any = 0.0
    for bone, parent in enumerate(h["parents"]):
        turn = np.eye(4, dtype=theta.dtype)
        if bone in angles:
            bend, *spread = angles[bone]
            c, s = np.cos(theta[bend]), np.sin(theta[bend])
            turn[1:3, 1:3] = [[c, -s], [s, c]]
            if spread:
                c, s = np.cos(theta[spread[0]]), np.sin(theta[spread[0]])
                around = np.eye(4, dtype=theta.dtype)
                around[:2, :2] = [[c, -s], [s, c]]
                turn = around @ turn
        relative = h["relatives"][bone] @ turn
        absolutes.append(relative if parent == -1 else absolutes[parent] @ relative)
        posed = posed + (absolutes[-1] @ h["inverses"][bone] @ h["positions"])[:3] * h["weights"][bone]
    if h["mirrored"]:
        posed = posed * np.array([[-1.0], [1.0], [1.0]])
    vertices = np.stack([_rotated(theta[:3], x) for x in posed.T], axis=1) + theta[3:6, None]
    if columns:
        u, v = (h["us"] + moved[:columns]).T
        a, b, c = (vertices[:, index] for index in h["vertices"])
        return (h["points"] - (u * a + v * b + (1 - u - v) * c)).T.ravel()
    return (h["points"] - vertices[:, h["vertices"][0]]).T.ravel()


def _ht(raw: Data, function: str) -> Any:
    h = hand(raw)
    columns = 2 if len(h["us"]) else 0
    moved = np.concatenate([np.zeros(columns), h["theta"]])
    return _posed(moved, h, columns) if function == "objective" else complex_step(lambda m: _posed(m, h, columns), moved)


def _predicting(parameters: Any, m: Data) -> Any:
    """Return the loss for each row of parameters, shape (rows, parameters)."""
    rows, b = len(parameters), m["sequence"].shape[1]
    main, extra = parameters[:, : m["main"].size].reshape(rows, -1, 2, 4, b), parameters[:, m["main"].size :].reshape(rows, 3, b)
    state = [list(np.broadcast_to(s, (rows, *s.shape)).swapaxes(0, 1)) for s in m["state"].reshape(-1, 2, b)]
    total = np.zeros(rows, parameters.dtype)
    for given, wanted in itertools.pairwise(m["sequence"]):
        x = given * extra[:, 0]
        for i, (hidden, cell) in enumerate(state):
            weight, bias = main[:, i, 0], main[:, i, 1]
            forget, outgate = (1 / (1 + np.exp(-(x * weight[:, j] + bias[:, j]))) for j in (0, 2))
            ingate = 1 / (1 + np.exp(-(hidden * weight[:, 1] + bias[:, 1])))
            cell = cell * forget + ingate * np.tanh(hidden * weight[:, 3] + bias[:, 3])  # noqa: PLW2901 - as the formula
            x = outgate * np.tanh(cell)
            state[i] = [x, cell]
        y = x * extra[:, 1] + extra[:, 2]
        total += (wanted * (y - np.log(np.exp(y).sum(1) + 2)[:, None])).sum(1)
    return -total / ((len(m["sequence"]) - 1) * b)


def _lstm(raw: Data, function: str) -> Any:
    m = memory(raw)
    parameters = np.concatenate([m["main"].ravel(), m["extra"].ravel()])
    if function == "objective":
        return _predicting(parameters[None], m)[0]
    return np.imag(_predicting(parameters + 1j * STEP * np.eye(len(parameters)), m)) / STEP


def trajectory(w: Any) -> Any:
    """Return the objective of ``particle``, of a real or a complex control."""
    x, velocity, charges = np.array([0.0, 8.0], complex), np.array([0.75, 0.0], complex), np.array([[10.0, 10.0 - w], [10.0, 0.0]])
    while True:
        apart = x - charges
        force = sum(a / np.sqrt(a @ a) ** 3 for a in apart)
        x = x + 0.1 * velocity
        if x[1].real <= 0:
            return (x[0] - x[1] / velocity[1] * velocity[0]) ** 2
        velocity = velocity + 0.1 * force


def _descent(value: Callable[[Any], Any], slopes: Callable[[Any], Any], x: Any, left: float) -> Any:
    rate, good = 1e-5, 0
    while left > 0 and np.linalg.norm(slopes(x)) > 1e-5:
        if good == 10:
            rate, good = 2 * rate, 0
        following = x - rate * slopes(x)
        if np.linalg.norm(x - following) <= 1e-5:
            break
        better, left = value(following) < value(x), left - 1
        x, rate, good = (following, rate, good + 1) if better else (x, rate / 2, 0)
    return x


def _particle(raw: Data, _function: str) -> Any:
    if "most_steps" not in raw:
        return W
    return _descent(lambda w: trajectory(w).real, lambda w: np.imag(trajectory(w + 1j * STEP)) / STEP, float(raw["w"]), raw["most_steps"])


def _saddle(raw: Data, _function: str) -> Any:
    if "most_steps" not in raw:
        return [SADDLE] * 4
    # The best y does not depend on x, so that both descents are those of a sum of squares.
    found = _descent(lambda x: x @ x, lambda x: 2 * x, numbers(raw["start"]), raw["most_steps"])
    return np.concatenate([found, found])


def expected(module: str, function: str, raw: Any) -> Any:
    """Return what a function is to answer to an input: numbers, arrays, lists and dicts of them."""
    if module == "hello":
        return float(raw) ** 2 if function == "square" else 2 * float(raw)
    return _FUNCTIONS[module](raw, function)


_FUNCTIONS: dict[str, Callable[[Data, str], Any]] = {
    "ba": _ba,
    "det": _det,
    "gmm": _gmm,
    "ht": _ht,
    "kmeans": _kmeans,
    "llsq": _llsq,
    "lse": _lse,
    "lstm": _lstm,
    "ode": _ode,
    "particle": _particle,
    "saddle": _saddle,
}


def mismatches(wanted: Any, found: Any, tolerance: float = TOLERANCE, path: str = "output") -> list[str]:
    """Return what differs, in words.

    Args:
        wanted: the oracle's answer.
        found: a tool's, as JSON gave it.
        tolerance: how far numbers may lie apart, relative to the sum of their magnitudes, or to 1 where that is less.
        path: where in the answer this is.

    """
    if isinstance(wanted, dict):
        if not isinstance(found, dict) or found.keys() != wanted.keys():
            return [f"{path}: an object with {', '.join(wanted)} was expected"]
        return [line for key in wanted for line in mismatches(wanted[key], found[key], tolerance, f"{path}.{key}")]
    try:
        a, b = numbers(wanted), numbers(found)
    except (TypeError, ValueError):
        return [f"{path}: numbers were expected"]
    if a.shape != b.shape:
        return [f"{path}: shape {a.shape} was expected, got {b.shape}"]
    apart = np.abs(a - b) / np.maximum(np.abs(a) + np.abs(b), 1.0)
    if apart.size and not apart.max() <= tolerance:
        at = np.unravel_index(int(np.nanargmax(np.where(np.isfinite(apart), apart, math.inf))), apart.shape)
        return [f"{path}{list(map(int, at)) or ''}: {a[at]} was expected, got {b[at]}"]
    return []
