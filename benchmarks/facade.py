"""Class ``autograd``: programs written for HIPS autograd on the facade :mod:`interop.autograd`, beside that library where it is installed.

``python -m benchmarks autograd --docs docs/guides/from_autograd.md`` writes the table of the guide.

A program is made with a library's ``numpy`` and its operators, and is a step: values and gradients are compared before it is timed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import itertools
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.report import Report, Score
from benchmarks.timing import Effort, interleave, ratio

__all__ = ["PROGRAMS", "document", "facade", "step_of"]

Step = Callable[[], Any]


def _layers(rng: np.random.Generator, *sizes: int) -> list[tuple[Any, Any]]:
    return [(rng.normal(size=(a, b)) / np.sqrt(a), np.zeros(b)) for a, b in itertools.pairwise(sizes)]


def logistic_regression(ag: Any, xp: Any, rng: np.random.Generator) -> Step:
    """Logistic regression on 4 examples with 3 features."""
    inputs, targets, weights = rng.normal(size=(4, 3)), np.array([1.0, 1.0, 0.0, 1.0]), np.zeros(3)

    def loss(w: Any) -> Any:
        p = 0.5 * (xp.tanh(xp.dot(inputs, w)) + 1)
        return -xp.sum(xp.log(p * targets + (1 - p) * (1 - targets)))

    step = ag.value_and_grad(loss)
    return lambda: step(weights)


def neural_net(ag: Any, xp: Any, rng: np.random.Generator) -> Step:
    """A classifier 64-100-10 on 128 examples."""
    parameters, inputs, labels = _layers(rng, 64, 100, 10), rng.normal(size=(128, 64)), np.eye(10)[rng.integers(10, size=128)]

    def loss(parameters: Any) -> Any:
        x = inputs
        for w, b in parameters:
            out = xp.dot(x, w) + b
            x = xp.tanh(out)
        return -xp.sum((out - xp.log(xp.sum(xp.exp(out), axis=1, keepdims=True))) * labels) / len(inputs)

    step = ag.value_and_grad(loss)
    return lambda: step(parameters)


def rnn(ag: Any, xp: Any, rng: np.random.Generator) -> Step:
    """A recurrent net over 30 steps."""
    parameters = {"change": rng.normal(size=(48, 32)) * 0.1, "predict": rng.normal(size=(32, 16)) * 0.1}
    inputs = rng.normal(size=(30, 8, 16))

    def loss(p: Any) -> Any:
        state, total = np.zeros((8, 32)), 0.0
        for x in inputs:
            state = xp.tanh(xp.dot(xp.concatenate((x, state), axis=1), p["change"]))
            total = total + xp.mean(xp.dot(state, p["predict"]) ** 2)
        return total

    step = ag.value_and_grad(loss)
    return lambda: step(parameters)


def gaussian_process(ag: Any, xp: Any, rng: np.random.Generator) -> Step:
    """The marginal likelihood of a Gaussian process with 20 points."""
    points, values = rng.uniform(-3, 3, size=(20, 1)), rng.normal(size=20)

    def loss(p: Any) -> Any:
        scaled = points / xp.exp(p[2])
        distances = xp.sum((scaled[:, None] - scaled[None, :]) ** 2, axis=2)
        cov = xp.exp(p[0]) * xp.exp(-0.5 * distances) + (xp.exp(p[1]) + 0.001) * np.eye(20)
        return 0.5 * xp.dot(values, xp.linalg.solve(cov, values)) + 0.5 * xp.linalg.slogdet(cov)[1]

    step = ag.value_and_grad(loss)
    return lambda: step(np.array([0.1, -1.0, 0.2]))


def black_box_svi(ag: Any, xp: Any, rng: np.random.Generator) -> Step:
    """The variational bound of two dimensions, of 100 samples."""
    noise, parameters = rng.normal(size=(100, 2)), np.array([0.1, 0.2, -1.0, -1.5])

    def loss(p: Any) -> Any:
        mean, log_std = p[:2], p[2:]
        x, y = (noise * xp.exp(log_std) + mean).T
        log_density = -0.5 * (x / xp.exp(y)) ** 2 - y - 0.5 * (y / 1.35) ** 2
        return -xp.sum(log_std) - xp.mean(log_density)

    step = ag.value_and_grad(loss)
    return lambda: step(parameters)


def tanh_chain(ag: Any, xp: Any, rng: np.random.Generator) -> Step:  # noqa: ARG001 - nothing is drawn
    """Derivatives of tanh to the fourth order at 200 points."""

    def tanh(x: Any) -> Any:
        y = xp.exp(-2.0 * x)
        return (1.0 - y) / (1.0 + y)

    points, fun = np.linspace(-7, 7, 200), tanh
    for _ in range(4):
        fun = ag.elementwise_grad(fun)
    return lambda: fun(points)


def rosenbrock_hessian(ag: Any, xp: Any, rng: np.random.Generator) -> Step:
    """The Hessian of Rosenbrock's function of five numbers."""
    point = rng.normal(size=5)
    step = ag.hessian(lambda x: xp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2))
    return lambda: step(point)


def fluid(ag: Any, xp: Any, rng: np.random.Generator) -> Step:
    """Twelve steps of diffusion and advection on a grid of 40 by 40, a loss at the end."""
    start, wind = rng.normal(size=(40, 40)), rng.normal(size=(40, 40)) * 0.1

    def loss(w: Any) -> Any:
        f = start
        for _ in range(12):
            around = xp.roll(f, 1, 0) + xp.roll(f, -1, 0) + xp.roll(f, 1, 1) + xp.roll(f, -1, 1)
            f = f + 0.1 * (around - 4 * f) + w * (xp.roll(f, 1, 0) - f)
        return xp.mean(f**2)

    step = ag.value_and_grad(loss)
    return lambda: step(wind)


def mixture(ag: Any, xp: Any, rng: np.random.Generator) -> Step:
    """The likelihood of a mixture of four normal distributions of 200 points."""
    points, p = rng.normal(size=(200, 2)), {"means": rng.normal(size=(4, 2)), "scales": np.zeros((4, 2)), "weights": np.zeros(4)}

    def loss(p: Any) -> Any:
        z = (points[:, None] - p["means"]) / xp.exp(p["scales"])
        terms = xp.sum(-0.5 * z**2 - p["scales"], axis=2) + p["weights"] - xp.log(xp.sum(xp.exp(p["weights"])))
        top = xp.max(terms, axis=1, keepdims=True)
        return -xp.sum(top[:, 0] + xp.log(xp.sum(xp.exp(terms - top), axis=1)))

    step = ag.value_and_grad(loss)
    return lambda: step(p)


def lstm(ag: Any, xp: Any, rng: np.random.Generator) -> Step:
    """A long short-term memory of 24 units over 20 steps, which predicts the next of 12 characters."""
    gates = ("change", "forget", "ingate", "outgate")
    parameters = {name: rng.normal(size=(12 + 24 + 1, 24)) * 0.2 for name in gates} | {"predict": rng.normal(size=(24, 12)) * 0.2}
    inputs, bias = np.eye(12)[rng.integers(12, size=(21, 8))], np.ones((8, 1))

    def sigmoid(x: Any) -> Any:
        return 0.5 * (xp.tanh(x) + 1.0)

    def loss(p: Any) -> Any:
        hidden, cell, total = np.zeros((8, 24)), np.zeros((8, 24)), 0.0
        for x, following in itertools.pairwise(inputs):
            joined = xp.hstack((x, hidden, bias))
            change, forget, ingate, outgate = (xp.dot(joined, p[name]) for name in gates)
            cell = sigmoid(forget) * cell + sigmoid(ingate) * xp.tanh(change)
            hidden = sigmoid(outgate) * xp.tanh(cell)
            out = xp.dot(hidden, p["predict"])
            total = total - xp.mean(xp.sum((out - xp.log(xp.sum(xp.exp(out), axis=1, keepdims=True))) * following, axis=1))
        return total

    step = ag.value_and_grad(loss)
    return lambda: step(parameters)


def convnet(ag: Any, xp: Any, rng: np.random.Generator) -> Step:
    """A convolution, pooling by maxima and a dense layer, on 8 pictures of 14 by 14."""
    convolve = importlib.import_module(f"{ag.__name__}.scipy.signal").convolve
    pictures, labels = rng.normal(size=(8, 1, 14, 14)), np.eye(10)[rng.integers(10, size=8)]
    parameters = [rng.normal(size=(1, 6, 5, 5)) * 0.2, np.zeros((1, 6, 1, 1)), rng.normal(size=(150, 10)) * 0.1]

    def loss(p: Any) -> Any:
        kernel, bias, dense = p
        x = convolve(pictures, kernel, axes=([2, 3], [2, 3]), dot_axes=([1], [0]), mode="valid") + bias
        pooled = xp.max(xp.max(xp.reshape(xp.tanh(x), (8, 6, 5, 2, 5, 2)), axis=3), axis=4)
        out = xp.dot(xp.reshape(pooled, (8, -1)), dense)
        return -xp.mean(xp.sum((out - xp.log(xp.sum(xp.exp(out), axis=1, keepdims=True))) * labels, axis=1))

    step = ag.value_and_grad(loss)
    return lambda: step(parameters)


def ode_net(ag: Any, xp: Any, rng: np.random.Generator) -> Step:
    """The distance of a trajectory, whose slope is a small net, from another one; the derivative is the adjoint's."""
    odeint = importlib.import_module(f"{ag.__name__}.scipy.integrate").odeint
    times, wanted = np.linspace(0.0, 2.0, 5), rng.normal(size=(5, 2))
    parameters = (rng.normal(size=(2, 8)) * 0.5, rng.normal(size=(8, 2)) * 0.5)

    def slope(y: Any, _: Any, w: Any, u: Any) -> Any:
        return xp.dot(xp.tanh(xp.dot(y, w)), u)

    def loss(p: Any) -> Any:
        return xp.mean((odeint(slope, np.array([1.0, 0.5]), times, p) - wanted) ** 2)

    step = ag.value_and_grad(loss)
    return lambda: step(parameters)


def natural_gradient_svi(ag: Any, xp: Any, rng: np.random.Generator) -> Step:
    """A natural gradient: of the variational bound of 20 means and deviations, over the diagonal of Fisher's matrix."""
    logpdf = importlib.import_module(f"{ag.__name__}.scipy.stats.norm").logpdf
    observed, noise = rng.normal(size=10), rng.normal(size=(50, 20))
    parameters = np.concatenate([-np.ones(20), -2 * np.ones(20)])

    def loss(p: Any) -> Any:
        mean, log_std = p[:20], p[20:]
        samples = noise * xp.exp(log_std) + mean
        mu, log_sigma = samples[:, :10], samples[:, 10:]
        density = xp.sum(logpdf(log_sigma, 0, 1.35), axis=1) + xp.sum(logpdf(observed, mu, xp.exp(log_sigma)), axis=1)
        return -xp.sum(log_std) - xp.mean(density)

    gradient = ag.grad(loss)
    return lambda: gradient(parameters) / np.concatenate([np.exp(-2 * parameters[20:]), 2 * np.ones(20)])


PROGRAMS: dict[str, Callable[[Any, Any, np.random.Generator], Step]] = {
    f"facade: {f.__name__.replace('_', ' ')}": f
    for f in (
        logistic_regression,
        neural_net,
        rnn,
        gaussian_process,
        black_box_svi,
        tanh_chain,
        rosenbrock_hessian,
        fluid,
        mixture,
        lstm,
        convnet,
        ode_net,
        natural_gradient_svi,
    )
}


def step_of(name: str, library: str) -> Step:
    """Return a program's step on ``interop.autograd`` or ``autograd``."""
    return PROGRAMS[name](importlib.import_module(library), importlib.import_module(f"{library}.numpy"), np.random.default_rng(0))


def _leaves(x: Any) -> list[Any]:
    if isinstance(x, dict):
        x = [x[key] for key in sorted(x)]
    return [a for item in x for a in _leaves(item)] if isinstance(x, (tuple, list)) else [np.asarray(x)]


def facade(report: Report, effort: Effort, chosen: frozenset[str]) -> None:
    """Compare the facade with HIPS autograd."""
    libraries = ["interop.autograd", *(["autograd"] if importlib.util.find_spec("autograd") else [])]
    found: dict[str, float] = {}
    rows = []
    for name in PROGRAMS:
        if chosen and name not in chosen:
            continue
        steps = {library: step_of(name, library) for library in libraries}
        results = [_leaves(step()) for step in steps.values()]
        if not all(np.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(results[0], results[-1], strict=True)):
            report.failed(f"autograd: {name}: values or gradients differ")
        times = interleave({library: (step, lambda _: None) for library, step in steps.items()}, effort)
        row: dict[str, Any] = {"": name} | {f"{library} us": t.spread.median for library, t in times.items()}
        if len(libraries) > 1:
            found[name] = ratio(times["autograd"], times["interop.autograd"]).median
            row["faster"] = found[name]
        rows.append(row)
    if rows:
        report.tabled("autograd", "Programs written for HIPS autograd", rows)
    if found:
        report.scored("autograd", Score("HIPS autograd / interop.autograd", found, 1.0, at_least=True))


def document(report: Report, path: str) -> None:
    """Write the table of a run into a guide, between its two marks."""
    rows = [row for row in report.figures["autograd"] if "faster" in row]
    if len(rows) < len(PROGRAMS):
        msg = "the table of the guide has every program, beside HIPS autograd: install it, and name no single ones"
        raise SystemExit(msg)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("autograd", "jax", "numpy"))
    lines = [
        f"Microseconds per step, in turns in one run, on a CPU; {versions}. Values and gradients are compared before they are timed.",
        "",
        "| program | HIPS autograd | `interop.autograd` | times as fast |",
        "| --- | --- | --- | --- |",
    ]
    for row in rows:
        what = (PROGRAMS[row[""]].__doc__ or "").rstrip(".")
        lines.append(f"| {what} | {row['autograd us']:.0f} | {row['interop.autograd us']:.0f} | {row['faster']:.1f} |")
    mark, guide = "<!-- figures -->\n", pathlib.Path(path)
    before, rest = guide.read_text(encoding="utf-8").split(mark)[::2]
    guide.write_text(before + mark + "\n".join(lines) + "\n" + mark + rest, encoding="utf-8")
