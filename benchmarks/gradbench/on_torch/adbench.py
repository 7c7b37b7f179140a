"""Evals of ADBench: ``ba`` (bundle adjustment), ``gmm`` (Gaussian mixtures), ``ht`` (hand tracking) and ``lstm``."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch

from benchmarks.gradbench.inputs import Data, adjustment, fingers, hand, jacobian_of_adjustment, memory, mixture
from benchmarks.gradbench.on_torch.waiting import leaf, listed, tensors
from benchmarks.gradbench.protocol import Function

__all__ = ["MODULES"]


def rotate(rotation: Any, x: Any) -> Any:
    """Rotate points about axes, by angles that are the axes' lengths (Rodrigues); all have shape (P, 3)."""
    squared = (rotation**2).sum(1, keepdim=True)
    turned = squared > 0
    angle = torch.sqrt(torch.where(turned, squared, 1.0))
    axis = rotation / angle
    along = (axis * x).sum(1, keepdim=True) * (1 - torch.cos(angle))
    spun = x * torch.cos(angle) + torch.linalg.cross(axis, x) * torch.sin(angle) + axis * along
    return torch.where(turned, spun, x + torch.linalg.cross(rotation, x))


def reprojection(cameras: Any, points: Any, weights: Any, features: Any) -> Any:
    """Return how far observations are from features, shape (P, 2), with a camera, a point and a weight for each."""
    x = rotate(cameras[:, :3], points - cameras[:, 3:6])
    flat = x[:, :2] / x[:, 2:]
    squared = (flat**2).sum(1, keepdim=True)
    flat = flat * (1 + cameras[:, 9:10] * squared + cameras[:, 10:11] * squared**2)
    return weights[:, None] * (flat * cameras[:, 6:7] + cameras[:, 7:9] - features)


def ba_objective(data: Data) -> Any:
    """Return the errors of observations and those of weights."""
    weights = data["weights"]
    return reprojection(data["cameras"][data["camera"]], data["points"][data["point"]], weights, data["features"]), 1 - weights**2


def ba_jacobian(data: Data) -> Any:
    """Return the blocks of the Jacobian, shape (P, 2, 15), and the slopes of the weights' errors."""
    cameras = data["cameras"][data["camera"]].requires_grad_()
    points = data["points"][data["point"]].requires_grad_()
    weights = data["weights"].detach().requires_grad_()
    errors, rows = reprojection(cameras, points, weights, data["features"]), []
    for i in range(2):
        of_camera, of_point, of_weight = torch.autograd.grad(errors[:, i].sum(), (cameras, points, weights), retain_graph=True)
        rows.append(torch.cat([of_camera, of_point, of_weight[:, None]], dim=1))
    (slopes,) = torch.autograd.grad((1 - weights**2).sum(), weights)
    return torch.stack(rows, dim=1), slopes


def finish_ba_objective(found: Any, _raw: Data) -> Data:
    """Return the first errors, and how many there are."""
    errors, of_weights = found
    return {
        "reproj_error": {"elements": errors[0].tolist(), "repeated": len(errors)},
        "w_err": {"element": of_weights[0].item(), "repeated": len(of_weights)},
    }


def gmm(data: Data) -> Any:
    """Return the log-likelihood of a mixture of normal distributions, with a Wishart prior."""
    alpha, q = data["alpha"], data["q"]
    factors = torch.diag_embed(torch.exp(q))
    factors[:, data["rows"], data["columns"]] = data["l"]
    scaled = torch.einsum("kij,nkj->nki", factors, data["x"][:, None] - data["mu"])
    terms = alpha + q.sum(1) - 0.5 * (scaled**2).sum(2)
    prior = 0.5 * data["gamma"] ** 2 * (factors**2).sum() - data["m"] * q.sum()
    likelihood = torch.logsumexp(terms, dim=1).sum() - len(data["x"]) * torch.logsumexp(alpha, dim=0)
    return data["constant"] + likelihood - prior


def gmm_jacobian(data: Data) -> Any:
    """Return the gradient by every parameter."""
    names = ("alpha", "mu", "q", "l")
    return dict(zip(names, torch.autograd.grad(gmm(data), [data[name] for name in names]), strict=True))


def prepare_gmm(raw: Data) -> Data:
    """Return the data with the parameters as tensors that require gradients."""
    return tensors(mixture(raw), "alpha", "mu", "q", "l")


def about(axis: int, angle: Any) -> Any:
    """Return the rotation about a coordinate axis, as a matrix (4, 4)."""
    c, s, one, zero = torch.cos(angle), torch.sin(angle), torch.ones_like(angle), torch.zeros_like(angle)
    if axis == 0:
        rows = [one, zero, zero, zero, zero, c, -s, zero, zero, s, c, zero, zero, zero, zero, one]
    else:
        rows = [c, -s, zero, zero, s, c, zero, zero, zero, zero, one, zero, zero, zero, zero, one]
    return torch.stack(rows).reshape(4, 4)


def ht(moved: Any, data: Data) -> Any:
    """Return the distances of points from the hand that is posed by theta, three for each point."""
    columns = moved.shape[0] - 26
    theta, us = moved[columns:], data["us"] + moved[:columns] if columns else data["us"]
    absolutes: list[Any] = []
    angles = fingers()
    for bone, parent in enumerate(data["parents"]):
        relative = data["relatives"][bone]
        bend, *spread = angles.get(bone, (None,))
        if spread:
            relative = relative @ about(2, theta[spread[0]])
        if bend is not None:
            relative = relative @ about(0, theta[bend])
        absolutes.append(relative if parent == -1 else absolutes[parent] @ relative)
    transforms = torch.stack(absolutes) @ data["inverses"]
    posed = ((transforms @ data["positions"])[:, :3] * data["weights"][:, None]).sum(0)
    if data["mirrored"]:
        posed = posed * torch.tensor([[-1.0], [1.0], [1.0]])
    vertices = rotate(theta[None, :3].expand(posed.shape[1], 3), posed.T).T + theta[3:6, None]
    if columns:
        first, second, third = (vertices[:, index] for index in data["vertices"])
        found = us[:, 0] * first + us[:, 1] * second + (1 - us[:, 0] - us[:, 1]) * third
    else:
        found = vertices[:, data["vertices"][0]]
    return (data["points"] - found).T.ravel()


def prepare_ht(raw: Data) -> Any:
    """Return what is moved (two coordinates of all points, where there are any, and theta), and the rest."""
    data = hand(raw)
    moved = np.concatenate([np.zeros(2 if len(data["us"]) else 0), data.pop("theta")])
    return leaf(moved), tensors(data)


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x))."""
    return torch.sigmoid(x)


def lstm(data: Data) -> Any:
    """Return the loss of predicting each character from those before; layers are diagonal."""
    main, extra = data["main"], data["extra"]
    layers = [(main[i].reshape(4, -1), main[i + 1].reshape(4, -1)) for i in range(0, len(main), 2)]
    layers = [(tuple(weight), tuple(bias)) for weight, bias in layers]
    state = [(data["state"][i], data["state"][i + 1]) for i in range(0, len(main), 2)]
    sequence, total = data["sequence"], 0.0
    for given, wanted in itertools.pairwise(sequence):
        x = given * extra[0]
        for i, (weight, bias) in enumerate(layers):
            hidden, cell = state[i]
            forget, outgate = sigmoid(x * weight[0] + bias[0]), sigmoid(x * weight[2] + bias[2])
            ingate, change = sigmoid(hidden * weight[1] + bias[1]), torch.tanh(hidden * weight[3] + bias[3])
            cell = cell * forget + ingate * change
            x = outgate * torch.tanh(cell)
            state[i] = x, cell
        predicted = x * extra[1] + extra[2]
        total = total + (wanted * (predicted - torch.log(torch.exp(predicted).sum() + 2))).sum()
    return -total / ((len(sequence) - 1) * sequence.shape[1])


def lstm_jacobian(data: Data) -> Any:
    """Return the gradient by all parameters, one after the other."""
    main, extra = torch.autograd.grad(lstm(data), (data["main"], data["extra"]))
    return torch.cat([main.ravel(), extra.ravel()])


def prepare_lstm(raw: Data) -> Data:
    """Return the data with the parameters as tensors that require gradients."""
    return tensors(memory(raw), "main", "extra")


MODULES = {
    "ba": {
        "objective": Function(lambda raw: tensors(adjustment(raw), "cameras", "points", "weights"), ba_objective, finish_ba_objective),
        "jacobian": Function(
            lambda raw: tensors(adjustment(raw)),
            ba_jacobian,
            lambda found, raw: jacobian_of_adjustment(raw, found[0][0].numpy(), float(found[1][-1])),
        ),
    },
    "gmm": {"objective": Function(prepare_gmm, gmm, listed), "jacobian": Function(prepare_gmm, gmm_jacobian, listed)},
    "ht": {
        "objective": Function(prepare_ht, lambda args: ht(*args), listed),
        "jacobian": Function(prepare_ht, lambda args: torch.func.jacfwd(ht)(*args).detach(), listed),
    },
    "lstm": {"objective": Function(prepare_lstm, lstm, listed), "jacobian": Function(prepare_lstm, lstm_jacobian, listed)},
}
