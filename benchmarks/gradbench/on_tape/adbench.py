"""Evals of ADBench: ``ba`` (bundle adjustment), ``gmm`` (Gaussian mixtures), ``ht`` (hand tracking) and ``lstm``."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import tape
import tape.numpy as tnp
from benchmarks.gradbench.inputs import Data, adjustment, fingers, hand, jacobian_of_adjustment, memory, mixture
from benchmarks.gradbench.on_tape.waiting import function, listed, variables

__all__ = ["MODULES"]


def rotate(rotation: Any, x: Any) -> Any:
    """Rotate points about axes, by angles that are the axes' lengths (Rodrigues); all have shape (P, 3)."""
    squared = (rotation**2).sum(1, keepdims=True)
    turned = squared > 0
    angle = tnp.sqrt(tnp.where(turned, squared, 1.0))
    axis = rotation / angle
    along = (axis * x).sum(1, keepdims=True) * (1 - tnp.cos(angle))
    return tnp.where(turned, x * tnp.cos(angle) + tnp.cross(axis, x) * tnp.sin(angle) + axis * along, x + tnp.cross(rotation, x))


def reprojection(cameras: Any, points: Any, weights: Any, features: Any) -> Any:
    """Return how far observations are from features, shape (P, 2), with a camera, a point and a weight for each."""
    x = rotate(cameras[:, :3], points - cameras[:, 3:6])
    flat = x[:, :2] / x[:, 2:]
    squared = (flat**2).sum(1, keepdims=True)
    flat = flat * (1 + cameras[:, 9:10] * squared + cameras[:, 10:11] * squared**2)
    return weights[:, None] * (flat * cameras[:, 6:7] + cameras[:, 7:9] - features)


def ba_objective(data: Data) -> Any:
    """Return the errors of observations and those of weights."""
    weights = data["weights"]
    return reprojection(data["cameras"][data["camera"]], data["points"][data["point"]], weights, data["features"]), 1 - weights**2


def ba_jacobian(data: Data) -> Any:
    """Return the blocks of the Jacobian, shape (P, 2, 15), and the slopes of the weights' errors."""
    cameras = data["cameras"][data["camera"]].detach().requires_grad_()
    points = data["points"][data["point"]].detach().requires_grad_()
    weights = data["weights"].detach().requires_grad_()
    errors = reprojection(cameras, points, weights, data["features"])
    rows = []
    for i in range(2):  # an observation depends on its own numbers only, so that one sweep has a row of every block
        of_camera, of_point, of_weight = tape.gradients(errors[:, i].sum(), [cameras, points, weights], retain_graph=True)
        rows.append(tnp.concatenate([of_camera, of_point, of_weight[:, None]], axis=1))
    slopes = tape.gradients((1 - weights**2).sum(), weights)
    return tnp.stack(rows, axis=1), slopes


def finish_ba_objective(found: Any, _raw: Data) -> Data:
    """Return the first errors, and how many there are."""
    errors, of_weights = map(np.asarray, (found[0].value, found[1].value))
    return {
        "reproj_error": {"elements": errors[0].tolist(), "repeated": len(errors)},
        "w_err": {"element": float(of_weights[0]), "repeated": len(of_weights)},
    }


def gmm(data: Data) -> Any:
    """Return the log-likelihood of a mixture of normal distributions, with a Wishart prior."""
    alpha, gamma, m = data["alpha"], data["gamma"], data["m"]
    terms: list[Any] = []
    prior: Any = 0.0
    for a, mu, q, below in zip(alpha, data["mu"], data["q"], data["l"], strict=True):
        factor = tnp.diag(tnp.exp(q)).at[data["rows"], data["columns"]].set(below)
        terms.append(a + q.sum() - 0.5 * (((data["x"] - mu) @ factor.T) ** 2).sum(1))
        prior = prior + 0.5 * gamma**2 * (factor**2).sum() - m * q.sum()
    likelihood = _logsumexp(tnp.stack(terms, axis=1)).sum() - len(data["x"]) * _logsumexp(alpha[None])[0]
    return data["constant"] + likelihood - prior


def _logsumexp(x: Any) -> Any:
    top = x.max(axis=1)
    return top + tnp.log(tnp.exp(x - top[:, None]).sum(1))


def gmm_jacobian(data: Data) -> Any:
    """Return the gradient by every parameter."""
    names = ("alpha", "mu", "q", "l")
    return dict(zip(names, tape.gradients(gmm(data), [data[name] for name in names]), strict=True))


def prepare_gmm(raw: Data) -> Data:
    """Return the data with the parameters as Variables."""
    return variables(mixture(raw), "alpha", "mu", "q", "l")


def about(axis: int, angle: Any) -> Any:
    """Return the rotation about a coordinate axis, as a matrix (4, 4)."""
    i, j = (axis + 1) % 3, (axis + 2) % 3
    c, s = tnp.cos(angle), tnp.sin(angle)
    return tnp.eye(4).at[i, i].set(c).at[j, j].set(c).at[i, j].set(-s).at[j, i].set(s)


def globally(rotation: Any) -> Any:
    """Return the rotation by an axis whose length is the angle, as a matrix (3, 3)."""
    angle = tnp.sqrt((rotation**2).sum())
    if angle < 1e-4:
        return tnp.eye(3)
    x, y, z = rotation / angle
    cross = tnp.stack([tnp.stack([0.0, -z, y]), tnp.stack([z, 0.0, -x]), tnp.stack([-y, x, 0.0])])
    return tnp.eye(3) + tnp.sin(angle) * cross + (1 - tnp.cos(angle)) * cross @ cross


def ht(theta: Any, us: Any, data: Data) -> Any:
    """Return the distances of points from the hand that is posed by theta, three for each point."""
    absolutes: list[Any] = []
    angles = fingers()
    posed: Any = 0.0
    for bone, parent in enumerate(data["parents"]):
        relative = data["relatives"][bone]
        bend, *spread = angles.get(bone, (None,))
        if spread:
            relative = relative @ about(2, theta[spread[0]])
        if bend is not None:
            relative = relative @ about(0, theta[bend])
        absolutes.append(relative if parent == -1 else absolutes[parent] @ relative)
        transform = absolutes[-1] @ data["inverses"][bone]
        posed = posed + (transform @ data["positions"])[:3] * data["weights"][bone]
    if data["mirrored"]:
        posed = posed * np.array([[-1.0], [1.0], [1.0]])
    vertices = globally(theta[:3]) @ posed + theta[3:6, None]
    if len(data["us"]):
        first, second, third = (vertices[:, index] for index in data["vertices"])
        found = us[:, 0] * first + us[:, 1] * second + (1 - us[:, 0] - us[:, 1]) * third
    else:
        found = vertices[:, data["vertices"][0]]
    return (data["points"] - found).T.ravel()


def ht_jacobian(data: Data) -> Any:
    """Return the Jacobian by the coordinates of each point, in two columns, and by theta."""
    theta, us = data["theta"], data["us"]
    columns = 2 if len(us) else 0  # a point depends on its own coordinates only, so all points' are moved at once
    moved = tnp.concatenate([tnp.zeros(columns), theta])
    return tape.jacfwd(lambda moved: ht(moved[columns:], us + moved[:columns] if columns else us, data))(moved)


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x))."""
    return 1 / (1 + tnp.exp(-x))


def lstm(main: Any, extra: Any, data: Data) -> Any:
    """Return the loss of predicting each character from those before; layers are diagonal."""
    layers = [(main[i].reshape(4, -1), main[i + 1].reshape(4, -1)) for i in range(0, len(main), 2)]
    state = [(data["state"][i], data["state"][i + 1]) for i in range(0, len(main), 2)]
    sequence, total = data["sequence"], 0.0
    for given, wanted in itertools.pairwise(sequence):
        x = given * extra[0]
        for i, (weight, bias) in enumerate(layers):
            hidden, cell = state[i]
            forget, outgate = sigmoid(x * weight[0] + bias[0]), sigmoid(x * weight[2] + bias[2])
            ingate, change = sigmoid(hidden * weight[1] + bias[1]), tnp.tanh(hidden * weight[3] + bias[3])
            cell = cell * forget + ingate * change
            x = outgate * tnp.tanh(cell)
            state[i] = x, cell
        predicted = x * extra[1] + extra[2]
        total = total + (wanted * (predicted - tnp.log(tnp.exp(predicted).sum() + 2))).sum()
    return -total / ((len(sequence) - 1) * sequence.shape[1])


def lstm_objective(data: Data) -> Any:
    """Return the loss of a message's data."""
    return lstm(data["main"], data["extra"], data)


def lstm_jacobian(data: Data) -> Any:
    """Return the gradient by all parameters, one after the other."""
    main, extra = tape.gradients(lstm_objective(data), [data["main"], data["extra"]])
    return tnp.concatenate([main.ravel(), extra.ravel()])


def prepare_lstm(raw: Data) -> Data:
    """Return the data with the parameters as Variables."""
    return variables(memory(raw), "main", "extra")


MODULES = {
    "ba": {
        "objective": function(lambda raw: variables(adjustment(raw), "cameras", "points", "weights"), ba_objective, finish_ba_objective),
        "jacobian": function(
            lambda raw: variables(adjustment(raw)),
            ba_jacobian,
            lambda found, raw: jacobian_of_adjustment(raw, np.asarray(found[0].value)[0], found[1].value[-1]),
        ),
    },
    "gmm": {"objective": function(prepare_gmm, gmm, listed), "jacobian": function(prepare_gmm, gmm_jacobian, listed)},
    "ht": {
        "objective": function(lambda raw: variables(hand(raw), "theta", "us"), lambda data: ht(data["theta"], data["us"], data), listed),
        "jacobian": function(lambda raw: variables(hand(raw)), ht_jacobian, listed),
    },
    "lstm": {"objective": function(prepare_lstm, lstm_objective, listed), "jacobian": function(prepare_lstm, lstm_jacobian, listed)},
}
