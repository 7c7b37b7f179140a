"""Gaussian process by marginal likelihood
=======================================

Fit a Gaussian process to patients' data by its marginal likelihood: one length scale per feature.

The likelihood is six lines of linear algebra (Rasmussen and Williams 2006, algorithm 2.1); its gradient goes through a Cholesky
factorisation.  Value and gradient are compared with those of scikit-learn, which derives them by hand; scipy's L-BFGS then takes both from
``interop.scipy.minimize``.  In float64, as such matrices are close to singular.

In JAX and PyTorch the likelihood is as short; there, a jitter that is too small gives NaN in silence.  Here ``tape.detect_anomaly()``
names the line of the factorisation; the last part shows it.

Run it with ``python examples/gaussian_process.py``.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from experiment import Array, options, picture
from sklearn.datasets import load_diabetes
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

import interop
import tape
import tape.numpy as tnp


def covariance(theta: Any, a: Array, b: Array) -> Any:
    """Squared exponential kernel; theta holds the logarithms of the amplitude's square, the noise's, and each feature's length."""
    lengths = tnp.exp(theta[2:])
    scaled, others = a / lengths, b / lengths
    distance = (scaled**2).sum(1)[:, None] + (others**2).sum(1) - 2 * scaled @ others.T
    return tnp.exp(theta[0]) * tnp.exp(-0.5 * distance)


def negative_log_likelihood(theta: Any, x: Array, y: Array, jitter: float = 0.0) -> Any:
    """Minus the log of the density of the targets y, shape (N,), at the inputs x, shape (N, features)."""
    noise = tnp.exp(theta[1]) + jitter
    lower = tnp.linalg.cholesky(covariance(theta, x, x) + noise * np.eye(len(x)))
    alpha = tape.scipy.linalg.cho_solve((lower, True), y)
    return 0.5 * y @ alpha + tnp.log(tnp.diag(lower)).sum() + 0.5 * len(x) * np.log(2 * np.pi)


def predict(theta: Any, x: Array, y: Array, new: Array) -> Array:
    """Mean of the posterior at new inputs."""
    with tape.no_grad():
        matrix = covariance(theta, x, x) + tnp.exp(theta[1]) * np.eye(len(x))
        return np.asarray((covariance(theta, new, x) @ tape.scipy.linalg.solve(matrix, y, assume_a="pos")).numpy())


def compare(theta: Array, x: Array, y: Array) -> float:
    """Return how far value and gradient are from scikit-learn's, relative."""
    kernel = ConstantKernel(np.exp(theta[0])) * RBF(np.exp(theta[2:])) + WhiteKernel(np.exp(theta[1]))
    theirs = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(x, y)
    value, slope = theirs.log_marginal_likelihood(theirs.kernel_.theta, eval_gradient=True)  # in order: amplitude, lengths, noise
    v = tape.Variable(theta)
    ours = negative_log_likelihood(v, x, y)
    gradient = tape.gradients(ours, v).numpy()
    order = [0, *range(2, len(theta)), 1]
    return max(abs(float(ours) / -value - 1), float(np.abs(gradient[order] + slope).max() / np.abs(slope).max()))


def singular(x: Array, y: Array) -> str:
    """Without noise, each patient twice: the factorisation fails, and the message says where."""
    theta = tape.Variable(np.concatenate([[0.0, -80.0], np.full(x.shape[1], 3.0)]))
    try:
        with tape.detect_anomaly():
            negative_log_likelihood(theta, np.repeat(x, 2, axis=0), np.repeat(y, 2)).backward()
    except tape.errors.NonFiniteError as e:
        return str(e)
    message = "the factorisation of a singular matrix went unseen"
    raise RuntimeError(message)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Compare with scikit-learn, fit, assert that it predicts better, and draw the lengths."""
    chosen = options(__doc__, arguments, "gaussian_process.png")
    with jax.enable_x64(True):
        inputs, targets = load_diabetes(return_X_y=True)
        x, y = inputs / inputs.std(0), (targets - targets.mean()) / targets.std()
        order = np.random.default_rng(chosen.seed).permutation(len(x))
        count = 60 if chosen.quick else 300
        train, test = order[:count], order[300:]
        start = np.concatenate([[0.0, -1.0], np.full(x.shape[1], 1.0)])
        distance = compare(start, x[train], y[train])
        print(f"value and gradient within {distance:.1e} of scikit-learn's (relative)")
        assert distance < 1e-8
        solution = interop.scipy.minimize(
            lambda theta: negative_log_likelihood(theta, x[train], y[train], 1e-6),
            start,
            method="L-BFGS-B",
            options={"maxiter": 5 if chosen.quick else 200},
        )
        found = np.asarray(solution.x)
        errors = [float(((predict(tape.constant(t), x[train], y[train], x[test]) - y[test]) ** 2).mean()) for t in (start, found)]
        print(f"{solution.nit} steps of L-BFGS: minus log-likelihood {float(solution.fun):.2f}")
        print(f"mean squared error on other patients: {errors[0]:.3f} at first, {errors[1]:.3f} now")
        assert chosen.quick or errors[1] < errors[0]
        accident = singular(x[train[:20]], y[train[:20]])
        print("without noise:", accident.split(", from")[0])
        assert "cholesky" in accident
    with picture(chosen.output, 1, "What a Gaussian process learned about diabetes") as (axes,):
        axes.bar(load_diabetes().feature_names, 1 / np.exp(found[2:]))
        axes.set(xlabel="feature", ylabel="1 / length scale: how much it matters")
    return {"distance": distance, "errors": errors}


if __name__ == "__main__":
    main()
