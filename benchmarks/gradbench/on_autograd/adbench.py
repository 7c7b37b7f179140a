"""Evals of ADBench: ``ba`` (bundle adjustment), ``gmm`` (Gaussian mixtures), ``ht`` (hand tracking) and ``lstm``."""

from __future__ import annotations

import itertools
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd import grad, make_jvp

from benchmarks.gradbench.inputs import Data, adjustment, fingers, hand, jacobian_of_adjustment, memory, mixture
from benchmarks.gradbench.on_autograd.cmpad import listed
from benchmarks.gradbench.protocol import Function

__all__ = ["MODULES"]

NEXT, LAST = [1, 2, 0], [2, 0, 1]


def cross(a: Any, b: Any) -> Any:
    """Return the cross product of vectors along the last axis."""
    return a[..., NEXT] * b[..., LAST] - a[..., LAST] * b[..., NEXT]


def rotate(rotation: Any, x: Any) -> Any:
    """Rotate points about axes, by angles that are the axes' lengths (Rodrigues)."""
    squared = anp.sum(rotation**2, axis=-1, keepdims=True)
    turned = squared > 0
    angle = anp.sqrt(anp.where(turned, squared, 1.0))
    axis = rotation / angle
    along = anp.sum(axis * x, axis=-1, keepdims=True) * (1 - anp.cos(angle))
    return anp.where(turned, x * anp.cos(angle) + cross(axis, x) * anp.sin(angle) + axis * along, x + cross(rotation, x))


def reprojection(cameras: Any, points: Any, weights: Any, features: Any) -> Any:
    """Return how far observations are from features, shape (P, 2), with a camera, a point and a weight for each."""
    x = rotate(cameras[:, :3], points - cameras[:, 3:6])
    flat = x[:, :2] / x[:, 2:]
    squared = anp.sum(flat**2, axis=1, keepdims=True)
    flat = flat * (1 + cameras[:, 9:10] * squared + cameras[:, 10:11] * squared**2)
    return weights[:, None] * (flat * cameras[:, 6:7] + cameras[:, 7:9] - features)


def ba_objective(data: Data) -> Any:
    """Return the errors of observations and those of weights."""
    weights = data["weights"]
    return reprojection(data["cameras"][data["camera"]], data["points"][data["point"]], weights, data["features"]), 1 - weights**2


def ba_jacobian(data: Data) -> Any:
    """Return the blocks of the Jacobian, shape (P, 2, 15), and the slopes of the weights' errors."""
    cameras, points, weights = data["cameras"][data["camera"]], data["points"][data["point"]], data["weights"]
    rows = []
    for i in range(2):

        def error(z: Any, i: int = i) -> Any:
            return anp.sum(reprojection(z[0], z[1], z[2], data["features"])[:, i])

        of_camera, of_point, of_weight = grad(error)((cameras, points, weights))
        rows.append(np.concatenate([of_camera, of_point, of_weight[:, None]], axis=1))
    return np.stack(rows, axis=1), grad(lambda w: anp.sum(1 - w**2))(weights)


def finish_ba_objective(found: Any, _raw: Data) -> Data:
    """Return the first errors, and how many there are."""
    errors, of_weights = found
    return {
        "reproj_error": {"elements": errors[0].tolist(), "repeated": len(errors)},
        "w_err": {"element": float(of_weights[0]), "repeated": len(of_weights)},
    }


def logsumexp(x: Any) -> Any:
    """Return log sum exp over the last axis."""
    top = anp.max(x, axis=-1, keepdims=True)
    return top[..., 0] + anp.log(anp.sum(anp.exp(x - top), axis=-1))


def gmm(parameters: Data, data: Data) -> Any:
    """Return the log-likelihood of a mixture of normal distributions, with a Wishart prior."""
    alpha, terms, prior, d = parameters["alpha"], [], 0.0, data["x"].shape[1]
    places = np.zeros((len(data["rows"]), d * d))  # there is no assignment to elements: triangles are put in place by a product
    places[np.arange(len(data["rows"])), data["rows"] * d + data["columns"]] = 1.0
    for k in range(len(alpha)):
        q = parameters["q"][k]
        factor = anp.diag(anp.exp(q)) + anp.reshape(anp.dot(parameters["l"][k], places), (d, d))
        scaled = anp.dot(data["x"] - parameters["mu"][k], factor.T)
        terms.append(alpha[k] + anp.sum(q) - 0.5 * anp.sum(scaled**2, axis=1))
        prior = prior + 0.5 * data["gamma"] ** 2 * anp.sum(factor**2) - data["m"] * anp.sum(q)
    likelihood = anp.sum(logsumexp(anp.stack(terms, axis=1))) - len(data["x"]) * logsumexp(alpha)
    return data["constant"] + likelihood - prior


def prepare_gmm(raw: Data) -> Any:
    """Return the parameters, and the rest."""
    data = mixture(raw)
    return {name: data.pop(name) for name in ("alpha", "mu", "q", "l")}, data


def about(axis: int, angle: Any) -> Any:
    """Return the rotation about a coordinate axis, as a matrix (4, 4)."""
    c, s = anp.cos(angle), anp.sin(angle)
    if axis == 0:
        return anp.array([[1.0, 0.0, 0.0, 0.0], [0.0, c, -s, 0.0], [0.0, s, c, 0.0], [0.0, 0.0, 0.0, 1.0]])
    return anp.array([[c, -s, 0.0, 0.0], [s, c, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]])


def ht(moved: Any, data: Data) -> Any:
    """Return the distances of points from the hand that is posed by theta, three for each point."""
    columns = len(moved) - 26
    theta, us = moved[columns:], data["us"] + moved[:columns] if columns else data["us"]
    absolutes: list[Any] = []
    angles = fingers()
    posed: Any = 0.0
    for bone, parent in enumerate(data["parents"]):
        relative = data["relatives"][bone]
        bend, *spread = angles.get(bone, (None,))
        if spread:
            relative = anp.dot(relative, about(2, theta[spread[0]]))
        if bend is not None:
            relative = anp.dot(relative, about(0, theta[bend]))
        absolutes.append(relative if parent == -1 else anp.dot(absolutes[parent], relative))
        transform = anp.dot(absolutes[-1], data["inverses"][bone])
        posed = posed + anp.dot(transform, data["positions"])[:3] * data["weights"][bone]
    if data["mirrored"]:
        posed = posed * np.array([[-1.0], [1.0], [1.0]])
    vertices = rotate(theta[:3], posed.T).T + anp.reshape(theta[3:6], (3, 1))
    if columns:
        first, second, third = (vertices[:, index] for index in data["vertices"])
        found = us[:, 0] * first + us[:, 1] * second + (1 - us[:, 0] - us[:, 1]) * third
    else:
        found = vertices[:, data["vertices"][0]]
    return anp.ravel((data["points"] - found).T)


def ht_jacobian(moved: Any, data: Data) -> Any:
    """Return the Jacobian, column by column in forward mode."""
    push = make_jvp(lambda moved: ht(moved, data))(moved)
    return np.stack([push(e)[1] for e in np.eye(len(moved))], axis=1)


def prepare_ht(raw: Data) -> Any:
    """Return what is moved (two coordinates of all points, where there are any, and theta), and the rest."""
    data = hand(raw)
    return np.concatenate([np.zeros(2 if len(data["us"]) else 0), data.pop("theta")]), data


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x))."""
    return 1 / (1 + anp.exp(-x))


def lstm(parameters: Any, data: Data) -> Any:
    """Return the loss of predicting each character from those before; layers are diagonal."""
    main, extra = parameters
    layers = [(anp.reshape(main[i], (4, -1)), anp.reshape(main[i + 1], (4, -1))) for i in range(0, len(main), 2)]
    gates = [[(weight[j], bias[j]) for j in range(4)] for weight, bias in layers]
    state = [(data["state"][i], data["state"][i + 1]) for i in range(0, len(main), 2)]
    in_weight, out_weight, out_bias = extra[0], extra[1], extra[2]
    sequence, total = data["sequence"], 0.0
    for given, wanted in itertools.pairwise(sequence):
        x = given * in_weight
        for i, ((wf, bf), (wi, bi), (wo, bo), (wc, bc)) in enumerate(gates):
            hidden, cell = state[i]
            cell = cell * sigmoid(x * wf + bf) + sigmoid(hidden * wi + bi) * anp.tanh(hidden * wc + bc)
            x = sigmoid(x * wo + bo) * anp.tanh(cell)
            state[i] = x, cell
        predicted = x * out_weight + out_bias
        total = total + anp.sum(wanted * (predicted - anp.log(anp.sum(anp.exp(predicted)) + 2)))
    return -total / ((len(sequence) - 1) * sequence.shape[1])


def lstm_jacobian(parameters: Any, data: Data) -> Any:
    """Return the gradient by all parameters, one after the other."""
    main, extra = grad(lstm)(parameters, data)
    return np.concatenate([main.ravel(), extra.ravel()])


def prepare_lstm(raw: Data) -> Any:
    """Return the parameters, and the rest."""
    data = memory(raw)
    return (data.pop("main"), data.pop("extra")), data


MODULES = {
    "ba": {
        "objective": Function(adjustment, ba_objective, finish_ba_objective),
        "jacobian": Function(adjustment, ba_jacobian, lambda found, raw: jacobian_of_adjustment(raw, found[0][0], found[1][-1])),
    },
    "gmm": {
        "objective": Function(prepare_gmm, lambda args: gmm(*args), listed),
        "jacobian": Function(prepare_gmm, lambda args: grad(gmm)(*args), listed),
    },
    "ht": {
        "objective": Function(prepare_ht, lambda args: ht(*args), listed),
        "jacobian": Function(prepare_ht, lambda args: ht_jacobian(*args), listed),
    },
    "lstm": {
        "objective": Function(prepare_lstm, lambda args: lstm(*args), listed),
        "jacobian": Function(prepare_lstm, lambda args: lstm_jacobian(*args), listed),
    },
}
