"""Evals of ADBench: ``ba`` (bundle adjustment), ``gmm`` (Gaussian mixtures), ``ht`` (hand tracking) and ``lstm``."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gradbench.inputs import Data, adjustment, fingers, hand, jacobian_of_adjustment, memory, mixture
from benchmarks.gradbench.on_jax.waiting import function, listed

__all__ = ["MODULES"]


def rotate(rotation: Any, x: Any) -> Any:
    """Rotate a point about an axis, by an angle that is the axis' length (Rodrigues)."""
    squared = (rotation**2).sum()
    turned = squared > 0
    angle = jnp.sqrt(jnp.where(turned, squared, 1.0))
    axis = rotation / angle
    spun = x * jnp.cos(angle) + jnp.cross(axis, x) * jnp.sin(angle) + axis * (axis @ x) * (1 - jnp.cos(angle))
    return jnp.where(turned, spun, x + jnp.cross(rotation, x))


def reprojection(camera: Any, point: Any, weight: Any, feature: Any) -> Any:
    """Return how far an observation is from a feature, shape (2,)."""
    x = rotate(camera[:3], point - camera[3:6])
    flat = x[:2] / x[2]
    squared = (flat**2).sum()
    flat = flat * (1 + camera[9] * squared + camera[10] * squared**2)
    return weight * (flat * camera[6] + camera[7:9] - feature)


def ba_objective(scene: Data) -> Any:
    """Return the errors of observations and those of weights."""
    cameras, points, weights = scene["cameras"][scene["camera"]], scene["points"][scene["point"]], scene["weights"]
    return jax.vmap(reprojection)(cameras, points, weights, scene["features"]), 1 - weights**2


def ba_jacobian(scene: Data) -> Any:
    """Return the blocks of the Jacobian, shape (P, 2, 15), and the slopes of the weights' errors."""
    cameras, points, weights = scene["cameras"][scene["camera"]], scene["points"][scene["point"]], scene["weights"]
    blocks = jax.vmap(jax.jacrev(reprojection, argnums=(0, 1, 2)))(cameras, points, weights, scene["features"])
    slopes = jax.vmap(jax.grad(lambda w: 1 - w**2))(weights)
    return jnp.concatenate([blocks[0], blocks[1], blocks[2][:, :, None]], axis=2), slopes


def finish_ba_objective(found: Any, _raw: Data) -> Data:
    """Return the first errors, and how many there are."""
    errors, of_weights = map(np.asarray, found)
    return {
        "reproj_error": {"elements": errors[0].tolist(), "repeated": len(errors)},
        "w_err": {"element": float(of_weights[0]), "repeated": len(of_weights)},
    }


def gmm(parameters: Data, data: Data) -> Any:
    """Return the log-likelihood of a mixture of normal distributions, with a Wishart prior."""
    alpha, mu, q, below = (parameters[name] for name in ("alpha", "mu", "q", "l"))
    factors = jax.vmap(lambda q, below: jnp.diag(jnp.exp(q)).at[data["rows"], data["columns"]].set(below))(q, below)
    scaled = jnp.einsum("kij,nkj->nki", factors, data["x"][:, None] - mu)
    terms = alpha + q.sum(1) - 0.5 * (scaled**2).sum(2)
    prior = 0.5 * data["gamma"] ** 2 * (factors**2).sum() - data["m"] * q.sum()
    likelihood = jax.nn.logsumexp(terms, axis=1).sum() - len(data["x"]) * jax.nn.logsumexp(alpha)
    return data["constant"] + likelihood - prior


def prepare_gmm(raw: Data) -> Any:
    """Return the parameters, and the rest."""
    data = mixture(raw)
    return {name: data.pop(name) for name in ("alpha", "mu", "q", "l")}, data


def about(axis: int, angle: Any) -> Any:
    """Return the rotation about a coordinate axis, as a matrix (4, 4)."""
    i, j = (axis + 1) % 3, (axis + 2) % 3
    c, s = jnp.cos(angle), jnp.sin(angle)
    return jnp.eye(4).at[i, i].set(c).at[j, j].set(c).at[i, j].set(-s).at[j, i].set(s)


def ht(moved: Any, data: Data, parents: tuple[int, ...], *, mirrored: bool) -> Any:
    """Return the distances of points from the hand that is posed by theta, three for each point."""
    columns = moved.size - 26
    theta, us = moved[columns:], data["us"] + moved[:columns] if columns else data["us"]
    absolutes: list[Any] = []
    angles = fingers()
    for bone, parent in enumerate(parents):
        relative = data["relatives"][bone]
        bend, *spread = angles.get(bone, (None,))
        if spread:
            relative = relative @ about(2, theta[spread[0]])
        if bend is not None:
            relative = relative @ about(0, theta[bend])
        absolutes.append(relative if parent == -1 else absolutes[parent] @ relative)
    transforms = jnp.stack(absolutes) @ data["inverses"]
    posed = jnp.einsum("bij,jv,bv->iv", transforms[:, :3], data["positions"], data["weights"])
    if mirrored:
        posed = posed * jnp.array([[-1.0], [1.0], [1.0]])
    vertices = jax.vmap(partial(rotate, theta[:3]), 1, 1)(posed) + theta[3:6, None]
    if columns:
        first, second, third = (vertices[:, index] for index in data["vertices"])
        found = us[:, 0] * first + us[:, 1] * second + (1 - us[:, 0] - us[:, 1]) * third
    else:
        found = vertices[:, data["vertices"][0]]
    return (data["points"] - found).T.ravel()


def prepare_ht(raw: Data) -> Any:
    """Return what is moved (two coordinates of all points, where there are any, and theta), arrays, and what is static."""
    data = hand(raw)
    parents, mirrored = tuple(data.pop("parents")), data.pop("mirrored")
    moved = np.concatenate([np.zeros(2 if len(data["us"]) else 0), data.pop("theta")])
    return moved, data, parents, mirrored


def _ht(moved: Any, data: Data, parents: tuple[int, ...], mirrored: bool) -> Any:
    return ht(moved, data, parents, mirrored=mirrored)


def lstm(parameters: Any, data: Data) -> Any:
    """Return the loss of predicting each character from those before; layers are diagonal."""
    main, extra = parameters
    layers = main.reshape(-1, 2, 4, main.shape[1] // 4)

    def step(state: Any, pair: Any) -> Any:
        given, wanted = pair
        x, states = given * extra[0], []
        for (weight, bias), (hidden, cell) in zip(layers, state, strict=True):
            forget, outgate = jax.nn.sigmoid(x * weight[0] + bias[0]), jax.nn.sigmoid(x * weight[2] + bias[2])
            ingate, change = jax.nn.sigmoid(hidden * weight[1] + bias[1]), jnp.tanh(hidden * weight[3] + bias[3])
            following = cell * forget + ingate * change
            x = outgate * jnp.tanh(following)
            states.append(jnp.stack([x, following]))
        predicted = x * extra[1] + extra[2]
        return jnp.stack(states), (wanted * (predicted - jnp.log(jnp.exp(predicted).sum() + 2))).sum()

    sequence = data["sequence"]
    _, terms = jax.lax.scan(step, data["state"].reshape(len(layers), 2, -1), (sequence[:-1], sequence[1:]))
    return -terms.sum() / ((len(sequence) - 1) * sequence.shape[1])


def lstm_jacobian(parameters: Any, data: Data) -> Any:
    """Return the gradient by all parameters, one after the other."""
    main, extra = jax.grad(lstm)(parameters, data)
    return jnp.concatenate([main.ravel(), extra.ravel()])


def prepare_lstm(raw: Data) -> Any:
    """Return the parameters, and the rest."""
    data = memory(raw)
    return (data.pop("main"), data.pop("extra")), data


MODULES = {
    "ba": {
        "objective": function(lambda raw: (adjustment(raw),), ba_objective, finish_ba_objective),
        "jacobian": function(
            lambda raw: (adjustment(raw),),
            ba_jacobian,
            lambda found, raw: jacobian_of_adjustment(raw, np.asarray(found[0][0]), found[1][-1]),
        ),
    },
    "gmm": {"objective": function(prepare_gmm, gmm, listed), "jacobian": function(prepare_gmm, jax.grad(gmm), listed)},
    "ht": {"objective": function(prepare_ht, _ht, listed, static=2), "jacobian": function(prepare_ht, jax.jacfwd(_ht), listed, static=2)},
    "lstm": {"objective": function(prepare_lstm, lstm, listed), "jacobian": function(prepare_lstm, lstm_jacobian, listed)},
}
